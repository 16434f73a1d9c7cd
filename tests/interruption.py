"""Interrupts calls as a signal does whose handler raises an exception, such as Ctrl-C, but at a chosen point."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_MODULES: Final = ("ssbroker", "contextlib")


class Interrupted(BaseException):
    """Like KeyboardInterrupt, without stopping the tests."""


class Interruption:
    """Raises `Interrupted` at one of the points of a call where Python may run a signal handler: as a function begins, and after a call of C code.

    Args:
        step: The number of the point, from 1 on.
        before: Is called at this point, before the exception is raised.

    Attributes:
        where: The function that was interrupted, the line, and what was about to begin or has just returned; None if there was no such point.
    """

    def __init__(self, step: int, before: Callable[[], object] = lambda: None) -> None:
        self.where: tuple[str, int, str] | None = None
        self._steps_left = step
        self._before: Final = before

    def run(self, call: Callable[[], object]) -> None:
        """Runs the call, and drops the exception and everything that it refers to."""
        sys.setprofile(self._profile)
        try:
            call()
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return") or not frame.f_globals.get("__name__", "").startswith(_MODULES):
            return
        self._steps_left -= 1
        if not self._steps_left:
            sys.setprofile(None)
            done = "begins" if event == "call" else getattr(argument, "__qualname__", str(argument))
            self.where = (frame.f_code.co_qualname, frame.f_lineno, done)
            self._before()
            raise Interrupted


def interruptions(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> Iterator[Interruption]:
    """Runs a call again and again, each time interrupted at the next point, until the call is complete; yields after each interruption."""
    step = 0
    while True:
        step += 1
        interruption = Interruption(step, before)
        interruption.run(call)
        if interruption.where is None:
            return
        yield interruption


@contextmanager
def fast_collections() -> Iterator[None]:
    """Makes `gc.collect` consider only objects that are created in the block."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
