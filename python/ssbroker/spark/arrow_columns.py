"""Reads, replaces and creates Arrow columns, without pyarrow's type stubs, which are too narrow."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute

from ssbroker._compat import cast

ArrowColumn: TypeAlias = Any
"""An Arrow array."""

pc: Final[Any] = pyarrow.compute
"""`pyarrow.compute`."""


def column(rows: pa.Table | pa.RecordBatch, name: str) -> ArrowColumn:
    """Returns a column as one array.

    Examples:
        >>> column(pa.table({"a": pa.chunked_array([[1], [2]])}), "a").to_pylist()
        [1, 2]
    """
    return combined(rows.column(name))


def combined(values: ArrowColumn) -> ArrowColumn:
    """Returns an array, or the chunks of a chunked array joined into one.

    Examples:
        >>> combined(pa.chunked_array([[1], [2]])).to_pylist()
        [1, 2]
    """
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def with_column(rows: pa.Table, name: str, values: ArrowColumn) -> pa.Table:
    """Returns the rows with a column replaced or added.

    Examples:
        >>> with_column(pa.table({"a": [1, 2]}), "a", pa.array([3, 4]))["a"].to_pylist()
        [3, 4]
    """
    index = rows.schema.get_field_index(name)
    return rows.append_column(name, values) if index < 0 else rows.set_column(index, name, values)


def repeat(value: object, arrow_type: pa.DataType, count: int) -> ArrowColumn:
    """Returns an array that repeats one value.

    Examples:
        >>> repeat(7, pa.int64(), 2).to_pylist()
        [7, 7]
    """
    repeated: Any = pa.repeat
    return repeated(pa.scalar(value, arrow_type), count)


def nulls(arrow_type: pa.DataType, count: int) -> ArrowColumn:
    """Returns an array of nulls.

    Examples:
        >>> nulls(pa.int64(), 2).to_pylist()
        [None, None]
    """
    result: Any = pa.nulls
    return result(count, arrow_type)


def to_spark_type(arrow_type: pa.DataType) -> pa.DataType:
    """Returns the type that Spark accepts in place of an Arrow type: the value type of a dictionary, and binary for fixed-size binary."""
    if isinstance(arrow_type, pa.DictionaryType):
        values: pa.DataType = arrow_type.value_type
        return values
    return pa.binary() if pa.types.is_fixed_size_binary(arrow_type) else arrow_type


def row_keys(rows: pa.Table | pa.RecordBatch, names: tuple[str, ...]) -> ArrowColumn:
    """Joins columns into one column of bytes, whose values are equal exactly if the rows are equal in these columns.

    Examples:
        >>> row_keys(pa.table({"a": [b"x", b"x"], "b": [True, False]}), ("a", "b")).to_pylist()
        [b'x/true', b'x/false']
    """
    parts = [_bytes(column(rows, name)) for name in names]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"/", pa.binary()))


def _bytes(values: ArrowColumn) -> ArrowColumn:
    kind = values.type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return cast(values, pa.binary()) if is_bytes else values.cast(pa.string()).cast(pa.binary())
