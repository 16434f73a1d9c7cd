"""Loading of catalogs from scripts, table files, and folders of either."""

from __future__ import annotations

import codecs
import csv
import io
import json
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ssbroker import ddl, schemas
from ssbroker._arguments import is_utf8_text, parse_timestamp
from ssbroker._arrow import null_where
from ssbroker.exceptions import DdlError, InputError, MalformedDataError, SchemaError, SsbrokerError

_INT32: Final = range(-(2**31), 2**31)
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}
_NULL_TEXTS: Final = ("", "NULL")


def typed_column(
    values: pa.ChunkedArray[Any] | Sequence[Any], field: pa.Field[Any], *, where: str
) -> pa.ChunkedArray[Any]:
    """Converts the cells of a column, text from CSV or values from JSON, to the type of its field; GUIDs remain text.

    Args:
        values: The cells.
        field: The field of the schema.
        where: File, table and column, for error messages.
    """
    parse, data_type, expected = _cell_parser(field.type)
    if not isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([pa.array(_parse_values(values, parse, where, expected), data_type)])
    if pa.types.is_string(data_type):
        return _with_nulls(values, _NULL_TEXTS if field.nullable else ("",))
    distinct = _with_nulls(pc.utf8_trim_whitespace(values), _NULL_TEXTS).combine_chunks().dictionary_encode()
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
    """Returns the parser of a cell, the resulting type, and its description for messages."""
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
    """Converts cells with one of the texts to null; SQL Server Management Studio writes `NULL`."""
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


_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_table(path: Path, schema: pa.Schema, *, name: str) -> pa.Table:
    """Reads a table file in the format of its suffix; cells of CSV and JSON are converted to the types of the schema, GUIDs remain text.

    Args:
        path: The file; its suffix is one of `FORMATS`.
        schema: Types of the known columns; other columns are kept as they are.
        name: Name of the table, for error messages.
    """
    return FORMATS[path.suffix.lower()](path, schema, name)


def read_bytes(path: Path) -> bytes:
    """Reads a file; errors become InputError."""
    with os_errors_as_input_errors(path):
        return path.read_bytes()


@contextmanager
def os_errors_as_input_errors(path: Path) -> Iterator[None]:
    """Converts an OSError of the block, such as a missing permission, to InputError."""
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
    if data.startswith(_UTF16):
        data = _decode(data, "utf-16", path).encode()
    header = _csv_header(data, schema, path)
    source: Any = pa.BufferReader(data if data.endswith(b"\n") else data + b"\n")
    bad_rows: list[Any] = []

    def collect_bad_row(row: Any) -> Literal["error"]:
        bad_rows.append(row)
        return "error"

    try:
        table = pyarrow.csv.read_csv(
            source,
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=collect_bad_row),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False, null_values=[]
            ),
        )
    except (pa.ArrowException, OSError) as error:
        if not bad_rows:
            raise MalformedDataError(
                f"{path}: invalid CSV: {error}", expected="CSV in UTF-8 with a header line"
            ) from error
        row, expected = bad_rows[0].number - 2, f"{bad_rows[0].expected_columns} cells"
        raise MalformedDataError(
            f"{path}: {name}, row {row}: expected {expected}, got {bad_rows[0].actual_columns}: {bad_rows[0].text!r}",
            row=row,
            value=bad_rows[0].text,
            expected=expected,
        ) from error
    return _typed_table({column: table[column] for column in header}, schema, path, name)


def _csv_header(data: bytes, schema: pa.Schema, path: Path) -> list[str]:
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline=""), strict=True)
    try:
        header = next(rows, [])
        if data.count(b'"') % 2:
            # pyarrow would read everything after an unclosed quotation mark as one cell.
            deque(rows, maxlen=0)
    except (UnicodeDecodeError, csv.Error) as error:
        raise MalformedDataError(f"{path}: invalid CSV in UTF-8: {error}", expected="CSV in UTF-8") from error
    duplicate = next((column for column, count in Counter(header).items() if count > 1), None)
    if not header:
        found = "the file is empty"
    elif not set(header) & set(schema.names):
        # SQL Server Management Studio omits the header by default, and Excel may separate columns by semicolons.
        found = f"the first line, {','.join(header)!r:.80}, has no known column"
    elif duplicate is not None:
        found = f"the header has the column {duplicate!r} twice"
    else:
        return header
    expected = f"a header line with the columns {', '.join(schema.names)}, separated by commas"
    raise MalformedDataError(f"{path}: {found}; expected {expected}", expected=expected)


def _json(path: Path, schema: pa.Schema, name: str) -> pa.Table:
    text = _decode(read_bytes(path), "utf-8-sig", path)
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


def _decode(data: bytes, encoding: str, path: Path) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise MalformedDataError(
            f"{path}: is not valid {encoding.removesuffix('-sig').upper()}: {error}", expected="text"
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
"""Suffixes of table files, and their readers."""


def load_scripts(
    files: Sequence[Path], *, now: datetime, options: ddl.ScriptOptions = ddl.STRICT
) -> dict[str | None, ddl.ScriptTables]:
    """Reads scripts as one script, with a batch separator after each; LIFETIME counts from `now`. Returns the tables of each server."""
    return ddl.read_servers([(_script_text(file, options), str(file)) for file in files], now=now, options=options)


def _script_text(file: Path, options: ddl.ScriptOptions) -> str | DdlError:
    """Returns the text of a script; if errors are collected, the reason why it cannot be decoded."""
    data = read_bytes(file)
    try:
        return ddl.decode(data, file=str(file), encoding=options.encoding)
    except DdlError as error:
        if options.collects:
            return error
        raise


INSTANCE_FILE: Final = "instance.json"
_ATTEMPTS: Final = 6
_SCHEMAS: Final = {"routes": schemas.ROUTES, "databases": schemas.DATABASES, "services": schemas.SERVICES}


@dataclass(frozen=True, kw_only=True)
class CatalogSource:
    """Content of a catalog, and the files it was read from."""

    routes: pa.Table
    """Rows of `schemas.ROUTES`, possibly with extra columns."""
    databases: pa.Table | None = None
    """Rows of `schemas.DATABASES`."""
    services: pa.Table | None = None
    """Rows of `schemas.SERVICES`."""
    addresses: tuple[str, ...] = ()
    """Addresses of the instance."""
    message_forwarding: bool = False
    """Whether the instance forwards messages."""
    pending_requests: tuple[str, ...] = ()
    """Services for which a request for routing information is pending."""
    path: Path
    """The path that was loaded."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The file of each table; empty for scripts."""
    script: ddl.ScriptTables | None = None
    """The result of the scripts, with positions and notes; None for tables."""

    def add_path(self, error: InputError | SchemaError) -> InputError | SchemaError:
        """Returns a copy of an error whose message starts with the path of the file that it concerns."""
        table = (error.column or "").partition(".")[0]
        with_path = type(error)(f"{self.files.get(table, self.path)}: {error}")
        with_path.__dict__.update(error.__dict__)
        return with_path


def load_source(path: Path, *, now: datetime, options: ddl.ScriptOptions = ddl.STRICT) -> CatalogSource:
    """Reads the content of a catalog from a script, a routes file, or a folder of scripts or tables; LIFETIME counts from `now`."""
    sources = load_sources(path, now=now, options=options)
    if len(sources) > 1:
        names = ", ".join(str(name) for name in sources if name is not None)
        raise InputError(
            f"{path}: the script connects to several instances with :connect ({names}); load it with Fleet.load, "
            "or with `ssbroker lint`, `trace` or `compare`",
            value=str(path),
            expected="the script of a single instance",
        )
    return next(iter(sources.values()))


def load_sources(path: Path, *, now: datetime, options: ddl.ScriptOptions) -> dict[str | None, CatalogSource]:
    """Reads the content of one catalog, or of one for each server that a script connects to; the name None means the first connection.

    The result is consistent: if a file changes during reading, everything is read again.
    """
    for _ in range(_ATTEMPTS):
        before = _file_states(path)
        try:
            sources = _load_once(path, now, options)
        except SsbrokerError:
            if _file_states(path) == before:
                raise
        else:
            if _file_states(path) == before:
                return sources
    raise InputError(
        f"{path}: changed during each of {_ATTEMPTS} attempts to read it; stop writing to it, or replace it as a whole",
        value=str(path),
        expected="a catalog that is not being written",
    )


def source_files(path: Path) -> list[Path]:
    """Returns the files that `load_source` reads: for a folder, its files sorted by name and the scripts of its subfolders; otherwise the path itself."""
    if not path.is_dir():
        return [path]
    known = [entry for entry in sorted(path.iterdir()) if _is_script(entry) or _is_table(entry) or _is_settings(entry)]
    files = [entry for entry in known if entry.is_file()]
    if not any(map(_is_table, files)):
        below = sorted(
            file for folder in sorted(path.iterdir()) if _may_hold_scripts(folder) for file in _scripts(folder)
        )
        files = [*filter(_is_script, files), *below, *filter(_is_settings, files)]
    has_scripts = any(map(_is_script, files))
    return [entry for entry in files if not (has_scripts and _is_settings(entry))]


def _scripts(folder: Path) -> Iterator[Path]:
    """Yields the scripts of a folder and of the folders below it, as database projects have them."""
    for entry in sorted(folder.iterdir()):
        if _may_hold_scripts(entry):
            yield from _scripts(entry)
        elif _is_script(entry) and entry.is_file():
            yield entry


def _may_hold_scripts(folder: Path) -> bool:
    """Returns whether scripts in a folder belong to the folder above; `bin` and `obj` hold the output of database projects."""
    is_hidden = folder.name.startswith(".") or folder.name.lower() in ("bin", "obj")
    return not is_hidden and folder.is_dir() and not folder.is_symlink()


def _file_states(path: Path) -> object:
    """Returns a value that changes if a file of the catalog, or its folder, is written or replaced; None if inaccessible."""
    try:
        # Only the identity of the folder counts: unrelated files in it change its modification time.
        folder, files = path.stat(), [(str(file), file.stat()) for file in source_files(path)]
    except (OSError, ValueError):
        return None
    # Only regular files count: a pipe, for example, can be read only once.
    states = [
        (name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        for name, status in files
        if stat.S_ISREG(status.st_mode)
    ]
    return folder.st_dev, folder.st_ino, states


def _load_once(path: Path, now: datetime, options: ddl.ScriptOptions) -> dict[str | None, CatalogSource]:
    with os_errors_as_input_errors(path):
        is_folder, exists = path.is_dir(), path.exists()
    if is_folder:
        return _load_folder(path, now, options)
    if not exists:
        raise InputError(f"{path}: no such file or folder", value=str(path), expected="a file or folder")
    if _is_script(path):
        return _from_scripts([path], path, now, options)
    if path.suffix.lower() not in FORMATS:
        known = ", ".join([".sql", *FORMATS])
        raise InputError(
            f"{path}: unknown file format; expected one of {known}, or a folder", value=str(path), expected=known
        )
    routes = read_table(path, schemas.ROUTES, name="routes")
    return {None: CatalogSource(routes=routes, path=path, files={"routes": path})}


def _load_folder(folder: Path, now: datetime, options: ddl.ScriptOptions) -> dict[str | None, CatalogSource]:
    with os_errors_as_input_errors(folder):
        entries = source_files(folder)
    scripts = [entry for entry in entries if _is_script(entry)]
    files: dict[str, Path] = {}
    for entry in filter(_is_table, entries):
        name = entry.stem.lower()
        if name in files:
            raise InputError(
                f"{folder}: both {files[name].name} and {entry.name} contain {name}; expected only one of them"
            )
        files[name] = entry
    if scripts and files:
        first = next(iter(files.values()))
        raise InputError(
            f"{folder}: contains both scripts ({scripts[0].name}) and tables ({first.name}); load one of them by its path"
        )
    if scripts:
        return _from_scripts(scripts, folder, now, replace(options, any_order=len(scripts) > 1))
    if "routes" not in files:
        known = ", ".join(f"routes{suffix}" for suffix in FORMATS)
        parts = [path.name for path in folder.glob("routes.*") if path.is_dir()]
        hint = f"; {parts[0]} is a folder: write the table as one file" if parts else ""
        raise InputError(
            f"{folder}: contains no routing table; expected one of {known}, or .sql scripts{hint}", expected="routes"
        )
    tables = {name: read_table(file, _SCHEMAS[name], name=name) for name, file in files.items()}
    source = CatalogSource(
        routes=tables["routes"],
        databases=tables.get("databases"),
        services=tables.get("services"),
        **_read_settings(folder / INSTANCE_FILE),
        path=folder,
        files=files,
    )
    return {None: source}


def _is_script(file: Path) -> bool:
    return file.suffix.lower() == ".sql"


def _is_table(file: Path) -> bool:
    return file.stem.lower() in _SCHEMAS and file.suffix.lower() in FORMATS


def _is_settings(file: Path) -> bool:
    return file.name == INSTANCE_FILE


def _from_scripts(
    scripts: list[Path], path: Path, now: datetime, options: ddl.ScriptOptions
) -> dict[str | None, CatalogSource]:
    servers = load_scripts(scripts, now=now, options=options)
    return {
        name: CatalogSource(
            routes=script.routes,
            databases=script.databases,
            services=script.services,
            addresses=tuple(script.addresses),
            message_forwarding=script.message_forwarding,
            pending_requests=tuple(script.pending_requests),
            path=path,
            script=script,
        )
        for name, script in servers.items()
    }


def _read_settings(file: Path) -> dict[str, Any]:
    """Reads the settings of the instance; each is optional, and so is the file."""
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
            expected, fits = "a list of strings", isinstance(value, list) and all(map(is_utf8_text, value))
        else:
            expected, fits = "addresses, message_forwarding or pending_requests", False
        if not fits:
            raise InputError(
                f"{file}: {key}: {value!r:.80}; expected {expected}", column=key, value=repr(value), expected=expected
            )
        result[key] = tuple(value) if isinstance(value, list) else value
    return result
