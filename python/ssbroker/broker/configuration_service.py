"""A ready-made configuration service: answers route requests from a directory of services."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from ssbroker._arguments import guid_bytes, whole_number
from ssbroker.broker import object_definitions
from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.dynamic_routing import MissingRoute
from ssbroker.broker.failure_log import log_failure
from ssbroker.broker.validation import queue_key, queue_text
from ssbroker.catalog.load import FORMATS, read_table
from ssbroker.ddl.route_validation import CONFIGURATION_SERVICE, LIFETIME_SECONDS_MAX
from ssbroker.ddl.statements import Clauses
from ssbroker.exceptions import BrokerError, InputError, LockTimeoutError
from ssbroker.protocol.config import CONFIGURATION_NOTICE, DESCRIPTION_MAX, END_DIALOG, ERROR, MISSING_ROUTE
from ssbroker.store import registry
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

_COLUMNS: Final = {
    "service_name": pa.string(),
    "broker_instance": pa.string(),
    "address": pa.string(),
    "mirror_address": pa.string(),
    "lifetime": pa.int32(),
}
_NEEDED: Final = ("service_name", "address")


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
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

    def find(self, service_name: str) -> Sequence[DirectoryEntry]:
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

    def find(self, service_name: str) -> Sequence[DirectoryEntry]:
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

    def find(self, service_name: str) -> Sequence[DirectoryEntry]:
        """Where a service is."""
        table = f"table {self._table!r} of {self._database.name!r}"
        with database_context(self._database).file.read() as connection:
            found = registry.directory_columns(connection, self._table)
            if not found:
                raise InputError(f"{table}: there is none of that name")
            for name in _COLUMNS:
                if name not in found:
                    raise InputError(f"{table}: there is no column {name!r}", column=name)
            rows = registry.directory_rows(connection, self._table, service_name)
        where = f"{table}, service {service_name!r}"
        return [_entry(dict(zip(_COLUMNS, row, strict=True)), where=where) for row in rows]


def _entry(row: dict[str, Any], *, where: str) -> DirectoryEntry:
    guid, lifetime = row.get("broker_instance"), row.get("lifetime")
    address, mirror = (_address(row, name, where=where) for name in ("address", "mirror_address"))
    if address is None:
        raise InputError(f"{where}: address: expected an address, got None", column="address")
    if lifetime is not None:
        lifetime = whole_number(lifetime, name=f"{where}: lifetime", minimum=1, maximum=LIFETIME_SECONDS_MAX)
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
"""The seconds for which a route is used that the directory says nothing about (fact 66)."""
NOT_KNOWN: Final = 1
"""The code of the error that ends a dialog where the directory does not know the service."""
NOT_USABLE: Final = 2
"""The code where it does, and no route can be made of that."""
NOT_ANSWERED: Final = 3
"""The code where something else was asked."""
QUESTIONS_MAX: Final = 100
_NAME_MAX: Final = 100
_PREFIX: Final = "Configured"


class ConfigurationService:
    r"""Answers requests for routes: makes the routes that its directory knows, and ends the dialog.

    It is the function that readers of its queue run, so it may also be given to `Database.activate` or
    `Instance.register_procedure`; `install` does everything that is needed.

    Args:
        directory: Where services are.
        lifetime: The seconds for which a route is used, where the directory does not say.

    Raises:
        OptionError: `lifetime` is no number of seconds.

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
        self._lifetime: Final = whole_number(lifetime, name="lifetime", minimum=1, maximum=LIFETIME_SECONDS_MAX)

    def install(
        self, database: Database, *, asked_by: Iterable[Database] | None = None, queue: str = "BrokerConfiguration"
    ) -> None:
        """Has this process answer: makes queue, service and the routes to it, where they are not there, and starts readers.

        Args:
            database: Where the service is.
            asked_by: The databases that get a route to it, from then on ask for routes; None is `database` alone.
            queue: The service's queue.

        Raises:
            BrokerError: The name of the queue is none.
        """
        objects = database_context(database).objects()
        if CONFIGURATION_SERVICE not in objects.services:
            if queue_key(queue) not in objects.queues:
                database.create_queue(queue)
            database.create_service(CONFIGURATION_SERVICE, queue=queue, contracts=[CONFIGURATION_NOTICE])
        for asking in (database,) if asked_by is None else asked_by:
            known = database_context(asking).objects().routes.values()
            if all(route.remote_service_name != CONFIGURATION_SERVICE for route in known):
                asking.create_route("BrokerConfiguration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        database.activate(_queue_of(database_context(database).objects()), self)

    def __call__(self, database: Database) -> None:
        """Answers all requests that wait.

        Args:
            database: Where the service is.
        """
        while self._answer(database):
            pass

    def _answer(self, database: Database) -> bool:
        """Answers some requests; whether there may be more.

        The routes are made first, each in the file of its database. A crash in between has them made again, which changes nothing.
        """
        objects = database_context(database).objects()
        queue = objects.queues_by_id[objects.services[CONFIGURATION_SERVICE].queue_id]
        with database_context(database).file.read() as connection:
            asked = registry.queued_requests(connection, queue.queue_id, limit=QUESTIONS_MAX)
        verdicts = {handle: self._verdict(database, guid, kind, body) for handle, guid, kind, body in asked}
        name = _queue_of(objects)
        with database.transaction() as t:
            if not verdicts:
                return t.get_conversation_group(name) is not None
            for handle, error in verdicts.items():
                with suppress(BrokerError):  # it is over, or another process has answered
                    t.receive(name, conversation_handle=handle)
                    # What is said may hold what was asked, by whomever, at any length.
                    t.end_conversation(handle, error=None if error is None else (error[0], error[1][:DESCRIPTION_MAX]))
        return True

    def _verdict(self, database: Database, asking: bytes, kind: str, body: bytes | None) -> tuple[int, str] | None:
        """The error that answers a message; None where there is none."""
        if kind in (END_DIALOG, ERROR):
            return None
        if kind != MISSING_ROUTE:
            return NOT_ANSWERED, "this configuration service knows routes only"
        try:
            return self._make_routes(database, asking, MissingRoute.read(body))
        except LockTimeoutError:
            raise  # the reader is started again
        except Exception as error:  # noqa: BLE001  # the directory may be anybody's; requests for other services do not wait for it
            return NOT_USABLE, log_failure(
                database_context(database), "a request for a route could not be answered", error
            )

    def _make_routes(self, database: Database, asking: bytes, request: MissingRoute) -> tuple[int, str] | None:
        entries = [
            entry
            for entry in self._directory.find(request.service_name)
            if request.broker_instance is None or entry.broker_instance in (None, request.broker_instance)
        ]
        if not entries:
            return NOT_KNOWN, f"the directory does not know the service {request.service_name!r}{_with(request)}"
        enabled = {
            one: objects.broker.is_broker_enabled
            for one, objects in database_context(database).instance.databases_list.seen()
            if objects.broker.service_broker_guid == asking
        }
        if not enabled:
            return NOT_USABLE, f"the broker id {uuid.UUID(bytes=asking)}, which asks, is not of this instance"
        lasting = [replace(entry, lifetime=entry.lifetime or self._lifetime) for entry in entries]
        # Of a database and its copies one is enabled (I7): that one asks.
        max(enabled, key=lambda one: enabled[one]).change(_renew, entries=lasting, now=database_context(database).now())
        return None


def _renew(connection: Connection, objects: Objects, *, entries: Sequence[DirectoryEntry], now: datetime) -> None:
    """Makes a route for each entry, or lets the one that was made before live on."""
    for name, entry in {_name(entry): entry for entry in entries}.items():
        guid = None if entry.broker_instance is None else str(entry.broker_instance)
        clauses = Clauses(entry.service_name, guid, entry.lifetime, entry.address, entry.mirror_address)
        change = object_definitions.alter_route if name in objects.routes else object_definitions.create_route
        change(connection, objects, name=name, clauses=clauses, now=now)


def _name(entry: DirectoryEntry) -> str:
    """The name of the route to an entry, which is the same each time."""
    said = repr((entry.service_name, entry.broker_instance, entry.address, entry.mirror_address))
    digest = hashlib.sha256(said.encode()).hexdigest()[:12]
    return f"{_PREFIX} {entry.service_name[:_NAME_MAX]} {digest}"


def _queue_of(objects: Objects) -> str:
    queue = objects.queues_by_id[objects.services[CONFIGURATION_SERVICE].queue_id]
    return queue_text(queue.schema_name, queue.name)


def _with(request: MissingRoute) -> str:
    return "" if request.broker_instance is None else f" with the broker id {request.broker_instance}"


__all__ = [
    "ConfigurationService",
    "Directory",
    "DirectoryEntry",
    "FileDirectory",
    "MissingRoute",
    "TableDirectory",
]
