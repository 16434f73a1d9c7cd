"""The system's views as Arrow tables, with the columns of SQL Server's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import moment
from ssbroker.broker.database import Database
from ssbroker.broker.objects.queue_names import queue_key
from ssbroker.broker.views.view_schemas import DATABASE_VIEWS, INSTANCE_VIEWS, QUEUE
from ssbroker.exceptions import InputError, StorageError
from ssbroker.options import is_text
from ssbroker.protocol.states import DESCRIPTIONS, State
from ssbroker.security.dialog_certificate import DialogCertificate
from ssbroker.store import registry, views
from ssbroker.store.objects import Endpoint

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

Row = Sequence[Any]

DATABASE: Final[pa.Field[Any]] = pa.field("database", pa.string())
_STATE: Final = DATABASE_VIEWS["sys.conversation_endpoints"].get_field_index("state")
_ROLES: Final = ("principal", "mirror")
_ENDPOINT_STATES: Final = ("STARTED", "STOPPED", "DISABLED")
_FIRST_ENDPOINT_ID: Final = 65_536


def view(instance: Instance, name: str, database: str | None) -> pa.Table:
    """The rows of a view, or of a queue."""
    if not is_text(name):
        raise InputError(f"name: expected a view or a queue, got {name!r:.80}", value=name)
    if name in INSTANCE_VIEWS:
        if database is not None:
            raise InputError(f"{name} is about the whole instance; leave database out", value=database)
        return table_of(_INSTANCE_ROWS[name](instance), INSTANCE_VIEWS[name])
    databases = instance.databases if database is None else (instance.database(database),)
    if name in DATABASE_VIEWS:
        return _of_databases(_of_each(instance, databases, lambda one: _database_rows(one, name)), DATABASE_VIEWS[name])
    if name.lower().startswith("sys."):
        known = ", ".join(sorted({*DATABASE_VIEWS, *INSTANCE_VIEWS}))
        raise InputError(f"there is no view {name!r}; there are {known}", value=name)
    key = queue_key(name)
    found = _of_each(instance, databases, lambda one: _queue_rows(one, key))
    if not found:
        raise InputError(f"there is no queue {name!r} there", value=name)
    return _of_databases(found, QUEUE)


def _of_each(
    instance: Instance, databases: Iterable[Database], rows_of: Callable[[Database], list[Row] | None]
) -> list[tuple[Database, list[Row]]]:
    """The rows of each database that has any to show; one that goes meanwhile is left out."""
    found = []
    for database in databases:
        try:
            rows = rows_of(database)
        except StorageError:
            with suppress(StorageError):
                instance.settle(database)
            if all(one is not database for one in instance.databases):
                continue
            rows = rows_of(database)
        if rows is not None:
            found.append((database, rows))
    return found


def _queue_rows(database: Database, key: tuple[str, str]) -> list[Row] | None:
    with database.file.read() as connection:
        queue = database.objects(connection).queues.get(key)
        return None if queue is None else [*views.queue_rows(connection, queue.queue_id)]


def _database_rows(database: Database, name: str) -> list[Row]:
    with database.file.read() as connection:
        database.objects(connection)  # refuses what is no longer attached
        found: list[Row] = [*views.rows(connection, name)]
    if name == "sys.certificates":
        return [(*row[:-1], *_described(row[-1])) for row in found]
    if name != "sys.conversation_endpoints":
        return found
    return [(*row[: _STATE + 1], DESCRIPTIONS[State(row[_STATE])], *row[_STATE + 2 :]) for row in found]


def _described(certificate: bytes) -> Row:
    known = DialogCertificate(certificate)
    said = known.described
    ends, begins = moment.microseconds(said.ends), moment.microseconds(said.begins)
    return (said.issuer, said.serial_number, said.subject, ends, begins, known.thumbprint, said.bits)


def _of_databases(parts: list[tuple[Database, list[Row]]], schema: pa.Schema) -> pa.Table:
    rows = ((database.name, *row) for database, found in parts for row in found)
    return table_of(rows, pa.schema([DATABASE, *schema]))


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Rows as a table."""
    columns = [*zip(*rows, strict=True)] or [()] * len(schema)
    return pa.Table.from_arrays(
        [_array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_boolean(kind):  # a number in SQLite
        return pa.array([None if value is None else bool(value) for value in values], kind)
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def _databases(instance: Instance) -> Iterator[Row]:
    seen = {database.database_id: objects.broker for database, objects in instance.seen()}
    with instance.msdb.file.read() as connection:
        listed = registry.load(connection)
    for row in listed:
        broker = seen.get(row.database_id)
        if broker is not None:
            enabled, honor = broker.is_broker_enabled, broker.is_honor_broker_priority_on
            yield (row.name, row.database_id, 0, "ONLINE", broker.service_broker_guid, enabled, honor)
        else:
            yield (row.name, row.database_id, 3, "RECOVERY_PENDING", row.service_broker_guid, False, False)


def _mirroring(instance: Instance) -> Iterator[Row]:
    for database, objects in instance.seen():
        role = objects.broker.mirroring_role
        yield (database.database_id, _ROLES.index(role) + 1, role.upper(), objects.broker.mirroring_number)


def _endpoints(instance: Instance) -> Iterator[Row]:
    endpoint: Endpoint | None = instance.msdb.objects().endpoint
    if endpoint is not None:
        yield (
            endpoint.name,
            _FIRST_ENDPOINT_ID,
            1,
            2,
            "TCP",
            3,
            "SERVICE_BROKER",
            _ENDPOINT_STATES.index(endpoint.state),
            endpoint.state,
            False,
            endpoint.is_message_forwarding_enabled,
            endpoint.message_forwarding_size,
            *(None,) * 5,  # who may connect is said where the endpoint is served
            endpoint.port,
            None if endpoint.ip == "ALL" else endpoint.ip,
        )


def _activated_tasks(instance: Instance) -> Iterator[Row]:
    return (astuple(row) for row in instance.worker.activation.task_rows())


def _queue_monitors(instance: Instance) -> Iterator[Row]:
    return (astuple(row) for row in instance.worker.activation.monitor_rows())


def _forwarded(instance: Instance) -> Iterator[Row]:
    server = instance.server
    return iter(() if server is None else server.forwarding.view_rows())


def _connections(instance: Instance) -> Iterator[Row]:
    server = instance.server
    return iter(() if server is None else server.endpoint.view_rows())


_INSTANCE_ROWS: Final = {
    "sys.databases": _databases,
    "sys.database_mirroring": _mirroring,
    "sys.service_broker_endpoints": _endpoints,
    "sys.dm_broker_activated_tasks": _activated_tasks,
    "sys.dm_broker_queue_monitors": _queue_monitors,
    # An instance that is not served has no connections.
    "sys.dm_broker_connections": _connections,
    "sys.dm_broker_forwarded_messages": _forwarded,
}
