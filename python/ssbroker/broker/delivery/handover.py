"""Hands messages from the transmission queue of one database to another, or back into the same (B9, P16)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ssbroker.broker.dialogs.arriving import Arrival, Envelope, Message, envelope_of
from ssbroker.broker.dialogs.inbound import arrive
from ssbroker.broker.dialogs.outbound import settle
from ssbroker.broker.dialogs.status import DELIVERED
from ssbroker.broker.work.own_work import own_work
from ssbroker.broker.work.telling import told_undeliverable
from ssbroker.broker.work.work import Work
from ssbroker.store import endpoints, transmission
from ssbroker.store.endpoints import Endpoint

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

MESSAGES_MAX: Final = 2_000
"""The messages that one transaction of the target takes at most."""
MESSAGES_MAX_EACH: Final = 500
"""Those of one conversation among them, so that a long one does not keep the others waiting."""
BYTES_MAX: Final = 8 << 20
"""After so many bytes of bodies a transaction takes no further message."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """The first messages of a conversation that wait.

    Attributes:
        sender: Its sender, as it was when they were read.
        envelope: What they have in common.
        messages: The messages, in order.
        is_all: Whether no more waited.
    """

    sender: Endpoint
    envelope: Envelope
    messages: Sequence[Message]
    is_all: bool


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a parcel.

    Attributes:
        parcel: The parcel.
        arrival: What its target made of it.
    """

    parcel: Parcel
    arrival: Arrival

    @property
    def is_stuck(self) -> bool:
        """Whether messages of the parcel were not taken, and the sender keeps them."""
        above = self.parcel.messages[-1].message_sequence_number + 1
        return self.arrival.error is None and self.arrival.acknowledged < above


def pack(source: Database, endpoint_ids: Iterable[int]) -> tuple[list[Parcel], list[int]]:
    """Reads what fits into one transaction of the target.

    Args:
        source: The senders' database.
        endpoint_ids: The senders, those to go first in front.

    Returns:
        The parcels, and the senders for which no room was left.
    """
    parcels: list[Parcel] = []
    ids = list(endpoint_ids)
    room, room_bytes = MESSAGES_MAX, BYTES_MAX
    with source.file.read() as connection:
        objects = source.objects(connection)
        for position, endpoint_id in enumerate(ids):
            if room <= 0 or room_bytes <= 0:
                return parcels, ids[position:]
            sender = endpoints.by_id(connection, endpoint_id)
            rows, is_all = transmission.head_of(
                connection, endpoint_id, most=min(room, MESSAGES_MAX_EACH), bytes_max=room_bytes
            )
            if sender is None or not rows:
                continue
            parcels.append(Parcel(sender, envelope_of(objects, sender), [_message(row) for row in rows], is_all))
            room -= len(rows)
            room_bytes -= sum(len(row.message_body or b"") for row in rows)
    return parcels, []


def hand_back(database: Database, parcels: Sequence[Parcel], *, lock_timeout: float | None = None) -> list[Delivered]:
    """Delivers parcels within their own database, in one transaction.

    Args:
        database: The database of sender and receiver.
        parcels: The parcels.
        lock_timeout: The seconds to wait for the write lock; None is as long as always.

    Returns:
        What became of each.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with own_work(database, lock_timeout=lock_timeout) as work:
        delivered = [
            _taken(work, parcel, waits_here=False)
            for parcel in parcels
            if endpoints.as_now(work.connection, parcel.sender) is not None
        ]
        _settle(work, delivered, broker_instance=work.broker_instance)
    return delivered


def put(
    target: Database,
    parcels: Sequence[Parcel],
    *,
    broker_instance: bytes | None,
    lock_timeout: float | None = None,
) -> list[Delivered]:
    """Puts parcels into the database that routing has found, durably.

    Args:
        target: The database.
        parcels: The parcels.
        broker_instance: The broker id that routing found.
        lock_timeout: The seconds to wait for the write lock; None is as long as always.

    Returns:
        What became of each; nothing where the database has been disabled or has got another id since (R31, R33).

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with own_work(target, lock_timeout=lock_timeout) as work:
        if not work.objects.broker.is_delivering or work.broker_instance != broker_instance:
            return []
        return [_taken(work, parcel, waits_here=True) for parcel in parcels]


def acknowledge(source: Database, delivered: Sequence[Delivered], *, broker_instance: bytes) -> None:
    """Takes off the transmission queue what another database has durably (P16); without, it is sent again, and is a duplicate.

    Args:
        source: The senders' database.
        delivered: What `put` returned.
        broker_instance: The broker id of the database that took them.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with own_work(source) as work:
        _settle(work, delivered, broker_instance=broker_instance)


def _settle(work: Work, delivered: Sequence[Delivered], *, broker_instance: bytes) -> None:
    for each in delivered:
        sender = each.parcel.sender
        if endpoints.as_now(work.connection, sender) is None:
            continue
        settle(work, sender.endpoint_id, each.arrival, broker_instance=broker_instance)
        if each.arrival.undelivered is None and sender.transmission_status != DELIVERED:
            endpoints.set_status(work.connection, sender.endpoint_id, DELIVERED)


def _taken(work: Work, parcel: Parcel, *, waits_here: bool) -> Delivered:
    arrival = arrive(work, parcel.envelope, parcel.messages, waits_here=waits_here)
    if arrival.undelivered is not None:
        told_undeliverable(
            work,
            parcel.envelope.conversation_id,
            number=parcel.messages[0].message_sequence_number,
            error=arrival.undelivered,
            text=arrival.reason,
        )
    return Delivered(parcel, arrival)


def _message(row: transmission.Waiting) -> Message:
    return Message(
        row.message_sequence_number,
        row.message_type_name,
        row.message_body,
        is_conversation_error=bool(row.is_conversation_error),
        is_end_of_dialog=bool(row.is_end_of_dialog),
    )
