"""The error of a blocked writer names the process that holds the lock."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from ssbroker import Instance, LockTimeoutError
from ssbroker.store import sqlite

HOLD = """
import sys
from ssbroker import Instance

with Instance.open(sys.argv[1], background=False) as instance, instance.database("Sales").transaction() as t:
    t.receive_one("Orders")
    t.connection.execute("SELECT 1")
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "instance"
    with Instance.create(folder, name="shop", background=False) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue("Orders")
        sales.create_service("//Orders", queue="Orders")
        with sales.transaction() as t:
            t.send(t.begin_dialog("//Orders", "//Orders"), b"one")
    return folder


def error_of_writing(folder: Path) -> str:
    with Instance.open(folder, background=False, lock_timeout=0.01) as instance:
        return error_of_writing_in(instance)


def error_of_writing_in(instance: Instance) -> str:
    with pytest.raises(LockTimeoutError) as refused, instance.database("Sales").transaction() as t:
        t.begin_dialog("//Orders", "//Orders")
    return str(refused.value)


def test_another_process_is_named(folder: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        found = error_of_writing(folder)
        holder.kill()
    assert re.fullmatch(
        rf".*Sales\.sqlite: locked by other writers for more than 0\.01 s\. Process {holder.pid} has held the lock since "
        r"\d\d:\d\d:\d\d UTC, for \d+\.\d s, in a transaction that has received messages and executed SQL on its connection\. "
        r"Do slow work outside transactions: take messages with a lease, with Database\.take",
        found,
    )


def test_another_process_is_named_by_a_process_that_keeps_a_connection(folder: Path) -> None:
    with Instance.open(folder, background=False, lock_timeout=0.01) as instance:
        with instance.database("Sales").transaction() as t:
            t.send(t.begin_dialog("//Orders", "//Orders"), b"two")
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            found = [error_of_writing_in(instance) for _ in range(2)]
            holder.kill()
    assert all(f"Process {holder.pid} has held the lock since" in each for each in found)


def test_another_instance_of_the_same_process_is_named(folder: Path) -> None:
    with Instance.open(folder, background=False) as instance, instance.database("Sales").transaction() as t:
        t.send(t.begin_dialog("//Orders", "//Orders"), b"two")
        found = error_of_writing(folder)
    assert f"Process {os.getpid()}" not in found
    assert "Another Instance of this process has held the lock" in found
    assert "that has sent messages. Open each folder once in a process" in found


def test_another_instance_is_named_after_a_write_of_this_one(folder: Path) -> None:
    """It keeps a connection; its failing attempt to use it leaves the entry of the holder."""
    with (
        Instance.open(folder, background=False) as holder,
        Instance.open(folder, background=False, lock_timeout=0.05) as waiting,
    ):
        waiting.database("Sales").queue("Jobs").put(b"one")
        with holder.database("Sales").transaction() as t:
            t.connection.execute("CREATE TABLE orders (id)")
            found = [error_of_writing_in(waiting) for _ in range(2)]
            threads = [threading.Thread(target=lambda: found.append(error_of_writing_in(waiting))) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(found) == 4
    for each in found:
        assert "Another Instance of this process has held the lock since" in each
        assert "Open each folder once in a process" in each


def test_another_instance_of_the_same_process_is_named_to_a_coroutine(folder: Path) -> None:
    async def send(instance: Instance) -> None:
        async with instance.database("Sales").transaction() as t:
            t.send(t.begin_dialog("//Orders", "//Orders"), b"one")

    with Instance.open(folder, background=False) as holder, holder.database("Sales").transaction() as t:
        t.send(t.begin_dialog("//Orders", "//Orders"), b"two")
        with (
            Instance.open(folder, background=False, lock_timeout=0.01) as waiting,
            pytest.raises(LockTimeoutError, match="Another Instance of this process has held the lock"),
        ):
            asyncio.run(send(waiting))


def test_a_thread_of_the_same_instance_is_named(folder: Path) -> None:
    found: list[str] = []
    opened = Instance.open(folder, background=False, lock_timeout=0.01)
    with opened as instance, instance.database("Sales").transaction() as t:
        t.send(t.begin_dialog("//Orders", "//Orders"), b"two")
        waiting = threading.Thread(target=lambda: found.append(error_of_writing_in(instance)))
        waiting.start()
        waiting.join()
    assert "Thread 'MainThread' of this process has held the lock" in found[0]
    assert "that has sent messages. Do slow work outside transactions" in found[0]


def test_the_end_of_a_transaction_wakes_a_writer_in_another_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not try again until then."""
    monkeypatch.setattr(sqlite, "_RELEASE_SECONDS", 3600.0)
    with held(folder) as holder, Instance.open(folder, background=False, lock_timeout=7200.0) as instance:
        assert holder.stdin is not None
        threading.Timer(0.2, holder.stdin.close).start()
        with instance.database("Sales").transaction() as t:
            t.begin_dialog("//Orders", "//Orders")


def test_a_killed_holder_lets_a_writer_in_another_process_continue(folder: Path) -> None:
    with held(folder) as holder, Instance.open(folder, background=False, lock_timeout=60.0) as instance:
        threading.Timer(0.2, holder.kill).start()
        with instance.database("Sales").transaction() as t:
            t.begin_dialog("//Orders", "//Orders")


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that holds the write lock until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder


def test_another_program_is_not_mistaken_for_a_process_that_has_ended(folder: Path) -> None:
    with Instance.open(folder, background=False) as instance, instance.database("Sales").transaction() as t:
        t.begin_dialog("//Orders", "//Orders")
    shell = apsw.Connection(str(folder / "Sales.sqlite"))
    shell.execute("BEGIN IMMEDIATE")
    found = error_of_writing(folder)
    shell.close()
    assert "The holder is unknown: another program, such as the sqlite3 shell" in found
