"""The serving process as `ssbroker status` shows it, when processes were killed."""

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
from tests.cli.serve_process import DEADLINE, ServeProcess

UNENCRYPTED = ("--listen", "127.0.0.1:0", "--allow-unencrypted")
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


def test_status_ignores_the_file_of_a_killed_process(folder: Path, run: Run) -> None:
    """The file of the killed process remains while the next one serves and cannot write its own."""
    with ServeProcess(folder, *UNENCRYPTED) as killed:
        killed.stop(signal.SIGKILL)
    assert (folder / "serving.json").exists()
    assert serving(run, folder) is None
    (folder / "serving.new").mkdir()
    with ServeProcess(folder, *UNENCRYPTED) as served:
        found = serving(run, folder)
        assert (found["process"], found["listens"], found["connections"]) == (served.process.pid, None, [])
        shown = " ".join(run("status", folder).out.split())
        assert f"Process {served.process.pid} serves the instance; its address and connections are unknown" in shown


def test_status_finds_the_serving_process_by_the_lock(folder: Path, run: Run) -> None:
    """Without the status file, and with a read-only lock file."""
    with ServeProcess(folder, *UNENCRYPTED) as served:
        (folder / "serve.lock").chmod(0o444)
        (folder / "serving.json").unlink()
        assert serving(run, folder)["process"] == served.process.pid


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_forked_child_does_not_keep_the_lock_of_its_parent(folder: Path, run: Run) -> None:
    """Otherwise status would name a dead process, and no other one could serve."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert serving(run, folder)["process"] == parent.pid
            parent.kill()
            parent.wait(DEADLINE)
            assert serving(run, folder) is None
            with ServeProcess(folder, *UNENCRYPTED) as served:
                assert serving(run, folder)["process"] == served.process.pid
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)
