"""Which conversations have messages to deliver, and when each is tried next (P17)."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from ssbroker.protocol.retry import Backoff


class Key(NamedTuple):
    """A conversation's sender."""

    database_id: int
    endpoint_id: int


class _Try(NamedTuple):
    attempt: int
    """How often delivery has failed so far."""
    at: int
    """When it is tried next, in microseconds since 1970."""
    is_carried: bool = False
    """Whether its messages are on their way to another instance, so that those which come meanwhile need not wait."""


class Retries:
    """Keeps in memory what is to be delivered, and when; the messages themselves are in the files. For any number of threads.

    Who delivers takes conversations out with `claim`. What is committed in one of them meanwhile puts it in again, so that nothing
    is overlooked.

    Args:
        backoff: The waits.

    Examples:
        >>> retries = Retries(Backoff(roll=lambda: 0.5))
        >>> retries.add([Key(5, 1)], at=0)
        >>> retries.claim(5, now=0)
        {1: 0}
        >>> retries.failed(Key(5, 1), attempt=0, now=0)
        >>> retries.next_moment() // 1_000_000
        4
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff: Final = backoff
        self._guard: Final = threading.RLock()
        self._tries: dict[Key, _Try] = {}
        # For each database the moments and senders, the earliest first; one whose moment is not that of its try is past.
        self._order: dict[int, list[tuple[int, int]]] = {}
        self._latest = 0
        self._changes = 0
        self._seen: dict[int, int] = {}
        """For each database the changes that its last claim knew of."""
        self._tried: dict[int, set[int]] = {}
        """For each database the numbers that its last claim took out."""
        self._replaced: dict[int, set[int]] = {}
        """Of these, those that other conversations have since then."""

    def add(self, keys: Iterable[Key], *, at: int) -> None:
        """Has conversations tried at a moment; those that have failed stay as they are, those that are carried do not wait.

        Args:
            keys: The conversations.
            at: The moment.
        """
        with self._guard:
            for key in keys:
                known = self._tries.get(key)
                if known is None or (known.is_carried and at < known.at):
                    self._put(key, _Try(0, at))

    def claim(self, database_id: int, *, now: int) -> dict[int, int]:
        """Takes out the conversations of a database whose moment has come; all of them where the clock was put back.

        Args:
            database_id: The database.
            now: The moment.

        Returns:
            The senders, and how often delivery has failed for each; in ascending order.
        """
        with self._guard:
            self._seen[database_id] = self._changes
            self._replaced.pop(database_id, None)
            # Threads have read the clock before their turn came; one that was put back by less prolongs a wait by that.
            if now + self._backoff.longest < self._latest:
                self._move(at=now)
                self._latest = now
            self._latest = max(self._latest, now)
            found: dict[int, int] = {}
            order = self._order.get(database_id, [])
            while order and order[0][0] <= now:
                at, endpoint_id = heapq.heappop(order)
                if self._is_current(Key(database_id, endpoint_id), at):
                    found[endpoint_id] = self._tries.pop(Key(database_id, endpoint_id)).attempt
            self._tried[database_id] = set(found)
            return dict(sorted(found.items()))

    def failed(self, key: Key, *, attempt: int, now: int, is_carried: bool = False) -> None:
        """Has a conversation tried again after a longer wait than before; at once where something has changed since its claim.

        One that is gone since then is not tried again, nor does the one that has its number now wait for it.

        Args:
            key: The conversation.
            attempt: What `claim` said.
            now: The moment at which it failed.
            is_carried: Whether its messages are on their way to another instance.
        """
        with self._guard:
            if key.endpoint_id in self._replaced.get(key.database_id, ()):
                return
            is_changed = self._seen.get(key.database_id, self._changes) != self._changes
            at = now if is_changed else now + self._backoff.wait(attempt)
            self._put(key, _Try(attempt + 1, at, is_carried))

    def forget(self, key: Key) -> None:
        """Forgets a conversation that is gone: another one has its number now.

        Args:
            key: The number.
        """
        with self._guard:
            self._tries.pop(key, None)
            if key.endpoint_id in self._tried.get(key.database_id, ()):
                self._replaced.setdefault(key.database_id, set()).add(key.endpoint_id)

    def keep_databases(self, database_ids: Iterable[int]) -> None:
        """Forgets the conversations of databases that are not in the instance any more.

        Args:
            database_ids: The databases that are.
        """
        kept = set(database_ids)
        with self._guard:
            if self._order.keys() <= kept:
                return
            self._tries = {key: each for key, each in self._tries.items() if key.database_id in kept}
            self._order = {number: each for number, each in self._order.items() if number in kept}
            self._seen = {number: each for number, each in self._seen.items() if number in kept}

    def hasten(self, *, now: int) -> None:
        """Has every conversation tried at once: something has changed that may have been in the way.

        Args:
            now: The moment.
        """
        with self._guard:
            self._changes += 1
            self._move(at=now)

    def next_moment(self) -> int | None:
        """When the next conversation is tried.

        Returns:
            The moment, past or future; None where nothing waits.
        """
        with self._guard:
            orders = list(self._order.items())  # the handler of a signal may add to them
            for database_id, order in orders:
                while order and not self._is_current(Key(database_id, order[0][1]), order[0][0]):
                    heapq.heappop(order)
            return min((order[0][0] for _, order in orders if order), default=None)

    def _put(self, key: Key, new: _Try) -> None:
        self._tries[key] = new
        heapq.heappush(self._order.setdefault(key.database_id, []), (new.at, key.endpoint_id))

    def _move(self, *, at: int) -> None:
        """Has everything that would be tried later tried at a moment."""
        before, self._tries, self._order = self._tries, {}, {}
        for key, each in before.items():
            self._put(key, each._replace(at=min(each.at, at)))

    def _is_current(self, key: Key, at: int) -> bool:
        known = self._tries.get(key)
        return known is not None and known.at == at
