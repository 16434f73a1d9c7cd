"""Signals that committing processes send to wake receivers and the serving process; a `CommitWatch`, in contrast, polls the file.

A signal concerns one queue, or tells the serving process that there are messages to deliver or changed objects.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ssbroker._core import Arrivals, SharedMemory

TRANSMISSIONS_CHANNEL: Final = 0
"""Used in place of the id of an msdb queue: signals that a process has put messages into a transmission queue of an
instance that it does not serve, or has changed objects. The serving process waits for this channel only."""
OBJECTS_CHANNEL: Final = -119
"""Used in place of the id of an msdb queue: signals that objects of any database have changed, so that the catalog must
be read again. It maps to the last of the 120 slots in shared memory, the slot that an msdb queue is least likely to
use."""
_CHECK_INTERVAL: Final = 0.05
_CHECK_INTERVAL_WHEN_SHARED: Final = 5.0


class CommitSignals(Arrivals):
    """Wakes receivers when a message for their queue is committed: in all processes if they share memory, otherwise in this process.

    A receiver reads `count`, checks the queue, and then waits for the count to change, so that a message that arrives
    after the check ends the wait immediately. The receiver also checks the queue every `check_interval` seconds:
    without shared memory, because commits of other processes do not end the wait; with shared memory, in case a process
    was killed between its commit and the notification.

    Examples:
        >>> signals = CommitSignals()
        >>> seen = signals.count(1)
        >>> signals.notify([1])
        >>> signals.wait(1, seen=seen, timeout=60.0)
        True
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: Counter[int] = Counter()
        self._is_closed = False
        self._shared: SharedMemory | None = None
        self.check_interval = _CHECK_INTERVAL

    def share(self, shared: SharedMemory, /) -> None:
        """Sends notifications and waits for them in shared memory from now on."""
        super().share(shared)
        self._shared = shared
        self.check_interval = _CHECK_INTERVAL_WHEN_SHARED

    @property
    def is_shared(self) -> bool:
        """Whether notifications of other processes also end a wait."""
        return self._shared is not None

    @property
    def is_closed(self) -> bool:
        """Whether there will be no more notifications."""
        return self._is_closed

    def waiting(self, queue_id: int) -> int:
        """Returns the number of receivers waiting for the queue (`tasks_waiting`)."""
        with self._changed:
            return self._waiting[queue_id]

    def wait(self, queue_id: int, *, seen: int, timeout: float) -> bool:
        """Waits until the count of the queue differs from `seen`, notifications end or `timeout` seconds have passed; returns whether the count differs.

        With shared memory, the call may also return before any of these happens.
        """
        if self._shared is not None:
            if not self._is_closed:
                self._shared.wait(queue_id, seen, timeout)
            return self.count(queue_id) != seen and not self._is_closed
        with self._changed:
            self._changed.wait_for(lambda: self.count(queue_id) != seen or self._is_closed, timeout)
            return self.count(queue_id) != seen

    @contextmanager
    def count_waiter(self, queue_id: int) -> Iterator[None]:
        """Counts the caller as a waiting receiver while the block runs."""
        with self._changed:
            self._waiting[queue_id] += 1
            self.add_waiting(1)
        try:
            yield
        finally:
            with self._changed:
                self._waiting[queue_id] -= 1
                self.add_waiting(-1)

    def notify(self, queue_ids: Iterable[int]) -> None:
        """Wakes the receivers of queues that have received a message or have changed."""
        if self.record(list(queue_ids)):
            self.wake()

    def wake(self) -> None:
        """Wakes all waiting receivers, so that each checks the count of its queue."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all current and future waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if self._shared is not None:
                self._shared.notify([queue_id for queue_id, number in self._waiting.items() if number])
