"""Every class of conversations that either of two catalogs can tell apart, and what each does with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import repeat
from typing import NamedTuple

from ssbroker.catalog import Catalog
from ssbroker.diagnose.behaviour import Behaviour
from ssbroker.diagnose.picks import ANY_ADDRESS
from ssbroker.diagnose.questions import Answer, Question
from ssbroker.diagnose.sides import NOT_BEGUN, Side
from ssbroker.diagnose.tables import MSDB
from ssbroker.routing import PendingRequest


class Class(NamedTuple):
    """Conversations that both catalogs treat alike among themselves."""

    database: str | None
    """Where they begin; None from outside."""
    service: str | None
    """None for every one that neither catalog knows."""
    broker: bytes | None
    before: tuple[Side, ...]
    """Every decision that may be taken."""
    after: tuple[Side, ...]


def classes(
    before: Catalog, after: Catalog, *, moments: tuple[datetime, datetime], pending_request: PendingRequest
) -> Iterator[Class]:
    """The classes, each once.

    What begins in a database that only one of the catalogs has is `NOT_BEGUN` with the other.

    Args:
        before: The one catalog.
        after: The other.
        moments: The moments at which routes expire, of both.
        pending_request: What a pending request for routing information does to step 4.

    Yields:
        Each class with the decisions of both.
    """
    both = [
        Behaviour(catalog, now=now, pending_request=pending_request, with_routes=True)
        for catalog, now in zip((before, after), moments, strict=True)
    ]
    other = _unknown_to(both)
    other_broker = _unknown_id(both)
    ids: defaultdict[str, set[bytes]] = defaultdict(set)
    own: set[bytes] = set()
    for behaviour in both:
        own |= {row.broker for row in behaviour.tables.databases.values() if row.broker is not None}
        for route in behaviour.tables.routes:
            if route.service is not None and route.broker is not None:
                ids[route.service].add(route.broker)
    for database in (None, *sorted(both[0].tables.databases.keys() | both[1].tables.databases.keys())):
        table = MSDB if database is None else database
        names = sorted(frozenset().union(*(behaviour.in_play.get(table, ()) for behaviour in both)))
        reading = [ANY_ADDRESS] if any(behaviour.asks_names(table) for behaviour in both) else []
        questions = [
            Question(database, name, broker, is_initiator)
            for name in (*names, *reading, other)
            for broker in (None, other_broker, *sorted(ids[name] | own))
            for is_initiator in ((True, False) if database is None and broker in own else (True,))
        ]
        sides = [
            map(_sides, behaviour.ask(questions)) if table in behaviour.tables.databases else repeat((NOT_BEGUN,))
            for behaviour in both
        ]
        for question, old, new in zip(questions, *sides, strict=False):
            service = None if question.service == other else question.service
            yield Class(database, service, question.broker, old, new)


def _sides(answers: tuple[Answer, ...]) -> tuple[Side, ...]:
    return tuple(
        dict.fromkeys(
            Side(
                each.outcome,
                each.reason,
                each.match_step,
                each.route_id,
                each.next_hop,
                each.mirror,
                each.target_database,
            )
            for each in answers
        )
    )


def _unknown_to(both: list[Behaviour]) -> str:
    name = "any other service"
    while any(name in names for behaviour in both for names in behaviour.in_play.values()):
        name += "."
    return name


def _unknown_id(both: list[Behaviour]) -> bytes:
    """An id that neither knows; each has one of its own that the other may know."""
    known = {route.broker for behaviour in both for route in behaviour.tables.routes}
    known |= {row.broker for behaviour in both for row in behaviour.tables.databases.values()}
    return next(
        broker
        for number in range(len(known) + 1)
        if (broker := (0xFFFF << 112 | number).to_bytes(16, "big")) not in known
    )
