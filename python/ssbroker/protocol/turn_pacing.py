"""How many dialogs have their turn at a time."""

from __future__ import annotations

from typing import Final

_BATCH_MIN: Final = 1
_BATCH_MAX: Final = 64
_BATCH_BYTES: Final = 128 << 10


class TurnPacing:
    """Adapts the number of turns taken at a time to their size, which is unknown beforehand.

    Attributes:
        batch_size: How many dialogs have their turn next.
        bytes: The size of all turns since `start`.

    Examples:
        >>> pacing = TurnPacing()
        >>> pacing.start()
        >>> pacing.record(1, 1024)
        >>> pacing.batch_size, pacing.bytes
        (2, 1024)
        >>> pacing.start()
        >>> pacing.batch_size
        64
    """

    __slots__ = ("_turns", "batch_size", "bytes")

    def __init__(self) -> None:
        self.batch_size = _BATCH_MIN
        self.bytes = 0
        self._turns = 0

    def start(self) -> None:
        """Resets the counts and estimates the batch size from the last ones."""
        if self._turns:
            self.batch_size = min(max(_BATCH_MIN, self._turns * _BATCH_BYTES // (self.bytes + 1)), _BATCH_MAX)
        self.bytes = self._turns = 0

    def record(self, turns: int, size: int) -> None:
        """Records the size of some turns in bytes, including what was read but not sent."""
        self._turns += turns
        self.bytes += size
        self.batch_size *= 2
