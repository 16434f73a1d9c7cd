"""Cases that end their process, to verify that crashes are detected."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

from tests.boundary.attempts import CLEAN, Case, Families, try_families


def crashes() -> Iterator[Case]:
    """Raises a BaseException, and ends the process."""
    yield Case("nothing", lambda: None, "ok")
    yield Case("a panic", lambda: sys.exit(5), CLEAN)
    yield Case("a crash", lambda: os.kill(os.getpid(), signal.SIGSEGV), CLEAN)


def runs_after_crash() -> Iterator[Case]:
    """A family that runs after a crash."""
    yield Case("nothing", lambda: None, "ok")


FAMILIES: Families = {"crashes": crashes, "runs_after_crash": runs_after_crash}

if __name__ == "__main__":
    try_families(FAMILIES)
