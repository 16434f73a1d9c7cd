"""What is there of messages that are incomplete or wait for others, as runs: as many as there are gaps, however much is there (P15, P26)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TypeAlias

from ssbroker.protocol.acknowledgement import RUNS_MAX, Run

Place: TypeAlias = tuple[int, int]
"""A message and a fragment of it."""


class Runs:
    """Places, each at most once; those that follow one another take no more room than one of them.

    Examples:
        >>> runs = Runs()
        >>> runs.add((3, 2), before=(3, 1), after=(3, 3))
        >>> runs.add((4, 0), before=(3, 3), after=(4, 1))
        >>> runs.add((3, 3), before=(3, 2), after=(4, 0))
        >>> runs.told(), (3, 3) in runs, (4, 1) in runs
        ([(3, 2, 4, 0)], True, False)
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[Place] = []
        self._lasts: list[Place] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, place: Place) -> bool:
        at = bisect_right(self._firsts, place)
        return at > 0 and place <= self._lasts[at - 1]

    def add(self, place: Place, *, before: Place | None, after: Place) -> None:
        """Adds a place that is not there.

        Args:
            place: The place.
            before: The one that it follows; None where that is not known.
            after: The one that follows it.
        """
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, place)
        follows = at > 0 and lasts[at - 1] == before
        precedes = at < len(firsts) and firsts[at] == after
        if follows and precedes:
            del firsts[at]
            del lasts[at - 1]
        elif follows:
            lasts[at - 1] = place
        elif precedes:
            firsts[at] = place
        else:
            firsts.insert(at, place)
            lasts.insert(at, place)

    def reach(self, number: int) -> None:
        """Takes out all messages before a number."""
        first = (number, 0)
        at = bisect_left(self._lasts, first)
        del self._firsts[:at], self._lasts[:at]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], first)

    def drop(self, number: int, *, before: Place | None) -> None:
        """Takes out one message.

        Args:
            number: The message.
            before: The place that its first one follows; None where that is not known.
        """
        begin, end = (number, 0), (number + 1, 0)
        low, high = bisect_left(self._lasts, begin), bisect_left(self._firsts, end)
        firsts, lasts = self._firsts[low:high], self._lasts[low:high]
        rest: list[tuple[Place, Place]] = []
        if before is not None and firsts and firsts[0] < begin:
            rest.append((firsts[0], before))
        if lasts and lasts[-1] >= end:
            rest.append((end, lasts[-1]))
        self._firsts[low:high] = [first for first, _ in rest]
        self._lasts[low:high] = [last for _, last in rest]

    def told(self) -> list[Run]:
        """The runs, ascending, as many as an acknowledgement names."""
        return [(*first, *last) for first, last in zip(self._firsts[:RUNS_MAX], self._lasts[:RUNS_MAX], strict=True)]
