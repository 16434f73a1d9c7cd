"""One end of a connection without I/O: phases, timeouts, queued frames, events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from ssbroker._arguments import integer_argument
from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.arrow_columns import concatenated
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.frames import (
    BYTES_MAX,
    DROPS_MAX,
    ROWS_MAX,
    Data,
    DropReason,
    FrameKind,
    FrameReader,
    GoodbyeReason,
    MirroringRole,
    OwnIdentity,
    PeerIdentity,
    encode_frame,
    frame_parts,
    pack_batch,
    split_rows,
)


class Phase(StrEnum):
    """The phase of a link."""

    GREETING = "GREETING"
    """HELLO has not arrived."""
    OPEN = "OPEN"
    """Both sides may send."""
    LEAVING = "LEAVING"
    """GOODBYE will be sent after the queued data."""
    GONE = "GONE"
    """GOODBYE was sent; data is received until the peer's GOODBYE arrives."""
    LEFT = "LEFT"
    """The peer's GOODBYE has arrived; this side's GOODBYE will be sent after the queued data."""
    OVER = "OVER"
    """Nothing more is received, and only a final GOODBYE may be sent."""


class LinkInput(StrEnum):
    """An input to the state machine of a link."""

    HELLO = "HELLO"
    """HELLO has arrived."""
    FRAME = "FRAME"
    """A frame other than HELLO and GOODBYE has arrived."""
    GOODBYE = "GOODBYE"
    """GOODBYE has arrived."""
    LEAVE = "LEAVE"
    """This side leaves."""
    WRITTEN = "WRITTEN"
    """GOODBYE has been passed on for writing."""
    END = "END"
    """The peer violated the protocol, or has been silent for too long."""


_G, _O, _L, _N, _F, _V = Phase.GREETING, Phase.OPEN, Phase.LEAVING, Phase.GONE, Phase.LEFT, Phase.OVER

TRANSITIONS: Final[dict[Phase, dict[LinkInput, Phase]]] = {
    _G: {LinkInput.HELLO: _O, LinkInput.LEAVE: _V, LinkInput.END: _V},
    _O: {LinkInput.FRAME: _O, LinkInput.GOODBYE: _F, LinkInput.LEAVE: _L, LinkInput.END: _V},
    _L: {LinkInput.FRAME: _L, LinkInput.GOODBYE: _F, LinkInput.LEAVE: _L, LinkInput.WRITTEN: _N, LinkInput.END: _V},
    _N: {LinkInput.FRAME: _N, LinkInput.GOODBYE: _V, LinkInput.LEAVE: _N, LinkInput.END: _V},
    _F: {LinkInput.LEAVE: _F, LinkInput.WRITTEN: _V, LinkInput.END: _V},
    _V: {LinkInput.LEAVE: _V, LinkInput.WRITTEN: _V, LinkInput.END: _V},
}
"""The next phase for each phase and input. No other input is allowed; HELLO, FRAME and GOODBYE are then protocol violations by the peer."""


_TIMEOUT_MIN: Final = 1_000
"""The minimum timeout: a millisecond. Smaller values are probably meant in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """The timeouts of a connection, in microseconds, and its size limit.

    Attributes:
        hello_bytes_max: The maximum size of a frame body before the peer's HELLO, in bytes.
        hello_timeout: How long the peer's HELLO may take after the connection is established.
        ping_after: PING is sent after this time without data from the peer, while an answer is outstanding.
        silence_timeout: The peer is considered lost after this time without data from the peer, while an answer is outstanding.
        keepalive_interval: How often a side that has paused reading sends a keepalive.
        idle_timeout: A connection without traffic is closed after this time.
        goodbye_timeout: The maximum time without receiving or sending anything between GOODBYE and the end of the connection; after 12 times
            this timeout, the connection is closed regardless.

    Raises:
        OptionError: A value is invalid.

    Examples:
        >>> from ssbroker import LinkLimits
        >>> LinkLimits(idle_timeout=60_000_000).idle_timeout // 1_000_000  # seconds
        60
        >>> LinkLimits(idle_timeout=30)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: idle_timeout, in microseconds: expected an integer from 1000 to 9223372036854775807, got 30
    """

    hello_bytes_max: int = 4 << 10
    hello_timeout: int = 10 * SECOND
    ping_after: int = 10 * SECOND
    silence_timeout: int = 20 * SECOND
    keepalive_interval: int = 5 * SECOND
    idle_timeout: int = 30 * SECOND
    goodbye_timeout: int = 5 * SECOND

    def __post_init__(self) -> None:
        integer_argument(self.hello_bytes_max, name="hello_bytes_max", minimum=1, maximum=2**63 - 1)
        for name in (
            "hello_timeout",
            "ping_after",
            "silence_timeout",
            "keepalive_interval",
            "idle_timeout",
            "goodbye_timeout",
        ):
            integer_argument(
                getattr(self, name), name=f"{name}, in microseconds", minimum=_TIMEOUT_MIN, maximum=2**63 - 1
            )
        integer_argument(self.silence_timeout, name="silence_timeout", minimum=self.ping_after + 1, maximum=2**63 - 1)


_LEAVING_TIMEOUTS: Final = 12
"""Leaving takes at most this many times `goodbye_timeout`, even if the peer keeps sending data."""


class DueAction(StrEnum):
    """The action that is due at a deadline."""

    PING = "PING"
    """Ask whether the peer is alive."""
    KEEPALIVE = "KEEPALIVE"
    """Send a keepalive, because this side has paused reading."""
    IDLE = "IDLE"
    """Close the idle connection."""
    END = "END"
    """End the link: the expected data has not arrived."""


class LinkDeadlines:
    """The deadlines of a link."""

    __slots__ = (
        "_awaiting_since",
        "_created",
        "_is_paused",
        "_is_ping_sent",
        "_last_carried",
        "_last_keepalive",
        "_last_progress",
        "_leaving_since",
        "_limits",
    )

    def __init__(self, limits: LinkLimits, now: int) -> None:
        self._limits = limits
        self._created = self._last_progress = self._last_carried = self._last_keepalive = now
        self._awaiting_since: int | None = None
        self._leaving_since: int | None = None
        self._is_ping_sent = False
        self._is_paused = False

    def received(self, now: int) -> None:
        """Records that bytes have arrived; all outstanding answers then count as received."""
        self._last_progress = now
        self._awaiting_since = None
        self._is_ping_sent = False

    def progressed(self, now: int) -> None:
        """Records that something was received or sent, or is expected from now on."""
        self._last_progress = now

    def leaving(self, now: int) -> None:
        """Records that either side leaves."""
        self._last_progress = now
        self._leaving_since = now if self._leaving_since is None else self._leaving_since

    def carried(self, now: int) -> None:
        """Records that rows, a query or a reply were sent or received."""
        self._last_carried = self._last_progress = now

    def await_answer(self, now: int) -> None:
        """Records that a frame which the peer must answer was sent."""
        if self._awaiting_since is None:
            self._awaiting_since = now

    def ping_sent(self, now: int) -> None:
        """Records that PING is sent."""
        self._is_ping_sent = True
        self.await_answer(now)

    def probe_sent(self, now: int) -> None:
        """Records that PING is sent immediately; the peer has as much time to answer as after a regular PING."""
        self._awaiting_since = now - self._limits.ping_after
        self._is_ping_sent = True

    def keepalive_sent(self, now: int) -> None:
        """Records that a keepalive is sent."""
        self._last_keepalive = now

    def paused(self, now: int) -> None:
        """Records that this side has paused reading."""
        self._is_paused = True
        self._last_keepalive = now

    def resumed(self, now: int) -> None:
        """Records that this side reads again, so that the peer again has the full time to answer."""
        self._is_paused = False
        if self._awaiting_since is not None:
            self._awaiting_since = now
            self._is_ping_sent = False

    def timeout_text(self, phase: Phase) -> str:
        """Describes what has not arrived in time."""
        limits, is_drawn_out = (
            self._limits,
            self._leaving_deadline() < self._last_progress + self._limits.goodbye_timeout,
        )
        what, wait = {
            Phase.GREETING: ("HELLO", limits.hello_timeout),
            Phase.OPEN: ("answer", limits.silence_timeout),
        }.get(phase, ("GOODBYE", limits.goodbye_timeout * (_LEAVING_TIMEOUTS if is_drawn_out else 1)))
        return f"no {what} within {wait / SECOND:g} s"

    def next(self, phase: Phase, *, is_waiting: bool) -> tuple[int, DueAction] | None:
        """Returns the next deadline and its action; None if there is none."""
        limits = self._limits
        if phase is Phase.OVER:
            return None
        if phase is Phase.GREETING:
            return self._created + limits.hello_timeout, DueAction.END
        if phase is not Phase.OPEN:
            return min(self._last_progress + limits.goodbye_timeout, self._leaving_deadline()), DueAction.END
        if self._is_paused:
            return self._last_keepalive + limits.keepalive_interval, DueAction.KEEPALIVE
        deadlines = []
        if not is_waiting:
            deadlines.append((self._last_carried + limits.idle_timeout, DueAction.IDLE))
        if self._awaiting_since is not None:
            deadlines.append((self._awaiting_since + limits.silence_timeout, DueAction.END))
            if not self._is_ping_sent:
                deadlines.append((self._awaiting_since + limits.ping_after, DueAction.PING))
        return min(deadlines, default=None)

    def _leaving_deadline(self) -> int:
        """Returns when leaving ends, regardless of traffic."""
        since = self._last_progress if self._leaving_since is None else self._leaving_since
        return since + _LEAVING_TIMEOUTS * self._limits.goodbye_timeout


@dataclass(frozen=True, slots=True)
class PeerGreeted:
    """The peer's HELLO has arrived; from now on, the peer may send.

    Attributes:
        peer: The identity that the peer claims.
        is_self: Whether the peer is this instance; the link then sends GOODBYE by itself.
    """

    peer: PeerIdentity
    is_self: bool = False


@dataclass(frozen=True, slots=True)
class FragmentsArrived:
    """A valid batch of rows has arrived; the dialog layer checks its content.

    Attributes:
        rows: A table of `frames.WIRE`, 1 to 1,024 rows.
    """

    rows: pa.Table


@dataclass(frozen=True, slots=True)
class RoleQuery:
    """The peer asks for the mirroring role of a database.

    Attributes:
        broker_instance: The broker id.
    """

    broker_instance: bytes


@dataclass(frozen=True, slots=True)
class RoleReply:
    """The peer answers a role query.

    Attributes:
        broker_instance: The broker id.
        role: The role of the database.
        number: The number of the role, which increases with each failover.
    """

    broker_instance: bytes
    role: MirroringRole
    number: int


@dataclass(frozen=True, slots=True)
class RowsDropped:
    """The peer reports why it does not acknowledge rows.

    Attributes:
        reasons: The reason for each sending endpoint.
    """

    reasons: Mapping[EndpointKey, DropReason]


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The peer has sent GOODBYE or has stopped answering; nothing more will arrive.

    Attributes:
        reason: The reason.
        text: The reason as text.
    """

    reason: GoodbyeReason
    text: str = ""


LinkEvent: TypeAlias = PeerGreeted | FragmentsArrived | RoleQuery | RoleReply | RowsDropped | PeerLeft


UNREAD_QUERIES_MAX: Final = 1_024
"""The maximum number of the peer's queries whose replies have not been sent yet."""


class OpenRoleQueries:
    """The outstanding role queries of a link. Unsolicited replies are refused."""

    __slots__ = ("_outgoing", "_to_answer", "_unanswered", "_unread_replies")

    def __init__(self) -> None:
        self._unanswered: Counter[bytes] = Counter()
        self._to_answer: Counter[bytes] = Counter()
        self._unread_replies = 0
        self._outgoing: deque[tuple[FrameKind, bytes]] = deque()

    def query(self, broker_instance: bytes) -> None:
        """Queues a query; raises ProtocolError if the broker id is invalid."""
        if len(broker_instance) != frames.GUID_BYTES:
            raise ProtocolError(f"ROLE_QUERY: expected a broker id of {frames.GUID_BYTES} bytes")
        self._unanswered[broker_instance] += 1
        self._outgoing.append((FrameKind.ROLE_QUERY, broker_instance))

    def reply(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Queues a reply; raises ProtocolError if it is invalid or unsolicited."""
        body = frames.pack_role(broker_instance, role, number)
        if not self._to_answer[broker_instance]:
            raise ProtocolError("ROLE_REPLY: the peer has no unanswered query for this database")
        _decrement(self._to_answer, broker_instance)
        self._outgoing.append((FrameKind.ROLE_REPLY, body))

    def query_received(self, body: bytes) -> RoleQuery:
        """Records a query from the peer; raises PeerError if the peer keeps asking without reading the replies."""
        if self._unread_replies == UNREAD_QUERIES_MAX:
            raise PeerError(
                f"ROLE_QUERY: the peer sent more than {UNREAD_QUERIES_MAX} queries without reading the replies"
            )
        self._unread_replies += 1
        self._to_answer[body] += 1
        return RoleQuery(body)

    def reply_received(self, body: bytes) -> RoleReply:
        """Records a reply from the peer; raises PeerError if it is unsolicited."""
        reply = RoleReply(*frames.unpack_role(body))
        if not self._unanswered[reply.broker_instance]:
            raise PeerError(f"ROLE_REPLY: the role of broker id {UUID(bytes=reply.broker_instance)} was not queried")
        _decrement(self._unanswered, reply.broker_instance)
        return reply

    def take(self) -> list[tuple[FrameKind, bytes]]:
        """Removes and returns the frames to send."""
        taken = list(self._outgoing)
        self._outgoing.clear()
        self._unread_replies -= sum(kind is FrameKind.ROLE_REPLY for kind, _ in taken)
        return taken

    def clear(self) -> None:
        """Drops the frames to send."""
        self._outgoing.clear()


def _decrement(counts: Counter[bytes], key: bytes) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


FIRST_FRAME_BYTES: Final = 64 << 10
"""The maximum size of the first frame of a connection; each further frame may be twice as large as the previous one, up to the maximum.

If a network corrupts data, each connection transfers only a few bytes; small frames then get through, so eventually all data does.
"""


class FrameQueue:
    """The rows that wait to be sent, regrouped into frames that are as full as possible.

    Args:
        first_bytes: The maximum size of the first frame.

    Attributes:
        rows: The number of waiting rows.
        bytes: The approximate size of the waiting rows.
    """

    __slots__ = ("_max_bytes", "_tables", "bytes", "rows")

    def __init__(self, *, first_bytes: int = BYTES_MAX) -> None:
        self._max_bytes = first_bytes
        self._tables: deque[tuple[pa.Table, int]] = deque()
        self.rows = self.bytes = 0

    def put(self, rows: pa.Table) -> None:
        """Appends rows; raises ProtocolError, without appending any, if one is larger than a frame."""
        for piece in list(split_rows(rows)):
            self._tables.append(piece)
            self.rows += piece[0].num_rows
            self.bytes += piece[1]

    def take(self) -> memoryview | None:
        """Removes and returns the body of the next frame; None if no rows wait."""
        if not self._tables:
            return None
        taken: list[pa.Table] = []
        rows = size = 0
        self._split_first()
        while self._tables:
            piece, length = self._tables[0]
            if taken and (rows + piece.num_rows > ROWS_MAX or size + length > self._max_bytes):
                break
            self._tables.popleft()
            taken.append(piece)
            rows += piece.num_rows
            size += length
        self._max_bytes = min(2 * self._max_bytes, BYTES_MAX)
        self.rows -= rows
        self.bytes -= size
        return pack_batch(concatenated(taken))

    def _split_first(self) -> None:
        """Splits the first piece if it is larger than the next frame may be."""
        piece, length = self._tables[0]
        if length > self._max_bytes:
            parts = list(split_rows(piece, max_bytes=self._max_bytes))
            self._tables.popleft()
            self._tables.extendleft(reversed(parts))
            self.bytes += sum(size for _, size in parts) - length

    def clear(self) -> None:
        """Drops all rows; their senders send them again (P17)."""
        self._tables.clear()
        self.rows = self.bytes = 0


_INPUTS: Final = {FrameKind.HELLO: LinkInput.HELLO, FrameKind.GOODBYE: LinkInput.GOODBYE}


class Link:
    """One end of a connection.

    Args:
        own: The identity to send in HELLO.
        limits: Timeouts and the size limit.
        now: The current time, in microseconds.

    Attributes:
        peer: The identity that the peer claims; None until its HELLO has arrived.

    Examples:
        >>> shop = Link(OwnIdentity(instance_id=b"s" * 16, name="shop", run_number=1), limits=LinkLimits(), now=0)
        >>> bank = Link(OwnIdentity(instance_id=b"b" * 16, name="bank", run_number=2), limits=LinkLimits(), now=0)
        >>> [greeted] = bank.receive(b"".join(shop.data_to_send(now=0)), now=0)
        >>> greeted.peer.name
        'shop'
    """

    __slots__ = (
        "_deadlines",
        "_drops",
        "_frame_queue",
        "_frames",
        "_goodbye",
        "_hello",
        "_own",
        "_phase",
        "_ping",
        "_pong",
        "_role_queries",
        "peer",
    )

    def __init__(self, own: OwnIdentity, *, limits: LinkLimits, now: int) -> None:
        self.peer: PeerIdentity | None = None
        self._own = own
        self._phase = Phase.GREETING
        self._deadlines = LinkDeadlines(limits, now)
        self._frames = FrameReader(body_max=limits.hello_bytes_max)
        self._frame_queue = FrameQueue(first_bytes=FIRST_FRAME_BYTES)
        self._role_queries = OpenRoleQueries()
        self._drops: dict[EndpointKey, DropReason] = {}
        self._ping = self._pong = False
        self._hello: bytes | None = encode_frame(FrameKind.HELLO, frames.pack_hello(own))
        self._goodbye: bytes | None = None

    def receive(self, data: Data, *, now: int) -> list[LinkEvent]:
        """Receives bytes in pieces of any size; returns the events. After the end of the link, bytes are ignored.

        Raises:
            PeerError: The peer violated the protocol. The link has ended; if HELLO had arrived, a GOODBYE with the reason is left to send.
        """
        if self._phase is Phase.OVER:
            return []
        self._deadlines.received(now)
        self._frames.feed(data)
        events: list[LinkEvent] = []
        try:
            while (frame := self._frames.next()) is not None:
                if (event := self._handle_frame(*frame, now)) is not None:
                    events.append(event)
        except PeerError as error:
            self._close()
            if self.peer is not None:
                self._goodbye = encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(GoodbyeReason.BROKEN, str(error)))
            raise
        return events

    def send(self, rows: pa.Table) -> None:
        """Queues rows of `frames.WIRE` that `frames.check_rows` accepts.

        Raises:
            ProtocolError: A row is larger than a frame, or the link is leaving; nothing is queued.
        """
        self._check_open()
        self._frame_queue.put(rows)

    def query_role(self, broker_instance: bytes) -> None:
        """Asks for the role of a mirrored database.

        Raises:
            ProtocolError: The broker id is invalid, or the link is leaving.
        """
        self._check_open()
        self._role_queries.query(broker_instance)

    def reply_role(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers a role query; does nothing if the link is leaving.

        Raises:
            ProtocolError: A value is invalid, or the peer has no unanswered query for this database.
        """
        if not self.is_leaving:
            self._role_queries.reply(broker_instance, role, number)

    def report_drops(self, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Reports to the peer why rows of its endpoints are not acknowledged, up to `DROPS_MAX` reasons; does nothing if the link is leaving."""
        if not self.is_leaving:
            self._drops |= islice(reasons.items(), DROPS_MAX - len(self._drops))

    def leave(self, reason: GoodbyeReason, text: str = "", *, now: int) -> None:
        """Sends GOODBYE after the queued data; further calls have no effect.

        Raises:
            ProtocolError: The reason is SILENT, which cannot be sent.
        """
        if reason is GoodbyeReason.SILENT:
            raise ProtocolError("GOODBYE: expected a reason that can be sent to the peer, got SILENT")
        if self._phase in (Phase.GREETING, Phase.OPEN):
            self._goodbye = encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(reason, text))
            self._deadlines.leaving(now)
        if self._phase is Phase.GREETING:
            self._frame_queue.clear()
            self._role_queries.clear()
        self._phase = TRANSITIONS[self._phase][LinkInput.LEAVE]

    def data_to_send(self, *, now: int) -> list[Data]:
        """Returns the data to write next: control frames, and at most one frame of rows; slightly over 1 MiB at most.

        The pieces are consecutive parts of whole frames; the list is empty if there is nothing to write for now.
        """
        parts: list[Data] = [] if self._hello is None else [self._hello]
        self._hello = None
        if self._phase not in (Phase.GREETING, Phase.OVER):
            parts += self._control_frames(now)
            rows = self._frame_queue.take()
            if rows is not None:
                parts += frame_parts(FrameKind.FRAGMENTS, rows)
                self._deadlines.carried(now)
                self._deadlines.await_answer(now)
        if self._goodbye is not None and not self._frame_queue.bytes:
            parts.append(self._goodbye)
            self._goodbye = None
            self._deadlines.progressed(now)
            self._phase = TRANSITIONS[self._phase][LinkInput.WRITTEN]
        return parts

    def next_timeout(self) -> int | None:
        """Returns when to call `handle_timeout`; None if no deadline is pending."""
        return None if (due := self._due()) is None else due[0]

    def handle_timeout(self, *, now: int) -> list[LinkEvent]:
        """Performs the action that is due, if any.

        Returns:
            `PeerLeft` with SILENT if expected data has not arrived. If an idle link leaves, `is_leaving` becomes true instead.
        """
        due = self._due()
        if due is None or due[0] > now:
            return []
        if due[1] is DueAction.END:
            left, has_left = (
                PeerLeft(GoodbyeReason.SILENT, self._deadlines.timeout_text(self._phase)),
                self._phase is Phase.LEFT,
            )
            self._close()
            return [] if has_left else [left]
        if due[1] is DueAction.IDLE:
            self.leave(GoodbyeReason.IDLE, "no traffic", now=now)
        elif due[1] is DueAction.PING:
            self._ping = True
            self._deadlines.ping_sent(now)
        else:
            self._pong = True
            self._deadlines.keepalive_sent(now)
        return []

    def probe(self, *, now: int) -> None:
        """Sends PING immediately, for example because the peer connects again although this link seems alive."""
        if self._phase is Phase.OPEN:
            self._ping = True
            self._deadlines.probe_sent(now)

    def pause(self, *, now: int) -> None:
        """Records that reading is paused: this side then sends keepalives and expects none."""
        self._deadlines.paused(now)

    def resume(self, *, now: int) -> None:
        """Records that reading continues."""
        self._deadlines.resumed(now)

    @property
    def waiting(self) -> tuple[int, int]:
        """The number of queued rows and their approximate size in bytes."""
        return self._frame_queue.rows, self._frame_queue.bytes

    @property
    def is_leaving(self) -> bool:
        """Whether either side is leaving or has left, so that rows are no longer accepted."""
        return self._phase not in (Phase.GREETING, Phase.OPEN)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is received or sent, so that the socket can be closed."""
        return self._phase is Phase.OVER and self._hello is None and self._goodbye is None

    def _due(self) -> tuple[int, DueAction] | None:
        return self._deadlines.next(self._phase, is_waiting=bool(self._frame_queue.bytes))

    def _check_open(self) -> None:
        if self.is_leaving:
            raise ProtocolError(f"the link cannot send: it is {self._phase}; expected GREETING or OPEN")

    def _handle_frame(self, kind: FrameKind, body: bytes, now: int) -> LinkEvent | None:
        phase = TRANSITIONS[self._phase].get(_INPUTS.get(kind, LinkInput.FRAME))
        if phase is None:
            raise PeerError(f"{kind.name}: not allowed while the connection is {self._phase}")
        self._phase = phase
        if kind is FrameKind.HELLO:
            return self._handle_hello(frames.unpack_hello(body), now)
        if kind in (FrameKind.PING, FrameKind.PONG):
            self._pong |= kind is FrameKind.PING
            return None
        self._deadlines.carried(now)
        if kind is FrameKind.FRAGMENTS:
            return FragmentsArrived(frames.unpack_batch(body))
        if kind is FrameKind.ROLE_QUERY:
            return self._role_queries.query_received(body)
        if kind is FrameKind.ROLE_REPLY:
            return self._role_queries.reply_received(body)
        if kind is FrameKind.DROPPED:
            return RowsDropped(frames.unpack_drops(body))
        reason, text = frames.unpack_goodbye(body)
        self._deadlines.leaving(now)
        if self._goodbye is None and self._phase is Phase.LEFT:
            self._goodbye = encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(reason, ""))
        return PeerLeft(reason, text)

    def _handle_hello(self, peer: PeerIdentity, now: int) -> PeerGreeted:
        self.peer = peer
        self._frames.body_max = self._own.max_frame_bytes
        self._deadlines.carried(now)
        is_self = peer.instance_id == self._own.instance_id
        if is_self:
            self.leave(GoodbyeReason.ITSELF, "the instance has dialled itself", now=now)
        return PeerGreeted(peer, is_self)

    def _control_frames(self, now: int) -> list[bytes]:
        """Returns everything to send except rows; it is sent before the rows."""
        parts = [
            encode_frame(kind)
            for kind, is_due in ((FrameKind.PONG, self._pong), (FrameKind.PING, self._ping))
            if is_due
        ]
        self._ping = self._pong = False
        for kind, body in self._role_queries.take():
            parts.append(encode_frame(kind, body))
            self._deadlines.carried(now)
            if kind is FrameKind.ROLE_QUERY:
                self._deadlines.await_answer(now)
        if self._drops:
            parts.append(encode_frame(FrameKind.DROPPED, frames.pack_drops(self._drops)))
            self._drops = {}
        return parts

    def _close(self) -> None:
        self._frame_queue.clear()
        self._role_queries.clear()
        self._hello = self._goodbye = None
        self._phase = TRANSITIONS[self._phase][LinkInput.END]


class KeptConnection(StrEnum):
    """Which of two connections is kept; the other connection ends with SUPERSEDED."""

    FIRST = "FIRST"
    """The existing connection; probe it, because the peer may know that it is broken."""
    SECOND = "SECOND"
    """The newer connection."""
    BOTH = "BOTH"
    """Both connections for now: the peer opened them, and decides which of them it closes."""


@dataclass(frozen=True, slots=True)
class EstablishedConnection:
    """A connection on which both sides have sent HELLO.

    Attributes:
        peer: The identity that the peer claims.
        is_accept: Whether the peer opened the connection.
    """

    peer: PeerIdentity
    is_accept: bool


def choose_connection(own: OwnIdentity, first: EstablishedConnection, second: EstablishedConnection) -> KeptConnection:
    """Returns which of two connections with one peer is kept. Both sides reach the same result independently.

    Args:
        own: The identity that this side sent on both connections.
        first: The existing connection.
        second: The newer connection.

    Examples:
        >>> own = OwnIdentity(instance_id=b"a" * 16, name="shop", run_number=5)
        >>> peer = PeerIdentity(instance_id=b"b" * 16, name="bank", run_number=4, max_frame_bytes=8 << 20)
        >>> choose_connection(own, EstablishedConnection(peer, is_accept=True), EstablishedConnection(peer, is_accept=False)).value
        'SECOND'
    """
    if first.peer.run_number != second.peer.run_number:
        return KeptConnection.SECOND  # the peer was restarted: the first connection is dead
    if first.is_accept is second.is_accept:
        return KeptConnection.BOTH if second.is_accept else KeptConnection.SECOND
    own_wins = (own.run_number, own.instance_id) > (second.peer.run_number, second.peer.instance_id)
    return KeptConnection.SECOND if own_wins is not second.is_accept else KeptConnection.FIRST
