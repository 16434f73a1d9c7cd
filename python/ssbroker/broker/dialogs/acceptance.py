"""Decides which conversations a database accepts, and which of their messages may be received."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from ssbroker._well_known import END_DIALOG, ERROR
from ssbroker.broker.dialogs.body_validation import validation_error
from ssbroker.broker.dialogs.message import DeliveryOutcome, MessageHeader, not_accepted
from ssbroker.protocol.arrow_columns import column_values
from ssbroker.protocol.broker_errors import ConversationError, conversation_error
from ssbroker.protocol.conversation_states import ConversationState
from ssbroker.protocol.settings import LIFETIME_MAX, SECOND
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey, MessageKind, Refusal
from ssbroker.store.objects import Contract, MessageType, Objects, Service

_KIND: Final = ("is_initiator", "message_type_name", "is_end_of_dialog", "is_conversation_error")


def find_target(objects: Objects, header: MessageHeader) -> tuple[Service, Contract] | DeliveryOutcome:
    """Returns the service and contract for a new conversation, or the outcome that prevents it."""
    if not objects.broker.is_delivering:
        return not_accepted(0, 28013)
    service = objects.services.get(header.to_service_name)
    if service is None:
        if header.to_broker_instance == objects.broker.service_broker_guid:
            return DeliveryOutcome(0, error=conversation_error(8490, service=header.to_service_name))
        return not_accepted(0, 11210, service=header.to_service_name)
    contract = objects.contracts.get(header.service_contract_name)
    if contract is None or contract.service_contract_id not in service.contracts:
        return DeliveryOutcome(
            0, error=conversation_error(8408, service=service.name, contract=header.service_contract_name)
        )
    return service, contract


def receivable_type(
    objects: Objects, contract: Contract, name: str, *, from_initiator: bool
) -> MessageType | ConversationError:
    """Returns the message type if it may be received from the other side; otherwise the error to send back."""
    message_type = objects.message_types.get(name)
    rule = None if message_type is None else contract.messages.get(message_type.message_type_id)
    if message_type is None or rule is None:
        return conversation_error(8498, message_type=name, contract=contract.name)
    if not (rule.is_sent_by_initiator if from_initiator else rule.is_sent_by_target):
        return conversation_error(8457, message_type=name, contract=contract.name)
    return message_type


def unvalidated_type(objects: Objects, contract: Contract, name: str, *, from_initiator: bool) -> MessageType | None:
    """Returns the message type if it may be received from the other side with any body; otherwise None."""
    message_type = receivable_type(objects, contract, name, from_initiator=from_initiator)
    return message_type if isinstance(message_type, MessageType) and message_type.validation == "N" else None


def message_header(endpoint: DialogEndpoint) -> MessageHeader:
    """Returns the header of the messages of a conversation that starts at a target endpoint, which has passed `complete_target`."""
    if endpoint.lifetime is None or endpoint.far_broker_instance is None:
        raise ValueError(endpoint)
    return MessageHeader(
        conversation_id=endpoint.conversation_id,
        is_initiator=True,
        from_service_name=endpoint.far_service_name,
        from_broker_instance=endpoint.far_broker_instance,
        to_service_name=endpoint.service_name,
        to_broker_instance=endpoint.broker_instance,
        service_contract_name=endpoint.service_contract_name,
        lifetime=endpoint.lifetime,
        is_encrypted=endpoint.session_key is not None,
    )


def complete_target(objects: Objects, endpoint: DialogEndpoint, *, now: int) -> DialogEndpoint | Refusal:
    """Returns a new target endpoint, completed with the definitions in this database, or the refusal of the conversation.

    The lifetime is limited to the longest valid lifetime, counted from now.
    """
    latest = now + LIFETIME_MAX * SECOND
    completed = replace(endpoint, lifetime=latest if endpoint.lifetime is None else min(endpoint.lifetime, latest))
    target = find_target(objects, message_header(completed))
    if isinstance(target, DeliveryOutcome):
        if target.error is not None:
            return _refusal(target.error)
        return Refusal(-(target.error_number or 0), target.reason, notifies_sender=False)
    service, contract = target
    if not objects.security.may_send(service.service_id, endpoint.far_certificate, owner=service.principal_id):
        return _refusal(conversation_error(8494, service=service.name))
    priority = objects.priority_of_endpoint(
        service_contract_id=contract.service_contract_id,
        service_id=service.service_id,
        far_service=endpoint.far_service_name,
    )
    return replace(completed, broker_instance=objects.broker.service_broker_guid, priority=priority)


def need_no_validation(objects: Objects, messages: pa.Table, contracts: Sequence[str]) -> bool:
    """Returns whether messages need no validation: none is a system message, and their types accept any body."""
    columns: list[list[Any]] = [messages[name].to_pylist() for name in _KIND]
    sides, names, ends, errors = columns
    if any(ends) or any(errors):
        return False
    kinds = {MessageKind(*each) for each in zip(contracts, sides, names, strict=True)}
    return accept_any_body(objects, kinds)


def accept_any_body(objects: Objects, kinds: Collection[MessageKind]) -> bool:
    """Returns whether messages of the given kinds may be received with any body."""
    for contract_name, from_initiator, name in kinds:
        contract = objects.contracts.get(contract_name)
        if contract is None or unvalidated_type(objects, contract, name, from_initiator=from_initiator) is None:
            return False
    return True


def refused_messages(
    objects: Objects, messages: pa.Table, contracts: Mapping[EndpointKey, tuple[Contract, ConversationState]]
) -> Mapping[int, Refusal]:
    """Returns the messages that must be refused, by row.

    Messages for an endpoint that this side has ended are skipped, because they are dropped without validation. Messages
    for an endpoint with an error are validated, so that a sender that does not know of the error yet receives it again.
    Messages for endpoints that are not in `contracts` are skipped, too.
    """
    kinds: dict[tuple[int, bool, str], MessageType | ConversationError] = {}
    refusals: dict[int, Refusal] = {}
    for row, (conversation_id, side, name, is_end, is_error, body) in enumerate(_rows(messages)):
        if (conversation_id, not side) not in contracts:
            continue
        contract, state = contracts[conversation_id, not side]
        if state is ConversationState.DO:
            continue
        system_type = END_DIALOG if is_end else ERROR if is_error else None
        if system_type is not None:
            kind: MessageType | ConversationError = objects.message_types[system_type]
            if name != system_type:
                kind = conversation_error(8498, message_type=name, contract=contract.name)
        else:
            key = (contract.service_contract_id, side, name)
            if key not in kinds:
                kinds[key] = receivable_type(objects, contract, name, from_initiator=side)
            kind = kinds[key]
        error = kind if isinstance(kind, ConversationError) else validation_error(kind, body or None)
        if error is not None:
            refusals[row] = _refusal(error)
    return refusals


def _rows(messages: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns: list[list[Any]] = [column_values(messages[name]) for name in ("conversation_id", *_KIND, "message_body")]
    return zip(*columns, strict=True)


def _refusal(why: ConversationError) -> Refusal:
    return Refusal(why.code, why.description)
