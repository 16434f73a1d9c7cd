"""One end of a connection without I/O: phases, timeouts, outbox, events."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import pyarrow as pa

from ssbroker._arguments import whole_number
from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.wire import batch, frames
from ssbroker.protocol.wire.batch import BYTES_MAX, ROWS_MAX, check_rows, pack_batch, split_rows
from ssbroker.protocol.wire.frames import (
    Data,
    FrameKind,
    FrameReader,
    GoodbyeReason,
    OwnIdentity,
    PeerIdentity,
    encode_frame,
    frame_parts,
)


class Phase(StrEnum):
    """How far a link is."""

    GREETING = "GREETING"
    """HELLO has not come."""
    OPEN = "OPEN"
    """Both sides may send."""
    LEAVING = "LEAVING"
    """GOODBYE is to go, behind what is still to be sent."""
    GONE = "GONE"
    """GOODBYE has gone; what still comes is taken until the far side's has come."""
    LEFT = "LEFT"
    """The far side's GOODBYE has come; the own one is to go, behind what is still to be sent."""
    OVER = "OVER"
    """Nothing is taken any more, and nothing but a last GOODBYE goes."""


class LinkInput(StrEnum):
    """What may happen to a link."""

    HELLO = "HELLO"
    """HELLO has come."""
    FRAME = "FRAME"
    """A frame has come that is neither HELLO nor GOODBYE."""
    GOODBYE = "GOODBYE"
    """GOODBYE has come."""
    LEAVE = "LEAVE"
    """This side wants to leave."""
    WRITTEN = "WRITTEN"
    """GOODBYE has been given to be written."""
    END = "END"
    """The far side has broken the protocol, or has given no sign for too long."""


_G, _O, _L, _N, _F, _V = Phase.GREETING, Phase.OPEN, Phase.LEAVING, Phase.GONE, Phase.LEFT, Phase.OVER

TABLE: Final[dict[Phase, dict[LinkInput, Phase]]] = {
    _G: {LinkInput.HELLO: _O, LinkInput.LEAVE: _V, LinkInput.END: _V},
    _O: {LinkInput.FRAME: _O, LinkInput.GOODBYE: _F, LinkInput.LEAVE: _L, LinkInput.END: _V},
    _L: {LinkInput.FRAME: _L, LinkInput.GOODBYE: _F, LinkInput.LEAVE: _L, LinkInput.WRITTEN: _N, LinkInput.END: _V},
    _N: {LinkInput.FRAME: _N, LinkInput.GOODBYE: _V, LinkInput.LEAVE: _N, LinkInput.END: _V},
    _F: {LinkInput.LEAVE: _F, LinkInput.WRITTEN: _V, LinkInput.END: _V},
    _V: {LinkInput.LEAVE: _V, LinkInput.WRITTEN: _V, LinkInput.END: _V},
}
"""What is missing may not happen: of the first three inputs, it is the far side that breaks the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """How long a link waits, in microseconds, and for how much; what is not given is as the decisions have it.

    Attributes:
        hello_bytes: The longest body of a frame until the far side has said HELLO (N4).
        hello_wait: How long HELLO may take, from when the link is made (N11).
        ping_after: How long nothing may come, while something is unanswered, before PING (N10).
        silence: How long nothing may come, while something is unanswered, before the far side counts as gone (N10).
        sign_every: How often a side that does not read gives a sign of its own accord (N12).
        idle: How long a connection may carry nothing before it is closed (P2).
        goodbye_wait: How long nothing may come or go between GOODBYE and the end; twelve times that is the end in any case.

    Raises:
        OptionError: One of them is not what it can be.

    Examples:
        >>> LinkLimits(idle_timeout=0)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: idle_timeout: expected a whole number from 1 to 9223372036854775807; got 0
    """

    hello_bytes_max: int = 4 << 10
    hello_timeout: int = 10 * SECOND
    ping_after: int = 10 * SECOND
    silence_timeout: int = 20 * SECOND
    keepalive_interval: int = 5 * SECOND
    idle_timeout: int = 30 * SECOND
    goodbye_timeout: int = 5 * SECOND

    def __post_init__(self) -> None:
        for name in self.__slots__:
            whole_number(getattr(self, name), name=name, minimum=1, maximum=2**63 - 1)
        whole_number(self.silence_timeout, name="silence_timeout", minimum=self.ping_after + 1, maximum=2**63 - 1)


_LEAVING_WAITS: Final = 12
"""How many times as long as a GOODBYE may be waited for in silence, leaving takes at most: whoever trickles bytes ends too."""


class DueAction(StrEnum):
    """What a moment brings."""

    PING = "PING"
    """Ask whether anybody is there."""
    SIGN = "SIGN"
    """Give a sign, since this side does not read."""
    IDLE = "IDLE"
    """Nothing was carried for so long that the connection is to be closed."""
    END = "END"
    """What was waited for has not come."""


class LinkDeadlines:
    """The moments that matter to a link.

    Args:
        limits: How long it waits.
        now: The moment at which it is made.
    """

    __slots__ = ("_asked", "_carried", "_is_paused", "_leaving", "_limits", "_made", "_moved", "_pinged", "_signed")

    def __init__(self, limits: LinkLimits, now: int) -> None:
        self._limits = limits
        self._made = self._moved = self._carried = self._signed = now
        self._asked: int | None = None
        self._leaving: int | None = None
        self._pinged = False
        self._is_paused = False

    def heard(self, now: int) -> None:
        """Bytes have come: all that was asked counts as answered."""
        self._moved = now
        self._asked = None
        self._pinged = False

    def moved(self, now: int) -> None:
        """Something has come or gone, or has begun to be waited for."""
        self._moved = now

    def leaves(self, now: int) -> None:
        """One of the sides leaves."""
        self._moved = now
        self._leaving = now if self._leaving is None else self._leaving

    def carried(self, now: int) -> None:
        """Rows, a question or an answer have come or gone."""
        self._carried = self._moved = now

    def asked(self, now: int) -> None:
        """Something has gone that the far side will answer."""
        if self._asked is None:
            self._asked = now

    def pinged(self, now: int) -> None:
        """PING is to go."""
        self._pinged = True
        self.asked(now)

    def probed(self, now: int) -> None:
        """PING is to go at once, and to be answered as soon as a later one."""
        self._asked = now - self._limits.ping_after
        self._pinged = True

    def signed(self, now: int) -> None:
        """A sign is to go."""
        self._signed = now

    def paused(self, now: int) -> None:
        """This side no longer reads."""
        self._is_paused = True
        self._signed = now

    def resumed(self, now: int) -> None:
        """It reads again: the far side has its whole time to answer."""
        self._is_paused = False
        if self._asked is not None:
            self._asked = now
            self._pinged = False

    def missed(self, phase: Phase) -> str:
        """What has not come in time, for people."""
        limits, is_drawn_out = self._limits, self._left() < self._moved + self._limits.goodbye_timeout
        what, wait = {
            Phase.GREETING: ("HELLO", limits.hello_timeout),
            Phase.OPEN: ("sign", limits.silence_timeout),
        }.get(phase, ("GOODBYE", limits.goodbye_timeout * (_LEAVING_WAITS if is_drawn_out else 1)))
        return f"no {what} within {wait / SECOND:g} s"

    def next(self, phase: Phase, *, is_waiting: bool) -> tuple[int, DueAction] | None:
        """The next moment that brings something, and what.

        Args:
            phase: How far the link is.
            is_waiting: Whether rows wait to go.

        Returns:
            Moment and matter; None where nothing is waited for.
        """
        limits = self._limits
        if phase is Phase.OVER:
            return None
        if phase is Phase.GREETING:
            return self._made + limits.hello_timeout, DueAction.END
        if phase is not Phase.OPEN:
            return min(self._moved + limits.goodbye_timeout, self._left()), DueAction.END
        if self._is_paused:
            return self._signed + limits.keepalive_interval, DueAction.SIGN
        moments = []
        if not is_waiting:
            moments.append((self._carried + limits.idle_timeout, DueAction.IDLE))
        if self._asked is not None:
            moments.append((self._asked + limits.silence_timeout, DueAction.END))
            if not self._pinged:
                moments.append((self._asked + limits.ping_after, DueAction.PING))
        return min(moments, default=None)

    def _left(self) -> int:
        """When leaving ends, whatever comes and goes."""
        since = self._moved if self._leaving is None else self._leaving
        return since + _LEAVING_WAITS * self._limits.goodbye_timeout


@dataclass(frozen=True, slots=True)
class PeerGreeted:
    """The far side has said HELLO: from now on it may send.

    Attributes:
        far: Who it says that it is.
        is_self: Whether that is this instance (N9); the link says GOODBYE by itself.
    """

    peer: PeerIdentity
    is_self: bool = False


@dataclass(frozen=True, slots=True)
class FragmentsArrived:
    """Rows have arrived, valid as a batch of the wire; what they say is the dialog layer's to judge.

    Attributes:
        rows: A table of `batch.WIRE`, 1 to 1,024 rows.
        bytes: How many bytes they took on the wire, and at most take in memory.
    """

    rows: pa.Table
    bytes: int


@dataclass(frozen=True, slots=True)
class RoleQuery:
    """The far side asks what the database with a broker id is (N23).

    Attributes:
        broker_instance: The broker id.
    """

    broker_instance: bytes


@dataclass(frozen=True, slots=True)
class RoleReply:
    """The far side answers that.

    Attributes:
        broker_instance: The broker id.
        role: What the database is.
        number: The role's number, which grows with each failover (N24).
    """

    broker_instance: bytes
    role: MirroringRole
    number: int


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The far side has said GOODBYE, or no longer gives a sign: nothing more comes from it.

    Attributes:
        reason: Why.
        text: The same for people.
    """

    reason: GoodbyeReason
    text: str = ""


LinkEvent: TypeAlias = PeerGreeted | FragmentsArrived | RoleQuery | RoleReply | PeerLeft


WAITING_MAX: Final = 1_024
"""How many questions of the far side may wait for their answers to go."""


class OpenRoleQuestions:
    """What was asked and is not answered. An answer that nobody asked for is refused, so that no claim comes unasked."""

    __slots__ = ("_asked", "_outgoing", "_owed", "_waiting")

    def __init__(self) -> None:
        self._asked: Counter[bytes] = Counter()
        self._owed: Counter[bytes] = Counter()
        self._waiting = 0
        self._outgoing: deque[tuple[FrameKind, bytes]] = deque()

    def ask(self, broker_instance: bytes) -> None:
        """Asks; a ProtocolError where it is no broker id."""
        if len(broker_instance) != frames.GUID_BYTES:
            raise ProtocolError(f"ROLE_QUERY: expected a broker id of {frames.GUID_BYTES} bytes")
        self._asked[broker_instance] += 1
        self._outgoing.append((FrameKind.ROLE_QUERY, broker_instance))

    def tell(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers; a ProtocolError where nobody has asked, or the answer is none."""
        body = frames.pack_role(broker_instance, role, number)
        if not self._owed[broker_instance]:
            raise ProtocolError("ROLE_REPLY: the far side has asked nothing of this database that is not answered")
        _less(self._owed, broker_instance)
        self._outgoing.append((FrameKind.ROLE_REPLY, body))

    def was_asked(self, body: bytes) -> RoleQuery:
        """The far side asks; a PeerError where it asks on and on without reading the answers."""
        if self._waiting == WAITING_MAX:
            raise PeerError(f"ROLE_QUERY: expected at most {WAITING_MAX} questions without reading the answers")
        self._waiting += 1
        self._owed[body] += 1
        return RoleQuery(body)

    def was_told(self, body: bytes) -> RoleReply:
        """The far side answers; a PeerError where it was not asked."""
        told = RoleReply(*frames.unpack_role(body))
        if not self._asked[told.broker_instance]:
            raise PeerError("ROLE_REPLY: nobody has asked for the role of this database")
        _less(self._asked, told.broker_instance)
        return told

    def take(self) -> list[tuple[FrameKind, bytes]]:
        """What is to go."""
        taken = list(self._outgoing)
        self._outgoing.clear()
        self._waiting -= sum(kind is FrameKind.ROLE_REPLY for kind, _ in taken)
        return taken

    def clear(self) -> None:
        """Drops what is to go."""
        self._outgoing.clear()


def _less(counts: Counter[bytes], key: bytes) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


FIRST_BYTES: Final = 64 << 10
"""How full the first frame of a connection is; each that follows may be twice as full, up to what a frame takes.

Where a network damages what it carries, each connection lives for a few bytes only: small frames come through, and so all does in time.
"""


class Outbox:
    """Rows that wait. What is put in goes in frames as full as they may be, however it was put in.

    Args:
        first_bytes: How full the first frame may be.

    Attributes:
        rows: How many they are.
        bytes: About what they take.
    """

    __slots__ = ("_most", "_pieces", "bytes", "rows")

    def __init__(self, *, first_bytes: int = BYTES_MAX) -> None:
        self._most = first_bytes
        self._pieces: deque[tuple[pa.Table, int]] = deque()
        self.rows = self.bytes = 0

    def put(self, rows: pa.Table) -> None:
        """Puts rows behind the others; a ProtocolError where they cannot go, and then none is put in."""
        check_rows(rows)
        for piece in list(split_rows(rows)):
            self._pieces.append(piece)
            self.rows += piece[0].num_rows
            self.bytes += piece[1]

    def take(self) -> memoryview | None:
        """The body of the next frame; None: nothing waits."""
        if not self._pieces:
            return None
        taken: list[pa.Table] = []
        rows = size = 0
        self._divide()
        while self._pieces:
            piece, length = self._pieces[0]
            if taken and (rows + piece.num_rows > ROWS_MAX or size + length > self._most):
                break
            self._pieces.popleft()
            taken.append(piece)
            rows += piece.num_rows
            size += length
        self._most = min(2 * self._most, BYTES_MAX)
        self.rows -= rows
        self.bytes -= size
        return pack_batch(taken[0] if len(taken) == 1 else pa.concat_tables(taken))

    def _divide(self) -> None:
        """Divides the first piece, where it is more than a frame takes now."""
        piece, length = self._pieces[0]
        if length > self._most:
            parts = list(split_rows(piece, most=self._most))
            self._pieces.popleft()
            self._pieces.extendleft(reversed(parts))
            self.bytes += sum(size for _, size in parts) - length

    def clear(self) -> None:
        """Drops all; whoever sent it sends it again (P17)."""
        self._pieces.clear()
        self.rows = self.bytes = 0


_INPUTS: Final = {FrameKind.HELLO: LinkInput.HELLO, FrameKind.GOODBYE: LinkInput.GOODBYE}


class Link:
    """One end of a connection.

    Args:
        own: What this side says in HELLO.
        is_accept: Whether the far side dialled.
        limits: How long it waits, and for how much.
        now: The moment, in microseconds.

    Attributes:
        is_accept: Whether the far side dialled.
        far: What the far side has said of itself; None until its HELLO has come.

    Examples:
        >>> shop = Link(OwnIdentity(instance_id=b"s" * 16, name="shop", run_number=1), is_accept=False, limits=LinkLimits(), now=0)
        >>> bank = Link(OwnIdentity(instance_id=b"b" * 16, name="bank", run_number=2), is_accept=True, limits=LinkLimits(), now=0)
        >>> [greeted] = bank.received(b"".join(shop.data_to_send(now=0)), now=0)
        >>> greeted.peer.name
        'shop'
    """

    __slots__ = (
        "_frames",
        "_goodbye",
        "_hello",
        "_outbox",
        "_own",
        "_patience",
        "_phase",
        "_ping",
        "_pong",
        "_questions",
        "is_accept",
        "peer",
    )

    def __init__(self, own: OwnIdentity, *, is_accept: bool, limits: LinkLimits, now: int) -> None:
        self.is_accept = is_accept
        self.peer: PeerIdentity | None = None
        self._own = own
        self._phase = Phase.GREETING
        self._patience = LinkDeadlines(limits, now)
        self._frames = FrameReader(body_max=limits.hello_bytes_max)
        self._outbox = Outbox(first_bytes=FIRST_BYTES)
        self._questions = OpenRoleQuestions()
        self._ping = self._pong = False
        self._hello: bytes | None = encode_frame(FrameKind.HELLO, frames.pack_hello(own))
        self._goodbye: bytes | None = None

    def received(self, data: Data, *, now: int) -> list[LinkEvent]:
        """Takes bytes from the far side; once the link is over, what still comes is ignored.

        Args:
            data: The bytes, in pieces of any size.
            now: The moment.

        Returns:
            What they come to.

        Raises:
            PeerError: They break the protocol. The link is over, but for a GOODBYE that says why, where the far side had said HELLO.
        """
        if self._phase is Phase.OVER:
            return []
        self._patience.heard(now)
        self._frames.feed(data)
        occurrences: list[LinkEvent] = []
        try:
            while (frame := self._frames.next()) is not None:
                if (occurrence := self._took(*frame, now)) is not None:
                    occurrences.append(occurrence)
        except PeerError as error:
            self._end()
            if self.peer is not None:
                self._goodbye = encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(GoodbyeReason.BROKEN, str(error)))
            raise
        return occurrences

    def send(self, rows: pa.Table) -> None:
        """Keeps rows until they can go.

        Args:
            rows: Rows of `batch.WIRE`, in their order.

        Raises:
            ProtocolError: They are no such rows, or the link leaves; nothing is kept.
        """
        self._may_send()
        self._outbox.put(rows)

    def ask_role(self, broker_instance: bytes) -> None:
        """Asks what a database of a mirrored pair is.

        Args:
            broker_instance: Its broker id.

        Raises:
            ProtocolError: It is no broker id, or the link leaves.
        """
        self._may_send()
        self._questions.ask(broker_instance)

    def reply_role(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers that; who leaves answers nothing.

        Args:
            broker_instance: The database's broker id.
            role: What it is.
            number: The role's number.

        Raises:
            ProtocolError: They are no such things, or nobody has asked.
        """
        if not self.is_leaving:
            self._questions.tell(broker_instance, role, number)

    def leave(self, reason: GoodbyeReason, text: str = "", *, now: int) -> None:
        """Says GOODBYE behind what is still to go; more than once is as once.

        Args:
            reason: Why.
            text: The same for people.
            now: The moment.

        Raises:
            ProtocolError: Nobody can be told that it is silent.
        """
        if reason is GoodbyeReason.SILENT:
            raise ProtocolError("GOODBYE: expected a reason that the far side can be told; got SILENT")
        if self._phase in (Phase.GREETING, Phase.OPEN):
            self._goodbye = encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(reason, text))
            self._patience.leaves(now)
        if self._phase is Phase.GREETING:
            self._outbox.clear()
            self._questions.clear()
        self._phase = TABLE[self._phase][LinkInput.LEAVE]

    def data_to_send(self, *, now: int) -> list[Data]:
        """What is to be written next: small frames, and one of rows.

        Args:
            now: The moment.

        Returns:
            Whole frames, a little over 1 MiB at most, in pieces that go one behind the other; none: nothing for now.
        """
        parts: list[Data] = [] if self._hello is None else [self._hello]
        self._hello = None
        if self._phase not in (Phase.GREETING, Phase.OVER):
            parts += self._small(now)
            rows = self._outbox.take()
            if rows is not None:
                parts += frame_parts(FrameKind.FRAGMENTS, rows)
                self._patience.carried(now)
                self._patience.asked(now)
        if self._goodbye is not None and not self._outbox.bytes:
            parts.append(self._goodbye)
            self._goodbye = None
            self._patience.moved(now)
            self._phase = TABLE[self._phase][LinkInput.WRITTEN]
        return parts

    def next_timeout(self) -> int | None:
        """The moment at which `handle_timeout` has something to do; None: never, if nothing else happens."""
        return None if (due := self._due()) is None else due[0]

    def handle_timeout(self, *, now: int) -> list[LinkEvent]:
        """Does what is due, and nothing where it is too early.

        Args:
            now: The moment.

        Returns:
            `Left` with SILENT where what was waited for has not come. That an idle link leaves, `is_leaving` tells.
        """
        due = self._due()
        if due is None or due[0] > now:
            return []
        if due[1] is DueAction.END:
            left, has_left = (
                PeerLeft(GoodbyeReason.SILENT, self._patience.missed(self._phase)),
                self._phase is Phase.LEFT,
            )
            self._end()
            return [] if has_left else [left]
        if due[1] is DueAction.IDLE:
            self.leave(GoodbyeReason.IDLE, "nothing to carry", now=now)
        elif due[1] is DueAction.PING:
            self._ping = True
            self._patience.pinged(now)
        else:
            self._pong = True
            self._patience.signed(now)
        return []

    def probe(self, *, now: int) -> None:
        """Asks at once whether anybody is there, as where the far side dials anew although this link seems whole (N9)."""
        if self._phase is Phase.OPEN:
            self._ping = True
            self._patience.probed(now)

    def pause(self, *, now: int) -> None:
        """From now on nothing is read (N12): signs of life go from time to time, none is expected."""
        self._patience.paused(now)

    def resume(self, *, now: int) -> None:
        """It is read again."""
        self._patience.resumed(now)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many rows `data_to_send` has not given yet, and about how many bytes they take."""
        return self._outbox.rows, self._outbox.bytes

    @property
    def is_leaving(self) -> bool:
        """Whether one of the sides has left or will, so that no rows are taken any more."""
        return self._phase not in (Phase.GREETING, Phase.OPEN)

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes and nothing goes any more: the socket can be closed."""
        return self._phase is Phase.OVER and self._hello is None and self._goodbye is None

    def _due(self) -> tuple[int, DueAction] | None:
        return self._patience.next(self._phase, is_waiting=bool(self._outbox.bytes))

    def _may_send(self) -> None:
        if self.is_leaving:
            raise ProtocolError(f"expected a link that is GREETING or OPEN; it is {self._phase}")

    def _took(self, kind: FrameKind, body: bytes, now: int) -> LinkEvent | None:
        phase = TABLE[self._phase].get(_INPUTS.get(kind, LinkInput.FRAME))
        if phase is None:
            raise PeerError(f"{kind.name}: it may not come while the connection is {self._phase}")
        self._phase = phase
        if kind is FrameKind.HELLO:
            return self._greeted(frames.unpack_hello(body), now)
        if kind in (FrameKind.PING, FrameKind.PONG):
            self._pong |= kind is FrameKind.PING
            return None
        self._patience.carried(now)
        if kind is FrameKind.FRAGMENTS:
            return FragmentsArrived(batch.unpack_batch(body), len(body))
        if kind is FrameKind.ROLE_QUERY:
            return self._questions.was_asked(body)
        if kind is FrameKind.ROLE_REPLY:
            return self._questions.was_told(body)
        reason, text = frames.unpack_goodbye(body)
        self._patience.leaves(now)
        if self._goodbye is None and self._phase is Phase.LEFT:
            self._goodbye = encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(reason, ""))
        return PeerLeft(reason, text)

    def _greeted(self, far: PeerIdentity, now: int) -> PeerGreeted:
        self.peer = far
        self._frames.body_max = self._own.max_frame_bytes
        self._patience.carried(now)
        is_self = far.instance_id == self._own.instance_id
        if is_self:
            self.leave(GoodbyeReason.ITSELF, "the instance has dialled itself", now=now)
        return PeerGreeted(far, is_self)

    def _small(self, now: int) -> list[bytes]:
        """All that is to go but rows; it goes before them."""
        parts = [
            encode_frame(kind)
            for kind, is_due in ((FrameKind.PONG, self._pong), (FrameKind.PING, self._ping))
            if is_due
        ]
        self._ping = self._pong = False
        for kind, body in self._questions.take():
            parts.append(encode_frame(kind, body))
            self._patience.carried(now)
            if kind is FrameKind.ROLE_QUERY:
                self._patience.asked(now)
        return parts

    def _end(self) -> None:
        self._outbox.clear()
        self._questions.clear()
        self._hello = self._goodbye = None
        self._phase = TABLE[self._phase][LinkInput.END]


class KeptConnection(StrEnum):
    """Which of two connections stays; the other one is left with SUPERSEDED."""

    FIRST = "FIRST"
    """The one that was there; it is to be probed, since the far side may know that it is broken."""
    SECOND = "SECOND"
    """The one that came later."""
    BOTH = "BOTH"
    """Both, for now: the far side dialled them, and says which it leaves."""


@dataclass(frozen=True, slots=True)
class EstablishedConnection:
    """A connection on which both sides have said HELLO.

    Attributes:
        far: What the far side said.
        is_accept: Whether the far side dialled.
    """

    peer: PeerIdentity
    is_accept: bool


def choose_connection(own: OwnIdentity, first: EstablishedConnection, second: EstablishedConnection) -> KeptConnection:
    """Which of two connections with one instance stays. Both sides come to the same, each by itself.

    Args:
        own: What this side said on both.
        first: The one that was there.
        second: The one that came later.

    Returns:
        Which stays.

    Examples:
        >>> own = OwnIdentity(instance_id=b"a" * 16, name="shop", run_number=5)
        >>> far = PeerIdentity(instance_id=b"b" * 16, name="bank", run_number=4, max_frame_bytes=8 << 20)
        >>> choose_connection(own, EstablishedConnection(far, is_accept=True), EstablishedConnection(far, is_accept=False)).value
        'SECOND'
    """
    if first.peer.run_number != second.peer.run_number:
        return KeptConnection.SECOND  # the far side was started anew, and nobody is at the other end of the first
    if first.is_accept is second.is_accept:
        return KeptConnection.BOTH if second.is_accept else KeptConnection.SECOND
    own_wins = (own.run_number, own.instance_id) > (second.peer.run_number, second.peer.instance_id)
    return KeptConnection.SECOND if own_wins is not second.is_accept else KeptConnection.FIRST
