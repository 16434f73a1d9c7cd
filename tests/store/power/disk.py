"""A disk whose power may go: what was synced is there, of what was not anything may be there, in any order, torn at sectors.

Two writes that follow one another and meet in a sector reach the disk with that sector together. Without this SQLite fails, once in some
300,000 states: it tells a frame of its log from an older one by a sum that stays the same where, in the head of page 1, the number of pages
falls by one while the first free page and the number of free pages rise by one. An older page 1 under the newer header of its frame, 24
bytes before it, then passes. Nobody can lose the one without the other but by losing half of a sector. For the same reason what a
workload writes has to be random: regular pages that differ regularly have the same sum too.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Final

from tests.store.power.recording import Create, Delete, Mark, Operation, Sync, Truncate, Write

SECTOR: Final = 512

Change = Write | Truncate
Survivors = Callable[[list[Change], random.Random], list[Change]]
"""Which changes that were not synced are there after all, in the order in which they reached the disk."""


@dataclasses.dataclass(slots=True)
class _File:
    synced: bytearray = dataclasses.field(default_factory=bytearray)
    pending: list[Change] = dataclasses.field(default_factory=list)


class Disk:
    """Follows a trace; `cut` says what is found when the power goes right now."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._pending_names: list[Create | Delete] = []

    def apply(self, operation: Operation) -> None:
        """The next operation of the trace."""
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

    def cut(self, survivors: Survivors, chance: random.Random) -> dict[str, bytes]:
        """The files by name."""
        names = dict(self._names)
        for entry in self._pending_names[: chance.randint(0, len(self._pending_names))]:
            _rename(names, entry)
        return {name: self._content(self._files[inode], survivors, chance) for name, inode in names.items()}

    def _content(self, file: _File, survivors: Survivors, chance: random.Random) -> bytes:
        content = bytearray(file.synced)
        for change in survivors(file.pending, chance):
            _change(content, change)
        return bytes(content)

    def _sync_folder(self) -> None:
        for entry in self._pending_names:
            _rename(self._names, entry)
        self._pending_names.clear()


def lost(_pending: list[Change], _chance: random.Random) -> list[Change]:
    """Nothing of it."""
    return []


def kept(pending: list[Change], _chance: random.Random) -> list[Change]:
    """All of it, as when only the process died."""
    return pending


def prefix(pending: list[Change], chance: random.Random) -> list[Change]:
    """What came first; the last of it may be torn."""
    first = pending[: chance.randint(0, len(pending))]
    return [*first[:-1], *sectors(first[-1:], chance)]


def subset(pending: list[Change], chance: random.Random) -> list[Change]:
    """Any of it."""
    share = chance.random()
    return [change for change in pending if chance.random() < share]


def reordered(pending: list[Change], chance: random.Random) -> list[Change]:
    """Any of it, in any order: of two writes to one place the earlier may win."""
    found = subset(pending, chance)
    chance.shuffle(found)
    return found


def sectors(pending: list[Change], chance: random.Random) -> list[Change]:
    """Any sectors of it: every write may be torn, and a file may have grown without what was written there."""
    share = chance.random()
    found: list[Change] = []
    for change in pending:
        if isinstance(change, Truncate):
            found += [change] if chance.random() < share else []
            continue
        for sector in _sectors(change):
            if chance.random() < share:
                found.append(sector)
            elif chance.random() < share:
                found.append(Write(sector.inode, sector.end, b""))  # the file has grown nevertheless
    return found


FATES: Final[tuple[Survivors, ...]] = (lost, kept, prefix, subset, reordered, sectors)


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
    """Adds a write; the sector in which it meets the one before becomes a write of its own."""
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
