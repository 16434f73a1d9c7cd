"""The background thread of an instance, and the detection of reentrant calls."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.events import print_logging_errors

_PACKAGES: Final = ("ssbroker.broker.", "ssbroker.store.")


def is_reentrant_call() -> bool:
    """Returns whether a call into the broker is running further up the stack; other threads may wait for locks that this call holds."""
    has_left = False
    frame = sys._getframe(1)  # noqa: SLF001  # as `traceback` does
    while frame.f_back is not None:
        if not str(frame.f_globals.get("__name__")).startswith(_PACKAGES):
            has_left = True
        elif has_left:
            return True
        frame = frame.f_back
    return False


def wait_limit(timeout: float = threading.TIMEOUT_MAX) -> float:
    """Returns the number of seconds to wait for another thread or a lock that it holds.

    Within a reentrant call, the wait is short, since the thread may itself wait for a call further up the stack.
    """
    return min(timeout, REENTRANT_TIMEOUT) if is_reentrant_call() else timeout


LONGEST_WAIT: Final = 5.0
"""Default of the maximum number of seconds between two calls, because other processes may have written to the files."""
_BACK_OFF_MAX: Final = 60.0
REENTRANT_TIMEOUT: Final = 1.0
"""Seconds to wait for a thread that may itself wait for a call further up the stack."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_LOGGER: Final = logging.getLogger("ssbroker.broker")


class WorkerThread:
    """Calls a function in a daemon thread: when woken, and at the time that the previous call returned.

    The thread starts when it is first woken. If a call raises, the error is logged, and the next call is delayed by 1, 2, 4, ... 60 s.

    Examples:
        >>> import threading
        >>> called = threading.Event()
        >>> runner = WorkerThread(lambda: called.set(), clock=lambda: datetime.now(UTC), name="example")
        >>> runner.wake()
        >>> called.wait(60.0)
        True
        >>> runner.close()
    """

    def __init__(
        self,
        work: Callable[[], datetime | None],
        *,
        clock: Callable[[], datetime],
        name: str,
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        self._work: Final = work
        self._clock: Final = clock
        self._name: Final = name
        self._longest_wait: Final = longest_wait
        self._changed: Final = threading.Condition()
        self._next: datetime | None = None
        self._wanted: Final[list[datetime]] = []
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._process: Final = os.getpid()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self, at: datetime | None = None) -> None:
        """Makes the thread call the function at a time, or earlier; None means immediately."""
        due = _LONG_AGO if at is None else at
        with self._changed:
            if self._is_closed:
                return
            if self._next is None or due < self._next:
                # A signal handler may call `wake` at this point. If it set `_next`, this call would then replace the
                # handler's earlier time with a later one.
                self._wanted.append(due)
                self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no system thread is available; the next `wake` tries again
                    with print_logging_errors():
                        _LOGGER.warning(
                            "%s: the thread could not be started; trying again when there is more work: %s",
                            self._name,
                            error,
                        )
                    return
                self._thread = thread
                atexit.register(self.close)

    def close(self, *, timeout: float = 60.0) -> None:
        """Stops the thread after its current call; makes no further calls.

        If a signal handler closes the instance during a call, the thread may wait for that call; then it is left to end on its own.
        """
        if os.getpid() != self._process:  # in a forked process there is no thread, and the lock may never be released
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is None:
            return
        atexit.unregister(self.close)
        if thread is not threading.current_thread():
            thread.join(wait_limit(timeout))

    def _run(self) -> None:
        failures = 0
        while self._wait_for_call(back_off=min(2.0 ** (failures - 1), _BACK_OFF_MAX) if failures else 0.0):
            try:
                due = self._work()
                failures = 0
            except (Exception, SystemExit) as error:  # a subscriber may call sys.exit
                if self._is_closed:  # `close` has not waited for this call, so the files are closed already
                    return
                with print_logging_errors():
                    if isinstance(error, SsbrokerError):  # its text says what to do
                        _LOGGER.error("%s: background work failed; retrying: %s", self._name, error)  # noqa: TRY400
                    else:
                        _LOGGER.exception("%s: background work failed; retrying", self._name)
                due = None
                failures += 1
            if due is not None:
                self.wake(due)

    def _wait_for_call(self, *, back_off: float) -> bool:
        """Waits until the next call is due; returns False if closed. `wake` does not shorten the wait after a failure."""
        with self._changed:
            if back_off and not self._is_closed:
                self._changed.wait_for(lambda: self._is_closed, back_off)
            while not back_off and not self._is_closed:
                left = self._longest_wait
                while self._wanted:
                    due = self._wanted.pop()
                    self._next = due if self._next is None else min(self._next, due)
                if self._next is not None:
                    left = min(left, (self._next - self._clock()).total_seconds())
                if left <= 0 or not self._changed.wait(left):
                    break
            self._next = None
            return not self._is_closed
