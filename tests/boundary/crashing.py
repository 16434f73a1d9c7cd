"""Cases that end their process, to see that this is seen."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

from tests.boundary.attempts import CLEAN, Case, Families, try_families


def crashes() -> Iterator[Case]:
    """What is no Exception, and what ends the process."""
    yield Case("nothing", lambda: None, "ok")
    yield Case("a panic", lambda: sys.exit(5), CLEAN)
    yield Case("a crash", lambda: os.kill(os.getpid(), signal.SIGSEGV), CLEAN)


def goes_on() -> Iterator[Case]:
    """A family that is tried after a crash."""
    yield Case("nothing", lambda: None, "ok")


FAMILIES: Families = {"crashes": crashes, "goes_on": goes_on}

if __name__ == "__main__":
    try_families(FAMILIES)
