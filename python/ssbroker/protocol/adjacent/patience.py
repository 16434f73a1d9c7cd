"""What a link waits for, and until when (N10 to N12)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ssbroker.protocol.adjacent.limits import Limits
from ssbroker.protocol.adjacent.phases import Phase
from ssbroker.protocol.retry import SECOND

_LEAVING_WAITS: Final = 12
"""How many times as long as a GOODBYE may be waited for in silence, leaving takes at most: whoever trickles bytes ends too."""


class Due(StrEnum):
    """What a moment brings."""

    PING = "PING"
    """Ask whether anybody is there."""
    SIGN = "SIGN"
    """Give a sign, since this side does not read."""
    IDLE = "IDLE"
    """Nothing was carried for so long that the connection is to be closed."""
    END = "END"
    """What was waited for has not come."""


class Patience:
    """The moments that matter to a link.

    Args:
        limits: How long it waits.
        now: The moment at which it is made.
    """

    __slots__ = ("_asked", "_carried", "_is_paused", "_leaving", "_limits", "_made", "_moved", "_pinged", "_signed")

    def __init__(self, limits: Limits, now: int) -> None:
        self._limits = limits
        self._made = self._moved = self._carried = self._signed = now
        self._asked: int | None = None
        self._leaving: int | None = None
        self._pinged = False
        self._is_paused = False

    def heard(self, now: int) -> None:
        """Bytes have come: all that was asked counts as answered."""
        self._moved = now
        self._asked = None
        self._pinged = False

    def moved(self, now: int) -> None:
        """Something has come or gone, or has begun to be waited for."""
        self._moved = now

    def leaves(self, now: int) -> None:
        """One of the sides leaves."""
        self._moved = now
        self._leaving = now if self._leaving is None else self._leaving

    def carried(self, now: int) -> None:
        """Rows, a question or an answer have come or gone."""
        self._carried = self._moved = now

    def asked(self, now: int) -> None:
        """Something has gone that the far side will answer."""
        if self._asked is None:
            self._asked = now

    def pinged(self, now: int) -> None:
        """PING is to go."""
        self._pinged = True
        self.asked(now)

    def probed(self, now: int) -> None:
        """PING is to go at once, and to be answered as soon as a later one."""
        self._asked = now - self._limits.ping_after
        self._pinged = True

    def signed(self, now: int) -> None:
        """A sign is to go."""
        self._signed = now

    def paused(self, now: int) -> None:
        """This side no longer reads."""
        self._is_paused = True
        self._signed = now

    def resumed(self, now: int) -> None:
        """It reads again: the far side has its whole time to answer."""
        self._is_paused = False
        if self._asked is not None:
            self._asked = now
            self._pinged = False

    def missed(self, phase: Phase) -> str:
        """What has not come in time, for people."""
        limits, is_drawn_out = self._limits, self._left() < self._moved + self._limits.goodbye_wait
        what, wait = {Phase.GREETING: ("HELLO", limits.hello_wait), Phase.OPEN: ("sign", limits.silence)}.get(
            phase, ("GOODBYE", limits.goodbye_wait * (_LEAVING_WAITS if is_drawn_out else 1))
        )
        return f"no {what} within {wait / SECOND:g} s"

    def next(self, phase: Phase, *, is_waiting: bool) -> tuple[int, Due] | None:
        """The next moment that brings something, and what.

        Args:
            phase: How far the link is.
            is_waiting: Whether rows wait to go.

        Returns:
            Moment and matter; None where nothing is waited for.
        """
        limits = self._limits
        if phase is Phase.OVER:
            return None
        if phase is Phase.GREETING:
            return self._made + limits.hello_wait, Due.END
        if phase is not Phase.OPEN:
            return min(self._moved + limits.goodbye_wait, self._left()), Due.END
        if self._is_paused:
            return self._signed + limits.sign_every, Due.SIGN
        moments = []
        if not is_waiting:
            moments.append((self._carried + limits.idle, Due.IDLE))
        if self._asked is not None:
            moments.append((self._asked + limits.silence, Due.END))
            if not self._pinged:
                moments.append((self._asked + limits.ping_after, Due.PING))
        return min(moments, default=None)

    def _left(self) -> int:
        """When leaving ends, whatever comes and goes."""
        since = self._moved if self._leaving is None else self._leaving
        return since + _LEAVING_WAITS * self._limits.goodbye_wait
