"""Which routes any conversation ever takes: the router's own answer, over every class of conversations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from ssbroker.catalog import Catalog
from ssbroker.diagnose.behaviour import Behaviour
from ssbroker.diagnose.questions import Class, Place
from ssbroker.diagnose.tables import BROKER_CONFIGURATION, MSDB, TRANSPORT, RouteRow, Tables

ANY_NAME: Final = "any service"
ANY_ADDRESS: Final = "TCP://any.invalid:4022/any service"
"""A name that begins with an address, for routes to TRANSPORT."""
_NO_IDS: Final[set[bytes | None]] = set()


def picked(catalog: Catalog, behaviour: Behaviour) -> set[tuple[str, int]]:
    """The routes that some conversation takes, by table and route id.

    A request for routing information may be pending or not, so both are asked. Own addresses play no part in what is picked first.

    Args:
        catalog: The instance.
        behaviour: What it does.

    Returns:
        The routes. Those of a disabled database are not among them: nothing that begins there is routed.
    """
    rows = behaviour.tables
    found = _picked(behaviour)
    if any(route.service == BROKER_CONFIGURATION for route in rows.routes):
        names = {ANY_NAME, ANY_ADDRESS, *rows.hosts, *catalog.pending_requests}
        names |= {route.service for route in rows.routes if route.service is not None}
        waiting = Catalog(
            catalog.routes,
            catalog.databases,
            catalog.services,
            message_forwarding=catalog.message_forwarding,
            pending_requests=sorted(names),
        )
        found |= _picked(Behaviour(waiting, now=behaviour.now, rows=rows))
    return found


def _picked(behaviour: Behaviour) -> set[tuple[str, int]]:
    return {
        (place[0] or MSDB, route_id)
        for place, classes in _asked(behaviour)
        for route_id in behaviour.picks(place, classes)
    }


def _asked(behaviour: Behaviour) -> Iterator[tuple[Place, list[Class]]]:
    """One conversation of every class that each table can tell apart."""
    rows = behaviour.tables
    ids: defaultdict[tuple[str, str], set[bytes | None]] = defaultdict(set)
    for route in rows.routes:
        if route.service is not None and route.broker is not None:
            ids[route.database, route.service].add(route.broker)
    own: set[bytes | None] = {database.broker for database in rows.databases.values()}
    always: set[bytes | None] = {None, behaviour.other_broker}
    reading = {route.database for route in rows.routes if route.address == TRANSPORT}
    for table in rows.databases:
        names = [*sorted(behaviour.in_play[table]), ANY_NAME, *([ANY_ADDRESS] if table in reading else [])]
        classes = [
            (name, broker)
            for name in names
            for broker in always.union(ids.get((table, name), _NO_IDS), own if name in rows.hosts else _NO_IDS)
        ]
        yield (table, True), classes
        if table == MSDB:
            yield (None, True), classes


def preferred(route: RouteRow, rows: Tables, taken: Collection[tuple[str, int]]) -> list[RouteRow]:
    """The routes that are taken where this one could have been: those of the same service and broker id."""
    return [
        other
        for other in rows.routes
        if other.key in taken
        and (other.database, other.service, other.broker) == (route.database, route.service, route.broker)
    ]
