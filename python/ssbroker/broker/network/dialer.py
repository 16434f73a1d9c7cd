"""Dials addresses: name lookup, connection attempts, retries."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeAlias

from ssbroker.broker import fork_safety
from ssbroker.broker.network.addresses import DialFilter, ip_of
from ssbroker.broker.network.connection import CONNECT_FAILED, NAME_UNKNOWN, CloseReason, PeerConnection, call_listener
from ssbroker.broker.network.destinations import Destination, Destinations
from ssbroker.broker.network.endpoint_context import EndpointContext
from ssbroker.broker.network.interfaces import PeerKey
from ssbroker.broker.network.secure_link import SecureLink
from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason, GoodbyeReason, MirroringRole

_NEXT_ADDRESS_DELAY: Final = 2.0
"""Seconds after which the next address of a name is tried."""
_LOOKUPS_MAX: Final = 256
_LOOKUPS: Final = threading.BoundedSemaphore(_LOOKUPS_MAX)
"""Limits the lookups in this process: if the name server does not answer, each lookup takes about half a minute."""

_Found: TypeAlias = list[Any]
"""The result of `socket.getaddrinfo`."""


class _Socket(socket.socket):
    """A socket that is closed after a fork."""

    def descriptors(self) -> Iterable[int]:
        """Returns the sockets to close after a fork."""
        return (self.fileno(),)


async def connect_socket(host: str, port: int, dial_filter: DialFilter) -> socket.socket:
    """Returns a socket connected to a lower-case host; if cancelled, leaves no socket open (which asyncio does not guarantee).

    Raises:
        OSError: No address of the host answers, the host name is unknown, or none of its addresses may be dialled.
    """
    if dial_filter.refuses(host):
        raise PermissionError(_dial_only_message(host))
    found: _Found = _numeric(host, port) or await _look_up(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    if not dial_filter.permits_name(host):
        found = [each for each in found if dial_filter.permits_ip(str(each[4][0]))]
        if not found:
            raise PermissionError(_dial_only_message(host))
    return await _connect_first(found)


def _dial_only_message(host: str) -> str:
    return f"{host} is not allowed by dial_only"


def _numeric(host: str, port: int) -> _Found:
    """Returns the address without a lookup; an empty list for a name."""
    if ip_of(host) is None:
        return []
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


async def _look_up(look: Callable[[], _Found]) -> _Found:
    """Looks up a name in a separate thread, so that neither other lookups nor the end of the process wait for it."""
    if not _LOOKUPS.acquire(blocking=False):
        raise OSError(f"the name cannot be looked up: {_LOOKUPS_MAX} other lookups are running, which is the maximum")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Found] = loop.create_future()

    def set_answer(found: _Found | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found or [])

    def work() -> None:
        found: _Found | None = None
        failed: Exception | None = None
        try:
            found = look()
        except (OSError, ValueError) as error:
            failed = error
        finally:
            _LOOKUPS.release()
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(set_answer, found, failed)
            except RuntimeError:  # the event loop was closed meanwhile
                return

    try:
        threading.Thread(target=work, name="ssbroker name lookup", daemon=True).start()
    except RuntimeError as error:
        _LOOKUPS.release()
        raise OSError(f"the name cannot be looked up: {error}") from error
    return await answer


async def _connect_first(found: _Found) -> socket.socket:
    loop = asyncio.get_running_loop()
    for left, (family, kind, protocol, _, address) in zip(reversed(range(len(found))), found, strict=True):
        try:
            with ExitStack() as stack:
                opened = stack.enter_context(_Socket(family, kind, protocol))
                fork_safety.close_after_fork(opened)
                opened.setblocking(False)
                async with asyncio.timeout(_NEXT_ADDRESS_DELAY if left else None):
                    await loop.sock_connect(opened, address)
                stack.pop_all()
                return opened
        except OSError:
            if not left:
                raise
    raise OSError("the host name has no address")


class DialSlots:
    """A limited number of slots; callers without a slot wait in order.

    Examples:
        >>> slots, started = DialSlots(1), []
        >>> for name in ("a", "b", "c"):
        ...     slots.acquire(name, lambda name=name: started.append(name) is None)
        >>> started
        ['a']
        >>> slots.release("a"), slots.release("a"), started
        (None, None, ['a', 'b'])
    """

    def __init__(self, slots: int) -> None:
        self._slots: Final = slots
        self._holders: Final[set[Hashable]] = set()
        self._waiting: Final[deque[tuple[Hashable, Callable[[], bool]]]] = deque()

    def acquire(self, holder: Hashable, begin: Callable[[], bool]) -> None:
        """Calls `begin` when a slot is free; `begin` returns whether it needs the slot."""
        self._waiting.append((holder, begin))
        self._start_waiting()

    def release(self, holder: Hashable) -> None:
        """Releases the slot of a holder, if it has one."""
        self._holders.discard(holder)
        self._start_waiting()

    def clear(self) -> None:
        """Drops all waiting callers."""
        self._waiting.clear()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._holders) < self._slots:
            holder, begin = self._waiting.popleft()
            if begin():
                self._holders.add(holder)


class Dialer:
    """Dials the addresses to which rows are sent. Its methods run in the endpoint's thread.

    Args:
        context: The state that the parts of an endpoint share.
        begin: Creates and registers the connection for an address that is about to be dialled.
        usable_connection: Returns the usable connection to a peer, if any.

    Attributes:
        destinations: The addresses to which rows are sent.
    """

    def __init__(
        self,
        context: EndpointContext,
        *,
        begin: Callable[[SecureLink, str], PeerConnection],
        usable_connection: Callable[[PeerKey], PeerConnection | None],
    ) -> None:
        self.destinations: Final = Destinations(context)
        self._context: Final = context
        self._begin: Final = begin
        self._usable_connection: Final = usable_connection
        self._dial_slots: Final = DialSlots(context.limits.max_unrouted_dials)
        self._by_connection: Final[dict[PeerConnection, list[Destination]]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_stopped = False

    def send_or_dial(self, destination: Destination) -> None:
        """Sends the pending rows of an address, or dials it."""
        self.destinations.forget_idle()
        if destination.connection is not None and destination.connection.is_usable:
            self._send_queries(destination)
            destination.connection.pump()
        elif (
            destination.has_pending
            and destination.connection is None
            and destination.retry_timer is None
            and not destination.is_dialling
            and not self._is_stopped
        ):
            known = None if destination.peer_key is None else self._usable_connection(destination.peer_key)
            if known is not None:
                self._attach(destination, known)
            else:
                destination.is_dialling = True
                begin = partial(self._dial, destination)
                if self.destinations.is_unrouted(destination.address):
                    self._dial_slots.acquire(destination, begin)
                else:
                    begin()

    def dial(self, address: str) -> None:
        """Connects to an address, or reports again that it is connected."""
        destination = self.destinations.destination(address)
        connection = destination.connection
        if connection is not None and connection.is_usable and connection.peer is not None:
            call_listener(partial(self._context.listener.connected, address, connection.peer))
        else:
            destination.is_wanted = True
            self.send_or_dial(destination)

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for a mirroring role, now or once it is connected."""
        destination = self.destinations.destination(address)
        destination.role_queries.add(broker_instance)
        self.send_or_dial(destination)

    def greeted(self, connection: PeerConnection, peer_key: PeerKey) -> None:
        """Sends the rows that wait for a peer over the new connection to this peer."""
        for destination in self._by_connection.get(connection, ()):
            destination.peer_key = peer_key
            self._dial_slots.release(destination)
        known = [each for each in self.destinations.all() if each.peer_key == peer_key and each.connection is None]
        for destination in known:
            self._attach(destination, connection)

    def move(self, superseded: PeerConnection, kept: PeerConnection) -> None:
        """Moves the addresses of one connection to another."""
        for destination in list(self._by_connection.get(superseded, ())):
            if destination.connection is superseded:
                self._attach(destination, kept)

    def own_address_reached(self, connection: PeerConnection) -> None:
        """Handles a dialled connection whose peer is this instance."""
        for destination in self._by_connection.pop(connection, ()):
            self._dial_slots.release(destination)
            destination.is_dialling = False
            destination.discard()
            self._schedule_retry(destination)
            call_listener(partial(self._context.listener.own_address_reached, destination.address))

    def role_received(
        self, connection: PeerConnection, broker_instance: bytes, role: MirroringRole, number: int
    ) -> None:
        """Handles the reply to a role query."""
        for destination in list(self._by_connection.get(connection, ())):
            if broker_instance in destination.pending_queries:
                destination.pending_queries.discard(broker_instance)
                report = partial(
                    self._context.listener.role_received, destination.address, broker_instance, role, number
                )
                call_listener(report)

    def rows_dropped(self, connection: PeerConnection, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Reports to the listener why a peer does not acknowledge rows."""
        for destination in self._by_connection.get(connection, ()):
            call_listener(partial(self._context.listener.rows_dropped, destination.address, reasons))

    def ended(self, connection: PeerConnection, reason: CloseReason, peer_key: PeerKey | None) -> None:
        """Handles a closed connection."""
        for destination in self._by_connection.pop(connection, ()):
            self._dial_slots.release(destination)
            if destination.connection is connection or destination.is_dialling:
                destination.detach()
                destination.is_dialling = False
                self._ended(destination, connection, reason, peer_key)

    def has_failed_before(self, connection: PeerConnection, reason: CloseReason) -> bool:
        """Returns whether the previous dial of each address of a failed connection failed for the same reason."""
        destinations = self._by_connection.get(connection, ())
        return bool(destinations) and all(
            each.is_dialling and each.failure_reason == reason.text for each in destinations
        )

    def stop(self) -> None:
        """Stops dialling."""
        self._is_stopped = True
        self._dial_slots.clear()
        for task in self._tasks:
            task.cancel()
        for destination in self.destinations.all():
            if destination.retry_timer is not None:
                destination.retry_timer.cancel()

    def _ended(
        self, destination: Destination, connection: PeerConnection, reason: CloseReason, peer_key: PeerKey | None
    ) -> None:
        if self._is_stopped:
            return
        limits, since = self._context.limits, connection.logged_in_at
        is_steady = since is not None and self._context.clock() - since >= min(
            limits.stable_after, limits.link.idle_timeout
        )
        if is_steady or connection.counters.fragments_received:
            destination.failures = 0
        if reason.goodbye is GoodbyeReason.IDLE and peer_key is not None and is_steady:
            self.send_or_dial(destination)
        elif reason.goodbye is GoodbyeReason.SUPERSEDED and peer_key is not None:
            kept = self._usable_connection(peer_key)
            if kept is None:  # the kept connection is reported next
                destination.failures += 1
                self._schedule_retry(destination)
            else:
                self._attach(destination, kept)
        else:
            destination.failures += 1
            destination.failure_reason = reason.text
            destination.discard()
            self._schedule_retry(destination)
            call_listener(partial(self._context.listener.connection_failed, destination.address, reason.text))

    def _attach(self, destination: Destination, connection: PeerConnection) -> None:
        if destination.connection is not None:
            self._by_connection[destination.connection].remove(destination)
        destination.attach(connection)
        destinations = self._by_connection.setdefault(connection, [])
        if destination not in destinations:
            destinations.append(destination)
        if connection.peer is not None:
            call_listener(partial(self._context.listener.connected, destination.address, connection.peer))
        self._send_queries(destination)
        connection.pump()

    def _send_queries(self, destination: Destination) -> None:
        connection = destination.connection
        while connection is not None and connection.is_usable and destination.role_queries:
            broker_instance = destination.role_queries.pop()
            destination.pending_queries.add(broker_instance)
            with connection.guard:
                connection.link.query_role(broker_instance)

    def _schedule_retry(self, destination: Destination) -> None:
        wait = self._context.limits.dial_backoff(max(destination.failures, 1), jitter=self._context.random.random())
        loop = asyncio.get_running_loop()
        destination.retry_timer = loop.call_later(wait / SECOND, self._retry, destination)

    def _retry(self, destination: Destination) -> None:
        destination.stop_waiting()
        self.send_or_dial(destination)

    def _dial(self, destination: Destination) -> bool:
        """Dials unless a connection was found in the meantime; returns whether it dials."""
        if self._is_stopped or not destination.is_dialling:
            return False
        loop = asyncio.get_running_loop()
        link = SecureLink(
            self._context.channel(is_accept=False),
            own=self._context.own,
            limits=self._context.limits,
            now=int(loop.time() * SECOND),
            sent_by_priority=self._context.sent_by_priority,
        )
        connection = self._begin(link, destination.address)
        self._by_connection[connection] = [destination]
        self._context.emit_step(connection, ConnectionStep.CONNECTING)
        task = loop.create_task(self._open(connection, destination.host, destination.port))
        self._tasks.add(task)
        task.add_done_callback(partial(self._opened, connection))
        return True

    def _opened(self, connection: PeerConnection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before its first step
            connection.lost(CloseReason("the instance is stopping"))
        elif (error := task.exception()) is not None:  # such as an invalid host name
            connection.lost(CloseReason(f"the dial failed: {error}", CONNECT_FAILED))

    async def _open(self, connection: PeerConnection, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._context.limits.login_timeout / SECOND):
                await loop.create_connection(
                    lambda: connection, sock=await connect_socket(host, port, self._context.dial_filter)
                )
        except socket.gaierror as error:
            connection.lost(CloseReason(f"the host name {host} cannot be resolved: {error.strerror}", NAME_UNKNOWN))
        except TimeoutError:
            connection.lost(
                CloseReason(
                    f"the dial timed out after {self._context.limits.login_timeout / SECOND:g} s", CONNECT_FAILED
                )
            )
        except OSError as error:
            connection.lost(CloseReason(f"the dial failed: {_reason(error)}", CONNECT_FAILED))


def _reason(error: OSError) -> str:
    """Returns why a connection failed; asyncio replaces the operating system's text, such as "Connection refused"."""
    text = error.strerror or str(error)
    if error.errno and text.startswith("Connect call failed"):
        return os.strerror(error.errno).lower()
    return text
