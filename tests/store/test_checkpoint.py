"""Committed data reach the file itself even if others use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from ssbroker.exceptions import LockTimeoutError
from ssbroker.store.database_file import DatabaseFile
from tests.store.numbered_rows import MIGRATIONS, numbers, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.sqlite"


@pytest.fixture
def file(path: Path) -> Iterator[DatabaseFile]:
    with closing(DatabaseFile.create(path, MIGRATIONS, lock_timeout=60.0)) as file:
        write(file, 1)
        yield file


@pytest.fixture
def reads(file: DatabaseFile, path: Path) -> Iterator[apsw.Connection]:
    """A reader with a snapshot from before the last commit."""
    with closing(apsw.Connection(str(path))) as reads:
        reads.execute("BEGIN")
        assert reads.execute("SELECT count(*) FROM numbers").get == 1
        write(file, 2)
        yield reads


def log_bytes(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_a_checkpoint_waits_for_another_one(file: DatabaseFile, reads: apsw.Connection, path: Path) -> None:
    """SQLite does not call the busy handler for a concurrent checkpoint: it returns immediately."""
    thread = threading.Thread(target=file.checkpoint)

    def gives_up(_looks: int) -> bool:
        thread.start()
        thread.join(0.2)
        return False

    with closing(apsw.Connection(str(path))) as other:
        other.set_busy_handler(gives_up)
        is_busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").get
    assert is_busy
    assert thread.is_alive()
    reads.execute("COMMIT")
    thread.join()
    assert log_bytes(path) == 0
    assert numbers(file) == [1, 2]


def test_an_incomplete_checkpoint_is_reported(file: DatabaseFile, reads: apsw.Connection, path: Path) -> None:
    file.lock_timeout = 0.1
    with pytest.raises(LockTimeoutError, match=r"other connections were reading or writing for more than 0\.1 s"):
        file.checkpoint()
    assert log_bytes(path) > 0
    reads.execute("COMMIT")
    file.checkpoint()
    assert log_bytes(path) == 0
