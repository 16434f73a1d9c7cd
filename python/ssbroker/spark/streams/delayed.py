"""The transmission queue of a stream: what has no route waits, with all that follow it, and is tried again (U6, R18)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ssbroker.spark.streams.arrays import Column, column, key, pc, same, with_column

RETRY_FIRST_US: Final = 4_000_000
RETRY_MOST_US: Final = 64_000_000

ARRIVAL: Final = "ssbroker arrival"
SINCE: Final = "ssbroker since"
DUE: Final = "ssbroker due"
TRIES: Final = "ssbroker tries"
TURN: Final = {ARRIVAL: pa.int64(), SINCE: pa.int64(), DUE: pa.int64(), TRIES: pa.int64()}
"""What is kept beside a message that waits: its place among all that came, since when, when it is tried again, how often it was."""

_ROW_BYTES: Final = 256
_DELAYED: Final = "is_delayed"


@dataclass(frozen=True)
class Turn:
    """What comes of a step.

    Attributes:
        released: Messages with their decisions, in the order of their directions.
        queue: What waits, oldest first: the columns of messages and `TURN`; None for nothing.
        arrivals: How many messages have come so far.
    """

    released: list[pa.RecordBatch]
    queue: pa.Table | None
    arrivals: int

    @property
    def due_us(self) -> int | None:
        """When the next is tried again."""
        if self.queue is None:
            return None
        due: int = pc.min(self.queue[DUE]).as_py()
        return due


@dataclass(frozen=True, kw_only=True)
class Room:
    """Where messages wait for a route.

    Attributes:
        decide: Adds the decision to messages, and says of which it is DELAYED.
        direction: The columns of what goes in order; None where each is for itself.
        max_bytes: How much may wait.
    """

    decide: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, Column]]
    direction: tuple[str, ...] | None
    max_bytes: int

    def turn(
        self, queue: pa.Table | None, arrived: pa.Table | None, *, arrivals: int, changed: bool, now_us: int
    ) -> Turn:
        """Routes what has come and what is due.

        Args:
            queue: What waits: the columns of messages and `TURN`.
            arrived: The messages that have come.
            arrivals: How many messages have come so far.
            changed: Whether the catalog says something else than when they were last tried.
            now_us: The moment.

        Returns:
            What is released, and what waits.
        """
        if queue is not None and arrived is None and not changed and self._is_early(queue, now_us):
            return Turn([], queue, arrivals)
        resting, tried = self._parted(queue, arrived, arrivals=arrivals, changed=changed, now_us=now_us)
        arrivals += arrived.num_rows if arrived is not None else 0
        released: list[pa.RecordBatch] = []
        if tried is not None:
            released, delayed = self._tried(tried, now_us=now_us)
            resting = _together(resting, delayed)
        if resting is None:
            return Turn(released, None, arrivals)
        resting = resting.take(pc.sort_indices(column(resting, ARRIVAL)))
        over, resting = _over(resting, self.max_bytes)
        for rows in [] if over is None else _messages(over).to_batches():
            released.append(self.decide(rows)[0])
        return Turn(released, resting, arrivals)

    def _parted(
        self, queue: pa.Table | None, arrived: pa.Table | None, *, arrivals: int, changed: bool, now_us: int
    ) -> tuple[pa.Table | None, pa.Table | None]:
        """What goes on waiting, and what is tried now, oldest first."""
        new = None if arrived is None or not arrived.num_rows else _new(arrived, arrivals=arrivals, now_us=now_us)
        if queue is None:
            return None, new
        # Where the clock has been set back, nothing waits longer than it would have to.
        queue = with_column(queue, DUE, pc.min_element_wise(column(queue, DUE), now_us + RETRY_MOST_US))
        is_due = same(True, pa.bool_(), queue.num_rows) if changed else pc.less_equal(column(queue, DUE), now_us)
        resting, tried = queue.filter(pc.invert(is_due)), queue.filter(is_due)
        if new is not None and self.direction is not None and resting.num_rows:
            place = pc.index_in(key(new, self.direction), value_set=key(resting, self.direction))
            behind = pc.is_valid(place)
            for name in (DUE, TRIES):
                new = with_column(new, name, pc.coalesce(column(resting, name).take(place), column(new, name)))
            resting, new = _rows(resting, new.filter(behind)), new.filter(pc.invert(behind))
        return _some(resting), _together(_some(tried), new)

    def _is_early(self, queue: pa.Table, now_us: int) -> bool:
        """Whether nothing is due, and nothing waits longer than it would have to because the clock has been set back."""
        least, most = pc.min_max(queue[DUE]).as_py().values()
        early: bool = now_us < least and most <= now_us + RETRY_MOST_US
        return early

    def _tried(self, rows: pa.Table, *, now_us: int) -> tuple[list[pa.RecordBatch], pa.Table | None]:
        """Routes rows: what is released, and what is DELAYED or behind what is."""
        decided = [self.decide(batch) for batch in _messages(rows).to_batches()]
        is_delayed: Column = pa.concat_arrays([delayed for _, delayed in decided])
        if not pc.any(is_delayed).as_py():
            return [messages for messages, _ in decided], None
        stays, tries = is_delayed, column(rows, TRIES)
        if self.direction is not None:
            stays, tries = _behind(key(rows, self.direction), is_delayed, tries)
        released, first = [], 0
        for messages, _ in decided:
            kept = messages.filter(pc.invert(stays.slice(first, messages.num_rows)))
            released += [kept] if kept.num_rows else []
            first += messages.num_rows
        wait = pc.shift_left(pa.scalar(RETRY_FIRST_US, pa.int64()), pc.min_element_wise(tries, 32))
        due = pc.add(pc.min_element_wise(wait, RETRY_MOST_US), now_us)
        rows = with_column(with_column(rows, DUE, due), TRIES, pc.add(tries, 1))
        return released, rows.filter(stays)


def _new(messages: pa.Table, *, arrivals: int, now_us: int) -> pa.Table:
    """Messages that have come, with what is kept beside them."""
    count = messages.num_rows
    now = same(now_us, pa.int64(), count)
    values = {
        ARRIVAL: pa.array(range(arrivals, arrivals + count), pa.int64()),
        SINCE: now,
        DUE: now,
        TRIES: same(0, pa.int64(), count),
    }
    for name, value in values.items():
        messages = messages.append_column(name, value)
    return messages


def _behind(keys: Column, is_delayed: Column, tries: Column) -> tuple[Column, Column]:
    """Of each row, whether it is DELAYED or follows one of its direction that is; and how often that one was tried."""
    place = pa.array(range(len(keys)), pa.int64())
    # The first of each direction: what is looked up is found at its lowest place.
    heads = place.filter(is_delayed)
    first = pc.index_in(keys, value_set=keys.filter(is_delayed))
    head = heads.take(first)
    stays = pc.fill_null(pc.greater_equal(place, head), fill_value=False)
    return stays, pc.coalesce(tries.take(head), tries)


def _over(queue: pa.Table, most: int) -> tuple[pa.Table | None, pa.Table | None]:
    """The oldest rows that are too many, and the rest."""
    sizes: Column = same(_ROW_BYTES, pa.int64(), queue.num_rows)
    for field in queue.schema:
        if _is_long(field.type):
            length = pc.fill_null(pc.binary_length(column(queue, field.name)), 0).cast(pa.int64())
            sizes = pc.add(sizes, length)
    total = pc.sum(sizes).as_py()
    if total <= most:
        return None, queue
    left = pc.subtract(total, pc.cumulative_sum(sizes))
    # A row is given up as long as it and those after it are too many.
    count = pc.sum(pc.greater(pc.add(left, sizes), most)).as_py()
    return queue.slice(0, count), _some(queue.slice(count))


def _is_long(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    )


def _messages(rows: pa.Table) -> pa.Table:
    """The rows without what is kept beside them."""
    return rows.drop_columns(list(TURN))


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None


def _rows(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables)


def _together(first: pa.Table | None, second: pa.Table | None) -> pa.Table | None:
    tables = [table for table in (first, second) if table is not None and table.num_rows]
    return _rows(*tables) if tables else None
