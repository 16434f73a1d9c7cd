"""Keeps the lease of a job while its block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final
from weakref import WeakMethod

from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.exceptions import LeaseLostError, SsbrokerError

_EXTENSIONS_PER_LEASE: Final = 3
_RETRIES_PER_EXTENSION: Final = 4


class LeaseHeartbeat:
    """A thread that extends a lease each time that a third of its duration has passed, until `stop`.

    The thread continues after failures, such as lock timeouts, and ends when the job has ended or has lost its lease. It also ends if the job
    is deleted because of an interrupt, or if the process is killed; then the lease is no longer extended, and ends.

    Args:
        database: The database of the queue.
        extend: The method of the job that extends the lease; raises `LeaseLostError` if another receiver has the messages.
        seconds: The duration of the lease.
    """

    def __init__(self, database: DatabaseContext, extend: WeakMethod[Callable[[], object]], *, seconds: float) -> None:
        self._database: Final = database
        self._extend: Final = extend
        self._interval: Final = seconds / _EXTENSIONS_PER_LEASE
        self._stopped: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="ssbroker lease heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, without waiting for it: the thread may wait for the write lock, which the caller may hold."""
        self._stopped.set()

    def _run(self) -> None:
        wait = self._interval
        while not self._stopped.wait(wait):
            try:
                if not self._extend_unless_deleted():
                    return
                wait = self._interval
            except LeaseLostError:  # the job gets this error, too
                return
            except SsbrokerError as error:
                if self._stopped.is_set() or self._database.commit_signals.is_closed:
                    return
                wait = self._interval / _RETRIES_PER_EXTENSION
                log_failure(self._database, "the lease of a job could not be extended; trying again", error)

    def _extend_unless_deleted(self) -> bool:
        extend = self._extend()
        if extend is not None:
            extend()
        return extend is not None
