"""Rows packed into binary cells, in which Spark passes rows to and from the step of a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ssbroker._arrow import from_ipc, to_ipc, write_ipc
from ssbroker._compat import cast
from ssbroker.spark.arrow_columns import ArrowColumn, combined, nulls, pc, repeat, to_spark_type
from ssbroker.spark.streams import stream_rows

PACKED_SCHEMA: Final = "bucket int, place bigint, cell binary"
"""Input rows of one bucket in one cell; the place restores the order in which the rows of a bucket arrived."""
OUTPUT_SCHEMA: Final = "kind string, cell binary"
"""Output rows of one kind in one cell."""

_PACKED_FIELDS: Final[dict[str, pa.DataType]] = {"bucket": pa.int32(), "place": pa.int64(), "cell": pa.binary()}
_PACKED_TYPES: Final = pa.schema(_PACKED_FIELDS)
_PACK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 16 << 20
_PLACE_BITS: Final = 40


def split_by_size(rows: pa.RecordBatch, *, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Splits rows into pieces of at most about `max_bytes`, unless a single row is larger.

    Examples:
        >>> [piece.num_rows for piece in split_by_size(pa.record_batch({"a": [b"1234"] * 4}), max_bytes=20)]
        [2, 2]
    """
    if rows.num_rows > 1 and rows.nbytes > max_bytes:
        half = rows.num_rows // 2
        yield from split_by_size(rows.slice(0, half), max_bytes=max_bytes)
        yield from split_by_size(rows.slice(half), max_bytes=max_bytes)
    elif rows.num_rows:
        yield rows


def pack_rows(names: Sequence[str], batches: Iterator[pa.RecordBatch], *, partition: int) -> Iterator[pa.RecordBatch]:
    """Packs the rows of a partition into few large cells, because each cell costs a Spark row; yields batches of `PACKED_SCHEMA`.

    `names` are the columns in the cells; the bucket number is the column before them.
    """
    place = partition << _PLACE_BITS
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield _pack(names, held, place)
            place, held, size = place + 1, [], 0
    if held:
        yield _pack(names, held, place)


def unpack_rows(
    own: Mapping[str, pa.DataType], extra: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Unpacks batches of `OUTPUT_SCHEMA` into rows of all kinds: `kind`, the columns `own`, and extra columns; columns that a kind lacks are null."""
    for batch in batches:
        for kind, cell in zip(batch.column(0), batch.column(1), strict=True):
            for rows in from_ipc(cell.as_buffer()).to_batches():
                yield _with_all_columns(str(kind), rows, own, extra)


def to_cells(rows: Sequence[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, bytes]]:
    """Yields the output of a bucket in cells of bounded size, each with the kind of its rows."""
    for kind, batch in rows:
        for piece in split_by_size(batch, max_bytes=_PIECE_BYTES):
            yield kind, to_ipc(piece)


def _pack(names: Sequence[str], batches: Sequence[pa.RecordBatch], place: int) -> pa.RecordBatch:
    held = pa.Table.from_batches(list(batches))
    buckets = combined(held.column(0))
    order = pc.sort_indices(buckets)
    rows = held.select(range(1, held.num_columns)).rename_columns(list(names)).take(order)
    runs: Any = pc.run_end_encode(buckets.take(order))
    ends: list[int] = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    # All cells are written into one buffer, which becomes the column; building the column from many values would copy
    # them several times.
    sink = pa.BufferOutputStream()
    offsets = [0]
    for start, end in zip(starts, ends, strict=True):
        write_ipc(rows.slice(start, end - start), sink)
        offsets.append(sink.tell())
    of_all = [None, pa.array(offsets, pa.int32()).buffers()[1], sink.getvalue()]
    packed_cells = pa.Array.from_buffers(pa.binary(), len(ends), of_all)
    places = repeat(place, pa.int64(), len(ends))
    return pa.RecordBatch.from_arrays([runs.values, places, packed_cells], schema=_PACKED_TYPES)


def _with_all_columns(
    kind: str, rows: pa.RecordBatch, own: Mapping[str, pa.DataType], extra: Sequence[str]
) -> pa.RecordBatch:
    count = rows.num_rows
    present: dict[str, ArrowColumn] = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns: dict[str, ArrowColumn] = {stream_rows.KIND: repeat(kind, pa.string(), count)}
    for name, arrow_type in own.items():
        columns[name] = _cast(present[name], arrow_type) if name in present else nulls(arrow_type, count)
    for name in extra:
        columns[name] = _cast(present[name], to_spark_type(present[name].type))
    fields = [pa.field(name, column.type, nullable=name != stream_rows.KIND) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _cast(column: ArrowColumn, arrow_type: pa.DataType) -> ArrowColumn:
    return column if column.type == arrow_type else cast(column, arrow_type)
