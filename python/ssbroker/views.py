"""Text and bytes as views, which Polars and DuckDB hand over, brought to the layout that all kernels of pyarrow know."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def without_views(column: Any) -> Any:
    """The array with plain text or bytes in the place of views, in a dictionary too: pyarrow has no kernel that takes rows of them.

    Args:
        column: An array of any type.

    Returns:
        The array; a dictionary stays one.

    Examples:
        >>> without_views(pa.array(["LOCAL"], pa.string_view()).dictionary_encode()).type
        DictionaryType(dictionary<values=string, indices=int32, ordered=0>)
    """
    kind = type_without_views(column.type)
    if kind == column.type:
        return column
    if not pa.types.is_dictionary(kind):
        return column.cast(kind)
    return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind.value_type), ordered=kind.ordered)


def table_without_views(table: pa.Table) -> pa.Table:
    """The table with all its columns so; Parquet has no dictionaries of views.

    Examples:
        >>> table_without_views(pa.table({"name": pa.array(["Orders"], pa.string_view())})).schema.types
        [DataType(string)]
    """
    columns = [
        pa.chunked_array(list(map(without_views, column.chunks)), type_without_views(column.type))
        for column in table.columns
    ]
    return pa.Table.from_arrays(
        columns, schema=pa.schema([f.with_type(c.type) for f, c in zip(table.schema, columns, strict=True)])
    )


def type_without_views(kind: Any) -> Any:
    """The type of an array after `without_views`.

    Examples:
        >>> type_without_views(pa.binary_view())
        DataType(binary)
    """
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, type_without_views(kind.value_type), kind.ordered)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind
