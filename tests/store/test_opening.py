"""Opening of files, and errors for files that cannot be opened."""

from __future__ import annotations

import errno
import pickle
import random
import threading
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw
import pytest

from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store import sqlite
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.schema import DATABASE
from tests.store.failing_calls import failing_calls
from tests.store.numbered_rows import MIGRATIONS, numbers, numbers_at, write
from tests.unprivileged import nobody

MORE: Final = (*MIGRATIONS, "CREATE TABLE more (thing)")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the numbers 0 to 9, of which the last three remain."""
    path = tmp_path / "file.sqlite"
    with closing(DatabaseFile.create(path, MIGRATIONS)) as file:
        for number in range(10):
            write(file, number)
    return path


def test_opened_files_are_durable(path: Path) -> None:
    with closing(DatabaseFile.open(path, MIGRATIONS)) as file, file.write() as connection:
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("synchronous") == 2
        assert connection.pragma("foreign_keys") == 1


def test_a_file_with_another_page_size_keeps_it(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("journal_mode", "delete")
        connection.pragma("page_size", 8192)
        connection.execute("VACUUM")
    with closing(DatabaseFile.open(path, MIGRATIONS)) as file:
        write(file, 10)
        with file.read() as connection:
            assert connection.pragma("page_size") == 8192
    assert numbers_at(path) == [8, 9, 10]


@pytest.mark.parametrize("name", ["missing.sqlite", "no/folder.sqlite"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="no such file") as caught:
        DatabaseFile.open(tmp_path / name, MIGRATIONS)
    assert caught.value.file == str(tmp_path / name)
    assert caught.value.errno == errno.ENOENT
    assert not (tmp_path / name).exists()


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite reports an I/O error when there is no space for the index of the log."""
    monkeypatch.setattr(sqlite, "free_bytes", lambda _path: 0)
    with failing_calls("write") as disk:
        disk.asked, disk.fails_at = 0, 1
        with pytest.raises(StorageError) as caught, closing(DatabaseFile.open(path, MIGRATIONS)) as file:
            write(file, 10)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert str(error) == f"{path}: no space is left on its disk"
        assert (error.errno, error.file) == (errno.ENOSPC, str(path))


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a folder"):
        DatabaseFile.open(tmp_path, MIGRATIONS)


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        DatabaseFile.create(tmp_path / "no" / "folder.sqlite", MIGRATIONS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"a letter", bytes(100_000)], ids=["empty", "text", "zeros"])
def test_a_file_of_another_format(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    with pytest.raises(StorageError):
        DatabaseFile.open(path, MIGRATIONS)
    assert path.read_bytes() == content


@pytest.mark.parametrize("make", [DatabaseFile.open, DatabaseFile.create])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_sqlite_file_of_another_application_is_not_changed(tmp_path: Path, make: object, mode: str) -> None:
    path = tmp_path / "theirs.sqlite"
    with closing(apsw.Connection(str(path))) as theirs:
        theirs.pragma("journal_mode", mode)
        theirs.execute("CREATE TABLE things (thing)")
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"not a database file of an instance|is not empty"):
        make(path, MIGRATIONS)  # type: ignore[operator]  # both take these
    assert path.read_bytes() == before


def test_creating_an_existing_file(path: Path) -> None:
    with pytest.raises(StorageError, match="is not empty"):
        DatabaseFile.create(path, MIGRATIONS)
    assert numbers_at(path) == [7, 8, 9]


def test_one_of_several_threads_creates_the_file(tmp_path: Path) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(4)

    def make() -> None:
        start.wait()
        try:
            DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS).close()
            outcomes.append("made")
        except StorageError as error:
            outcomes.append(str(error).rpartition(": ")[2])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [*["is not empty"] * 3, "made"]
    assert numbers_at(tmp_path / "file.sqlite") == []


def test_creating_a_file_waits_for_its_lock(tmp_path: Path) -> None:
    """SQLite itself does not wait for locks while it switches a file to a write-ahead log."""
    path = tmp_path / "file.sqlite"
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockTimeoutError, match=r"locked by other writers for more than 0\.2 s"):
            DatabaseFile.create(path, MIGRATIONS, lock_timeout=0.2)
        lets_go = threading.Timer(0.2, other.execute, ["ROLLBACK"])
        lets_go.start()
        DatabaseFile.create(path, MIGRATIONS).close()
        lets_go.join()
    assert numbers_at(path) == []


def test_a_read_only_file(open_to_all: Path) -> None:
    path = open_to_all / "file.sqlite"
    DatabaseFile.create(path, MIGRATIONS).close()
    path.chmod(0o444)
    with nobody(), pytest.raises(StorageError, match="read-only"):
        DatabaseFile.open(path, MIGRATIONS)
    path.chmod(0o644)
    assert numbers_at(path) == []


def test_a_read_only_folder(open_to_all: Path) -> None:
    path = open_to_all / "file.sqlite"
    DatabaseFile.create(path, MIGRATIONS).close()
    path.chmod(0o666)
    open_to_all.chmod(0o555)
    with nobody():
        with pytest.raises(StorageError, match="its folder is read-only"):
            DatabaseFile.open(path, MIGRATIONS)
        with pytest.raises(StorageError):
            DatabaseFile.create(open_to_all / "another.sqlite", MIGRATIONS)
    open_to_all.chmod(0o755)
    assert numbers_at(path) == []


def test_an_inaccessible_folder(open_to_all: Path) -> None:
    path = open_to_all / "file.sqlite"
    DatabaseFile.create(path, MIGRATIONS).close()
    open_to_all.chmod(0o600)
    with nobody():
        for make in (DatabaseFile.open, DatabaseFile.create):
            with pytest.raises(StorageError, match="Permission denied") as caught:
                make(path, MIGRATIONS)
            assert caught.value.file == str(path)
    open_to_all.chmod(0o755)
    assert numbers_at(path) == []


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="File name too long"):
        DatabaseFile.open(tmp_path / f"{'x' * 300}.sqlite", MIGRATIONS)


def test_a_file_system_without_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="write-ahead log"):
        DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS, vfs="unix-none")


def test_a_truncated_file_is_reported_or_read_completely(path: Path) -> None:
    """Truncated at any page and within pages: an error, never other rows."""
    content = path.read_bytes()
    for size in range(0, len(content), 2048):
        path.write_bytes(content[:size])
        with pytest.raises(StorageError):
            numbers_at(path)
    path.write_bytes(content)
    assert numbers_at(path) == [7, 8, 9]


def test_a_corrupt_page_is_reported(path: Path) -> None:
    """A page of keys or rows; SQLite has no checksum of bodies."""
    content = path.read_bytes()
    leaf, size = b"\x0d", int.from_bytes(content[16:18])
    starts = [start for start in range(size, len(content), size) if content[start : start + 1] == leaf]
    assert starts
    for start in starts:
        path.write_bytes(content[:start] + random.Random(start).randbytes(size) + content[start + size :])
        with pytest.raises(StorageError, match="malformed"):
            numbers_at(path)


def test_a_newer_version_is_rejected_and_unchanged(path: Path) -> None:
    DatabaseFile.open(path, MORE).close()
    with pytest.raises(
        StorageError, match="has format version 2; this library supports versions up to 1; upgrade ssbroker"
    ):
        DatabaseFile.open(path, MIGRATIONS)
    with closing(DatabaseFile.open(path, MORE)) as file, file.read() as connection:
        assert connection.pragma("user_version") == 2


def test_an_older_version_is_migrated(path: Path) -> None:
    with closing(DatabaseFile.open(path, MORE)) as file:
        with file.write() as connection:
            connection.execute("INSERT INTO more VALUES ('new')")
        assert numbers(file) == [7, 8, 9]


def test_a_failed_migration_leaves_the_old_version(path: Path) -> None:
    with pytest.raises(StorageError, match="the tables do not match the schema version: table more already exists"):
        DatabaseFile.open(path, (*MORE, "CREATE TABLE more (again)"))
    with closing(DatabaseFile.open(path, MORE)) as file:
        assert numbers(file) == [7, 8, 9]


@pytest.mark.parametrize("version", [0, 3, len(DATABASE) - 1, len(DATABASE) + 1, 20261129, -1])
def test_a_version_that_another_program_has_changed_is_reported(tmp_path: Path, version: int) -> None:
    """The file is not upgraded, and can be used when the version is set back."""
    path = tmp_path / "x.sqlite"
    DatabaseFile.create(path, DATABASE).close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("user_version", version)
        before = connection.execute("SELECT * FROM sqlite_schema").fetchall()
    expected = rf"user_version is {version}, but the tables are those of version {len(DATABASE)}: another program.*user_version = {len(DATABASE)}$"
    with pytest.raises(StorageError, match=expected):
        DatabaseFile.open(path, DATABASE)
    with closing(apsw.Connection(str(path))) as connection:
        assert (connection.pragma("user_version"), connection.execute("SELECT * FROM sqlite_schema").fetchall()) == (
            version,
            before,
        )
        connection.pragma("user_version", len(DATABASE))
    DatabaseFile.open(path, DATABASE).close()


def test_an_application_id_that_another_program_has_changed_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    DatabaseFile.create(path, DATABASE).close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("application_id", 17)
    with pytest.raises(
        StorageError,
        match=r"x\.sqlite: PRAGMA application_id is 17 instead of 1397965426: another .* PRAGMA application_id = 1397965426$",
    ):
        DatabaseFile.open(path, DATABASE)
    with closing(apsw.Connection(str(tmp_path / "other.sqlite"))) as connection:
        connection.execute("CREATE TABLE a (b)")
    with pytest.raises(StorageError, match="not a database file of an instance: PRAGMA application_id is 0 instead"):
        DatabaseFile.open(tmp_path / "other.sqlite", DATABASE)
