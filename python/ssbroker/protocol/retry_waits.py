"""The waits between retries, and a clock for these waits that is never set back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ssbroker.protocol.settings import SECOND

RETRY_WAITS: Final = tuple(seconds * SECOND for seconds in (4, 8, 16, 32, 64))
"""The waits between retries; the last wait repeats."""

JITTER: Final = 0.125
"""The maximum deviation of a wait, as a part of the wait. Without jitter, outages in step with the waits could starve a dialog forever."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits between retries, with jitter.

    Attributes:
        random: Returns numbers in [0, 1), such as `random.Random(seed).random`.

    Examples:
        >>> backoff = Backoff(random=lambda: 0.5)
        >>> [backoff.wait(attempt) // SECOND for attempt in range(7)]
        [4, 8, 16, 32, 64, 64, 64]
        >>> Backoff(random=lambda: 0.0).wait(0) / SECOND
        3.5
    """

    random: Callable[[], float]

    def wait(self, attempt: int) -> int:
        """Returns how many microseconds to wait for an acknowledgement after `attempt` retransmissions."""
        return round(self._base_wait(attempt) * (1 + JITTER * (2 * self.random() - 1)))

    def _base_wait(self, attempt: int) -> int:
        return RETRY_WAITS[min(attempt, len(RETRY_WAITS) - 1)]

    @property
    def first_wait(self) -> int:
        """The first wait in microseconds, without jitter."""
        return RETRY_WAITS[0]

    @property
    def max_wait(self) -> int:
        """The longest wait in microseconds."""
        return round(RETRY_WAITS[-1] * (1 + JITTER))


class MonotonicClock:
    """A clock that keeps counting when the wall clock is set back, so that no retry is delayed.

    Examples:
        >>> clock = MonotonicClock()
        >>> clock.monotonic(1000), clock.monotonic(400), clock.monotonic(500), clock.wall_time(1100)
        (1000, 1000, 1100, 500)
        >>> clock.latest
        1100
    """

    __slots__ = ("_last", "_set_back")

    def __init__(self) -> None:
        self._last: int | None = None
        self._set_back = 0

    def monotonic(self, now: int) -> int:
        """Returns the monotonic time of a wall-clock time."""
        if self._last is not None and now < self._last:
            self._set_back += self._last - now
        self._last = now
        return now + self._set_back

    @property
    def latest(self) -> int:
        """The monotonic time of the last wall-clock time; 0 if there was none."""
        return 0 if self._last is None else self._last + self._set_back

    def wall_time(self, monotonic: int) -> int:
        """Returns the wall-clock time of a monotonic time, assuming that the wall clock is not adjusted again."""
        return monotonic - self._set_back
