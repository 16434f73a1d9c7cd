"""A disk that is full or fails at any call: a clear error, nothing lost, nothing half done, and work continues afterwards."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Final

import apsw
import pytest

from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store.database_file import DatabaseFile
from tests.store.failing_calls import FailingCalls, Kind, failing_calls
from tests.store.numbered_rows import MIGRATIONS, body, expected, numbers, numbers_after_a_kill, numbers_at, write

TRANSACTIONS: Final = 8
FAILS: Final[tuple[Kind, ...]] = ("full", "write", "read", "truncate", "open")
HARMLESS: Final[tuple[Kind, ...]] = ("short", "interrupted")


def errors_of(file: DatabaseFile, number: int) -> list[StorageError]:
    """Returns the error that a transaction raises, if any."""
    try:
        write(file, number)
    except StorageError as error:
        return [error]
    return []


def write_all(disk: FailingCalls, path: Path, folder: Path) -> tuple[list[int], list[StorageError]]:
    """Runs transactions while the disk fails. After each, a reader after a kill finds those that returned and no others."""
    written: list[int] = []
    errors: list[StorageError] = []
    with closing(DatabaseFile.open(path, MIGRATIONS)) as file:
        fails_at = disk.fails_at
        for number in range(TRANSACTIONS):
            found = errors_of(file, number)
            written += [] if found else [number]
            errors += found
            asked, disk.fails_at = disk.asked, 0
            assert numbers_after_a_kill(path, folder / f"{path.stem}.{number}") == expected(written)
            disk.asked, disk.fails_at = asked, fails_at
        disk.fails_at = 0
        assert numbers(file) == expected(written)
        write(file, TRANSACTIONS)
    assert numbers_at(path) == expected([*written, TRANSACTIONS])
    return written, errors


@pytest.mark.parametrize("lasts", [True, False], ids=["lasting", "once"])
@pytest.mark.parametrize("kind", FAILS)
def test_a_failure_at_every_call(tmp_path: Path, kind: Kind, lasts: bool) -> None:  # noqa: FBT001  # pytest gives it by name
    with failing_calls(kind) as disk:
        for attempt in count(1):
            path = tmp_path / f"{attempt}.sqlite"
            DatabaseFile.create(path, MIGRATIONS).close()
            disk.lasts, disk.asked, disk.fails_at = lasts, 0, attempt
            try:
                _, errors = write_all(disk, path, tmp_path)
            except StorageError as unopened:
                errors = [unopened]
                disk.fails_at = 0
            for error in errors:
                assert error.file == str(path)
                assert str(path) in str(error)
                assert not isinstance(error, LockTimeoutError)
            if disk.asked < attempt:
                break
        assert attempt > 1


@pytest.mark.parametrize("kind", HARMLESS)
def test_short_and_interrupted_writes_are_retried(tmp_path: Path, kind: Kind) -> None:
    """They are not errors."""
    with failing_calls(kind) as disk:
        for attempt in range(1, 40):
            path = tmp_path / f"{attempt}.sqlite"
            DatabaseFile.create(path, MIGRATIONS).close()
            disk.lasts, disk.asked, disk.fails_at = False, 0, attempt
            written, errors = write_all(disk, path, tmp_path)
            assert (written, errors) == (list(range(TRANSACTIONS)), [])


@pytest.mark.parametrize("kind", FAILS)
def test_creating_a_file_can_be_retried(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "file.sqlite"
    with failing_calls(kind) as disk:
        for attempt in count(1):
            disk.asked, disk.fails_at = 0, attempt
            try:
                DatabaseFile.create(path, MIGRATIONS).close()
            except StorageError:
                disk.fails_at = 0
                continue
            break
        assert attempt > 1 or kind == "truncate"
    assert numbers_at(path) == []


def test_a_transaction_rolled_back_by_sqlite_rejects_statements(tmp_path: Path) -> None:
    """SQLite rolls back if the disk is full while it spills its cache; later statements must not commit alone."""
    path = tmp_path / "file.sqlite"
    with failing_calls("full") as disk, closing(DatabaseFile.create(path, MIGRATIONS)) as file:
        session = file.session()
        connection = session.begin()
        connection.pragma("cache_size", 1)
        disk.asked, disk.fails_at = 0, 1
        with pytest.raises(apsw.FullError):
            connection.executemany(
                "INSERT INTO numbers VALUES (?, ?)", ((number, body(number)) for number in range(50))
            )
        disk.fails_at = 0
        assert not connection.in_transaction
        with pytest.raises(StorageError, match="no changes were saved"):
            session.begin()
        with pytest.raises(StorageError, match="no changes were saved"):
            connection.execute("INSERT INTO numbers VALUES (1000, NULL)")
        with pytest.raises(StorageError, match="no changes were saved"):
            session.commit()
        assert numbers(file) == []
        write(file, 1)
    assert numbers_at(path) == [1]


@pytest.mark.parametrize("rows", [5, 8, 11, 15, 30])
def test_a_statement_rolled_back_by_sqlite_leaves_earlier_ones(tmp_path: Path, rows: int) -> None:
    """If the disk is full while a spilled page is read again, SQLite may undo only that statement, and the rest may be committed."""
    path = tmp_path / "file.sqlite"
    with failing_calls("full") as disk, closing(DatabaseFile.create(path, MIGRATIONS)) as file:
        session = file.session()
        connection = session.begin()
        connection.pragma("cache_size", 1)
        for number in range(rows):
            connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, body(number)))
        disk.asked, disk.fails_at = 0, 1
        with pytest.raises(apsw.FullError):
            connection.execute("UPDATE numbers SET number = number + 1000, body = body")
        disk.fails_at = 0
        assert connection.in_transaction
        connection.execute("INSERT INTO numbers VALUES (?, ?)", (rows, body(rows)))
        session.commit()
        assert numbers(file) == [*range(rows + 1)]
        assert numbers_after_a_kill(path, tmp_path / "killed") == [*range(rows + 1)]
