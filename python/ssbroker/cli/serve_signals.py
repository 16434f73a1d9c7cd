"""The signals that `ssbroker serve` is told by (N28, N36)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second one ends the process at once, and what was committed is on the disk."""
    stopped = threading.Event()

    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: Any) -> None:
        stopped.set()
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
def told_to_reload() -> Iterator[threading.Event]:
    """An event that SIGHUP sets, where there is such a signal."""
    asked = threading.Event()
    with _on_hangup(lambda *_: asked.set()):
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
