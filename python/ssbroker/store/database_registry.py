"""Registry of databases in msdb."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ssbroker.store.schema import DATABASE, MSDB
from ssbroker.store.sqlite import Connection, file_identity, single_row

MSDB_MIGRATIONS: Final = tuple(both + msdb for both, msdb in zip(DATABASE, MSDB, strict=True))
"""Migrations of msdb; item n migrates version n to n + 1."""

MSDB_NAME: Final = "msdb"
MSDB_ID: Final = 4
"""The `database_id` of msdb in `sys.databases`; user databases follow."""

DROPPED: Final = bytes(16)
"""Owner that marks a file as dropped; it may be deleted."""

_INODE_BITS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RegisteredDatabase:
    """A row of the registry; `file` is a path relative to the folder of the instance, or absolute."""

    database_id: int
    name: str
    file: str
    service_broker_guid: bytes
    is_broker_enabled: bool


@dataclass(frozen=True, slots=True)
class FileOwner:
    """The owner that a database file records, None for none, and the identity of the file when it was attached."""

    attached_to: bytes | None
    identity: tuple[int, int] | None


class FileOwnership:
    """Decides which files belong to an instance.

    A file in the folder of the instance records the instance id as its owner; it is copied and moved with the folder. A file elsewhere is
    not, so it records an id that is also derived from the inode of msdb: a restored or copied msdb does not own the files that its original
    has attached from other folders, even if they are detached meanwhile or replaced with a backup.

    Attributes:
        instance_id: The id of the instance.
    """

    def __init__(self, instance_id: bytes, *, folder: Path, msdb_path: Path, msdb_owner: FileOwner) -> None:
        self.instance_id: Final = instance_id
        self._folder: Final = folder
        self._msdb_inode: Final = _inode(stored_file_identity(msdb_path))
        self._is_msdb_original: Final = _inode(msdb_owner.identity) in (None, self._msdb_inode)

    def owner_id(self, path: Path) -> bytes:
        """Returns the owner that a file of the instance records."""
        if path.is_relative_to(self._folder):
            return self.instance_id
        inode = b"" if self._msdb_inode is None else self._msdb_inode.to_bytes(8)
        return blake2b(self.instance_id + inode, digest_size=16, person=b"ssb file owner").digest()

    def owner(self, path: Path) -> FileOwner:
        """Returns the owner and identity that a file of the instance records."""
        return FileOwner(self.owner_id(path), stored_file_identity(path))

    def may_use(self, path: Path, found: FileOwner) -> bool:
        """Whether the instance may use a file that it lists and that records `found`."""
        if path.is_relative_to(self._folder) or self._is_msdb_original:
            return not self.is_foreign(path, found)
        return found.attached_to == self.owner_id(path)

    def is_foreign(self, path: Path, found: FileOwner) -> bool:
        """Whether a file that records `found` is attached to another instance. A copy is a new file, and belongs to nobody."""
        if found.attached_to in (None, self.owner_id(path)) or found.identity != stored_file_identity(path):
            return False
        # Earlier versions recorded the instance id in all files, as does a file that is moved out of the folder.
        return found.attached_to != self.instance_id or not self._is_msdb_original


def _inode(identity: tuple[int, int] | None) -> int | None:
    """Returns the inode; the device is omitted, because its number may be another one after a restart of the machine."""
    return None if identity is None else identity[1]


def create_instance_row(connection: Connection, *, name: str, instance_id: bytes) -> None:
    """Inserts the single row of a new instance."""
    connection.execute("INSERT INTO ssb_instance (only_row, name, instance_id) VALUES (1, ?, ?)", (name, instance_id))


def instance_row(connection: Connection) -> tuple[str, bytes]:
    """Returns name and id of the instance."""
    name, instance_id = single_row(connection, "SELECT name, instance_id FROM ssb_instance")
    return name, instance_id


def version_of(connection: Connection) -> int:
    """Returns the version of the registry, which is unique for each state of it."""
    version: int = connection.execute("SELECT list_version FROM ssb_instance").get
    return version


def load(connection: Connection) -> tuple[RegisteredDatabase, ...]:
    """Reads the registry in the order of the ids."""
    rows = connection.execute(
        "SELECT database_id, name, file, service_broker_guid, is_broker_enabled FROM ssb_databases ORDER BY database_id"
    )
    return tuple(
        RegisteredDatabase(number, name, file, guid, bool(enabled)) for number, name, file, guid, enabled in rows
    )


def is_msdb(connection: Connection) -> bool:
    """Whether a file is the msdb of an instance."""
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'ssb_databases'").get is not None


def has_only_broker_tables(connection: Connection) -> bool:
    """Whether a file contains no tables of an application."""
    found = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE tbl_name NOT LIKE 'ssb\\_%' ESCAPE '\\' AND tbl_name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return found.get is None


def find_enabled_duplicate(connection: Connection, *, service_broker_guid: bytes, name: str) -> str | None:
    """Returns the name of another enabled database with a broker id; None if there is none."""
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
    """Updates broker id and state of a database."""
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


def stored_file_identity(path: Path) -> tuple[int, int] | None:
    """Returns device and inode of a file as the registry stores them; None if the file does not exist."""
    found = file_identity(str(path))
    return None if found is None else (found[0] & _INODE_BITS, found[1] & _INODE_BITS)


def read_owner(connection: Connection) -> FileOwner:
    """Reads the owner that the file records."""
    attached_to, device, inode = single_row(connection, "SELECT attached_to, device, inode FROM ssb_database")
    return FileOwner(attached_to, None if device is None else (device, inode))


def record_owner(connection: Connection, owner: FileOwner) -> None:
    """Records the owner of the file."""
    device, inode = owner.identity or (None, None)
    connection.execute(
        "UPDATE ssb_database SET attached_to = ?, device = ?, inode = ?, catalog_version = random()",
        (owner.attached_to, device, inode),
    )


def _bump_version(connection: Connection) -> None:
    connection.execute("UPDATE ssb_instance SET list_version = random()")
