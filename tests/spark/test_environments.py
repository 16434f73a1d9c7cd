"""The functions give the same results on a standalone cluster of two workers and on Spark Connect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.repository import ROOT


@pytest.mark.threat("T21")
@pytest.mark.parametrize("environment", ["cluster", "connect"])
def test_environment(tmp_path: Path, environment: str) -> None:
    """See the modules of `tests.spark.environments`."""
    command = [sys.executable, "-m", "tests.spark.environments", environment, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
