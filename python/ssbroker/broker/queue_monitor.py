"""The queue monitor, which decides when a queue needs another reader: a state machine that has neither a clock nor threads."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ssbroker.protocol.settings import SECOND

CHECK_EVERY: Final = 5 * SECOND
"""Microseconds between two checks, and the time for which an empty RECEIVE shows that there are enough readers."""
READERS_WITHOUT_PROGRESS_MAX: Final = 5
"""Number of consecutive readers without progress after which the next reader waits for the next check."""


class MonitorState(StrEnum):
    """`state` of `sys.dm_broker_queue_monitors`."""

    INACTIVE = "INACTIVE"
    """No reader is running."""
    NOTIFIED = "NOTIFIED"
    """A reader was started and has not received yet; until it has, no other reader is started."""
    RECEIVES_OCCURRING = "RECEIVES_OCCURRING"
    """Readers are running and receiving."""


class MonitorInput(StrEnum):
    """The inputs of a queue monitor."""

    RESET = "RESET"
    """The requested readers have changed; the monitor no longer waits for the first RECEIVE of a reader that was started before."""
    STARTED = "STARTED"
    """A reader was started."""
    RECEIVED = "RECEIVED"
    """A reader or other program called RECEIVE on the queue."""
    ENDED = "ENDED"
    """A reader ended without a RECEIVE, and other readers are running."""
    ENDED_LAST = "ENDED_LAST"
    """The last reader ended."""


_INACTIVE, _NOTIFIED, _OCCURRING = MonitorState

# fmt: off
TRANSITIONS: Final[dict[MonitorInput, dict[MonitorState, MonitorState]]] = {
    MonitorInput.RESET:      {_INACTIVE: _INACTIVE, _NOTIFIED: _OCCURRING, _OCCURRING: _OCCURRING},
    MonitorInput.STARTED:    {_INACTIVE: _NOTIFIED, _NOTIFIED: _NOTIFIED,  _OCCURRING: _NOTIFIED},
    MonitorInput.RECEIVED:   {_INACTIVE: _INACTIVE, _NOTIFIED: _OCCURRING, _OCCURRING: _OCCURRING},
    MonitorInput.ENDED:      {_INACTIVE: _INACTIVE, _NOTIFIED: _OCCURRING, _OCCURRING: _OCCURRING},
    MonitorInput.ENDED_LAST: {_INACTIVE: _INACTIVE, _NOTIFIED: _INACTIVE,  _OCCURRING: _INACTIVE},
}
# fmt: on


class QueueMonitor:
    """Monitors one queue, and decides when to start a reader. Times are in microseconds since 1970.

    Attributes:
        max_queue_readers: The maximum number of readers that run in parallel.
        state: The state of the monitor.
        running: The number of running readers.
        last_empty_rowset_time: When a RECEIVE from the whole queue was last empty.
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
        self._readers_without_progress = 0
        self._held_until: int | None = None

    def is_reader_needed(self, *, has_messages: bool, waiting: int, now: int) -> bool:
        """Returns whether to start another reader."""
        return has_messages and self.can_start(now=now) and waiting == 0 and not self._has_enough_readers(now=now)

    def is_limit_reached(self, *, waiting: int, now: int) -> bool:
        """Returns whether a new message gets no additional reader only because the maximum number of readers is running."""
        is_at_limit = self.running >= self.max_queue_readers > 0
        is_receiving = self.state is MonitorState.RECEIVES_OCCURRING
        return is_at_limit and is_receiving and waiting == 0 and not self._has_enough_readers(now=now)

    def can_start(self, *, now: int) -> bool:
        """Returns whether another reader may be started, regardless of messages."""
        return (
            self.running < self.max_queue_readers
            and self.state is not MonitorState.NOTIFIED
            and not self._is_held(now=now)
        )

    def next_check(self, *, now: int) -> int:
        """Returns when to check again whether the queue needs a reader."""
        if self._held_until is not None and self._is_held(now=now):
            return self._held_until
        return now + CHECK_EVERY

    def reset(self, *, max_queue_readers: int) -> None:
        """Changes the requested readers; forgets earlier readers without progress, but still counts running readers."""
        self.max_queue_readers = max_queue_readers
        self._readers_without_progress, self._held_until = 0, None
        self._apply(MonitorInput.RESET)

    def started(self, *, now: int) -> None:
        """Records that a reader was started."""
        self.running += 1
        self.last_activated_time = now
        self._held_until = None
        self._apply(MonitorInput.STARTED)

    def received(self, *, is_empty: bool, is_named: bool, now: int) -> None:
        """Records a RECEIVE from the queue."""
        if is_empty and not is_named:
            self.last_empty_rowset_time = now
        self._apply(MonitorInput.RECEIVED)

    def ended(self, *, has_received: bool, has_progressed: bool, now: int) -> bool:
        """Records that a reader has ended; returns whether the queue needed it and it never called RECEIVE."""
        is_wasted = not has_received and self.state is MonitorState.NOTIFIED
        self.running -= 1
        if not self.running:
            self._apply(MonitorInput.ENDED_LAST)
        elif not has_received:
            self._apply(MonitorInput.ENDED)
        self._readers_without_progress = 0 if has_progressed else self._readers_without_progress + 1
        if is_wasted or self._readers_without_progress >= READERS_WITHOUT_PROGRESS_MAX:
            self._held_until = now + CHECK_EVERY
        return is_wasted

    def _has_enough_readers(self, *, now: int) -> bool:
        """Returns whether running readers have recently found the queue empty."""
        empty = self.last_empty_rowset_time
        return self.running > 0 and empty is not None and 0 <= now - empty < CHECK_EVERY

    def _is_held(self, *, now: int) -> bool:
        # A later time was recorded before the clock was set back; ignore it.
        return self._held_until is not None and now < self._held_until <= now + CHECK_EVERY

    def _apply(self, event: MonitorInput) -> None:
        self.state = TRANSITIONS[event][self.state]
