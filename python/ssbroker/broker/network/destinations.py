"""The addresses to which rows are sent, each with its waiting rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import pyarrow as pa

from ssbroker.broker.network.addresses import host_of
from ssbroker.broker.network.connection import PeerConnection, call_listener
from ssbroker.broker.network.endpoint_context import EndpointContext
from ssbroker.broker.network.interfaces import PeerKey, SendResult
from ssbroker.broker.network.shared_outbox import SharedOutbox


class Destination:
    """The state of one address. Only the endpoint's thread changes it; other threads use the outbox, and read `connection`.

    Attributes:
        address: The address, in the form of routes.
        outbox: The rows that wait to be sent to the address.
        connection: The connection over which the rows are sent; None if there is none.
        peer_key: The peer that last answered at the address.
        role_queries: The broker ids whose roles must be queried.
        pending_queries: The broker ids whose queries have not been answered yet.
        failures: The number of failures in a row.
        failure_reason: The reason of the last failure; None after a success.
        is_dialling: Whether the address is being dialled and has not answered yet.
        is_wanted: Whether to connect although nothing waits to be sent.
        retry_timer: The timer for the wait after a failure.
    """

    __slots__ = (
        "address",
        "connection",
        "failure_reason",
        "failures",
        "is_dialling",
        "is_wanted",
        "outbox",
        "peer_key",
        "pending_queries",
        "retry_timer",
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
        self.is_dialling = False
        self.is_wanted = False
        self.retry_timer: asyncio.TimerHandle | None = None

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
        """Whether rows or role queries wait to be sent, or the address waits for a connection."""
        return not self.outbox.is_empty or bool(self.role_queries) or self.is_wanted

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is being sent, dialled or retried."""
        return self.has_pending or self.is_dialling or self.connection is not None or self.retry_timer is not None

    def attach(self, connection: PeerConnection) -> None:
        """Sends the rows over a connection whose peer has sent HELLO."""
        self.detach()
        self.connection = connection
        self.is_dialling = self.is_wanted = False
        self.failure_reason = None
        with connection.guard:
            connection.link.outboxes.append(self.outbox)
        self.stop_waiting()

    def detach(self) -> None:
        """Removes the connection; unanswered role queries wait again."""
        if self.connection is not None:
            with self.connection.guard:
                if self.outbox in self.connection.link.outboxes:
                    self.connection.link.outboxes.remove(self.outbox)
        self.connection = None
        self.role_queries.update(self.pending_queries)
        self.pending_queries.clear()

    def stop_waiting(self) -> None:
        """Ends the wait after a failure."""
        if self.retry_timer is not None:
            self.retry_timer.cancel()
            self.retry_timer = None
            self.outbox.unblock()

    def discard(self) -> None:
        """Discards pending rows and role queries, and accepts no rows until the wait before the next dial has ended."""
        self.outbox.block()
        self.outbox.clear()
        self.role_queries.clear()
        self.pending_queries.clear()
        self.is_wanted = False


KNOWN_MAX: Final = 1024
"""The number of known addresses above which idle addresses are forgotten."""


class Destinations:
    """The addresses to which rows are sent. All methods except `forget_idle` may be called from any thread."""

    def __init__(self, context: EndpointContext) -> None:
        self._context: Final = context
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

    def put(self, address: str, rows: pa.Table) -> tuple[Destination, SendResult]:
        """Queues rows for an address; returns its state and the result of `SharedOutbox.put`."""
        with self._lock:  # so that the address is not forgotten in between
            destination = self._destination(address)
            return destination, destination.outbox.put(rows)

    def progress(self, address: str) -> tuple[int, int]:
        """Returns the `SharedOutbox.progress` of an address."""
        with self._lock:
            found = self._destinations.get(address)
            return (self._first_row, self._first_row) if found is None else found.outbox.progress

    def pending(self) -> tuple[int, int]:
        """Returns the number of rows that wait or are being written, and the size in bytes of the waiting rows."""
        with self._lock:
            each = [destination.outbox.pending for destination in self._destinations.values()]
        return sum(rows for rows, _ in each), sum(size for _, size in each)

    def refusal_reason(self, address: str) -> str | None:
        """Returns why an address accepts no new rows; None if it accepts rows."""
        if self._context.dial_filter.refuses(host_of(address)):
            return "it is not allowed by dial_only"
        unrouted_max = self._context.limits.max_unrouted_addresses
        with self._lock:
            if address in self._routed or address in self._destinations or len(self._destinations) < unrouted_max:
                return None
            unrouted = sum(each.is_busy and each.address not in self._routed for each in self._destinations.values())
        return (
            f"the limit of {unrouted_max} addresses that no route names is reached; raise limits.max_unrouted_addresses"
            if unrouted >= unrouted_max
            else None
        )

    def is_unrouted(self, address: str) -> bool:
        """Returns whether no route names an address, which means that a peer has chosen it."""
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
                    # Numbering continues after the rows of the forgotten address, so that `progress` never decreases.
                    self._first_row = max(self._first_row, destination.outbox.progress[0])
                    del self._destinations[address]
            self._forget_beyond = max(KNOWN_MAX, 2 * len(self._destinations))

    def _destination(self, address: str) -> Destination:
        found = self._destinations.get(address)
        if found is None:
            found = self._destinations[address] = Destination(
                address,
                outbox_bytes=self._context.limits.outbox_bytes,
                first=self._first_row,
                on_drained=partial(call_listener, partial(self._context.listener.outbox_drained, address)),
            )
        return found
