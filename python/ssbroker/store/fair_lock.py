"""A lock that is handed on in the order of asking (B3)."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

_HANDED_ON: Final = -1
"""The holder until the thread whose turn it is has seen that: no thread's number."""


class FairLock:
    """Threads get it one after the other, first come, first served; whoever waits too long gives up its place.

    A signal may interrupt a thread anywhere in here, and its handler ask for the lock too: what is held is said by one assignment.

    Examples:
        >>> lock = FairLock()
        >>> lock.acquire(timeout=1.0), lock.acquire(timeout=0.0)
        (True, False)
        >>> lock.release()
    """

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._holder: int | None = None
        self._waiting: deque[threading.Event] = deque()

    @property
    def is_held_here(self) -> bool:
        """Whether it is for this thread to give it back: whoever asks for it here would wait for itself."""
        return self._holder == threading.get_ident()

    def acquire(self, *, timeout: float, holder: int | None = None) -> bool:
        """Waits for the lock for up to `timeout` seconds.

        Args:
            timeout: The seconds.
            holder: The thread that is to give it back, by its number; None is this one.

        Returns:
            Whether it was given.
        """
        holder = threading.get_ident() if holder is None else holder
        with self._guard:
            if self._take(holder):
                return True
            turn = threading.Event()
            self._waiting.append(turn)
            if (
                self._holder is None
            ):  # a transaction that nobody has any more gave it back just now, wherever Python collects
                self._waiting.remove(turn)
                self._holder = holder
                return True
        try:
            turn.wait(min(timeout, threading.TIMEOUT_MAX))
        except BaseException:  # Ctrl-C: whoever stands in the queue and never comes would hold up all others
            if self._had_turn(turn, holder):
                self.release()
            raise
        return self._had_turn(turn, holder)

    def release(self) -> None:
        """Hands the lock to whoever has waited longest."""
        with self._guard:
            try:
                turn = self._waiting.popleft()
            except IndexError:
                self._holder = None
            else:
                self._holder = _HANDED_ON
                turn.set()

    def _take(self, holder: int) -> bool:
        if self._holder is not None:
            return False
        self._holder = holder
        return True

    def _had_turn(self, turn: threading.Event, holder: int) -> bool:
        """Whether the lock was handed over, if only just now; otherwise the place in the queue is given up."""
        with self._guard:
            if not turn.is_set():
                self._waiting.remove(turn)
                return False
            self._holder = holder
            return True
