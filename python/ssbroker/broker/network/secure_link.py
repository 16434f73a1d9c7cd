"""A connection without its socket: encrypts frames, and fills them with the rows of the outboxes."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.shared_outbox import SharedOutbox
from ssbroker.broker.network.tls import Channel
from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import Data, DropReason, GoodbyeReason, MirroringRole, OwnIdentity, PeerIdentity
from ssbroker.protocol.wire.link import Link, LinkEvent

PIECE_BYTES: Final = 64 << 10
"""Bytes to encrypt at a time; this many fit into the processor cache, and the allocator reuses their memory."""


_LOGGER: Final = logging.getLogger("ssbroker.broker")
_LINK_BUFFER_BYTES: Final = 1 << 20
_UNREAD_REPLIES_MAX: Final = 1 << 20
_COUNTING: Final = threading.RLock()
"""Held while sent rows are counted: all connections share the counters, and two threads send."""


class SecureLink:
    """One end of a connection, without its socket: encryption, frames, and the rows of the connection's outboxes.

    Times are in microseconds of any monotonic clock. `sent_by_priority` counts sent rows.
    """

    __slots__ = (
        "_has_ended",
        "_in_transit",
        "_in_transit_rows",
        "_leaving",
        "_limits",
        "_link",
        "_own",
        "_sent_by_priority",
        "_unauthenticated_bytes",
        "_unencrypted",
        "channel",
        "is_paused",
        "outboxes",
        "sent_rows",
    )

    def __init__(
        self,
        channel: Channel,
        *,
        own: OwnIdentity,
        limits: EndpointLimits,
        now: int,
        sent_by_priority: Counter[int] | None = None,
    ) -> None:
        self._sent_by_priority: Final = Counter[int]() if sent_by_priority is None else sent_by_priority
        self._own: Final = own
        self._limits: Final = limits
        self._link: Link | None = None
        self._leaving: tuple[GoodbyeReason, str] | None = None
        self._in_transit: Final[deque[tuple[SharedOutbox, int]]] = deque()
        self._in_transit_rows = 0
        self._unauthenticated_bytes = 0
        self._unencrypted: Final[deque[memoryview]] = deque()
        self._has_ended = False
        self.is_paused = False
        self.channel: Final = channel
        self.outboxes: list[SharedOutbox] = []
        self.sent_rows = 0
        self._open_link(now)

    @property
    def peer_identity(self) -> PeerIdentity | None:
        """The identity that the peer stated in its HELLO; None before HELLO."""
        return None if self._link is None else self._link.peer

    @property
    def is_usable(self) -> bool:
        """Whether the connection sends the rows of its outboxes."""
        return self.peer_identity is not None and not self.is_leaving

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is received or sent, so that the socket can be closed."""
        return self._has_ended or (self._link is not None and self._link.is_closed)

    @property
    def is_leaving(self) -> bool:
        """Whether either side has sent GOODBYE, or is about to send it."""
        return self._leaving is not None or (self._link is not None and self._link.is_leaving)

    @property
    def bytes_to_read(self) -> int | None:
        """The number of bytes that may still be read before HELLO; None after HELLO."""
        return (
            None
            if self.peer_identity is not None
            else max(self._limits.max_unauthenticated_bytes - self._unauthenticated_bytes, 0)
        )

    def received(self, data: Data, *, now: int) -> list[LinkEvent]:
        """Returns the events that received bytes cause.

        Raises:
            PeerError: The bytes violate the protocol, or the peer may not connect. Write what `data_to_send` returns, then close the socket.
        """
        if self.is_finished:
            return []
        if self.peer_identity is None:
            self._unauthenticated_bytes += len(data)
        decrypted = self.channel.received(data)
        link = self._open_link(now)
        events = link.receive(decrypted, now=now) if decrypted and link is not None else []
        if self.bytes_to_read == 0:
            limit = self._limits.max_unauthenticated_bytes
            raise PeerError(
                f"the peer sent {self._unauthenticated_bytes:,} bytes without authenticating; expected at most {limit:,} bytes"
            )
        if self.channel.unsent_bytes > _UNREAD_REPLIES_MAX:
            raise PeerError(f"the peer does not read its replies: more than {_UNREAD_REPLIES_MAX:,} bytes wait for it")
        return events

    def data_to_send(self, *, now: int) -> bytes | None:
        """Returns the next bytes for the socket; None if there are none at present."""
        if data := self.channel.data_to_send():
            return data
        if not self._unencrypted and self._link is not None:
            self._encode(self._link, now)
        try:
            self._encrypt()
        except PeerError:  # the peer has ended TLS and is about to close the socket
            self._has_ended = True
            return None
        return self.channel.data_to_send() or None

    def close(self) -> bytes:
        """Ends the connection; returns all bytes that are left to write, even if the peer does not read them."""
        with suppress(PeerError):
            self._encrypt(max_unsent_bytes=2**63 - 1)
        self.channel.close()
        return self.channel.data_to_send()

    def mark_finished(self, *, waiting: int = 0) -> None:
        """Marks rows taken from outboxes as finished, except the last `waiting` rows."""
        while self._in_transit and self._in_transit_rows - self._in_transit[0][1] >= waiting:
            outbox, rows = self._in_transit.popleft()
            self._in_transit_rows -= rows
            outbox.finish(rows)

    def next_timeout(self) -> int | None:
        """Returns when `handle_timeout` is due; None for never."""
        return None if self._link is None else self._link.next_timeout()

    def handle_timeout(self, *, now: int) -> list[LinkEvent]:
        """Performs the action that is due, if any; returns the events."""
        return [] if self._link is None else self._link.handle_timeout(now=now)

    def pause(self, *, now: int) -> None:
        """Records that the socket is not read, so that the peer is not considered silent."""
        self.is_paused = True
        if self._link is not None:
            self._link.pause(now=now)

    def resume(self, *, now: int) -> None:
        """Records that the socket is read again."""
        self.is_paused = False
        if self._link is not None:
            self._link.resume(now=now)

    def probe(self, *, now: int) -> None:
        """Asks the peer to show that it is alive."""
        if self._link is not None:
            self._link.probe(now=now)

    def query_role(self, broker_instance: bytes) -> None:
        """Asks the peer for the mirroring role of a database."""
        if self._link is not None and self.is_usable:
            self._link.query_role(broker_instance)

    def reply_role(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers a role query."""
        if self._link is not None and self.is_usable:
            self._link.reply_role(broker_instance, role, number)

    def report_drops(self, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Reports to the peer why rows are not acknowledged."""
        if self._link is not None and self.is_usable:
            self._link.report_drops(reasons)

    def leave(self, reason: GoodbyeReason, text: str) -> bool:
        """Sends GOODBYE after the queued rows; returns False if this is impossible because the peer has not sent HELLO."""
        if self.peer_identity is None:
            return False
        self._leaving = self._leaving or (reason, text)
        return True

    def _open_link(self, now: int) -> Link | None:
        if self._link is None and self.channel.is_open:
            self._link = Link(self._own, limits=self._limits.link, now=now)
        return self._link

    def _encode(self, link: Link, now: int) -> None:
        """Takes frames from the link, and collects them in pieces to encrypt."""
        self._fill_link(link, now)
        parts = link.data_to_send(now=now)
        if sum(map(len, parts)) <= PIECE_BYTES:
            parts = [b"".join(parts)] if parts else []  # one TLS record
        for data in parts:
            view = memoryview(data)
            self._unencrypted.extend(view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))
        waiting, _ = link.waiting
        self.mark_finished(waiting=waiting)
        if not waiting:  # a link with rows to send is not idle, even if the socket accepts nothing
            self._fill_link(link, now)

    def _encrypt(self, max_unsent_bytes: int = PIECE_BYTES) -> None:
        """Encrypts pieces until the channel contains `max_unsent_bytes` unsent bytes."""
        while self._unencrypted and self.channel.unsent_bytes < max_unsent_bytes:
            self.channel.seal(self._unencrypted.popleft())

    def _fill_link(self, link: Link, now: int) -> None:
        """Passes rows of each outbox in turn to the link, up to its buffer size."""
        if link.peer is None or link.is_leaving:
            return
        empty = 0
        while link.waiting[1] < _LINK_BUFFER_BYTES and empty < len(self.outboxes):
            outbox = self.outboxes.pop(0)
            self.outboxes.append(outbox)
            rows = outbox.take()
            empty = empty + 1 if rows is None else 0
            if rows is not None:
                self._send_rows(link, outbox, rows)
        if self._leaving is not None and all(outbox.is_empty for outbox in self.outboxes):
            link.leave(*self._leaving, now=now)

    def _send_rows(self, link: Link, outbox: SharedOutbox, rows: pa.Table) -> None:
        self._in_transit.append((outbox, rows.num_rows))
        self._in_transit_rows += rows.num_rows
        self.sent_rows += rows.num_rows
        priorities: list[Any] = rows["priority"].to_pylist()
        with _COUNTING:
            self._sent_by_priority.update(priorities)
        outbox.notify_if_drained()
        try:
            link.send(rows)
        except ProtocolError:  # invalid rows must not block the rows after them
            _LOGGER.exception(
                "%d invalid rows to %s were not sent; sending continues with the rows after them",
                rows.num_rows,
                link.peer.name if link.peer else "a peer",
            )
