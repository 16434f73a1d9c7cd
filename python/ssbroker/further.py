"""Columns beyond the schemas: set aside, and put back beside the rows."""

from __future__ import annotations

import pyarrow as pa


def columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a table that its schema does not have.

    Examples:
        >>> import pyarrow as pa
        >>> columns(pa.table({"name": ["a"], "note": ["b"]}), pa.schema([("name", pa.string())])).column_names
        ['note']
    """
    return table.select([number for number, name in enumerate(table.schema.names) if name not in schema.names])


def joined(table: pa.Table, further: pa.Table | None) -> pa.Table:
    """Rows with the further columns; rows at the end that the input did not have get nulls.

    Examples:
        >>> import pyarrow as pa
        >>> joined(pa.table({"name": ["a", "msdb"]}), pa.table({"note": ["b"]})).to_pylist()[1]
        {'name': 'msdb', 'note': None}
    """
    if further is None:
        return table
    added = table.num_rows - further.num_rows
    for field, column in zip(further.schema, further.columns, strict=True):
        if added:
            padded = pa.chunked_array([*column.chunks, pa.nulls(added, field.type)], field.type)
            table = table.append_column(field.with_nullable(nullable=True), padded)
        else:
            table = table.append_column(field, column)
    return table
