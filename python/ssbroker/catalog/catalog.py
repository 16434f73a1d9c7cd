"""The catalog of one instance: databases, services, routing tables, addresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from ssbroker import _core, ddl, schemas
from ssbroker._arguments import string_list, utc_datetime
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, append_extra_columns, as_table, extra_columns
from ssbroker.catalog import instance_folder, load, save, sql_server
from ssbroker.catalog.fingerprint import fingerprint, from_ipc, to_ipc
from ssbroker.catalog.instance_folder import Contents
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, SchemaError

_PICKLE_FORMAT: Final = 1


class Catalog:
    """The databases, services and routing tables of one instance, checked and immutable.

    Two catalogs are equal when they say the same: the order of rows does not matter, nor do columns beyond the schemas.
    A catalog pickles. It has no hash; `fingerprint` serves as a key.

    Args:
        routes: The rows of `sys.routes` (`schemas.ROUTES`). Without a column `database` they belong to the one user database.
        databases: The rows of `sys.databases` (`schemas.DATABASES`). Databases that only `routes` names are there too, and `msdb`.
        services: The rows of `sys.services` (`schemas.SERVICES`); left out, nothing is hosted.
        addresses: Under which addresses other instances reach this one.
        message_forwarding: Whether the instance passes on what is not for it.
        pending_requests: The services for which routing information has been requested and is awaited.

    Raises:
        SchemaError: A table is no Arrow object, or a column is missing or has a type that cannot be read.
        InputError: A value is not what was expected; the subclasses say more.
        OptionError: `addresses`, `message_forwarding` or `pending_requests` has the wrong type.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> routes = {"name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders:4022"], "mirror_address": [None]}
        >>> catalog = Catalog(pa.table(routes), addresses=["tcp://me"])
        >>> catalog
        Catalog(routes=1, databases=2, services=0, addresses=1, message_forwarding=False, pending_requests=0)
        >>> catalog.addresses, catalog.user_database
        (('TCP://me:4022',), 'user')
    """

    __slots__ = ("_counts", "_fingerprint", "_further", "_has_mirrors", "_native")

    def __init__(
        self,
        routes: ArrowStreamExportable | ArrowArrayExportable,
        databases: ArrowStreamExportable | ArrowArrayExportable | None = None,
        services: ArrowStreamExportable | ArrowArrayExportable | None = None,
        *,
        addresses: Sequence[str] = (),
        message_forwarding: bool = False,
        pending_requests: Sequence[str] = (),
    ) -> None:
        tables = (
            as_table(routes, name="routes"),
            None if databases is None else as_table(databases, name="databases"),
            None if services is None else as_table(services, name="services"),
        )
        if not isinstance(message_forwarding, bool):
            raise OptionError(f"message_forwarding: expected True or False, got {message_forwarding!r}")
        self._native: Final = _core.Catalog(
            *tables,
            addresses=string_list(addresses, name="addresses"),
            message_forwarding=message_forwarding,
            pending_requests=string_list(pending_requests, name="pending_requests"),
        )
        self._further: Final = [
            None if table is None else extra_columns(table, schema)
            for table, schema in zip(tables, (schemas.ROUTES, schemas.DATABASES, schemas.SERVICES), strict=True)
        ]
        self._counts: Final = [0 if table is None else table.num_rows for table in tables]
        self._has_mirrors: Final = any(
            column.null_count < len(column)
            for name, column in zip(tables[0].column_names, tables[0].columns, strict=True)
            if name == "mirror_address"
        )
        self._fingerprint: str | None = None

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
        source = load.load(Path(path), now=utc_datetime(now))
        try:
            return cls._of_contents(source)
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
        return cls._of_contents(instance_folder.contents_of(Path(folder)))

    @classmethod
    def from_sql_server(cls, connection: sql_server.DbApiConnection, *, addresses: Sequence[str] = ()) -> Self:
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
        further = string_list(addresses, name="addresses")
        return cls._of_contents(replace(source, addresses=(*source.addresses, *further)))

    @classmethod
    def _of_contents(cls, contents: Contents) -> Self:
        """Creates a catalog from what was read."""
        return cls(
            contents.routes,
            contents.databases,
            contents.services,
            addresses=contents.addresses,
            message_forwarding=contents.message_forwarding,
            pending_requests=contents.pending_requests,
        )

    @property
    def routes(self) -> pa.Table:
        """The routes in the schema of `sys.routes`, then the further columns of the input."""
        return self._table(self._native.routes(), 0)

    @property
    def databases(self) -> pa.Table:
        """The databases in the schema of `sys.databases`: those given, those that only routes name, and `msdb`."""
        return self._table(self._native.databases(), 1)

    @property
    def services(self) -> pa.Table:
        """The services in the schema of `sys.services`, then the further columns of the input."""
        return self._table(self._native.services(), 2)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The instance's own addresses in their normal form, `TCP://host:port`."""
        return tuple(self._native.addresses)

    @property
    def message_forwarding(self) -> bool:
        """Whether the instance passes on what is not for it."""
        return self._native.message_forwarding

    @property
    def pending_requests(self) -> tuple[str, ...]:
        """The services for which routing information has been requested and is awaited."""
        return tuple(self._native.pending_requests)

    @property
    def user_database(self) -> str | None:
        """The one database beside `msdb`; None where there are several, or none."""
        return self._native.user_database

    @property
    def has_mirrors(self) -> bool:
        """Whether a route has a mirror address: if none has, no decision has."""
        return self._has_mirrors

    @property
    def has_services(self) -> bool:
        """Whether a database has a service: if none has, nothing is delivered here."""
        return self._counts[2] > 0

    @property
    def native(self) -> _core.Catalog:
        """The catalog as the native router takes it."""
        return self._native

    @property
    def fingerprint(self) -> str:
        """A digest of what the catalog says: equal catalogs have the same, on every machine."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(
                self.routes,
                self.databases,
                self.services,
                addresses=self.addresses,
                message_forwarding=self.message_forwarding,
                pending_requests=self.pending_requests,
            )
        return self._fingerprint

    def to_ddl(self, *, now: datetime | None = None) -> str:
        """The catalog as a script that DBAs can read and run; columns beyond the schemas are left out.

        Args:
            now: The moment from which LIFETIME counts, None for the current time. Without a zone it is UTC.

        Returns:
            The script.

        Raises:
            DdlError: CREATE ROUTE would refuse a route; it is named, with Service Broker's error number.

        Examples:
            >>> import pyarrow as pa
            >>> from ssbroker import Catalog, schemas
            >>> print(Catalog(schemas.ROUTES.empty_table()).to_ddl().count("CREATE ROUTE"))
            0
        """
        return ddl.write(self, now=utc_datetime(now))

    def save(self, path: str | os.PathLike[str], *, now: datetime | None = None) -> None:
        """Writes the catalog, or changes nothing.

        Args:
            path: A name that ends in `.sql` for a script, else a folder of Parquet files and `instance.json`. What a catalog was
                saved to before is replaced.
            now: The moment from which LIFETIME of a script counts, None for the current time. Without a zone it is UTC.

        Raises:
            OutputError: It could not be written, or the folder holds other files; what stood there still does.
            DdlError: CREATE ROUTE would refuse a route.

        Examples:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from ssbroker import Catalog, schemas
            >>> catalog = Catalog(schemas.ROUTES.empty_table(), message_forwarding=True)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     catalog.save(Path(folder, "net"))
            ...     Catalog.load(Path(folder, "net")) == catalog
            True
        """
        target = Path(path)
        if target.suffix.lower() == ".sql":
            save.save_text(target, self.to_ddl(now=now))
            return
        tables = {"routes": self.routes, "databases": self.databases, "services": self.services}
        instance = {
            "addresses": self.addresses,
            "message_forwarding": self.message_forwarding,
            "pending_requests": self.pending_requests,
        }
        save.save_folder(target, tables, instance)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalog):
            return NotImplemented
        return self is other or self.fingerprint == other.fingerprint

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        routes, _, services = self._counts
        return (
            f"Catalog(routes={routes}, databases={self._native.databases().num_rows}, "
            f"services={services}, addresses={len(self.addresses)}, "
            f"message_forwarding={self.message_forwarding}, pending_requests={len(self.pending_requests)})"
        )

    def __reduce__(self) -> tuple[Callable[..., Catalog], tuple[Any, ...]]:
        tables = [to_ipc(table) for table in (self.routes, self.databases, self.services)]
        return _restore, (_PICKLE_FORMAT, *tables, self.addresses, self.message_forwarding, self.pending_requests)

    def _table(self, batch: pa.RecordBatch, number: int) -> pa.Table:
        """The rows that the native catalog holds, with the further columns of the input."""
        return append_extra_columns(pa.Table.from_batches([batch]), self._further[number])


def _restore(pickle_format: int, *state: Any) -> Catalog:
    if pickle_format != _PICKLE_FORMAT:
        raise MalformedDataError(
            f"the catalog was pickled by another version of ssbroker: its format is {pickle_format!r}, "
            f"this version reads {_PICKLE_FORMAT}",
            value=repr(pickle_format),
            expected=str(_PICKLE_FORMAT),
        )
    routes, databases, services, addresses, message_forwarding, pending_requests = state
    return Catalog(
        from_ipc(routes),
        from_ipc(databases),
        from_ipc(services),
        addresses=addresses,
        message_forwarding=message_forwarding,
        pending_requests=pending_requests,
    )


def files_of(path: Path) -> list[Path]:
    """The files that a catalog is loaded from: what else is written beside them, as a log, changes nothing.

    Args:
        path: As for `Catalog.load`.

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
    return instance_folder.files_of(path) if instance_folder.is_instance(path) else load.files_of(path)
