"""What is incomplete or behind a gap: since when, whether it grows, and when it is given up (U7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ssbroker.schemas import PENDING
from ssbroker.spark.streams.arrays import Column, column, key, pc, same, with_column

SINCE: Final = "since_us"
GROWN: Final = "grown_us"
WAITS: Final = pa.schema([*PENDING, pa.field(SINCE, pa.int64()), pa.field(GROWN, pa.int64())])
"""What waits, since when, and when a fragment of it was last accepted."""

_KEYS: Final = ("conversation_id", "is_initiator", "message_sequence_number")


@dataclass(frozen=True)
class Waits:
    """What waits after a step.

    Attributes:
        rows: Those that go on: `WAITS`, None for none; the same object as before if nothing has changed.
        expired: Those that are given up: the same.
        due_us: When the next is given up, None for never.
    """

    rows: pa.Table | None
    expired: pa.Table | None
    due_us: int | None


def waits(before: pa.Table | None, pending: pa.Table | None, *, max_age_us: int | None, now_us: int) -> Waits:
    """Compares what is pending now with what waited before.

    Args:
        before: What waited: `WAITS`.
        pending: What is pending: `schemas.PENDING`; None if nothing has come.
        max_age_us: After how long what does not grow is given up, None for never.
        now_us: The moment. Where the clock has been set back, nothing has grown later than that.

    Returns:
        What waits, and what is given up.
    """
    rows = before if pending is None else _since(before, pending, now_us=now_us)
    if rows is None or not rows.num_rows:
        return Waits(None, None, None)
    if max_age_us is None:
        return Waits(rows, None, None)
    grown = column(rows, GROWN)
    if pc.max(grown).as_py() > now_us:
        grown = pc.min_element_wise(grown, now_us)
        rows = with_column(rows, GROWN, grown)
    is_over = pc.less_equal(grown, now_us - max_age_us)
    if not pc.any(is_over).as_py():
        return Waits(rows, None, _first(grown) + max_age_us)
    rest = rows.filter(pc.invert(is_over))
    due_us = _first(column(rest, GROWN)) + max_age_us if rest.num_rows else None
    return Waits(rest if rest.num_rows else None, rows.filter(is_over), due_us)


def _since(before: pa.Table | None, pending: pa.Table, *, now_us: int) -> pa.Table:
    """What is pending, with the moments of what waited before and has not grown."""
    now = same(now_us, pa.int64(), pending.num_rows)
    if before is None or not pending.num_rows:
        return with_column(with_column(pending, SINCE, now), GROWN, now)
    place = pc.index_in(key(pending, _KEYS), value_set=key(before, _KEYS))
    since = pc.coalesce(column(before, SINCE).take(place), pa.scalar(now_us, pa.int64()))
    had = column(before, "received_fragments").take(place)
    is_as_before = pc.fill_null(pc.equal(had, column(pending, "received_fragments")), fill_value=False)
    grown = pc.if_else(is_as_before, column(before, GROWN).take(place), pa.scalar(now_us, pa.int64()))
    return with_column(with_column(pending, SINCE, since), GROWN, grown)


def _first(moments: Column) -> int:
    first: int = pc.min(moments).as_py()
    return first
