"""The registry of databases in msdb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ssbroker.store.schema import DATABASE, MSDB
from ssbroker.store.sqlite import Connection, single_row

MSDB_MIGRATIONS: Final = tuple(both + msdb for both, msdb in zip(DATABASE, MSDB, strict=True))
"""Migrations of msdb; item n migrates version n to n + 1."""

MSDB_NAME: Final = "msdb"
MSDB_ID: Final = 4
"""The `database_id` of msdb in `sys.databases`; user databases follow."""

_SELECT: Final = "SELECT database_id, name, file, service_broker_guid, is_broker_enabled FROM ssb_databases"


@dataclass(frozen=True, slots=True)
class RegisteredDatabase:
    """A row of the registry; `file` is a path relative to the instance folder, or absolute."""

    database_id: int
    name: str
    file: str
    service_broker_guid: bytes
    is_broker_enabled: bool


def create_instance_row(connection: Connection, *, name: str, instance_id: bytes) -> None:
    """Inserts the single row of `ssb_instance` for a new instance."""
    connection.execute("INSERT INTO ssb_instance (only_row, name, instance_id) VALUES (1, ?, ?)", (name, instance_id))


def instance_row(connection: Connection) -> tuple[str, bytes]:
    """Returns the name and id of the instance."""
    name, instance_id = single_row(connection, "SELECT name, instance_id FROM ssb_instance")
    return name, instance_id


def version_of(connection: Connection) -> int:
    """Returns the version of the registry, which is unique for each state of the registry."""
    version: int = connection.execute("SELECT list_version FROM ssb_instance").get
    return version


def load(connection: Connection) -> tuple[RegisteredDatabase, ...]:
    """Reads the registry in the order of the ids."""
    return tuple(_registered(row) for row in connection.execute(f"{_SELECT} ORDER BY database_id"))


def by_id(connection: Connection, database_id: int) -> RegisteredDatabase | None:
    """Returns a database by its id; None if it is not registered."""
    row = connection.execute(f"{_SELECT} WHERE database_id = ?", (database_id,)).fetchone()
    return None if row is None else _registered(row)


def by_name(connection: Connection, name: str) -> RegisteredDatabase | None:
    """Returns a database by its name; None if it is not registered."""
    row = connection.execute(f"{_SELECT} WHERE name = ?", (name,)).fetchone()
    return None if row is None else _registered(row)


def _registered(row: tuple[Any, ...]) -> RegisteredDatabase:
    database_id, name, file, service_broker_guid, is_broker_enabled = row
    return RegisteredDatabase(database_id, name, file, service_broker_guid, bool(is_broker_enabled))


def is_msdb(connection: Connection) -> bool:
    """Returns whether a file is the msdb of an instance."""
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'ssb_databases'").get is not None


def has_only_broker_tables(connection: Connection) -> bool:
    """Returns whether a file contains only the broker's own tables."""
    found = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE tbl_name NOT LIKE 'ssb\\_%' ESCAPE '\\' AND tbl_name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return found.get is None


def find_enabled_duplicate(connection: Connection, *, service_broker_guid: bytes, name: str) -> str | None:
    """Returns the name of another enabled database with the same broker id; None if there is none."""
    duplicate: str | None = connection.execute(
        "SELECT name FROM ssb_databases WHERE service_broker_guid = ? AND is_broker_enabled AND name <> ?",
        (service_broker_guid, name),
    ).get
    return duplicate


def add(connection: Connection, *, name: str, file: str, service_broker_guid: bytes, is_broker_enabled: bool) -> int:
    """Registers a database and returns its id, which is never reused."""
    number = MSDB_ID if name == MSDB_NAME else None
    connection.execute(
        "INSERT INTO ssb_databases VALUES (?, ?, ?, ?, ?)", (number, name, file, service_broker_guid, is_broker_enabled)
    )
    _bump_version(connection)
    return connection.last_insert_rowid()


def set_broker(connection: Connection, *, name: str, service_broker_guid: bytes, is_broker_enabled: bool) -> None:
    """Updates the broker id of a database, and whether its broker is enabled."""
    connection.execute(
        "UPDATE ssb_databases SET service_broker_guid = ?, is_broker_enabled = ? WHERE name = ?",
        (service_broker_guid, is_broker_enabled, name),
    )
    _bump_version(connection)


def rename(connection: Connection, *, name: str, new_name: str) -> None:
    """Renames a database."""
    connection.execute("UPDATE ssb_databases SET name = ? WHERE name = ?", (new_name, name))
    _bump_version(connection)


def remove(connection: Connection, *, name: str) -> None:
    """Unregisters a database."""
    connection.execute("DELETE FROM ssb_databases WHERE name = ?", (name,))
    _bump_version(connection)


def _bump_version(connection: Connection) -> None:
    connection.execute("UPDATE ssb_instance SET list_version = random()")
