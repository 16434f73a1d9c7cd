"""Forked processes and the files of their parent, whatever threads of the parent did during the fork."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from ssbroker.store.database_file import DatabaseFile
from tests.store.numbered_rows import MIGRATIONS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

BUSY: Final = """
import os, signal, sys, threading
from pathlib import Path
from ssbroker.store.database_file import DatabaseFile

path = Path(sys.argv[1])
file = DatabaseFile.open(path, ("",))
is_over = threading.Event()

def work():
    while not is_over.is_set():
        with file.write() as connection:
            connection.pragma("user_version", 1)
            file.query(lambda other: other.pragma("user_version"))  # as who routes in a transaction does

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
watch = file.watch()
failed = []
for number in range(40):
    watch.has_changed()
    child = os.fork()
    if not child:
        signal.alarm(30)  # a mutex of SQLite's that nobody gives back would be waited for
        with DatabaseFile.open(path, ("",)).write() as connection:
            connection.execute("INSERT INTO numbers VALUES (?, x'00')", (number,))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        failed.append(status)
    assert watch.has_changed(), "the child has written"
is_over.set()
for thread in threads:
    thread.join()
file.close()
watch.close()
sys.exit(f"{failed}" if failed else 0)
"""

INSIDE: Final = """
import os, sys, threading
from pathlib import Path
from ssbroker.exceptions import StorageError
from ssbroker.store.database_file import DatabaseFile

one, other = (Path(name) for name in sys.argv[1:])
file = DatabaseFile.open(one, ("",))
is_inside, is_over = threading.Event(), threading.Event()

def stay():
    with file.write():
        is_inside.set()
        is_over.wait()

thread = threading.Thread(target=stay)
thread.start()
is_inside.wait()
child = os.fork()
if not child:
    try:
        DatabaseFile.open(other, ("",))
    except StorageError as error:
        os._exit("fork before you open an instance, or start processes with `spawn`" in str(error))
    os._exit(2)
is_over.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 1)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.sqlite"
    DatabaseFile.create(path, MIGRATIONS).close()
    return path


def test_forked_processes_open_the_file_while_threads_of_their_parent_use_it(path: Path) -> None:
    """A fork waits until no thread is inside SQLite."""
    subprocess.run([sys.executable, "-c", BUSY, str(path)], check=True, timeout=120)
    with closing(DatabaseFile.open(path, MIGRATIONS)) as file, file.read() as connection:
        assert connection.execute("SELECT count(*) FROM numbers").get == 40


def test_a_process_forked_during_a_transaction_of_a_thread_is_rejected(path: Path, tmp_path: Path) -> None:
    """For any file, because SQLite's mutexes are global: the process would wait forever."""
    other = tmp_path / "other.sqlite"
    DatabaseFile.create(other, MIGRATIONS).close()
    subprocess.run([sys.executable, "-c", INSIDE, str(path), str(other)], check=True, timeout=60)
