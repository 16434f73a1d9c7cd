"""`ssbroker serve` at its limit of open files."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ssbroker import Instance
from tests.cli.serve_process import ServeProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can limit another process")


def limit_open_files(process: int, files: int) -> int:
    """Limits the open files of a process; returns the limit before."""
    import resource  # noqa: PLC0415 - Windows has none

    limit = resource.RLIMIT_NOFILE
    before, hard_limit = resource.prlimit(process, limit)
    resource.prlimit(process, limit, (files, hard_limit))
    return before


def connect(stack: ExitStack, served: ServeProcess, count: int) -> None:
    """Opens connections, which the process sees all at the same time."""
    host, _, port = served.serving["listen"].rpartition(":")
    served.process.send_signal(signal.SIGSTOP)
    for _ in range(count):
        connection = stack.enter_context(socket.socket())
        connection.setblocking(False)
        connection.connect_ex((host, int(port)))
    served.process.send_signal(signal.SIGCONT)


def test_many_simultaneous_connections_stay_within_the_file_limit(tmp_path: Path) -> None:
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    own = limit_open_files(os.getpid(), 128)  # inherited by the serving process
    try:
        served = ServeProcess(tmp_path / "shop", "--allow-unencrypted", "--listen", "127.0.0.1:0")
    finally:
        limit_open_files(os.getpid(), own)
    with served, ExitStack() as stack:
        connect(stack, served, 300)
        served.wait_for_record("Broker:Connection")
        assert served.stop() == 0
        with pytest.raises(AssertionError, match="never logged"):
            served.wait_for_record("shop: socket.accept")


def test_file_limit_does_not_flood_the_log(tmp_path: Path) -> None:
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    with (
        ServeProcess(tmp_path / "shop", "--allow-unencrypted", "--listen", "127.0.0.1:0") as served,
        ExitStack() as stack,
    ):
        in_use = sum(1 for _ in Path(f"/proc/{served.process.pid}/fd").iterdir())
        before = limit_open_files(served.process.pid, in_use)
        connect(stack, served, 20)
        record = served.wait_for_record("shop: socket.accept() out of system resource")
        assert (record["level"], "exception" in record) == ("error", False)
        time.sleep(2)  # asyncio retries after one second
        limit_open_files(served.process.pid, before)
        assert served.stop() == 0
        with pytest.raises(AssertionError, match="never logged"):
            served.wait_for_record("the end")
        assert sum("out of system resource" in record["message"] for record in served.records) < 10
