"""Rows forwarded by an instance, and an endpoint whose outboxes a test empties."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ssbroker import schemas
from ssbroker.broker.network.connection import SharedOutbox
from ssbroker.broker.network.forwarding import MessageForwarder
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.envelope import EnvelopeRow, rows_to_table
from ssbroker.protocol.events import Event, EventLog, ForwardedMessageDropped, ForwardedMessageSent
from ssbroker.protocol.wire.frames import WIRE

TO = "//Stock"
FROM = "//Shop"
FAR = uuid.UUID(int=0xFA).bytes
NEAR = uuid.UUID(int=0xEA).bytes
HOUR = 3600
NO_LIMIT = 1 << 40


def peer(number: int = 1, *, address: str = "TCP://shop.example:4022") -> Peer:
    """A neighbour; each number is another instance."""
    return Peer(
        instance_id=uuid.UUID(int=number).bytes,
        name=f"neighbour {number}",
        principal=None,
        address=address,
        connection_id=uuid.UUID(int=number),
        is_accept=True,
    )


def row(sequence: int = 0, *, body: bytes = b"two chairs", conversation: int = 7, fragment: int = 0) -> EnvelopeRow:
    """A fragment of a plain conversation; its signature differs with what it is."""
    return EnvelopeRow(
        conversation_id=uuid.UUID(int=conversation).bytes,
        is_initiator=True,
        sequence=sequence,
        fragment=fragment,
        count=fragment + 1,
        body=body,
        message_signature=None,
        fragment_signature=None,
        is_sequenced=True,
        from_service=FROM,
        from_broker=NEAR,
        to_service=TO,
        to_broker=FAR,
        contract="DEFAULT",
        message_type="DEFAULT",
        message_id=uuid.UUID(int=sequence).bytes,
        priority=5,
        is_end=False,
        is_error=False,
        lifetime=None,
        security=0,
        acked=None,
        acked_ahead=None,
        header_signature=uuid.UUID(int=sequence << 20 | fragment).bytes,
    )


def wire(
    rows: Sequence[EnvelopeRow],
    *,
    hops: int = 16,
    lives: int = HOUR,
    consumed: int = 0,
    key_exchange: bytes | None = None,
) -> pa.Table:
    """Rows as they stand on the wire."""
    count = len(rows)
    added: list[list[Any]] = [[hops] * count, [lives] * count, [consumed] * count, [key_exchange] * count]
    columns = rows_to_table(rows).columns
    hop = [pa.chunked_array([pa.array(each, WIRE.field(at).type)]) for at, each in enumerate(added, len(columns))]
    return pa.Table.from_arrays([*columns, *hop], schema=WIRE)


def onwards(
    address: str, count: int = 1, *, mirror: str | None = None, broker_instance: bytes | None = None
) -> pa.Table:
    """What routing decided: all rows are passed on to one address."""
    return decided([(address, mirror, broker_instance)] * count)


def decided(ways: Iterable[tuple[str, str | None, bytes | None]]) -> pa.Table:
    """What routing decided, for each row its address, mirror and broker id."""
    rows = [
        {
            "outcome": "FORWARD",
            "match_step": 2,
            "route_id": 65_536,
            "next_hop_address": address,
            "mirror_address": mirror,
            "broker_instance": broker_instance,
            "reason": "matched",
        }
        for address, mirror, broker_instance in ways
    ]
    return pa.Table.from_pylist(rows, schema=schemas.DECISIONS)


@dataclass
class Outboxes:
    """An endpoint of which only the outboxes are real; what is in them goes when the test says so."""

    most: int = 8 << 20
    boxes: dict[str, SharedOutbox] = field(default_factory=dict)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    is_alive: bool = True
    refusals: int = 0
    pending: tuple[int, int] = (0, 0)
    sent_by_priority: Counter[int] = field(default_factory=Counter)
    traffic: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def box(self, address: str) -> SharedOutbox:
        """The outbox of an address."""
        return self.boxes.setdefault(address, SharedOutbox(self.most))

    def send(self, address: str, rows: pa.Table) -> int:
        return self.box(address).put(rows)[1]

    def progress(self, address: str) -> tuple[int, int]:
        return self.box(address).progress

    def query_role(self, address: str, broker_instance: bytes) -> None:
        self.asked.append((address, broker_instance))

    def refusal_reason(self, address: str) -> str | None:
        return self.refused.get(address)

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """Which addresses routes name changes nothing here."""

    def view_rows(self) -> tuple[()]:
        return ()

    def start(self) -> tuple[str, int]:
        return "127.0.0.1", 4022

    def pause(self) -> None:
        """Nothing comes by itself here."""

    def resume(self) -> None:
        """Nothing comes by itself here."""

    def close(self, timeout: float) -> None:
        """There is nothing to end."""

    def write(self, address: str) -> list[dict[str, Any]]:
        """Writes all that waits for an address to its connection; what was written."""
        written: list[dict[str, Any]] = []
        box = self.box(address)
        while (rows := box.take()) is not None:
            written += rows.to_pylist()
            box.finish(rows.num_rows)
        return written


@dataclass
class Forwarder:
    """An instance that passes on, with a clock that the test moves."""

    most: int = NO_LIMIT
    outboxes: Outboxes = field(default_factory=Outboxes)
    now: int = 1_000 * SECOND
    principal: str | None = None

    def __post_init__(self) -> None:
        self.log = EventLog()
        self.sent: list[ForwardedMessageSent] = []
        self.dropped: list[ForwardedMessageDropped] = []
        self.log.subscribe(self.note)
        self.forwarding = MessageForwarder(
            self.outboxes,
            resolve_mirror=lambda address, mirror, broker_instance: self.principal,
            max_bytes=lambda: self.most,
            events=self.log,
            clock=lambda: self.now,
        )

    def note(self, event: Event) -> None:
        if isinstance(event, ForwardedMessageSent):
            self.sent.append(event)
        elif isinstance(event, ForwardedMessageDropped):
            self.dropped.append(event)

    @property
    def why(self) -> list[int]:
        """The numbers of why rows were dropped."""
        return [event.error for event in self.dropped]
