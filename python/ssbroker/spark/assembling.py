"""What reassembly runs in Spark's Python workers: batches of fragments in, rows of three kinds out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.exceptions import InputError
from ssbroker.reassembler import Reassembler
from ssbroker.spark import tagged, worker
from ssbroker.spark.columns import Labels
from ssbroker.spark.fragment_columns import NUMBER_BITS, PLACE
from ssbroker.spark.shipping import Shipped

_Column: TypeAlias = Any  # an Arrow array; what the stubs of pyarrow know of arrays stands in the way here

_COUNT: Final = "whole_count"


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How the messages of a task are routed.

    Attributes:
        task: As of `ssbroker.spark.route`.
        labels: The labels by number.
        names: Where the columns of conversations stand: their names in messages.
    """

    task: worker.Task
    labels: Labels
    names: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Task:
    """How to put fragments together: small enough to travel with every task.

    Attributes:
        names: The columns of the fragments, by their places.
        further: Those that are carried.
        by_message: Whether the rows of a message come to one task, those of its direction to several.
        in_order: Whether messages wait for those before them.
        max_message_bytes: As of `ssbroker.Reassembler`.
        max_fragments_per_message: The same.
        max_pending_bytes: The same.
        session_keys: The name of the column, or where the keys are.
        routing: How messages are routed, if they are.
    """

    names: tuple[str, ...]
    further: tuple[str, ...]
    by_message: bool
    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int
    session_keys: str | Shipped[dict[bytes, bytes]] | None = field(repr=False)
    routing: Routing | None


def assembled(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all kinds of a partition.

    Args:
        task: How to put fragments together.
        batches: The fragments.

    Yields:
        Batches in the schema of `tagged.schema`.

    Raises:
        InputError: A value is not what was expected.
    """
    assembling = _Assembling(task)
    for batch in batches:
        if batch.num_rows:
            yield from assembling.groups(batch)
    yield from assembling.end()


class _Assembling:
    """One task under way. Its rows come group by group: directions, or messages where those before one do not matter."""

    def __init__(self, task: Task) -> None:
        self._task: Final = task
        self._reassembler = self._begun()
        self._schema: pa.Schema | None = None
        self._group: int | None = None

    def groups(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What comes of a batch.

        The first group of the batch may have begun before it, and the last may go on after it. What stands between takes no more
        room than the batch, so that no limit is needed for it, and leaves nothing behind.
        """
        group = self._groups_of(batch)
        count = batch.num_rows
        first, last = group[0].as_py(), group[-1].as_py()
        begun, end = 0, count - _count_of(group, last)
        if first == self._group:
            begun = _count_of(group, first)
            yield from self._rows(batch.slice(0, begun))
        if begun < count:
            yield from self.end()
            if begun < end:
                self._reassembler = self._begun(limited=False)
                yield from self._rows(batch.slice(begun, end - begun))
                yield from self.end()
            self._reassembler = self._begun()
            yield from self._rows(batch.slice(end))
        self._group = last

    def end(self) -> Iterator[pa.RecordBatch]:
        """What is incomplete."""
        for pending in self._reassembler.pending().to_batches():
            yield from self._told(tagged.INCOMPLETE, pending)

    def _groups_of(self, batch: pa.RecordBatch) -> _Column:
        """The group of each row. In order, a direction is one; else what is incomplete need not wait for the end of its direction."""
        place: _Column = batch.columns[-1]
        is_message = self._task.by_message or not self._task.in_order
        return place if is_message else pc.shift_right(place, pa.scalar(NUMBER_BITS, pa.int64()))

    def _rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        task = self._task
        columns: dict[str, _Column] = dict(zip((*task.names, PLACE), batch.columns, strict=True))
        del columns[PLACE]
        if self._schema is None:
            self._schema = _schema(task, {name: columns[name].type for name in task.further})
        if task.by_message:
            columns[_COUNT] = columns["fragment_count"]
        try:
            pushed = self._reassembler.push(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
        except InputError as error:
            error.add_note(f"Row 0 is the first of {batch.num_rows} rows as Spark brought them together.")
            raise
        for messages in pushed.messages.to_batches():
            yield from self._told(tagged.MESSAGE, messages)
        for rejected in pushed.rejected.to_batches():
            yield from self._told(tagged.REJECTION, rejected)

    def _told(self, kind: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with the columns of all kinds."""
        if not rows.num_rows:
            return
        assert self._schema is not None  # noqa: S101 - there is no row of any kind before a batch came
        columns: dict[str, _Column] = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns[tagged.KIND] = pa.repeat(pa.scalar(kind, pa.int8()), rows.num_rows)
        if _COUNT in columns:
            columns["fragment_count"] = columns[_COUNT]
        if kind == tagged.MESSAGE and self._task.routing is not None:
            columns |= _decided(self._task.routing, rows)
        arrays: list[_Column] = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows.num_rows, field.type)
            for field in self._schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _begun(self, *, limited: bool = True) -> Reassembler:
        task = self._task
        keys: Any = native_keys(task.session_keys) if isinstance(task.session_keys, Shipped) else task.session_keys
        return Reassembler(
            max_pending_bytes=task.max_pending_bytes if limited else None,
            max_pending_messages=None,
            max_message_bytes=task.max_message_bytes,
            max_fragments_per_message=task.max_fragments_per_message,
            max_sequence_distance=None,
            in_order=task.in_order and not task.by_message,
            session_keys=keys,
        )


def _count_of(group: _Column, value: int) -> int:
    """How many rows are of a group."""
    same: _Column = pc.equal(group, pa.scalar(value, pa.int64()))
    return int(pc.sum(same).as_py())


@functools.lru_cache(maxsize=1)
def native_keys(shipped: Shipped[dict[bytes, bytes]]) -> _core.SessionKeys:
    """Session keys as the native module takes them: made ready by the first task of a process, found by all that follow.

    Args:
        shipped: Where the keys are.

    Returns:
        The same, ready.
    """
    return _core.SessionKeys(list(shipped.value().items()))


def _schema(task: Task, further: Mapping[str, pa.DataType]) -> pa.Schema:
    own = {**tagged.COLUMNS, **(tagged.DECISION if task.routing else {}), **further}
    return pa.schema(
        [pa.field(name, kind, nullable=name not in (tagged.KIND, *tagged.KEYS)) for name, kind in own.items()]
    )


def _decided(routing: Routing, messages: pa.RecordBatch) -> dict[str, _Column]:
    conversations = pa.RecordBatch.from_arrays(
        [messages[name] for name in routing.names.values()], names=list(routing.names)
    )
    packed = worker.packed(routing.task, conversations, routing.labels)
    return dict(zip(packed.type.names, packed.flatten(), strict=True))
