"""An SQLite virtual file system that records its operations, so that a power cut can be simulated at any point."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

NAME = "recording"
_NEW_JOURNAL = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file, which grows if necessary."""

    inode: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Offset after its last byte."""
        return self.offset + len(self.data)

    def part(self, start: int, end: int) -> Write:
        """Returns the part between two offsets."""
        return Write(self.inode, start, self.data[start - self.offset : end - self.offset])


@dataclasses.dataclass(frozen=True, slots=True)
class Truncate:
    inode: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Sync:
    """Previous writes to the file are on the disk; with `folder`, the entries of the folder too."""

    inode: int
    folder: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    name: str
    inode: int


@dataclasses.dataclass(frozen=True, slots=True)
class Delete:
    name: str
    folder: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A record of the workload: the transaction that it is about to commit, or has committed."""

    word: str
    number: int


Operation = Write | Truncate | Sync | Create | Delete | Mark


class Recording(apsw.VFS):
    """SQLite's own file system, with a record of its operations.

    Attributes:
        trace: Operations in order.
        ignored_syncs: Suffixes of files whose syncs are ignored, as by a disk that does not honor them.
        is_powersafe: Whether partial writes of a sector keep the rest of it (powersafe overwrite).
    """

    def __init__(self, *, ignored_syncs: tuple[str, ...] = (), is_powersafe: bool = True) -> None:
        self.trace: list[Operation] = []
        self.is_powersafe = is_powersafe
        self.ignored_syncs = ignored_syncs
        self._inodes: dict[str, int] = {}
        self._made = 0
        super().__init__(NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        assert name is not None, "a temporary file: keep the transactions small"
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        is_new = path not in self._inodes
        if is_new:
            self._made += 1
            self._inodes[path] = self._made
            self.trace.append(Create(path, self._made))
        return _File(self, path, flags, inode=self._inodes[path], new_name=is_new and bool(flags[0] & _NEW_JOURNAL))

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802  # SQLite's name and signature
        super().xDelete(filename, syncdir)
        del self._inodes[filename]
        self.trace.append(Delete(filename, folder=syncdir))


class _File(apsw.VFSFile):
    def __init__(self, recording: Recording, path: str, flags: list[int], *, inode: int, new_name: bool) -> None:
        self._recording = recording
        self._inode = inode
        self._ignores_sync = path.endswith(recording.ignored_syncs)
        self._new_name = new_name
        super().__init__("", path, flags)

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return super().xDeviceCharacteristics() if self._recording.is_powersafe else 0

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._recording.trace.append(Write(self._inode, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._recording.trace.append(Truncate(self._inode, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        # The real disk need not be synced. As in SQLite, the first sync of a new log also syncs its folder.
        if not self._ignores_sync:
            self._recording.trace.append(Sync(self._inode, folder=self._new_name))
            self._new_name = False


@contextmanager
def recording(*, ignored_syncs: tuple[str, ...] = (), is_powersafe: bool = True) -> Iterator[Recording]:
    """Records operations on files that are opened with the file system `NAME`."""
    found = Recording(ignored_syncs=ignored_syncs, is_powersafe=is_powersafe)
    try:
        yield found
    finally:
        found.unregister()
