"""What a transaction changed, collected while it runs and announced after it has committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ssbroker.protocol.events import Event, EventLog
from ssbroker.store.file import Done, Told


class ReceiveCall(NamedTuple):
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
    received: list[ReceiveCall] = field(default_factory=list)
    """Each RECEIVE, in order."""
    due: int | None = None
    """The earliest moment that was set: of a timer, a lifetime, the removal of a closed endpoint. Microseconds since 1970."""
    is_catalog_changed: bool = False
    """Whether a queue, service, route or the broker's state has changed, so that what waits is to be tried at once."""
    sent: int = 0
    """How many messages were sent."""
    enqueued: dict[tuple[bool, int], int] = field(default_factory=dict)
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

    def are_done(self, done: Done) -> None:
        """Notes what a session did by itself.

        Args:
            done: What it says of it.

        Examples:
            >>> effects = Effects()
            >>> effects.are_done((3, [((7, 5, False), 2), ((None, 12, False), 1)], [(7, False)]))
            >>> effects.arrived, effects.outbound, effects.received[0].queue_id
            ({7}, {12}, 7)
        """
        sent, told, received = done
        self.sent += sent
        for where, number in told:
            self.stand(where, number)
        for queue_id, is_empty in received:
            self.received.append(ReceiveCall(queue_id, is_empty, is_named=False))

    def stand(self, where: Told, number: int) -> None:
        """Notes where messages of one conversation stand now.

        Args:
            where: In which queue, or whose they are that wait.
            number: How many.
        """
        queue_id, either, is_remote = where
        if queue_id is None:
            self.outbound.add(either)
            self.put_off += number
        else:
            self.arrived.add(queue_id)
            self.are_enqueued(number, is_remote=is_remote, priority=either)

    def are_enqueued(self, number: int, *, is_remote: bool, priority: int) -> None:
        """Counts messages that were put into queues.

        Args:
            number: How many.
            is_remote: Whether the far side is reached over the network.
            priority: The priority of the side that receives them.

        Examples:
            >>> effects = Effects()
            >>> effects.are_enqueued(2, is_remote=False, priority=5)
            >>> effects.enqueued
            {(False, 5): 2}
        """
        key = is_remote, priority
        self.enqueued[key] = self.enqueued.get(key, 0) + number

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
