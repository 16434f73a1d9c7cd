"""Who waits for messages of a database's queues, and how they are woken."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ssbroker.store import file


class QueueWaiters(file.Arrivals):
    """Wakes receivers of this process when a message for their queue has been committed.

    Whoever waits takes `count` first, looks into the queue, gives the lock back, and waits from that count on: what arrives after the
    look ends the wait at once. What other processes commit is not told here.

    Examples:
        >>> arrivals = QueueWaiters()
        >>> seen = arrivals.count(1)
        >>> arrivals.tell([1])
        >>> arrivals.wait(1, seen=seen, timeout=60.0)
        True
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: Counter[int] = Counter()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will be told."""
        return self._is_closed

    def waiting(self, queue_id: int) -> int:
        """How many wait for a message of the queue now (`tasks_waiting`).

        Args:
            queue_id: The queue.

        Returns:
            Their number.
        """
        with self._changed:
            return self._waiting[queue_id]

    def wait(self, queue_id: int, *, seen: int, timeout: float) -> bool:
        """Waits until something is told of the queue after `seen`, or until nothing more will be.

        Args:
            queue_id: The queue.
            seen: What `count` said before the queue was looked into.
            timeout: The seconds to wait.

        Returns:
            Whether something was told; False also where `close` ended the wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.count(queue_id) != seen or self._is_closed, timeout)
            return self.count(queue_id) != seen

    @contextmanager
    def waits(self, queue_id: int) -> Iterator[None]:
        """Counts as one who waits, for as long as the block runs.

        Args:
            queue_id: The queue.

        Yields:
            Nothing.
        """
        with self._changed:
            self._waiting[queue_id] += 1
            self.add_waiting(1)
        try:
            yield
        finally:
            with self._changed:
                self._waiting[queue_id] -= 1
                self.add_waiting(-1)

    def tell(self, queue_ids: Iterable[int]) -> None:
        """Wakes whoever waits for one of the queues: a message is there, or the queue has changed.

        Args:
            queue_ids: The queues.
        """
        if self.record(list(queue_ids)):
            self.wake()

    def wake(self) -> None:
        """Has all who wait look what was told."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every wait, now and later."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
