"""The catalog of one instance: databases, services, routing tables and addresses."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from ssbroker import _core, schemas
from ssbroker import _notebook as notebook
from ssbroker._arguments import boolean, path_argument, string_list, utc_datetime
from ssbroker._arrow import Rows, append_extra_columns, as_table, extra_columns, from_ipc, missing_column_error, to_ipc
from ssbroker._text import printable, quantity, restore_spaces
from ssbroker.catalog import sql_server
from ssbroker.catalog.details import NO_DETAILS, InstanceDetails, details_of_script
from ssbroker.catalog.fingerprint import fingerprint
from ssbroker.catalog.instance_folder import (
    Contents,
    instance_files,
    is_instance_folder,
    read_contents,
    served_addresses,
)
from ssbroker.exceptions import (
    DdlWarning,
    DuplicateError,
    InputError,
    MalformedDataError,
    OptionError,
    SchemaError,
    UnknownDatabaseError,
)

# Modules that read and write scripts and files are imported inside functions, because Spark's workers do neither.
if TYPE_CHECKING:
    from ssbroker import ddl
    from ssbroker.catalog.load import CatalogSource

_PICKLE_FORMAT: Final = 1
_SHOWN_OF_ROUTES: Final = (
    "database",
    "name",
    "remote_service_name",
    "broker_instance",
    "lifetime",
    "address",
    "mirror_address",
)


class Catalog:
    """Databases, services and routing tables of one instance.

    A catalog is validated and immutable. Catalogs are equal if their content is equal; the order of rows and extra
    columns are ignored. They can be pickled. They are not hashable; use `fingerprint` as a key.

    Args:
        routes: Rows of `sys.routes` (`schemas.ROUTES`) as a table, DataFrame or list of dicts. Without a column
            `database`, the routes belong to the only user database, or to a new database `user` if there is none.
        databases: Rows of `sys.databases` (`schemas.DATABASES`). `msdb`, and databases that only `routes` names, are added.
        services: Rows of `sys.services` (`schemas.SERVICES`); None means no services.
        addresses: Addresses at which other instances reach this one, such as `TCP://stock:4022`.
        message_forwarding: Whether the instance forwards messages that are not addressed to it.
        pending_requests: Services for which a request for routing information is pending.

    Raises:
        SchemaError: A table is not an Arrow object, or a column is missing or has the wrong type.
        InputError: A value is null, invalid, unknown or not unique; the subclass, such as `InvalidAddressError`, determines which.
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

    __slots__ = ("_counts", "_details", "_extra_columns", "_fingerprint", "_has_mirrors", "_native", "_script")

    def __init__(
        self,
        routes: Rows,
        databases: Rows | None = None,
        services: Rows | None = None,
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
        try:
            self._native: Final = _core.Catalog(
                *tables,
                addresses=string_list(addresses, name="addresses"),
                message_forwarding=message_forwarding,
                pending_requests=string_list(pending_requests, name="pending_requests"),
            )
        except SchemaError as error:
            raise _with_columns(error, tables) from None
        _refuse_other_names(tables[0], "routes")
        if tables[1] is not None:
            _refuse_other_names(tables[1], "databases")
        names: list[Any] = self._native.databases()["name"].to_pylist()
        given = 0 if tables[1] is None else tables[1].num_rows
        _refuse_other_case(tables[0], listed=(*names[:given], "msdb"), added=names[given:])
        self._extra_columns: Final = [
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
        self._script: ddl.ScriptTables | None = None
        self._details: InstanceDetails | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        now: datetime | None = None,
        variables: Mapping[str, str] | None = None,
        encoding: str | None = None,
        lenient: bool = False,
    ) -> Self:
        """Loads a catalog from files.

        Args:
            path: One of: a T-SQL script (`.sql`); a folder of scripts, including its subfolders, in any order; a folder with the table `routes`
                and optionally the tables `databases` and `services` and the file `instance.json`; a file with the routes; or an
                instance folder, as for `from_instance`. Tables are Parquet, CSV, JSON (an array, or an object per line) or Arrow IPC.
            now: The time from which LIFETIME in scripts counts; None for the current time. A datetime must have a time
                zone.
            variables: Values of the sqlcmd variables in scripts, such as `$(DatabaseName)`.
            encoding: Encoding of scripts without a byte order mark, such as `cp1252`; None means UTF-8.
            lenient: Whether to skip statements that SQL Server would reject, with a warning. Also accepts scripts without
                Service Broker statements, database names that look misspelled, and changes to an endpoint that no script
                creates.

        Returns:
            The catalog.

        Raises:
            InputError: The path does not exist, or a value is invalid; the error names file and row.
            DdlError: A statement of a script is invalid; the error names file and line.
            SchemaError: A column is missing or has the wrong type.
            OptionError: `now`, `variables`, `encoding` or `lenient` is invalid.

        Warns:
            DdlWarning: Statements of a script were skipped, or could not be executed.

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
        source_path = path_argument(path, name="path")
        boolean(lenient, name="lenient")
        if is_instance_folder(source_path):
            return cls.from_instance(source_path)
        from ssbroker import ddl  # noqa: PLC0415 - not in workers
        from ssbroker.catalog.load import load_source  # noqa: PLC0415 - not in workers

        options = script_options(variables=variables, encoding=encoding, lenient=lenient)
        source = load_source(source_path, now=utc_datetime(now), options=options)
        if source.script is not None:
            for line in ddl.summary(source.script.notes, about="routing"):
                warnings.warn(line, DdlWarning, stacklevel=2)
        return cls.from_source(source)

    @classmethod
    def from_source(cls, source: CatalogSource) -> Self:
        """Creates a catalog from content that was read from files.

        Args:
            source: The content that was read from the files.

        Returns:
            The catalog.

        Raises:
            InputError: A value is invalid; the error names file and row.
            SchemaError: A column is missing or has the wrong type.
        """
        try:
            catalog = cls._from_contents(source, details=NO_DETAILS if source.script is None else None)
        except (InputError, SchemaError) as error:
            raise source.add_path(error) from error.__cause__
        catalog._script = source.script  # noqa: SLF001 - an object of this class
        return catalog

    @classmethod
    def from_instance(cls, folder: str | os.PathLike[str]) -> Self:
        """Reads the current catalog of an ssbroker instance, like `Instance.catalog`; other processes can have the instance open.

        The catalog contains the addresses with which the instance was last served, or the addresses of its endpoint if
        it has never been served.

        Args:
            folder: The instance folder.

        Returns:
            The catalog; it does not follow later changes to the instance.

        Raises:
            StorageError: The folder contains no instance, or its files cannot be read.
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
        path = path_argument(folder, name="folder")
        contents = read_contents(path)
        return cls._from_contents(contents, details=contents.details, addresses=served_addresses(path))

    @classmethod
    def from_sql_server(cls, connection: sql_server.DbApiConnection, *, addresses: Sequence[str] = ()) -> Self:
        """Reads the catalog of a SQL Server instance: its routes, services, databases and endpoint.

        Args:
            connection: Open connection of any DB-API 2.0 driver; its login must be able to read the catalog views of every database.
            addresses: Addresses at which other instances reach the server, in addition to the addresses of its
                endpoint.

        Returns:
            The catalog, without the system services that every database has.

        Raises:
            InputError: The server returned an invalid value, such as text that is not a GUID.

        Examples:
            With the driver `mssql-python`: `Catalog.from_sql_server(mssql_python.connect("Server=sql-01;..."))`.
        """
        source = sql_server.read_tables(connection)
        return cls._from_contents(source, details=NO_DETAILS).with_addresses(addresses)

    @classmethod
    def _from_contents(
        cls, contents: Contents, *, details: InstanceDetails | None, addresses: Sequence[str] = ()
    ) -> Self:
        """Returns the catalog of the contents; `addresses`, if any, replace the addresses in the contents.

        If `details` is None, `Catalog.details` derives them from the script.
        """
        return cls(
            contents.routes,
            contents.databases,
            contents.services,
            addresses=addresses or contents.addresses,
            message_forwarding=contents.message_forwarding,
            pending_requests=contents.pending_requests,
        ).with_details(details)

    @property
    def routes(self) -> pa.Table:
        """The routes: the columns of `schemas.ROUTES`, followed by the extra columns of the input."""
        return self._table(self._native.routes(), 0)

    @property
    def databases(self) -> pa.Table:
        """The databases, with the columns of `schemas.DATABASES`: the databases of the input, databases that only routes name, and `msdb`."""
        return self._table(self._native.databases(), 1)

    @property
    def services(self) -> pa.Table:
        """The services: the columns of `schemas.SERVICES`, followed by the extra columns of the input."""
        return self._table(self._native.services(), 2)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the instance in normal form, `TCP://host:port`."""
        return tuple(self._native.addresses)

    @property
    def message_forwarding(self) -> bool:
        """Whether the instance forwards messages that are not addressed to it."""
        return self._native.message_forwarding

    @property
    def pending_requests(self) -> tuple[str, ...]:
        """Services for which a request for routing information is pending."""
        return tuple(self._native.pending_requests)

    @property
    def user_database(self) -> str | None:
        """The only database besides `msdb`; None if there are none or several."""
        return self._native.user_database

    @property
    def has_mirrors(self) -> bool:
        """Whether any route has a mirror address; if not, no decision has a mirror address."""
        return self._has_mirrors

    @property
    def has_services(self) -> bool:
        """Whether any database has a service; if not, no conversation is delivered locally."""
        return self._counts[2] > 0

    def position(self, kind: ddl.ObjectKind, *, database: str = "", name: str = "") -> ddl.ScriptPosition | None:
        r"""Returns the position of the last statement of the script that created or altered an object.

        Positions are not part of the content of a catalog: they are neither compared nor pickled.

        Args:
            kind: `database`, `route`, `queue`, `service`, `binding` or `endpoint`.
            database: Name of the database; empty for an endpoint.
            name: Name of the object; empty for a database. For a queue, its schema and name, such as `dbo.Orders`, case-insensitively.

        Returns:
            File and line; None if the catalog was not loaded from scripts, or no statement created the object.

        Examples:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from ssbroker import Catalog
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     script = Path(folder, "catalog.sql")
            ...     _ = script.write_text("USE msdb;\nCREATE ROUTE Orders WITH ADDRESS = N'TCP://orders:4022';")
            ...     Catalog.load(script).position("route", database="msdb", name="Orders").line
            2
        """
        if self._script is None:
            return None
        return self._script.positions.get((kind, database, name.casefold() if kind == "queue" else name))

    @property
    def notes(self) -> tuple[ddl.ScriptNote, ...]:
        """Remarks about the scripts from which the catalog was loaded, such as skipped statements and ignored clauses; otherwise empty."""
        return () if self._script is None else self._script.notes

    @property
    def script(self) -> ddl.ScriptTables | None:
        """The tables that the scripts produced; None if the catalog was not loaded from scripts. `==` and pickle ignore them."""
        return self._script

    @property
    def details(self) -> InstanceDetails:
        """Properties of services, queues and the endpoint that only the diagnostics use; `==` and pickle ignore them."""
        if self._details is not None:
            return self._details
        model = None if self._script is None else self._script.model
        if model is None:
            return InstanceDetails(specified_addresses=frozenset(self.addresses))
        return details_of_script(model)

    def with_details(self, details: InstanceDetails | None) -> Self:
        """Returns a copy of the catalog with different details.

        Args:
            details: The details; None restores the details of the script, if there is one.

        Returns:
            The copy.

        Examples:
            >>> from ssbroker import Catalog, schemas
            >>> from ssbroker.catalog.details import EndpointDetails, InstanceDetails
            >>> details = InstanceDetails(endpoint=EndpointDetails(name="Broker", state="STOPPED"))
            >>> Catalog(schemas.ROUTES.empty_table()).with_details(details).details.endpoint.state
            'STOPPED'
        """
        copied = object.__new__(type(self))
        for slot in Catalog.__slots__:
            object.__setattr__(copied, slot, getattr(self, slot))
        object.__setattr__(copied, "_details", details)
        return copied

    def with_addresses(self, addresses: Sequence[str]) -> Self:
        """Returns a copy of the catalog with additional addresses of the instance.

        Args:
            addresses: The addresses to add, at which other instances reach this one, such as `TCP://stock:4022`.

        Returns:
            The copy.

        Raises:
            InvalidAddressError: An address is not `TCP://host[:port]`.
            OptionError: `addresses` is not a sequence of strings.

        Examples:
            >>> from ssbroker import Catalog, schemas
            >>> Catalog(schemas.ROUTES.empty_table()).with_addresses(["TCP://stock"]).addresses
            ('TCP://stock:4022',)
        """
        more = string_list(addresses, name="addresses")
        if not more:
            return self
        copied = self.replace(addresses=tuple(dict.fromkeys([*self.addresses, *more])))
        copied._script = self._script  # noqa: SLF001 - an object of this class
        specified = self.details.specified_addresses.union(map(_core.normalize_address, more))
        return copied.with_details(replace(self.details, specified_addresses=specified))

    def replace(
        self,
        *,
        routes: Rows | None = None,
        databases: Rows | None = None,
        services: Rows | None = None,
        addresses: Sequence[str] | None = None,
        message_forwarding: bool | None = None,
        pending_requests: Sequence[str] | None = None,
    ) -> Self:
        """Returns a copy of the catalog with new values for some arguments of `Catalog`; None keeps the current value.

        The copy has the same `details`; if `addresses` is passed, all addresses count as specified explicitly. The copy
        has no `script`, because its tables may differ from those of the script.

        Args:
            routes: The routes, as in `Catalog`.
            databases: The databases, as in `Catalog`.
            services: The services, as in `Catalog`.
            addresses: All addresses of the instance, such as `TCP://stock:4022`.
            message_forwarding: Whether the instance forwards messages.
            pending_requests: Services for which a request for routing information is pending.

        Returns:
            The copy.

        Raises:
            SchemaError: A table lacks a column, or a column has the wrong type.
            InputError: A value is null, invalid, unknown or not unique, as for `Catalog`.
            OptionError: `addresses`, `message_forwarding` or `pending_requests` has the wrong type.

        Examples:
            >>> from ssbroker import Catalog
            >>> catalog = Catalog([{"name": "Orders", "remote_service_name": "//Orders", "address": "TCP://old"}])
            >>> moved = catalog.replace(routes=[{"name": "Orders", "remote_service_name": "//Orders", "address": "TCP://new"}])
            >>> moved.routes["address"].to_pylist(), moved.databases == catalog.databases
            (['TCP://new'], True)
        """
        copied = type(self)(
            self.routes if routes is None else routes,
            self.databases if databases is None else databases,
            self.services if services is None else services,
            addresses=self.addresses if addresses is None else addresses,
            message_forwarding=self.message_forwarding if message_forwarding is None else message_forwarding,
            pending_requests=self.pending_requests if pending_requests is None else pending_requests,
        )
        if addresses is None:
            return copied.with_details(self.details)
        return copied.with_details(replace(self.details, specified_addresses=frozenset(copied.addresses)))

    @property
    def native(self) -> _core.Catalog:
        """The catalog of the native module."""
        return self._native

    @property
    def fingerprint(self) -> str:
        """A digest of the content; equal catalogs have equal fingerprints on every machine."""
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
        """Returns the catalog as a T-SQL script; extra columns are omitted.

        Args:
            now: The time from which LIFETIME counts; None for the current time. A datetime must have a time zone.

        Returns:
            The script.

        Raises:
            DdlError: A route is not valid in CREATE ROUTE; the error names the route and has Service Broker's error number.
            OptionError: `now` is not a datetime with a time zone.

        Examples:
            >>> from ssbroker import Catalog
            >>> script = Catalog([{"name": "Orders", "remote_service_name": "//Orders", "address": "TCP://orders"}]).to_ddl()
            >>> start = script.index("CREATE ROUTE [Orders]")
            >>> print(script[start : script.index(";", start) + 1])
            CREATE ROUTE [Orders] WITH
                SERVICE_NAME = N'//Orders',
                ADDRESS = N'TCP://orders';
        """
        from ssbroker import ddl  # noqa: PLC0415 - not in workers

        return ddl.write(self, now=utc_datetime(now))

    def save(self, path: str | os.PathLike[str], *, now: datetime | None = None) -> None:
        """Saves the catalog to files; on an error, existing files are unchanged.

        Args:
            path: A name that ends in `.sql` for a T-SQL script, else a folder for Parquet files and `instance.json`. A catalog that was
                saved there is replaced.
            now: The time from which LIFETIME in a script counts; None for the current time. A datetime must have a time
                zone.

        Raises:
            OutputError: The files could not be written, or the folder contains other files.
            DdlError: A route is not valid in CREATE ROUTE.
            OptionError: `path` names a script, and `now` is not a datetime with a time zone.

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
        from ssbroker.catalog.save import save_folder, save_text  # noqa: PLC0415 - not in workers

        target = Path(path)
        if target.suffix.lower() == ".sql":
            save_text(target, self.to_ddl(now=now))
            return
        tables = {"routes": self.routes, "databases": self.databases, "services": self.services}
        instance = {
            "addresses": self.addresses,
            "message_forwarding": self.message_forwarding,
            "pending_requests": self.pending_requests,
        }
        save_folder(target, tables, instance)

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

    def _repr_html_(self) -> str:
        routes, databases, services = self.routes, self.databases, self.services
        text = f"{quantity(routes.num_rows, 'route')}, {quantity(databases.num_rows, 'database')}, {quantity(services.num_rows, 'service')}"
        addresses = ", ".join(self.addresses) or "no addresses"
        forwarding = "forwards messages" if self.message_forwarding else "does not forward messages"
        return notebook.section(
            f"Catalog: {text}; {addresses}; {forwarding}",
            notebook.collapsible("Routes", notebook.table(routes, columns=_SHOWN_OF_ROUTES), is_open=True),
            notebook.collapsible("Databases", notebook.table(databases)),
            notebook.collapsible("Services", notebook.table(services)),
        )

    def __reduce__(self) -> tuple[Callable[..., Catalog], tuple[Any, ...]]:
        tables = [to_ipc(table) for table in (self.routes, self.databases, self.services)]
        return _restore, (_PICKLE_FORMAT, *tables, self.addresses, self.message_forwarding, self.pending_requests)

    def _table(self, batch: pa.RecordBatch, number: int) -> pa.Table:
        return append_extra_columns(pa.Table.from_batches([batch]), self._extra_columns[number])


def script_options(
    *, variables: Mapping[str, str] | None, encoding: str | None, lenient: bool, collects: bool = False
) -> ddl.ScriptOptions:
    """Returns the options for reading scripts; raises `OptionError` if a variable, the encoding or `lenient` is invalid."""
    from ssbroker import ddl  # noqa: PLC0415 - not in workers

    return ddl.ScriptOptions(
        variables=ddl.check_variables(variables),
        encoding=None if encoding is None else ddl.check_encoding(encoding),
        lenient=boolean(lenient, name="lenient"),
        collects=collects,
    )


def load_instances(path: Path, *, name: str, now: datetime, options: ddl.ScriptOptions) -> dict[str, Catalog]:
    """Loads the catalog of an instance, or the catalogs of all servers to which a script connects with `:connect`, by name.

    Args:
        path: As for `Catalog.load`.
        name: The name of the instance, unless a script names it with `:connect`.
        now: The time from which LIFETIME in scripts counts.
        options: How to read scripts. This function issues no warnings; see `Catalog.notes`.

    Returns:
        The catalogs.
    """
    if is_instance_folder(path):
        return {name: Catalog.from_instance(path)}
    from ssbroker.catalog.load import load_sources  # noqa: PLC0415 - not in workers

    sources = load_sources(path, now=now, options=options)
    return {server or name: Catalog.from_source(source) for server, source in sources.items()}


def check_not_loaded(instance: str, loaded: Container[str], path: Path) -> None:
    """Raises DuplicateError if an instance of the same name has already been loaded."""
    if instance in loaded:
        raise DuplicateError(
            f"{path}: another file or folder describes the instance {instance!r} too; rename one of them",
            value=instance,
        )


def _with_columns(error: SchemaError, tables: Sequence[pa.Table | None]) -> SchemaError:
    """Returns an error about a missing column that also lists the columns of the table; returns other errors unchanged."""
    by_name = dict(zip(("routes", "databases", "services"), tables, strict=True))
    name = (error.column or "").partition(".")[0]
    columns = getattr(schemas, name.upper(), None)
    return error if columns is None else missing_column_error(error, by_name[name], expected=columns.names)


_OTHER_NAMES: Final = {
    "routes": {
        "remote_service_name": r"(remote|to|target)?_?service_?(name)?",
        "broker_instance": r"((service|remote)_?)?broker_?(id|guid|instance)?",
        "lifetime": r"expir(es|y|ation)(_?at)?",
        "mirror_address": r"mirror",
    },
    "databases": {
        "service_broker_guid": r"(service_?)?broker_?(id|guid|instance)|guid",
        "is_broker_enabled": r"(is_?)?(broker_?)?enabled",
    },
}
"""Patterns of names that other sources use for optional columns of catalog tables."""


def _refuse_other_names(table: pa.Table, table_name: str) -> None:
    """Rejects a table with a column that is similar to a missing optional column: ignoring the similar column would silently change the routing."""
    for column, pattern in _OTHER_NAMES[table_name].items():
        if column in table.column_names:
            continue
        for name in table.column_names:
            if re.fullmatch(pattern, name.strip(), re.IGNORECASE):
                raise SchemaError(
                    restore_spaces(
                        f'{table_name}.{column}: the column is missing; if "{printable(name)}" is meant, rename it to "{column}"; otherwise remove "{printable(name)}"'
                    ),
                    column=f"{table_name}.{column}",
                )


def _refuse_other_case(routes: pa.Table, *, listed: Sequence[str], added: Sequence[str]) -> None:
    """Rejects routes whose database name differs from a listed name only in case or white space: these routes would belong to a separate database."""
    by_normal_form = {name.strip().casefold(): name for name in listed}
    for name in added:
        similar = by_normal_form.get(name.strip().casefold(), name)
        if name != similar:
            row = routes["database"].to_pylist().index(name)
            raise UnknownDatabaseError(
                restore_spaces(
                    f"routes.database, row {row}: '{printable(name)}' is not a database of the catalog; "
                    f"expected '{printable(similar)}'"
                ),
                column="routes.database",
                row=row,
                value=name,
                expected=similar,
            )


def _restore(pickle_format: int, *state: Any) -> Catalog:
    if pickle_format != _PICKLE_FORMAT:
        raise MalformedDataError(
            f"the catalog was pickled by an incompatible version of ssbroker: its format is {pickle_format!r}, "
            f"but this version reads format {_PICKLE_FORMAT}; create the catalog again, or use the version that pickled it",
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


def catalog_files(path: Path) -> list[Path]:
    """Returns the files that `Catalog.load` reads; changes to other files in a folder do not change the catalog."""
    from ssbroker.catalog.load import source_files  # noqa: PLC0415 - not in workers

    return instance_files(path) if is_instance_folder(path) else source_files(path)
