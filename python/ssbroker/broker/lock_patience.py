"""How long a thread that works for many databases waits for a locked one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from ssbroker.broker.context import DatabaseContext
from ssbroker.exceptions import LockTimeoutError

SHORT_WAIT: Final = 0.25
"""Seconds of the first wait for a locked database. It delays the work in other databases by up to this time."""


class LockPatience:
    """How long the background thread waits for the write lock of each database. Not thread-safe.

    The first wait is short, so that work in other databases is not late. But if many writers wait for a lock, a thread
    that always gave up early would never get it. So if the lock changed hands during a failed wait, the next wait for
    this database is twice as long, up to `lock_timeout`. If one transaction held the lock all the time, no other writer
    may be waiting: the next wait is as long as before, or short again if the work has failed. After a success, the next
    wait is twice as long as the wait and the work together.
    """

    def __init__(self) -> None:
        self._waits: Final[dict[int, float]] = {}
        """For each database, the seconds of the next wait, if it is longer than `SHORT_WAIT`."""
        self._locked_since: Final[dict[int, float]] = {}
        """For each locked database, the time of the first failed attempt since its work last succeeded or failed, by `time.monotonic`."""
        self._has_failed_in_round: Final[dict[int, bool]] = {}
        """Whether the work has failed in each database that was locked in this round."""

    def begin_round(self) -> None:
        """Allows one more wait for each database. After a failed wait, further attempts of the same round do not wait."""
        self._has_failed_in_round.clear()

    @contextmanager
    def lock_timeout_for(self, database: DatabaseContext) -> Iterator[float]:
        """Provides the number of seconds to wait for the lock in the block, and learns from the result."""
        key, file = database.database_id, database.file
        if key in self._has_failed_in_round:
            yield 0.0
            return
        wait = min(self._waits.get(key, SHORT_WAIT), file.lock_timeout)
        started, holder = time.monotonic(), file.lock_holder
        try:
            yield wait
        except LockTimeoutError:
            now, since = time.monotonic(), self._locked_since.setdefault(key, started)
            self._has_failed_in_round[key] = has_failed = now - since >= file.lock_timeout
            if has_failed:
                self._locked_since[key] = now
            if holder is None or file.lock_holder != holder:
                self._waits[key] = 2 * wait
            elif has_failed:
                self._waits.pop(key, None)
            raise
        self._locked_since.pop(key, None)
        self._waits.pop(key, None)
        wait = 2 * (time.monotonic() - started)
        if wait > SHORT_WAIT:
            self._waits[key] = wait

    def has_work_failed(self, database: DatabaseContext) -> bool:
        """Returns whether work that found its database locked counts as failed: the database has been locked for `lock_timeout`, or the lock that timed out was not waited for in this round, so that nothing is known about it."""
        return self._has_failed_in_round.get(database.database_id, True)


LockWait = float | LockPatience | None
"""How long to wait for a lock: a number of seconds, what is known about each database, or None for the `lock_timeout` of the instance."""


def lock_timeout_for(database: DatabaseContext, lock_wait: LockWait) -> AbstractContextManager[float | None]:
    """Provides the `lock_timeout` of transactions in the block."""
    return lock_wait.lock_timeout_for(database) if isinstance(lock_wait, LockPatience) else nullcontext(lock_wait)


def sender_wait(lock_wait: LockWait) -> LockWait:
    """Returns how long to wait for the lock of the database from which messages are sent: in a committing thread the `lock_timeout` of the instance, as for its own changes."""
    return lock_wait if isinstance(lock_wait, LockPatience) else None


def delivery_lock_timeout(lock_wait: LockWait) -> float:
    """Returns the seconds to wait until another thread has finished delivering from the same database; that thread may itself be waiting for a lock."""
    if isinstance(lock_wait, LockPatience):
        return SHORT_WAIT
    return math.inf if lock_wait is None else lock_wait


def has_work_failed(database: DatabaseContext, lock_wait: LockWait) -> bool:
    """Returns whether work that found its database locked counts as failed, and is retried later; otherwise another attempt follows at once."""
    return lock_wait.has_work_failed(database) if isinstance(lock_wait, LockPatience) else lock_wait is None
