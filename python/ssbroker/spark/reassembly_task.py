"""The reassembly of a DataFrame of fragments in workers: the task that is sent to them, and the functions that they run."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ssbroker import _core
from ssbroker.exceptions import InputError
from ssbroker.reassembly import Reassembler
from ssbroker.spark.arrow_columns import ArrowColumn, pc
from ssbroker.spark.decision_codes import CODED_ARROW_TYPES, Labels
from ssbroker.spark.fragment_columns import SEQUENCE_BITS, SORT_KEY
from ssbroker.spark.reassembly_output import COLUMNS, INCOMPLETE, KEYS, KIND, MESSAGE, REJECTION
from ssbroker.spark.routing_task import RouteTask, coded_decisions_of_batch
from ssbroker.spark.shared_values import SharedValue

_COUNT_COLUMN: Final = "whole_count"
_ROW_CHARGE_MAX: Final = 512
"""An upper bound of the bytes that `Reassembler` counts for a fragment, a message and a direction in addition to the contents."""


@dataclass(frozen=True, kw_only=True)
class MessageRouting:
    """How the messages of a task are routed.

    Attributes:
        task: How to route.
        labels: The outcomes and reasons, in the order of their codes.
        names: For each column that routing reads, the name of its column in messages.
    """

    task: RouteTask
    labels: Labels
    names: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ReassembleTask:
    """How to reassemble fragments: small enough to be sent with every task.

    Attributes:
        names: The columns of the fragments, by position.
        extra: The extra columns in `names`.
        by_message: Whether a direction is spread over several tasks, with all rows of a message in one task.
        in_order: Whether messages wait for earlier messages.
        max_message_bytes: See `ssbroker.Reassembler`.
        max_fragments_per_message: See `ssbroker.Reassembler`.
        max_pending_bytes: See `ssbroker.Reassembler`.
        session_keys: The column with the keys, or a reference to shared keys.
        routing: How messages are routed; None for no routing.
    """

    names: tuple[str, ...]
    extra: tuple[str, ...]
    by_message: bool
    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int
    session_keys: str | SharedValue[dict[bytes, bytes]] | None = field(repr=False)
    routing: MessageRouting | None


def reassemble_partition(task: ReassembleTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reassembles the fragments of a partition; yields rows of all kinds in the schema of `reassembly_output.schema`."""
    run = _AssemblyRun(task)
    for batch in batches:
        if batch.num_rows:
            yield from run.push(batch)
    yield from run.finish()


class _AssemblyRun:
    """The reassembly of one partition. Its rows are grouped: by direction or, if messages are independent, by message."""

    def __init__(self, task: ReassembleTask) -> None:
        self._task: Final = task
        self._reassembler = self._new_reassembler()
        self._schema: pa.Schema | None = None
        self._group: int | None = None

    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Reassembles a batch.

        The first group of the batch may have started in an earlier batch, and the last may continue in a later one. The groups in between
        are complete in this batch and leave no state. Those that cannot exceed the limit together are pushed together.
        """
        group = self._group_ids(batch)
        count = batch.num_rows
        first, last = group[0].as_py(), group[-1].as_py()
        start, end = 0, count - _count_rows(group, last)
        if first == self._group:
            start = _count_rows(group, first)
            yield from self._rows(batch.slice(0, start))
        if start < count:
            yield from self.finish()
            length = end - start
            for groups, is_small in _split_by_limit(
                batch.slice(start, length), group.slice(start, length), limit=self._task.max_pending_bytes
            ):
                self._reassembler = self._new_reassembler(limited=not is_small)
                yield from self._rows(groups)
                yield from self.finish()
            self._reassembler = self._new_reassembler()
            yield from self._rows(batch.slice(end))
        self._group = last

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the messages that are incomplete."""
        for pending in self._reassembler.pending().to_batches():
            yield from self._to_output(INCOMPLETE, pending)

    def _group_ids(self, batch: pa.RecordBatch) -> ArrowColumn:
        """Returns the group of each row: its message if `by_message` is set or messages need not be in order; otherwise its direction."""
        sort_key: ArrowColumn = batch.columns[-1]
        is_message = self._task.by_message or not self._task.in_order
        return sort_key if is_message else pc.shift_right(sort_key, pa.scalar(SEQUENCE_BITS, pa.int64()))

    def _rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        task = self._task
        columns: dict[str, ArrowColumn] = dict(zip((*task.names, SORT_KEY), batch.columns, strict=True))
        del columns[SORT_KEY]
        if self._schema is None:
            self._schema = _schema(task, {name: columns[name].type for name in task.extra})
        if task.by_message:
            columns[_COUNT_COLUMN] = columns["fragment_count"]
        try:
            pushed = self._reassembler.push(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
        except InputError as error:
            error.add_note(f"Row 0 is the first of {batch.num_rows} rows after Spark's shuffle.")
            raise
        for messages in pushed.messages.to_batches():
            yield from self._to_output(MESSAGE, messages)
        for rejected in pushed.rejected.to_batches():
            yield from self._to_output(REJECTION, rejected)

    def _to_output(self, kind: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the rows, extended to the columns of all kinds."""
        if not rows.num_rows:
            return
        assert self._schema is not None  # noqa: S101 - the first batch sets it
        columns: dict[str, ArrowColumn] = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns[KIND] = pa.repeat(pa.scalar(kind, pa.int8()), rows.num_rows)
        if _COUNT_COLUMN in columns:
            columns["fragment_count"] = columns[_COUNT_COLUMN]
        if kind == MESSAGE and self._task.routing is not None:
            columns |= _decision_columns(self._task.routing, rows)
        arrays: list[ArrowColumn] = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows.num_rows, field.type)
            for field in self._schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _new_reassembler(self, *, limited: bool = True) -> Reassembler:
        task = self._task
        keys: Any = native_keys(task.session_keys) if isinstance(task.session_keys, SharedValue) else task.session_keys
        return Reassembler(
            max_pending_bytes=task.max_pending_bytes if limited else None,
            max_pending_messages=None,
            max_message_bytes=task.max_message_bytes,
            max_fragments_per_message=task.max_fragments_per_message,
            max_sequence_distance=None,
            in_order=task.in_order and not task.by_message,
            session_keys=keys,
        )


def _charge_max(fragments: pa.RecordBatch) -> int:
    """Returns an upper bound of the bytes that `Reassembler` counts towards `max_pending_bytes` for these fragments.

    The size is doubled, because directions without a complete message may use only half of the limit.
    """
    return 2 * (2 * fragments.nbytes + _ROW_CHARGE_MAX * fragments.num_rows)


def _split_by_limit(rows: pa.RecordBatch, group: ArrowColumn, *, limit: int) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yields whole groups that cannot exceed a limit together, with True, and each group that may exceed it alone, with False."""
    start = end = 0
    is_small = _charge_max(rows) <= limit
    for group_end in (rows.num_rows,) if is_small else pc.run_end_encode(group).run_ends.to_pylist():
        if _charge_max(rows.slice(start, group_end - start)) > limit:
            if start < end:
                yield rows.slice(start, end - start), True
                start = end
            if _charge_max(rows.slice(start, group_end - start)) > limit:
                yield rows.slice(start, group_end - start), False
                start = group_end
        end = group_end
    if start < end:
        yield rows.slice(start, end - start), True


def _count_rows(group: ArrowColumn, value: int) -> int:
    """Returns how many rows belong to a group."""
    same: ArrowColumn = pc.equal(group, pa.scalar(value, pa.int64()))
    return int(pc.sum(same).as_py())


@functools.lru_cache(maxsize=1)
def native_keys(shipped: SharedValue[dict[bytes, bytes]]) -> _core.SessionKeys:
    """Returns session keys as the native module reads them; they are prepared once per worker process."""
    return _core.SessionKeys(list(shipped.value().items()))


def _schema(task: ReassembleTask, extra: Mapping[str, pa.DataType]) -> pa.Schema:
    fields = {**COLUMNS, **(CODED_ARROW_TYPES if task.routing else {}), **extra}
    return pa.schema([pa.field(name, kind, nullable=name not in (KIND, *KEYS)) for name, kind in fields.items()])


def _decision_columns(routing: MessageRouting, messages: pa.RecordBatch) -> dict[str, ArrowColumn]:
    conversations = pa.RecordBatch.from_arrays(
        [messages[name] for name in routing.names.values()], names=list(routing.names)
    )
    coded = coded_decisions_of_batch(routing.task, conversations, routing.labels)
    return dict(zip((field.name for field in coded.type), coded.flatten(), strict=True))
