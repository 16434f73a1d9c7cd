"""The registry of databases in msdb, and open route requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ssbroker.store.objects import Objects
from ssbroker.store.schema import DATABASE, MSDB
from ssbroker.store.sqlite import Connection, only_row

MSDB_MIGRATIONS: Final = tuple(both + msdb for both, msdb in zip(DATABASE, MSDB, strict=True))
"""What leads the file of msdb from version n to n + 1."""

MSDB_NAME: Final = "msdb"
MSDB_ID: Final = 4
"""The `database_id` of msdb; those of user databases follow it (sys.databases)."""

DROPPED: Final = bytes(16)
"""Whom a file notes that is dropped and may be removed."""

_INODE_BITS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RegisteredDatabase:
    """A row of the list; `file` stands as it is written there, relative to the instance's folder or absolute."""

    database_id: int
    name: str
    file: str
    service_broker_guid: bytes
    is_broker_enabled: bool


@dataclass(frozen=True, slots=True)
class OwnerNote:
    """What a file notes: the instance that has attached it, and the file that it was then."""

    attached_to: bytes | None
    identity: tuple[int, int] | None


def create_instance_row(connection: Connection, *, name: str, instance_id: bytes) -> None:
    """Writes the one row of a new instance."""
    connection.execute("INSERT INTO ssb_instance (only_row, name, instance_id) VALUES (1, ?, ?)", (name, instance_id))


def instance_row(connection: Connection) -> tuple[str, bytes]:
    """The name and the id of the instance."""
    name, instance_id = only_row(connection, "SELECT name, instance_id FROM ssb_instance")
    return name, instance_id


def version_of(connection: Connection) -> int:
    """The version of the list; never twice the same for different lists."""
    version: int = connection.execute("SELECT list_version FROM ssb_instance").get
    return version


def load(connection: Connection) -> tuple[RegisteredDatabase, ...]:
    """The list, in the order of the ids."""
    rows = connection.execute(
        "SELECT database_id, name, file, service_broker_guid, is_broker_enabled FROM ssb_databases ORDER BY database_id"
    )
    return tuple(
        RegisteredDatabase(number, name, file, guid, bool(enabled)) for number, name, file, guid, enabled in rows
    )


def is_msdb(connection: Connection) -> bool:
    """Whether a file is the msdb of an instance."""
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'ssb_databases'").get is not None


def holds_nothing_else(connection: Connection) -> bool:
    """Whether a file holds no table but ours."""
    found = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE tbl_name NOT LIKE 'ssb\\_%' ESCAPE '\\' AND tbl_name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return found.get is None


def enabled_twin(connection: Connection, *, service_broker_guid: bytes, name: str) -> str | None:
    """The name of another database that is enabled under this id (I7)."""
    twin: str | None = connection.execute(
        "SELECT name FROM ssb_databases WHERE service_broker_guid = ? AND is_broker_enabled AND name <> ?",
        (service_broker_guid, name),
    ).get
    return twin


def add(connection: Connection, *, name: str, file: str, service_broker_guid: bytes, is_broker_enabled: bool) -> int:
    """Puts a database on the list; its id, which no other ever had."""
    number = MSDB_ID if name == MSDB_NAME else None
    connection.execute(
        "INSERT INTO ssb_databases VALUES (?, ?, ?, ?, ?)", (number, name, file, service_broker_guid, is_broker_enabled)
    )
    _changed(connection)
    return connection.last_insert_rowid()


def set_broker(connection: Connection, *, name: str, service_broker_guid: bytes, is_broker_enabled: bool) -> None:
    """Says another id or state of a database on the list."""
    connection.execute(
        "UPDATE ssb_databases SET service_broker_guid = ?, is_broker_enabled = ? WHERE name = ?",
        (service_broker_guid, is_broker_enabled, name),
    )
    _changed(connection)


def rename(connection: Connection, *, name: str, new: str) -> None:
    """Gives a database another name."""
    connection.execute("UPDATE ssb_databases SET name = ? WHERE name = ?", (new, name))
    _changed(connection)


def remove(connection: Connection, *, name: str) -> None:
    """Takes a database off the list."""
    connection.execute("DELETE FROM ssb_databases WHERE name = ?", (name,))
    _changed(connection)


def identity_of(path: Path) -> tuple[int, int] | None:
    """The device and the inode of a file; None where the system has no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev & _INODE_BITS, found.st_ino & _INODE_BITS


def note_of(connection: Connection) -> OwnerNote:
    """What the file notes."""
    attached_to, device, inode = only_row(connection, "SELECT attached_to, device, inode FROM ssb_database")
    return OwnerNote(attached_to, None if device is None else (device, inode))


def note(connection: Connection, *, attached_to: bytes | None, identity: tuple[int, int] | None) -> None:
    """Notes who has the file attached; None is nobody."""
    device, inode = identity or (None, None)
    connection.execute(
        "UPDATE ssb_database SET attached_to = ?, device = ?, inode = ?, catalog_version = random()",
        (attached_to, device, inode),
    )


def _changed(connection: Connection) -> None:
    connection.execute("UPDATE ssb_instance SET list_version = random()")


SYSTEM_SCHEMA: Final = "sys"
SYSTEM_QUEUE: Final = "ServiceBrokerQueue"
SYSTEM_QUEUE_ID: Final = 1
"""The id of the queue in which the answers arrive; it is the system's, so it is lower than those of users."""
_SYSTEM_SERVICE_ID: Final = 1
WAIT_MOST: Final = 60_000_000
"""The longest for which nobody asks again, in microseconds: what is farther away was said by a clock that has been set back since."""


class RouteRequestRow(NamedTuple):
    """A row of `ssb_route_requests`."""

    conversation_handle: bytes | None
    """The dialog with the configuration service; None once it is over."""
    ask_again_at: int | None
    """Before this moment, in microseconds since 1970, nobody asks again."""
    refusal: str
    """The error that ended the dialog; empty where none did."""

    def is_in_the_way(self, *, now: int) -> bool:
        """Whether nothing is asked now: the dialog is open, or has just ended.

        Args:
            now: The moment.

        Returns:
            Whether.

        Examples:
            >>> RouteRequestRow(None, 7, "").is_in_the_way(now=7)
            False
        """
        if self.conversation_handle is not None:
            return True
        return self.ask_again_at is not None and 0 < self.ask_again_at - now <= WAIT_MOST


def pending(connection: Connection) -> tuple[str, ...]:
    """The services for which a dialog with the configuration service is open."""
    rows = connection.execute(
        "SELECT service_name FROM ssb_route_requests WHERE conversation_handle IS NOT NULL ORDER BY service_name"
    )
    return tuple(name for (name,) in rows)


def find(connection: Connection, service_name: str) -> RouteRequestRow | None:
    """The request for one service; None where there is none."""
    row = connection.execute(
        "SELECT conversation_handle, ask_again_at, refusal FROM ssb_route_requests WHERE service_name = ?",
        (service_name,),
    ).fetchone()
    return None if row is None else RouteRequestRow._make(row)


def forget_open(connection: Connection) -> list[bytes]:
    """Forgets which services are being asked for.

    Returns:
        The handles of the dialogs that ask.
    """
    rows = connection.execute(
        "DELETE FROM ssb_route_requests WHERE conversation_handle IS NOT NULL RETURNING conversation_handle"
    )
    return [handle for (handle,) in rows]


def over(connection: Connection) -> list[tuple[str, bytes]]:
    """Service and handle of each dialog that the configuration service has ended, or that is gone."""
    rows = connection.execute(
        """
        SELECT r.service_name, r.conversation_handle
        FROM ssb_route_requests r LEFT JOIN ssb_conversation_endpoints e USING (conversation_handle)
        WHERE r.conversation_handle IS NOT NULL AND (e.state IS NULL OR e.state IN ('DI', 'ER', 'CD'))
        ORDER BY r.service_name"""
    )
    return [(name, handle) for name, handle in rows]


def begun(connection: Connection, service_name: str, *, conversation_handle: bytes) -> None:
    """Notes that a service is asked for now."""
    connection.execute(
        "INSERT OR REPLACE INTO ssb_route_requests (service_name, conversation_handle) VALUES (?, ?)",
        (service_name, conversation_handle),
    )


def answered(connection: Connection, service_name: str, *, ask_again_at: int, refusal: str, now: int) -> None:
    """Notes that the dialog is over, and forgets what was answered long enough ago."""
    connection.execute(
        "INSERT OR REPLACE INTO ssb_route_requests (service_name, ask_again_at, refusal) VALUES (?, ?, ?)",
        (service_name, ask_again_at, refusal),
    )
    connection.execute("DELETE FROM ssb_route_requests WHERE ask_again_at <= ?", (now,))


def create_system_service(connection: Connection, objects: Objects, *, name: str) -> bool:
    """Makes the service that asks, on a queue of its own, where the database does not have it yet.

    Args:
        connection: The database, with its write lock.
        objects: What stands in it.
        name: The service's name.

    Returns:
        Whether it was made now.
    """
    if name in objects.services:
        return False
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
    connection.execute("UPDATE ssb_database SET catalog_version = random()")
    return True


def questions(connection: Connection, queue_id: int, *, most: int) -> list[tuple[bytes, bytes, str, bytes | None]]:
    """What stands in the queue of a configuration service: handle, the asking broker's id, message type and body, in order."""
    rows = connection.execute(
        """
        SELECT e.conversation_handle, e.far_broker_instance, t.name, m.message_body
        FROM ssb_queued_messages m JOIN ssb_conversation_endpoints e USING (endpoint_id) JOIN ssb_message_types t USING (message_type_id)
        WHERE m.queue_id = ? AND m.status = 1 ORDER BY m.queuing_order LIMIT ?""",
        (queue_id, most),
    )
    return [(handle, guid, kind, body) for handle, guid, kind, body in rows]


def directory_columns(connection: Connection, table: str) -> set[str]:
    """The columns of an application's table in lower case, as SQLite compares them; none where there is no such table."""
    return {name.lower() for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def directory_rows(connection: Connection, table: str, service_name: str) -> list[tuple[object, ...]]:
    """The rows of an application's table that say where a service is."""
    quoted = table.replace('"', '""')
    return connection.execute(
        f'SELECT service_name, broker_instance, address, mirror_address, lifetime FROM "{quoted}" WHERE service_name = ?',  # noqa: S608  # quoted
        (service_name,),
    ).fetchall()
