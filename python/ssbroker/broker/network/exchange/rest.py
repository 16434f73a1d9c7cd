"""How long what is to be sent may gather (B49)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

TIMES: Final = 3
"""How many times as long as it took to send is waited before anything is sent again: a quarter of the time goes into sending at most."""
LONGEST: Final = 0.015
"""The longest wait, in seconds."""
SHORTEST: Final = 0.001
"""A shorter wait gathers nothing."""


class Rest:
    """Lets what is to be sent gather: what each batch costs beside its messages is paid less often, the more there is to send.

    What comes a while after the last batch goes at once.

    Args:
        clock: The seconds of a clock that only grows.

    Examples:
        >>> seconds = iter([0.0, 2.0, 2.0, 9.0])
        >>> rest = Rest(clock=lambda: next(seconds))
        >>> with rest.after():
        ...     "two seconds"
        'two seconds'
        >>> round(rest.left, 3), rest.left
        (0.015, 0.0)
    """

    __slots__ = ("_clock", "_until")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._until = 0.0

    @property
    def left(self) -> float:
        """How many seconds are left of it. Any thread may ask."""
        return max(0.0, self._until - self._clock())

    @contextmanager
    def after(self) -> Iterator[None]:
        """Begins at the end of the block, which sends something."""
        begun = self._clock()
        yield
        ended = self._clock()
        wait = min(TIMES * (ended - begun), LONGEST)
        self._until = ended + wait if wait >= SHORTEST else 0.0

    def end(self) -> None:
        """Ends it."""
        self._until = 0.0
