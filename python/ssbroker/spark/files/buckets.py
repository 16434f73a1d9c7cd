"""Rows on their way from the tasks that read them to those that put them together: a file for each reader, its batches by bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute

from ssbroker.fragments import md5

pc: Any = pyarrow.compute  # its stubs know too little of it
HELD_BYTES: Final = 64 << 20
"""How much a reader holds before it writes what it has of each bucket."""
_PLAIN: Final = pa.ipc.IpcWriteOptions()
_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_SAMPLE_ROWS: Final = 64
_SAVING: Final = 0.8
"""What is left of rows that are worth to be compressed."""
_IDS: Final = ("conversation_id", "conversation_handle")

Places: TypeAlias = dict[int, list[int]]
"""The numbers of the batches of each bucket in a file."""


class BucketWriter:
    """Writes the rows of one reader, those of each bucket together.

    Args:
        path: The file.
        schema: The columns.
        count: How many buckets there are.
        secret: What ids are hashed with, so that nobody can choose ids that meet in one bucket.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, count: int, secret: bytes) -> None:
        self.path: Final = path
        self.places: Final[Places] = defaultdict(list)
        self._count: Final = count
        self._secret: Final = secret
        self._schema: Final = schema
        self._sink: Final = pa.OSFile(str(path), "wb")
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._written = 0
        self._waiting: list[pa.RecordBatch] = []
        self._held = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows."""
        self._waiting.append(batch)
        self._held += batch.nbytes
        if self._held >= HELD_BYTES:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
            self._opened(self._schema.empty_table()).close()
        self._sink.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._waiting, self._held = [], 0
        numbers = bucket_numbers(table, count=self._count, secret=self._secret)
        order = pc.sort_indices(numbers)  # stable: the rows of a bucket stay as they came
        ordered, sorted_numbers = table.take(order), numbers.take(order)
        writer = self._opened(ordered)
        runs = pc.run_end_encode(sorted_numbers)
        start = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            for batch in ordered.slice(start, end - start).combine_chunks().to_batches():
                writer.write_batch(batch)
                self.places[number].append(self._written)
                self._written += 1
            start = end

    def _opened(self, first: pa.Table) -> pa.ipc.RecordBatchFileWriter:
        """The writer; it compresses if that saves something of the first rows."""
        if self._writer is None:
            sample = first.slice(0, _SAMPLE_ROWS)
            saves = _written_bytes(sample, _LZ4) < _SAVING * _written_bytes(sample, _PLAIN)
            self._writer = pa.ipc.new_file(self._sink, self._schema, options=_LZ4 if saves else _PLAIN)
        return self._writer


def _written_bytes(table: pa.Table, options: pa.ipc.IpcWriteOptions) -> int:
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.size()


def bucket_numbers(table: pa.Table, *, count: int, secret: bytes) -> Any:
    """The bucket of each row: rows of one conversation are in one, in whichever form its id is written.

    Args:
        table: The rows.
        count: How many buckets there are.
        secret: What ids are hashed with.

    Returns:
        An array of `int32`. A row without an id is in bucket 0.

    Examples:
        >>> import uuid
        >>> ids = [str(uuid.UUID(int=number)) for number in range(100)]
        >>> plain, braced = pa.table({"conversation_id": ids}), pa.table({"conversation_id": [f"{{{each.upper()}}}" for each in ids]})
        >>> one, other = (bucket_numbers(table, count=7, secret=b"any") for table in (plain, braced))
        >>> one == other, len(set(one.to_pylist()))
        (True, 7)
    """
    name = next(name for name in _IDS if name in table.column_names)
    ids: Any = table[name].combine_chunks()
    if pa.types.is_dictionary(ids.type):
        ids = ids.cast(ids.type.value_type)
    if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type):
        ids = _as_bytes(ids)
    joined = pc.binary_join_element_wise(secret, ids.cast(pa.binary()), b"")
    heads = memoryview(md5(joined).buffers()[1]).cast("Q")[: 2 * len(ids) : 2]
    numbers = pa.array([head % count for head in heads.tolist()], pa.int32())
    return pc.if_else(pc.is_valid(ids), numbers, pa.scalar(0, pa.int32()))


def rows_of(path: Path, places: list[int]) -> Iterator[pa.RecordBatch]:
    """The batches of one bucket in the file of a reader.

    Args:
        path: The file.
        places: Their numbers.

    Yields:
        The batches.
    """
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        for place in places:
            yield reader.get_batch(place)


def _as_bytes(texts: Any) -> Any:
    """The same bytes for the same id: its digits, however they are written."""
    return pc.utf8_lower(pc.replace_substring_regex(texts, pattern="[{}-]", replacement=""))
