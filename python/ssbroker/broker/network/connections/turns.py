"""Who may dial now of the addresses that no route names, since neighbours choose those (N34)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final


class Turns:
    """A number of turns; who finds none waits, in the order of asking.

    Args:
        most: How many have a turn at once.

    Examples:
        >>> turns, begun = Turns(1), []
        >>> for name in ("a", "b", "c"):
        ...     turns.take(name, lambda name=name: begun.append(name) is None)
        >>> begun
        ['a']
        >>> turns.give_back("a"), turns.give_back("a"), begun
        (None, None, ['a', 'b'])
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._having: Final[set[Hashable]] = set()
        self._waiting: Final[deque[tuple[Hashable, Callable[[], bool]]]] = deque()

    def take(self, who: Hashable, begin: Callable[[], bool]) -> None:
        """Begins, now or when it is its turn.

        Args:
            who: Whose turn it is.
            begin: Begins, and tells whether a turn is needed for it.
        """
        self._waiting.append((who, begin))
        self._go_on()

    def give_back(self, who: Hashable) -> None:
        """Ends a turn, if there is one.

        Args:
            who: Whose.
        """
        self._having.discard(who)
        self._go_on()

    def clear(self) -> None:
        """Has nobody wait any more."""
        self._waiting.clear()

    def _go_on(self) -> None:
        while self._waiting and len(self._having) < self._most:
            who, begin = self._waiting.popleft()
            if begin():
                self._having.add(who)
