"""What a process that forks owes its files: nobody is inside of SQLite meanwhile, and the new process inherits no connection.

Closing a connection undoes its transaction in the log's index, which is shared; and a mutex of SQLite that another thread held would be held
for ever in the new process.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Final, Protocol

_WAITS: Final = 1.0
"""The seconds for which a fork waits for other threads to come out of the files."""
_LOOKS_EVERY: Final = 0.0005


class Pool(Protocol):
    """The connections of this process to a file."""

    @property
    def users(self) -> set[int]:
        """The threads that may be inside of SQLite for this file."""

    def pause(self) -> None:
        """Has whoever begins anything ask `Forks.enter` first."""

    def let_go(self) -> None:
        """Closes what is not in use."""

    def go_on(self) -> None:
        """Ends the pause."""

    def keep_inherited(self) -> None:
        """In the new process: keeps what was in use from ever being closed."""


class Forks:
    """The forks of this process.

    Attributes:
        count: How many lie between this process and the first one: asking the system for the process each time takes longer.
        is_spoilt: Whether another thread was inside of SQLite at a fork, and may have held a mutex, which nobody gives back here.
        inherited: The files of which connections were in use when this process was forked.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_spoilt = False
        self.inherited: Final[set[tuple[int, int] | None]] = set()
        self._pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()
        self._gate: Final = threading.RLock()
        self._thread: int | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_parent=self._go_on, after_in_child=self._after_in_child)

    def watch(self, pool: Pool) -> None:
        """Takes in the connections of a file.

        Args:
            pool: The connections.
        """
        self._pools.add(pool)

    def enter(self, used: dict[object, int], place: object, thread: int) -> None:
        """Notes that a thread may be inside of SQLite from now on; while the process forks, those wait that were not yet.

        Args:
            used: What a pool has in use, by whom.
            place: What is noted.
            thread: The thread.
        """
        while True:
            used[place] = thread
            if self._thread in (None, thread):
                return
            del used[place]
            if thread in self._users(list(self._pools)):  # the fork waits for it
                used[place] = thread
                return
            with self._gate:
                pass

    def _before(self) -> None:
        self._gate.acquire()
        self._thread = threading.get_ident()
        pools, until = list(self._pools), time.monotonic() + _WAITS
        for pool in pools:
            pool.pause()
        while self._users(pools) - {self._thread} and time.monotonic() < until:
            time.sleep(_LOOKS_EVERY)
        for pool in pools:
            pool.let_go()

    def _go_on(self) -> None:
        for pool in list(self._pools):
            pool.go_on()
        self._end()

    def _after_in_child(self) -> None:
        self.count += 1
        pools = list(self._pools)
        self.is_spoilt = self.is_spoilt or bool(self._users(pools) - {self._thread})
        for pool in pools:
            pool.keep_inherited()
        self._end()

    def _end(self) -> None:
        self._thread = None
        self._gate.release()

    @staticmethod
    def _users(pools: list[Pool]) -> set[int | None]:
        return set().union(*(pool.users for pool in pools))


FORKS: Final = Forks()
