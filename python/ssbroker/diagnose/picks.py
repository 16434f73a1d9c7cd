"""Which routes any conversation ever takes: the router's own answer, over every class of conversations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from ssbroker.catalog import Catalog
from ssbroker.diagnose.behaviour import Behaviour
from ssbroker.diagnose.questions import Question
from ssbroker.diagnose.tables import MSDB, TRANSPORT, RouteRow, Tables

ANY_NAME: Final = "any service"
ANY_ADDRESS: Final = "TCP://any.invalid:4022/any service"
"""A name that begins with an address, for routes to TRANSPORT."""


def picked(catalog: Catalog, rows: Tables, *, now: datetime) -> set[tuple[str, int]]:
    """The routes that some conversation takes, by table and route id.

    A request for routing information may be pending or not, so both are asked. Own addresses play no part in what is picked first.

    Args:
        catalog: The instance.
        rows: Its rows.
        now: The moment at which routes expire.

    Returns:
        The routes. Those of a disabled database are not among them: nothing that begins there is routed.
    """
    names = {ANY_NAME, ANY_ADDRESS, *rows.hosts, *catalog.pending_requests}
    names |= {route.service for route in rows.routes if route.service is not None}
    found: set[tuple[str, int]] = set()
    dynamic = any(route.service is not None and route.service.endswith("BrokerConfiguration") for route in rows.routes)
    for pending in (catalog.pending_requests, sorted(names)) if dynamic else (catalog.pending_requests,):
        still = Catalog(
            catalog.routes,
            catalog.databases,
            catalog.services,
            message_forwarding=catalog.message_forwarding,
            pending_requests=pending,
        )
        behaviour = Behaviour(still, now=now, rows=rows)
        found |= behaviour.picks(_questions(rows, behaviour))
    return found


def _questions(rows: Tables, behaviour: Behaviour) -> Iterator[Question]:
    """One conversation of every class that each table can tell apart."""
    ids: defaultdict[tuple[str, str], set[bytes]] = defaultdict(set)
    for route in rows.routes:
        if route.service is not None and route.broker is not None:
            ids[route.database, route.service].add(route.broker)
    hosts = rows.hosts
    for table in rows.databases:
        own = {database.broker for database in rows.databases.values()}
        transport = any(route.database == table and route.address == TRANSPORT for route in rows.routes)
        names = sorted(behaviour.in_play[table]) + [ANY_NAME] + ([ANY_ADDRESS] if transport else [])
        for name in names:
            brokers = {None, behaviour.other_broker} | ids[table, name] | (own if name in hosts else set())
            for broker in brokers:
                yield Question(table, name, broker)
                if table == MSDB:
                    yield Question(None, name, broker)


def preferred(route: RouteRow, rows: Tables, taken: set[tuple[str, int]]) -> list[RouteRow]:
    """The routes that are taken where this one could have been: those of the same service and broker id."""
    return [
        other
        for other in rows.routes
        if other.key in taken
        and (other.database, other.service, other.broker) == (route.database, route.service, route.broker)
    ]
