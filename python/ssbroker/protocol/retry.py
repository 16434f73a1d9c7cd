"""When what was not acknowledged is sent again (P17)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SECOND: Final = 1_000_000
"""In microseconds, as all times of the protocol."""

WAITS: Final = tuple(seconds * SECOND for seconds in (4, 8, 16, 32, 64))
"""The waits, the last of which repeats (fact 91)."""

JITTER: Final = 0.125
"""How much longer or shorter a wait may be. Without it an outage that recurs in step with the waits starves a dialog for ever."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits, with numbers for their jitter.

    Attributes:
        roll: Gives numbers from 0 to below 1; such as `random.Random(seed).random`.

    Examples:
        >>> patience = Backoff(roll=lambda: 0.5)
        >>> [patience.wait(attempt) // SECOND for attempt in range(7)]
        [4, 8, 16, 32, 64, 64, 64]
        >>> Backoff(roll=lambda: 0.0).wait(0) / SECOND
        3.5
    """

    roll: Callable[[], float]

    def wait(self, attempt: int) -> int:
        """How long to wait for an acknowledgement.

        Args:
            attempt: How often the fragment was sent again before.

        Returns:
            Microseconds.

        Examples:
            >>> Backoff(roll=lambda: 0.5).wait(2)
            16000000
        """
        return round(self._base(attempt) * (1 + JITTER * (2 * self.roll() - 1)))

    def _base(self, attempt: int) -> int:
        return WAITS[min(attempt, len(WAITS) - 1)]

    @property
    def longest(self) -> int:
        """The longest wait.

        Examples:
            >>> Backoff(roll=lambda: 0.5).longest / SECOND
            72.0
        """
        return round(WAITS[-1] * (1 + JITTER))
