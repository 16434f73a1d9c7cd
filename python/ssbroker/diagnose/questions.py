"""Questions to the native router, and what it answers, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import getitem
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker.diagnose.words import encoded
from ssbroker.routing import Router

_OF_ROUTES: Final = ("match_step", "route_id")
_COLUMNS: Final = (
    "outcome",
    "reason",
    *_OF_ROUTES,
    "next_hop_address",
    "mirror_address",
    "target_database",
    "broker_instance",
)

Place = tuple[str | None, bool]
"""Where a conversation began, None from outside; and whether the initiator sends."""
Class = tuple[str, bytes | None]
"""For which service, and with which broker id; such a pair stands for all that get the same answers."""


class Question(NamedTuple):
    """One conversation, but for its id."""

    database: str | None
    """Where it began; None from outside."""
    service: str
    broker: bytes | None = None
    is_initiator: bool = True


class Answer(NamedTuple):
    """One decision that may be taken."""

    outcome: str
    reason: str
    match_step: int | None
    route_id: int | None
    next_hop: str | None
    mirror: str | None
    target_database: str | None
    broker: bytes | None


def decisions_of(router: Router, place: Place, classes: Sequence[Class], now: datetime) -> pa.RecordBatch:
    """What the router decides about each of some questions.

    Args:
        router: The router.
        place: Where all of them come from.
        classes: What each is for.
        now: The moment at which routes expire.

    Returns:
        The decisions, in the schema of `schemas.DECISIONS`.
    """
    database, is_initiator = place
    asked: dict[str, Any] = {
        "database": pa.repeat(pa.scalar(database, pa.string()), len(classes)),
        "to_service_name": pa.array([service for service, _ in classes], pa.string()),
        "to_broker_instance": pa.array([broker for _, broker in classes], pa.binary(16)),
        "is_initiator": pa.repeat(is_initiator, len(classes)),
    }
    return router.route(pa.record_batch(asked), now=now)


class Answers:
    """The sets of answers that questions get, each kept once and numbered: most questions of an instance get equal ones.

    Args:
        with_routes: Whether answers say by which step and route.
    """

    def __init__(self, *, with_routes: bool) -> None:
        self.sets: Final[list[tuple[Answer, ...]]] = []
        """Every set by its number."""
        self._numbers: Final[dict[tuple[Answer, ...], int]] = {}
        self._columns: Final = [name for name in _COLUMNS if with_routes or name not in _OF_ROUTES]
        self._with_routes: Final = with_routes

    def number(self, answers: tuple[Answer, ...]) -> int:
        """The number of a set."""
        number = self._numbers.setdefault(answers, len(self.sets))
        if number == len(self.sets):
            self.sets.append(answers)
        return number

    def numbers(self, decisions: pa.RecordBatch, repeats: Sequence[int]) -> list[int]:
        """The number of the set for each question, which was asked in so many rows one after the other."""
        columns = [encoded(decisions.column(name)) for name in self._columns]
        rows = list(zip(*(indices for indices, _ in columns), strict=True))
        met = _Met(self, [words for _, words in columns], with_routes=self._with_routes)
        if len(rows) == len(repeats):
            return list(map(met.__getitem__, rows))
        found = []
        first = 0
        for times in repeats:
            if times == 1:
                found.append(met[rows[first]])
            else:
                each = (self.sets[met[row]][0] for row in rows[first : first + times])
                found.append(self.number(tuple(dict.fromkeys(each))))
            first += times
        return found


class _Met(dict[tuple[int, ...], int]):
    """The number of the set that holds one decision alone, by the places of its words; worked out when it is first met."""

    def __init__(self, answers: Answers, words: list[list[Any]], *, with_routes: bool) -> None:
        super().__init__()
        self._answers = answers
        self._words = words
        self._with_routes = with_routes

    def __missing__(self, row: tuple[int, ...]) -> int:
        outcome, reason, *rest = map(getitem, self._words, row)
        of_route = () if self._with_routes else (None, None)
        self[row] = number = self._answers.number((Answer(outcome, reason, *of_route, *rest),))
        return number
