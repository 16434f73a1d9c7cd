"""What a transaction did that concerns others, gathered while it runs and told once it has ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.events import Event


@dataclass(frozen=True, slots=True)
class Received:
    """One RECEIVE or GET CONVERSATION GROUP of the transaction."""

    queue_id: int
    """The queue."""
    is_empty: bool
    """Whether nothing was there."""
    is_named: bool
    """Whether a conversation or a group was named; then being empty says nothing about the queue (fact 143)."""


@dataclass(slots=True)
class Effects:
    """What one transaction did. Nobody hears of it before the commit, and after a rollback only of `received` (B24)."""

    arrived: set[int] = field(default_factory=set)
    """The queues (`queue_id`) that hold messages now that can be received and could not before."""
    outbound: set[int] = field(default_factory=set)
    """The endpoints (`endpoint_id`) with new rows in the transmission queue, which are to be delivered (B9)."""
    received: list[Received] = field(default_factory=list)
    """Each RECEIVE, in order."""
    due: int | None = None
    """The earliest moment that was set: of a timer, a lifetime, the removal of a closed endpoint. Microseconds since 1970."""
    is_catalog_changed: bool = False
    """Whether a queue, service, route or the broker's state has changed, so that what waits is to be tried at once."""
    sent: int = 0
    """How many messages were sent."""
    enqueued: Counter[tuple[bool, int]] = field(default_factory=Counter)
    """How many were put into queues, by whether the far side is reached over the network, and by priority."""
    fragments: int = 0
    """How many fragments were kept until their messages are whole."""
    put_off: int = 0
    """How many were put into the transmission queue."""
    taken_off: int = 0
    """How many left it."""
    events: list[Event] = field(default_factory=list)
    """What subscribers are to hear, in order."""
    log: EventLog | None = None
    """Who hears it; None is nobody."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody hears of events of a class, so that they are not made in vain.

        Args:
            kind: The class.

        Returns:
            Whether somebody does.

        Examples:
            >>> Effects().wants(Event)
            False
        """
        return self.log is not None and self.log.wants(kind)

    def is_due_at(self, moment: int) -> None:
        """Notes that something is to be done at a moment.

        Args:
            moment: In microseconds since 1970.

        Examples:
            >>> effects = Effects()
            >>> effects.is_due_at(7)
            >>> effects.is_due_at(9)
            >>> effects.due
            7
        """
        self.due = moment if self.due is None else min(self.due, moment)
