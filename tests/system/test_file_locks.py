"""What else the process does with a database file releases none of the broker's locks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from ssbroker import Database, Instance

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no locks that belong to a file")

PUT = """
import sys
from ssbroker import Instance

with Instance.open(sys.argv[1], background=False, lock_timeout=0.2) as instance:
    instance.database("Sales").queue("Jobs").put(b"from another process")
"""
COUNT = """
import sys
from ssbroker import Instance

with Instance.open(sys.argv[1], background=False) as instance:
    print(instance.database("Sales").queue("Jobs").count())
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.open(tmp_path / "i", create=True, background=False) as instance:
        database = instance.create_database("Sales")
        with database.transaction() as t:
            t.connection.execute("CREATE TABLE numbers (x)")
        database.queue("Jobs").put(b"first")
        yield instance


def with_sqlite3(database: Database) -> None:
    other = sqlite3.connect(database.path)
    other.execute("SELECT count(*) FROM numbers").fetchall()
    other.close()


def with_open(database: Database) -> None:
    for path in (database.path, f"{database.path}-shm", f"{database.path}-wal"):
        Path(path).read_bytes()


def with_apsw(database: Database) -> None:
    other = apsw.Connection(str(database.path))
    other.execute("SELECT count(*) FROM numbers").fetchall()
    other.close()


OTHERS = pytest.mark.parametrize("read", [with_sqlite3, with_open, with_apsw])


@OTHERS
def test_an_open_transaction_keeps_its_lock(instance: Instance, read: Callable[[Database], None]) -> None:
    database = instance.database("Sales")
    with database.transaction() as t:
        t.connection.execute("INSERT INTO numbers VALUES (1)")
        read(database)
        found = run(PUT, instance.folder)
        assert "LockTimeoutError" in found.stderr
        t.connection.execute("INSERT INTO numbers VALUES (2)")
    assert run(PUT, instance.folder).stderr == ""
    assert database.queue("Jobs").count() == 2
    with database.transaction() as t:
        assert t.connection.execute("SELECT x FROM numbers").fetchall() == [(1,), (2,)]
        assert t.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@OTHERS
def test_commits_stay_visible_to_other_processes(instance: Instance, read: Callable[[Database], None]) -> None:
    """Another copy of SQLite, or another process that believes to be the last one, would delete the WAL."""
    database = instance.database("Sales")
    wal = Path(f"{database.path}-wal").stat().st_ino
    for number in range(2, 5):
        read(database)
        assert run(COUNT, instance.folder).stdout == f"{number - 1}\n"
        assert Path(f"{database.path}-wal").stat().st_ino == wal
        database.queue("Jobs").put(b"next")
        assert run(COUNT, instance.folder).stdout == f"{number}\n"


def test_another_copy_of_sqlite_waits_for_the_transaction(instance: Instance) -> None:
    database = instance.database("Sales")
    other = sqlite3.connect(database.path, timeout=0.05, isolation_level=None)
    with database.transaction() as t:
        t.connection.execute("INSERT INTO numbers VALUES (1)")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("INSERT INTO numbers VALUES (2)")
        assert other.execute("SELECT count(*) FROM numbers").fetchall() == [(0,)]
    other.execute("INSERT INTO numbers VALUES (3)")
    with database.transaction() as t:
        assert t.connection.execute("SELECT x FROM numbers").fetchall() == [(1,), (3,)]
    other.close()


def test_the_last_connection_of_all_processes_removes_the_wal(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "i", create=True, background=False) as instance:
        path = instance.create_database("Sales").path
    assert not Path(f"{path}-wal").exists()


def test_the_wal_stays_while_another_copy_of_sqlite_has_it_open(instance: Instance) -> None:
    path = instance.database("Sales").path
    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM numbers").fetchall() == [(0,)]
    instance.close()
    assert Path(f"{path}-wal").exists()
    other.execute("INSERT INTO numbers VALUES (1)")
    other.commit()
    other.close()
    assert not Path(f"{path}-wal").exists()
    reader = sqlite3.connect(path)
    assert reader.execute("SELECT x FROM numbers").fetchall() == [(1,)]
    reader.close()


FORK_AND_HOLD = """
import os, resource, sys, time
from ssbroker import Instance

with Instance.open(sys.argv[1], background=False) as instance, instance.database("Sales").transaction() as t:
    t.connection.execute("INSERT INTO numbers VALUES (1)")
    if sys.argv[2] == "no free descriptor":
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
    if (child := os.fork()) == 0:
        time.sleep(3600)
    print(child, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("descriptors", ["free descriptors", "no free descriptor"])
def test_a_forked_process_keeps_no_lock_of_its_killed_parent(instance: Instance, descriptors: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FORK_AND_HOLD, instance.folder, descriptors],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert "LockTimeoutError" in run(PUT, instance.folder).stderr
            parent.kill()
            parent.wait()
            assert run(PUT, instance.folder).stderr == ""
        finally:
            os.kill(child, signal.SIGKILL)
            parent.stdout.close()
