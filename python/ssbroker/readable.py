"""Where catalogs come from: files, a SQL Server, an instance of our own."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol, Self

import pyarrow as pa

from ssbroker import instance_folder, loading, moment, options, sql_server
from ssbroker.exceptions import InputError, SchemaError

_INSTANCES_MAX: Final = 4
# SQLite writes its shared memory also when it only reads.
_NEVER_SAYS_ANYTHING: Final = "-shm"


class Contents(Protocol):
    """What a catalog is made of."""

    @property
    def routes(self) -> pa.Table:
        """In the schema of `sys.routes`."""

    @property
    def databases(self) -> pa.Table | None:
        """In the schema of `sys.databases`."""

    @property
    def services(self) -> pa.Table | None:
        """In the schema of `sys.services`."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Under which the instance is reached."""

    @property
    def message_forwarding(self) -> bool:
        """Whether it passes messages on."""

    @property
    def pending_requests(self) -> tuple[str, ...]:
        """The services for which routing information has been requested."""


class Readable(ABC):
    """A class that is made of tables, wherever they are read."""

    @classmethod
    @abstractmethod
    def of_contents(cls, contents: Contents) -> Self:
        """Made of what was read."""

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, now: datetime | None = None) -> Self:
        """Reads a catalog from files.

        Args:
            path: A `.sql` script of DDL; a folder of scripts, run in the order of their names; a folder of the tables `routes`,
                `databases` (optional) and `services` (optional), with `instance.json` (optional); a file with the routes alone; or
                the folder of an instance, as `from_instance` has it.
                Tables are Parquet, CSV, JSON (an array, or an object a line) or Arrow IPC.
            now: The moment from which LIFETIME of a script counts, None for the current time. Without a zone it is UTC.

        Returns:
            The catalog.

        Raises:
            InputError: There is no such file, or a value in it is not what was expected; file and row are named.
            SchemaError: A column is missing, or has a type that cannot be read.

        Examples:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from ssbroker import Catalog
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     script = Path(folder, "catalog.sql")
            ...     _ = script.write_text("USE msdb; CREATE ROUTE Orders WITH ADDRESS = N'TCP://orders:4022';")
            ...     Catalog.load(script).routes["name"].to_pylist()
            ['AutoCreatedLocal', 'Orders']
        """
        if instance_folder.is_instance(Path(path)):
            return cls.from_instance(path)
        source = loading.load(Path(path), now=moment.as_utc(now))
        try:
            return cls.of_contents(source)
        except (InputError, SchemaError) as error:
            raise source.located(error) from error.__cause__

    @classmethod
    def from_instance(cls, folder: str | os.PathLike[str]) -> Self:
        """Reads what an instance of our own is routed by now, as `Instance.catalog` gives it; whoever has it open goes on.

        Args:
            folder: The folder of the instance.

        Returns:
            The catalog, which later changes of the instance leave as it is.

        Raises:
            StorageError: There is no instance, or its files cannot be read.
            MissingDependencyError: The library `apsw` is not installed.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Catalog, Instance
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with Instance.create(folder, name="shop") as instance:
            ...         _ = instance.create_database("Sales")
            ...     Catalog.from_instance(folder).databases["name"].to_pylist()
            ['msdb', 'Sales']
        """
        return cls.of_contents(instance_folder.catalog_of(Path(folder)))

    @classmethod
    def from_sql_server(cls, connection: sql_server.Connection, *, addresses: Sequence[str] = ()) -> Self:
        """Reads the routes, services and databases of a SQL Server, and whether it forwards.

        Args:
            connection: An open connection of any DB-API 2.0 driver, whose login may see the catalog views of every database.
            addresses: Under which further addresses other instances reach it, beside those that the server knows of itself.

        Returns:
            The catalog; system services, which every database has, are left out.

        Raises:
            InputError: A value is not what was expected.

        Examples:
            A connection of the driver `mssql-python`: `Catalog.from_sql_server(mssql_python.connect("Server=sql-01;..."))`.
        """
        source = sql_server.read(connection)
        further = options.texts(addresses, name="addresses")
        return cls.of_contents(replace(source, addresses=(*source.addresses, *further)))


def files_of(path: Path) -> list[Path]:
    """The files that a catalog is loaded from: what else is written beside them, as a log, changes nothing.

    Args:
        path: As for `Readable.load`.

    Returns:
        The files.

    Raises:
        OSError: A folder may not be looked into.
        StorageError: It is that of an instance whose files cannot be read.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Instance.create(folder, name="shop") as instance:
        ...         _ = instance.create_database("Sales")
        ...     [file.name for file in files_of(Path(folder))]
        ['Sales.sqlite', 'msdb.sqlite']
    """
    if not instance_folder.is_instance(path):
        return loading.files_of(path)
    own = sorted(file for file in path.iterdir() if file.is_file() and not file.name.endswith(_NEVER_SAYS_ANYTHING))
    stats = [(file.name, file.stat()) for file in own if file.name.startswith(instance_folder.MSDB)]
    listed = tuple((name, found.st_ino, found.st_size, found.st_mtime_ns) for name, found in stats)
    with_logs = [(file, file.with_name(f"{file.name}-wal")) for file in _files_elsewhere(path, listed)]
    return own + [file for pair in with_logs for file in pair if file.exists()]


@functools.lru_cache(maxsize=_INSTANCES_MAX)
def _files_elsewhere(path: Path, _listed: object) -> list[Path]:
    """Where databases lie stands in msdb: it is asked again when that has changed."""
    return instance_folder.files_elsewhere(path)
