"""Acknowledgements as events."""

from __future__ import annotations

import uuid
from typing import Final

import pyarrow as pa

from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.events import AcknowledgementStep, MessageUndeliverable, RemoteMessageAcknowledgement
from ssbroker.protocol.ledger import Key, Refusal
from ssbroker.protocol.rows import rows_of

_BEYOND: Final = 28010
_STEPS: Final = {
    (True, True): AcknowledgementStep.MESSAGE_WITH_ACK_SENT,
    (True, False): AcknowledgementStep.ACK_SENT,
    (False, True): AcknowledgementStep.MESSAGE_WITH_ACK_RECEIVED,
    (False, False): AcknowledgementStep.ACK_RECEIVED,
}


def tell_acknowledgements(log: EventLog, table: pa.Table, *, is_sent: bool, now: int) -> None:
    """Tells of the acknowledgements in a batch, if anybody listens.

    Args:
        log: Who is told.
        table: The batch (`envelope.ENVELOPE`).
        is_sent: Whether it goes out.
        now: The moment.

    Examples:
        >>> from ssbroker.protocol.envelope import ENVELOPE
        >>> tell_acknowledgements(EventLog(), ENVELOPE.empty_table(), is_sent=True, now=0)
    """
    if not log.wants(RemoteMessageAcknowledgement):
        return
    for row in rows_of(table):
        if row.ahead is not None:
            log.emit(
                RemoteMessageAcknowledgement(
                    at=now,
                    conversation_id=uuid.UUID(bytes=row.conversation_id),
                    step=_STEPS[is_sent, row.is_sequenced],
                    acked_sequence_number=row.acked,
                    carrier_sequence_number=row.sequence if row.is_sequenced else None,
                    carrier_fragment_number=row.fragment if row.is_sequenced else None,
                    priority=row.priority,
                )
            )


def false_acknowledgement(key: Key, acked: int, now: int, *, peer: bytes | None = None) -> MessageUndeliverable:
    """The event of an acknowledgement that names what was not sent.

    Args:
        key: The endpoint that it is for.
        acked: What it names, -1 for no message.
        now: The moment.
        peer: Who handed it over.

    Returns:
        The event.

    Examples:
        >>> false_acknowledgement((bytes(16), True), 7, 0).error
        28010
    """
    return MessageUndeliverable(
        at=now,
        conversation_id=uuid.UUID(bytes=key[0]),
        is_sequenced=False,
        acked_sequence_number=None if acked < 0 else acked,
        peer=peer,
        error=_BEYOND,
        text="more was acknowledged than was sent",
    )


def undeliverable(key: Key, why: Refusal, now: int, *, peer: bytes | None = None) -> MessageUndeliverable:
    """The event of a first message for a service that does not take it now.

    Args:
        key: The endpoint that it would make.
        why: Why.
        now: The moment.
        peer: Who handed it over.

    Returns:
        The event.

    Examples:
        >>> undeliverable((bytes(16), False), Refusal(-28013, "the broker of the database is disabled", is_told=False), 0).error
        28013
    """
    conversation = uuid.UUID(bytes=key[0])
    return MessageUndeliverable(at=now, conversation_id=conversation, peer=peer, error=-why.code, text=why.description)
