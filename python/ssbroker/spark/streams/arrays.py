"""Columns of Arrow tables, as the steps of a bucket use them."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute

Column: TypeAlias = Any  # an Arrow array; what the stubs of pyarrow know of arrays stands in the way here

pc: Final[Any] = pyarrow.compute
"""Its functions, without what the stubs know of them."""


def column(rows: pa.Table | pa.RecordBatch, name: str) -> Column:
    """A column in one piece.

    Examples:
        >>> column(pa.table({"a": pa.chunked_array([[1], [2]])}), "a").to_pylist()
        [1, 2]
    """
    found: Column = rows.column(name)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def with_column(rows: pa.Table, name: str, values: Column) -> pa.Table:
    """The rows with other values in a column, which is added where there is none.

    Examples:
        >>> with_column(pa.table({"a": [1, 2]}), "a", pa.array([3, 4]))["a"].to_pylist()
        [3, 4]
    """
    place = rows.schema.get_field_index(name)
    return rows.append_column(name, values) if place < 0 else rows.set_column(place, name, values)


def same(value: object, arrow_type: pa.DataType, count: int) -> Column:
    """A column of one value.

    Examples:
        >>> same(7, pa.int64(), 2).to_pylist()
        [7, 7]
    """
    repeated: Any = pa.repeat
    return repeated(pa.scalar(value, arrow_type), count)


def nulls(arrow_type: pa.DataType, count: int) -> Column:
    """A column of nothing.

    Examples:
        >>> nulls(pa.int64(), 2).to_pylist()
        [None, None]
    """
    made: Any = pa.nulls
    return made(count, arrow_type)


def key(rows: pa.Table | pa.RecordBatch, names: tuple[str, ...]) -> Column:
    """Some columns as one of bytes, which tells rows apart as they do.

    Examples:
        >>> key(pa.table({"a": [b"x", b"x"], "b": [True, False]}), ("a", "b")).to_pylist()
        [b'x/true', b'x/false']
    """
    parts = [_bytes(column(rows, name)) for name in names]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"/", pa.binary()))


def _bytes(values: Column) -> Column:
    kind = values.type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return values.cast(pa.binary()) if is_bytes else values.cast(pa.string()).cast(pa.binary())
