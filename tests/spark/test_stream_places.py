"""Streams on a cluster of two executors and through Spark Connect, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.repository import ROOT


@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", ["cluster", "connect"])
def test_a_stream_elsewhere_gives_what_the_batch_functions_give(tmp_path: Path, place: str) -> None:
    """U1, U8, U10: put together, routed once the route is there, and the state read."""
    command = [sys.executable, "-m", "tests.spark.stream_place", place, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all is well"]), done.stderr[-3000:]
