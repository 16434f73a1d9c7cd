"""The network endpoint of an instance: listens, dials, and manages all connections in one thread; others may send."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

import pyarrow as pa

from ssbroker._text import host_and_port
from ssbroker.broker import process_locks
from ssbroker.broker.network.connection import LOGIN_REFUSED, READ_BYTES, CloseReason, ConnectionState, PeerConnection
from ssbroker.broker.network.destinations import Destination, PeerKey, host_of
from ssbroker.broker.network.dialer import Dialer
from ssbroker.broker.network.endpoint_setup import LOGGER, EndpointSetup
from ssbroker.broker.network.rate_limiter import RateLimiter
from ssbroker.broker.network.secure_link import SecureLink
from ssbroker.exceptions import EndpointError
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.storage import Key
from ssbroker.protocol.wire.frames import DropReason, GoodbyeReason, check_rows
from ssbroker.protocol.wire.link import (
    EstablishedConnection,
    FragmentsArrived,
    KeptConnection,
    LinkEvent,
    PeerGreeted,
    RoleQuery,
    RoleReply,
    RowsDropped,
    choose_connection,
)

ANSWER_INTERVAL: Final = 0.01
"""Minimum seconds between two answers, unless many queries wait."""
QUERIES_MAX: Final = 512
"""So many queries are answered immediately: a connection with twice as many unanswered queries is closed."""


class RoleAnswers:
    """Answers role queries of peers, in the endpoint's thread.

    An answer must not be older than its query, so each needs a look at the files, and peers query as fast as they like. Queries soon after
    an answer therefore wait, and are answered together.
    """

    def __init__(self, setup: EndpointSetup) -> None:
        self._setup: Final = setup
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
        self._setup.call_listener(partial(self._answer, queries))
        self._answered_at = asyncio.get_running_loop().time()

    def _answer(self, queries: list[tuple[PeerConnection, bytes]]) -> None:
        roles = self._setup.listener.mirroring_roles([broker_instance for _, broker_instance in queries])
        for (connection, broker_instance), (role, number) in zip(queries, roles, strict=True):
            with connection.guard:
                connection.link.reply_role(broker_instance, role, number)
        for connection in dict(queries):
            connection.pump()


class TrafficCounters:
    """Counts traffic by column name of `sys.dm_broker_connections`; totals never decrease, in any thread."""

    def __init__(self) -> None:
        self._lock: Final = threading.RLock()
        self._ended: Final[Counter[str]] = Counter()

    def remove(self, connections: dict[uuid.UUID, PeerConnection], connection: PeerConnection) -> None:
        """Removes a closed connection and keeps its traffic."""
        with self._lock:
            if connections.pop(connection.connection_id, None) is not None:
                self._ended.update(_traffic_of(connection))

    def totals(self, connections: Mapping[uuid.UUID, PeerConnection]) -> Mapping[str, int]:
        """Returns the traffic of open and closed connections."""
        with self._lock:
            totals = Counter(self._ended)
            for connection in list(connections.values()):
                totals.update(_traffic_of(connection))
        return totals


def _traffic_of(connection: PeerConnection) -> dict[str, int]:
    counters = connection.counters
    return {
        "total_bytes_sent": counters.bytes_sent,
        "total_bytes_received": counters.bytes_received,
        "total_fragments_sent": connection.link.sent_rows,
        "total_fragments_received": counters.fragments_received,
        "total_sends": counters.sends,
        "total_receives": counters.receives,
    }


_USABLE_PER_PEER_MAX: Final = 4
_CONNECTIONS_PER_PEER_MAX: Final = 16


class ConnectionManager:
    """All connections of an endpoint; its methods run in the endpoint's thread.

    Attributes:
        buffer: The buffer that sockets are read into, one at a time.
        connections: All connections by id, oldest first.
        dialer: Dials the addresses that rows are sent to.
        refusals: How many connections were closed because their address dials too often.
        traffic: The traffic of connections.
    """

    def __init__(self, setup: EndpointSetup) -> None:
        self._setup: Final = setup
        self._roles: Final = RoleAnswers(setup)
        self._by_peer: Final[dict[PeerKey, list[PeerConnection]]] = {}
        self._unauthenticated: Final[dict[PeerConnection, None]] = {}
        self._unauthenticated_max: Final = setup.limits.unauthenticated_limit()
        self._per_principal_max: Final = setup.limits.connections_per_principal_limit()
        limits = setup.limits
        self._rate_limiter: Final = RateLimiter(burst=limits.dial_burst, per_second=limits.dials_per_second)
        self._rate_message: Final = (
            f"the peer opens connections too often: one address may dial {limits.dial_burst} connections at once and"
            f" {limits.dials_per_second} a second"
        )
        self.refusals = 0
        self.traffic: Final = TrafficCounters()
        self._is_paused = False
        self._discards_rows = False
        self._on_closed: Callable[[], None] | None = None
        self.buffer: Final = memoryview(bytearray(READ_BYTES))
        self.connections: Final[dict[uuid.UUID, PeerConnection]] = {}
        self.dialer: Final = Dialer(setup, begin=self._add_dialled, usable_connection=self.usable_connection)

    def now(self) -> int:
        """Returns the time in microseconds since 1970."""
        return self._setup.clock()

    def accept(self) -> PeerConnection:
        """Returns a new connection for a socket that a peer has dialled; it may never be connected."""
        link = SecureLink(
            self._setup.channel(is_accept=True),
            own=self._setup.own,
            is_accept=True,
            limits=self._setup.limits,
            now=int(asyncio.get_running_loop().time() * SECOND),
            sent_by_priority=self._setup.sent_by_priority,
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
        """Returns the newest usable connection to a peer: a peer that dials twice has a reason. None if there is none."""
        return next((each for each in reversed(self._by_peer.get(peer_key, [])) if each.is_usable), None)

    def event_received(self, connection: PeerConnection, event: LinkEvent) -> None:
        """Handles an event of a connection."""
        peer = connection.peer
        match event:
            case PeerGreeted(is_self=is_self):
                self._greeted(connection, is_self=is_self)
            case FragmentsArrived(rows=rows) if peer is not None and not self._discards_rows:
                connection.counters.fragments_received += rows.num_rows
                self._setup.call_listener(partial(self._setup.listener.rows_received, peer, rows))
            case RoleQuery(broker_instance=broker_instance):
                self._roles.query_received(connection, broker_instance)
            case RoleReply(broker_instance=broker_instance, role=role, number=number):
                self.dialer.role_received(connection, broker_instance, role, number)
            case RowsDropped(reasons=reasons):
                self.dialer.rows_dropped(connection, reasons)

    def report_drops(self, instance_id: bytes, reasons: Mapping[Key, DropReason]) -> None:
        """Tells a connected instance why its rows are not acknowledged."""
        for peer_key in self._by_peer:
            if peer_key[0] == instance_id and (connection := self.usable_connection(peer_key)) is not None:
                with connection.guard:
                    connection.link.report_drops(reasons)
                connection.pump()

    def closing(self, connection: PeerConnection, reason: CloseReason) -> None:
        """Handles a GOODBYE of either side, or a silent peer."""
        self._setup.emit_step(connection, ConnectionStep.CLOSING, text=reason.text)

    def ended(self, connection: PeerConnection, reason: CloseReason) -> None:
        """Handles a closed connection."""
        self.traffic.remove(self.connections, connection)
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

    def pause(self, *, is_paused: bool) -> None:
        """Stops or resumes reading from all connections."""
        self._is_paused = is_paused
        for connection in list(self.connections.values()):
            if is_paused:
                connection.pause()
            else:
                connection.resume()

    def stop(self, on_closed: Callable[[], None]) -> None:
        """Dials no more, and ends all connections after their waiting rows; calls `on_closed` when the last has ended."""
        self._on_closed = on_closed
        self._discards_rows = self._is_paused  # rows before their GOODBYE are discarded; they are sent again (P17)
        self.pause(is_paused=False)
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
        return PeerConnection(
            self, link, connection_id=self._setup.new_id(), address=address, limits=self._setup.limits
        )

    def _greeted(self, connection: PeerConnection, *, is_self: bool) -> None:
        self._unauthenticated.pop(connection, None)
        peer_key = _peer_key(connection)
        if peer_key is None:
            return
        self._by_peer.setdefault(peer_key, []).append(connection)
        step = ConnectionStep.ACCEPT if connection.is_accept else ConnectionStep.CONNECTED
        self._setup.emit_step(connection, step, text=_peer_label(connection))
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
        """Closes the oldest connections that one principal has dialled beyond its limit, whatever instance ids it states."""
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
        # A peer that keeps dialling without closing its connections or answering GOODBYE keeps only a few.
        for older in [each for each in self._by_peer[peer_key] if each.is_usable][:-_USABLE_PER_PEER_MAX]:
            self._supersede(older, connection)
        for oldest in self._by_peer[peer_key][:-_CONNECTIONS_PER_PEER_MAX]:
            oldest.cut()

    def _arbitrate_pair(self, first: PeerConnection, second: PeerConnection) -> KeptConnection:
        first_identity, second_identity = first.link.peer_identity, second.link.peer_identity
        if first_identity is None or second_identity is None:
            return KeptConnection.BOTH
        return choose_connection(
            self._setup.own,
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
            self._setup.emit_step(connection, ConnectionStep.RECEIVE_IO_ERROR, error=reason.error, text=text)
        is_repeated = not connection.is_accept and self.dialer.has_failed_before(connection, reason)
        self._setup.emit_step(connection, step, error=reason.error, text=reason.text, is_repeated=is_repeated)


def _peer_key(connection: PeerConnection) -> PeerKey | None:
    return None if connection.peer is None else (connection.peer.instance_id, connection.peer.principal)


def _peer_label(connection: PeerConnection) -> str:
    return "" if connection.peer is None else connection.peer.label


_NEW: Final = (0, "INITIAL")
_WAIT_LOGIN: Final = (1, "WAIT LOGIN NEGOTIATE")
_WAIT_ARBITRATION: Final = (11, "WAIT ARBITRATION")
_ONLINE: Final = (12, "ONLINE")
_ERROR: Final = (13, "ERROR")
_NONE: Final = (0, "NONE")
_AES: Final = (3, "AES")


def rows(manager: ConnectionManager) -> Iterator[tuple[Any, ...]]:
    """Returns the rows of `sys.dm_broker_connections`, oldest connection first; may be called from any thread."""
    return (_row(connection) for connection in list(manager.connections.values()))


def _row(connection: PeerConnection) -> tuple[Any, ...]:
    counters, peer = connection.counters, connection.peer
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
        counters.bytes_sent,
        counters.bytes_received,
        connection.link.sent_rows,
        counters.fragments_received,
        counters.sends,
        counters.receives,
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


SEND_NOW_BYTES_MAX: Final = 64 << 10
"""The maximum number of bytes that are sent in the calling thread; encrypting more is worth another thread."""


def _send_now(destination: Destination) -> bool:
    """Sends the pending rows of an address, unless there are many or the endpoint's thread is needed; returns whether all were sent."""
    connection, (_, pending_bytes) = destination.connection, destination.outbox.pending
    if connection is None or pending_bytes > SEND_NOW_BYTES_MAX or not connection.send_now():
        return False
    return destination.outbox.is_empty  # otherwise, its connection was replaced just now


_BACKLOG: Final = 1024
_ACCEPT_BATCH: Final = 1
"""A larger backlog would let asyncio accept more sockets before their limits are checked, and retry as often when no file is left."""


class SocketEndpoint:
    """The network endpoint of an instance (`NetworkEndpoint`), with a thread for its connections.

    Args:
        setup: The identity, listener, credentials and limits of the endpoint.
        host: The host to listen on.
        port: The port; 0 for any free port.
    """

    def __init__(self, setup: EndpointSetup, *, host: str, port: int) -> None:
        self._setup: Final = setup
        self._host: Final = host
        self._port: Final = port
        self._manager: Final = ConnectionManager(setup)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._stopped: Final = asyncio.Event()
        self._lock: Final = threading.RLock()
        self._unsent: Final[set[Destination]] = set()
        self._started: Final[SimpleQueue[tuple[str, int] | OSError | ValueError | RuntimeError]] = SimpleQueue()
        self._thread: Final = threading.Thread(
            target=self._run, name=f"ssbroker {setup.own.name} endpoint", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        """See `NetworkEndpoint`."""
        return self._thread.is_alive()

    def start(self) -> tuple[str, int]:
        """See `NetworkEndpoint`."""
        process_locks.close_after_fork(self)
        self._thread.start()
        started = self._started.get()
        if isinstance(started, Exception):
            self._thread.join()
            # asyncio prefixes the reason with the address as a tuple.
            reason = str(getattr(started, "strerror", None) or started).rpartition("): ")[2]
            raise EndpointError(f"cannot listen on {host_and_port(self._host, self._port)}: {reason}") from started
        return started

    def send(self, address: str, rows: pa.Table) -> int:
        """See `NetworkEndpoint`."""
        check_rows(rows)
        destination, is_accepted, space = self._manager.dialer.addresses.put(address, rows)
        if is_accepted and not _send_now(destination):
            self._schedule_sending(destination)
        return space

    def dial(self, address: str) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.dialer.dial(address))

    def progress(self, address: str) -> tuple[int, int]:
        """See `NetworkEndpoint`."""
        return self._manager.dialer.addresses.progress(address)

    def refusal_reason(self, address: str) -> str | None:
        """See `NetworkEndpoint`."""
        return self._manager.dialer.addresses.refusal_reason(address)

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """See `NetworkEndpoint`."""
        self._manager.dialer.addresses.set_routed_addresses(addresses)

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.dialer.query_role(address, broker_instance))

    def report_drops(self, instance_id: bytes, reasons: Mapping[Key, DropReason]) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.report_drops(instance_id, reasons))

    def pause(self) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.pause(is_paused=True))

    def resume(self) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.pause(is_paused=False))

    @property
    def sent_by_priority(self) -> Mapping[int, int]:
        """See `NetworkEndpoint`."""
        return self._setup.sent_by_priority

    @property
    def pending(self) -> tuple[int, int]:
        """See `NetworkEndpoint`."""
        return self._manager.dialer.addresses.pending()

    @property
    def refusals(self) -> int:
        """See `NetworkEndpoint`."""
        return self._manager.refusals

    @property
    def traffic(self) -> Mapping[str, int]:
        """See `NetworkEndpoint`."""
        return self._manager.traffic.totals(self._manager.connections)

    def view_rows(self) -> Iterable[tuple[Any, ...]]:
        """See `NetworkEndpoint`."""
        return rows(self._manager)

    def close(self, timeout: float) -> None:
        """See `NetworkEndpoint`."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(self._stop, loop, timeout)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def manager(self) -> ConnectionManager:
        """All connections."""
        return self._manager

    def descriptors(self) -> Iterator[int]:
        """Returns the listening and connected sockets to close after a fork; dialled sockets register themselves."""
        if self._server is not None:
            yield from (listening.fileno() for listening in self._server.sockets)
        yield from (connection.descriptor for connection in list(self._manager.connections.values()))

    def _schedule_sending(self, destination: Destination) -> None:
        """Sends pending rows in the thread; many calls share one pass."""
        with self._lock:
            is_first = not self._unsent
            self._unsent.add(destination)
        if is_first:
            self._call(self._send_waiting)

    def _send_waiting(self) -> None:
        with self._lock:
            waiting = list(self._unsent)
            self._unsent.clear()
        for destination in waiting:
            self._manager.dialer.send_or_dial(destination)

    def _call(self, what: Callable[[], None]) -> None:
        """Calls a function soon, in the thread."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except (OSError, RuntimeError) as error:  # such as too many open files for the loop itself
            if self._loop is not None:
                LOGGER.exception("%s: the endpoint failed; all connections are closed", self._setup.own.name)
            self._started.put(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._log_loop_error)
        try:
            server = await loop.create_server(self._manager.accept, self._host, self._port, backlog=_ACCEPT_BATCH)
            self._server = server
            for listening in server.sockets:
                with listening.dup() as duplicate:
                    duplicate.listen(_BACKLOG)
        except (OSError, ValueError) as error:  # such as an invalid host name
            self._started.put(error)
            return
        with self._lock:
            self._loop = loop
        host, port, *_ = server.sockets[0].getsockname()
        self._started.put((host, port))
        await self._stopped.wait()

    def _log_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error that belongs to no connection, such as too many open files on accept."""
        name, message, now = self._setup.own.name, str(context["message"]), self._setup.clock()
        if self._setup.events.allows_line(message, level=logging.ERROR, source=name, now=now):
            error = context.get("exception")
            LOGGER.error("%s: %s: %s", name, message, error, exc_info=None if isinstance(error, OSError) else error)

    def _stop(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        """Stops listening, writes pending data, and aborts connections that are left after `timeout` seconds."""
        if self._server is not None:
            self._server.close()
        loop.call_later(timeout, self._manager.cut)
        self._manager.stop(self._stopped.set)
