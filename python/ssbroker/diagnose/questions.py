"""Questions to the native router, and what it answers, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker.routing import Router

pc: Any = pyarrow.compute  # its stubs do not know dictionaries
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


def decisions_of(router: Router, rows: Sequence[Question], now: datetime) -> pa.RecordBatch:
    """What the router decides about each question.

    Args:
        router: The router.
        rows: The questions.
        now: The moment at which routes expire.

    Returns:
        The decisions, in the schema of `schemas.DECISIONS`.
    """
    asked: dict[str, Any] = {
        "database": pa.array([row.database for row in rows], pa.string()),
        "to_service_name": pa.array([row.service for row in rows], pa.string()),
        "to_broker_instance": pa.array([row.broker for row in rows], pa.binary(16)),
        "is_initiator": pa.array([row.is_initiator for row in rows], pa.bool_()),
    }
    return router.route(pa.record_batch(asked), now=now)


def answers_of(router: Router, rows: Sequence[Question], now: datetime, *, with_routes: bool) -> list[Answer]:
    """The same as plain values; without routes, most questions get equal answers.

    Args:
        router: The router.
        rows: The questions.
        now: The moment at which routes expire.
        with_routes: Whether answers say by which step and route.

    Returns:
        An answer for each question.
    """
    decisions = decisions_of(router, rows, now)
    columns = {name: _values(decisions.column(name)) for name in _COLUMNS if with_routes or name not in _OF_ROUTES}
    return [Answer(*values) for values in zip(*(columns.get(name, repeat(None)) for name in _COLUMNS))]  # noqa: B905 - None without end


def _values(column: Any) -> list[Any]:
    """The values of a column; of a dictionary without making a scalar for each row."""
    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    words = [*column.dictionary.to_pylist(), None]
    numbers = pc.cast(pc.fill_null(column.indices, -1), pa.int32())
    first = numbers.offset
    return [words[number] for number in memoryview(numbers.buffers()[1]).cast("i")[first : first + len(numbers)]]
