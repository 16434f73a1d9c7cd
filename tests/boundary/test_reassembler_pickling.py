"""A reassembler continues in other processes as it would here, whatever the start method."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ssbroker import Reassembler
from tests.boundary.attempts import ROOT
from tests.boundary.fragmented import FRAGMENTS
from tests.boundary.reassembling_processes import HALF, halfway, push_rest
from tests.boundary.test_pickling import COPIES


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_does_not_affect_the_original(copied: Any) -> None:
    rest = FRAGMENTS.slice(HALF)
    reassembler = halfway()
    state = reassembler.checkpoint()
    copy: Reassembler = copied(reassembler)
    assert copy.checkpoint() == state
    rows = push_rest(copy, rest)
    assert reassembler.checkpoint() == state != copy.checkpoint()
    assert push_rest(reassembler, rest) == rows


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_other_processes_continue_identically(start_method: str) -> None:
    """In its own process: a fork is safe only before pytest and other tests have started threads."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.boundary.reassembling_processes", start_method],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "[]\n", "")
