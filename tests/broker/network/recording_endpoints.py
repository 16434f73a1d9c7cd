"""Endpoints without databases that record all events and rows, which tests can wait for."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.network.dialer import DialFilter, EndpointSetup
from ssbroker.broker.network.endpoint import SocketEndpoint
from ssbroker.broker.network.interfaces import Peer
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.tls import TlsCredentials, Trust
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep, Event, EventLog
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.wire.frames import OwnIdentity
from ssbroker.security.certificates import CertificateWithKey, Validity, make_authority, make_certificate

DEADLINE: Final = 60.0
LOOK_EVERY: Final = 0.05
HOST: Final = "127.0.0.1"
QUICK: Final = EndpointLimits(dial_wait=1000, max_dial_wait=1000)
"""Limits by which a failed dial is repeated at once."""


def now() -> int:
    """The moment in microseconds."""
    return epoch_microseconds(datetime.now(UTC))


class RecordingEndpoint:
    """An instance that only connects."""

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
        self.reached_at: Final[list[tuple[str, Peer]]] = []
        self.unreachable_at: Final[list[tuple[str, str]]] = []
        self.room_at: Final[list[str]] = []
        self.own_addresses: Final[list[str]] = []
        self.roles: Final[list[tuple[str, bytes, MirroringRole, int]]] = []
        self.events: Final[list[ConnectionEvent]] = []
        self.role: tuple[MirroringRole, int] = ("unknown", 0)
        self.looks = 0
        self.on_arrival: Callable[[], None] = lambda: None
        self._changed: Final = threading.Condition()
        self._frozen_at = now() if frozen else None
        log = EventLog()
        log.subscribe(self._happened, ConnectionEvent)
        own = OwnIdentity(
            instance_id=self.instance_id, name=name, run_number=rng.getrandbits(64) if number is None else number
        )
        self.credentials: Final = None if trust is None else TlsCredentials(trust)
        setup = EndpointSetup(
            own=own,
            listener=self,
            credentials=self.credentials,
            limits=limits,
            events=log,
            clock=self._now,
            random=rng,
            dial_filter=DialFilter(dial_only),
        )
        self.endpoint: Final = SocketEndpoint(setup, host=HOST, port=port)
        self.host, self.port = self.endpoint.start()
        self.address: Final = f"TCP://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.endpoint.close(DEADLINE if kind is None else 0.0)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Waits until something holds, looking whenever this party is told of anything, and at times where it is told of nothing."""
        end = time.monotonic() + DEADLINE
        with self._changed:
            while not (found := what()):
                left = end - time.monotonic()
                assert left > 0, f"{self.name}: {self.events}, {self.unreachable_at}, {self.reached_at}"
                self._changed.wait(min(left, LOOK_EVERY))
        return found

    def numbers(self) -> list[int]:
        """The sequence numbers of all rows that came, in their order."""
        return [int(each) for _, rows in self.batches for each in rows["message_sequence_number"].to_numpy()]

    def steps(self, step: ConnectionStep) -> list[ConnectionEvent]:
        """The events of one step."""
        return [event for event in self.events if event.step is step]

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        try:
            self.on_arrival()
        finally:
            self._note(self.batches, (peer, rows))

    def outbox_drained(self, address: str) -> None:
        self._note(self.room_at, address)

    def connection_failed(self, address: str, why: str) -> None:
        self._note(self.unreachable_at, (address, why))

    def connected(self, address: str, peer: Peer) -> None:
        self._note(self.reached_at, (address, peer))

    def own_address_reached(self, address: str) -> None:
        self._note(self.own_addresses, address)

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> list[tuple[MirroringRole, int]]:
        self.looks += 1
        return [self.role for _ in broker_instances]

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        self._note(self.roles, (address, broker_instance, role, number))

    def advance(self, microseconds: int) -> None:
        """Has the clock of a party that is frozen go on."""
        assert self._frozen_at is not None
        self._frozen_at += microseconds

    def _now(self) -> int:
        return now() if self._frozen_at is None else self._frozen_at

    def connections(self) -> list[uuid.UUID]:
        """The ids of the connections that are there."""
        return list(self.endpoint.manager.connections)

    def _happened(self, event: Event) -> None:
        assert isinstance(event, ConnectionEvent)
        self._note(self.events, event)

    def _note(self, notes: list[Any], what: Any) -> None:
        with self._changed:
            notes.append(what)
            self._changed.notify_all()


@dataclass
class Authority:
    """An authority in a folder, and the certificates that it gives out."""

    folder: Path
    name: str = "Test authority"

    def __post_init__(self) -> None:
        begins = datetime.now(UTC) - timedelta(hours=1)
        self.validity = Validity(begins, begins + timedelta(days=1))
        self.certified = make_authority(self.name, self.validity)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "authority.pem"
        self.file.write_bytes(self.certified.certificate)

    def certify(self, *names: str, validity: Validity | None = None, signs_itself: bool = False) -> tuple[Path, Path]:
        """The files of a certificate and its key."""
        made = make_certificate(names, validity or self.validity, authority=None if signs_itself else self.certified)
        return self.save(made, names[0])

    def save(self, made: CertificateWithKey, name: str) -> tuple[Path, Path]:
        """The files in which a certificate and its key are now."""
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(made.certificate)
        files[1].write_bytes(made.key)
        return files

    def trust(self, name: str, *allowed: str) -> Trust:
        """Who an instance is, and which names it believes."""
        certificate, key = self.certify(name)
        return Trust(certificate=certificate, key=key, authority=self.file, names=allowed)
