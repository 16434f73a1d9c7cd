"""Keeps the SQLite connections of a process safe when it forks."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Final, Protocol

_FORK_WAIT: Final = 1.0
"""Maximum seconds that a fork waits for other threads to leave SQLite."""
_FORK_POLL_INTERVAL: Final = 0.0005


class Pool(Protocol):
    """A connection pool that must be safe across forks."""

    @property
    def users(self) -> set[int]:
        """The threads that may be executing inside SQLite for this file."""

    def pause(self) -> None:
        """Makes new users of the pool call `ForkGuard.enter` first."""

    def close_idle(self) -> None:
        """Closes the connections that are not in use."""

    def end_pause(self) -> None:
        """Ends the pause."""

    def keep_inherited(self) -> None:
        """In the forked process: prevents inherited connections from ever being closed."""


class ForkGuard:
    """Tracks forks of this process, and makes SQLite connections safe across them.

    Attributes:
        count: The number of forks since the first process. Comparing it is faster than asking the system for the process id.
        is_unsafe: Whether another thread was inside SQLite at a fork; it may have held a mutex that nobody in this process releases.
        inherited: The files whose connections were in use when this process was forked.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_unsafe = False
        self.inherited: Final[set[tuple[int, int] | None]] = set()
        self._pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()
        self._lock: Final = threading.RLock()
        self._thread: int | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )

    def register(self, pool: Pool) -> None:
        """Registers the connection pool of a file."""
        self._pools.add(pool)

    def enter(self, used: dict[object, int], key: object, thread: int) -> None:
        """Records that a thread may be inside SQLite from now on; waits while the process forks, unless the thread is already inside."""
        while True:
            used[key] = thread
            if self._thread in (None, thread):
                return
            del used[key]
            if thread in self._users(list(self._pools)):  # the fork waits for it
                used[key] = thread
                return
            with self._lock:
                pass

    def _before(self) -> None:
        self._lock.acquire()
        self._thread = threading.get_ident()
        pools, deadline = list(self._pools), time.monotonic() + _FORK_WAIT
        for pool in pools:
            pool.pause()
        while self._users(pools) - {self._thread} and time.monotonic() < deadline:
            time.sleep(_FORK_POLL_INTERVAL)
        for pool in pools:
            pool.close_idle()

    def _after_in_parent(self) -> None:
        for pool in list(self._pools):
            pool.end_pause()
        self._end()

    def _after_in_child(self) -> None:
        self.count += 1
        pools = list(self._pools)
        self.is_unsafe = self.is_unsafe or bool(self._users(pools) - {self._thread})
        for pool in pools:
            pool.keep_inherited()
        self._end()

    def _end(self) -> None:
        self._thread = None
        self._lock.release()

    @staticmethod
    def _users(pools: list[Pool]) -> set[int | None]:
        return set().union(*(pool.users for pool in pools))


FORKS: Final = ForkGuard()
