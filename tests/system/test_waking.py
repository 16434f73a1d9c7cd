"""A commit wakes receivers in other processes through the operating system."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import database_context
from ssbroker.store.database_file import SHARED_MEMORY_SUFFIX

WAIT = 3600.0
"""Longer than the test: only a notification ends the wait in time."""

RECEIVE = """
import sys
from ssbroker import Instance
from ssbroker.broker.database import database_context

with Instance.open(sys.argv[1], background=False) as instance:
    sales = instance.database("Sales")
    database_context(sales).commit_signals.check_interval = 3600.0
    print("waiting", flush=True)
    with sales.transaction() as t:
        print(t.receive_one("Orders", timeout=3600.0).message_body.decode(), flush=True)
"""

TAKE = RECEIVE.replace(
    """    with sales.transaction() as t:
        print(t.receive_one("Orders", timeout=3600.0).message_body.decode(), flush=True)
""",
    """    with sales.take("Orders") as job:
        print(job.message.message_body.decode(), flush=True)
""",
)

SEND_AND_DIE = """
import os, signal, sys
from ssbroker import Instance

instance = Instance.open(sys.argv[1], background=False)
with instance.database("Sales").transaction() as t:
    t.send(t.begin_dialog("//Shop", "//Orders"), b"committed")
    t.connection.execute("SELECT 1")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "instance"
    with Instance.create(folder, name="shop", background=False) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue("Orders")
        sales.create_service("//Orders", queue="Orders")
        sales.create_queue("Replies")
        sales.create_service("//Shop", queue="Replies")
    return folder


@pytest.fixture
def receivers(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that wait for a message."""
    started = [start(program, folder) for program in (RECEIVE, TAKE)]
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


def send(folder: Path, *bodies: bytes) -> None:
    with Instance.open(folder, background=False) as instance, instance.database("Sales").transaction() as t:
        for body in bodies:
            t.send(t.begin_dialog("//Shop", "//Orders"), body)


def lines(receivers: list[subprocess.Popen[str]]) -> list[str]:
    return sorted(process.communicate(timeout=60)[0].strip() for process in receivers)


def test_a_commit_wakes_waiting_receivers_in_other_processes(
    folder: Path, receivers: list[subprocess.Popen[str]]
) -> None:
    send(folder, b"one", b"two")
    assert lines(receivers) == ["one", "two"]


def test_a_killed_receiver_does_not_keep_others_from_being_woken(
    folder: Path, receivers: list[subprocess.Popen[str]]
) -> None:
    killed = start(RECEIVE, folder)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    send(folder, b"one", b"two")
    assert lines(receivers) == ["one", "two"]


def test_a_sender_that_is_killed_after_its_commit_has_woken_the_receivers(
    folder: Path, receivers: list[subprocess.Popen[str]]
) -> None:
    for _ in receivers:
        sender = subprocess.run([sys.executable, "-c", SEND_AND_DIE, folder], check=False)
        assert sender.returncode == -signal.SIGKILL
    assert lines(receivers) == ["committed", "committed"]


def test_a_missed_notification_delays_a_message_only_to_the_next_check(folder: Path) -> None:
    """A process was killed between its commit and the notification, or the file of the shared memory was deleted."""
    with Instance.open(folder, background=False) as instance:
        sales = instance.database("Sales")
        database_context(sales).commit_signals.check_interval = 0.01
        Path(f"{sales.path}{SHARED_MEMORY_SUFFIX}").unlink()
        with Instance.open(folder, background=False) as other, other.database("Sales").transaction() as t:
            t.send(t.begin_dialog("//Shop", "//Orders"), b"one")
        with sales.transaction() as t:
            message = t.receive_one("Orders", timeout=WAIT)
        assert message is not None
