"""One file, one table: Parquet, CSV, JSON (an array, or one object a line) and Arrow IPC."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ssbroker import options
from ssbroker.cells import typed_column
from ssbroker.exceptions import InputError, MalformedDataError

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_table(path: Path, schema: pa.Schema, *, name: str) -> pa.Table:
    r"""Reads a file; its suffix tells the format.

    Args:
        path: The file; its suffix is one of `FORMATS`.
        schema: What the table's own columns mean. Columns that it does not have are carried along.
        name: What the table is called, for messages.

    Returns:
        The table. Cells of CSV and JSON are brought to the types of the schema, GUIDs stay text.

    Raises:
        InputError: The file cannot be read, or a cell is not what its column needs.
        MalformedDataError: The file is not of its format, or ends too early.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ssbroker import schemas
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "services.csv")
        ...     _ = path.write_text("database,name\nSales,//Orders\n")
        ...     read_table(path, schemas.SERVICES, name="services").to_pylist()
        [{'database': 'Sales', 'name': '//Orders'}]
    """
    return FORMATS[path.suffix.lower()](path, schema, name)


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        InputError: The file cannot be read.

    Examples:
        >>> from pathlib import Path
        >>> read_bytes(Path("no such file"))
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: no such file: cannot be read: No such file or directory
    """
    with reaching(path):
        return path.read_bytes()


@contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Turns what the system says of a path that it cannot reach or read into an input error.

    Raises:
        InputError: It said so: a folder on the way may not be looked into, a name is too long, the disk failed.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", expected="a file that can be read") from error


def decode_json(data: bytes | str, *, where: str) -> Any:
    """Reads one JSON value.

    Raises:
        MalformedDataError: It is no JSON.

    Examples:
        >>> decode_json('{"addresses": []}', where="instance.json")
        {'addresses': []}
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedDataError(f"{where}: is no JSON: {error}", expected="JSON") from error


def _parquet(path: Path, _schema: pa.Schema, _name: str) -> pa.Table:
    data = pa.BufferReader(read_bytes(path))
    try:
        with pq.ParquetFile(data, pre_buffer=False) as file:
            return file.read(use_threads=False)  # a thread that let go of the bytes at exit would abort the process
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MalformedDataError(f"{path}: is no whole Parquet file: {error}", expected="a Parquet file") from error


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
            f"{path}: is no whole Arrow IPC file: {error}", expected="an Arrow IPC file"
        ) from error
    return table


def _csv(path: Path, schema: pa.Schema, name: str) -> pa.Table:
    data = read_bytes(path)
    if data.startswith(_UTF16):
        data = _decoded(data, "utf-16", path).encode()
    header = _csv_header(data, schema, path)
    source: Any = pa.BufferReader(data if data.endswith(b"\n") else data + b"\n")
    bad_rows: list[Any] = []

    def refuse(row: Any) -> Literal["error"]:
        bad_rows.append(row)
        return "error"

    try:
        table = pyarrow.csv.read_csv(
            source,
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False, null_values=[]
            ),
        )
    except (pa.ArrowException, OSError) as error:
        if not bad_rows:
            raise MalformedDataError(
                f"{path}: is no CSV: {error}", expected="CSV in UTF-8 with a header line"
            ) from error
        row, expected = bad_rows[0].number - 2, f"{bad_rows[0].expected_columns} cells"
        raise MalformedDataError(
            f"{path}: {name}, row {row}: has {bad_rows[0].actual_columns} cells, expected {expected}: {bad_rows[0].text!r}",
            row=row,
            value=bad_rows[0].text,
            expected=expected,
        ) from error
    return _typed({column: table[column] for column in header}, schema, path, name)


def _csv_header(data: bytes, schema: pa.Schema, path: Path) -> list[str]:
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline=""), strict=True)
    try:
        header = next(rows, [])
        if data.count(b'"') % 2:
            # A quotation mark that is never closed would take all that follows for one cell.
            deque(rows, maxlen=0)
    except (UnicodeDecodeError, csv.Error) as error:
        raise MalformedDataError(f"{path}: is no CSV in UTF-8: {error}", expected="CSV in UTF-8") from error
    twice = next((column for column, count in Counter(header).items() if count > 1), None)
    if not header:
        found = "is empty"
    elif not set(header) & set(schema.names):
        # SQL Server Management Studio leaves the header out by default, and Excel may part columns by semicolons.
        found = f"its first line, {','.join(header)!r:.80}, names no known column"
    elif twice is not None:
        found = f"its header names the column {twice!r} twice"
    else:
        return header
    expected = f"a header line with the columns {', '.join(schema.names)}, and commas between them"
    raise MalformedDataError(f"{path}: {found}; expected {expected}", expected=expected)


def _json(path: Path, schema: pa.Schema, name: str) -> pa.Table:
    text = _decoded(read_bytes(path), "utf-8-sig", path)
    if text.lstrip().startswith("["):
        rows = decode_json(text, where=str(path))
    else:
        lines = enumerate(text.split("\n"), start=1)
        rows = [decode_json(line, where=f"{path}, line {number}") for number, line in lines if line.strip()]
    # Where there is no row, no column can be seen.
    columns: dict[str, list[Any]] = {} if rows else {name: [] for name in schema.names}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise MalformedDataError(
                f"{path}: {name}, row {number}: {row!r:.80} is not an object", row=number, expected="an object"
            )
        for column in row:
            columns.setdefault(column, [])
    for column, values in columns.items():
        if not options.is_text(column):
            raise MalformedDataError(f"{path}: {name}: the column {column!a} has a name that is no text")
        values.extend(row.get(column) for row in rows)
    return _typed(columns, schema, path, name)


def _typed(columns: Mapping[str, Any], schema: pa.Schema, path: Path, name: str) -> pa.Table:
    typed = {}
    for column, values in columns.items():
        where = f"{path}: {name}.{column}"
        if column in schema.names:
            typed[column] = typed_column(values, schema.field(column), where=where)
            continue
        try:
            typed[column] = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(values)])
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise InputError(f"{where}: its values are of no one type: {error}", column=f"{name}.{column}") from error
    return pa.table(typed)


def _decoded(data: bytes, encoding: str, path: Path) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise MalformedDataError(
            f"{path}: is no text in {encoding.removesuffix('-sig').upper()}: {error}", expected="text"
        ) from error


FORMATS: Final[Mapping[str, Callable[[Path, pa.Schema, str], pa.Table]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".json": _json,
    ".jsonl": _json,
    ".ndjson": _json,
    ".arrow": _arrow,
    ".feather": _arrow,
}
"""The suffixes of table files, and how each is read."""
