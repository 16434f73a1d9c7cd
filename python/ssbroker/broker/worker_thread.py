"""The background thread of an instance, and detection of reentrant calls."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from ssbroker.protocol.events import print_logging_errors

_ROOMS: Final = ("ssbroker.broker.", "ssbroker.store.")


def is_inside_another() -> bool:
    """Whether whoever has made this call was itself called from within one: other threads may wait for what that one holds.

    Returns:
        Whether frames of somebody else stand between those of this call and others of a running instance.

    Examples:
        >>> is_inside_another()
        False
    """
    has_left = False
    frame = sys._getframe(1)  # noqa: SLF001  # as `traceback` does
    while frame.f_back is not None:
        if not str(frame.f_globals.get("__name__")).startswith(_ROOMS):
            has_left = True
        elif has_left:
            return True
        frame = frame.f_back
    return False


LONGEST_WAIT: Final = 5.0
"""The seconds after which the thread looks again though nobody told it anything: other processes may have written to the files."""
_BACK_OFF_MAX: Final = 60.0
_PATIENCE_INSIDE: Final = 1.0
"""The seconds to wait for a thread that may wait for the call in the middle of which this is."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
LOGGER: Final = logging.getLogger("ssbroker.broker")


class WorkerThread:
    """Calls a function in a daemon thread: when woken, and at the moment that its last call returned.

    The thread starts when it is first woken. A call that raises is logged, and the next one waits: 1, 2, 4 ... 60 s.

    Args:
        work: The function. It returns when it wants to be called again; None is never by itself.
        clock: Tells the current moment, in UTC.
        name: What the thread is called.
        longest_wait: The seconds after which it is called in any case.

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
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._process: Final = os.getpid()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self, at: datetime | None = None) -> None:
        """Has the function called at a moment, or earlier.

        Args:
            at: The moment; None is now.
        """
        moment = _LONG_AGO if at is None else at
        with self._changed:
            if self._is_closed:
                return
            if self._next is None or moment < self._next:
                self._next = moment
                self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no thread to give; whoever wakes it next tries again
                    with print_logging_errors():
                        LOGGER.warning("%s: its thread could not be started: %s", self._name, error)
                    return
                self._thread = thread
                atexit.register(self.close)

    def close(self, *, timeout: float = 60.0) -> None:
        """Ends the thread once the call that runs has returned; nothing is called after that.

        Where a signal has interrupted a call of an instance, and its handler closes it, the thread may wait for that call, and is left to
        end by itself.

        Args:
            timeout: The seconds to wait for it.
        """
        if os.getpid() != self._process:  # a fork has no thread, and nobody who gives its lock back
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is None:
            return
        atexit.unregister(self.close)
        if thread is not threading.current_thread():
            thread.join(min(timeout, _PATIENCE_INSIDE) if is_inside_another() else timeout)

    def _run(self) -> None:
        failures = 0
        while self._waits(back_off=min(2.0 ** (failures - 1), _BACK_OFF_MAX) if failures else 0.0):
            try:
                moment = self._work()
                failures = 0
            except Exception:
                if self._is_closed:  # by who could not wait for it: what it needs is gone
                    return
                with print_logging_errors():
                    LOGGER.exception("what was due could not be done; it is tried again")
                moment = None
                failures += 1
            if moment is not None:
                self.wake(moment)

    def _waits(self, *, back_off: float) -> bool:
        """Waits until the next call; whether there is one. Nobody cuts the wait after a failure short."""
        with self._changed:
            if back_off and not self._is_closed:
                self._changed.wait_for(lambda: self._is_closed, back_off)
            while not back_off and not self._is_closed:
                left = self._longest_wait
                if self._next is not None:
                    left = min(left, (self._next - self._clock()).total_seconds())
                if left <= 0 or not self._changed.wait(left):
                    break
            self._next = None
            return not self._is_closed
