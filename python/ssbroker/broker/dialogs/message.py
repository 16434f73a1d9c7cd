"""Messages between endpoints: headers, contents, and the outcome of their delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ssbroker._well_known import END_DIALOG, ERROR
from ssbroker.protocol.broker_errors import ConversationError, error_text
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Objects


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """The common header of all messages of one side of a conversation.

    Attributes:
        conversation_id: The id of the conversation.
        is_initiator: Whether the sender is the initiator.
        from_service_name: The sending service.
        from_broker_instance: The broker id of the sending database.
        to_service_name: The receiving service.
        to_broker_instance: The broker id that the conversation names or is bound to, if any.
        service_contract_name: The contract of the conversation.
        lifetime: The time when the conversation expires, in microseconds since 1970.
        is_encrypted: Whether the conversation requires encryption.
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
    """A complete message."""

    message_sequence_number: int
    message_type_name: str
    message_body: bytes | None
    is_early: bool = False
    """Whether an earlier message of the same direction is missing."""

    @property
    def is_conversation_error(self) -> bool:
        """Whether the message ends the conversation with an error."""
        return self.message_type_name == ERROR

    @property
    def is_end_of_dialog(self) -> bool:
        """Whether the message ends the conversation without an error."""
        return self.message_type_name == END_DIALOG


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of messages that arrived at an endpoint.

    Attributes:
        acknowledged: All messages with lower numbers were accepted or dropped permanently, so the sender can delete them (P16).
        error: An error to send back, which ends the sender's side.
        error_number: The Service Broker error number of the reason why the remaining messages were not accepted; the sender keeps and retries them.
        reason: The reason in the event Message Undeliverable.
    """

    acknowledged: int
    error: ConversationError | None = None
    error_number: int | None = None
    reason: str = ""


def not_accepted(acknowledged: int, number: int, **values: object) -> DeliveryOutcome:
    """Returns the outcome of messages that the sender keeps and retries."""
    return DeliveryOutcome(acknowledged, error_number=number, reason=error_text(number, **values))


def header_of(objects: Objects, sender: ConversationEndpoint) -> MessageHeader:
    """Returns the header of messages from an endpoint."""
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
