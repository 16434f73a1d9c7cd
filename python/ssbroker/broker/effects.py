"""The effects of a transaction, collected while it runs and announced after the commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ssbroker.protocol.events import Event, EventLog
from ssbroker.store.session import Placement, SessionSummary


class ReceiveCall(NamedTuple):
    """One RECEIVE or GET CONVERSATION GROUP of the transaction."""

    queue_id: int
    """The queue that was read."""
    is_empty: bool
    """Whether the call returned no messages."""
    is_named: bool
    """Whether the call named a conversation or group; an empty result then does not mean that the queue is empty."""
    conversation_handle: bytes | None = None
    """The endpoint of the first message if the call named a conversation or group; None if it received the next messages of the queue."""
    is_leased: bool = False
    """Whether the messages stay in the queue under a lease; then neither a commit nor a rollback shows whether they were processed."""
    is_group_only: bool = False
    """Whether the call was GET CONVERSATION GROUP, which takes no messages."""
    is_repeated: bool = False
    """Whether the call found no message, waited and tried again; only the last attempt is counted."""


@dataclass(slots=True)
class Effects:
    """The effects of one transaction, announced after the commit. After a rollback, only `received` and `error` are announced."""

    arrived: set[int] = field(default_factory=set)
    """The queues (`queue_id`) that received new messages."""
    outbound: set[int] = field(default_factory=set)
    """The endpoints (`endpoint_id`) with new messages in the transmission queue to deliver."""
    received: list[ReceiveCall] = field(default_factory=list)
    """The RECEIVE calls, in order."""
    error: str = ""
    """The error that rolled the transaction back."""
    is_acknowledged: bool = False
    """Whether messages that were received with a lease have been processed."""
    due: int | None = None
    """The earliest time set for a timer, a lifetime or the removal of a closed endpoint, in microseconds since 1970."""
    is_catalog_changed: bool = False
    """Whether a queue, service, route or the broker state has changed, so that waiting messages must be retried immediately."""
    sent: int = 0
    """Number of messages sent."""
    enqueued: dict[tuple[bool, int], int] = field(default_factory=dict)
    """Number of messages put into queues, by whether the remote endpoint is in another instance and by priority."""
    fragments: int = 0
    """Number of fragments stored until their messages are complete."""
    transmission_added: int = 0
    """Number of messages put into the transmission queue."""
    transmission_removed: int = 0
    """Number of messages removed from the transmission queue."""
    events: list[Event] = field(default_factory=list)
    """Events for subscribers, in order."""
    log: EventLog | None = None
    """The event log with the subscribers; None means that there are none."""

    def wants(self, kind: type[Event]) -> bool:
        """Returns whether there are subscribers for a class of events."""
        return self.log is not None and self.log.wants(kind)

    def add_session_summary(self, summary: SessionSummary) -> None:
        """Adds the effects of a session on the fast path."""
        sent, placements, received = summary
        self.sent += sent
        for placement, number in placements:
            self._add_placement(placement, number)
        for queue_id, is_empty in received:
            self.received.append(ReceiveCall(queue_id, is_empty, is_named=False))

    def _add_placement(self, placement: Placement, number: int) -> None:
        queue_id, sender_or_priority, is_remote = placement
        if queue_id is None:
            self.outbound.add(sender_or_priority)
            self.transmission_added += number
        else:
            self.arrived.add(queue_id)
            self.count_enqueued(number, is_remote=is_remote, priority=sender_or_priority)

    def count_enqueued(self, number: int, *, is_remote: bool, priority: int) -> None:
        """Counts messages that were put into queues."""
        key = is_remote, priority
        self.enqueued[key] = self.enqueued.get(key, 0) + number

    def set_due(self, at: int) -> None:
        """Records that something is due at a time, in microseconds since 1970."""
        self.due = at if self.due is None else min(self.due, at)
