"""Which message types a side may send and receive, and which bodies they accept."""

from __future__ import annotations

from ssbroker.broker.dialogs.body_validation import find_violation
from ssbroker.broker.dialogs.message import ConversationError, failure
from ssbroker.protocol.errors import broker_error
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import Contract, MessageType, Objects


def check_sendable(objects: Objects, endpoint: ConversationEndpoint, name: object) -> MessageType:
    """Returns the message type if an endpoint may send it; otherwise raises."""
    message_type = objects.message_types.get(name) if isinstance(name, str) else None
    if message_type is None:
        raise broker_error(8428, message_type=name)
    contract = objects.contracts_by_id[endpoint.service_contract_id]
    rule = contract.messages.get(message_type.message_type_id)
    if rule is None:
        raise broker_error(8431, contract=contract.name, message_type=name)
    if endpoint.is_initiator and not rule.is_sent_by_initiator:
        raise broker_error(8432, message_type=name)
    if not endpoint.is_initiator and not rule.is_sent_by_target:
        raise broker_error(8434, message_type=name)
    return message_type


def receivable_type(
    objects: Objects, contract: Contract, name: str, *, from_initiator: bool
) -> MessageType | ConversationError:
    """Returns the message type if it may be received from the other side; otherwise the error to send back."""
    message_type = objects.message_types.get(name)
    rule = None if message_type is None else contract.messages.get(message_type.message_type_id)
    if message_type is None or rule is None:
        return failure(8498, message_type=name, contract=contract.name)
    if not (rule.is_sent_by_initiator if from_initiator else rule.is_sent_by_target):
        return failure(8457, message_type=name, contract=contract.name)
    return message_type


def validation_error(message_type: MessageType, body: bytes | None) -> ConversationError | None:
    """Returns the error to send back for a body that violates its message type; None if it is valid."""
    if message_type.validation == "N":
        return None
    reason = find_violation(message_type.validation, body)
    return None if reason is None else failure(8430, message_type=message_type.name, reason=reason)
