"""From a path to what a catalog is made of: a script, a folder of scripts or of tables, or a lone routing table."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ssbroker import options, schemas
from ssbroker.exceptions import InputError, MalformedDataError, SchemaError, SsbrokerError
from ssbroker.scripts import load_scripts
from ssbroker.table_files import FORMATS, decode_json, reaching, read_bytes, read_table

INSTANCE_FILE: Final = "instance.json"
_TRIES: Final = 6
_SCHEMAS: Final = {"routes": schemas.ROUTES, "databases": schemas.DATABASES, "services": schemas.SERVICES}


@dataclass(frozen=True, kw_only=True)
class Source:
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
            >>> source = Source(routes=pa.table({}), path=Path("net"), files={"routes": Path("net/routes.csv")})
            >>> print(source.located(InputError("routes.address, row 2: ...", column="routes.address", row=2)))
            net/routes.csv: routes.address, row 2: ...
        """
        table = (error.column or "").partition(".")[0]
        located = type(error)(f"{self.files.get(table, self.path)}: {error}")
        located.__dict__.update(error.__dict__)
        return located


def load(path: Path, *, now: datetime) -> Source:
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


def _load(path: Path, now: datetime) -> Source:
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
    return Source(routes=read_table(path, schemas.ROUTES, name="routes"), path=path, files={"routes": path})


def _load_folder(folder: Path, now: datetime) -> Source:
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
    return Source(
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


def _from_scripts(scripts: list[Path], path: Path, now: datetime) -> Source:
    script = load_scripts(scripts, now=now)
    return Source(
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
            expected, fits = "a list of texts", isinstance(value, list) and all(map(options.is_text, value))
        else:
            expected, fits = "addresses, message_forwarding or pending_requests", False
        if not fits:
            raise InputError(
                f"{file}: {key}: {value!r:.80}; expected {expected}", column=key, value=repr(value), expected=expected
            )
        result[key] = tuple(value) if isinstance(value, list) else value
    return result
