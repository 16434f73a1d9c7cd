"""Returns results in the type that the caller passed: a DataFrame, a relation or a list of dicts."""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import compress
from typing import Any, Final

import pyarrow as pa

from ssbroker._arrow import append_extra_columns, guid_text, qualified_type, table_without_views
from ssbroker.exceptions import SchemaError

_GUID: Final = pa.binary(16)
_LIBRARIES: Final = ("duckdb", "pandas", "polars")


def reject_existing_columns(rows: Any, names: Collection[str], added: Collection[str], *, name: str) -> None:
    """Raises SchemaError if the rows already have a column that is to be added; DuckDB ignores the case of names."""
    ignores_case = _library(rows) == "duckdb"
    existing = {each.lower() if ignores_case else each: each for each in names}
    for column in added:
        if column in existing:
            found = existing[column]
            why = "" if found == column else f" {found!r}, because DuckDB ignores the case of names"
            raise SchemaError(
                f"{name}: routing adds the column {column!r}; rename or drop the existing column{why}", column=column
            )


def with_columns(rows: Any, table: pa.Table, added: pa.Table, *, kept: list[bool] | None = None) -> Any:
    """Appends columns to rows, and returns the rows in the type that was passed; a pandas DataFrame keeps its index.

    Args:
        rows: The rows as the caller passed them.
        table: The same rows as a table.
        added: The columns to append.
        kept: Whether each row is kept; None keeps all. `added` contains only the kept rows.

    Examples:
        >>> rows = [{"a": 1}, {"a": 2}]
        >>> with_columns(rows, pa.Table.from_pylist(rows), pa.table({"b": ["x"]}), kept=[False, True])
        [{'a': 2, 'b': 'x'}]
    """
    library = _library(rows)
    if library == "list":
        selected = rows if kept is None else compress(rows, kept)
        return [{**row, **more} for row, more in zip(selected, readable(added).to_pylist(), strict=True)]
    if library == "pandas":
        selected = rows if kept is None else rows[kept]
        columns = _plain(added).to_pandas().set_axis(selected.index)
        return sys.modules["pandas"].concat([selected, columns], axis=1)
    if library == "polars":
        selected = rows if kept is None else rows.filter(kept)
        return selected.hstack(sys.modules["polars"].from_arrow(_plain(added)))
    selected = table if kept is None else filter_rows(table, kept)
    if library == "duckdb":
        return sys.modules["duckdb"].from_arrow(append_extra_columns(selected, readable(added)))
    joined = append_extra_columns(selected, added)
    if isinstance(rows, pa.RecordBatch):
        return pa.RecordBatch.from_arrays(list(map(single_array, joined.columns)), schema=joined.schema)
    return joined


def in_kind_of(rows: Any, table: pa.Table) -> Any:
    """Returns a table in the type of `rows`."""
    library = _library(rows)
    if library == "list":
        return readable(table).to_pylist()
    if library == "pandas":
        return _plain(table).to_pandas()
    if library in ("duckdb", "polars"):
        return sys.modules[library].from_arrow(_plain(table))
    return table


def filter_rows(rows: pa.Table, kept: list[bool]) -> pa.Table:
    """Returns the rows of a table for which `kept` is true; views become plain strings and binaries, which pyarrow can filter."""
    mask: Any = pa.array(kept, pa.bool_())
    return table_without_views(rows).filter(mask)


def filter_batch(batch: pa.RecordBatch, kept: list[bool]) -> pa.RecordBatch:
    """Returns the rows of a batch for which `kept` is true, as `filter_rows` does."""
    rows = filter_rows(pa.Table.from_batches([batch]), kept)
    return pa.RecordBatch.from_arrays(list(map(single_array, rows.columns)), schema=rows.schema)


def kept_rows(rejected: pa.RecordBatch | pa.Table, *, rows: int, first_row: int = 0) -> list[bool]:
    """Returns a mask of `rows` rows from `first_row`: False for the rows that the column `row` of `rejected` names.

    Examples:
        >>> kept_rows(pa.table({"row": [7]}), rows=3, first_row=6)
        [True, False, True]
    """
    kept = [True] * rows
    numbers: list[Any] = rejected["row"].to_pylist()
    for number in numbers:
        kept[number - first_row] = False
    return kept


def readable(table: pa.Table) -> pa.Table:
    """Returns a table with GUIDs as text, for display.

    Examples:
        >>> readable(pa.table({"broker_instance": pa.array([bytes(16), None], pa.binary(16))})).to_pylist()
        [{'broker_instance': '00000000-0000-0000-0000-000000000000'}, {'broker_instance': None}]
    """
    for number, field in enumerate(table.schema):
        if field.type == _GUID:
            # Convert each distinct id once: there are few, and the conversion is slow.
            ids = single_array(table.column(number)).dictionary_encode()
            table = table.set_column(number, field.name, guid_text(ids.dictionary).take(ids.indices))
    return table


def _plain(table: pa.Table) -> pa.Table:
    """Returns a readable table without dictionaries, which pandas and Polars would convert to categories (DuckDB reads them as text)."""
    table = readable(table)
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            # Text that is repeated for each row may exceed the limit of `pa.string`, 2 GiB.
            chunks: list[Any] = table.column(number).chunks
            texts = [chunk.dictionary.cast(pa.large_string()).take(chunk.indices) for chunk in chunks]
            table = table.set_column(number, field.name, pa.chunked_array(texts, pa.large_string()))
    return table


def single_array(column: pa.ChunkedArray[Any]) -> Any:
    """Returns the chunks of a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _library(rows: Any) -> str:
    if isinstance(rows, list):
        return "list"
    root = qualified_type(rows).partition(".")[0].removeprefix("_")
    return root if root in _LIBRARIES else "pyarrow"
