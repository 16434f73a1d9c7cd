"""The delayed messages of a bucket, and when they are routed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ssbroker.spark.arrow_columns import ArrowColumn, column, pc, repeat, row_keys, with_column

RETRY_FIRST_US: Final = 4_000_000
RETRY_MAX_US: Final = 64_000_000

ARRIVAL: Final = "ssbroker arrival"
DELAYED_SINCE: Final = "ssbroker since"
DUE: Final = "ssbroker due"
TRIES: Final = "ssbroker tries"
RETRY_COLUMNS: Final = {ARRIVAL: pa.int64(), DELAYED_SINCE: pa.int64(), DUE: pa.int64(), TRIES: pa.int64()}
"""The columns stored with a delayed message: its position among all arrivals, the start of its wait, its next try, and the number of tries."""

_ROW_BYTES: Final = 256


@dataclass(frozen=True)
class RetryResult:
    """The result of routing delayed and new messages.

    Attributes:
        released: The messages that are emitted, with their decisions; the order within each direction is kept.
        queue: The delayed messages, oldest first, with `RETRY_COLUMNS`; None for none.
        arrivals: The number of messages that have arrived since the first message was delayed.
    """

    released: list[pa.RecordBatch]
    queue: pa.Table | None
    arrivals: int

    @property
    def due_us(self) -> int | None:
        """When the next message is retried; None if no message is delayed."""
        if self.queue is None:
            return None
        due: int = pc.min(self.queue[DUE]).as_py()
        return due


@dataclass(frozen=True, kw_only=True)
class DelayedQueue:
    """The delayed messages of a bucket and how they are retried.

    Attributes:
        decide: Adds the decision to messages, and returns which of them are DELAYED.
        direction: The columns that define a direction, in which messages stay in order; None if rows are independent.
        max_bytes: The maximum size of the delayed messages.
    """

    decide: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, ArrowColumn]]
    direction: tuple[str, ...] | None
    max_bytes: int

    def retry(
        self, queue: pa.Table | None, arrived: pa.Table | None, *, arrivals: int, changed: bool, now_us: int
    ) -> RetryResult:
        """Routes the new messages and the delayed messages that are due, or all delayed messages if the catalog has changed."""
        if queue is not None and arrived is None and not changed and self._is_early(queue, now_us):
            return RetryResult([], queue, arrivals)
        waiting, due = self._split_due(queue, arrived, arrivals=arrivals, changed=changed, now_us=now_us)
        arrivals += arrived.num_rows if arrived is not None else 0
        released: list[pa.RecordBatch] = []
        if due is not None:
            released, delayed = self._route_messages(due, now_us=now_us)
            waiting = _concat_some(waiting, delayed)
        if waiting is None:
            return RetryResult(released, None, arrivals)
        waiting = waiting.take(pc.sort_indices(column(waiting, ARRIVAL)))
        excess, waiting = _split_excess(waiting, self.max_bytes)
        for rows in [] if excess is None else _messages(excess).to_batches():
            released.append(self.decide(rows)[0])
        return RetryResult(released, waiting, arrivals)

    def _split_due(
        self, queue: pa.Table | None, arrived: pa.Table | None, *, arrivals: int, changed: bool, now_us: int
    ) -> tuple[pa.Table | None, pa.Table | None]:
        """Returns the messages that keep waiting, and the messages that are routed now, oldest first."""
        new = (
            None
            if arrived is None or not arrived.num_rows
            else _with_retry_columns(_nullable(arrived), arrivals=arrivals, now_us=now_us)
        )
        if queue is None:
            return None, new
        queue = _nullable(queue)
        # If the clock has been set back, no message waits longer than the longest wait.
        queue = with_column(queue, DUE, pc.min_element_wise(column(queue, DUE), now_us + RETRY_MAX_US))
        is_due = repeat(True, pa.bool_(), queue.num_rows) if changed else pc.less_equal(column(queue, DUE), now_us)
        waiting, due = queue.filter(pc.invert(is_due)), queue.filter(is_due)
        if new is not None and self.direction is not None and waiting.num_rows:
            position = pc.index_in(row_keys(new, self.direction), value_set=row_keys(waiting, self.direction))
            behind = pc.is_valid(position)
            for name in (DUE, TRIES):
                new = with_column(new, name, pc.coalesce(column(waiting, name).take(position), column(new, name)))
            waiting, new = pa.concat_tables([waiting, new.filter(behind)]), new.filter(pc.invert(behind))
        return _none_if_empty(waiting), _concat_some(_none_if_empty(due), new)

    def _is_early(self, queue: pa.Table, now_us: int) -> bool:
        """Returns whether no message is due, and no due time must be corrected because the clock has been set back."""
        earliest, latest = pc.min_max(queue[DUE]).as_py().values()
        is_early: bool = now_us < earliest and latest <= now_us + RETRY_MAX_US
        return is_early

    def _route_messages(self, rows: pa.Table, *, now_us: int) -> tuple[list[pa.RecordBatch], pa.Table | None]:
        """Routes messages; returns the released messages, and the messages that are DELAYED or wait behind a DELAYED message."""
        decided = [self.decide(batch) for batch in _messages(rows).to_batches()]
        is_delayed: ArrowColumn = pa.concat_arrays([delayed for _, delayed in decided])
        if not pc.any(is_delayed).as_py():
            return [messages for messages, _ in decided], None
        is_held, tries = is_delayed, column(rows, TRIES)
        if self.direction is not None:
            is_held, tries = _held_and_tries(row_keys(rows, self.direction), is_delayed, tries)
        released, first = [], 0
        for messages, _ in decided:
            kept = messages.filter(pc.invert(is_held.slice(first, messages.num_rows)))
            released += [kept] if kept.num_rows else []
            first += messages.num_rows
        wait = pc.shift_left(pa.scalar(RETRY_FIRST_US, pa.int64()), pc.min_element_wise(tries, 32))
        due = pc.add(pc.min_element_wise(wait, RETRY_MAX_US), now_us)
        rows = with_column(with_column(rows, DUE, due), TRIES, pc.add(tries, 1))
        return released, rows.filter(is_held)


def _nullable(rows: pa.Table) -> pa.Table:
    """Returns the rows with all columns declared nullable, because a column may become nullable or not while messages wait."""
    return pa.Table.from_arrays(
        rows.columns, schema=pa.schema([field.with_nullable(nullable=True) for field in rows.schema])
    )


def _with_retry_columns(messages: pa.Table, *, arrivals: int, now_us: int) -> pa.Table:
    """Adds the retry columns to messages that have arrived."""
    count = messages.num_rows
    now = repeat(now_us, pa.int64(), count)
    values = {
        ARRIVAL: pa.array(range(arrivals, arrivals + count), pa.int64()),
        DELAYED_SINCE: now,
        DUE: now,
        TRIES: repeat(0, pa.int64(), count),
    }
    for name, value in values.items():
        messages = messages.append_column(name, value)
    return messages


def _held_and_tries(keys: ArrowColumn, is_delayed: ArrowColumn, tries: ArrowColumn) -> tuple[ArrowColumn, ArrowColumn]:
    """Returns whether each row is DELAYED or follows such a row in its direction, and the number of tries of that row."""
    position = pa.array(range(len(keys)), pa.int64())
    # index_in finds the first position of a key, which is the first delayed row of each direction.
    delayed_positions = position.filter(is_delayed)
    first = pc.index_in(keys, value_set=keys.filter(is_delayed))
    delayed_position = delayed_positions.take(first)
    is_held = pc.fill_null(pc.greater_equal(position, delayed_position), fill_value=False)
    return is_held, pc.coalesce(tries.take(delayed_position), tries)


def _split_excess(queue: pa.Table, max_bytes: int) -> tuple[pa.Table | None, pa.Table | None]:
    """Returns the oldest rows beyond the size limit, and the rest."""
    sizes: ArrowColumn = repeat(_ROW_BYTES, pa.int64(), queue.num_rows)
    for field in queue.schema:
        values = column(queue, field.name)
        if _is_text_or_binary(field.type):
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(values), 0).cast(pa.int64()))
        elif not _has_fixed_size(field.type):  # Arrow does not compute the size of each value
            sizes = pc.add(sizes, values.nbytes // queue.num_rows)
    total = pc.sum(sizes).as_py()
    if total <= max_bytes:
        return None, queue
    left = pc.subtract(total, pc.cumulative_sum(sizes))
    # A row is split off while it and the rows after it exceed the limit.
    count = pc.sum(pc.greater(pc.add(left, sizes), max_bytes)).as_py()
    return queue.slice(0, count), _none_if_empty(queue.slice(count))


def _is_text_or_binary(arrow_type: pa.DataType) -> bool:
    return any(
        test(arrow_type)
        for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    )


def _has_fixed_size(arrow_type: pa.DataType) -> bool:
    return any(
        test(arrow_type)
        for test in (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary, pa.types.is_null)
    )


def _messages(rows: pa.Table) -> pa.Table:
    """Returns the rows without the retry columns."""
    return rows.drop_columns(list(RETRY_COLUMNS))


def _none_if_empty(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None


def _concat_some(first: pa.Table | None, second: pa.Table | None) -> pa.Table | None:
    tables = [table for table in (first, second) if table is not None and table.num_rows]
    return pa.concat_tables(tables) if tables else None
