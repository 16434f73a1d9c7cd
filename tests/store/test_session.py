"""One transaction, committed completely or not at all, whatever is done with its connection."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store.database_file import DatabaseFile
from tests.store.numbered_rows import MIGRATIONS, numbers, write

INSERT = "INSERT INTO numbers VALUES (?, x'00')"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DatabaseFile]:
    file = DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS, lock_timeout=0.05)
    yield file
    file.close()


def count(file: DatabaseFile) -> object:
    with file.read() as connection:
        return connection.execute("SELECT count(*) FROM numbers").get


def test_the_lock_is_acquired_at_the_first_use(file: DatabaseFile) -> None:
    session = file.session()
    assert not session.has_begun
    write(file, 1)
    session.begin()
    with pytest.raises(LockTimeoutError):
        write(file, 2)
    session.close()
    write(file, 2)
    assert numbers(file) == [1, 2]


def test_an_exception_rolls_back(file: DatabaseFile) -> None:
    with pytest.raises(RuntimeError), file.write() as connection:
        connection.execute(INSERT, (1,))
        raise RuntimeError
    assert count(file) == 0
    write(file, 2)


def test_a_closed_session_has_changed_nothing(file: DatabaseFile) -> None:
    session = file.session()
    session.begin().execute(INSERT, (1,))
    assert session.has_begun
    session.close()
    session.close()
    session.commit()
    assert count(file) == 0


def test_the_error_names_the_file_and_the_wait(file: DatabaseFile) -> None:
    with ThreadPoolExecutor(1) as other, file.write():
        refused = other.submit(write, file, 1).exception()
    assert isinstance(refused, LockTimeoutError)
    assert isinstance(refused, TimeoutError)
    assert refused.file == str(file.path)
    assert "more than 0.05 s" in str(refused)
    write(file, 1)


def test_a_pool_thread_waits_for_a_transaction_of_another_thread(tmp_path: Path) -> None:
    """As if each call of a transaction runs on a pool of threads: another thread may release the lock."""
    file = DatabaseFile.create(tmp_path / "pool.sqlite", MIGRATIONS, lock_timeout=30.0)
    with ThreadPoolExecutor(1) as pool, closing(file):
        session = file.session()
        pool.submit(session.begin).result(30.0).execute(INSERT, (1,))
        waits = pool.submit(write, file, 2)
        while not file.write_lock.waiting:
            assert not waits.done()
            time.sleep(0.001)
        session.commit()
        waits.result(30.0)
        assert count(file) == 2


def test_a_timeout_does_not_release_the_lock_of_another_session_of_the_same_holder(file: DatabaseFile) -> None:
    """Two generators of one thread are the same holder."""
    first, second = file.session(holder=1), file.session(holder=1)
    first.begin().execute(INSERT, (1,))
    with pytest.raises(LockTimeoutError):
        second.begin()
    holders = [file.write_lock.holder]
    first.commit()
    holders.append(file.write_lock.holder)
    assert (holders, count(file)) == ([1, None], 1)


def test_a_session_waits_for_other_processes(file: DatabaseFile) -> None:
    """Other openers of the file have their own locks; here two in one process, which SQLite treats alike."""
    other = DatabaseFile.open(file.path, MIGRATIONS, lock_timeout=0.05)
    with other.write() as connection:
        with pytest.raises(LockTimeoutError, match=r"more than 0\.05 s"):
            write(file, 1)
        connection.execute(INSERT, (7,))
    assert count(file) == 1
    write(file, 1)
    other.close()


@pytest.mark.parametrize("sql", ["COMMIT", "END", "COMMIT; INSERT INTO numbers VALUES (2, x'00')"])
def test_sql_cannot_commit(file: DatabaseFile, sql: str) -> None:
    with pytest.raises(StorageError, match="no changes were saved"), file.write() as connection:
        connection.execute(INSERT, (1,))
        connection.execute(sql)
    assert count(file) == 0
    write(file, 3)


def test_sql_that_rolls_back_ends_the_session(file: DatabaseFile) -> None:
    session = file.session()
    session.begin().execute("ROLLBACK")
    with pytest.raises(StorageError, match="no changes were saved"):
        session.begin()
    with pytest.raises(StorageError, match="no changes were saved"):
        session.commit()
    assert not session.has_begun
    write(file, 1)
    assert numbers(file) == [1]


def test_a_reader_cannot_write(file: DatabaseFile) -> None:
    with pytest.raises(StorageError, match="no changes were saved"), file.read() as connection:
        connection.execute(INSERT, (1,))
        connection.execute("COMMIT")
    assert count(file) == 0


def test_errors_of_statements_pass_through(file: DatabaseFile) -> None:
    with pytest.raises(apsw.SQLError, match="no such table"), file.write() as connection:
        connection.execute("SELECT * FROM missing")
    with pytest.raises(apsw.ConstraintError), file.write() as connection:
        connection.execute(INSERT, (1,))
        connection.execute(INSERT, (1,))
    assert count(file) == 0


def test_a_reader_has_a_snapshot(file: DatabaseFile) -> None:
    write(file, 1)
    with file.read() as connection:
        before = connection.execute("SELECT count(*) FROM numbers").get
        write(file, 2)
        assert connection.execute("SELECT count(*) FROM numbers").get == before
    assert count(file) == 2


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_connection_with_an_open_cursor_is_not_reused(file: DatabaseFile, way: str) -> None:
    """It would keep its snapshot, and could not write once others have written."""
    for number in range(3):
        write(file, number)
    with file.write() if way == "write" else file.read() as connection:
        unfinished = connection.execute("SELECT number FROM numbers")
        next(unfinished)
    other = DatabaseFile.open(file.path, MIGRATIONS)
    write(other, 10)
    write(file, 11)
    assert numbers(file) == [0, 1, 2, 10, 11]
    other.close()


def test_closing_a_file_waits_for_its_users(file: DatabaseFile) -> None:
    session = file.session()
    session.begin().execute(INSERT, (1,))
    file.close()
    with pytest.raises(StorageError, match="is closed"):
        file.session().begin()
    with pytest.raises(StorageError, match="is closed"), file.read():
        pass
    session.commit()
    with pytest.raises(StorageError, match="is closed"):
        write(file, 2)
    assert not file.path.with_name(file.path.name + "-wal").exists(), "the last connection is closed too"


def test_threads_take_turns(file: DatabaseFile) -> None:
    file.lock_timeout = 30

    def work(first: int) -> None:
        for number in range(first, first + 20):
            with file.write() as connection:
                connection.execute(INSERT, (number,))
            assert count(file)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 160, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(file) == 160


FORK = """
import os, sys
from pathlib import Path
from ssbroker.exceptions import StorageError
from ssbroker.store.database_file import DatabaseFile

file = DatabaseFile.open(Path(sys.argv[1]), ("",))
session = file.session()
connection = session.begin()
connection.pragma("cache_size", 1)
connection.executemany("INSERT INTO numbers VALUES (?, randomblob(9000))", ((number,) for number in range(50)))
child = os.fork()
if not child:
    refused = 0
    for use in (session.begin, session.commit, file.session().begin, file.read().__enter__):
        try:
            use()
        except StorageError as error:
            refused += "before this process was forked" in str(error)
    session.close()
    file.close()
    try:
        DatabaseFile.open(Path(sys.argv[1]), ("",))
    except StorageError as error:
        refused += "was in use when this process was forked" in str(error)
    sys.exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
session.commit()
with file.read() as connection:
    assert connection.execute("SELECT count(*) FROM numbers").get == 50
    assert connection.pragma("integrity_check") == "ok"
"""


def test_a_forked_process_is_rejected_and_does_no_harm(file: DatabaseFile) -> None:
    """Neither by using the file, nor by closing it or ending while its parent is in a transaction."""
    subprocess.run([sys.executable, "-c", FORK, str(file.path)], check=True, timeout=60)
    assert count(file) == 50
    write(file, 100)
    assert count(file) == 51


FORK_AND_OPEN = """
import os, sys
from pathlib import Path
from ssbroker.store.database_file import DatabaseFile

path = Path(sys.argv[1])
file = DatabaseFile.open(path, ("",))
with file.write() as connection:
    connection.execute("INSERT INTO numbers VALUES (1, NULL)")
ready, go_on = os.pipe(), os.pipe()
if not os.fork():
    mine = DatabaseFile.open(path, ("",))
    for number in (2, 3):
        with mine.write() as connection:
            connection.execute("INSERT INTO numbers VALUES (?, NULL)", (number,))
        os.write(ready[1], b"x")
        os.read(go_on[0], 1)
    os._exit(0)
os.read(ready[0], 1)
file.close()
os.write(go_on[1], b"x")
os.read(ready[0], 1)
again = DatabaseFile.open(path, ("",))
with again.write() as connection:
    connection.execute("INSERT INTO numbers VALUES (4, NULL)")
os.write(go_on[1], b"x")
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


def test_a_forked_process_may_open_the_file_itself(tmp_path: Path) -> None:
    """Neither process takes the locks of the other for its own: closing a file in one does not delete the log that the other writes."""
    path = tmp_path / "file.sqlite"
    DatabaseFile.create(path, MIGRATIONS).close()
    subprocess.run([sys.executable, "-c", FORK_AND_OPEN, str(path)], check=True, timeout=60)
    with closing(DatabaseFile.open(path, MIGRATIONS)) as file, file.read() as connection:
        assert connection.execute("SELECT group_concat(number) FROM numbers").get == "1,2,3,4"
