"""How many dialogs have their turn at once."""

from __future__ import annotations

from typing import Final

_LEAST: Final = 1
_MOST: Final = 64
_BYTES: Final = 128 << 10


class Pace:
    """What a turn comes to is not known before: few dialogs have theirs first, as many as came to little the last time, and then more.

    Attributes:
        number: How many have their turn now.
        bytes: What all turns since the beginning came to: what was read for them, or of what was read before.

    Examples:
        >>> pace = Pace()
        >>> pace.begin()
        >>> pace.took(1, 1024)
        >>> pace.number, pace.bytes
        (2, 1024)
        >>> pace.begin()
        >>> pace.number
        64
    """

    __slots__ = ("_turns", "bytes", "number")

    def __init__(self) -> None:
        self.number = _LEAST
        self.bytes = 0
        self._turns = 0

    def begin(self) -> None:
        """Begins anew, with what is known from the last time."""
        if self._turns:
            self.number = min(max(_LEAST, self._turns * _BYTES // (self.bytes + 1)), _MOST)
        self.bytes = self._turns = 0

    def took(self, turns: int, size: int) -> None:
        """Notes what some turns came to, in bytes; a large message is read whole for a turn that sends little of it."""
        self._turns += turns
        self.bytes += size
        self.number *= 2
