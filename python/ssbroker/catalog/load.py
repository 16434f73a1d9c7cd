"""Loading of catalogs from scripts, table files, and folders of either."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ssbroker import ddl, schemas
from ssbroker._arguments import is_utf8_text
from ssbroker._csv import SUFFIXES, CsvFile, line_text
from ssbroker.catalog.table_files import FORMATS, decode_json, os_errors_as_input_errors, read_bytes, read_table
from ssbroker.exceptions import DdlError, InputError, MalformedDataError, SchemaError, SsbrokerError


def load_scripts(
    files: Sequence[Path], *, now: datetime, options: ddl.ScriptOptions = ddl.STRICT
) -> dict[str | None, ddl.ScriptTables]:
    """Reads files as one script, with a batch separator after each file; LIFETIME counts from `now`. Returns the tables of each server."""
    return ddl.read_servers([(_script_text(file, options), str(file)) for file in files], now=now, options=options)


def _script_text(file: Path, options: ddl.ScriptOptions) -> str | DdlError:
    """Returns the text of a script, or, if it cannot be decoded and errors are collected, the error."""
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
    """The content of a catalog, and the files from which it was read."""

    routes: pa.Table
    """The routes, with the columns of `schemas.ROUTES` and possibly others."""
    databases: pa.Table | None = None
    """The databases, with the columns of `schemas.DATABASES`."""
    services: pa.Table | None = None
    """The services, with the columns of `schemas.SERVICES`."""
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
        path = self.files.get(table, self.path)
        row = error.row if isinstance(error, InputError) and path.suffix.lower() in SUFFIXES else None
        line = None if row is None else CsvFile(path).line_of_row(row)
        with_path = type(error)(f"{path}: {error}{line_text(line)}")
        with_path.__dict__.update(error.__dict__)
        return with_path


def load_source(path: Path, *, now: datetime, options: ddl.ScriptOptions = ddl.STRICT) -> CatalogSource:
    """Reads the content of a catalog from a script, a routes file, or a folder of scripts or tables; LIFETIME counts from `now`."""
    sources = load_sources(path, now=now, options=options)
    if len(sources) > 1:
        names = ", ".join(str(name) for name in sources if name is not None)
        raise InputError(
            f"{path}: the script connects to several instances with :connect ({names}); load it with Fleet.load, "
            "or pass it to `ssbroker lint`, `trace`, `stuck` or `compare`",
            value=str(path),
            expected="the script of a single instance",
        )
    return next(iter(sources.values()))


def load_sources(path: Path, *, now: datetime, options: ddl.ScriptOptions) -> dict[str | None, CatalogSource]:
    """Reads the content of one catalog, or one for each server to which a script connects, by the name of the server.

    Statements before the first `:connect` belong to the name None. The result is consistent: if a file changes during
    reading, everything is read again.
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
        f"{path}: changed during each of {_ATTEMPTS} attempts to read it; stop writing to it, or write a new file or folder and rename it",
        value=str(path),
        expected="a catalog that is not being written to",
    )


def source_files(path: Path) -> list[Path]:
    """Returns the files that `load_source` reads: for a folder, its files sorted by name, and scripts in subfolders; otherwise the path itself."""
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
    """Yields the scripts in a folder and in the folders below it, as in database projects."""
    for entry in sorted(folder.iterdir()):
        if _may_hold_scripts(entry):
            yield from _scripts(entry)
        elif _is_script(entry) and entry.is_file():
            yield entry


def _may_hold_scripts(folder: Path) -> bool:
    """Returns whether scripts in a folder belong to the parent folder; `bin` and `obj` contain the output of database projects."""
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
        name = _table_name(entry)
        if name in files:
            raise InputError(
                f"{folder}: both {files[name].name} and {entry.name} contain {name}; expected only one of these files"
            )
        files[name] = entry
    if scripts and files:
        first = next(iter(files.values()))
        raise InputError(
            f"{folder}: contains both scripts ({scripts[0].name}) and tables ({first.name}); move the scripts or the tables to another folder"
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
    return _table_name(file) in _SCHEMAS and file.suffix.lower() in FORMATS


def _table_name(file: Path) -> str:
    """Returns the name of the table in a file that is named after the table or its view, such as `sys.routes.csv`."""
    return file.stem.lower().removeprefix("sys.")


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
    """Reads the settings of the instance; each setting is optional, and so is the file."""
    if not file.exists():
        return {}
    settings = decode_json(read_bytes(file), where=str(file))
    if not isinstance(settings, dict):
        raise MalformedDataError(f"{file}: expected a JSON object, got {settings!r:.80}", expected="a JSON object")
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
