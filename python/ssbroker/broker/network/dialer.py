"""Dials addresses: name lookup, retries, permitted networks, idle destinations."""

from __future__ import annotations

import asyncio
import logging
import random as randomness
import socket
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ssbroker._arguments import string_list
from ssbroker.broker import process_locks
from ssbroker.broker.network.connection import CONNECT_FAILED, NAME_UNKNOWN, CloseReason, PeerConnection, ip_of
from ssbroker.broker.network.interfaces import EndpointListener
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.secure_link import SecureLink
from ssbroker.broker.network.shared_outbox import SharedOutbox
from ssbroker.broker.network.tls import Channel, TlsChannel, TlsCredentials, UnencryptedChannel
from ssbroker.exceptions import OptionError
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep, EventLog
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.storage import Key
from ssbroker.protocol.wire.frames import DropReason, GoodbyeReason, OwnIdentity

_Network: TypeAlias = IPv4Network | IPv6Network


class DialFilter:
    """The hosts and networks that may be dialled.

    Args:
        entries: Networks (`10.0.0.0/8`), addresses, host names, and all names below a domain (`*.example.com`). If empty, everything may
            be dialled.

    Raises:
        OptionError: An entry is invalid.

    Examples:
        >>> dial_filter = DialFilter(["10.0.0.0/8", "*.example.com"])
        >>> [dial_filter.has_name(host) for host in ("shop.example.com", "example.com", "shop.example.org")]
        [True, False, False]
        >>> dial_filter.has_ip("10.1.2.3"), dial_filter.has_ip("192.0.2.1"), DialFilter([]).has_ip("192.0.2.1")
        (True, False, True)
        >>> DialFilter(["10.0.0.1/8"])
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: dial_only: '10.0.0.1/8' is not a valid network: 10.0.0.1/8 has host bits set
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._names: Final[set[str]] = set()
        self._domains: Final[list[str]] = []
        self._networks: Final[list[_Network]] = []
        for entry in string_list(entries, name="dial_only"):
            self._add(entry)
        self._is_everything: Final = not entries

    def _add(self, entry: str) -> None:
        network = _network(entry)
        if network is not None:
            self._networks.append(network)
        elif entry.startswith("*.") and _is_name(entry[2:]):
            self._domains.append(entry[1:].lower())
        elif _is_name(entry):
            self._names.add(entry.lower())
        else:
            raise OptionError(f"dial_only: expected a network, an address, a host name or *.DOMAIN, got {entry!r:.80}")

    def has_name(self, host: str) -> bool:
        """Returns whether a lower-case host may be dialled, whatever address its name has."""
        return self._is_everything or host in self._names or any(host.endswith(domain) for domain in self._domains)

    def has_ip(self, host: str) -> bool:
        """Returns whether an IP address may be dialled; False for a name."""
        if self._is_everything:
            return True
        ip = ip_of(host)
        return ip is not None and any(ip in network for network in self._networks)

    def refuses(self, host: str) -> bool:
        """Returns whether a lower-case host may not be dialled, as far as known before its name is looked up."""
        if self.has_name(host):
            return False
        if ip_of(host) is None:
            return not self._networks
        return not self.has_ip(host)


def _network(entry: str) -> _Network | None:
    try:
        return ip_network(entry)
    except ValueError as error:
        if "/" in entry:
            raise OptionError(f"dial_only: {entry!r:.80} is not a valid network: {error}") from error
        return None


def _is_name(entry: str) -> bool:
    return bool(entry) and all(part and part.replace("-", "").replace("_", "").isalnum() for part in entry.split("."))


_NEXT_ADDRESS_DELAY: Final = 2.0
"""Seconds after which the next address of a name is tried."""
_LOOKUPS_MAX: Final = 256
_LOOKUPS: Final = threading.BoundedSemaphore(_LOOKUPS_MAX)
"""Limits the look-ups of this process: if the name server does not answer, each takes about half a minute."""

_Found: TypeAlias = list[Any]
"""The result of `socket.getaddrinfo`."""


class _Socket(socket.socket):
    """A socket that is closed after a fork."""

    def descriptors(self) -> Iterable[int]:
        """Returns the sockets to close after a fork."""
        return (self.fileno(),)


async def connect_socket(host: str, port: int, dial_filter: DialFilter) -> socket.socket:
    """Returns a connected socket; if cancelled, it leaves no socket open, which asyncio does not guarantee.

    Raises:
        OSError: No address answers, the lower-case host name is unknown, or none of its addresses may be dialled.
    """
    if dial_filter.refuses(host):
        raise PermissionError(_dial_only_message(host))
    found: _Found = _numeric(host, port) or await _look_up(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    if not dial_filter.has_name(host):
        found = [each for each in found if dial_filter.has_ip(str(each[4][0]))]
        if not found:
            raise PermissionError(_dial_only_message(host))
    return await _connect_first(found)


def _dial_only_message(host: str) -> str:
    return f"{host} is not allowed by dial_only"


def _numeric(host: str, port: int) -> _Found:
    """Returns the address without a look-up; nothing for a name."""
    if ip_of(host) is None:
        return []
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


async def _look_up(look: Callable[[], _Found]) -> _Found:
    """Looks up a name in a thread of its own, so that neither other names nor the end of the process wait for it."""
    if not _LOOKUPS.acquire(blocking=False):
        raise OSError(f"too many name look-ups at the same time; at most {_LOOKUPS_MAX} are allowed")
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
            except RuntimeError:  # it was closed meanwhile
                return

    threading.Thread(target=work, name="ssbroker name look-up", daemon=True).start()
    return await answer


async def _connect_first(found: _Found) -> socket.socket:
    loop = asyncio.get_running_loop()
    for left, (family, kind, protocol, _, address) in zip(reversed(range(len(found))), found, strict=True):
        opened = _Socket(family, kind, protocol)
        process_locks.close_after_fork(opened)
        try:
            opened.setblocking(False)
            async with asyncio.timeout(_NEXT_ADDRESS_DELAY if left else None):
                await loop.sock_connect(opened, address)
        except OSError:
            opened.close()
            if not left:
                raise
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise OSError("the host name has no address")


PeerKey: TypeAlias = tuple[bytes, str | None]
"""An instance id and the principal that states it: the same id with another certificate is another instance."""


class Destination:
    """The state of one address. It belongs to the endpoint's thread; others use the outbox, and read `connection`.

    Attributes:
        address: The address, in the form of routes.
        outbox: The rows that wait to be sent there.
        connection: The connection for its rows; None if there is none.
        peer_key: The peer that answered there last.
        role_queries: The broker ids whose roles are to be queried.
        pending_queries: The broker ids that were queried and not answered yet.
        failures: The number of failures in a row.
        failure_reason: Why it failed last; None after a success.
        is_dialled: Whether a connection is being dialled for it and has not answered yet.
        is_wanted: Whether it is to be connected although nothing waits to be sent.
        retry: The timer of the wait after a failure.
    """

    __slots__ = (
        "address",
        "connection",
        "failure_reason",
        "failures",
        "is_dialled",
        "is_wanted",
        "outbox",
        "peer_key",
        "pending_queries",
        "retry",
        "role_queries",
    )

    def __init__(self, address: str, *, outbox_bytes: int, on_drained: Callable[[], None], first: int = 0) -> None:
        self.address: Final = address
        self.outbox: Final = SharedOutbox(outbox_bytes, on_drained=on_drained, first=first)
        self.connection: PeerConnection | None = None
        self.peer_key: PeerKey | None = None
        self.role_queries: Final[set[bytes]] = set()
        self.pending_queries: Final[set[bytes]] = set()
        self.failures = 0
        self.failure_reason: str | None = None
        self.is_dialled = False
        self.is_wanted = False
        self.retry: asyncio.TimerHandle | None = None

    @property
    def host(self) -> str:
        """The host of the address.

        Examples:
            >>> Destination("TCP://[::1]:4022", outbox_bytes=1, on_drained=print).host
            '::1'
        """
        return host_of(self.address)

    @property
    def port(self) -> int:
        """The port of the address.

        Examples:
            >>> Destination("TCP://[::1]:4022", outbox_bytes=1, on_drained=print).port
            4022
        """
        return int(self.address.rpartition(":")[2])

    @property
    def has_pending(self) -> bool:
        """Whether rows or role queries wait to be sent, or for a connection."""
        return not self.outbox.is_empty or bool(self.role_queries) or self.is_wanted

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is being sent, dialled or retried."""
        return self.has_pending or self.is_dialled or self.connection is not None or self.retry is not None

    def attach(self, connection: PeerConnection) -> None:
        """Sends its rows over a connection whose peer has sent HELLO."""
        self.detach()
        self.connection = connection
        self.is_dialled = self.is_wanted = False
        self.failure_reason = None
        with connection.guard:
            connection.link.outboxes.append(self.outbox)
        self.stop_waiting()

    def detach(self) -> None:
        """Removes its connection; unanswered role queries wait again."""
        if self.connection is not None:
            with self.connection.guard:
                if self.outbox in self.connection.link.outboxes:
                    self.connection.link.outboxes.remove(self.outbox)
        self.connection = None
        self.role_queries.update(self.pending_queries)
        self.pending_queries.clear()

    def stop_waiting(self) -> None:
        """Ends the wait after a failure."""
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
            self.outbox.unblock()

    def discard(self) -> None:
        """Discards pending rows, and accepts none until the wait has ended."""
        self.outbox.block()
        self.outbox.clear()
        self.role_queries.clear()
        self.pending_queries.clear()
        self.is_wanted = False


def host_of(address: str) -> str:
    """Returns the host of a normalized address, an IPv6 address without brackets.

    Examples:
        >>> host_of("TCP://[::1]:4022"), host_of("TCP://shop.example.com:4022")
        ('::1', 'shop.example.com')
    """
    return address.removeprefix("TCP://").rpartition(":")[0].strip("[]")


LOGGER: Final = logging.getLogger("ssbroker.broker")
_TEXT_MAX: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSetup:
    """What the parts of an endpoint share.

    Attributes:
        own: The identity of this instance.
        listener: Receives the events of connections.
        credentials: The TLS credentials; None for unencrypted connections.
        limits: Time and size limits.
        events: Where events are emitted.
        clock: Returns the time in microseconds since 1970.
        random: The source of ids and jitter.
        sent_by_priority: The number of rows of each priority that were written to connections.
        dial_filter: The hosts and networks that may be dialled.
    """

    own: OwnIdentity
    listener: EndpointListener
    credentials: TlsCredentials | None
    limits: EndpointLimits
    events: EventLog
    clock: Callable[[], int]
    random: randomness.Random
    sent_by_priority: Counter[int] = field(default_factory=Counter)
    dial_filter: DialFilter = field(default_factory=lambda: DialFilter(()))

    def channel(self, *, is_accept: bool) -> Channel:
        """Returns the channel of a new connection."""
        if self.credentials is None:
            return UnencryptedChannel()
        return TlsChannel(self.credentials.contexts, is_accept=is_accept)

    def new_id(self) -> uuid.UUID:
        """Returns a random id."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def emit_step(
        self,
        connection: PeerConnection,
        step: ConnectionStep,
        *,
        error: int = 0,
        text: str = "",
        is_repeated: bool = False,
    ) -> None:
        """Emits the event of a connection's step.

        Text from the peer is shortened, and its unprintable characters are replaced so that it cannot forge log lines. `is_repeated` marks
        a dial that failed as the one before.
        """
        printable = "".join(character if character.isprintable() else " " for character in text)[:_TEXT_MAX]
        event = ConnectionEvent(
            at=self.clock(),
            connection_id=connection.connection_id,
            step=step,
            address=connection.address,
            error=error,
            text=printable,
            is_repeated=is_repeated,
        )
        self.events.emit(event)

    def call_listener(self, what: Callable[[], None]) -> None:
        """Calls the listener; its exceptions are logged and do not affect connections."""
        try:
            what()
        except Exception:
            LOGGER.exception("an event of a connection could not be processed")


KNOWN_MAX: Final = 1024
"""The number of known addresses above which idle ones are forgotten."""


def route_addresses(routes: pa.Table) -> Collection[str]:
    """Returns the normalized addresses that routes (`schemas.ROUTES`) name, including those of mirrors."""
    columns = [routes[name].unique().to_pylist() for name in ("address", "mirror_address")]
    return frozenset(address for column in columns for address in column if address is not None)


class Destinations:
    """The addresses that are sent to. All methods but `forget_idle` may be called from any thread."""

    def __init__(self, setup: EndpointSetup) -> None:
        self._setup: Final = setup
        self._lock: Final = threading.RLock()
        self._destinations: Final[dict[str, Destination]] = {}
        self._routed: Collection[str] = frozenset()
        self._forget_beyond = KNOWN_MAX
        self._first_row = 0

    def all(self) -> list[Destination]:
        """Returns all known addresses."""
        with self._lock:
            return list(self._destinations.values())

    def destination(self, address: str) -> Destination:
        """Returns the state of an address: the same object as long as the address is in use."""
        with self._lock:
            return self._destination(address)

    def put(self, address: str, rows: pa.Table) -> tuple[Destination, bool, int]:
        """Queues rows for an address; returns its state and the result of `SharedOutbox.put`."""
        with self._lock:  # so that the address is not forgotten in between
            destination = self._destination(address)
            return (destination, *destination.outbox.put(rows))

    def progress(self, address: str) -> tuple[int, int]:
        """Returns the `SharedOutbox.progress` of an address."""
        with self._lock:
            found = self._destinations.get(address)
            return (self._first_row, self._first_row) if found is None else found.outbox.progress

    def pending(self) -> tuple[int, int]:
        """Returns the number of rows that wait or are being written, and the bytes of those that wait."""
        with self._lock:
            each = [destination.outbox.pending for destination in self._destinations.values()]
        return sum(rows for rows, _ in each), sum(size for _, size in each)

    def refusal_reason(self, address: str) -> str | None:
        """Returns why nothing new may be sent to an address; None if it may."""
        if self._setup.dial_filter.refuses(host_of(address)):
            return "it is not allowed by dial_only"
        learnt_max = self._setup.limits.max_unrouted_addresses
        with self._lock:
            if address in self._routed or address in self._destinations or len(self._destinations) < learnt_max:
                return None
            learnt = sum(each.is_busy and each.address not in self._routed for each in self._destinations.values())
        return (
            f"limit of {learnt_max} addresses that no route names is reached; raise limits.max_unrouted_addresses"
            if learnt >= learnt_max
            else None
        )

    def is_learnt(self, address: str) -> bool:
        """Returns whether no route names an address, so that a peer has chosen it."""
        with self._lock:
            return address not in self._routed

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """Sets the addresses that routes name."""
        with self._lock:
            self._routed = addresses

    def forget_idle(self) -> None:
        """Forgets idle addresses if there are many; runs in the endpoint's thread."""
        with self._lock:
            if len(self._destinations) <= self._forget_beyond:
                return
            for address, destination in list(self._destinations.items()):
                if not destination.is_busy:
                    # Numbering continues above its rows, so that `progress` never decreases.
                    self._first_row = max(self._first_row, destination.outbox.progress[0])
                    del self._destinations[address]
            self._forget_beyond = max(KNOWN_MAX, 2 * len(self._destinations))

    def _destination(self, address: str) -> Destination:
        found = self._destinations.get(address)
        if found is None:
            found = self._destinations[address] = Destination(
                address,
                outbox_bytes=self._setup.limits.outbox_bytes,
                first=self._first_row,
                on_drained=partial(self._setup.call_listener, partial(self._setup.listener.outbox_drained, address)),
            )
        return found


class DialSlots:
    """A limited number of slots; callers without one wait in order.

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
        """Calls `begin` when a slot is free; it returns whether it needs the slot."""
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
    """Dials the addresses that are sent to; its methods run in the endpoint's thread.

    Args:
        setup: What the parts of an endpoint share.
        begin: Registers a connection that is about to be dialled.
        usable_connection: Returns the usable connection to a peer, if any.

    Attributes:
        addresses: The addresses that are sent to.
    """

    def __init__(
        self,
        setup: EndpointSetup,
        *,
        begin: Callable[[SecureLink, str], PeerConnection],
        usable_connection: Callable[[PeerKey], PeerConnection | None],
    ) -> None:
        self.addresses: Final = Destinations(setup)
        self._setup: Final = setup
        self._begin: Final = begin
        self._usable_connection: Final = usable_connection
        self._dial_slots: Final = DialSlots(setup.limits.max_unrouted_dials)
        self._by_connection: Final[dict[PeerConnection, list[Destination]]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_stopped = False

    def send_or_dial(self, destination: Destination) -> None:
        """Sends the pending rows of an address, or dials it."""
        self.addresses.forget_idle()
        if destination.connection is not None and destination.connection.is_usable:
            self._send_queries(destination)
            destination.connection.pump()
        elif (
            destination.has_pending
            and destination.connection is None
            and destination.retry is None
            and not destination.is_dialled
            and not self._is_stopped
        ):
            known = None if destination.peer_key is None else self._usable_connection(destination.peer_key)
            if known is not None:
                self._attach(destination, known)
            else:
                destination.is_dialled = True
                begin = partial(self._dial, destination)
                if self.addresses.is_learnt(destination.address):
                    self._dial_slots.acquire(destination, begin)
                else:
                    begin()

    def dial(self, address: str) -> None:
        """Connects to an address, or reports again that it is connected."""
        destination = self.addresses.destination(address)
        connection = destination.connection
        if connection is not None and connection.is_usable and connection.peer is not None:
            self._setup.call_listener(partial(self._setup.listener.connected, address, connection.peer))
        else:
            destination.is_wanted = True
            self.send_or_dial(destination)

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for a role, now or once it is connected."""
        destination = self.addresses.destination(address)
        destination.role_queries.add(broker_instance)
        self.send_or_dial(destination)

    def greeted(self, connection: PeerConnection, peer_key: PeerKey) -> None:
        """Sends the pending rows of a peer over its new connection."""
        for destination in self._by_connection.get(connection, ()):
            destination.peer_key = peer_key
            self._dial_slots.release(destination)
        known = [each for each in self.addresses.all() if each.peer_key == peer_key and each.connection is None]
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
            destination.is_dialled = False
            destination.discard()
            self._schedule_retry(destination)
            self._setup.call_listener(partial(self._setup.listener.own_address_reached, destination.address))

    def role_received(
        self, connection: PeerConnection, broker_instance: bytes, role: MirroringRole, number: int
    ) -> None:
        """Handles the reply to a role query."""
        for destination in list(self._by_connection.get(connection, ())):
            if broker_instance in destination.pending_queries:
                destination.pending_queries.discard(broker_instance)
                report = partial(self._setup.listener.role_received, destination.address, broker_instance, role, number)
                self._setup.call_listener(report)

    def rows_dropped(self, connection: PeerConnection, reasons: Mapping[Key, DropReason]) -> None:
        """Handles the reasons why a peer does not acknowledge rows."""
        for destination in self._by_connection.get(connection, ()):
            self._setup.call_listener(partial(self._setup.listener.rows_dropped, destination.address, reasons))

    def ended(self, connection: PeerConnection, reason: CloseReason, peer_key: PeerKey | None) -> None:
        """Handles a closed connection."""
        for destination in self._by_connection.pop(connection, ()):
            self._dial_slots.release(destination)
            if destination.connection is connection or destination.is_dialled:
                destination.detach()
                destination.is_dialled = False
                self._ended(destination, connection, reason, peer_key)

    def has_failed_before(self, connection: PeerConnection, reason: CloseReason) -> bool:
        """Returns whether the previous dials of a failed connection ended for the same reason."""
        destinations = self._by_connection.get(connection, ())
        return bool(destinations) and all(
            each.is_dialled and each.failure_reason == reason.text for each in destinations
        )

    def stop(self) -> None:
        """Dials no more."""
        self._is_stopped = True
        self._dial_slots.clear()
        for task in self._tasks:
            task.cancel()
        for destination in self.addresses.all():
            if destination.retry is not None:
                destination.retry.cancel()

    def _ended(
        self, destination: Destination, connection: PeerConnection, reason: CloseReason, peer_key: PeerKey | None
    ) -> None:
        if self._is_stopped:
            return
        limits, since = self._setup.limits, connection.logged_in_at
        is_steady = since is not None and self._setup.clock() - since >= min(
            limits.stable_after, limits.link.idle_timeout
        )
        if is_steady or connection.counters.fragments_received:
            destination.failures = 0
        if reason.goodbye is GoodbyeReason.IDLE and peer_key is not None and is_steady:
            self.send_or_dial(destination)
        elif reason.goodbye is GoodbyeReason.SUPERSEDED and peer_key is not None:
            kept = self._usable_connection(peer_key)
            if kept is None:  # it is about to be reported
                destination.failures += 1
                self._schedule_retry(destination)
            else:
                self._attach(destination, kept)
        else:
            destination.failures += 1
            destination.failure_reason = reason.text
            destination.discard()
            self._schedule_retry(destination)
            self._setup.call_listener(partial(self._setup.listener.connection_failed, destination.address, reason.text))

    def _attach(self, destination: Destination, connection: PeerConnection) -> None:
        if destination.connection is not None:
            self._by_connection[destination.connection].remove(destination)
        destination.attach(connection)
        destinations = self._by_connection.setdefault(connection, [])
        if destination not in destinations:
            destinations.append(destination)
        if connection.peer is not None:
            self._setup.call_listener(partial(self._setup.listener.connected, destination.address, connection.peer))
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
        wait = self._setup.limits.dial_backoff(max(destination.failures, 1), jitter=self._setup.random.random())
        loop = asyncio.get_running_loop()
        destination.retry = loop.call_later(wait / SECOND, self._retry, destination)

    def _retry(self, destination: Destination) -> None:
        destination.stop_waiting()
        self.send_or_dial(destination)

    def _dial(self, destination: Destination) -> bool:
        """Dials unless a connection was found meanwhile; returns whether it does."""
        if self._is_stopped or not destination.is_dialled:
            return False
        loop = asyncio.get_running_loop()
        link = SecureLink(
            self._setup.channel(is_accept=False),
            own=self._setup.own,
            is_accept=False,
            limits=self._setup.limits,
            now=int(loop.time() * SECOND),
            sent_by_priority=self._setup.sent_by_priority,
        )
        connection = self._begin(link, destination.address)
        self._by_connection[connection] = [destination]
        self._setup.emit_step(connection, ConnectionStep.CONNECTING)
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
            async with asyncio.timeout(self._setup.limits.login_timeout / SECOND):
                await loop.create_connection(
                    lambda: connection, sock=await connect_socket(host, port, self._setup.dial_filter)
                )
        except socket.gaierror as error:
            connection.lost(CloseReason(f"the host name {host} cannot be resolved: {error.strerror}", NAME_UNKNOWN))
        except TimeoutError:
            connection.lost(
                CloseReason(f"the dial timed out after {self._setup.limits.login_timeout / SECOND:g} s", CONNECT_FAILED)
            )
        except OSError as error:
            connection.lost(CloseReason(f"the dial failed: {error.strerror or error}", CONNECT_FAILED))
