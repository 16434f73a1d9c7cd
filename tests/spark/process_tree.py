"""The processes that a process has started, and theirs, as the system tells them (Linux)."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All that stand below a process, parents before children."""
    children = defaultdict[int, list[int]](list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found, to_do = [], [pid]
    while to_do:
        below = children[to_do.pop()]
        found += below
        to_do += below
    return found


def kill_with_descendants(pid: int) -> None:
    """Ends a process and all below it as a machine that fails would.

    Each is stopped before its children are looked for, so that none is started behind one's back.
    """
    stopped: list[int] = []
    to_do = [pid]
    while to_do:
        for each in to_do:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
                stopped.append(each)
        to_do = [each for each in descendants(pid) if each not in stopped]
    for each in stopped:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def workers(pid: int) -> list[int]:
    """Spark's Python workers below a process: what its daemons have forked."""
    below = descendants(pid)
    daemons = {each for each in below if _is_of_daemon(each)}
    return [each for each in daemons if _parent(each) in daemons]


def _is_of_daemon(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
