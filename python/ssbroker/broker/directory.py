"""Where services are, for the configuration service: a file or a table of services and their addresses (N27)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from ssbroker import guids, options
from ssbroker.broker.database import Database
from ssbroker.ddl.routes import LIFETIME_SECONDS_MAX
from ssbroker.exceptions import InputError
from ssbroker.store import route_requests
from ssbroker.table_files import FORMATS, read_table

_COLUMNS: Final = {
    "service_name": pa.string(),
    "broker_instance": pa.string(),
    "address": pa.string(),
    "mirror_address": pa.string(),
    "lifetime": pa.int32(),
}
_NEEDED: Final = ("service_name", "address")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a service is.

    Attributes:
        service_name: The service.
        address: `TCP://host:port`, or `LOCAL` for one of this instance.
        broker_instance: The broker id of its database; None is any.
        mirror_address: The address of the mirror.
        lifetime: The seconds for which a route to it may be used; None leaves that to the configuration service.
    """

    service_name: str
    address: str
    broker_instance: uuid.UUID | None = None
    mirror_address: str | None = None
    lifetime: int | None = None


class Directory(Protocol):
    """Knows where services are."""

    def find(self, service_name: str) -> Sequence[Entry]:
        """Where a service is.

        Args:
            service_name: Its name, byte by byte.

        Returns:
            An entry for each of its copies; none where it is not known.

        Raises:
            SsbrokerError: The directory cannot be read.
        """


class FileDirectory:
    r"""A directory in a file of CSV, JSON, Parquet or Arrow, which is read anew for each request.

    Args:
        path: The file, with the columns `service_name`, `address` and, where there are any, `broker_instance`, `mirror_address` and
            `lifetime` (seconds).

    Raises:
        InputError: The suffix of the file is none that tells its format.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "services.csv")
        ...     _ = path.write_text("service_name,address,lifetime\n//Stock,TCP://stock.example:4022,600\n")
        ...     FileDirectory(path).find("//Stock")[0].address
        'TCP://stock.example:4022'
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in FORMATS:
            raise InputError(f"{path}: a directory is a file of {', '.join(FORMATS)}", value=str(path))
        self._path: Final = path

    def find(self, service_name: str) -> Sequence[Entry]:
        """Where a service is."""
        schema = pa.schema([pa.field(name, kind) for name, kind in _COLUMNS.items()])
        table = read_table(self._path, schema, name="directory")
        missing = [name for name in _NEEDED if name not in table.column_names]
        if missing:
            raise InputError(f"{self._path}: there is no column {missing[0]!r}", column=missing[0])
        numbers = [at for at, name in enumerate(table["service_name"].to_pylist()) if name == service_name]
        rows = table.select([name for name in _COLUMNS if name in table.column_names]).take(
            pa.array(numbers, pa.int64())
        )
        return [
            _entry(row, where=f"{self._path}, row {number}")
            for number, row in zip(numbers, rows.to_pylist(), strict=True)
        ]


class TableDirectory:
    """A directory in a table of a database, which an application may change as it changes its other tables.

    Args:
        database: The database.
        table: The table, with the columns of `FileDirectory`, all of them.
    """

    def __init__(self, database: Database, table: str) -> None:
        self._database: Final = database
        self._table: Final = table

    def find(self, service_name: str) -> Sequence[Entry]:
        """Where a service is."""
        table = f"table {self._table!r} of {self._database.name!r}"
        with self._database.file.read() as connection:
            found = route_requests.directory_columns(connection, self._table)
            if not found:
                raise InputError(f"{table}: there is none of that name")
            for name in _COLUMNS:
                if name not in found:
                    raise InputError(f"{table}: there is no column {name!r}", column=name)
            rows = route_requests.directory_rows(connection, self._table, service_name)
        where = f"{table}, service {service_name!r}"
        return [_entry(dict(zip(_COLUMNS, row, strict=True)), where=where) for row in rows]


def _entry(row: dict[str, Any], *, where: str) -> Entry:
    guid, lifetime = row.get("broker_instance"), row.get("lifetime")
    address, mirror = (_address(row, name, where=where) for name in ("address", "mirror_address"))
    if address is None:
        raise InputError(f"{where}: address: expected an address, got None", column="address")
    if lifetime is not None:
        lifetime = options.whole(lifetime, name=f"{where}: lifetime", least=1, most=LIFETIME_SECONDS_MAX)
    return Entry(
        row["service_name"],
        address,
        None if guid is None else uuid.UUID(bytes=guids.as_bytes(guid, name=f"{where}: broker_instance")),
        mirror,
        lifetime,
    )


def _address(row: dict[str, Any], name: str, *, where: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: {name}: expected an address, got {value!r:.80}", column=name)
    return value
