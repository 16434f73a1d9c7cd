"""One connection to another instance: socket, TLS channel, outbound rows, limits."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker._arguments import whole_number
from ssbroker._text import host_and_port
from ssbroker.broker.network.interfaces import Peer
from ssbroker.broker.network.tls import Channel
from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.config import JITTER, SECOND
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.wire.connection import Link, LinkEvent, LinkLimits, PeerGreeted, PeerLeft
from ssbroker.protocol.wire.frames import Data, GoodbyeReason, OwnIdentity, PeerIdentity

PIECE_BYTES: Final = 64 << 10
"""Bytes to encrypt at a time: they fit into the processor's cache, and the allocator reuses their memory."""


ROW_BYTES: Final = 512
"""What a row counts beside its values."""


class SharedOutbox:
    """Rows that wait to go to one place.

    Args:
        most: How many bytes it takes. The last rows that it takes may exceed that.
        first: The number of its first row; those before it are done with.
        on_drained: Called where somebody was told to wait and half of it is free again; in the thread that empties it.

    Examples:
        >>> outbox = SharedOutbox(1000)
        >>> outbox.put(pa.table({"number": [1]})), outbox.put(pa.table({"number": [2]}))
        ((True, 480), (True, -40))
        >>> outbox.put(pa.table({"number": [3]})), outbox.progress
        ((False, -40), (2, 0))
        >>> outbox.take()["number"].to_pylist()
        [1]
    """

    __slots__ = (
        "_accepted",
        "_bytes",
        "_finished",
        "_is_blocked",
        "_lock",
        "_max_bytes",
        "_on_drained",
        "_owes_notification",
        "_rows",
    )

    def __init__(self, most: int, *, first: int = 0, on_drained: Callable[[], None] = lambda: None) -> None:
        self._on_drained: Final = on_drained
        self._max_bytes: Final = most
        self._lock: Final = threading.RLock()
        self._rows: Final[deque[tuple[pa.Table, int]]] = deque()
        self._bytes = 0
        self._accepted = self._finished = first
        self._is_blocked = False
        self._owes_notification = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._rows

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing for now."""
        return self._is_blocked or self._bytes >= self._max_bytes

    @property
    def progress(self) -> tuple[int, int]:
        """How many rows it has taken, and how many of these are done with. Both only grow."""
        with self._lock:
            return self._accepted, self._finished

    @property
    def pending(self) -> tuple[int, int]:
        """How many rows are not done with, and how many bytes those count that wait."""
        with self._lock:
            return self._accepted - self._finished, self._bytes

    def put(self, rows: pa.Table) -> tuple[bool, int]:
        """Takes rows, unless it is full.

        Args:
            rows: The rows.

        Returns:
            Whether it has taken them, and how many bytes more it takes.
        """
        size = rows.nbytes + ROW_BYTES * rows.num_rows
        with self._lock:
            room = self._max_bytes - self._bytes
            if self._is_blocked or room <= 0:
                self._owes_notification = True
                return False, min(room, 0)
            self._rows.append((rows, size))
            self._bytes += size
            self._accepted += rows.num_rows
            self._owes_notification = self._owes_notification or room <= size
            return True, room - size

    def take(self) -> pa.Table | None:
        """The rows that have waited longest; they are done with once `finish` is told so."""
        with self._lock:
            if not self._rows:
                return None
            rows, size = self._rows.popleft()
            self._bytes -= size
            return rows

    def finish(self, rows: int) -> None:
        """Says that rows are written or lost.

        Args:
            rows: How many, the first ones.
        """
        with self._lock:
            self._finished += rows

    def clear(self) -> None:
        """Loses what waits."""
        with self._lock:
            self._finished += sum(rows.num_rows for rows, _ in self._rows)
            self._rows.clear()
            self._bytes = 0

    def block(self) -> None:
        """Takes nothing from now on."""
        with self._lock:
            self._is_blocked = True

    def unblock(self) -> None:
        """Takes rows again, and says so."""
        with self._lock:
            self._is_blocked = self._owes_notification = False
        self._on_drained()

    def notify_if_drained(self) -> None:
        """Called after rows were taken out: tells who waits for room, if there is enough."""
        with self._lock:
            is_due = self._owes_notification and not self._is_blocked and self._bytes <= self._max_bytes // 2
            if is_due:
                self._owes_notification = False
        if is_due:
            self._on_drained()


_HOUR = 3600 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """How long the endpoint waits, and for how much; times are microseconds.

    Attributes:
        link: The same of one connection, once TLS is agreed.
        login_wait: How long TCP, TLS and HELLO may take together.
        unproven_bytes: What is taken of a far side before it has proven who it is.
        unproven_most: How many such connections there may be; the oldest goes for a new one. A quarter of the files that the process
            may open is never exceeded, so that databases and honest instances have theirs.
        principal_most: How many connections that one principal has dialled there may be, whatever instances it says they come from; the oldest
            goes for a new one. A quarter of the files is not exceeded here either.
        dials_at_once: How many connections one address may dial in one go (N33); an IPv6 network of 64 bits counts as one address.
        dials_per_second: How many more it may dial in each second from then on.
        learnt_most: How many addresses that no route names may be in use at once (N34), as far as others have chosen them.
        learnt_dials: How many of these are dialled at once; the others wait.
        outbox_bytes: What may wait to go to one address.
        dial_wait: How long to wait after a dial that failed; twice as long after the next, and so on.
        dial_wait_most: The longest of these waits.
        steady_after: How long a connection over which no rows have come has to last so that its end counts as a first failure.

    Raises:
        OptionError: One of them is not what it can be.

    Examples:
        >>> limits = EndpointLimits()
        >>> [limits.wait(failures, roll=0.5) // SECOND for failures in range(1, 9)]
        [1, 2, 4, 8, 16, 32, 60, 60]
        >>> limits.wait(1, roll=0.0) / SECOND
        0.875
    """

    link: LinkLimits = field(default_factory=LinkLimits)
    login_wait: int = 10 * SECOND
    unproven_bytes: int = 16 << 10
    unproven_most: int = 1000
    principal_most: int = 256
    dials_at_once: int = 200
    dials_per_second: int = 20
    learnt_most: int = 1000
    learnt_dials: int = 64
    outbox_bytes: int = 2 << 20
    dial_wait: int = SECOND
    dial_wait_most: int = 60 * SECOND
    steady_after: int = 10 * SECOND

    def __post_init__(self) -> None:
        for name in ("login_wait", "dial_wait", "dial_wait_most"):
            whole_number(getattr(self, name), name=name, minimum=1, maximum=_HOUR)
        whole_number(self.steady_after, name="steady_after", minimum=0, maximum=_HOUR)
        whole_number(self.unproven_bytes, name="unproven_bytes", minimum=4 << 10, maximum=1 << 20)
        for name in (
            "unproven_most",
            "principal_most",
            "dials_at_once",
            "dials_per_second",
            "learnt_most",
            "learnt_dials",
        ):
            whole_number(getattr(self, name), name=name, minimum=1, maximum=1_000_000)
        whole_number(self.outbox_bytes, name="outbox_bytes", minimum=1, maximum=1 << 40)

    def wait(self, failures: int, *, roll: float) -> int:
        """How long to wait before an address is dialled again.

        Args:
            failures: How often it has failed in a row, at least once.
            roll: A random number from 0 to below 1, for the jitter.

        Returns:
            Microseconds.

        Examples:
            >>> EndpointLimits().wait(20, roll=0.5) // SECOND
            60
        """
        base = min(self.dial_wait << min(failures - 1, 32), self.dial_wait_most)
        return round(base * (1 + JITTER * (2 * roll - 1)))

    def principal_allowed(self) -> int:
        """How many connections one principal may have dialled in this process, at least one.

        Examples:
            >>> EndpointLimits(principal_most=1).principal_allowed()
            1
        """
        return _limit_by_open_files(self.principal_most)

    def unproven_allowed(self) -> int:
        """How many connections that are not proven there may be in this process, at least one.

        Examples:
            >>> EndpointLimits(unproven_most=1).unproven_allowed()
            1
        """
        return _limit_by_open_files(self.unproven_most)


def _limit_by_open_files(most: int) -> int:
    """So many connections, or as many as a quarter of the files is, but one in any case."""
    return max(min(most, _open_files_max() // 4), 1)


def _open_files_max() -> int:
    """How many files the process may have open."""
    if sys.platform == "win32":
        return 2**31 - 1
    import resource  # noqa: PLC0415 - Windows has none

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if allowed == resource.RLIM_INFINITY else allowed


LOGGER: Final = logging.getLogger("ssbroker.broker")
_LINK_BUFFER_BYTES: Final = 1 << 20
_UNREAD_REPLIES_MAX: Final = 1 << 20


class SecureLink:
    """One end of a connection without its socket. Times are microseconds of any clock that only grows.

    Args:
        channel: What its bytes go through.
        own: What this instance says of itself.
        is_accept: Whether the far side dialled.
        limits: How long it waits, and for how much.
        now: The moment.
        sent_by_priority: Where rows are counted by priority.
    """

    __slots__ = (
        "_has_ended",
        "_in_transit",
        "_in_transit_rows",
        "_is_accept",
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
        is_accept: bool,
        limits: EndpointLimits,
        now: int,
        sent_by_priority: Counter[int] | None = None,
    ) -> None:
        self._sent_by_priority: Final = Counter[int]() if sent_by_priority is None else sent_by_priority
        self._own: Final = own
        self._is_accept: Final = is_accept
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
        """What the far side has said of itself."""
        return None if self._link is None else self._link.peer

    @property
    def is_usable(self) -> bool:
        """Whether rows that wait in its outboxes go over it."""
        return self.peer_identity is not None and not self.is_leaving

    @property
    def is_finished(self) -> bool:
        """Whether nothing comes and nothing goes any more: close the socket."""
        return self._has_ended or (self._link is not None and self._link.is_closed)

    @property
    def is_leaving(self) -> bool:
        """Whether one of the sides has said GOODBYE, or will."""
        return self._leaving is not None or (self._link is not None and self._link.is_leaving)

    @property
    def bytes_to_read(self) -> int | None:
        """How many bytes more are taken of who has not said HELLO (N11); None where it has."""
        return (
            None
            if self.peer_identity is not None
            else max(self._limits.unproven_bytes - self._unauthenticated_bytes, 0)
        )

    def received(self, data: Data, *, now: int) -> list[LinkEvent]:
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
        if self.is_finished:
            return []
        if self.peer_identity is None:
            self._unauthenticated_bytes += len(data)
        plain = self.channel.received(data)
        link = self._open_link(now)
        events = link.receive(plain, now=now) if plain and link is not None else []
        if self.bytes_to_read == 0:
            raise PeerError(
                f"the far side has sent_by_priority {self._unauthenticated_bytes} bytes and not said who it is"
            )
        if self.channel.unsent_bytes > _UNREAD_REPLIES_MAX:
            raise PeerError("the far side asks for answers and does not read them")
        return events

    def data_to_send(self, *, now: int) -> bytes | None:
        """The next piece for the socket.

        Args:
            now: The moment.

        Returns:
            The bytes; None where there is nothing for now.
        """
        if data := self.channel.data_to_send():
            return data
        if not self._unencrypted and self._link is not None:
            self._encode(self._link, now)
        try:
            self._encrypt()
        except PeerError:  # the far side has ended TLS, and is about to close the socket
            self._has_ended = True
            return None
        return self.channel.data_to_send() or None

    def close(self) -> bytes:
        """Ends it; what is still to be written, all of it at once: who reads nothing is not waited for."""
        with suppress(PeerError):
            self._encrypt(max_unsent_bytes=2**63 - 1)
        self.channel.close()
        return self.channel.data_to_send()

    def settle(self, *, waiting: int = 0) -> None:
        """Has outboxes know what of that which was taken out of them is written or lost.

        Args:
            waiting: How many rows are neither, the last ones.
        """
        while self._in_transit and self._in_transit_rows - self._in_transit[0][1] >= waiting:
            outbox, rows = self._in_transit.popleft()
            self._in_transit_rows -= rows
            outbox.finish(rows)

    def next_timeout(self) -> int | None:
        """The moment at which `handle_timeout` has something to do; None where there is none."""
        return None if self._link is None else self._link.next_timeout()

    def handle_timeout(self, *, now: int) -> list[LinkEvent]:
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

    def query_role(self, broker_instance: bytes) -> None:
        """Asks the far side what a database is.

        Args:
            broker_instance: Its broker id.
        """
        if self._link is not None and self.is_usable:
            self._link.query_role(broker_instance)

    def reply_role(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers that.

        Args:
            broker_instance: The broker id.
            role: What the database is here.
            number: The role's number.
        """
        if self._link is not None and self.is_usable:
            self._link.reply_role(broker_instance, role, number)

    def leave(self, reason: GoodbyeReason, text: str) -> bool:
        """Says GOODBYE behind what waits in its outboxes.

        Args:
            reason: Why.
            text: The same for people.

        Returns:
            Whether it can: it cannot before the far side has said HELLO.
        """
        if self.peer_identity is None:
            return False
        self._leaving = self._leaving or (reason, text)
        return True

    def _open_link(self, now: int) -> Link | None:
        if self._link is None and self.channel.is_open:
            self._link = Link(self._own, is_accept=self._is_accept, limits=self._limits.link, now=now)
        return self._link

    def _encode(self, link: Link, now: int) -> None:
        """Asks the link for what is to be written next."""
        self._fill_link(link, now)
        for data in link.data_to_send(now=now):
            view = memoryview(data)
            self._unencrypted.extend(view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))
        waiting, _ = link.waiting
        self.settle(waiting=waiting)
        if not waiting:  # a link that has something to carry is not idle, however long the socket takes nothing
            self._fill_link(link, now)

    def _encrypt(self, max_unsent_bytes: int = PIECE_BYTES) -> None:
        """Passes pieces to the channel until it holds that many unsent bytes."""
        while self._unencrypted and self.channel.unsent_bytes < max_unsent_bytes:
            self.channel.seal(self._unencrypted.popleft())

    def _fill_link(self, link: Link, now: int) -> None:
        """Gives the link as much as one frame takes, from each outbox in turn."""
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
        priorities: pa.StructArray = pc.value_counts(rows["priority"])
        counts: list[list[Any]] = [priorities.field(number).tolist() for number in (0, 1)]
        for priority, count in zip(*counts, strict=True):
            self._sent_by_priority[priority] += count
        outbox.notify_if_drained()
        try:
            link.send(rows)
        except ProtocolError:  # rows that nobody makes; those after them go
            LOGGER.exception("rows were not sent_by_priority")


# Service Broker's numbers (fact 153).
CONNECT_FAILED: Final = 9754
RECEIVE_FAILED: Final = 9755
SEND_FAILED: Final = 9759
PROTOCOL_BROKEN: Final = 9757
LOGIN_REFUSED: Final = 9752
NAME_UNKNOWN: Final = 9783


class ConnectionState(IntEnum):
    """How far a connection has come, with the numbers of `sys.dm_broker_connections` (fact 158)."""

    NEW = 1
    CONNECTING = 2
    CONNECTED = 3
    LOGGED_IN = 4
    CLOSED = 5


@dataclass(frozen=True, slots=True)
class CloseReason:
    """Why a connection ends.

    Attributes:
        text: Why, for people.
        error: Service Broker's number for it, 0 where nothing is wrong.
        reason: What GOODBYE said; None where there was none.
    """

    text: str
    error: int = 0
    reason: GoodbyeReason | None = None


@dataclass(slots=True)
class ConnectionCounters:
    """What has gone over a connection.

    Attributes:
        bytes_sent: Bytes given to the socket.
        bytes_received: Bytes that it brought.
        fragments_received: Rows that it brought.
        sends: How often the socket was written.
        receives: How often it was read.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    fragments_received: int = 0
    sends: int = 0
    receives: int = 0


class ConnectionOwner(Protocol):
    """Who has all connections. It is called in the endpoint's thread."""

    @property
    def buffer(self) -> memoryview:
        """Where sockets are read into, one at a time."""

    def now(self) -> int:
        """The moment, in microseconds since 1970."""

    def accepted(self, connection: PeerConnection) -> None:
        """The socket of a connection that others have dialled is there."""

    def event_received(self, connection: PeerConnection, event: LinkEvent) -> None:
        """Something has come over a connection."""

    def closing(self, connection: PeerConnection, reason: CloseReason) -> None:
        """One of the sides says GOODBYE, or falls silent."""

    def ended(self, connection: PeerConnection, reason: CloseReason) -> None:
        """A connection's socket is closed."""


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is given as.

    Args:
        host: A name or an address, which may name its zone (`fe80::1%eth0`).

    Returns:
        The address without its zone, an IPv4 one that is mapped into IPv6 as itself; None for a name.

    Examples:
        >>> ip_of("::ffff:192.0.2.1"), ip_of("fe80::1%eth0"), ip_of("localhost")
        (IPv4Address('192.0.2.1'), IPv6Address('fe80::1'), None)
    """
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def address_of(name: object) -> str:
    """The address of a socket's other end.

    Args:
        name: As the operating system has it.

    Returns:
        As routes have it.

    Examples:
        >>> address_of(("127.0.0.1", 4022)), address_of(("::1", 4022, 0, 0))
        ('TCP://127.0.0.1:4022', 'TCP://[::1]:4022')
    """
    match name:
        case (str(host), int(port), *_):
            return f"TCP://{host_and_port(host, port)}"
        case _:
            return ""


READ_BYTES: Final = 256 << 10
_WRITE_BYTES: Final = 512 << 10
_TURN_BYTES: Final = 2 << 20


class PeerConnection(asyncio.BufferedProtocol):
    """One connection, from the moment that its socket is wanted.

    Args:
        owner: Who has all connections.
        line: What is spoken.
        connection_id: Its id.
        address: The far side's; None until the far side has dialled.
        limits: How long it waits.

    Attributes:
        state: How far it has come.
        counters: What has gone over it.
        connected_at: When the socket was there, in microseconds since 1970.
        logged_in_at: When the far side had said who it is.
        active_at: When the last bytes came or went.
        is_send_paused: Whether the operating system takes no more for now.
        reason: Why it ends, once that is known.
        peer: Who the far side is, once it has said so.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        link: SecureLink,
        *,
        connection_id: uuid.UUID,
        address: str | None,
        limits: EndpointLimits,
    ) -> None:
        self._owner: Final = owner
        self._limits: Final = limits
        self._loop: Final = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._loop.call_later(limits.login_wait / SECOND, self._login_timed_out)
        self._is_closing = False
        self.reason: CloseReason | None = None
        self.peer: Peer | None = None
        self.link: Final = link
        self.connection_id: Final = connection_id
        self.address = address or ""
        self.is_accept: Final = address is None
        self.state: ConnectionState = ConnectionState.NEW if address is None else ConnectionState.CONNECTING
        self.counters: Final = ConnectionCounters()
        self.connected_at: int | None = None
        self.logged_in_at: int | None = None
        self.active_at: int | None = None
        self.is_send_paused = False

    @property
    def is_usable(self) -> bool:
        """Whether rows that wait in its outboxes go over it."""
        return not self._is_closing and self.reason is None and self.link.is_usable

    @property
    def unsent_bytes(self) -> int:
        """What the operating system has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def descriptor(self) -> int:
        """The number of its socket; -1 where it has none."""
        found: int = -1 if self._transport is None else self._transport.get_extra_info("socket").fileno()
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream protocol is given
        self._transport = transport
        self.state = ConnectionState.CONNECTED
        self.connected_at = self.active_at = self._owner.now()
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        if self.is_accept:
            self.address = address_of(transport.get_extra_info("peername"))
            self._owner.accepted(self)
        if self._is_closing:
            transport.abort()
        self.pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: no more of them than are taken of who is not proven yet."""
        del sizehint
        room = self.link.bytes_to_read
        return self._owner.buffer if room is None else self._owner.buffer[: max(room, 1)]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self.counters.bytes_received += nbytes
        self.counters.receives += 1
        self.active_at = self._owner.now()
        if self._is_closing:
            return
        try:
            events = self.link.received(self._owner.buffer[:nbytes], now=self._clock())
        except PeerError as error:
            is_proven = self.link.channel.is_open
            self.end(CloseReason(str(error), PROTOCOL_BROKEN if is_proven else LOGIN_REFUSED))
            self.pump()
            self._close()
            return
        self._process_events(events)
        self.pump()

    def eof_received(self) -> None:
        """The far side writes no more; asyncio closes the socket."""

    def pause_writing(self) -> None:
        """The operating system takes no more for now."""
        self.is_send_paused = True

    def resume_writing(self) -> None:
        """It does again. What a transport calls may not close it, so the writing goes on after this."""
        self.is_send_paused = False
        self._loop.call_soon(self.pump)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        why = "the far side closed the connection" if exc is None else f"the connection broke: {exc}"
        self.lost(CloseReason(why, RECEIVE_FAILED))

    def lost(self, reason: CloseReason) -> None:
        """There is no socket, or no longer.

        Args:
            reason: Why, where it is not known better.
        """
        if self.state is ConnectionState.CLOSED:
            return
        self._deadline.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._is_closing = True
        self.state = ConnectionState.CLOSED
        self.link.settle()
        self._owner.ended(self, self.reason or reason)

    def pump(self) -> None:
        """Writes what there is to write, as long as it is taken."""
        transport = self._transport
        if transport is None or self._is_closing:
            return
        written = 0
        while not self.is_send_paused and not transport.is_closing():
            data = self.link.data_to_send(now=self._clock())
            if data is None:
                break
            transport.write(data)
            written += len(data)
            self.counters.bytes_sent += len(data)
            self.counters.sends += 1
            self.active_at = self._owner.now()
            if written >= _TURN_BYTES:  # others read and write meanwhile
                self._loop.call_soon(self.pump)
                break
        if self.link.is_finished:
            self._close()
        else:
            self._schedule_timer()

    def leave(self, reason: GoodbyeReason, text: str) -> None:
        """Says GOODBYE behind what waits.

        Args:
            reason: Why.
            text: The same for people.
        """
        self.end(CloseReason(text, reason=reason))
        if self.link.leave(reason, text):
            self.pump()
        else:
            self.cut()

    def probe(self) -> None:
        """Asks the far side for a sign of life."""
        self.link.probe(now=self._clock())
        self.pump()

    def end(self, reason: CloseReason) -> None:
        """Says why it ends, where that is not known yet.

        Args:
            reason: Why.
        """
        if self.reason is None:
            self.reason = reason
            if reason.reason is not None and self.peer is not None:
                self._owner.closing(self, reason)

    def cut(self) -> None:
        """Closes the socket at once, without GOODBYE."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Reads no more, so that TCP slows the far side down; who is not proven is read all the same."""
        if self._transport is not None and self.link.peer_identity is not None and not self.link.is_paused:
            self.link.pause(now=self._clock())
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self._transport is not None and self.link.is_paused:
            self.link.resume(now=self._clock())
            self._transport.resume_reading()
            self.pump()

    def _process_events(self, events: list[LinkEvent]) -> None:
        for event in events:
            if isinstance(event, PeerGreeted):
                self._greeted(event.peer)
            elif isinstance(event, PeerLeft):
                self.end(CloseReason(event.text or event.reason.name.lower(), reason=event.reason))
            self._owner.event_received(self, event)

    def _greeted(self, far: PeerIdentity) -> None:
        self._deadline.cancel()
        self.state = ConnectionState.LOGGED_IN
        self.logged_in_at = self._owner.now()
        self.peer = Peer(
            instance_id=far.instance_id,
            name=far.name,
            principal=self.link.channel.principal,
            address=self.address,
            connection_id=self.connection_id,
            is_accept=self.is_accept,
        )

    def _close(self) -> None:
        """Closes the socket once what was written is gone, or a while later."""
        if self._transport is not None and not self._is_closing:
            self._is_closing = True
            if data := self.link.close():
                self._transport.write(data)
            self._transport.close()
            self._deadline.cancel()
            self._deadline = self._loop.call_later(self._limits.link.goodbye_timeout / SECOND, self._transport.abort)

    def _schedule_timer(self) -> None:
        moment = self.link.next_timeout()
        if moment is None:
            return
        at = (moment + 1) / SECOND
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._timer_expired)

    def _timer_expired(self) -> None:
        self._timer = None
        self._process_events(self.link.handle_timeout(now=self._clock()))
        if self.link.is_leaving:
            self.end(CloseReason("the connection carried nothing", reason=GoodbyeReason.IDLE))
        self.pump()

    def _login_timed_out(self) -> None:
        waited = self._limits.login_wait / SECOND
        self.end(CloseReason(f"the far side has not said who it is in {waited:g} s", LOGIN_REFUSED))
        self.cut()

    def _clock(self) -> int:
        return int(self._loop.time() * SECOND)
