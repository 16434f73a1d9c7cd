"""The signals that `ssbroker serve` is told by (N28, N36)."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final


class Told:
    """What the handler of a signal tells, and what is waited for in the thread that it interrupts.

    An event will not do: its handler may come in the middle of the wait, and would wait for a lock of its own thread.

    Examples:
        >>> told = Told()
        >>> told.wait(0.0)
        False
        >>> told.tell()
        >>> told.wait(0.0), told.wait(0.0)
        (True, False)
    """

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: Final[queue.SimpleQueue[None]] = queue.SimpleQueue()

    def tell(self) -> None:
        """Ends a wait; called by the handler."""
        self._told.put(None)

    def wait(self, seconds: float) -> bool:
        """Waits until it is told; whether it was since the last wait."""
        try:
            self._told.get(timeout=seconds)
        except queue.Empty:
            return False
        with suppress(queue.Empty):
            while True:
                self._told.get_nowait()
        return True


@contextmanager
def told_to_stop() -> Iterator[Told]:
    """What SIGTERM and SIGINT tell; a second one ends the process at once, and what was committed is on the disk."""
    stopped = Told()

    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: Any) -> None:
        stopped.tell()
        for each in numbers:  # the second one may be another
            signal.signal(each, signal.SIG_DFL)

    try:
        before = {number: signal.signal(number, stop) for number in numbers}
    except ValueError:  # not the main thread: nobody can be told of signals
        yield stopped
        return
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def told_to_reload() -> Iterator[Told]:
    """What SIGHUP tells, where there is such a signal."""
    asked = Told()
    with _on_hangup(lambda *_: asked.tell()):
        yield asked


@contextmanager
def hangup_ignored() -> Iterator[None]:
    """SIGHUP ends nothing before it can be told: what it asks for is read at the start anyway."""
    with _on_hangup(signal.SIG_IGN):
        yield


@contextmanager
def _on_hangup(handler: Any) -> Iterator[None]:
    number = getattr(signal, "SIGHUP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
