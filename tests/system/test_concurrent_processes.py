"""Several processes use one instance at the same time, separated by SQLite's locks."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import database_context
from ssbroker.exceptions import LockTimeoutError
from tests.system import working_process

PROCESSES = 4

HOLD = """
import sys
from ssbroker import Instance
with Instance.open(sys.argv[1], background=False) as instance, instance.database("Sales").transaction() as t:
    t.begin_dialog("//Shop", "//Here")
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.rule("P11")
def test_four_processes_send_and_receive_concurrently(tmp_path: Path) -> None:
    """No call fails because a database is locked; each message is received once, those of a conversation in order."""
    folder = tmp_path / "instance"
    working_process.prepare(folder)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES)
    processes = [
        context.Process(target=working_process.work, args=(folder, me, PROCESSES, start)) for me in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    with Instance.open(folder, background=False) as instance:
        for lane in working_process.LANES:
            found = working_process.received(instance, lane)
            numbers = defaultdict(list)
            for sender, number, _ in found:
                numbers[sender].append(number)
            assert numbers == {sender: list(range(working_process.MESSAGES)) for sender in range(PROCESSES)}
            assert len({receiver for _, _, receiver in found}) > 1, "the processes worked concurrently"


def test_the_lock_timeout_names_the_database_and_the_wait(tmp_path: Path) -> None:
    folder = tmp_path / "instance"
    working_process.prepare(folder)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, Instance.open(folder, background=False, lock_timeout=0.2) as instance:
        assert holder.stdout.readline() == "held\n"
        sales = instance.database("Sales")
        plainly = r"Sales\.sqlite: locked by other writers for more than 0\.2 s"
        with pytest.raises(LockTimeoutError, match=plainly), sales.transaction() as t:
            t.begin_dialog("//Shop", "//Here")
        assert database_context(instance.database("Sales")).objects().services.keys() >= {"//Here"}, (
            "readers are not blocked"
        )
        holder.stdin.close()
        holder.wait()
        with sales.transaction() as t:
            t.begin_dialog("//Shop", "//Here")


FORKS = """
import os, sys, threading, time
from ssbroker import Instance
from ssbroker.exceptions import StorageError

instance = Instance.open(sys.argv[1])
sales = instance.database("Sales")
worker = instance._background
held, go_on = threading.Event(), threading.Event()

def hold():
    with instance._databases._guard, worker._runner._changed:
        held.set()
        go_on.wait()

worker.wake()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    refused = 0
    for what in (lambda: instance.databases, lambda: instance.catalog(), lambda: sales.is_broker_enabled, lambda: instance.run_due()):
        try:
            what()
        except StorageError as error:
            refused += "before this process was forked" in str(error)
    instance.close()
    sys.exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
go_on.set()
thread.join()
sales.create_queue("Late")
instance.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_is_rejected_and_can_exit(tmp_path: Path) -> None:
    """Locks that threads of the parent held during the fork are never released in the child."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        instance.create_database("Sales")
    subprocess.run([sys.executable, "-c", FORKS, str(tmp_path / "shop")], check=True, timeout=60)
