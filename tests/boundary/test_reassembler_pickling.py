"""A reassembler goes into other processes, however those begin, and goes on there as it would here."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ssbroker import Reassembler
from tests.boundary.attempts import ROOT
from tests.boundary.fragmented import FRAGMENTS
from tests.boundary.reassembling_processes import HALF, go_on, halfway
from tests.boundary.test_pickling import COPIES


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_goes_on_and_the_original_does_not_notice(copied: Any) -> None:
    rest = FRAGMENTS.slice(HALF)
    reassembler = halfway()
    state = reassembler.checkpoint()
    copy: Reassembler = copied(reassembler)
    assert copy.checkpoint() == state
    told = go_on(copy, rest)
    assert reassembler.checkpoint() == state != copy.checkpoint()
    assert go_on(reassembler, rest) == told


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_other_processes_go_on_alike(start_method: str) -> None:
    """In a process of its own: a fork is safe only where pytest and other tests have started no threads."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.boundary.reassembling_processes", start_method],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "[]\n", "")
