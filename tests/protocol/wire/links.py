"""Rows of the wire, and two links between which the tests transfer bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ssbroker.protocol.wire.frames import WIRE, OwnIdentity, pack_batch
from ssbroker.protocol.wire.link import FragmentsArrived, Link, LinkEvent, LinkLimits

SECOND: Final = 1_000_000
SHOP, BANK = b"id of the shop..", b"id of the bank.."

_USUAL: Final[dict[str, Any]] = {
    "conversation_id": b"one conversation",
    "is_initiator": True,
    "message_sequence_number": 0,
    "fragment_number": 0,
    "fragment_count": 1,
    "message_body": b"one book",
    "message_signature": b"of the message..",
    "is_sequenced": True,
    "from_service_name": "Shop",
    "from_broker_instance": SHOP,
    "to_service_name": "Bank",
    "service_contract_name": "Orders",
    "message_type_name": "Order",
    "message_id": b"of one message..",
    "priority": 5,
    "is_end_of_dialog": False,
    "is_conversation_error": False,
    "security": 0,
    "header_signature": b"of the header...",
    "hops_remaining": 16,
    "time_to_live": 3600,
    "time_consumed": 0,
}


def row(**values: Any) -> dict[str, Any]:
    """Returns a valid row with other values in some columns."""
    return {**dict.fromkeys(WIRE.names), **_USUAL, **values}


def table(*rows: dict[str, Any]) -> pa.Table:
    """Returns rows as a table of the wire schema."""
    return pa.Table.from_pylist(list(rows), schema=WIRE)


def numbered(count: int, *, first: int = 0, size: int = 8) -> pa.Table:
    """Returns rows with ascending sequence numbers, and bodies of one size."""
    return table(*(row(message_sequence_number=first + number, message_body=bytes(size)) for number in range(count)))


def bytes_of(rows: pa.Table) -> bytes:
    """Returns rows as the body of a frame."""
    return bytes(pack_batch(rows))


def numbers(occurrences: list[LinkEvent]) -> list[int]:
    """Returns the sequence numbers of all rows that have arrived."""
    batches = (occurrence.rows for occurrence in occurrences if isinstance(occurrence, FragmentsArrived))
    columns: list[list[Any]] = [rows["message_sequence_number"].to_pylist() for rows in batches]
    return [number for column in columns for number in column]


def own(instance_id: bytes = SHOP, *, name: str = "shop", number: int = 1, **limits: int) -> OwnIdentity:
    """Returns the identity that an endpoint announces."""
    return OwnIdentity(instance_id=instance_id, name=name, run_number=number, **limits)


@dataclass
class Linked:
    """Two links and their events."""

    shop: Link
    bank: Link
    at_shop: list[LinkEvent] = field(default_factory=list)
    at_bank: list[LinkEvent] = field(default_factory=list)

    def to_bank(self, now: int = 0) -> list[LinkEvent]:
        """Transfers all bytes of the shop; returns the events of the bank."""
        occurrences = [
            occurrence for data in sent_pieces(self.shop, now) for occurrence in self.bank.receive(data, now=now)
        ]
        self.at_bank += occurrences
        return occurrences

    def to_shop(self, now: int = 0) -> list[LinkEvent]:
        """Transfers all bytes of the bank; returns the events of the shop."""
        occurrences = [
            occurrence for data in sent_pieces(self.bank, now) for occurrence in self.shop.receive(data, now=now)
        ]
        self.at_shop += occurrences
        return occurrences

    def settle(self, now: int = 0) -> None:
        """Transfers until neither has anything to send."""
        while waiting := [(self.bank, self.at_bank, data) for data in sent_pieces(self.shop, now)] + [
            (self.shop, self.at_shop, data) for data in sent_pieces(self.bank, now)
        ]:
            for link, occurrences, data in waiting:
                occurrences.extend(link.receive(data, now=now))


def sent_pieces(link: Link, now: int = 0) -> list[bytes]:
    """Returns all pieces that a link has to send."""
    pieces: list[bytes] = []
    while data := link.data_to_send(now=now):
        pieces.append(b"".join(data))
    return pieces


def linked(*, greet: bool = True, limits: LinkLimits | None = None) -> Linked:
    """Returns the shop, which dialled, and the bank; both have sent HELLO unless `greet` is false."""
    limits = limits or LinkLimits()
    shop = Link(own(), limits=limits, now=0)
    bank = Link(own(BANK, name="bank", number=2), limits=limits, now=0)
    both = Linked(shop, bank)
    if greet:
        both.to_bank()
        both.to_shop()
    return both
