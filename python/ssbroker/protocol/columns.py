"""Columns of tables, replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa


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
