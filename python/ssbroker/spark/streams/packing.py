"""What runs in Python workers before and after the state: rows packed by bucket into cells, and rows of all kinds unpacked from cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ssbroker.spark.streams import cells, kinds
from ssbroker.spark.streams.arrays import Column, nulls, pc, same
from ssbroker.spark.tagged import plain

PACKED: Final = "bucket int, place bigint, cell binary"
"""Rows of one bucket in one cell; the place puts the cells of a bucket in the order in which its rows came."""
TOLD: Final = "kind string, cell binary"
"""Rows of one kind in one cell."""

_FIELDS: Final[dict[str, pa.DataType]] = {"bucket": pa.int32(), "place": pa.int64(), "cell": pa.binary()}
_PACKED: Final = pa.schema(_FIELDS)
_PACK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 16 << 20
_PLACE_BITS: Final = 40


def packed(names: Sequence[str], batches: Iterator[pa.RecordBatch], *, partition: int) -> Iterator[pa.RecordBatch]:
    """Packs the rows of a partition: few large cells, since each costs a row of Spark.

    Args:
        names: What the columns are called in the cells; the number of the bucket stands before them.
        batches: The rows.
        partition: The number of the partition.

    Yields:
        Batches of `PACKED`.
    """
    place = partition << _PLACE_BITS
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield _packed(names, held, place)
            place, held, size = place + 1, [], 0
    if held:
        yield _packed(names, held, place)


def unpacked(
    own: Mapping[str, pa.DataType], further: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Unpacks the rows of all kinds.

    Args:
        own: The columns that are not carried, and their types.
        further: The carried ones.
        batches: Batches of `TOLD`.

    Yields:
        Batches of `kind`, the own columns and the carried ones: nulls where a kind has none.
    """
    for batch in batches:
        for kind, cell in zip(batch.column(0), batch.column(1), strict=True):
            for rows in cells.of_ipc(cell.as_buffer()).to_batches():
                yield _widened(str(kind), rows, own, further)


def cells_of(rows: Sequence[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, bytes]]:
    """What a bucket tells, in cells that are not too large for the way.

    Args:
        rows: Rows with their kind.

    Yields:
        Kinds and cells.
    """
    for kind, batch in rows:
        for piece in cells.pieces(batch, most=_PIECE_BYTES):
            yield kind, cells.to_ipc(piece)


def _packed(names: Sequence[str], batches: Sequence[pa.RecordBatch], place: int) -> pa.RecordBatch:
    together = pa.Table.from_batches(list(batches))
    buckets: Column = together.column(0).combine_chunks()
    order = pc.sort_indices(buckets)
    rows = together.select(range(1, together.num_columns)).rename_columns(list(names)).take(order)
    runs: Any = pc.run_end_encode(buckets.take(order))
    ends: list[int] = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    # All cells in one buffer, which is the column: whoever made it of many values would copy them all, several times as it grows.
    sink = pa.BufferOutputStream()
    offsets = [0]
    for start, end in zip(starts, ends, strict=True):
        cells.write_ipc(rows.slice(start, end - start), sink)
        offsets.append(sink.tell())
    of_all = [None, pa.array(offsets, pa.int32()).buffers()[1], sink.getvalue()]
    packed_cells = pa.Array.from_buffers(pa.binary(), len(ends), of_all)
    places = same(place, pa.int64(), len(ends))
    return pa.RecordBatch.from_arrays([runs.values, places, packed_cells], schema=_PACKED)


def _widened(kind: str, rows: pa.RecordBatch, own: Mapping[str, pa.DataType], further: Sequence[str]) -> pa.RecordBatch:
    count = rows.num_rows
    there: dict[str, Column] = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns: dict[str, Column] = {kinds.KIND: same(kind, pa.string(), count)}
    for name, arrow_type in own.items():
        columns[name] = _cast(there[name], arrow_type) if name in there else nulls(arrow_type, count)
    for name in further:
        columns[name] = _cast(there[name], plain(there[name].type))
    fields = [pa.field(name, column.type, nullable=name != kinds.KIND) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _cast(column: Column, arrow_type: pa.DataType) -> Column:
    return column if column.type == arrow_type else column.cast(arrow_type)
