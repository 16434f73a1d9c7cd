"""Decides which database files belong to an instance, by the owner that each file records."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ssbroker.store.sqlite import Connection, file_identity, single_row

DROPPED: Final = bytes(16)
"""Owner that marks a file as dropped; such a file may be deleted."""
_INODE_BITS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FileOwner:
    """The owner that a database file records (None for none), and the identity of the file when it was attached."""

    attached_to: bytes | None
    identity: tuple[int, int] | None


class FileOwnership:
    """Decides which files belong to an instance.

    A file in the instance folder records the instance id as its owner; it is copied and moved with the folder. A
    file elsewhere is not copied with the folder, so it records an id that is also derived from the inode of msdb. A
    restored or copied msdb therefore does not own the files that the original has attached from other folders. This
    applies even if these files were later detached, or replaced with a backup.

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
        """Returns whether the instance may use a file that its registry lists and that records the owner `found`."""
        if path.is_relative_to(self._folder) or self._is_msdb_original:
            return not self.is_foreign(path, found)
        return found.attached_to == self.owner_id(path)

    def is_foreign(self, path: Path, found: FileOwner) -> bool:
        """Returns whether a file that records the owner `found` is attached to another instance. A copy is a new file, and belongs to no instance."""
        if found.attached_to in (None, self.owner_id(path)) or found.identity != stored_file_identity(path):
            return False
        # Earlier versions recorded the instance id in all files; a file that was moved out of the folder also records
        # it.
        return found.attached_to != self.instance_id or not self._is_msdb_original


def _inode(identity: tuple[int, int] | None) -> int | None:
    """Returns the inode, or None if there is no file. The device is not included, because its number may change when the machine restarts."""
    return None if identity is None else identity[1]


def stored_file_identity(path: Path) -> tuple[int, int] | None:
    """Returns the device and inode of a file as the registry stores them; None if the file does not exist."""
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
