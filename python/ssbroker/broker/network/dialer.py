"""Dials addresses: name lookup, retries, permitted networks, idle destinations."""

from __future__ import annotations

import asyncio
import logging
import random as randomness
import socket
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ssbroker._arguments import string_list
from ssbroker.broker import process_locks
from ssbroker.broker.network.connection import (
    CONNECT_FAILED,
    NAME_UNKNOWN,
    CloseReason,
    EndpointLimits,
    PeerConnection,
    SecureLink,
    SharedOutbox,
    ip_of,
)
from ssbroker.broker.network.interfaces import EndpointListener
from ssbroker.broker.network.tls import Channel, TlsChannel, TlsCredentials, UnencryptedChannel
from ssbroker.exceptions import OptionError
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep, EventLog
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.wire.frames import GoodbyeReason, OwnIdentity

_Network: TypeAlias = IPv4Network | IPv6Network


class DialFilter:
    """Which hosts and networks may be dialled.

    Args:
        entries: Networks (`10.0.0.0/8`), addresses, names of hosts, and all names below a domain (`*.example.com`). Where there are
            none, everything may be dialled.

    Raises:
        OptionError: One of them is none of these.

    Examples:
        >>> dial_filter = DialFilter(["10.0.0.0/8", "*.example.com"])
        >>> [dial_filter.has_name(host) for host in ("shop.example.com", "example.com", "shop.example.org")]
        [True, False, False]
        >>> dial_filter.has_ip("10.1.2.3"), dial_filter.has_ip("192.0.2.1"), DialFilter([]).has_ip("192.0.2.1")
        (True, False, True)
        >>> DialFilter(["10.0.0.1/8"])
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: dial_only: '10.0.0.1/8' is no network: 10.0.0.1/8 has host bits set
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
            raise OptionError(
                f"dial_only: expected a network, an address, the name of a host, or *.DOMAIN; got {entry!r:.80}"
            )

    def has_name(self, host: str) -> bool:
        """Whether a host may be dialled wherever its name leads.

        Args:
            host: A name or an address, in lower case.
        """
        return self._is_everything or host in self._names or any(host.endswith(domain) for domain in self._domains)

    def has_ip(self, host: str) -> bool:
        """Whether an address may be dialled.

        Args:
            host: The address; a name is in no network.
        """
        if self._is_everything:
            return True
        ip = ip_of(host)
        return ip is not None and any(ip in network for network in self._networks)

    def refuses(self, host: str) -> bool:
        """Whether a host may not be dialled, as far as that is known before its name is looked up.

        Args:
            host: A name or an address, in lower case.
        """
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
            raise OptionError(f"dial_only: {entry!r:.80} is no network: {error}") from error
        return None


def _is_name(entry: str) -> bool:
    return bool(entry) and all(part and part.replace("-", "").replace("_", "").isalnum() for part in entry.split("."))


_NEXT_ADDRESS_DELAY: Final = 2.0
"""The seconds after which another address of a name is tried."""
_LOOKUPS_MAX: Final = 256
_LOOKUPS: Final = threading.BoundedSemaphore(_LOOKUPS_MAX)
"""A name server that does not answer holds each look-up for half a minute or so; in this process there are no more than these."""

_Found: TypeAlias = list[Any]
"""As `socket.getaddrinfo` has it."""


class _Socket(socket.socket):
    """One that a forked process lets go of."""

    def descriptors(self) -> Iterable[int]:
        """See `forks.Holder`."""
        return (self.fileno(),)


async def connect_socket(host: str, port: int, dial_filter: DialFilter) -> socket.socket:
    """Dials. Whoever cancels this leaves no socket open, which asyncio's own way does not promise.

    Args:
        host: A name or an address, in lower case.
        port: The port.
        dial_filter: What may be dialled.

    Returns:
        A socket that is connect_socket.

    Raises:
        OSError: Nobody answers, the name is not known, or nothing that it leads to may be dialled.
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
    return f"{host} is not among what may be dialled (dial_only)"


def _numeric(host: str, port: int) -> _Found:
    """What is an address has not to be looked up; of a name, nothing."""
    if ip_of(host) is None:
        return []
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


async def _look_up(look: Callable[[], _Found]) -> _Found:
    """Looks a name up in a thread that nobody has to wait for: neither other names, nor the end of the process."""
    if not _LOOKUPS.acquire(blocking=False):
        raise OSError("too many names are being looked up")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Found] = loop.create_future()

    def tell(found: _Found | None, error: Exception | None) -> None:
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
                loop.call_soon_threadsafe(tell, found, failed)
            except RuntimeError:  # it was closed in this moment
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
    raise OSError("the name has no address")


PeerKey: TypeAlias = tuple[bytes, str | None]
"""An instance id and the principal that claims it: who shows another certificate is another instance (T14)."""


class Destination:
    """What is known of one address. All but the outbox belongs to the endpoint's thread.

    Attributes:
        address: The address, as routes have it.
        outbox: What waits to go there.
        connection: Over which it goes; None where there is none.
        peer_key: Who answered there last.
        role_queries: Whose roles are to be pending_queries for.
        pending_queries: Whose roles were pending_queries for, without an answer yet.
        failures: How often it has failed in a row.
        why: Why it has failed last; None where that is over.
        is_dialled: Whether its connection is one that was dialled for it, and has not answered yet.
        retry: What ends the wait after a failure.
    """

    __slots__ = (
        "address",
        "connection",
        "failure_reason",
        "failures",
        "is_dialled",
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
        """Whether anything waits to go there."""
        return not self.outbox.is_empty or bool(self.role_queries)

    @property
    def is_busy(self) -> bool:
        """Whether anything goes there, or a dial or the wait after one is not over."""
        return self.has_pending or self.is_dialled or self.connection is not None or self.retry is not None

    def attach(self, connection: PeerConnection) -> None:
        """Has what waits go over a connection.

        Args:
            connection: The connection; the far side has said who it is.
        """
        self.detach()
        self.connection = connection
        self.is_dialled = False
        self.failure_reason = None
        connection.link.outboxes.append(self.outbox)
        self.stop_waiting()

    def detach(self) -> None:
        """Has it go over none."""
        if self.connection is not None and self.outbox in self.connection.link.outboxes:
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
        """Forgets what waits to go there, and takes nothing until the wait is over."""
        self.outbox.block()
        self.outbox.clear()
        self.role_queries.clear()
        self.pending_queries.clear()


def host_of(address: str) -> str:
    """The host of an address.

    Args:
        address: As routes have it, normalised.

    Returns:
        The host, an IPv6 address without its brackets.

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
        own: What this instance says of itself.
        listener: Who is told what connections bring.
        credentials: What TLS is agreed with; None takes and makes connections without it.
        limits: How long it waits, and for how much.
        dial_filter: What may be dialled.
        sent_by_priority: How many rows of each priority were written to connections.
        events: Where events go.
        clock: Tells the moment, in microseconds since 1970.
        random: Where ids and jitter come from.
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
        """What the bytes of a new connection go through.

        Args:
            is_accept: Whether the far side dialled.

        Returns:
            TLS, or nothing.
        """
        if self.credentials is None:
            return UnencryptedChannel()
        return TlsChannel(self.credentials.contexts, is_accept=is_accept)

    def new_id(self) -> uuid.UUID:
        """A random id."""
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
        """Tells of a connection's step.

        Args:
            connection: The connection.
            step: What happened.
            error: Service Broker's number for what went wrong.
            text: What went wrong; what the far side said is shortened, and kept from looking like more than one line.
            is_repeated: Whether the dial before has failed in the same way.
        """
        line = "".join(character if character.isprintable() else " " for character in text)[:_TEXT_MAX]
        event = ConnectionEvent(
            at=self.clock(),
            connection_id=connection.connection_id,
            step=step,
            address=connection.address,
            error=error,
            text=line,
            is_repeated=is_repeated,
        )
        self.events.emit(event)

    def call_listener(self, what: Callable[[], None]) -> None:
        """Calls the listener; what it raises harms no connection.

        Args:
            what: The call.
        """
        try:
            what()
        except Exception:
            LOGGER.exception("what a connection brought could not be handed over")


KNOWN_MAX: Final = 1024
"""The addresses beyond which those are forgotten to which nothing goes."""


def route_addresses(routes: pa.Table) -> Collection[str]:
    """The addresses that routes name; a live instance's are normalised.

    Args:
        routes: `schemas.ROUTES`.

    Returns:
        The addresses, those of mirrors too.
    """
    columns = [routes[name].unique().to_pylist() for name in ("address", "mirror_address")]
    return frozenset(address for column in columns for address in column if address is not None)


class Destinations:
    """The addresses that are sent to. All but `forget_idle` may be called from any thread.

    Args:
        setup: What the parts of an endpoint share.
    """

    def __init__(self, setup: EndpointSetup) -> None:
        self._setup: Final = setup
        self._lock: Final = threading.RLock()
        self._destinations: Final[dict[str, Destination]] = {}
        self._routed: Collection[str] = frozenset()
        self._forget_beyond = KNOWN_MAX
        self._first_row = 0

    def all(self) -> list[Destination]:
        """What is known of all of them."""
        with self._lock:
            return list(self._destinations.values())

    def destination(self, address: str) -> Destination:
        """What is known of an address.

        Args:
            address: The address.

        Returns:
            The same object at each call, for as long as the address is in use.
        """
        with self._lock:
            return self._destination(address)

    def put(self, address: str, rows: pa.Table) -> tuple[Destination, bool, int]:
        """Has rows wait to go to an address.

        Args:
            address: The address.
            rows: The rows.

        Returns:
            What is known of the address, and what its outbox says (`Outbox.put`).
        """
        with self._lock:  # so that it is not forgotten in between
            destination = self._destination(address)
            return (destination, *destination.outbox.put(rows))

    def progress(self, address: str) -> tuple[int, int]:
        """How far what was sent to an address has come.

        Args:
            address: The address.

        Returns:
            How many rows were taken for it, and how many of these are done with (`Outbox.progress`).
        """
        with self._lock:
            found = self._destinations.get(address)
            return (self._first_row, self._first_row) if found is None else found.outbox.progress

    def pending(self) -> tuple[int, int]:
        """How many rows wait to go to all addresses, or are being written; and how many bytes those count that wait."""
        with self._lock:
            each = [destination.outbox.pending for destination in self._destinations.values()]
        return sum(rows for rows, _ in each), sum(size for _, size in each)

    def refusal_reason(self, address: str) -> str | None:
        """Why nothing new is begun with an address.

        Args:
            address: The address.

        Returns:
            Why not; None where nothing is in the way.
        """
        if self._setup.dial_filter.refuses(host_of(address)):
            return "it is not among what may be dialled (dial_only)"
        most = self._setup.limits.learnt_most
        with self._lock:
            if address in self._routed or address in self._destinations or len(self._destinations) < most:
                return None
            learnt = sum(each.is_busy and each.address not in self._routed for each in self._destinations.values())
        return f"{learnt} addresses that no route names are in use already" if learnt >= most else None

    def is_learnt(self, address: str) -> bool:
        """Whether no route names an address, so that a neighbour has chosen it.

        Args:
            address: The address.
        """
        with self._lock:
            return address not in self._routed

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """Says which addresses routes name.

        Args:
            addresses: The addresses.
        """
        with self._lock:
            self._routed = addresses

    def forget_idle(self) -> None:
        """Forgets the addresses to which nothing goes, where there are many; in the endpoint's thread."""
        with self._lock:
            if len(self._destinations) <= self._forget_beyond:
                return
            for address, destination in list(self._destinations.items()):
                if not destination.is_busy:
                    # Who role_queries how far it has come is told a number that is no smaller than it was.
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
    """A number of turns; who finds none waits, in the order of asking.

    Args:
        most: How many have a turn at once.

    Examples:
        >>> turns, begun = DialSlots(1), []
        >>> for name in ("a", "b", "c"):
        ...     turns.take(name, lambda name=name: begun.append(name) is None)
        >>> begun
        ['a']
        >>> turns.release("a"), turns.release("a"), begun
        (None, None, ['a', 'b'])
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._holders: Final[set[Hashable]] = set()
        self._waiting: Final[deque[tuple[Hashable, Callable[[], bool]]]] = deque()

    def acquire(self, who: Hashable, begin: Callable[[], bool]) -> None:
        """Begins, now or when it is its turn.

        Args:
            who: Whose turn it is.
            begin: Begins, and tells whether a turn is needed for it.
        """
        self._waiting.append((who, begin))
        self._start_waiting()

    def release(self, who: Hashable) -> None:
        """Ends a turn, if there is one.

        Args:
            who: Whose.
        """
        self._holders.discard(who)
        self._start_waiting()

    def clear(self) -> None:
        """Has nobody wait any more."""
        self._waiting.clear()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._holders) < self._most:
            who, begin = self._waiting.popleft()
            if begin():
                self._holders.add(who)


class Dialer:
    """Dials the addresses that are sent to. All of it is called in the endpoint's thread.

    Args:
        setup: What the parts of an endpoint share.
        begin: Takes a connection in that is about to be dialled.
        usable: The connection of a peer_key that takes rows, if there is one.

    Attributes:
        addresses: The addresses that are sent to.
    """

    def __init__(
        self,
        setup: EndpointSetup,
        *,
        begin: Callable[[SecureLink, str], PeerConnection],
        usable: Callable[[PeerKey], PeerConnection | None],
    ) -> None:
        self.addresses: Final = Destinations(setup)
        self._setup: Final = setup
        self._begin: Final = begin
        self._usable: Final = usable
        self._dial_slots: Final = DialSlots(setup.limits.learnt_dials)
        self._by_connection: Final[dict[PeerConnection, list[Destination]]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_stopped = False

    def attend(self, destination: Destination) -> None:
        """Has what waits for an address go, or dials.

        Args:
            destination: The address.
        """
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
            known = None if destination.peer_key is None else self._usable(destination.peer_key)
            if known is not None:
                self._attach(destination, known)
            else:
                destination.is_dialled = True
                begin = partial(self._dial, destination)
                if self.addresses.is_learnt(destination.address):
                    self._dial_slots.acquire(destination, begin)
                else:
                    begin()

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for a role, now or when it is reached.

        Args:
            address: The address.
            broker_instance: Whose role.
        """
        destination = self.addresses.destination(address)
        destination.role_queries.add(broker_instance)
        self.attend(destination)

    def greeted(self, connection: PeerConnection, peer_key: PeerKey) -> None:
        """Has what waits for the far side go over a connection: one that was dialled, or what ends the wait for it.

        Args:
            connection: The connection.
            peer_key: Who it leads to.
        """
        for destination in self._by_connection.get(connection, ()):
            destination.peer_key = peer_key
            self._dial_slots.release(destination)
        known = [each for each in self.addresses.all() if each.peer_key == peer_key and each.connection is None]
        for destination in known:
            self._attach(destination, connection)

    def move(self, loser: PeerConnection, survivor: PeerConnection) -> None:
        """Has what goes over one connection go over another.

        Args:
            loser: The one.
            survivor: The other.
        """
        for destination in list(self._by_connection.get(loser, ())):
            if destination.connection is loser:
                self._attach(destination, survivor)

    def own_address_reached(self, connection: PeerConnection) -> None:
        """The far side of a connection that was dialled is this instance.

        Args:
            connection: The connection.
        """
        for destination in self._by_connection.pop(connection, ()):
            self._dial_slots.release(destination)
            destination.is_dialled = False
            destination.discard()
            self._schedule_retry(destination)
            self._setup.call_listener(partial(self._setup.listener.own_address_reached, destination.address))

    def role_received(
        self, connection: PeerConnection, broker_instance: bytes, role: MirroringRole, number: int
    ) -> None:
        """The far side has told a role.

        Args:
            connection: Over which it came.
            broker_instance: Whose role.
            role: The role.
            number: Its number.
        """
        for destination in list(self._by_connection.get(connection, ())):
            if broker_instance in destination.pending_queries:
                destination.pending_queries.discard(broker_instance)
                told = partial(self._setup.listener.role_received, destination.address, broker_instance, role, number)
                self._setup.call_listener(told)

    def ended(self, connection: PeerConnection, reason: CloseReason, peer_key: PeerKey | None) -> None:
        """A connection is closed.

        Args:
            connection: The connection.
            reason: Why.
            peer_key: Who it led to, if that was known.
        """
        for destination in self._by_connection.pop(connection, ()):
            self._dial_slots.release(destination)
            if destination.connection is connection or destination.is_dialled:
                destination.detach()
                destination.is_dialled = False
                self._ended(destination, connection, reason, peer_key)

    def has_failed_before(self, connection: PeerConnection, reason: CloseReason) -> bool:
        """Whether the dials before have ended as this one does.

        Args:
            connection: The connection, which is about to be told of as ended.
            reason: Why it ends.
        """
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
            limits.steady_after, limits.link.idle_timeout
        )
        if is_steady or connection.counters.fragments_received:
            destination.failures = 0
        if reason.reason is GoodbyeReason.IDLE and peer_key is not None and is_steady:
            self.attend(destination)
        elif reason.reason is GoodbyeReason.SUPERSEDED and peer_key is not None:
            survivor = self._usable(peer_key)
            if survivor is None:  # it is about to come
                destination.failures += 1
                self._schedule_retry(destination)
            else:
                self._attach(destination, survivor)
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
            connection.link.query_role(broker_instance)

    def _schedule_retry(self, destination: Destination) -> None:
        wait = self._setup.limits.wait(max(destination.failures, 1), roll=self._setup.random.random())
        loop = asyncio.get_running_loop()
        destination.retry = loop.call_later(wait / SECOND, self._retry, destination)

    def _retry(self, destination: Destination) -> None:
        destination.stop_waiting()
        self.attend(destination)

    def _dial(self, destination: Destination) -> bool:
        """Dials, unless a connection has been found meanwhile; whether it does."""
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
        if task.cancelled():  # maybe before its first step
            connection.lost(CloseReason("the instance stops"))
        elif (error := task.exception()) is not None:  # such as a name that cannot be one
            connection.lost(CloseReason(f"the dial failed: {error}", CONNECT_FAILED))

    async def _open(self, connection: PeerConnection, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._setup.limits.login_wait / SECOND):
                await loop.create_connection(
                    lambda: connection, sock=await connect_socket(host, port, self._setup.dial_filter)
                )
        except socket.gaierror as error:
            connection.lost(CloseReason(f"the name {host} is not known: {error.strerror}", NAME_UNKNOWN))
        except TimeoutError:
            connection.lost(CloseReason("nobody has answered the dial", CONNECT_FAILED))
        except OSError as error:
            connection.lost(CloseReason(f"the dial failed: {error.strerror or error}", CONNECT_FAILED))
