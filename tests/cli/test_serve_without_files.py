"""`ssbroker serve` where no file is left for connections (N11, N28, N35)."""

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
from tests.cli.served import Served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")


def allowed(number: int, files: int) -> int:
    """Says how many files a process may have open, and what was said before."""
    import resource  # noqa: PLC0415 - Windows has none

    what = resource.RLIMIT_NOFILE
    before, most = resource.prlimit(number, what)
    resource.prlimit(number, what, (files, most))
    return before


def dialled(stack: ExitStack, served: Served, count: int) -> None:
    """Has so many connect before the process looks at any of them."""
    host, _, port = served.serving["listen"].rpartition(":")
    served.process.send_signal(signal.SIGSTOP)
    for _ in range(count):
        stranger = stack.enter_context(socket.socket())
        stranger.setblocking(False)
        stranger.connect_ex((host, int(port)))
    served.process.send_signal(signal.SIGCONT)


def test_those_who_come_all_at_once_take_no_more_files_than_one_after_the_other(tmp_path: Path) -> None:
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    own = allowed(os.getpid(), 128)  # which the process that serves inherits
    try:
        served = Served(tmp_path / "shop", "--allow-unencrypted", "--listen", "127.0.0.1:0")
    finally:
        allowed(os.getpid(), own)
    with served, ExitStack() as stack:
        dialled(stack, served, 300)
        served.record("Broker:Connection")
        assert served.stop() == 0
        with pytest.raises(AssertionError, match="never said"):
            served.record("shop: socket.accept")


def test_a_log_does_not_grow_while_no_file_is_left(tmp_path: Path) -> None:
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    with (
        Served(tmp_path / "shop", "--allow-unencrypted", "--listen", "127.0.0.1:0") as served,
        ExitStack() as stack,
    ):
        in_use = sum(1 for _ in Path(f"/proc/{served.process.pid}/fd").iterdir())
        before = allowed(served.process.pid, in_use)
        dialled(stack, served, 20)
        told = served.record("shop: socket.accept() out of system resource")
        assert (told["level"], "exception" in told) == ("error", False)
        time.sleep(2)  # asyncio tries again after one
        allowed(served.process.pid, before)
        assert served.stop() == 0
        with pytest.raises(AssertionError, match="never said"):
            served.record("the end")
        assert sum("out of system resource" in one["message"] for one in served.records) < 10
