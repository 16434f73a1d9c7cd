"""Endpoints without databases that record all events and rows; tests can wait for them."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.network.addresses import DialFilter
from ssbroker.broker.network.endpoint_context import EndpointContext
from ssbroker.broker.network.interfaces import Peer
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.socket_endpoint import SocketEndpoint
from ssbroker.broker.network.tls import TlsCredentials, Trust
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep, Event, EventLog
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason, MirroringRole, OwnIdentity
from ssbroker.security.certificates import CertificateWithKey, Validity, make_authority, make_certificate

DEADLINE: Final = 60.0
POLL_INTERVAL: Final = 0.05
HOST: Final = "127.0.0.1"
QUICK: Final = EndpointLimits(dial_wait=1000, max_dial_wait=1000)
"""Limits under which a failed dial is retried immediately."""


def now() -> int:
    """Returns the current time in microseconds."""
    return epoch_microseconds(datetime.now(UTC))


class RecordingEndpoint:
    """A network endpoint without an instance behind it."""

    def __init__(
        self,
        name: str,
        *,
        trust: Trust | None = None,
        limits: EndpointLimits = QUICK,
        instance_id: bytes | None = None,
        number: int | None = None,
        port: int = 0,
        frozen: bool = False,
        dial_only: Sequence[str] = (),
    ) -> None:
        rng = random.Random(name)
        self.name: Final = name
        self.instance_id: Final = instance_id or name.encode().ljust(16, b".")
        self.batches: Final[list[tuple[Peer, pa.Table]]] = []
        self.connected_to: Final[list[tuple[str, Peer]]] = []
        self.failed_connections: Final[list[tuple[str, str]]] = []
        self.drained: Final[list[str]] = []
        self.own_addresses: Final[list[str]] = []
        self.roles: Final[list[tuple[str, bytes, MirroringRole, int]]] = []
        self.drops: Final[list[tuple[str, dict[EndpointKey, DropReason]]]] = []
        self.events: Final[list[ConnectionEvent]] = []
        self.role: tuple[MirroringRole, int] = ("unknown", 0)
        self.role_reads = 0
        self.on_arrival: Callable[[], None] = lambda: None
        self._changed: Final = threading.Condition()
        self._frozen_at = now() if frozen else None
        log = EventLog()
        log.subscribe(self._record_event, ConnectionEvent)
        own = OwnIdentity(
            instance_id=self.instance_id, name=name, run_number=rng.getrandbits(64) if number is None else number
        )
        self.credentials: Final = None if trust is None else TlsCredentials(trust)
        context = EndpointContext(
            own=own,
            listener=self,
            credentials=self.credentials,
            limits=limits,
            events=log,
            clock=self._now,
            random=rng,
            dial_filter=DialFilter(dial_only),
        )
        self.endpoint: Final = SocketEndpoint(context, host=HOST, port=port)
        self.host, self.port = self.endpoint.start()
        self.address: Final = f"TCP://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.endpoint.close(DEADLINE if kind is None else 0.0)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Waits until a condition is true, checking it after each event and at intervals; returns its value."""
        end = time.monotonic() + DEADLINE
        with self._changed:
            while not (found := what()):
                left = end - time.monotonic()
                assert left > 0, f"{self.name}: {self.events}, {self.failed_connections}, {self.connected_to}"
                self._changed.wait(min(left, POLL_INTERVAL))
        return found

    def numbers(self) -> list[int]:
        """Returns the sequence numbers of all received rows, in order."""
        return [int(each) for _, rows in self.batches for each in rows["message_sequence_number"].to_numpy()]

    def steps(self, step: ConnectionStep) -> list[ConnectionEvent]:
        return [event for event in self.events if event.step is step]

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        try:
            self.on_arrival()
        finally:
            self._record(self.batches, (peer, rows))

    def outbox_drained(self, address: str) -> None:
        self._record(self.drained, address)

    def connection_failed(self, address: str, why: str) -> None:
        self._record(self.failed_connections, (address, why))

    def connected(self, address: str, peer: Peer) -> None:
        self._record(self.connected_to, (address, peer))

    def own_address_reached(self, address: str) -> None:
        self._record(self.own_addresses, address)

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> list[tuple[MirroringRole, int]]:
        self.role_reads += 1
        return [self.role for _ in broker_instances]

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        self._record(self.roles, (address, broker_instance, role, number))

    def rows_dropped(self, address: str, reasons: Mapping[EndpointKey, DropReason]) -> None:
        self._record(self.drops, (address, dict(reasons)))

    def advance(self, microseconds: int) -> None:
        """Advances the frozen clock."""
        assert self._frozen_at is not None
        self._frozen_at += microseconds

    def _now(self) -> int:
        return now() if self._frozen_at is None else self._frozen_at

    def connections(self) -> list[uuid.UUID]:
        """Returns the ids of the open connections."""
        return list(self.endpoint._manager.connections)

    def _record_event(self, event: Event) -> None:
        assert isinstance(event, ConnectionEvent)
        self._record(self.events, event)

    def _record(self, notes: list[Any], what: Any) -> None:
        with self._changed:
            notes.append(what)
            self._changed.notify_all()


@dataclass
class Authority:
    """A certificate authority in a folder, and the certificates that it issues."""

    folder: Path
    name: str = "Test authority"

    def __post_init__(self) -> None:
        start = datetime.now(UTC) - timedelta(hours=1)
        self.validity = Validity(start, start + timedelta(days=1))
        self.certified = make_authority(self.name, self.validity)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "authority.pem"
        self.file.write_bytes(self.certified.certificate)

    def certify(self, *names: str, validity: Validity | None = None, signs_itself: bool = False) -> tuple[Path, Path]:
        """Makes a certificate; returns its file and the file of its key."""
        certified = make_certificate(
            names, validity or self.validity, authority=None if signs_itself else self.certified
        )
        return self.save(certified, names[0])

    def save(self, certified: CertificateWithKey, name: str) -> tuple[Path, Path]:
        """Writes a certificate and its key; returns both files."""
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(certified.certificate)
        files[1].write_bytes(certified.key)
        return files

    def trust(self, name: str, *allowed: str) -> Trust:
        """Returns the credentials of an instance, and the names that it trusts."""
        certificate, key = self.certify(name)
        return Trust(certificate=certificate, key=key, authority=self.file, names=allowed)
