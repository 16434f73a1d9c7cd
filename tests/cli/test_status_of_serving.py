"""Who serves, as `ssbroker status` tells it, where processes were killed (N16, N28)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssbroker import Instance
from tests.cli.conftest import Run
from tests.cli.served import DEADLINE, Served

PLAIN = ("--listen", "127.0.0.1:0", "--allow-unencrypted")
FORKING = """
import os, sys, time
from ssbroker import Instance
instance = Instance.open(sys.argv[1])
instance.serve(port=0, allow_unencrypted=True).start()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    return tmp_path / "shop"


def serving(run: Run, folder: Path) -> Any:
    return json.loads(run("status", folder, "--json").out)["serving"]


def test_status_does_not_take_one_process_for_another(folder: Path, run: Run) -> None:
    """What a killed one has left is there while the next one serves, and cannot write its own."""
    with Served(folder, *PLAIN) as killed:
        killed.stop(signal.SIGKILL)
    assert (folder / "serving.json").exists()
    assert serving(run, folder) is None
    (folder / "serving.new").mkdir()
    with Served(folder, *PLAIN) as served:
        found = serving(run, folder)
        assert (found["process"], found["listens"], found["connections"]) == (served.process.pid, None, [])
        shown = " ".join(run("status", folder).out.split())
        assert f"Process {served.process.pid} serves the instance, and has not told where" in shown


def test_status_knows_who_serves_by_the_lock(folder: Path, run: Run) -> None:
    """Whatever becomes of the note, and whoever may only read the lock."""
    with Served(folder, *PLAIN) as served:
        (folder / "serve.lock").chmod(0o444)
        (folder / "serving.json").unlink()
        assert serving(run, folder)["process"] == served.process.pid


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_child_does_not_keep_the_lock_of_its_parent(folder: Path, run: Run) -> None:
    """It went on to be held, so that status named a dead process, and none could serve."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert serving(run, folder)["process"] == parent.pid
            parent.kill()
            parent.wait(DEADLINE)
            assert serving(run, folder) is None
            with Served(folder, *PLAIN) as served:
                assert serving(run, folder)["process"] == served.process.pid
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)
