"""Sets of numbers as spans: as large as they have gaps, however large the numbers are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Spans:
    """Numbers, each at most once; those that follow one another take no more room than one of them (P26).

    Examples:
        >>> spans = Spans()
        >>> for number in (7, 3, 5, 4, 1_000_000):
        ...     spans.add(number)
        >>> list(spans)
        [(3, 5), (7, 7), (1000000, 1000000)]
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, number: int) -> None:
        """Adds a number."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, number)
        if at and number <= lasts[at - 1]:
            return
        follows = at > 0 and lasts[at - 1] == number - 1
        precedes = at < len(firsts) and firsts[at] == number + 1
        if follows and precedes:
            del firsts[at]
            del lasts[at - 1]
        elif follows:
            lasts[at - 1] = number
        elif precedes:
            firsts[at] = number
        else:
            firsts.insert(at, number)
            lasts.insert(at, number)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """First and last of each span, ascending."""
        return zip(self._firsts, self._lasts, strict=True)
