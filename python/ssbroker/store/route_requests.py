"""Requests for routes, and the messages and tables of a configuration service."""

from __future__ import annotations

from typing import Final, NamedTuple

from ssbroker.store import object_changes
from ssbroker.store.codes import PEER_ENDED_STATES, READY
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

SYSTEM_SCHEMA: Final = "sys"

SYSTEM_QUEUE: Final = "ServiceBrokerQueue"

SYSTEM_QUEUE_ID: Final = 1
"""The id of the queue in which the answers to requests arrive."""

_SYSTEM_SERVICE_ID: Final = 1

RETRY_DELAY_MAX: Final = 60_000_000
"""Maximum time until the next request, in microseconds; a longer time means that the clock was set back."""


class RouteRequestRow(NamedTuple):
    """A row of `ssb_route_requests`."""

    conversation_handle: bytes | None
    """The dialog with the configuration service; None after it has ended."""
    ask_again_at: int | None
    """Earliest time of the next request, in microseconds since 1970."""
    refusal: str
    """The error that ended the dialog; empty if none."""

    def blocks_new_request(self, *, now: int) -> bool:
        """Returns whether no new request may be sent, because the dialog is open or ended recently."""
        if self.conversation_handle is not None:
            return True
        return self.ask_again_at is not None and 0 < self.ask_again_at - now <= RETRY_DELAY_MAX


def pending_services(connection: Connection) -> tuple[str, ...]:
    """Returns the services with an open dialog to the configuration service."""
    rows = connection.execute(
        "SELECT service_name FROM ssb_route_requests WHERE conversation_handle IS NOT NULL ORDER BY service_name"
    )
    return tuple(name for (name,) in rows)


def find_request(connection: Connection, service_name: str) -> RouteRequestRow | None:
    """Returns the request for the route of a service; None if there is none."""
    row = connection.execute(
        "SELECT conversation_handle, ask_again_at, refusal FROM ssb_route_requests WHERE service_name = ?",
        (service_name,),
    ).fetchone()
    return None if row is None else RouteRequestRow._make(row)


def delete_open_requests(connection: Connection) -> list[bytes]:
    """Deletes the open requests, and returns the handles of their dialogs."""
    rows = connection.execute(
        "DELETE FROM ssb_route_requests WHERE conversation_handle IS NOT NULL RETURNING conversation_handle"
    )
    return [handle for (handle,) in rows]


def ended_requests(connection: Connection) -> list[tuple[str, bytes]]:
    """Returns the service and handle of each dialog that the configuration service has ended or that no longer exists."""
    rows = connection.execute(
        f"""
        SELECT r.service_name, r.conversation_handle
        FROM ssb_route_requests r LEFT JOIN ssb_conversation_endpoints e USING (conversation_handle)
        WHERE r.conversation_handle IS NOT NULL AND (e.state IS NULL OR e.state IN {PEER_ENDED_STATES})
        ORDER BY r.service_name"""  # noqa: S608
    )
    return [(name, handle) for name, handle in rows]


def record_request(connection: Connection, service_name: str, *, conversation_handle: bytes) -> None:
    """Records that a dialog requests the route of a service."""
    connection.execute(
        "INSERT OR REPLACE INTO ssb_route_requests (service_name, conversation_handle) VALUES (?, ?)",
        (service_name, conversation_handle),
    )


def record_answer(connection: Connection, service_name: str, *, ask_again_at: int, refusal: str, now: int) -> None:
    """Records that the dialog that requested the route of a service has ended, and deletes old answers."""
    connection.execute(
        "INSERT OR REPLACE INTO ssb_route_requests (service_name, ask_again_at, refusal) VALUES (?, ?, ?)",
        (service_name, ask_again_at, refusal),
    )
    connection.execute("DELETE FROM ssb_route_requests WHERE ask_again_at <= ?", (now,))


def create_system_service(connection: Connection, objects: Objects, *, name: str) -> None:
    """Creates the service that sends the requests, with a separate queue, unless it exists."""
    if name in objects.services:
        return
    connection.execute(
        "INSERT OR IGNORE INTO ssb_queues (queue_id, schema_name, name) VALUES (?, ?, ?)",
        (SYSTEM_QUEUE_ID, SYSTEM_SCHEMA, SYSTEM_QUEUE),
    )
    connection.execute(
        """
        INSERT INTO ssb_services (service_id, name, queue_id)
        SELECT ?, ?, queue_id FROM ssb_queues WHERE schema_name = ? AND name = ?""",
        (_SYSTEM_SERVICE_ID, name, SYSTEM_SCHEMA, SYSTEM_QUEUE),
    )
    object_changes.bump_version(connection)


def queued_requests(
    connection: Connection, queue_id: int, *, limit: int
) -> list[tuple[bytes, bytes, str, bytes | None]]:
    """Returns the messages in the queue of a configuration service, in order: handle, broker id of the requester, message type and body."""
    rows = connection.execute(
        """
        SELECT e.conversation_handle, e.far_broker_instance, t.name, m.message_body
        FROM ssb_queued_messages m JOIN ssb_conversation_endpoints e USING (endpoint_id) JOIN ssb_message_types t USING (message_type_id)
        WHERE m.queue_id = ? AND m.status = ? ORDER BY m.queuing_order LIMIT ?""",
        (queue_id, READY, limit),
    )
    return [(handle, guid, kind, body) for handle, guid, kind, body in rows]


def directory_columns(connection: Connection, table: str) -> set[str]:
    """Returns the columns of an application's table in lower case, as SQLite compares them; empty if there is no such table."""
    return {name.lower() for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def directory_rows(connection: Connection, table: str, service_name: str) -> list[tuple[object, ...]]:
    """Returns the rows of an application's table for a service."""
    quoted = table.replace('"', '""')
    return connection.execute(
        f'SELECT service_name, broker_instance, address, mirror_address, lifetime FROM "{quoted}" WHERE service_name = ?',  # noqa: S608  # quoted
        (service_name,),
    ).fetchall()
