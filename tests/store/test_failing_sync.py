"""A commit whose sync fails changes nothing, although its data are in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Final

import apsw
import pytest

from ssbroker.exceptions import StorageError
from ssbroker.store.database_file import DatabaseFile
from tests.store.numbered_rows import MIGRATIONS, expected, numbers, numbers_after_a_kill, numbers_at, write

NAME: Final = "failing sync"


class FailingSync(apsw.VFS):
    """SQLite's own file system, until a sync of the log fails.

    Syncs of checkpoints are not affected: SQLite ignores their errors, but an error raised in Python would reach the caller.
    """

    def __init__(self) -> None:
        self.fails_at = 0
        self.lasts = False
        self.asked = 0
        super().__init__(NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        return _File(self, name, flags)

    def is_time(self) -> bool:
        """Returns whether this sync fails."""
        self.asked += 1
        return 0 < self.fails_at <= self.asked if self.lasts else self.asked == self.fails_at


class _File(apsw.VFSFile):
    def __init__(self, system: FailingSync, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._system = system
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        self._was_written = False
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._was_written = True
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._is_log and self._was_written and self._system.is_time():
            raise apsw.IOError("the disk failed")
        self._was_written = False
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[FailingSync]:
    found = FailingSync()
    yield found
    found.unregister()


@pytest.mark.parametrize("lasts", [True, False], ids=["lasting", "once"])
def test_a_failure_at_every_sync(tmp_path: Path, disk: FailingSync, lasts: bool) -> None:  # noqa: FBT001  # pytest gives it by name
    for attempt in count(1):
        path = tmp_path / f"{attempt}.sqlite"
        with closing(DatabaseFile.create(path, MIGRATIONS, vfs=NAME)) as file:
            disk.lasts, disk.asked, disk.fails_at = lasts, 0, attempt
            written: list[int] = []
            for number in range(6):
                try:
                    write(file, number)
                    written.append(number)
                except StorageError:
                    assert disk.asked >= attempt
                if not lasts:  # if no sync succeeds, the commit cannot be undone on the disk either
                    assert numbers_after_a_kill(path, tmp_path / f"{attempt}.{number}") == expected(written)
                assert numbers(file) == expected(written)
            was_met = disk.asked >= attempt
            disk.fails_at = 0
            write(file, 6)
        assert numbers_at(path) == expected([*written, 6])
        if not was_met:
            assert attempt > 6
            return
