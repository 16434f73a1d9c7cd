"""Converts Python values to Arrow columns and back, without copying large values."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ssbroker._compat import cast, is_binary_view

SHARED_BYTES_MIN: Final = 1 << 20
"""Values of at least this size are not copied."""
_CAST_VALUES_MIN: Final = 32
"""For at least this many values, casting to variable length before listing is faster than listing directly."""
_VIEW_BYTES_MIN: Final = 4096
"""Values of at least this size are not copied if a view can refer to them."""
_VIEW: Final = struct.Struct("<i4sii")
"""A view of a value longer than `_INLINE_BYTES`: length, prefix, buffer index, offset."""
_INLINE: Final = struct.Struct("<i12s")
_INLINE_BYTES: Final = 12


def tuples_to_table(rows: Sequence[tuple[Any, ...]], row: pa.StructType) -> pa.Table:
    """Converts rows to a table column by column, which takes a third of the time of a conversion row by row.

    Examples:
        >>> tuples_to_table([(1, b"a"), (2, None)], pa.struct([("number", pa.int64()), ("body", pa.binary())])).to_pydict()
        {'number': [1, 2], 'body': [b'a', None]}
    """
    array: Any = pa.array(rows, row)  # a StructArray, which the stubs do not state
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(array)])


def body_column(values: Sequence[bytes | None]) -> pa.ChunkedArray[Any]:
    """Converts values to a binary column; large values are not copied but become separate chunks.

    Examples:
        >>> body_column([b"ab", bytes(1 << 20), b"c"]).num_chunks
        3
    """
    chunks: list[pa.Array[Any]] = []
    first = 0
    for at, value in enumerate(values):
        if value is not None and len(value) >= SHARED_BYTES_MIN:
            if first < at:
                chunks.append(pa.array(values[first:at], pa.binary()))
            chunks.append(sliced_column(value, len(value)))
            first = at + 1
    chunks.append(pa.array(values[first:], pa.binary()))
    return pa.chunked_array([chunk for chunk in chunks if len(chunk)], pa.binary())


def tuples_to_view_table(rows: Sequence[tuple[Any, ...]], row: pa.StructType, at: int) -> pa.Table:
    """Converts rows to a table with one non-null column of views, whose long values are not copied.

    Args:
        rows: The rows.
        row: The type of a row.
        at: The index of the column of views.

    Returns:
        The table.

    Examples:
        >>> row = pa.struct([("number", pa.int64()), ("body", pa.binary_view())])
        >>> tuples_to_view_table([(1, b"a"), (2, bytes(8192))], row, 1)["body"][0].as_py()
        b'a'
    """
    values = [each[at] for each in rows]
    if sum(map(len, values)) < _VIEW_BYTES_MIN * max(1, len(values)):
        return tuples_to_table(rows, row)
    fields = list(row)
    field = fields.pop(at)
    others = tuples_to_table([(*each[:at], *each[at + 1 :]) for each in rows], pa.struct(fields))
    # pyarrow 15 and older have no views.
    column: Any = _view_array(values) if is_binary_view(field.type) else body_column(values)
    return others.add_column(at, field, column)


def _view_array(values: Sequence[bytes]) -> pa.Array[Any]:
    views = bytearray(len(values) * _VIEW.size)
    shared: list[pa.Buffer] = []
    for at, value in enumerate(values):
        if len(value) <= _INLINE_BYTES:
            _INLINE.pack_into(views, at * _VIEW.size, len(value), value)
        else:
            _VIEW.pack_into(views, at * _VIEW.size, len(value), value[:4], len(shared), 0)
            shared.append(pa.py_buffer(value))
    return pa.Array.from_buffers(pa.binary_view(), len(values), [None, pa.py_buffer(views), *shared])


def sliced_column(data: bytes, size: int) -> pa.Array[Any]:
    """Splits bytes into a column of slices of `size` bytes without copying; the last slice may be shorter.

    Examples:
        >>> sliced_column(b"onetwox", 3).to_pylist()
        [b'one', b'two', b'x']
    """
    offsets = [*range(0, len(data), size), len(data)]
    column = pa.array(offsets, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, column, pa.py_buffer(data)])


def column_values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """Lists the values of a column. Fixed-size binary is cast to binary first, which pyarrow lists twenty times faster.

    Examples:
        >>> column_values(pa.chunked_array([pa.array([b"ab", None], pa.binary(2))]))
        [b'ab', None]
    """
    if len(column) >= _CAST_VALUES_MIN and pa.types.is_fixed_size_binary(column.type):
        column = cast(column, pa.binary())
    return column.to_pylist()


def replace_columns(table: pa.Table, schema: pa.Schema, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Returns a table with the values of some columns replaced.

    Examples:
        >>> schema = pa.schema([("number", pa.int64())])
        >>> replace_columns(pa.table({"number": [1]}), schema, {"number": [2]}).to_pydict()
        {'number': [2]}
    """
    for name, values in columns.items():
        field: pa.Field[Any] = schema.field(name)
        column: pa.Array[Any] = pa.array(values, field.type)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenates tables; returns a single table unchanged, which takes no time."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)
