"""Columns of tables: made of bytes, listed, and replaced."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

WORTH_SHARING: Final = 1 << 20
"""From so many bytes on, a value is not copied."""
_WORTH_CASTING: Final = 32
"""From so many values on, a cast and a list of what any length may have takes less time than the list alone."""
_WORTH_VIEWING: Final = 4096
"""From so many bytes on, a value is not copied where it can be looked at."""
_VIEW: Final = struct.Struct("<i4sii")
"""A view of a value beyond `_INLINE_BYTES`: its length, how it begins, in which buffer it lies, and where there."""
_INLINE: Final = struct.Struct("<i12s")
_INLINE_BYTES: Final = 12


def tabled(rows: Sequence[tuple[Any, ...]], row: pa.StructType) -> pa.Table:
    """Rows as a table, all columns at once: it takes a third of the time that they take one by one.

    Args:
        rows: The values of each.
        row: The columns.

    Returns:
        The table.

    Examples:
        >>> tabled([(1, b"a"), (2, None)], pa.struct([("number", pa.int64()), ("body", pa.binary())])).to_pydict()
        {'number': [1, 2], 'body': [b'a', None]}
    """
    made: Any = pa.array(rows, row)  # a StructArray, which the stubs do not say
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(made)])


def bodies(values: Sequence[bytes | None]) -> pa.ChunkedArray[Any]:
    """Bytes as a column; large values stay where they are, each in a chunk of its own.

    Args:
        values: The values, None for null.

    Returns:
        The column.

    Examples:
        >>> bodies([b"ab", bytes(1 << 20), b"c"]).num_chunks
        3
    """
    chunks: list[pa.Array[Any]] = []
    first = 0
    for at, value in enumerate(values):
        if value is not None and len(value) >= WORTH_SHARING:
            if first < at:
                chunks.append(pa.array(values[first:at], pa.binary()))
            offsets = pa.array([0, len(value)], pa.int32()).buffers()[1]
            chunks.append(pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)]))
            first = at + 1
    chunks.append(pa.array(values[first:], pa.binary()))
    return pa.chunked_array([chunk for chunk in chunks if len(chunk)], pa.binary())


def viewed(rows: Sequence[tuple[Any, ...]], row: pa.StructType, at: int) -> pa.Table:
    """Rows as a table, with one column of views, whose values stay where they are if they are long.

    Args:
        rows: The values of each; there is none missing in that column.
        row: The columns.
        at: Which of them is of views.

    Returns:
        The table.

    Examples:
        >>> row = pa.struct([("number", pa.int64()), ("body", pa.binary_view())])
        >>> viewed([(1, b"a"), (2, bytes(8192))], row, 1)["body"][0].as_py()
        b'a'
    """
    values = [each[at] for each in rows]
    if sum(map(len, values)) < _WORTH_VIEWING * max(1, len(values)):
        return tabled(rows, row)
    fields = list(row)
    field = fields.pop(at)
    others = tabled([(*each[:at], *each[at + 1 :]) for each in rows], pa.struct(fields))
    return others.add_column(at, field, _views(values))


def _views(values: Sequence[bytes]) -> pa.Array[Any]:
    made = bytearray(len(values) * _VIEW.size)
    shared: list[pa.Buffer] = []
    for at, value in enumerate(values):
        if len(value) <= _INLINE_BYTES:
            _INLINE.pack_into(made, at * _VIEW.size, len(value), value)
        else:
            _VIEW.pack_into(made, at * _VIEW.size, len(value), value[:4], len(shared), 0)
            shared.append(pa.py_buffer(value))
    return pa.Array.from_buffers(pa.binary_view(), len(values), [None, pa.py_buffer(made), *shared])


def pieces(data: bytes, size: int) -> pa.Array[Any]:
    """Bytes as a column of parts; they stay where they are.

    Args:
        data: The bytes.
        size: How many a part has; the last may have fewer.

    Returns:
        The column.

    Examples:
        >>> pieces(b"onetwox", 3).to_pylist()
        [b'one', b'two', b'x']
    """
    offsets = [*range(0, len(data), size), len(data)]
    column = pa.array(offsets, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, column, pa.py_buffer(data)])


def listed(column: pa.ChunkedArray[Any]) -> list[Any]:
    """The values of a column. Those of a fixed length are listed as if they had any: pyarrow is twenty times as fast with these.

    Args:
        column: The column.

    Returns:
        The values.

    Examples:
        >>> listed(pa.chunked_array([pa.array([b"ab", None], pa.binary(2))]))
        [b'ab', None]
    """
    if len(column) >= _WORTH_CASTING and pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    return column.to_pylist()


def replaced(table: pa.Table, schema: pa.Schema, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """A table with other values in some of its columns.

    Args:
        table: The table.
        schema: What the columns are.
        columns: The values by name.

    Returns:
        The table.

    Examples:
        >>> schema = pa.schema([("number", pa.int64())])
        >>> replaced(pa.table({"number": [1]}), schema, {"number": [2]}).to_pydict()
        {'number': [2]}
    """
    for name, values in columns.items():
        field: pa.Field[Any] = schema.field(name)
        column: pa.Array[Any] = pa.array(values, field.type)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table
