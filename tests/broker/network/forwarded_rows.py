"""Rows to forward, and an endpoint whose outboxes the test empties."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ssbroker import schemas
from ssbroker.broker.network.forwarding import MessageForwarder
from ssbroker.broker.network.interfaces import Peer, PeerKey, SendResult
from ssbroker.broker.network.shared_outbox import SharedOutbox
from ssbroker.protocol.envelope import EnvelopeRow, rows_to_table
from ssbroker.protocol.events import Event, EventLog, ForwardedMessageDropped, ForwardedMessageSent
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey as Endpoint
from ssbroker.protocol.wire.frames import WIRE, DropReason

TARGET_SERVICE = "//Stock"
SENDER_SERVICE = "//Shop"
TARGET_BROKER = uuid.UUID(int=0xFA).bytes
SENDER_BROKER = uuid.UUID(int=0xEA).bytes
HOUR = 3600
NO_LIMIT = 1 << 40


def peer(number: int = 1, *, address: str = "TCP://shop.example:4022") -> Peer:
    """Returns a peer; each number is another instance."""
    return Peer(
        instance_id=uuid.UUID(int=number).bytes,
        name=f"peer {number}",
        principal=None,
        address=address,
        connection_id=uuid.UUID(int=number),
        is_accept=True,
    )


def row(sequence: int = 0, *, body: bytes = b"two chairs", conversation: int = 7, fragment: int = 0) -> EnvelopeRow:
    """Returns a fragment of an unencrypted conversation; each fragment has its own signature."""
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
        from_service=SENDER_SERVICE,
        from_broker=SENDER_BROKER,
        to_service=TARGET_SERVICE,
        to_broker=TARGET_BROKER,
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
    lifetime: int = HOUR,
    consumed: int = 0,
    key_exchange: bytes | None = None,
) -> pa.Table:
    """Returns rows in the wire schema."""
    count = len(rows)
    added: list[list[Any]] = [[hops] * count, [lifetime] * count, [consumed] * count, [key_exchange] * count]
    columns = rows_to_table(rows).columns
    hop = [pa.chunked_array([pa.array(each, WIRE.field(at).type)]) for at, each in enumerate(added, len(columns))]
    return pa.Table.from_arrays([*columns, *hop], schema=WIRE)


def forward_to(
    address: str, count: int = 1, *, mirror: str | None = None, broker_instance: bytes | None = None
) -> pa.Table:
    """Routing decisions that forward all rows to one address."""
    return decisions([(address, mirror, broker_instance)] * count)


def decisions(routes: Iterable[tuple[str, str | None, bytes | None]]) -> pa.Table:
    """Routing decisions that forward each row to its address, mirror and broker id."""
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
        for address, mirror, broker_instance in routes
    ]
    return pa.Table.from_pylist(rows, schema=schemas.DECISIONS)


@dataclass
class Outboxes:
    """An endpoint with real outboxes and no connections; the test writes the rows."""

    max_bytes: int = 8 << 20
    boxes: dict[str, SharedOutbox] = field(default_factory=dict)
    role_queries: list[tuple[str, bytes]] = field(default_factory=list)
    is_alive: bool = True
    refusals: int = 0
    pending: tuple[int, int] = (0, 0)
    sent_by_priority: Counter[int] = field(default_factory=Counter)
    traffic: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    drops: list[tuple[PeerKey, Mapping[Endpoint, DropReason]]] = field(default_factory=list)
    on_dial: Callable[[str], None] = lambda address: None

    def box(self, address: str) -> SharedOutbox:
        return self.boxes.setdefault(address, SharedOutbox(self.max_bytes))

    def send(self, address: str, rows: pa.Table) -> SendResult:
        return self.box(address).put(rows)

    def dial(self, address: str) -> None:
        self.on_dial(address)

    def progress(self, address: str) -> tuple[int, int]:
        return self.box(address).progress

    def query_role(self, address: str, broker_instance: bytes) -> None:
        self.role_queries.append((address, broker_instance))

    def report_drops(self, peer_key: PeerKey, reasons: Mapping[Endpoint, DropReason]) -> None:
        self.drops.append((peer_key, reasons))

    def refusal_reason(self, address: str) -> str | None:
        return self.refused.get(address)

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """Has no effect."""

    def view_rows(self) -> tuple[()]:
        return ()

    def start(self) -> tuple[str, int]:
        return "127.0.0.1", 4022

    def pause(self) -> None:
        """Has no effect."""

    def resume(self) -> None:
        """Has no effect."""

    def close(self, timeout: float) -> None:
        """Has no effect."""

    def write(self, address: str) -> list[dict[str, Any]]:
        """Writes all queued rows of an address; returns them."""
        written: list[dict[str, Any]] = []
        box = self.box(address)
        while (rows := box.take()) is not None:
            written += rows.to_pylist()
            box.finish(rows.num_rows)
        return written


@dataclass
class Forwarder:
    """A forwarding instance with a clock that the test advances."""

    max_bytes: int = NO_LIMIT
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
            max_bytes=lambda: self.max_bytes,
            events=self.log,
            clock=lambda: self.now,
        )
        # Each address answers at once, as an instance that sends nothing.
        self.outboxes.on_dial = lambda address: self.forwarding.connected(address, peer(99, address=address))

    def note(self, event: Event) -> None:
        if isinstance(event, ForwardedMessageSent):
            self.sent.append(event)
        elif isinstance(event, ForwardedMessageDropped):
            self.dropped.append(event)

    @property
    def drop_errors(self) -> list[int]:
        """The error numbers of the dropped rows."""
        return [event.error for event in self.dropped]
