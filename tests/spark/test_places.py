"""On a cluster of two executors and through Spark Connect, what runs there gives what it gives elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.repository import ROOT


@pytest.mark.threat("T21")
@pytest.mark.parametrize("place", ["cluster", "connect"])
def test_a_place(tmp_path: Path, place: str) -> None:
    """See the modules of `tests.spark.places`."""
    command = [sys.executable, "-m", "tests.spark.places", place, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
