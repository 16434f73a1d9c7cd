"""Schedules the next delivery of each conversation, with longer intervals after failures."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from ssbroker.protocol.retry_waits import Backoff


class SenderId(NamedTuple):
    """Identifies a sending endpoint."""

    database_id: int
    endpoint_id: int


class _Attempt(NamedTuple):
    attempt: int
    """Number of failed attempts so far."""
    at: int
    """Time of the next attempt, in microseconds since 1970."""
    is_in_transit: bool = False
    """Whether messages of the conversation are being sent to another instance, so that new messages need not wait for the retry."""


class DeliverySchedule:
    """The time of the next delivery attempt of each conversation; in memory only. Thread-safe.

    A delivering thread removes conversations with `claim`. A commit in such a conversation meanwhile adds it again, so that no message is missed.

    Examples:
        >>> schedule = DeliverySchedule(Backoff(random=lambda: 0.5))
        >>> schedule.add([SenderId(5, 1)], at=0)
        >>> schedule.claim(5, now=0)
        {1: 0}
        >>> schedule.schedule_retry(SenderId(5, 1), attempt=0, now=0)
        >>> schedule.next_time() // 1_000_000
        4
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff: Final = backoff
        self._guard: Final = threading.RLock()
        self._attempts: dict[SenderId, _Attempt] = {}
        # For each database, a heap of (time, sender). An entry is obsolete if its time differs from the time in
        # `_attempts`. Each attempt has an entry, even after an interrupt by a signal handler.
        self._heaps: dict[int, list[tuple[int, int]]] = {}
        self._latest_claim_time = 0
        self._changes = 0
        self._changes_at_claim: dict[int, int] = {}
        """For each database, the value of `_changes` at its last claim."""
        self._claimed: dict[int, set[int]] = {}
        """For each database, the sender ids of its last claim."""
        self._reused_sender_ids: dict[int, set[int]] = {}
        """For each database, the ids in `_claimed` that other conversations have since been given."""

    def add(self, keys: Iterable[SenderId], *, at: int) -> None:
        """Schedules conversations. After a failed delivery, a conversation keeps its retry time; a conversation in transit does not wait for it."""
        with self._guard:
            for key in keys:
                scheduled = self._attempts.get(key)
                if scheduled is None or (scheduled.is_in_transit and at < scheduled.at):
                    self._schedule(key, _Attempt(0, at))

    def claim(self, database_id: int, *, now: int) -> dict[int, int]:
        """Removes the due conversations of a database from the schedule, and returns their numbers of failed attempts.

        If the clock was set back, all conversations are due.
        """
        with self._guard:
            self._changes_at_claim[database_id] = self._changes
            self._reused_sender_ids.pop(database_id, None)
            # Threads may have read the clock earlier, so small steps back are normal and only prolong a wait.
            if now + self._backoff.max_wait < self._latest_claim_time:
                self._bring_forward(at=now)
                self._latest_claim_time = now
            self._latest_claim_time = max(self._latest_claim_time, now)
            found: dict[int, int] = {}
            heap = self._heaps.get(database_id, [])
            while heap and (first := heap[0])[0] <= now:
                if self._is_current(database_id, first):
                    found[first[1]] = self._attempts.pop(SenderId(database_id, first[1])).attempt
                _remove_first(heap, first)
            self._claimed[database_id] = set(found)
            return dict(sorted(found.items()))

    def schedule_retry(self, key: SenderId, *, attempt: int, now: int, is_in_transit: bool = False) -> None:
        """Schedules a retry after a longer interval, or immediately if `schedule_all_now` was called since the claim.

        A conversation in transit that was added again since then keeps its earlier time. A conversation that was removed since then is
        not retried, and does not delay a new conversation with the same id.
        """
        with self._guard:
            if key.endpoint_id in self._reused_sender_ids.get(key.database_id, ()):
                return
            is_changed = self._changes_at_claim.get(key.database_id, self._changes) != self._changes
            at = now if is_changed else now + self._backoff.wait(attempt)
            added = self._attempts.get(key)
            if is_in_transit and added is not None and added.at <= at:
                return
            self._schedule(key, _Attempt(attempt + 1, at, is_in_transit))

    def forget(self, key: SenderId) -> None:
        """Forgets a removed conversation whose id a new conversation has now."""
        with self._guard:
            self._attempts.pop(key, None)
            if key.endpoint_id in self._claimed.get(key.database_id, ()):
                self._reused_sender_ids.setdefault(key.database_id, set()).add(key.endpoint_id)

    def keep_databases(self, database_ids: Iterable[int]) -> None:
        """Forgets the conversations of all databases except those with the given ids: the instance no longer contains them."""
        kept = set(database_ids)
        with self._guard:
            dropped = (self._heaps.keys() | self._changes_at_claim.keys()) - kept
            if not dropped:
                return
            self._attempts = {key: each for key, each in self._attempts.items() if key.database_id in kept}
            for database_id in dropped:
                for by_database in (self._heaps, self._changes_at_claim, self._claimed, self._reused_sender_ids):
                    by_database.pop(database_id, None)

    def schedule_all_now(self, *, now: int) -> None:
        """Schedules all conversations immediately, after a change that may have fixed the problems of waiting messages."""
        with self._guard:
            self._changes += 1
            self._bring_forward(at=now)

    def next_time(self) -> int | None:
        """Returns the time of the next attempt, past or future; None if nothing waits."""
        with self._guard:
            heaps = list(self._heaps.items())  # a signal handler may change them
            for database_id, heap in heaps:
                while heap and not self._is_current(database_id, first := heap[0]):
                    _remove_first(heap, first)
            return min((heap[0][0] for _, heap in heaps if heap), default=None)

    def _schedule(self, key: SenderId, attempt: _Attempt) -> None:
        heapq.heappush(self._heaps.setdefault(key.database_id, []), (attempt.at, key.endpoint_id))
        self._attempts[key] = attempt

    def _bring_forward(self, *, at: int) -> None:
        """Moves attempts that are due after `at` forward to `at`."""
        before, self._attempts, self._heaps = self._attempts, {}, {}
        for key, each in before.items():
            self._schedule(key, each._replace(at=min(each.at, at)))

    def _is_current(self, database_id: int, entry: tuple[int, int]) -> bool:
        at, endpoint_id = entry
        scheduled = self._attempts.get(SenderId(database_id, endpoint_id))
        return scheduled is not None and scheduled.at == at


def _remove_first(heap: list[tuple[int, int]], entry: tuple[int, int]) -> None:
    """Removes the first entry of a heap, unless a signal handler has just changed it."""
    if heap and heap[0] == entry:
        heapq.heappop(heap)
