"""Loads catalogs from scripts, folders of tables, single tables, and instance folders."""

from __future__ import annotations

import codecs
import csv
import io
import json
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ssbroker import ddl, schemas
from ssbroker._arguments import is_utf8_text, parse_timestamp
from ssbroker.exceptions import InputError, MalformedDataError, SchemaError, SsbrokerError

_INT32: Final = range(-(2**31), 2**31)
_TRUTH: Final = {"true": True, "false": False, "1": True, "0": False}
_NO_VALUE: Final = ("", "NULL")


def typed_column(
    values: pa.ChunkedArray[Any] | Sequence[Any], field: pa.Field[Any], *, where: str
) -> pa.ChunkedArray[Any]:
    """Brings one column to the type of its field.

    GUIDs stay text: the catalog reads them.

    Args:
        values: The cells: text as CSV has it, or Python values as JSON has them.
        field: The field of the schema.
        where: File, table and column, for messages.

    Returns:
        The column.

    Raises:
        InputError: A cell is not what the field needs.

    Examples:
        >>> import pyarrow as pa
        >>> typed_column([1, None, 70000], pa.field("route_id", pa.int32()), where="routes.json: routes.route_id").type
        DataType(int32)
    """
    parse, kind, expected = _reading(field.type)
    if not isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([pa.array(_parsed(values, parse, where, expected), kind)])
    if pa.types.is_string(kind):
        return _without_nulls(values, _NO_VALUE if field.nullable else ("",))
    distinct = _without_nulls(pc.utf8_trim_whitespace(values), _NO_VALUE).combine_chunks().dictionary_encode()
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
        raise _error(values[row].as_py(), row, where, expected)
    return pa.chunked_array([pa.array(readable, kind).take(distinct.indices)])


def _parsed(values: Sequence[Any], parse: Callable[[Any], Any], where: str, expected: str) -> list[Any]:
    parsed = []
    for row, value in enumerate(values):
        try:
            parsed.append(None if value is None else parse(value))
        except ValueError as error:
            raise _error(value, row, where, expected) from error
    return parsed


def _reading(kind: pa.DataType) -> tuple[Callable[[Any], Any], pa.DataType, str]:
    """How a cell is read, the type that comes out, and what is expected in words."""
    if pa.types.is_int32(kind):
        return _whole_number, kind, "a whole number of 32 bits"
    if pa.types.is_boolean(kind):
        return _truth, kind, "true, false, 1 or 0"
    if pa.types.is_timestamp(kind):
        return _moment, kind, "a moment such as 2026-11-20T21:00:00Z or 2026-11-20 21:00:00.000"
    return _text, pa.string(), "text"


def _whole_number(value: Any) -> int:
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT32:
        raise ValueError(value)
    return value


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        value = _TRUTH.get(value.lower())
    if value is True or value is False:
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError(value)


def _moment(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - the caller turns every refusal into one error
    return parse_timestamp(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - the same
    value.encode()  # a lone surrogate, which JSON can spell, is no text
    return value


def _without_nulls(values: pa.ChunkedArray[Any], no_value: Sequence[str]) -> pa.ChunkedArray[Any]:
    """An empty cell is null, and so is, where there may be none, the word that SQL Server Management Studio writes for it."""
    filled: pa.ChunkedArray[Any] = pc.if_else(pc.is_in(values, value_set=pa.array(no_value)), None, values)
    return filled


def _error(value: object, row: int, where: str, expected: str) -> InputError:
    shown = ascii(value) if len(ascii(value)) <= 80 else ascii(value)[:77] + "..."  # noqa: PLR2004
    return InputError(
        f"{where}, row {row}: {shown} is not {expected}",
        column=where.rpartition(" ")[2],
        row=row,
        value=shown,
        expected=expected,
    )


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
        if not is_utf8_text(column):
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


def load_scripts(files: Sequence[Path], *, now: datetime) -> ddl.ScriptTables:
    """Reads scripts as if they were one, in the order given; after each of them a batch ends.

    Args:
        files: The scripts.
        now: The moment from which LIFETIME counts.

    Returns:
        What they say together.

    Raises:
        InputError: A file cannot be read.
        DdlError: A statement is refused; its file and line are named.

    Warns:
        DdlWarning: A statement was skipped; its file and line are named.

    Examples:
        >>> import tempfile
        >>> from datetime import UTC, datetime
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = [Path(folder, "1.sql"), Path(folder, "2.sql")]
        ...     _ = files[0].write_text("CREATE DATABASE Sales; USE Sales")
        ...     _ = files[1].write_text("DROP ROUTE AutoCreatedLocal")
        ...     script = load_scripts(files, now=datetime(2026, 11, 20, tzinfo=UTC))
        >>> script.routes["database"].to_pylist()
        ['msdb']
    """
    return ddl.read_all([(ddl.decode(read_bytes(file), file=str(file)), str(file)) for file in files], now=now)


INSTANCE_FILE: Final = "instance.json"
_TRIES: Final = 6
_SCHEMAS: Final = {"routes": schemas.ROUTES, "databases": schemas.DATABASES, "services": schemas.SERVICES}


@dataclass(frozen=True, kw_only=True)
class CatalogSource:
    """What was read: the arguments of `ssbroker.Catalog`, and where they come from."""

    routes: pa.Table
    """In the schema of `sys.routes`, further columns beside."""
    databases: pa.Table | None = None
    """In the schema of `sys.databases`."""
    services: pa.Table | None = None
    """In the schema of `sys.services`."""
    addresses: tuple[str, ...] = ()
    """Under which addresses the instance is reached."""
    message_forwarding: bool = False
    """Whether the instance passes messages on."""
    pending_requests: tuple[str, ...] = ()
    """Services for which routing information has been requested."""
    path: Path
    """What was loaded."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The file of each table, where tables were loaded."""

    def located(self, error: InputError | SchemaError) -> InputError | SchemaError:
        """The same error, with the file that it is about before its message.

        Examples:
            >>> import pyarrow as pa
            >>> from pathlib import Path
            >>> from ssbroker.exceptions import InputError
            >>> source = CatalogSource(routes=pa.table({}), path=Path("net"), files={"routes": Path("net/routes.csv")})
            >>> print(source.located(InputError("routes.address, row 2: ...", column="routes.address", row=2)))
            net/routes.csv: routes.address, row 2: ...
        """
        table = (error.column or "").partition(".")[0]
        located = type(error)(f"{self.files.get(table, self.path)}: {error}")
        located.__dict__.update(error.__dict__)
        return located


def load(path: Path, *, now: datetime) -> CatalogSource:
    r"""Reads what a catalog is made of.

    Args:
        path: A `.sql` script of DDL; a table file with the routes alone; or a folder that holds either scripts, which are run
            in the order of their names, or the tables `routes.*`, `databases.*`, `services.*` and `instance.json`.
        now: The moment from which LIFETIME of a script counts.

    Returns:
        What was read: all of it of one moment. What was written or replaced meanwhile is read anew.

    Raises:
        InputError: There is no such file, it is of no known format, or a value in it is not what was expected; or it changed
            each time that it was read.

    Examples:
        >>> import tempfile
        >>> from datetime import UTC, datetime
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "routes.csv")
        ...     _ = path.write_text("name,remote_service_name,address\nOrders,//Orders,TCP://orders:4022\n")
        ...     load(path, now=datetime(2026, 11, 20, tzinfo=UTC)).routes["address"].to_pylist()
        ['TCP://orders:4022']
    """
    for _ in range(_TRIES):
        before = _look(path)
        try:
            source = _load(path, now)
        except SsbrokerError:
            if _look(path) == before:
                raise
        else:
            if _look(path) == before:
                return source
    raise InputError(
        f"{path}: changed each of the {_TRIES} times that it was read; expected one that rests, or is replaced as a whole",
        value=str(path),
        expected="a catalog that is not being written",
    )


def files_of(path: Path) -> list[Path]:
    """The files that `load` reads; what else lies beside them is none of its business.

    Args:
        path: As for `load`.

    Returns:
        The files of a folder by name, else the path itself.

    Raises:
        OSError: A folder may not be looked into.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("routes.csv", "instance.json", "notes.csv", "routes.log"):
        ...         Path(folder, name).touch()
        ...     [file.name for file in files_of(Path(folder))]
        ['instance.json', 'routes.csv']
    """
    if not path.is_dir():
        return [path]
    known = [entry for entry in sorted(path.iterdir()) if _is_script(entry) or _is_table(entry) or _is_settings(entry)]
    own = [entry for entry in known if entry.is_file()]
    has_scripts = any(map(_is_script, own))
    return [entry for entry in own if not (has_scripts and _is_settings(entry))]


def _look(path: Path) -> object:
    """What differs when a file of the catalog was written or replaced, or the folder was; None where it cannot be looked at."""
    try:
        # Of the folder only which one it is: its times change with whatever else is written in it.
        folder, files = path.stat(), [(file.name, file.stat()) for file in files_of(path)]
    except (OSError, ValueError):
        return None
    # What is no file, as a pipe, is read once and cannot be read again.
    kept = [
        (name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        for name, found in files
        if stat.S_ISREG(found.st_mode)
    ]
    return folder.st_dev, folder.st_ino, kept


def _load(path: Path, now: datetime) -> CatalogSource:
    with reaching(path):
        is_folder, is_there = path.is_dir(), path.exists()
    if is_folder:
        return _load_folder(path, now)
    if not is_there:
        raise InputError(f"{path}: there is no such file or folder", value=str(path), expected="a file or folder")
    if _is_script(path):
        return _from_scripts([path], path, now)
    if path.suffix.lower() not in FORMATS:
        known = ", ".join([".sql", *FORMATS])
        raise InputError(
            f"{path}: its suffix tells no format; expected one of {known}, or a folder", value=str(path), expected=known
        )
    return CatalogSource(routes=read_table(path, schemas.ROUTES, name="routes"), path=path, files={"routes": path})


def _load_folder(folder: Path, now: datetime) -> CatalogSource:
    with reaching(folder):
        entries = files_of(folder)
    scripts = [entry for entry in entries if _is_script(entry)]
    files: dict[str, Path] = {}
    for entry in filter(_is_table, entries):
        name = entry.stem.lower()
        if name in files:
            raise InputError(
                f"{folder}: both {files[name].name} and {entry.name} hold the {name}; expected one of them"
            )
        files[name] = entry
    if scripts and files:
        first = next(iter(files.values()))
        raise InputError(
            f"{folder}: holds scripts ({scripts[0].name}) and tables ({first.name}); load one of the two by its path"
        )
    if scripts:
        return _from_scripts(scripts, folder, now)
    if "routes" not in files:
        known = ", ".join(f"routes{suffix}" for suffix in FORMATS)
        raise InputError(
            f"{folder}: holds no routing table; expected one of {known}, or .sql scripts", expected="routes"
        )
    tables = {name: read_table(file, _SCHEMAS[name], name=name) for name, file in files.items()}
    return CatalogSource(
        routes=tables["routes"],
        databases=tables.get("databases"),
        services=tables.get("services"),
        **_instance(folder / INSTANCE_FILE),
        path=folder,
        files=files,
    )


def _is_script(file: Path) -> bool:
    return file.suffix.lower() == ".sql"


def _is_table(file: Path) -> bool:
    return file.stem.lower() in _SCHEMAS and file.suffix.lower() in FORMATS


def _is_settings(file: Path) -> bool:
    return file.name == INSTANCE_FILE


def _from_scripts(scripts: list[Path], path: Path, now: datetime) -> CatalogSource:
    script = load_scripts(scripts, now=now)
    return CatalogSource(
        routes=script.routes,
        databases=script.databases,
        services=script.services,
        addresses=tuple(script.addresses),
        message_forwarding=script.message_forwarding,
        pending_requests=tuple(script.pending_requests),
        path=path,
    )


def _instance(file: Path) -> dict[str, Any]:
    """The settings of the instance; each may be left out, and so may the file."""
    if not file.exists():
        return {}
    settings = decode_json(read_bytes(file), where=str(file))
    if not isinstance(settings, dict):
        raise MalformedDataError(f"{file}: expected an object, got {settings!r:.80}", expected="an object")
    result: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "message_forwarding":
            expected, fits = "true or false", isinstance(value, bool)
        elif key in ("addresses", "pending_requests"):
            expected, fits = "a list of texts", isinstance(value, list) and all(map(is_utf8_text, value))
        else:
            expected, fits = "addresses, message_forwarding or pending_requests", False
        if not fits:
            raise InputError(
                f"{file}: {key}: {value!r:.80}; expected {expected}", column=key, value=repr(value), expected=expected
            )
        result[key] = tuple(value) if isinstance(value, list) else value
    return result
