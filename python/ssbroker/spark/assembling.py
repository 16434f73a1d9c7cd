"""What reassembly runs in Spark's Python workers: batches of fragments in, rows of three kinds out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.exceptions import InputError, SsbrokerError
from ssbroker.reassembler import Reassembler
from ssbroker.spark import tagged, worker
from ssbroker.spark.columns import Labels
from ssbroker.spark.fragment_columns import GROUP
from ssbroker.spark.shipping import Shipped

_Column: TypeAlias = Any  # an Arrow array; what the stubs of pyarrow know of arrays stands in the way here

_COUNT: Final = "whole_count"


class OutOfRoomError(SsbrokerError, MemoryError):
    """More is pending in a task than it has room for, and no limit says what is to be left out."""


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
        is_sorted: Whether the rows come sorted.
        by_message: Whether the rows of a message come to one task, those of its direction to several.
        in_order: Whether messages wait for those before them.
        max_message_bytes: As of `ssbroker.Reassembler`.
        max_fragments_per_message: The same.
        max_pending_bytes: The same.
        room: What may be pending where that is not limited; more is an error.
        session_keys: The name of the column, or where the keys are.
        routing: How messages are routed, if they are.
    """

    names: tuple[str, ...]
    further: tuple[str, ...]
    is_sorted: bool
    by_message: bool
    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int | None
    room: int | None
    session_keys: str | Shipped[dict[bytes, bytes]] | None
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
        OutOfRoomError: More is pending than there is room for.
    """
    assembling = _Assembling(task)
    for batch in batches:
        if batch.num_rows:
            yield from assembling.sorted_rows(batch) if task.is_sorted else assembling.rows(batch)
    yield from assembling.end()


class _Assembling:
    """One task under way."""

    def __init__(self, task: Task) -> None:
        self._task: Final = task
        self._reassembler = self._begun()
        self._schema: pa.Schema | None = None
        self._group: list[object] = []

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What comes of fragments in any order."""
        task = self._task
        columns = dict(zip((*task.names, GROUP), batch.columns, strict=False))
        columns.pop(GROUP, None)
        if self._schema is None:
            self._schema = _schema(task, {name: columns[name].type for name in task.further})
        if task.by_message:
            columns[_COUNT] = columns["fragment_count"]
        try:
            pushed = self._reassembler.push(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
        except InputError as error:
            error.add_note(f"Row 0 is the first of a batch of {batch.num_rows} rows as Spark brought them together.")
            raise
        for messages in pushed.messages.to_batches():
            yield from self._told(tagged.MESSAGE, messages)
        for rejected in pushed.rejected.to_batches():
            yield from self._told(tagged.REJECTION, rejected)
        if task.room is not None and self._reassembler.pending_bytes > task.room:
            raise OutOfRoomError(
                f"more than {task.room} bytes of fragments are pending in one task: "
                "strategy='sort' needs no more than one message at a time, more shuffle partitions need less each; "
                "or max_pending_bytes sets a limit, beyond which fragments are rejected as limit_exceeded"
            )

    def sorted_rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What comes of sorted fragments, group by group: directions, or messages where each is for itself.

        The first group of the batch may have begun before it, and the last may go on after it. What stands between takes no more
        room than the batch, so that no limit is needed for it, and leaves nothing behind.
        """
        keys = self._keys(batch)
        count = batch.num_rows
        first, last = _rows_like(keys, 0), count - _rows_like(keys, -1)
        begun = 0
        if [key[0].as_py() for key in keys] == self._group:
            begun = first
            yield from self.rows(batch.slice(0, begun))
        if begun < count:
            yield from self.end()
            if begun < last:
                self._reassembler = self._begun(limited=False)
                yield from self.rows(batch.slice(begun, last - begun))
                yield from self.end()
            self._reassembler = self._begun()
            yield from self.rows(batch.slice(max(begun, last)))
        self._group = [key[-1].as_py() for key in keys]

    def end(self) -> Iterator[pa.RecordBatch]:
        """What is incomplete."""
        for pending in self._reassembler.pending().to_batches():
            yield from self._told(tagged.INCOMPLETE, pending)

    def _keys(self, batch: pa.RecordBatch) -> list[_Column]:
        """The columns that are the same for all rows of a group, and for no others."""
        columns: dict[str, _Column] = dict(zip((*self._task.names, GROUP), batch.columns, strict=False))
        keys = [columns.get(GROUP, columns["conversation_id"]), columns["is_initiator"]]
        return [*keys, columns["message_sequence_number"]] if self._task.by_message else keys

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
        keys: Any = _keys_of(task.session_keys) if isinstance(task.session_keys, Shipped) else task.session_keys
        return Reassembler(
            max_pending_bytes=task.max_pending_bytes if limited else None,
            max_pending_messages=None,
            max_message_bytes=task.max_message_bytes,
            max_fragments_per_message=task.max_fragments_per_message,
            max_sequence_distance=None,
            in_order=task.in_order and not task.by_message,
            session_keys=keys,
        )


def _rows_like(keys: list[_Column], row: int) -> int:
    """How many rows have the same keys."""
    same: _Column = functools.reduce(pc.and_, [pc.equal(key, key[row]) for key in keys])
    return int(pc.sum(same).as_py() or 0)


@functools.lru_cache(maxsize=1)
def _keys_of(shipped: Shipped[dict[bytes, bytes]]) -> _core.SessionKeys:
    """Made ready by the first task of a process, found by all that follow."""
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
