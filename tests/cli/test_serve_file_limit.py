"""`ssbroker serve` at its limit of open files."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from ssbroker import Instance
from tests.cli.serve_process import DEADLINE, ServeProcess

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux can limit another process"),
    pytest.mark.parametrize("listener", ["listen", "http"]),
]
OPTIONS = ("--allow-unencrypted", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


def limit_open_files(process: int, files: int) -> int:
    """Limits the open files of a process; returns the limit before."""
    import resource  # noqa: PLC0415 - Windows has none

    limit = resource.RLIMIT_NOFILE
    before, hard_limit = resource.prlimit(process, limit)
    resource.prlimit(process, limit, (files, hard_limit))
    return before


def connect(stack: ExitStack, served: ServeProcess, listener: str, count: int) -> list[socket.socket]:
    """Opens connections, which the process accepts all at the same time."""
    host, _, port = served.serving[listener].rpartition(":")
    served.process.send_signal(signal.SIGSTOP)
    connections = [stack.enter_context(socket.socket()) for _ in range(count)]
    for connection in connections:
        connection.setblocking(False)
        connection.connect_ex((host, int(port)))
    served.process.send_signal(signal.SIGCONT)
    return connections


def wait_until_closed(connections: list[socket.socket], count: int) -> None:
    """Waits until the process has closed a number of connections."""
    waiting, end = list(connections), time.monotonic() + DEADLINE
    while len(connections) - len(waiting) < count:
        closed, _, _ = select.select(waiting, [], [], max(end - time.monotonic(), 0))
        assert closed, "the connections were not closed in time"
        waiting = [each for each in waiting if each not in closed]


def test_many_simultaneous_connections_stay_within_the_file_limit(tmp_path: Path, listener: str) -> None:
    """A quarter of the files may be idle connections; all others are closed."""
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    own = limit_open_files(os.getpid(), 128)  # inherited by the serving process
    try:
        served = ServeProcess(tmp_path / "shop", *OPTIONS)
    finally:
        limit_open_files(os.getpid(), own)
    with served, ExitStack() as stack:
        wait_until_closed(connect(stack, served, listener, 300), 300 - 128 // 4)
        assert served.stop() == 0
        with pytest.raises(AssertionError, match="never logged"):
            served.wait_for_record("the end")
        assert [each for each in served.records if "out of system resource" in each["message"]] == []


def test_file_limit_does_not_flood_the_log(tmp_path: Path, listener: str) -> None:
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    with (
        ServeProcess(tmp_path / "shop", *OPTIONS) as served,
        ExitStack() as stack,
    ):
        urlopen(f"http://{served.serving['http']}/health").close()  # its thread has then started
        in_use = sum(1 for _ in Path(f"/proc/{served.process.pid}/fd").iterdir())
        before = limit_open_files(served.process.pid, in_use)
        connect(stack, served, listener, 20)
        record = served.wait_for_record("shop: socket.accept() out of system resource")
        assert (record["level"], "exception" in record) == ("error", False)
        time.sleep(2)  # asyncio retries after one second
        limit_open_files(served.process.pid, before)
        assert served.stop() == 0
        with pytest.raises(AssertionError, match="never logged"):
            served.wait_for_record("the end")
        assert sum("out of system resource" in record["message"] for record in served.records) < 10
