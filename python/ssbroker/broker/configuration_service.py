"""A ready-made configuration service: answers route requests from a directory of services."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from ssbroker._arguments import guid_bytes, integer_argument
from ssbroker._text import utf16_prefix
from ssbroker._well_known import (
    CONFIGURATION_NOTICE,
    CONFIGURATION_SERVICE,
    END_DIALOG,
    ERROR,
    LIFETIME_SECONDS_MAX,
    MISSING_ROUTE,
)
from ssbroker.broker import object_ddl
from ssbroker.broker.context import log_failure
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.dynamic_routing import MissingRoute
from ssbroker.broker.object_names import bracketed_queue_name, queue_key
from ssbroker.catalog.table_files import FORMATS, read_table
from ssbroker.ddl.statements import RouteClauses
from ssbroker.exceptions import BrokerError, InputError, LockTimeoutError
from ssbroker.protocol.broker_errors import RECEIVE_DISABLED
from ssbroker.protocol.settings import DESCRIPTION_MAX
from ssbroker.store import route_requests
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

_COLUMNS: Final = {
    "service_name": pa.string(),
    "broker_instance": pa.string(),
    "address": pa.string(),
    "mirror_address": pa.string(),
    "lifetime": pa.int32(),
}
_REQUIRED: Final = ("service_name", "address")


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """The location of a service.

    Attributes:
        service_name: The name of the service.
        address: `TCP://host:port`, or `LOCAL` for a service of this instance.
        broker_instance: The broker id of the database that has the service; None matches any.
        mirror_address: The address of the mirror, for a mirrored database.
        lifetime: Seconds for which a route to the service is valid; None means the default of the configuration service.
    """

    service_name: str
    address: str
    broker_instance: uuid.UUID | None = None
    mirror_address: str | None = None
    lifetime: int | None = None


class Directory(Protocol):
    """Finds the locations of services."""

    def find(self, service_name: str) -> Sequence[DirectoryEntry]:
        """Returns the locations of a service."""


class FileDirectory:
    r"""A directory in a CSV, JSON, Parquet or Arrow file, which is read again for each request.

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
            raise InputError(
                f"{path}: the file extension is not supported; expected one of {', '.join(FORMATS)}", value=str(path)
            )
        self._path: Final = path

    def find(self, service_name: str) -> Sequence[DirectoryEntry]:
        """Returns the locations of a service."""
        schema = pa.schema([pa.field(name, kind) for name, kind in _COLUMNS.items()])
        table = read_table(self._path, schema, name="directory")
        _check_columns(table.column_names, expected=_REQUIRED, where=str(self._path))
        row_numbers = [number for number, name in enumerate(table["service_name"].to_pylist()) if name == service_name]
        rows = table.select([name for name in _COLUMNS if name in table.column_names]).take(
            pa.array(row_numbers, pa.int64())
        )
        return [
            _entry(row, where=f"{self._path}, row {number}")
            for number, row in zip(row_numbers, rows.to_pylist(), strict=True)
        ]


class TableDirectory:
    """A directory in a table of a database, which an application can change like its other tables."""

    def __init__(self, database: Database, table: str) -> None:
        self._database: Final = database
        self._table: Final = table

    def find(self, service_name: str) -> Sequence[DirectoryEntry]:
        """Returns the locations of a service."""
        table = f"the table {self._table!r} in the database {self._database.name!r}"
        with database_context(self._database).file.read() as connection:
            found = route_requests.directory_columns(connection, self._table)
            if not found:
                raise InputError(f"{table} does not exist")
            _check_columns(found, expected=_COLUMNS, where=table)
            rows = route_requests.directory_rows(connection, self._table, service_name)
        where = f"{table}, service {service_name!r}"
        return [_entry(dict(zip(_COLUMNS, row, strict=True)), where=where) for row in rows]


def _check_columns(given: Collection[str], *, expected: Iterable[str], where: str) -> None:
    """Raises an error if columns are missing, and names all of them."""
    missing = [name for name in expected if name not in given]
    if missing:
        names, verb = ", ".join(map(repr, missing)), "column is" if len(missing) == 1 else "columns are"
        raise InputError(f"{where}: required {verb} missing: {names}", column=missing[0])


def _entry(row: dict[str, Any], *, where: str) -> DirectoryEntry:
    guid, lifetime = row.get("broker_instance"), row.get("lifetime")
    address, mirror = (_address(row, name, where=where) for name in ("address", "mirror_address"))
    if address is None:
        raise InputError(f"{where}: address: expected an address, got None", column="address")
    if lifetime is not None:
        lifetime = integer_argument(lifetime, name=f"{where}: lifetime", minimum=1, maximum=LIFETIME_SECONDS_MAX)
    return DirectoryEntry(
        row["service_name"],
        address,
        None if guid is None else uuid.UUID(bytes=guid_bytes(guid, name=f"{where}: broker_instance")),
        mirror,
        lifetime,
    )


def _address(row: dict[str, Any], name: str, *, where: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: {name}: expected an address, got {value!r:.80}", column=name)
    return value


LIFETIME: Final = 600
"""Default lifetime of a route in seconds, if the directory does not specify one."""
UNKNOWN_SERVICE: Final = 1
"""Error code if the directory does not contain the service."""
UNUSABLE_ENTRY: Final = 2
"""Error code if no route can be created from the directory entry."""
UNSUPPORTED_REQUEST: Final = 3
"""Error code for a message that is not a route request."""
REQUESTS_MAX: Final = 100
_NAME_MAX: Final = 100
_PREFIX: Final = "Configured"


class ConfigurationService:
    r"""Answers route requests: creates routes to the requested services from a directory, and ends the dialogs of the requests.

    An object of this class is an activated function, so you can also pass it to `Database.activate` or `Instance.register_procedure`;
    `install` does the complete setup.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ssbroker import Instance
        >>> from ssbroker.broker.configuration_service import ConfigurationService, FileDirectory
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(Path(folder, "shop"), name="shop", background=False) as instance:
        ...     directory = Path(folder, "services.csv")
        ...     _ = directory.write_text("service_name,address\n//Stock,TCP://stock.example\n")
        ...     sales = instance.create_database("Sales")
        ...     sales.create_queue("Replies")
        ...     sales.create_service("//Shop", queue="Replies")
        ...     ConfigurationService(FileDirectory(directory)).install(sales)
        ...     with sales.transaction() as t:
        ...         t.send(t.begin_dialog("//Shop", "//Stock"), b"two chairs")
        ...     _ = instance.run_due()
        ...     instance.view("sys.routes", "Sales")["address"].to_pylist()[-1]
        'TCP://stock.example'
    """

    def __init__(self, directory: Directory, *, lifetime: int = LIFETIME) -> None:
        self._directory: Final = directory
        self._lifetime: Final = integer_argument(lifetime, name="lifetime", minimum=1, maximum=LIFETIME_SECONDS_MAX)

    def install(
        self, database: Database, *, asked_by: Iterable[Database] | None = None, queue: str = "BrokerConfiguration"
    ) -> None:
        """Makes this process answer route requests: creates the queue and the service if missing, and activates the queue.

        Each database of `asked_by` (by default, only `database`) gets a route to the service, unless it has one.
        """
        objects = database_context(database).objects()
        if CONFIGURATION_SERVICE not in objects.services:
            if queue_key(queue) not in objects.queues:
                database.create_queue(queue)
            database.create_service(CONFIGURATION_SERVICE, queue=queue, contracts=[CONFIGURATION_NOTICE])
        for requester in (database,) if asked_by is None else asked_by:
            known = database_context(requester).objects().routes.values()
            if all(route.remote_service_name != CONFIGURATION_SERVICE for route in known):
                requester.create_route("BrokerConfiguration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        database.activate(_queue_of(database_context(database).objects()), self)

    def __call__(self, database: Database) -> None:
        """Answers all waiting requests."""
        while self._answer(database):
            pass

    def _answer(self, database: Database) -> bool:
        """Answers a batch of requests; returns whether there may be more.

        The routes are created before the answers are committed, in the file of the requesting database. After a crash between these two
        commits, the requests are processed again and the routes are renewed, which does no harm.
        """
        objects = database_context(database).objects()
        queue = objects.queues_by_id[objects.services[CONFIGURATION_SERVICE].queue_id]
        with database_context(database).file.read() as connection:
            requests = route_requests.queued_requests(connection, queue.queue_id, limit=REQUESTS_MAX)
        answers = {handle: self._process(database, guid, kind, body) for handle, guid, kind, body in requests}
        name = _queue_of(objects)
        with database.transaction() as t:
            if not answers:
                return t.get_conversation_group(name) is not None
            for handle, error in answers.items():
                try:
                    t.receive(name, conversation_handle=handle)
                    # The description may contain the requested name, which can have any length.
                    t.end_conversation(
                        handle, error=None if error is None else (error[0], utf16_prefix(error[1], DESCRIPTION_MAX))
                    )
                except BrokerError as failure:
                    if failure.number == RECEIVE_DISABLED:
                        raise
                    # The dialog has ended, or another process has already answered.
        return True

    def _process(self, database: Database, requester: bytes, kind: str, body: bytes | None) -> tuple[int, str] | None:
        """Processes a message; returns the error with which to end the dialog, or None."""
        if kind in (END_DIALOG, ERROR):
            return None
        if kind != MISSING_ROUTE:
            return UNSUPPORTED_REQUEST, "this configuration service answers only route requests"
        try:
            return self._create_routes(database, requester, MissingRoute.read(body))
        except LockTimeoutError:
            raise  # activation calls this function again
        except Exception as error:  # noqa: BLE001  # a custom directory may raise anything; other requests must not wait
            return UNUSABLE_ENTRY, log_failure(
                database_context(database),
                "a route request could not be answered; its dialog is ended with an error",
                error,
            )

    def _create_routes(self, database: Database, requester: bytes, request: MissingRoute) -> tuple[int, str] | None:
        entries = [
            entry
            for entry in self._directory.find(request.service_name)
            if request.broker_instance is None or entry.broker_instance in (None, request.broker_instance)
        ]
        if not entries:
            return (
                UNKNOWN_SERVICE,
                f"the directory does not contain the service {request.service_name!r}{_broker_id_suffix(request)}",
            )
        enabled = {
            one: objects.broker.is_broker_enabled
            for one, objects in database_context(database).instance.databases_list.readable()
            if objects.broker.service_broker_guid == requester
        }
        if not enabled:
            return (
                UNUSABLE_ENTRY,
                f"the requesting broker id {uuid.UUID(bytes=requester)} does not belong to this instance",
            )
        complete = [replace(entry, lifetime=entry.lifetime or self._lifetime) for entry in entries]
        # Among a database and its copies, only the enabled database sends requests (I7).
        max(enabled, key=lambda one: enabled[one]).change(
            _renew, entries=complete, now=database_context(database).now()
        )
        return None


def _renew(connection: Connection, objects: Objects, *, entries: Sequence[DirectoryEntry], now: datetime) -> None:
    """Creates a route for each entry, or renews the lifetime of the existing route."""
    for name, entry in {_name(entry): entry for entry in entries}.items():
        guid = None if entry.broker_instance is None else str(entry.broker_instance)
        clauses = RouteClauses(entry.service_name, guid, entry.lifetime, entry.address, entry.mirror_address)
        change = object_ddl.alter_route if name in objects.routes else object_ddl.create_route
        change(connection, objects, name=name, clauses=clauses, now=now)


def _name(entry: DirectoryEntry) -> str:
    """Returns the name of the route for an entry; equal entries always get the same name, so that the route is renewed."""
    identity = repr((entry.service_name, entry.broker_instance, entry.address, entry.mirror_address))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return f"{_PREFIX} {entry.service_name[:_NAME_MAX]} {digest}"


def _queue_of(objects: Objects) -> str:
    queue = objects.queues_by_id[objects.services[CONFIGURATION_SERVICE].queue_id]
    return bracketed_queue_name(queue.schema_name, queue.name)


def _broker_id_suffix(request: MissingRoute) -> str:
    return "" if request.broker_instance is None else f" with the broker id {request.broker_instance}"


__all__ = [
    "ConfigurationService",
    "Directory",
    "DirectoryEntry",
    "FileDirectory",
    "MissingRoute",
    "TableDirectory",
]
