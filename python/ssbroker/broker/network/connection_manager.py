"""All connections of an endpoint: accepts connections, keeps one for each peer, handles everything they receive except rows, and counts traffic."""

from __future__ import annotations

import asyncio
import math
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from ssbroker.broker.network.addresses import host_of
from ssbroker.broker.network.connection import (
    LOGIN_REFUSED,
    READ_BYTES,
    CloseReason,
    ConnectionState,
    PeerConnection,
    call_listener,
)
from ssbroker.broker.network.dialer import Dialer
from ssbroker.broker.network.endpoint_context import EndpointContext
from ssbroker.broker.network.interfaces import PeerKey
from ssbroker.broker.network.rate_limiter import RateLimiter
from ssbroker.broker.network.secure_link import SecureLink
from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason, GoodbyeReason
from ssbroker.protocol.wire.link import (
    EstablishedConnection,
    KeptConnection,
    LinkEvent,
    PeerGreeted,
    RoleQuery,
    RoleReply,
    RowsDropped,
    choose_connection,
)

_USABLE_PER_PEER_MAX: Final = 4
_CONNECTIONS_PER_PEER_MAX: Final = 16


class ConnectionManager:
    """All connections of an endpoint. Methods run in the endpoint's thread unless documented otherwise.

    Attributes:
        buffer: The buffer into which all sockets are read, one at a time.
        connections: All connections by id, oldest first.
        dialer: Dials the addresses to which rows are sent.
        refusals: The number of connections that were closed because their address dials too often.
    """

    def __init__(self, context: EndpointContext) -> None:
        self._context: Final = context
        self._roles: Final = RoleAnswers(context)
        self._by_peer: Final[dict[PeerKey, list[PeerConnection]]] = {}
        self._unauthenticated: Final[dict[PeerConnection, None]] = {}
        self._unauthenticated_max: Final = context.limits.unauthenticated_limit()
        self._per_principal_max: Final = context.limits.connections_per_principal_limit()
        limits = context.limits
        self._rate_limiter: Final = RateLimiter(burst=limits.dial_burst, per_second=limits.dials_per_second)
        self._rate_message: Final = (
            f"the peer opens connections too often: one address may dial {limits.dial_burst} connections at once and"
            f" {limits.dials_per_second} a second"
        )
        self.refusals = 0
        self._traffic_lock: Final = threading.RLock()
        self._ended_traffic: Final[Counter[str]] = Counter()
        self._is_paused = False
        self._on_closed: Callable[[], None] | None = None
        self.buffer: Final = memoryview(bytearray(READ_BYTES))
        self.connections: Final[dict[uuid.UUID, PeerConnection]] = {}
        self.dialer: Final = Dialer(context, begin=self._add_dialled, usable_connection=self.usable_connection)

    def now(self) -> int:
        """Returns the time in microseconds since 1970."""
        return self._context.clock()

    def accept(self) -> PeerConnection:
        """Returns a new connection for a socket that a peer has dialled; its `connection_made` may never be called."""
        link = SecureLink(
            self._context.channel(is_accept=True),
            own=self._context.own,
            limits=self._context.limits,
            now=int(asyncio.get_running_loop().time() * SECOND),
            sent_by_priority=self._context.sent_by_priority,
        )
        return self._new(link, None)

    def accepted(self, connection: PeerConnection) -> None:
        """Adds a connection that a peer has dialled, unless its address dials too often.

        If there are too many unauthenticated connections, the oldest is closed.
        """
        self.connections[connection.connection_id] = connection
        if self._on_closed is not None:
            connection.set_close_reason(CloseReason("the instance is stopping"))
            connection.cut()
            return
        if not self._rate_limiter.take(host_of(connection.address), now=self.now()):
            self.refusals += 1
            connection.set_close_reason(CloseReason(self._rate_message, LOGIN_REFUSED))
            connection.cut()
            return
        self._unauthenticated[connection] = None
        if len(self._unauthenticated) > self._unauthenticated_max:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.set_close_reason(
                CloseReason("too many unauthenticated connections; the oldest is closed", LOGIN_REFUSED)
            )
            oldest.cut()

    def usable_connection(self, peer_key: PeerKey) -> PeerConnection | None:
        """Returns the newest usable connection to a peer, because the peer may have lost the older ones; None if none is usable."""
        return next((each for each in reversed(self._by_peer.get(peer_key, [])) if each.is_usable), None)

    def event_received(self, connection: PeerConnection, event: LinkEvent) -> None:
        """Handles an event of a connection, other than received rows."""
        match event:
            case PeerGreeted(is_self=is_self):
                self._greeted(connection, is_self=is_self)
            case RoleQuery(broker_instance=broker_instance):
                self._roles.query_received(connection, broker_instance)
            case RoleReply(broker_instance=broker_instance, role=role, number=number):
                self.dialer.role_received(connection, broker_instance, role, number)
            case RowsDropped(reasons=reasons):
                self.dialer.rows_dropped(connection, reasons)

    def report_drops(self, peer_key: PeerKey, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Reports to a connected peer why its rows are not acknowledged."""
        connection = self.usable_connection(peer_key)
        if connection is not None:
            with connection.guard:
                connection.link.report_drops(reasons)
            connection.pump()

    def closing(self, connection: PeerConnection, reason: CloseReason) -> None:
        """Handles a GOODBYE from either side, or a peer that has stopped answering."""
        self._context.emit_step(connection, ConnectionStep.CLOSING, text=reason.text)

    def ended(self, connection: PeerConnection, reason: CloseReason) -> None:
        """Handles a closed connection."""
        with self._traffic_lock:
            if self.connections.pop(connection.connection_id, None) is not None:
                self._ended_traffic.update(_traffic_of(connection))
        self._unauthenticated.pop(connection, None)
        peer_key = _peer_key(connection)
        if peer_key is not None:
            self._by_peer[peer_key].remove(connection)
            if not self._by_peer[peer_key]:
                del self._by_peer[peer_key]
        self._emit_end(connection, reason, is_authenticated=peer_key is not None)
        self.dialer.ended(connection, reason, peer_key)
        if not self.connections and self._on_closed is not None:
            self._on_closed()

    def traffic(self) -> Mapping[str, int]:
        """Returns the traffic of open and closed connections by column name of `sys.dm_broker_connections`; may be called from any thread.

        The totals never decrease.
        """
        with self._traffic_lock:
            totals = Counter(self._ended_traffic)
            for connection in list(self.connections.values()):
                totals.update(_traffic_of(connection))
        return totals

    def view_rows(self) -> Iterator[tuple[Any, ...]]:
        """Returns the rows of `sys.dm_broker_connections`, oldest connection first; may be called from any thread."""
        return (_row(connection) for connection in list(self.connections.values()))

    def set_paused(self, *, is_paused: bool) -> None:
        """Stops or resumes reading from all connections."""
        self._is_paused = is_paused
        for connection in list(self.connections.values()):
            if is_paused:
                connection.pause()
            else:
                connection.resume()

    def stop(self, on_closed: Callable[[], None]) -> None:
        """Stops dialling, and closes each connection once its queued rows are sent; calls `on_closed` when the last one is closed."""
        self._on_closed = on_closed
        for connection in self.connections.values():
            connection.discards_rows = self._is_paused  # rows received before the peer's GOODBYE
        self.set_paused(is_paused=False)
        self.dialer.stop()
        for connection in list(self.connections.values()):
            connection.leave(GoodbyeReason.STOPPING, "the instance is stopping")
        if not self.connections:
            on_closed()

    def cut(self) -> None:
        """Closes all connections immediately."""
        for connection in list(self.connections.values()):
            connection.cut()

    def _add_dialled(self, link: SecureLink, address: str) -> PeerConnection:
        connection = self._new(link, address)
        self.connections[connection.connection_id] = connection
        return connection

    def _new(self, link: SecureLink, address: str | None) -> PeerConnection:
        context = self._context
        return PeerConnection(
            self,
            link,
            listener=context.listener,
            connection_id=context.new_id(),
            address=address,
            limits=context.limits,
        )

    def _greeted(self, connection: PeerConnection, *, is_self: bool) -> None:
        self._unauthenticated.pop(connection, None)
        peer_key = _peer_key(connection)
        if peer_key is None:
            return
        self._by_peer.setdefault(peer_key, []).append(connection)
        step = ConnectionStep.ACCEPT if connection.is_accept else ConnectionStep.CONNECTED
        label = _peer_label(connection)
        self._context.emit_step(connection, step, text=label and f"the peer is {label}")
        if self._is_paused:
            connection.pause()
        if is_self:
            connection.set_close_reason(
                CloseReason("the address belongs to this instance", goodbye=GoodbyeReason.ITSELF)
            )
            self.dialer.own_address_reached(connection)
            return
        self.dialer.greeted(connection, peer_key)
        self._arbitrate(connection, peer_key)
        if connection.is_accept and peer_key[1] is not None:
            self._enforce_principal_limit(peer_key[1])

    def _enforce_principal_limit(self, principal: str) -> None:
        """Closes the oldest connections that one principal has dialled beyond its limit, counting all instance ids that it states."""
        accepted = [each for each in self.connections.values() if each.is_accept]
        dialled = [each for each in accepted if each.peer is not None and each.peer.principal == principal]
        for oldest in dialled[: -self._per_principal_max]:
            oldest.cut()

    def _arbitrate(self, connection: PeerConnection, peer_key: PeerKey) -> None:
        """Keeps one connection for each pair of instances."""
        for rival in [each for each in self._by_peer[peer_key] if each is not connection and each.is_usable]:
            decision = self._arbitrate_pair(rival, connection)
            if decision is KeptConnection.SECOND:
                self._supersede(rival, connection)
            elif decision is KeptConnection.FIRST:
                self._supersede(connection, rival)
                rival.probe()
        # A peer that keeps dialling without closing its connections or answering GOODBYE keeps only a few connections.
        for older in [each for each in self._by_peer[peer_key] if each.is_usable][:-_USABLE_PER_PEER_MAX]:
            self._supersede(older, connection)
        for oldest in self._by_peer[peer_key][:-_CONNECTIONS_PER_PEER_MAX]:
            oldest.cut()

    def _arbitrate_pair(self, first: PeerConnection, second: PeerConnection) -> KeptConnection:
        first_identity, second_identity = first.link.peer_identity, second.link.peer_identity
        if first_identity is None or second_identity is None:
            return KeptConnection.BOTH
        return choose_connection(
            self._context.own,
            EstablishedConnection(first_identity, first.is_accept),
            EstablishedConnection(second_identity, second.is_accept),
        )

    def _supersede(self, superseded: PeerConnection, kept: PeerConnection) -> None:
        if not (superseded.is_usable and kept.is_usable):
            return
        self.dialer.move(superseded, kept)
        superseded.leave(GoodbyeReason.SUPERSEDED, "another connection between the same two instances is kept")

    def _emit_end(self, connection: PeerConnection, reason: CloseReason, *, is_authenticated: bool) -> None:
        step = ConnectionStep.CLOSED
        if not is_authenticated:
            step = ConnectionStep.RECEIVE_IO_ERROR if connection.is_accept else ConnectionStep.CONNECT_FAILED
        elif reason.error:
            text = f"{_peer_label(connection)}: {reason.text}"
            self._context.emit_step(connection, ConnectionStep.RECEIVE_IO_ERROR, error=reason.error, text=text)
        is_repeated = not connection.is_accept and self.dialer.has_failed_before(connection, reason)
        self._context.emit_step(connection, step, error=reason.error, text=reason.text, is_repeated=is_repeated)


def _peer_key(connection: PeerConnection) -> PeerKey | None:
    return None if connection.peer is None else connection.peer.key


def _peer_label(connection: PeerConnection) -> str:
    return "" if connection.peer is None else connection.peer.label


_NEW: Final = (0, "INITIAL")
_WAIT_LOGIN: Final = (1, "WAIT LOGIN NEGOTIATE")
_WAIT_ARBITRATION: Final = (11, "WAIT ARBITRATION")
_ONLINE: Final = (12, "ONLINE")
_ERROR: Final = (13, "ERROR")
_NONE: Final = (0, "NONE")
_AES: Final = (3, "AES")


def _row(connection: PeerConnection) -> tuple[Any, ...]:
    peer = connection.peer
    return (
        connection.connection_id.bytes,
        connection.connection_id.bytes,  # a connection has one socket
        int(connection.state),
        connection.state.name,
        connection.connected_at,
        connection.logged_in_at,
        connection.link.channel.method,
        connection.link.channel.principal,
        None if peer is None else peer.name,
        connection.active_at,
        connection.is_accept,
        *_login(connection),
        None,
        *(_NONE if connection.link.channel.method is None else _AES),
        int(not connection.link.is_paused),
        connection.link.is_paused,
        int(connection.unsent_bytes > 0),
        connection.is_send_paused,
        *_traffic_of(connection).values(),
        None if peer is None else peer.instance_id,
    )


def _login(connection: PeerConnection) -> tuple[int, str]:
    if connection.state is ConnectionState.LOGGED_IN:
        return _ONLINE
    if connection.state is ConnectionState.CLOSED or connection.close_reason is not None:
        return _ERROR
    if connection.state is not ConnectionState.CONNECTED:
        return _NEW
    return _WAIT_ARBITRATION if connection.link.channel.is_open else _WAIT_LOGIN


def _traffic_of(connection: PeerConnection) -> dict[str, int]:
    """Returns the traffic by column name, in the order of the columns."""
    counters = connection.counters
    return {
        "total_bytes_sent": counters.bytes_sent,
        "total_bytes_received": counters.bytes_received,
        "total_fragments_sent": connection.link.sent_rows,
        "total_fragments_received": counters.fragments_received,
        "total_sends": counters.sends,
        "total_receives": counters.receives,
    }


ANSWER_INTERVAL: Final = 0.01
"""Minimum number of seconds between two answers, unless many queries wait."""


QUERIES_MAX: Final = 512
"""If this many queries wait, they are answered immediately; a connection with twice as many waiting queries is closed."""


class RoleAnswers:
    """Answers role queries of peers, in the endpoint's thread.

    An answer must not be older than its query, so each answer requires the database files to be read, and peers
    may query at any rate. Queries that arrive soon after an answer therefore wait, and are answered together.
    """

    def __init__(self, context: EndpointContext) -> None:
        self._context: Final = context
        self._queries: list[tuple[PeerConnection, bytes]] = []
        self._due: asyncio.TimerHandle | None = None
        self._answered_at = -math.inf

    def query_received(self, connection: PeerConnection, broker_instance: bytes) -> None:
        """Handles the role query of a peer."""
        self._queries.append((connection, broker_instance))
        if len(self._queries) >= QUERIES_MAX:
            self._answer_all()
        elif self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(max(loop.time(), self._answered_at + ANSWER_INTERVAL), self._answer_all)

    def _answer_all(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        queries, self._queries = self._queries, []
        call_listener(partial(self._answer, queries))
        self._answered_at = asyncio.get_running_loop().time()

    def _answer(self, queries: list[tuple[PeerConnection, bytes]]) -> None:
        roles = self._context.listener.mirroring_roles([broker_instance for _, broker_instance in queries])
        for (connection, broker_instance), (role, number) in zip(queries, roles, strict=True):
            with connection.guard:
                connection.link.reply_role(broker_instance, role, number)
        for connection in dict(queries):
            connection.pump()
