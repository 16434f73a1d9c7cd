"""Reads tables from Parquet, CSV, JSON and Arrow files, with the types of their schemas."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ssbroker._arguments import is_utf8_text, parse_timestamp
from ssbroker._arrow import null_where
from ssbroker._csv import NULL_TEXTS, SUFFIXES, CsvFile, line_text
from ssbroker.exceptions import InputError, MalformedDataError, SchemaError

_INT32: Final = range(-(2**31), 2**31)
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}


def typed_column(
    values: pa.ChunkedArray[Any] | Sequence[Any], field: pa.Field[Any], *, where: str
) -> pa.ChunkedArray[Any]:
    """Converts the cells of a column to the type of its field; the cells are text from CSV or values from JSON. GUIDs remain text.

    Args:
        values: The cells.
        field: The field of the schema.
        where: File, table and column, for error messages.
    """
    parse, data_type, expected = _cell_parser(field.type)
    if not isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([pa.array(_parse_values(values, parse, where, expected), data_type)])
    if pa.types.is_string(data_type):
        return _with_nulls(values, NULL_TEXTS if field.nullable else ("",))
    distinct = _with_nulls(pc.utf8_trim_whitespace(values), NULL_TEXTS).combine_chunks().dictionary_encode()
    readable: list[Any] = []
    unreadable: list[int] = []
    for number, value in enumerate(distinct.dictionary.to_pylist()):
        try:
            readable.append(parse(value))
        except ValueError:
            readable.append(None)
            unreadable.append(number)
    if unreadable:
        row = pc.index(pc.is_in(distinct.indices, value_set=pa.array(unreadable, distinct.indices.type)), True).as_py()
        raise _cell_error(values[row].as_py(), row, where, expected)
    return pa.chunked_array([pa.array(readable, data_type).take(distinct.indices)])


def _parse_values(values: Sequence[Any], parse: Callable[[Any], Any], where: str, expected: str) -> list[Any]:
    parsed = []
    for row, value in enumerate(values):
        try:
            parsed.append(None if value is None else parse(value))
        except ValueError as error:
            raise _cell_error(value, row, where, expected) from error
    return parsed


def _cell_parser(data_type: pa.DataType) -> tuple[Callable[[Any], Any], pa.DataType, str]:
    """Returns the function that parses cells of this column type, the type of its results, and a description of valid cells for error messages."""
    if pa.types.is_int32(data_type):
        return _int32, data_type, "a 32-bit integer"
    if pa.types.is_boolean(data_type):
        return _boolean, data_type, "true, false, 1 or 0"
    if pa.types.is_timestamp(data_type):
        return _timestamp, data_type, "a timestamp such as 2026-11-20T21:00:00Z or 2026-11-20 21:00:00.000"
    return _text, pa.string(), "text"


def _int32(value: Any) -> int:
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT32:
        raise ValueError(value)
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        value = _BOOLEANS.get(value.lower())
    if value is True or value is False:
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError(value)


def _timestamp(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - the caller converts it to an InputError
    return parse_timestamp(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - as above
    value.encode()  # raises for a lone surrogate, which JSON can contain
    return value


def _with_nulls(values: pa.ChunkedArray[Any], null_texts: Sequence[str]) -> pa.ChunkedArray[Any]:
    """Converts cells that contain one of `null_texts` to null."""
    with_nulls: pa.ChunkedArray[Any] = null_where(pc.is_in(values, value_set=pa.array(null_texts)), values)
    return with_nulls


def _cell_error(value: object, row: int, where: str, expected: str) -> InputError:
    shown = ascii(value) if len(ascii(value)) <= 80 else ascii(value)[:77] + "..."  # noqa: PLR2004
    return InputError(
        f"{where}, row {row}: {shown} is not {expected}",
        column=where.rpartition(" ")[2],
        row=row,
        value=shown,
        expected=expected,
    )


def read_table(path: Path, schema: pa.Schema, *, name: str) -> pa.Table:
    """Reads a table file in the format of its suffix; cells of CSV and JSON are converted to the types of the schema, except GUIDs.

    Args:
        path: The file; its suffix is one of `FORMATS`.
        schema: Types of the known columns; other columns are kept as they are.
        name: Name of the table, for error messages.
    """
    table = FORMATS[path.suffix.lower()](path, schema, name)
    _refuse_messages(table.column_names, path)
    return table


_OTHER_VIEWS: Final = {
    "to_service_name": "messages, as in sys.transmission_queue",
    "far_service": "conversations, as in sys.conversation_endpoints",
    "is_receive_enabled": "queues, as in sys.service_queues",
}
"""The content of a file with this column, which no table of a catalog has."""


def _refuse_messages(columns: Sequence[str], path: Path) -> None:
    """Rejects an export of a different view that was passed as a catalog."""
    column = next((each for each in _OTHER_VIEWS if each in columns), None)
    if column is None or "remote_service_name" in columns:  # a table of routes may have additional columns
        return
    expected = "a catalog: routes, services and databases"
    remedy = (
        ""
        if column == "is_receive_enabled"
        else "; pass messages and conversations with --conversations, or with --queue of stuck"
    )
    raise SchemaError(
        f"{path}: the column {column} shows that the file contains {_OTHER_VIEWS[column]}; expected {expected}{remedy}",
        column=column,
        expected=expected,
    )


def read_bytes(path: Path) -> bytes:
    """Reads a file; errors become InputError."""
    with os_errors_as_input_errors(path):
        return path.read_bytes()


@contextmanager
def os_errors_as_input_errors(path: Path) -> Iterator[None]:
    """Converts an OSError in the block, such as a missing permission, to InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", expected="a file that can be read") from error


def decode_json(data: bytes | str, *, where: str) -> Any:
    """Parses one JSON value; errors become MalformedDataError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedDataError(f"{where}: invalid JSON: {error}", expected="JSON") from error


def _parquet(path: Path, _schema: pa.Schema, _name: str) -> pa.Table:
    data = pa.BufferReader(read_bytes(path))
    try:
        with pq.ParquetFile(data, pre_buffer=False) as file:
            return file.read(use_threads=False)  # a reader thread that frees the bytes at exit would abort the process
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MalformedDataError(
            f"{path}: invalid or truncated Parquet file: {error}", expected="a Parquet file"
        ) from error


def _arrow(path: Path, _schema: pa.Schema, _name: str) -> pa.Table:
    data = read_bytes(path)
    source = pa.BufferReader(data)
    try:
        reader = pa.ipc.open_file(source) if data.startswith(b"ARROW1") else pa.ipc.open_stream(source)
        with reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MalformedDataError(
            f"{path}: invalid or truncated Arrow IPC file: {error}", expected="an Arrow IPC file"
        ) from error
    return table


def _csv(path: Path, schema: pa.Schema, name: str) -> pa.Table:
    data = read_bytes(path)
    try:
        file = CsvFile(path, data)
        _refuse_messages(file.layout.header, path)
        file.check_header(schema.names)
        table = file.read()
    except (pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise MalformedDataError(
            f"{path}: invalid CSV: {error}", expected="CSV in UTF-8 or UTF-16 with a header line"
        ) from error
    repeated = next((column for column, count in Counter(table.column_names).items() if count > 1), None)
    if repeated is not None:
        expected = "each column once"
        raise MalformedDataError(f"{path}: duplicate column {repeated}; expected {expected}", expected=expected)
    try:
        return _typed_table(dict(zip(table.column_names, table.columns, strict=True)), schema, path, name)
    except InputError as error:
        if error.row is not None:
            error.args = (f"{error}{line_text(file.line_of_row(error.row))}",)
        raise


def _json(path: Path, schema: pa.Schema, name: str) -> pa.Table:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedDataError(f"{path}: is not valid UTF-8: {error}", expected="text") from error
    if text.lstrip().startswith("["):
        rows = decode_json(text, where=str(path))
    else:
        lines = enumerate(text.split("\n"), start=1)
        rows = [decode_json(line, where=f"{path}, line {number}") for number, line in lines if line.strip()]
    # Without rows, the columns are unknown.
    columns: dict[str, list[Any]] = {} if rows else {name: [] for name in schema.names}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise MalformedDataError(
                f"{path}: {name}, row {number}: {row!r:.80} is not an object", row=number, expected="an object"
            )
        for column in row:
            columns.setdefault(column, [])
    for column, values in columns.items():
        if not is_utf8_text(column):
            raise MalformedDataError(f"{path}: {name}: the column {column!a} has a name that is not valid UTF-8")
        values.extend(row.get(column) for row in rows)
    return _typed_table(columns, schema, path, name)


def _typed_table(columns: Mapping[str, Any], schema: pa.Schema, path: Path, name: str) -> pa.Table:
    typed = {}
    for column, values in columns.items():
        where = f"{path}: {name}.{column}"
        if column in schema.names:
            typed[column] = typed_column(values, schema.field(column), where=where)
            continue
        try:
            typed[column] = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values)])
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise InputError(
                f"{where}: the values do not have a common type: {error}", column=f"{name}.{column}"
            ) from error
    return pa.table(typed)


FORMATS: Final[Mapping[str, Callable[[Path, pa.Schema, str], pa.Table]]] = {
    ".parquet": _parquet,
    **dict.fromkeys(SUFFIXES, _csv),
    ".json": _json,
    ".jsonl": _json,
    ".ndjson": _json,
    ".arrow": _arrow,
    ".feather": _arrow,
}
"""Readers of table files, by suffix."""
