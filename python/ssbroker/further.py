"""Columns beyond the schemas: set aside, and put back beside the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa

from ssbroker.exceptions import SchemaError

_PARTS: Final = str.maketrans(" -", "__")
"""What parts words in other names."""


def check_meant(names: Collection[str], *, read: Iterable[str]) -> None:
    """No further column is meant for one that is read and missing (K27). The native module checks what reaches it by itself.

    Args:
        names: The columns that there are.
        read: Those that are read where they are there.

    Raises:
        SchemaError: One is called as one that is missing, but for upper and lower case, white space or what parts its words.

    Examples:
        >>> check_meant(["name", "Remote Service Name"], read=["name", "remote_service_name"])
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: remote_service_name: expected a column of this very name, found "Remote Service Name"
    """
    written = {name.strip().lower().translate(_PARTS): name for name in names}
    for name in read:
        if name in written and name not in names:
            expected, actual = "a column of this very name", f'"{written[name]}"'
            raise SchemaError(
                f"{name}: expected {expected}, found {actual}", column=name, expected=expected, actual=actual
            )


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
