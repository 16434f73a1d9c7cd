"""Rows on their way from the tasks that read them to those that put them together: files of each reader, their batches by bucket."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute

from ssbroker.fragments import md5

pc: Any = pyarrow.compute  # its stubs know too little of it
_HELD_BYTES_MIN: Final = 16 << 20
_HELD_BYTES_MAX: Final = 64 << 20
_HELD_BYTES_OF_A_BUCKET: Final = 2 << 20
_PLAIN: Final = pa.ipc.IpcWriteOptions()
_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_SAMPLE_ROWS: Final = 64
_SAVING: Final = 0.8
"""What is left of rows that are worth to be compressed."""
_IDS: Final = ("conversation_id", "conversation_handle")
_FILES_MAX: Final = 16
"""The files of a reader; the buckets of one stand beside each other, and it can go when they are done."""
_PLACES: Final = ".places"
"""Beside each file another one says which of its batches are of which bucket: all readers' together are too many for one to know."""


class BucketWriter:
    """Writes the rows of one reader, those of each bucket together.

    Args:
        folder: Where the files will stand; a file without rows is not made.
        schema: The columns.
        count: How many buckets there are.
        secret: What ids are hashed with, so that nobody can choose ids that meet in one bucket.
    """

    def __init__(self, folder: Path, schema: pa.Schema, *, count: int, secret: bytes) -> None:
        self.folder: Final = folder
        self._count: Final = count
        self._secret: Final = secret
        self._schema: Final = schema
        self._files: Final[dict[int, _File]] = {}
        self._options: pa.ipc.IpcWriteOptions | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._held = 0
        self._held_most: Final = held_bytes(count)

    @property
    def files(self) -> list[int]:
        """The numbers of the files that there are."""
        return sorted(self._files)

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows."""
        self._waiting.append(batch)
        self._held += batch.nbytes
        if self._held >= self._held_most:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        for file in self._files.values():
            file.close(whole=error is None)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._waiting, self._held = [], 0
        numbers = bucket_numbers(table, count=self._count, secret=self._secret)
        order = pc.sort_indices(numbers)  # stable: the rows of a bucket stay as they came
        ordered, sorted_numbers = table.take(order), numbers.take(order)
        runs = pc.run_end_encode(sorted_numbers)
        start = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            rows = ordered.slice(start, end - start)
            file = self._opened(number, rows)
            for batch in rows.combine_chunks().to_batches():
                file.write(number, batch)
            start = end

    def _opened(self, bucket: int, rows: pa.Table) -> _File:
        number = file_number(bucket, count=self._count)
        if number not in self._files:
            if self._options is None:
                sample = rows.slice(0, _SAMPLE_ROWS)
                saves = _written_bytes(sample, _LZ4) < _SAVING * _written_bytes(sample, _PLAIN)
                self._options = _LZ4 if saves else _PLAIN
            self._files[number] = _File(file_of(self.folder, number), self._schema, self._options)
        return self._files[number]


class _File:
    """One file in the making, and what stands beside it."""

    def __init__(self, path: Path, schema: pa.Schema, options: pa.ipc.IpcWriteOptions) -> None:
        self._path: Final = path
        self._sink: Final = pa.OSFile(str(path), "wb")
        self._writer: Final = pa.ipc.new_file(self._sink, schema, options=options)
        self._batches: Final = itertools.count()
        self._places: Final[dict[int, list[int]]] = defaultdict(list)

    def write(self, bucket: int, batch: pa.RecordBatch) -> None:
        """Appends rows of a bucket."""
        self._writer.write_batch(batch)
        self._places[bucket].append(next(self._batches))

    def close(self, *, whole: bool) -> None:
        if whole:
            self._writer.close()
            self._path.with_suffix(_PLACES).write_text(json.dumps(self._places), encoding="ascii")
        self._sink.close()


def held_bytes(count: int) -> int:
    """How much a reader holds before it writes what it has of each bucket: little, which is the same memory again, but for many buckets.

    Args:
        count: How many buckets there are.

    Examples:
        >>> [held_bytes(count) >> 20 for count in (1, 8, 16, 40, 10_000)]
        [16, 16, 32, 64, 64]
    """
    return min(_HELD_BYTES_MAX, max(_HELD_BYTES_MIN, count * _HELD_BYTES_OF_A_BUCKET))


def file_of(folder: Path, number: int) -> Path:
    """One of the files of a reader.

    Args:
        folder: Where its files stand.
        number: The number of the file.
    """
    return folder / f"{number}.arrow"


def file_number(bucket: int, *, count: int) -> int:
    """The number of the file in which the rows of a bucket stand, of each reader.

    Args:
        bucket: The bucket.
        count: How many buckets there are.

    Examples:
        >>> [file_number(bucket, count=40) for bucket in (0, 1, 2, 3, 39)]
        [0, 0, 0, 1, 15]
        >>> buckets_beside(3, count=40)
        range(3, 5)
    """
    return bucket * min(count, _FILES_MAX) // count


def buckets_beside(bucket: int, *, count: int) -> range:
    """The buckets that are in the same files as one.

    Args:
        bucket: The bucket.
        count: How many buckets there are.
    """
    number, files = file_number(bucket, count=count), min(count, _FILES_MAX)
    return range(-(-number * count // files), -(-(number + 1) * count // files))


def rows_of(file: Path, bucket: int) -> Iterator[pa.RecordBatch]:
    """The batches of one bucket in a file of a reader.

    Args:
        file: The file.
        bucket: The bucket.

    Yields:
        The batches, in the order in which they were written.
    """
    places = json.loads(file.with_suffix(_PLACES).read_bytes()).get(str(bucket))
    if places is None:
        return
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        for place in places:
            yield reader.get_batch(place)


def remove(file: Path) -> None:
    """Removes a file of a reader, if it is still there.

    Args:
        file: The file.
    """
    for path in (file, file.with_suffix(_PLACES)):
        path.unlink(missing_ok=True)


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


def _as_bytes(texts: Any) -> Any:
    """The same bytes for the same id: its digits, however they are written."""
    return pc.utf8_lower(pc.replace_substring_regex(texts, pattern="[{}-]", replacement=""))
