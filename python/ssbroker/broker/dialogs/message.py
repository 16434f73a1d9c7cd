"""A message on its way from one endpoint to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ssbroker.broker.dialogs.errors import ConversationError
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import Objects


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """What all messages of one side of a conversation have in common.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether the sender is the initiator.
        from_service_name: The sender.
        from_broker_instance: The broker id of its database.
        to_service_name: The receiver.
        to_broker_instance: The broker id that the conversation names or is bound to, if any.
        service_contract_name: The contract.
        lifetime: The moment at which the conversation expires (B16).
        is_encrypted: Whether it asked for encryption (B22).
    """

    conversation_id: bytes
    is_initiator: bool
    from_service_name: str
    from_broker_instance: bytes
    to_service_name: str
    to_broker_instance: bytes | None
    service_contract_name: str
    lifetime: int
    is_encrypted: bool


class DialogMessage(NamedTuple):
    """A whole message."""

    message_sequence_number: int
    message_type_name: str
    message_body: bytes | None
    is_conversation_error: bool = False
    is_end_of_dialog: bool = False


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What became of messages that arrived.

    Attributes:
        acknowledged: Every message with a lower number has been taken, or dropped for good: its sender may forget it (P16).
        error: What goes back to the sender as an Error message, which ends its side (B11).
        undelivered: Service Broker's number of why no more was taken; the sender keeps it and tries again.
        reason: The same as text.
    """

    acknowledged: int
    error: ConversationError | None = None
    undelivered: int | None = None
    reason: str = ""


def envelope_of(objects: Objects, sender: ConversationEndpoint) -> MessageHeader:
    """The envelope of what an endpoint sends."""
    return MessageHeader(
        sender.conversation_id,
        bool(sender.is_initiator),
        objects.services_by_id[sender.service_id].name,
        objects.broker.service_broker_guid,
        sender.far_service,
        sender.far_broker_instance,
        objects.contracts_by_id[sender.service_contract_id].name,
        sender.lifetime,
        bool(sender.is_encrypted),
    )
