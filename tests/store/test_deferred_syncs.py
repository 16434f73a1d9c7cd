"""A commit that is not durable defers its sync to a later one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw
import pytest

from ssbroker.exceptions import StorageError
from ssbroker.store.database_file import DatabaseFile
from tests.store.numbered_rows import MIGRATIONS, body, numbers, numbers_at

NAME: Final = "observed log"


class ObservedLog(apsw.VFS):
    """SQLite's own file system.

    Attributes:
        syncs: How often a log was synced.
        writes: The first byte and the length of each write to a log.
        fails: Whether the next sync of a log fails.
    """

    def __init__(self) -> None:
        self.syncs = 0
        self.writes: list[tuple[int, int]] = []
        self.fails = False
        super().__init__(NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        return _Log(self, name, flags) if flags[0] & apsw.SQLITE_OPEN_WAL else super().xOpen(name, flags)


class _Log(apsw.VFSFile):
    def __init__(self, system: ObservedLog, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._system = system
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._system.writes.append((offset, len(data)))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._system.syncs += 1
        if self._system.fails:
            self._system.fails = False
            raise apsw.IOError("the disk failed")
        super().xSync(flags)


@pytest.fixture
def log() -> Iterator[ObservedLog]:
    found = ObservedLog()
    yield found
    found.unregister()


@pytest.fixture
def file(tmp_path: Path, log: ObservedLog) -> Iterator[DatabaseFile]:
    """A file with number 0, whose log is synced."""
    with closing(DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS, vfs=NAME)) as found:
        put(found, 0)
        log.syncs, log.writes = 0, []
        yield found


def put(file: DatabaseFile, number: int, *, is_durable: bool = True) -> None:
    with file.write(is_durable=is_durable) as connection:
        connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, body(number)))


def test_a_commit_that_is_not_durable_is_visible_and_not_synced(file: DatabaseFile, log: ObservedLog) -> None:
    put(file, 1, is_durable=False)
    assert (numbers(file), log.syncs) == ([0, 1], 0)
    with closing(DatabaseFile.open(file.path, MIGRATIONS)) as other:
        assert numbers(other) == [0, 1]


def test_sync_syncs_the_log_once_for_all_commits_before(file: DatabaseFile, log: ObservedLog) -> None:
    put(file, 1, is_durable=False)
    put(file, 2, is_durable=False)
    file.sync()
    assert log.syncs == 1
    file.sync()
    assert log.syncs == 1


def test_a_later_durable_commit_syncs_them_too(file: DatabaseFile, log: ObservedLog) -> None:
    put(file, 1, is_durable=False)
    put(file, 2)
    assert log.syncs == 1
    file.sync()
    assert log.syncs == 1


def test_nothing_is_synced_if_all_commits_were_durable(file: DatabaseFile, log: ObservedLog) -> None:
    put(file, 1)
    assert log.syncs == 1
    file.sync()
    assert log.syncs == 1


def test_a_transaction_without_changes_leaves_no_sync_to_others(file: DatabaseFile, log: ObservedLog) -> None:
    with file.write(is_durable=False):
        pass
    put(file, 1)
    assert log.syncs == 1


def test_after_a_failed_sync_the_commits_are_written_again(file: DatabaseFile, log: ObservedLog) -> None:
    """The system may have dropped what it could not write, although it still shows it to readers."""
    put(file, 1, is_durable=False)
    put(file, 2, is_durable=False)
    written = [place for place in log.writes if place[1] > 4096]
    first, end = written[0][0], sum(written[-1])
    log.writes, log.fails = [], True
    with pytest.raises(StorageError):
        file.sync()
    assert log.writes == []
    file.sync()
    assert (log.writes[0][0], sum(log.writes[-1])) == (first, end)
    assert sum(length for _, length in log.writes) == end - first
    log.writes = []
    file.sync()
    assert log.writes == []
    assert numbers(file) == numbers_at(file.path) == [0, 1, 2]


def test_a_failure_is_over_once_a_later_commit_is_synced(file: DatabaseFile, log: ObservedLog) -> None:
    log.fails = True
    with pytest.raises(StorageError):
        put(file, 1)
    assert file.failure is not None
    file.sync()
    assert file.failure is not None
    put(file, 2, is_durable=False)
    assert file.failure is not None
    file.sync()
    assert file.failure is None


def test_commits_are_not_written_again_while_another_process_may_write(file: DatabaseFile, log: ObservedLog) -> None:
    """It may have restarted the log, and then its frames are where ours were."""
    put(file, 1, is_durable=False)
    log.fails = True
    with pytest.raises(StorageError):
        file.sync()
    with closing(apsw.Connection(str(file.path))) as other:
        other.execute("BEGIN IMMEDIATE")
        log.writes = []
        with pytest.raises(StorageError):
            file.sync()
        assert log.writes == []
        other.execute("ROLLBACK")
    file.sync()
    assert log.writes


def test_a_durable_commit_after_a_failed_sync_writes_the_others_again(file: DatabaseFile, log: ObservedLog) -> None:
    put(file, 1, is_durable=False)
    first = next(offset for offset, length in log.writes if length > 4096)
    log.fails = True
    with pytest.raises(StorageError):
        file.sync()
    log.writes = []
    put(file, 2)
    assert first in {offset for offset, _ in log.writes}
    assert numbers(file) == [0, 1, 2]


def test_commits_after_a_restart_of_the_log_are_written_again(file: DatabaseFile, log: ObservedLog) -> None:
    """Another process restarts the log after it has synced all commits before; the next commit is at its beginning."""
    for number in range(1, 20):
        put(file, number, is_durable=False)
    with closing(apsw.Connection(str(file.path))) as other:
        assert other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()[0][0] == 0
        other.execute("DELETE FROM numbers WHERE number = 19")
    log.writes = []
    put(file, 20, is_durable=False)
    first = next(offset for offset, length in log.writes if length > 4096)
    log.fails = True
    with pytest.raises(StorageError):
        file.sync()
    log.writes = []
    file.sync()
    assert first in {offset for offset, _ in log.writes}
    assert numbers(file) == numbers_at(file.path) == [*range(19), 20]
