"""B3: several processes on one instance at the same time, which SQLite's locks keep apart."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.exceptions import LockTimeoutError
from tests.broker import working

PROCESSES = 4

HOLD = """
import sys
from ssbroker import Instance
with Instance.open(sys.argv[1], background=False) as instance, instance.database("Sales").transaction() as t:
    t.begin_dialog("//Shop", "//Here")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_p11_b3_four_processes_send_and_receive_at_once(tmp_path: Path) -> None:
    """Nobody is told that a database is locked; each message is received exactly once, those of a conversation in order."""
    folder = tmp_path / "instance"
    working.prepare(folder)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES)
    processes = [context.Process(target=working.work, args=(folder, me, PROCESSES, start)) for me in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    with Instance.open(folder, background=False) as instance:
        for lane in working.LANES:
            found = working.received(instance, lane)
            numbers = defaultdict(list)
            for sender, number, _ in found:
                numbers[sender].append(number)
            assert numbers == {sender: list(range(working.MESSAGES)) for sender in range(PROCESSES)}
            assert len({receiver for _, _, receiver in found}) > 1, "they were at it together"


def test_b3_who_waits_for_another_process_is_told_plainly(tmp_path: Path) -> None:
    folder = tmp_path / "instance"
    working.prepare(folder)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, Instance.open(folder, background=False, lock_timeout=0.2) as instance:
        assert holder.stdout.readline() == "held\n"
        sales = instance.database("Sales")
        plainly = r"Sales\.sqlite: others were writing to it for more than 0\.2 s"
        with pytest.raises(LockTimeoutError, match=plainly), sales.transaction() as t:
            t.begin_dialog("//Shop", "//Here")
        assert instance.database("Sales").objects().services.keys() >= {"//Here"}, "readers go on"
        holder.stdin.close()
        holder.wait()
        with sales.transaction() as t:
            t.begin_dialog("//Shop", "//Here")
