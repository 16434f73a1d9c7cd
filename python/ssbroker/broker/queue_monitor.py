"""When a queue needs a further reader (facts 143, 144): a state machine without clock and threads."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ssbroker.protocol.config import SECOND

CHECK_EVERY: Final = 5 * SECOND
"""The microseconds between two checks, and for how long an empty RECEIVE says that the readers are enough (fact 143)."""
FAILURES_MAX: Final = 5
"""After so many readers in a row that got nothing done, the next one waits for the next check."""


class MonitorState(StrEnum):
    """`state` of `sys.dm_broker_queue_monitors`."""

    INACTIVE = "INACTIVE"
    """No reader runs."""
    NOTIFIED = "NOTIFIED"
    """A reader was started; no further one is until somebody receives from the queue."""
    RECEIVES_OCCURRING = "RECEIVES_OCCURRING"
    """Readers run and receive."""


class MonitorInput(StrEnum):
    """What a monitor is told."""

    ASKED = "ASKED"
    """Other readers are asked for; those that were started before are not waited for."""
    STARTED = "STARTED"
    """A reader was started."""
    RECEIVED = "RECEIVED"
    """Somebody, a reader or not, received from the queue, or found it empty."""
    ENDED = "ENDED"
    """A reader ended that has not received, and others run."""
    ENDED_LAST = "ENDED_LAST"
    """The last reader ended."""


_INACTIVE, _NOTIFIED, _OCCURRING = MonitorState

# fmt: off
TABLE: Final[dict[MonitorInput, dict[MonitorState, MonitorState]]] = {
    MonitorInput.ASKED:      {_INACTIVE: _INACTIVE, _NOTIFIED: _OCCURRING, _OCCURRING: _OCCURRING},
    MonitorInput.STARTED:    {_INACTIVE: _NOTIFIED, _NOTIFIED: _NOTIFIED,  _OCCURRING: _NOTIFIED},
    MonitorInput.RECEIVED:   {_INACTIVE: _INACTIVE, _NOTIFIED: _OCCURRING, _OCCURRING: _OCCURRING},
    MonitorInput.ENDED:      {_INACTIVE: _INACTIVE, _NOTIFIED: _OCCURRING, _OCCURRING: _OCCURRING},
    MonitorInput.ENDED_LAST: {_INACTIVE: _INACTIVE, _NOTIFIED: _INACTIVE,  _OCCURRING: _INACTIVE},
}
# fmt: on


class QueueMonitor:
    """Watches one queue, and says when a reader is to be started. Moments are in microseconds since 1970.

    Attributes:
        max_queue_readers: How many readers may run at once.
        state: Where the monitor stands.
        running: How many readers run.
        last_empty_rowset_time: When a RECEIVE from the whole queue last came back empty.
        last_activated_time: When a reader was last started.

    Examples:
        >>> monitor = QueueMonitor(max_queue_readers=2)
        >>> monitor.is_reader_needed(has_messages=True, waiting=0, now=0)
        True
        >>> monitor.started(now=0)
        >>> monitor.is_reader_needed(has_messages=True, waiting=0, now=0)  # the first has not received yet
        False
        >>> monitor.received(is_empty=False, is_named=False, now=0)
        >>> monitor.is_reader_needed(has_messages=True, waiting=0, now=0)
        True
    """

    def __init__(self, *, max_queue_readers: int) -> None:
        self.max_queue_readers = max_queue_readers
        self.state = MonitorState.INACTIVE
        self.running = 0
        self.last_empty_rowset_time: int | None = None
        self.last_activated_time: int | None = None
        self._failures = 0
        self._held_until: int | None = None

    def is_reader_needed(self, *, has_messages: bool, waiting: int, now: int) -> bool:
        """Whether a further reader is to be started.

        Args:
            has_messages: Whether the queue holds messages that can be received.
            waiting: How many wait for one in a RECEIVE that names no conversation and no group.
            now: The moment.

        Returns:
            Whether it is needed, and may be started (fact 143).
        """
        return has_messages and self.can_start(now=now) and waiting == 0 and not self._is_enough(now=now)

    def is_limit_reached(self, *, waiting: int, now: int) -> bool:
        """Whether a message that comes now would have a further reader started, and does not, since as many run as may (fact 170).

        Args:
            waiting: How many wait for one in a RECEIVE that names no conversation and no group.
            now: The moment.

        Returns:
            Whether it is only the limit that keeps it.
        """
        is_at_limit = self.running >= self.max_queue_readers > 0
        is_receiving = self.state is MonitorState.RECEIVES_OCCURRING
        return is_at_limit and is_receiving and waiting == 0 and not self._is_enough(now=now)

    def can_start(self, *, now: int) -> bool:
        """Whether one more reader may run at all, whatever stands in the queue.

        Args:
            now: The moment.

        Returns:
            Whether fewer run than may, all that were started have received, and no failure holds it.
        """
        return (
            self.running < self.max_queue_readers
            and self.state is not MonitorState.NOTIFIED
            and not self._is_held(now=now)
        )

    def next_check(self, *, now: int) -> int:
        """When to look again, if nothing is told before.

        Args:
            now: The moment.

        Returns:
            A moment after `now`.
        """
        if self._held_until is not None and self._is_held(now=now):
            return self._held_until
        return now + CHECK_EVERY

    def begin_anew(self, *, max_queue_readers: int) -> None:
        """Something else is asked for: what became of the readers before says nothing about the next, but those that run still run.

        Args:
            max_queue_readers: How many readers may run at once from now on.
        """
        self.max_queue_readers = max_queue_readers
        self._failures, self._held_until = 0, None
        self._enter(MonitorInput.ASKED)

    def started(self, *, now: int) -> None:
        """A reader was started.

        Args:
            now: The moment.
        """
        self.running += 1
        self.last_activated_time = now
        self._held_until = None
        self._enter(MonitorInput.STARTED)

    def received(self, *, is_empty: bool, is_named: bool, now: int) -> None:
        """Somebody received from the queue, or found it empty.

        Args:
            is_empty: Whether nothing was there.
            is_named: Whether a conversation or a group was named; its being empty says nothing about the queue.
            now: The moment.
        """
        if is_empty and not is_named:
            self.last_empty_rowset_time = now
        self._enter(MonitorInput.RECEIVED)

    def ended(self, *, has_received: bool, is_done: bool, now: int) -> bool:
        """A reader ended.

        Args:
            has_received: Whether it received from the queue, or found it empty. One that did leaves the monitor waiting for one that was
                started after it, and that has not received yet.
            is_done: Whether it took something from the queue for good, or found it empty. One that did neither would be started again
                at once and for ever; after `FAILURES_MAX` such in a row, the next waits for the next check.
            now: The moment.

        Returns:
            Whether it ended without a RECEIVE, its own or anybody's since the last reader was started.
        """
        is_in_vain = not has_received and self.state is MonitorState.NOTIFIED
        self.running -= 1
        if not self.running:
            self._enter(MonitorInput.ENDED_LAST)
        elif not has_received:
            self._enter(MonitorInput.ENDED)
        self._failures = 0 if is_done else self._failures + 1
        if is_in_vain or self._failures >= FAILURES_MAX:
            self._held_until = now + CHECK_EVERY
        return is_in_vain

    def _is_enough(self, *, now: int) -> bool:
        """Whether the readers that run have found the queue empty a short while ago."""
        empty = self.last_empty_rowset_time
        return self.running > 0 and empty is not None and 0 <= now - empty < CHECK_EVERY

    def _is_held(self, *, now: int) -> bool:
        # Further away than a check is what was set before the clock was put back.
        return self._held_until is not None and now < self._held_until <= now + CHECK_EVERY

    def _enter(self, occurrence: MonitorInput) -> None:
        self.state = TABLE[occurrence][self.state]
