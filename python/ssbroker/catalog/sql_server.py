"""Catalog views of a SQL Server, read through a DB-API connection."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import pyarrow as pa

from ssbroker import schemas
from ssbroker.exceptions import InvalidGuidError, MalformedDataError


class DbApiCursor(Protocol):
    """The part of a DB-API 2.0 cursor that this module uses."""

    @property
    def description(self) -> Any:
        """Columns of the last result: sequences whose first item is the name."""
        ...

    def execute(self, operation: str, /) -> Any:
        """Executes a statement."""
        ...

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Returns all rows of the result."""
        ...

    def close(self) -> None:
        """Closes the cursor."""
        ...


class DbApiConnection(Protocol):
    """The part of a DB-API 2.0 connection that this module uses."""

    def cursor(self) -> Any:
        """Opens a cursor."""
        ...


DATABASES_QUERY: Final = (
    "SELECT name, CAST(service_broker_guid AS nvarchar(36)) AS service_broker_guid, is_broker_enabled FROM sys.databases "
    "WHERE state = 0 AND HAS_DBACCESS(name) = 1 AND name NOT IN (N'master', N'model', N'tempdb') ORDER BY name"
)
"""Databases that are online and accessible, without the system databases other than msdb."""
ROUTES_QUERY: Final = (
    "SELECT name, route_id, remote_service_name, broker_instance, lifetime, address, mirror_address FROM {database}.sys.routes "
    "ORDER BY route_id"
)
SERVICES_QUERY: Final = "SELECT name FROM {database}.sys.services WHERE service_id >= 65536 ORDER BY service_id"
"""User services; system services have lower ids."""
ENDPOINTS_QUERY: Final = (
    "SELECT CAST(SERVERPROPERTY(N'MachineName') AS nvarchar(128)) AS machine, t.port, t.ip_address, b.is_message_forwarding_enabled "
    "FROM sys.service_broker_endpoints AS b JOIN sys.tcp_endpoints AS t ON t.endpoint_id = b.endpoint_id"
)
TRANSMISSION_QUEUE_QUERY: Final = (
    "SELECT q.conversation_handle, e.conversation_id, q.to_service_name, q.to_broker_instance, q.from_service_name, q.enqueue_time, "
    "q.message_sequence_number, e.is_initiator, q.transmission_status FROM {database}.sys.transmission_queue AS q "
    "LEFT JOIN {database}.sys.conversation_endpoints AS e ON e.conversation_handle = q.conversation_handle "
    "ORDER BY q.enqueue_time"
)

_TRANSMISSION_QUEUE_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("conversation_id", schemas.GUID, nullable=False),
    pa.field("database", pa.string(), nullable=False),
    pa.field("to_service_name", pa.string(), nullable=False),
    pa.field("to_broker_instance", schemas.GUID),
    pa.field("is_initiator", pa.bool_(), nullable=False),
    pa.field("conversation_handle", schemas.GUID),
    pa.field("from_service_name", pa.string()),
    pa.field("message_sequence_number", pa.int64()),
    pa.field("enqueue_time", pa.timestamp("us", tz="UTC")),
    pa.field("transmission_status", pa.string()),
]
TRANSMISSION_QUEUE: Final = pa.schema(_TRANSMISSION_QUEUE_FIELDS)
"""Messages that wait to be sent, one per row: the columns of `schemas.CONVERSATIONS`, and columns of `sys.transmission_queue`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlServerTables:
    """The tables and settings of a catalog, read from a server."""

    routes: pa.Table
    databases: pa.Table
    services: pa.Table
    addresses: tuple[str, ...]
    message_forwarding: bool
    pending_requests: tuple[str, ...] = ()
    """Always empty: SQL Server does not expose pending requests."""


def read_tables(connection: DbApiConnection) -> SqlServerTables:
    """Reads the content of a catalog; raises InputError for invalid values."""
    databases = [_with_guid(row, "service_broker_guid") for row in _rows(connection, DATABASES_QUERY)]
    routes: list[dict[str, Any]] = []
    services: list[dict[str, Any]] = []
    for database in (str(row["name"]) for row in databases):
        routes += [
            {
                **_with_guid(row, "broker_instance"),
                "database": database,
                "lifetime": _utc(row["lifetime"], name="sys.routes.lifetime"),
            }
            for row in _rows(connection, ROUTES_QUERY.format(database=_quoted(database)))
        ]
        services += [
            {**row, "database": database}
            for row in _rows(connection, SERVICES_QUERY.format(database=_quoted(database)))
        ]
    endpoints = list(_rows(connection, ENDPOINTS_QUERY))
    hosts = [(row["machine"], row["port"]) for row in endpoints]
    hosts += [(_url_host(row["ip_address"]), row["port"]) for row in endpoints if row["ip_address"]]
    return SqlServerTables(
        routes=_table(routes, schemas.ROUTES),
        databases=_table(
            [{**row, "is_broker_enabled": bool(row["is_broker_enabled"])} for row in databases], schemas.DATABASES
        ),
        services=_table(services, schemas.SERVICES),
        addresses=tuple(dict.fromkeys(f"TCP://{host}:{port}" for host, port in hosts if host)),
        message_forwarding=any(bool(row["is_message_forwarding_enabled"]) for row in endpoints),
    )


def read_transmission_queue(connection: DbApiConnection) -> pa.Table:
    """Reads the messages that wait to be sent in every database (`TRANSMISSION_QUEUE`).

    If the conversation of a message has been deleted, the message counts as sent by the initiator, and the handle replaces the conversation id.
    """
    messages = []
    for database in (str(row["name"]) for row in _rows(connection, DATABASES_QUERY)):
        for row in _rows(connection, TRANSMISSION_QUEUE_QUERY.format(database=_quoted(database))):
            for name in ("conversation_handle", "conversation_id", "to_broker_instance"):
                row = _with_guid(row, name)  # noqa: PLW2901 - one column after the other
            messages.append(
                {
                    **row,
                    "database": database,
                    "conversation_id": row["conversation_id"] or row["conversation_handle"],
                    "is_initiator": row["is_initiator"] is None or bool(row["is_initiator"]),
                    "enqueue_time": _utc(row["enqueue_time"], name="sys.transmission_queue.enqueue_time"),
                }
            )
    return pa.Table.from_pylist(messages, schema=TRANSMISSION_QUEUE)


def _rows(connection: DbApiConnection, query: str) -> Iterator[dict[str, Any]]:
    cursor: DbApiCursor = connection.cursor()
    try:
        cursor.execute(query)
        names = [str(column[0]) for column in cursor.description]
        rows = cursor.fetchall()
    finally:
        cursor.close()
    return (dict(zip(names, row, strict=True)) for row in rows)


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    nullable = pa.schema([field.with_nullable(nullable=True) for field in schema])
    return pa.Table.from_pylist(rows, schema=nullable)


def _with_guid(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the row with one GUID converted to bytes.

    Drivers return text, `uuid.UUID`, or bytes in SQL Server's order; empty text means null.
    """
    value = row[name]
    if value is None or value == "":
        return {**row, name: None}
    try:
        if isinstance(value, bytes):
            guid = uuid.UUID(bytes_le=value)
        else:
            guid = value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))
    except ValueError as error:
        raise InvalidGuidError(
            f"{name}: {value!r:.80} is not a valid GUID", column=name, value=str(value), expected="a GUID"
        ) from error
    return {**row, name: guid.bytes}


def _utc(value: object, *, name: str) -> datetime | None:
    """Adds the time zone UTC to a datetime, which SQL Server stores without one; returns None for NULL."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise MalformedDataError(
            f"{name}: expected a datetime, got {value!r:.80}", column=name, value=repr(value), expected="a datetime"
        )
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def _url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _quoted(name: str) -> str:
    return "[" + name.replace("]", "]]") + "]"
