"""What every transaction of a file goes through: whose turn it is to write (B3)."""

from __future__ import annotations

import threading
from typing import final

from ssbroker import _core


@final
class Gate(_core.Gate):
    """Threads get the lock one after the other, first come, first served; whoever waits too long gives up its place. A connection may go with it.

    A signal may interrupt a thread anywhere in here, and its handler ask for the lock too: each step is one that nothing can come in the
    middle of.

    Examples:
        >>> gate = Gate()
        >>> gate.acquire(timeout=1.0), gate.acquire(timeout=0.0)
        (True, False)
        >>> gate.release()
    """

    __slots__ = ()

    @property
    def is_held_here(self) -> bool:
        """Whether it is for this thread to give it back: whoever asks for it here would wait for itself."""
        return self.holder == threading.get_ident()

    @property
    def is_asked_here(self) -> bool:
        """Whether this thread has it, or waits for it: the handler of a signal that asks for it here would wait for itself."""
        thread = threading.get_ident()
        return self.stands_in_line(thread) or self.holder == thread

    def acquire(self, *, timeout: float, holder: int | None = None) -> bool:
        """Waits for the lock for up to `timeout` seconds.

        Args:
            timeout: The seconds.
            holder: The thread that is to give it back, by its number; None is this one.

        Returns:
            Whether it was given.
        """
        holder = threading.get_ident() if holder is None else holder
        if self.acquire_free(holder):
            return True
        turn = threading.Lock()
        turn.acquire()
        if self.stand_in_line(turn, holder):  # it was given back just now
            return True
        try:
            turn.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
            return self.had_turn(turn)
        except BaseException:  # Ctrl-C: whoever stands in the queue and never comes would hold up all others
            if self.had_turn(turn):
                self.release()
            raise
