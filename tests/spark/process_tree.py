"""The processes below a process (Linux)."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Returns all descendants of a process, parents before children."""
    children = defaultdict[int, list[int]](list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found, pending = [], [pid]
    while pending:
        below = children[pending.pop()]
        found += below
        pending += below
    return found


def kill_with_descendants(pid: int) -> None:
    """Kills a process and its descendants at the same time, as a failing machine would.

    Each is stopped before its children are listed, so that no new child is missed.
    """
    stopped: list[int] = []
    pending = [pid]
    while pending:
        for each in pending:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
                stopped.append(each)
        pending = [each for each in descendants(pid) if each not in stopped]
    for each in stopped:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def workers(pid: int) -> list[int]:
    """Spark's Python workers below a process: the forks of its daemons."""
    below = descendants(pid)
    daemons = {each for each in below if _belongs_to_daemon(each)}
    return [each for each in daemons if _parent(each) in daemons]


def _belongs_to_daemon(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
