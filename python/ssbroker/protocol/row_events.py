"""Creates the events about single rows: damaged fragments, undeliverable messages, acknowledgements."""

from __future__ import annotations

import uuid
from typing import Final

import pyarrow as pa

from ssbroker.protocol.broker_errors import ACKNOWLEDGED_UNSENT, error_text
from ssbroker.protocol.envelope import table_to_rows
from ssbroker.protocol.events import (
    AcknowledgementStep,
    CorruptedMessage,
    EventLog,
    MessageUndeliverable,
    RemoteMessageAcknowledgement,
)
from ssbroker.protocol.storage import EndpointKey, Refusal

BAD_SIGNATURE: Final = 11230


def corrupted_event(
    sender: EndpointKey,
    place: tuple[int, int],
    from_service: str,
    error: int,
    text: str,
    *,
    now: int,
    peer: bytes | None,
) -> CorruptedMessage:
    """Returns the event about a damaged or forged fragment; `place` is the message number and the fragment number."""
    conversation_id, is_initiator = sender
    return CorruptedMessage(
        at=now,
        conversation_id=uuid.UUID(bytes=conversation_id),
        is_initiator=is_initiator,
        message_sequence_number=place[0],
        fragment_number=place[1],
        from_service_name=from_service,
        peer=peer,
        error=error,
        text=text,
    )


_STEPS: Final = {
    (True, True): AcknowledgementStep.MESSAGE_WITH_ACK_SENT,
    (True, False): AcknowledgementStep.ACK_SENT,
    (False, True): AcknowledgementStep.MESSAGE_WITH_ACK_RECEIVED,
    (False, False): AcknowledgementStep.ACK_RECEIVED,
}


def emit_acknowledgements(log: EventLog, table: pa.Table, *, is_sent: bool, now: int) -> None:
    """Emits an event for each acknowledgement in a batch, if a subscriber or the log takes such events."""
    if not log.wants(RemoteMessageAcknowledgement):
        return
    for row in table_to_rows(table):
        if row.acked_ahead is not None:
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


def false_acknowledgement_event(
    key: EndpointKey, acked: int, now: int, *, peer: bytes | None = None
) -> MessageUndeliverable:
    """Returns the event of an acknowledgement that names unsent messages; `acked` is -1 if it acknowledges no message in order."""
    return MessageUndeliverable(
        at=now,
        conversation_id=uuid.UUID(bytes=key[0]),
        is_sequenced=False,
        acked_sequence_number=None if acked < 0 else acked,
        peer=peer,
        error=ACKNOWLEDGED_UNSENT,
        text=error_text(ACKNOWLEDGED_UNSENT),
    )


def undeliverable_event(key: EndpointKey, why: Refusal, now: int, *, peer: bytes | None = None) -> MessageUndeliverable:
    """Returns the event about a conversation's first message that the target service refuses."""
    conversation = uuid.UUID(bytes=key[0])
    return MessageUndeliverable(at=now, conversation_id=conversation, peer=peer, error=-why.code, text=why.description)
