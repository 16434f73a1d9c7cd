"""One end of a connection without its socket: TLS, the link, and the outboxes whose rows go over it."""

from __future__ import annotations

import logging
from collections import Counter, deque
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.broker.network.connections.limits import EndpointLimits
from ssbroker.broker.network.connections.outbox import Outbox
from ssbroker.broker.network.connections.tls import Channel
from ssbroker.broker.network.connections.unsealed import Unsealed
from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.adjacent.frames import Data
from ssbroker.protocol.adjacent.goodbye import Reason
from ssbroker.protocol.adjacent.hello import Far, Own
from ssbroker.protocol.adjacent.link import Link
from ssbroker.protocol.adjacent.occurrences import Occurrence
from ssbroker.protocol.mirroring import MirroringRole

LOGGER: Final = logging.getLogger("ssbroker.broker")
_AHEAD_BYTES: Final = 1 << 20
_UNREAD_MOST: Final = 1 << 20


class Line:
    """One end of a connection without its socket. Times are microseconds of any clock that only grows.

    Args:
        channel: What its bytes go through.
        own: What this instance says of itself.
        is_accept: Whether the far side dialled.
        limits: How long it waits, and for how much.
        now: The moment.
        sent: Where rows are counted by priority.
    """

    __slots__ = (
        "_fed",
        "_fed_rows",
        "_has_ended",
        "_is_accept",
        "_leaving",
        "_limits",
        "_link",
        "_own",
        "_sent",
        "_unproven",
        "_unsealed",
        "channel",
        "is_paused",
        "outboxes",
        "sent_rows",
    )

    def __init__(
        self,
        channel: Channel,
        *,
        own: Own,
        is_accept: bool,
        limits: EndpointLimits,
        now: int,
        sent: Counter[int] | None = None,
    ) -> None:
        self._sent: Final = Counter[int]() if sent is None else sent
        self._own: Final = own
        self._is_accept: Final = is_accept
        self._limits: Final = limits
        self._link: Link | None = None
        self._leaving: tuple[Reason, str] | None = None
        self._fed: Final[deque[tuple[Outbox, int]]] = deque()
        self._fed_rows = 0
        self._unproven = 0
        self._unsealed: Final = Unsealed(channel)
        self._has_ended = False
        self.is_paused = False
        self.channel: Final = channel
        self.outboxes: list[Outbox] = []
        self.sent_rows = 0
        self._begin(now)

    @property
    def far(self) -> Far | None:
        """What the far side has said of itself."""
        return None if self._link is None else self._link.far

    @property
    def is_usable(self) -> bool:
        """Whether rows that wait in its outboxes go over it."""
        return self.far is not None and not self.is_leaving

    @property
    def is_over(self) -> bool:
        """Whether nothing comes and nothing goes any more: close the socket."""
        return self._has_ended or (self._link is not None and self._link.is_over)

    @property
    def is_leaving(self) -> bool:
        """Whether one of the sides has said GOODBYE, or will."""
        return self._leaving is not None or (self._link is not None and self._link.is_leaving)

    @property
    def room_to_read(self) -> int | None:
        """How many bytes more are taken of who has not said HELLO (N11); None where it has."""
        return None if self.far is not None else max(self._limits.unproven_bytes - self._unproven, 0)

    def received(self, data: Data, *, now: int) -> list[Occurrence]:
        """Takes what the socket brought.

        Args:
            data: The bytes.
            now: The moment.

        Returns:
            What they come to.

        Raises:
            PeerError: They break the protocol, or the far side is nobody who may connect. Write what `data_to_send` still gives, then
                close the socket.
        """
        if self.is_over:
            return []
        if self.far is None:
            self._unproven += len(data)
        plain = self.channel.received(data)
        link = self._begin(now)
        occurrences = link.received(plain, now=now) if plain and link is not None else []
        if self.room_to_read == 0:
            raise PeerError(f"the far side has sent {self._unproven} bytes and not said who it is")
        if self.channel.unsent_bytes > _UNREAD_MOST:
            raise PeerError("the far side asks for answers and does not read them")
        return occurrences

    def data_to_send(self, *, now: int) -> bytes | None:
        """The next piece for the socket.

        Args:
            now: The moment.

        Returns:
            The bytes; None where there is nothing for now.
        """
        if data := self.channel.data_to_send():
            return data
        if self._unsealed.is_empty and self._link is not None:
            self._speak(self._link, now)
        try:
            self._unsealed.seal()
        except PeerError:  # the far side has ended TLS, and is about to close the socket
            self._has_ended = True
            return None
        return self.channel.data_to_send() or None

    def close(self) -> bytes:
        """Ends it; what is still to be written, all of it at once: who reads nothing is not waited for."""
        with suppress(PeerError):
            self._unsealed.seal(most=2**63 - 1)
        self.channel.close()
        return self.channel.data_to_send()

    def settle(self, *, waiting: int = 0) -> None:
        """Has outboxes know what of that which was taken out of them is written or lost.

        Args:
            waiting: How many rows are neither, the last ones.
        """
        while self._fed and self._fed_rows - self._fed[0][1] >= waiting:
            outbox, rows = self._fed.popleft()
            self._fed_rows -= rows
            outbox.finish(rows)

    def next_timeout(self) -> int | None:
        """The moment at which `handle_timeout` has something to do; None where there is none."""
        return None if self._link is None else self._link.next_timeout()

    def handle_timeout(self, *, now: int) -> list[Occurrence]:
        """Does what is due.

        Args:
            now: The moment.

        Returns:
            What it comes to.
        """
        return [] if self._link is None else self._link.handle_timeout(now=now)

    def pause(self, *, now: int) -> None:
        """Says that nothing is read, so that the far side's silence is not its own.

        Args:
            now: The moment.
        """
        self.is_paused = True
        if self._link is not None:
            self._link.pause(now=now)

    def resume(self, *, now: int) -> None:
        """Says that it is read again.

        Args:
            now: The moment.
        """
        self.is_paused = False
        if self._link is not None:
            self._link.resume(now=now)

    def probe(self, *, now: int) -> None:
        """Asks the far side for a sign of life.

        Args:
            now: The moment.
        """
        if self._link is not None:
            self._link.probe(now=now)

    def ask_role(self, broker_instance: bytes) -> None:
        """Asks the far side what a database is.

        Args:
            broker_instance: Its broker id.
        """
        if self._link is not None and self.is_usable:
            self._link.ask_role(broker_instance)

    def tell_role(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers that.

        Args:
            broker_instance: The broker id.
            role: What the database is here.
            number: The role's number.
        """
        if self._link is not None and self.is_usable:
            self._link.tell_role(broker_instance, role, number)

    def leave(self, reason: Reason, text: str) -> bool:
        """Says GOODBYE behind what waits in its outboxes.

        Args:
            reason: Why.
            text: The same for people.

        Returns:
            Whether it can: it cannot before the far side has said HELLO.
        """
        if self.far is None:
            return False
        self._leaving = self._leaving or (reason, text)
        return True

    def _begin(self, now: int) -> Link | None:
        if self._link is None and self.channel.is_open:
            self._link = Link(self._own, is_accept=self._is_accept, limits=self._limits.link, now=now)
        return self._link

    def _speak(self, link: Link, now: int) -> None:
        """Asks the link for what is to be written next."""
        self._feed(link, now)
        self._unsealed.put(link.data_to_send(now=now))
        waiting, _ = link.waiting
        self.settle(waiting=waiting)
        if not waiting:  # a link that has something to carry is not idle, however long the socket takes nothing
            self._feed(link, now)

    def _feed(self, link: Link, now: int) -> None:
        """Gives the link as much as one frame takes, from each outbox in turn."""
        if link.far is None or link.is_leaving:
            return
        empty = 0
        while link.waiting[1] < _AHEAD_BYTES and empty < len(self.outboxes):
            outbox = self.outboxes.pop(0)
            self.outboxes.append(outbox)
            rows = outbox.take()
            empty = empty + 1 if rows is None else 0
            if rows is not None:
                self._give(link, outbox, rows)
        if self._leaving is not None and all(outbox.is_empty for outbox in self.outboxes):
            link.leave(*self._leaving, now=now)

    def _give(self, link: Link, outbox: Outbox, rows: pa.Table) -> None:
        self._fed.append((outbox, rows.num_rows))
        self._fed_rows += rows.num_rows
        self.sent_rows += rows.num_rows
        priorities: pa.StructArray = pc.value_counts(rows["priority"])
        counts: list[list[Any]] = [priorities.field(number).tolist() for number in (0, 1)]
        for priority, count in zip(*counts, strict=True):
            self._sent[priority] += count
        outbox.drained()
        try:
            link.send(rows)
        except ProtocolError:  # rows that nobody makes; those after them go
            LOGGER.exception("rows were not sent")
