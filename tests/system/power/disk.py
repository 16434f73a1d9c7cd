"""A disk that loses power: synced data are kept; unsynced data may be lost in any order and torn at sectors.

Two consecutive writes that meet in a sector reach the disk together with that sector. Otherwise SQLite fails in one of about 300,000
states: the checksum of a log frame does not change if, in the header of page 1, the number of pages falls by one while the first free
page and the number of free pages rise by one, so that an older page 1 is accepted under a newer frame header, which precedes it by 24
bytes. A real disk could lose one without the other only by losing half a sector. For the same reason workloads write random content:
regular pages that differ regularly have equal checksums too.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Final

from tests.system.power.recording import Create, Delete, Mark, Operation, Sync, Truncate, Write

SECTOR: Final = 512

Change = Write | Truncate
Survivors = Callable[[list[Change], random.Random], list[Change]]
"""Selects the unsynced changes that survive, in the order in which they reached the disk."""


@dataclasses.dataclass(slots=True)
class _File:
    synced: bytearray = dataclasses.field(default_factory=bytearray)
    pending: list[Change] = dataclasses.field(default_factory=list)


class Disk:
    """Replays a trace; `cut` returns the files after a power cut at that point."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._pending_names: list[Create | Delete] = []

    def apply(self, operation: Operation) -> None:
        """Applies the next operation of the trace."""
        match operation:
            case Write():
                _join(self._files[operation.inode].pending, operation)
            case Truncate():
                self._files[operation.inode].pending.append(operation)
            case Create():
                self._files[operation.inode] = _File()
                self._pending_names.append(operation)
            case Delete():
                self._pending_names.append(operation)
                if operation.folder:
                    self._sync_folder()
            case Sync():
                file = self._files[operation.inode]
                for change in file.pending:
                    _change(file.synced, change)
                file.pending.clear()
                if operation.folder:
                    self._sync_folder()
            case Mark():
                pass

    def cut(self, survivors: Survivors, rng: random.Random) -> dict[str, bytes]:
        """Returns the files by name."""
        names = dict(self._names)
        for entry in self._pending_names[: rng.randint(0, len(self._pending_names))]:
            _rename(names, entry)
        return {name: self._content(self._files[inode], survivors, rng) for name, inode in names.items()}

    def _content(self, file: _File, survivors: Survivors, rng: random.Random) -> bytes:
        content = bytearray(file.synced)
        for change in survivors(file.pending, rng):
            _change(content, change)
        return bytes(content)

    def _sync_folder(self) -> None:
        for entry in self._pending_names:
            _rename(self._names, entry)
        self._pending_names.clear()


def lost(_pending: list[Change], _rng: random.Random) -> list[Change]:
    """Loses all unsynced operations."""
    return []


def all_kept(pending: list[Change], _rng: random.Random) -> list[Change]:
    """Keeps all of them, as when only the process dies."""
    return pending


def prefix(pending: list[Change], rng: random.Random) -> list[Change]:
    """Keeps the first ones; the last of them may be torn."""
    first = pending[: rng.randint(0, len(pending))]
    return [*first[:-1], *sectors(first[-1:], rng)]


def subset(pending: list[Change], rng: random.Random) -> list[Change]:
    """Keeps any of them."""
    share = rng.random()
    return [change for change in pending if rng.random() < share]


def reordered(pending: list[Change], rng: random.Random) -> list[Change]:
    """Keeps any of them in any order: of two writes to one place the earlier may win."""
    found = subset(pending, rng)
    rng.shuffle(found)
    return found


def sectors(pending: list[Change], rng: random.Random) -> list[Change]:
    """Keeps any sectors: every write may be torn, and a file may have grown without its content."""
    share = rng.random()
    found: list[Change] = []
    for change in pending:
        if isinstance(change, Truncate):
            found += [change] if rng.random() < share else []
            continue
        for sector in _sectors(change):
            if rng.random() < share:
                found.append(sector)
            elif rng.random() < share:
                found.append(Write(sector.inode, sector.end, b""))  # the file has grown anyway
    return found


FATES: Final[tuple[Survivors, ...]] = (lost, all_kept, prefix, subset, reordered, sectors)


def _change(content: bytearray, change: Change) -> None:
    if isinstance(change, Truncate):
        if change.size < len(content):
            del content[change.size :]
        else:
            content.extend(bytes(change.size - len(content)))
        return
    if change.offset > len(content):
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


def _sectors(write: Write) -> Iterator[Write]:
    start = write.offset
    while start < write.end:
        end = min(write.end, start - start % SECTOR + SECTOR)
        yield write.part(start, end)
        start = end


def _join(pending: list[Change], write: Write) -> None:
    """Adds a write; a sector shared with the previous one becomes a write of its own."""
    before = pending[-1] if pending else None
    meets = isinstance(before, Write) and before.end == write.offset and write.offset % SECTOR != 0
    if not meets or not isinstance(before, Write):
        pending.append(write)
        return
    sector = write.offset - write.offset % SECTOR
    start, end = max(sector, before.offset), min(sector + SECTOR, write.end)
    pending.pop()
    parts = (
        before.part(before.offset, start),
        Write(write.inode, start, before.part(start, before.end).data + write.part(write.offset, end).data),
        write.part(end, write.end),
    )
    pending += [part for part in parts if part.data]


def _rename(names: dict[str, int], entry: Create | Delete) -> None:
    if isinstance(entry, Create):
        names[entry.name] = entry.inode
    else:
        names.pop(entry.name, None)
