"""A clock that never goes back, made of one that may be set."""

from __future__ import annotations


class SteadyClock:
    """Counts on where the wall clock is set back, so that nobody waits an hour longer for a retry.

    Examples:
        >>> clock = SteadyClock()
        >>> clock.moment(1000), clock.moment(400), clock.moment(500), clock.wall(1100)
        (1000, 1000, 1100, 500)
    """

    __slots__ = ("_last", "_set_back")

    def __init__(self) -> None:
        self._last: int | None = None
        self._set_back = 0

    def moment(self, now: int) -> int:
        """The steady moment of a reading of the wall clock."""
        if self._last is not None and now < self._last:
            self._set_back += self._last - now
        self._last = now
        return now + self._set_back

    def wall(self, moment: int) -> int:
        """What the wall clock shows at a steady moment, unless it is set again."""
        return moment - self._set_back
