"""Instances connected in memory: rows move only when the test delivers them."""

from __future__ import annotations

import random
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.network.instance_server import ServeOptions, Server
from ssbroker.broker.network.interfaces import EndpointListener, Peer, PeerKey, SendResult
from ssbroker.protocol.events import Event
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason
from tests.broker.conftest import Clock
from tests.internals import background_of

OUTBOX: Final = 8 << 20


class MemoryEndpoint:
    """The network endpoint of one instance of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, name: str, receiver: EndpointListener) -> None:
        self.network: Final = network
        self.name: Final = name
        self.receiver: Final = receiver
        self.outboxes: Final[dict[str, deque[pa.Table]]] = {}
        self.accepted: Final[dict[str, int]] = {}
        self.full: Final[set[str]] = set()
        self.dialled: Final[set[str]] = set()
        self.sent: Final[list[tuple[str, pa.Table]]] = []
        self.outbox_bytes = OUTBOX
        self.is_paused = False

    @property
    def address(self) -> str:
        return f"TCP://{self.name}:4022"

    @property
    def peer(self) -> Peer:
        """The instance, as other instances see it."""
        return Peer(self.name.encode().ljust(16), self.name, self.name, self.address, uuid.UUID(int=1), True)

    @property
    def is_alive(self) -> bool:
        """See `interfaces.NetworkEndpoint`."""
        return self.address in self.network.network

    def start(self) -> tuple[str, int]:
        """See `interfaces.NetworkEndpoint`."""
        self.network.network[self.address] = self
        return self.name, 4022

    def send(self, address: str, rows: pa.Table) -> SendResult:
        """See `interfaces.NetworkEndpoint`."""
        outbox = self.outboxes.setdefault(address, deque())
        if address in self.network.down or self._free_bytes(outbox) <= 0:
            self.full.add(address)
            if address in self.network.down:
                self.receiver.connection_failed(address, "connection refused")
            return SendResult(False, True, self.accepted.get(address, 0))
        outbox.append(rows)
        self.accepted[address] = self.accepted.get(address, 0) + rows.num_rows
        if is_full := self._free_bytes(outbox) <= 0:
            self.full.add(address)
        return SendResult(True, is_full, self.accepted[address])

    def _free_bytes(self, outbox: deque[pa.Table]) -> int:
        return self.outbox_bytes - sum(rows.nbytes for rows in outbox)

    def dial(self, address: str) -> None:
        """See `interfaces.NetworkEndpoint`."""
        self.dialled.add(address)

    def progress(self, address: str) -> tuple[int, int]:
        """See `interfaces.NetworkEndpoint`."""
        accepted = self.accepted.get(address, 0)
        return accepted, accepted - sum(rows.num_rows for rows in self.outboxes.get(address, ()))

    @property
    def sent_by_priority(self) -> Counter[int]:
        """See `interfaces.NetworkEndpoint`."""
        return Counter()

    @property
    def pending(self) -> tuple[int, int]:
        """See `interfaces.NetworkEndpoint`."""
        return sum(rows.num_rows for outbox in self.outboxes.values() for rows in outbox), 0

    @property
    def refusals(self) -> int:
        """See `interfaces.NetworkEndpoint`."""
        return 0

    def refusal_reason(self, address: str) -> str | None:
        """See `interfaces.NetworkEndpoint`."""
        return None

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """See `interfaces.NetworkEndpoint`."""

    @property
    def traffic(self) -> dict[str, int]:
        """See `interfaces.NetworkEndpoint`."""
        return {}

    def view_rows(self) -> tuple[()]:
        """See `interfaces.NetworkEndpoint`."""
        return ()

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """See `interfaces.NetworkEndpoint`."""
        if address in self.network.down or address not in self.network.network:
            self.receiver.connection_failed(address, "connection refused")
            return
        ((role, number),) = self.network.network[address].receiver.mirroring_roles([broker_instance])
        self.receiver.role_received(address, broker_instance, role, number)

    def report_drops(self, peer_key: PeerKey, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """See `interfaces.NetworkEndpoint`."""
        for sender in self.network.network.values():
            if sender.peer.key == peer_key:
                sender.receiver.rows_dropped(self.address, reasons)

    def pause(self) -> None:
        """See `interfaces.NetworkEndpoint`."""
        self.is_paused = True

    def resume(self) -> None:
        """See `interfaces.NetworkEndpoint`."""
        self.is_paused = False

    def close(self, timeout: float) -> None:
        """See `interfaces.NetworkEndpoint`."""
        self.network.network.pop(self.address, None)

    def deliver(self) -> int:
        """Delivers the rows of all outboxes; returns their number."""
        number = 0
        for address in [*self.dialled]:
            self.outboxes.setdefault(address, deque())
            if address in self.network.down:
                self.dialled.discard(address)
                self.receiver.connection_failed(address, "connection refused")
        for address, outbox in self.outboxes.items():
            target = self.network.network.get(address)
            if address in self.network.down or target is None or target.is_paused:
                continue
            receiver = Peer(address.encode()[:16], address, address, address, uuid.UUID(int=1), False)
            if outbox or address in self.dialled:
                self.dialled.discard(address)
                self.receiver.connected(address, receiver)
            while outbox:
                rows = outbox.popleft()
                number += rows.num_rows
                self.sent.append((address, rows))
                if address not in self.network.lossy:
                    target.receiver.rows_received(self.peer, rows)
            if address in self.full:
                self.full.discard(address)
                self.receiver.outbox_drained(address)
        return number


class MemoryNetwork:
    """Instances served in memory, with one clock that only the test advances.

    Attributes:
        down: Addresses that cannot be reached.
        lossy: Addresses whose connections accept rows and lose them.
        unsubscribe: For each instance, a function that ends the recording of its events, without which it uses more fast paths.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder: Final = folder
        self.stack: Final = stack
        self.clock: Final = Clock()
        self.network: Final[dict[str, MemoryEndpoint]] = {}
        self.servers: Final[dict[str, Server]] = {}
        self.events: Final[dict[str, list[Event]]] = {}
        self.down: Final[set[str]] = set()
        self.instances: Final[dict[str, Instance]] = {}
        self.lossy: Final[set[str]] = set()
        self.unsubscribe: Final[dict[str, Callable[[], None]]] = {}

    def instance(self, name: str, **options: Any) -> Instance:
        """Opens and serves an instance; created if missing."""
        folder = self.folder / name
        instance_options: dict[str, Any] = {"clock": self.clock, "random": random.Random(name), "background": False}
        made = (
            Instance.open(folder, **instance_options)
            if folder.exists()
            else Instance.create(folder, name=name, **instance_options)
        )
        self.stack.callback(made.close)
        self.unsubscribe[name] = made.subscribe(self.events.setdefault(name, []).append)
        settings = ServeOptions(allow_unencrypted=True, **options)
        server = Server(
            instance_context(made),
            background_of(made),
            settings,
            new_network_endpoint=lambda events: MemoryEndpoint(self, name, events),
            on_change=made._set_server,
        )
        self.servers[name] = server.start()
        self.instances[name] = made
        return made

    def pipe(self, name: str) -> MemoryEndpoint:
        """Returns the endpoint of an instance."""
        return self.network[f"TCP://{name}:4022"]

    def turn(self) -> int:
        """Runs one turn of every exchange and delivers the outboxes; returns the number of rows."""
        for server in list(self.servers.values()):
            server.exchange.turn()
        return sum(pipe.deliver() for pipe in list(self.network.values()))

    def settle(self, *, seconds: float = 0.0) -> None:
        """Runs turns until no row moves; then, if `seconds` is given, advances the clock and repeats."""
        for _ in range(2 if seconds else 1):
            idle = 0
            while idle < 2:  # notifications of one turn are handled in the next
                idle = 0 if self.turn() else idle + 1
            self.clock.advance(seconds=seconds)
            seconds = 0.0

    def emitted(self, name: str, kind: type[Event]) -> Iterator[Any]:
        return (event for event in self.events[name] if isinstance(event, kind))

    def stop(self, name: str) -> None:
        server = self.servers.pop(name)
        server.close()
        self.instances.pop(name).close()

    def crash(self, name: str) -> None:
        """Ends an instance as a crash does: its memory is lost and peers are not notified."""
        server = self.servers.pop(name)
        server.exchange.finish = lambda: None  # type: ignore[method-assign]
        server.close()
        self.instances.pop(name).close()
