"""The list of an instance's databases in msdb, and what a file notes of who has attached it (B25, B26)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ssbroker.store.msdb_schema import MSDB
from ssbroker.store.schema import DATABASE
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
class Listed:
    """A row of the list; `file` stands as it is written there, relative to the instance's folder or absolute."""

    database_id: int
    name: str
    file: str
    service_broker_guid: bytes
    is_broker_enabled: bool


@dataclass(frozen=True, slots=True)
class Note:
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


def load(connection: Connection) -> tuple[Listed, ...]:
    """The list, in the order of the ids."""
    rows = connection.execute(
        "SELECT database_id, name, file, service_broker_guid, is_broker_enabled FROM ssb_databases ORDER BY database_id"
    )
    return tuple(Listed(number, name, file, guid, bool(enabled)) for number, name, file, guid, enabled in rows)


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


def note_of(connection: Connection) -> Note:
    """What the file notes."""
    attached_to, device, inode = only_row(connection, "SELECT attached_to, device, inode FROM ssb_database")
    return Note(attached_to, None if device is None else (device, inode))


def note(connection: Connection, *, attached_to: bytes | None, identity: tuple[int, int] | None) -> None:
    """Notes who has the file attached; None is nobody."""
    device, inode = identity or (None, None)
    connection.execute(
        "UPDATE ssb_database SET attached_to = ?, device = ?, inode = ?, catalog_version = random()",
        (attached_to, device, inode),
    )


def _changed(connection: Connection) -> None:
    connection.execute("UPDATE ssb_instance SET list_version = random()")
