"""Files that contain the fragments of several buckets; a hash of the conversation id determines the bucket."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ssbroker._arrow import without_views
from ssbroker._compat import cast
from ssbroker.reassembly import md5
from ssbroker.spark.arrow_columns import pc

_BUFFER_BYTES_MIN: Final = 16 << 20
_BUFFER_BYTES_MAX: Final = 64 << 20
_BUFFER_BYTES_PER_BUCKET: Final = 2 << 20
_UNCOMPRESSED: Final = pa.ipc.IpcWriteOptions()
_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_SAMPLE_ROWS: Final = 64
_COMPRESSION_RATIO_MAX: Final = 0.8
"""Rows are compressed if the compressed size, relative to the original size, is below this ratio."""
_ID_COLUMNS: Final = ("conversation_id", "conversation_handle")
_FILES_MAX: Final = 16
"""The maximum number of bucket files of a split; several buckets share a file, which is removed when all these buckets are done."""
_INDEX_SUFFIX: Final = ".places"
"""The suffix of the index beside each file, which lists the batches of each bucket: the lists of all splits would be too large for a task."""


class BucketWriter:
    """Writes the rows of one split into files by bucket.

    Args:
        folder: The folder of the files; a file without rows is not created.
        schema: The columns.
        count: The number of buckets.
        secret: The key with which ids are hashed, so that no sender can choose ids that share a bucket.
    """

    def __init__(self, folder: Path, schema: pa.Schema, *, count: int, secret: bytes) -> None:
        self.folder: Final = folder
        self._count: Final = count
        self._secret: Final = secret
        self._schema: Final = schema
        self._files: Final[dict[int, _BucketFile]] = {}
        self._options: pa.ipc.IpcWriteOptions | None = None
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._buffer_bytes: Final = buffer_bytes(count)

    @property
    def files(self) -> list[int]:
        """The numbers of the existing files."""
        return sorted(self._files)

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows."""
        self._buffered.append(batch)
        self._buffered_bytes += batch.nbytes
        if self._buffered_bytes >= self._buffer_bytes:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        for file in self._files.values():
            file.close(complete=error is None)

    def _flush(self) -> None:
        if not self._buffered:
            return
        table = pa.Table.from_batches(self._buffered, schema=self._schema)
        self._buffered, self._buffered_bytes = [], 0
        numbers = bucket_numbers(table, count=self._count, secret=self._secret)
        order = pc.sort_indices(numbers)  # a stable sort: the rows of a bucket keep their order
        ordered, sorted_numbers = table.take(order), numbers.take(order)
        runs = pc.run_end_encode(sorted_numbers)
        start = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            rows = ordered.slice(start, end - start)
            file = self._file_for(number, rows)
            for batch in rows.combine_chunks().to_batches():
                file.write(number, batch)
            start = end

    def _file_for(self, bucket: int, rows: pa.Table) -> _BucketFile:
        number = bucket_file_number(bucket, count=self._count)
        if number not in self._files:
            if self._options is None:
                sample = rows.slice(0, _SAMPLE_ROWS)
                is_smaller = _ipc_bytes(sample, _LZ4) < _COMPRESSION_RATIO_MAX * _ipc_bytes(sample, _UNCOMPRESSED)
                self._options = _LZ4 if is_smaller else _UNCOMPRESSED
            self._files[number] = _BucketFile(bucket_file_path(self.folder, number), self._schema, self._options)
        return self._files[number]


class _BucketFile:
    """An open bucket file and its index."""

    def __init__(self, path: Path, schema: pa.Schema, options: pa.ipc.IpcWriteOptions) -> None:
        self._path: Final = path
        self._sink: Final = pa.OSFile(str(path), "wb")
        self._writer: Final = pa.ipc.new_file(self._sink, schema, options=options)
        self._batches: Final = itertools.count()
        self._index: Final[dict[int, list[int]]] = defaultdict(list)

    def write(self, bucket: int, batch: pa.RecordBatch) -> None:
        """Appends rows of a bucket."""
        self._writer.write_batch(batch)
        self._index[bucket].append(next(self._batches))

    def close(self, *, complete: bool) -> None:
        if complete:
            self._writer.close()
            self._path.with_suffix(_INDEX_SUFFIX).write_text(json.dumps(self._index), encoding="ascii")
        self._sink.close()


def buffer_bytes(count: int) -> int:
    """Returns the buffer size of a task. It is small, because writing needs the same amount of memory again, but larger for many buckets.

    Examples:
        >>> [buffer_bytes(count) >> 20 for count in (1, 8, 16, 40, 10_000)]
        [16, 16, 32, 64, 64]
    """
    return min(_BUFFER_BYTES_MAX, max(_BUFFER_BYTES_MIN, count * _BUFFER_BYTES_PER_BUCKET))


def bucket_file_path(folder: Path, number: int) -> Path:
    """Returns the path of a bucket file."""
    return folder / f"{number}.arrow"


def bucket_file_number(bucket: int, *, count: int) -> int:
    """Returns the number of the file that contains a bucket, in the folder of each split.

    Examples:
        >>> [bucket_file_number(bucket, count=40) for bucket in (0, 1, 2, 3, 39)]
        [0, 0, 0, 1, 15]
        >>> buckets_in_same_file(3, count=40)
        range(3, 5)
    """
    return bucket * min(count, _FILES_MAX) // count


def buckets_in_same_file(bucket: int, *, count: int) -> range:
    """Returns the buckets that share their files with a bucket."""
    number, files = bucket_file_number(bucket, count=count), min(count, _FILES_MAX)
    return range(-(-number * count // files), -(-(number + 1) * count // files))


def read_bucket(file: Path, bucket: int) -> Iterator[pa.RecordBatch]:
    """Yields the batches of one bucket in a file, in the order in which they were written."""
    batch_numbers = json.loads(file.with_suffix(_INDEX_SUFFIX).read_bytes()).get(str(bucket))
    if batch_numbers is None:
        return
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        for batch_number in batch_numbers:
            yield reader.get_batch(batch_number)


def remove_bucket_file(file: Path) -> None:
    """Removes a bucket file and its index, if they still exist."""
    for path in (file, file.with_suffix(_INDEX_SUFFIX)):
        path.unlink(missing_ok=True)


def _ipc_bytes(table: pa.Table, options: pa.ipc.IpcWriteOptions) -> int:
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.size()


def bucket_numbers(table: pa.Table, *, count: int, secret: bytes) -> Any:
    """Returns the bucket of each row as int32: the same for all rows of a conversation, however its id is written; 0 for a null id.

    Examples:
        >>> import uuid
        >>> ids = [str(uuid.UUID(int=number)) for number in range(100)]
        >>> plain, braced = pa.table({"conversation_id": ids}), pa.table({"conversation_id": [f"{{{each.upper()}}}" for each in ids]})
        >>> one, other = (bucket_numbers(table, count=7, secret=b"any") for table in (plain, braced))
        >>> one == other, len(set(one.to_pylist()))
        (True, 7)
    """
    name = next(name for name in _ID_COLUMNS if name in table.column_names)
    ids: Any = without_views(table[name].combine_chunks())
    if pa.types.is_dictionary(ids.type):
        ids = ids.cast(ids.type.value_type)
    if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type):
        ids = _normalized_ids(ids)
    joined = pc.binary_join_element_wise(secret, cast(ids, pa.binary()), b"")
    digest_heads = memoryview(md5(joined).buffers()[1]).cast("Q")[: 2 * len(ids) : 2]
    numbers = pa.array([head % count for head in digest_heads.tolist()], pa.int32())
    return pc.if_else(pc.is_valid(ids), numbers, pa.scalar(0, pa.int32()))


def _normalized_ids(texts: Any) -> Any:
    """Returns text ids in lower case, without braces and dashes, so that equal ids have equal hashes."""
    return pc.utf8_lower(pc.replace_substring_regex(texts, pattern="[{}-]", replacement=""))
