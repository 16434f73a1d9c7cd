"""How many lines of a log one neighbour may fill: the first ones of a minute, and then one that counts the rest (N35)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

LINES: Final = 20
"""The lines of one kind that one neighbour has in a minute."""
WINDOW: Final = 60_000_000
"""A minute, in microseconds."""
SOURCES: Final = 1000
"""The neighbours that are told apart; all further ones are one."""

Source = TypeVar("Source", bound=Hashable)


@dataclass(slots=True)
class _Window:
    """One minute of one neighbour."""

    began: int
    lines: int = 0


class LogRate(Generic[Source]):
    """Counts lines by where they come from. For any number of threads; where two of them meet, a line may be counted as none.

    Args:
        others: What a source counts as where there are too many of them.

    Examples:
        >>> rate = LogRate(others=lambda _: "others")
        >>> [rate.passes("bank", now=0) for _ in range(22)][18:], rate.left_out(now=0)
        ([True, True, False, False], [])
        >>> rate.left_out(now=WINDOW), rate.passes("bank", now=WINDOW)
        ([('bank', 2)], True)
    """

    def __init__(self, *, others: Callable[[Source], Source]) -> None:
        self._others: Final = others
        self._windows: Final[dict[Source, _Window]] = {}
        self._earliest = math.inf
        self._latest = -math.inf

    def passes(self, source: Source, *, now: int) -> bool:
        """Counts a line.

        Args:
            source: Where it comes from.
            now: The moment, in microseconds.

        Returns:
            Whether it is to be written.
        """
        if source not in self._windows and len(self._windows) >= SOURCES:
            source = self._others(source)
        window = self._windows.setdefault(source, _Window(now))
        self._cover(window)
        window.lines += 1
        return window.lines <= LINES

    def left_out(self, *, now: int) -> list[tuple[Source, int]]:
        """Ends the minutes that are over; a clock that goes back ends them too.

        Args:
            now: The moment, in microseconds.

        Returns:
            For each source of which lines were left out: how many.
        """
        if self._latest <= now < self._earliest + WINDOW:
            return []
        over = [source for source, each in list(self._windows.items()) if not 0 <= now - each.began < WINDOW]
        ended = [(source, self._windows.pop(source, None)) for source in over]
        self._earliest, self._latest = math.inf, -math.inf
        for window in list(self._windows.values()):
            self._cover(window)
        return [(source, each.lines - LINES) for source, each in ended if each is not None and each.lines > LINES]

    def _cover(self, window: _Window) -> None:
        self._earliest = min(self._earliest, window.began)
        self._latest = max(self._latest, window.began)
