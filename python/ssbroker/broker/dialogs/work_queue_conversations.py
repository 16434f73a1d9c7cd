"""The conversations of work queues: `put` begins one for each message, and the job of the message ends it; other senders end their own.

The general path (`dialog_lifecycle`, `send`, `arrival`) updates each endpoint several times. Where the rules allow it, `send_first` and
`remove_received` leave the same rows in one step; otherwise they return None or False and change nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ssbroker._well_known import ERROR, WORK_QUEUE_CONTRACT
from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.dialogs import dialog_lifecycle
from ssbroker.broker.dialogs.acceptance import unvalidated_type
from ssbroker.broker.received_message import Message
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.broker_errors import parse_error_body
from ssbroker.protocol.conversation_states import ConversationState
from ssbroker.protocol.events import ConversationEvent, ConversationGroupEvent
from ssbroker.protocol.settings import LIFETIME_MAX, SECOND
from ssbroker.store import conversation_endpoints, leases, queues, transmission_queue
from ssbroker.store.codes import PRECEDENCE_MESSAGE, READY
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Contract, Objects, Queue, Service
from ssbroker.store.session import ReceivedRow


class DialogPlan(NamedTuple):
    """The values that all dialogs of a service with itself share for a contract, until the objects change."""

    objects: Objects
    service: Service
    contract: Contract
    queue: Queue
    priority: int


def plan(objects: Objects, service_name: str, contract_name: str) -> DialogPlan | None:
    """Returns how to begin dialogs of a service with itself; None if they need the general path."""
    service, contract = objects.services.get(service_name), objects.contracts.get(contract_name)
    if service is None or contract is None or contract.service_contract_id not in service.contracts:
        return None
    queue = objects.queues_by_id[service.queue_id]
    is_secured = service_name in objects.security.by_service
    is_stored_directly = queue.is_enqueue_enabled and not queue.is_retention_enabled
    if is_secured or not is_stored_directly or service_name not in objects.services_routed_locally:
        return None
    contract_id = contract.service_contract_id
    priority = objects.priority_of_endpoint(
        service_contract_id=contract_id, service_id=service.service_id, far_service=service_name
    )
    return DialogPlan(objects, service, contract, queue, priority)


class FirstMessage(NamedTuple):
    """The first message of a dialog."""

    conversation_id: bytes
    group: bytes | None
    """The conversation group of the target; None if the message has not been delivered."""


def send_first(work: Work, planned: DialogPlan, message_type: str, body: bytes | None) -> FirstMessage | None:
    """Begins a dialog and sends its first message; returns None if the general path must do it."""
    objects, service, contract, queue, priority = planned
    queued_type = unvalidated_type(objects, contract, message_type, from_initiator=True)
    if queued_type is None or _has_subscribers(work):
        return None
    now = work.now()
    lifetime = now + LIFETIME_MAX * SECOND
    conversation_id, target_group = work.new_id(), work.new_id()
    for is_initiator, group in ((True, work.new_id()), (False, target_group)):
        endpoint = conversation_endpoints.insert(
            work.connection,
            conversation_handle=work.new_id(),
            conversation_id=conversation_id,
            is_initiator=is_initiator,
            conversation_group_id=group,
            service_id=service.service_id,
            service_contract_id=contract.service_contract_id,
            far_service=service.name,
            far_broker_instance=work.broker_instance,
            is_bound=True,
            is_encrypted=False,
            state=ConversationState.CO,
            lifetime=lifetime,
            priority=priority,
            now=now,
            send_sequence=int(is_initiator),
            receive_sequence=int(not is_initiator),
        )
        work.forget_earlier_endpoint(endpoint.endpoint_id)
    row = queues.NewQueueRow(
        queue.queue_id,
        READY,
        priority,
        endpoint.endpoint_id,
        PRECEDENCE_MESSAGE,
        message_sequence_number=0,
        message_type_id=queued_type.message_type_id,
        message_body=body,
    )
    work.connection.statements.insert_queued([row], now)
    effects = work.effects
    effects.set_due(lifetime)
    effects.sent += 1
    effects.count_enqueued(1, is_remote=False, priority=priority)
    effects.arrived.add(queue.queue_id)
    return FirstMessage(conversation_id, target_group)


def remove_received(work: Work, contract_name: str, conversation_ids: Collection[uuid.UUID]) -> bool:
    """Removes both endpoints of dialogs that `send_first` began, once their message has been removed from the queue.

    Returns False if the general path must do it, because `send_first` did not begin one of the dialogs, a dialog has more messages, or
    events of conversations have subscribers.
    """
    contract = work.objects.contracts.get(contract_name)
    if contract is None or _has_subscribers(work):
        return False
    found = [
        endpoint
        for each in conversation_ids
        for endpoint in conversation_endpoints.of_conversation(work.connection, each.bytes)
    ]
    if len(found) != 2 * len(conversation_ids) or not all(_is_simple(work, contract, each) for each in found):
        return False
    for endpoint in found:
        conversation_endpoints.remove(work.connection, endpoint.endpoint_id)
    return True


def _is_simple(work: Work, contract: Contract, endpoint: ConversationEndpoint) -> bool:
    """Returns whether `send_first` created the endpoint, and it has no other messages, no timer and no retained copy."""
    service = work.objects.services_by_id[endpoint.service_id]
    numbers = endpoint.send_sequence, endpoint.receive_sequence
    return (
        endpoint.service_contract_id == contract.service_contract_id
        and endpoint.far_service == service.name
        and endpoint.state == ConversationState.CO
        and numbers == ((1, 0) if endpoint.is_initiator else (0, 1))
        and bool(endpoint.is_bound)
        and not endpoint.is_remote
        and endpoint.dialog_timer is None
        and work.moved_queue_id(endpoint.conversation_group_id) is None
        and not work.objects.queues_by_id[service.queue_id].is_retention_enabled
    )


def _has_subscribers(work: Work) -> bool:
    return work.effects.wants(ConversationEvent) or work.effects.wants(ConversationGroupEvent)


def process_system_messages(database: DatabaseContext, work: Work, queue: Queue, rows: Iterable[ReceivedRow]) -> None:
    """Removes the messages of a conversation group, all of them system messages, and ends this side of the conversations that the remote endpoint has ended."""
    messages = [Message(row) for row in rows]
    orders = [each.queuing_order for each in messages]
    work.connection.statements.acknowledge(orders, is_retained=queue.is_retention_enabled)
    leases.remove(work.connection, messages[0].conversation_group_id.bytes)
    for each in messages:
        if each.message_type_name == ERROR:
            _log_error(database, each)
        endpoint = conversation_endpoints.by_handle(work.connection, each.conversation_handle.bytes)
        if endpoint is not None and endpoint.state in (ConversationState.DI, ConversationState.ER):
            dialog_lifecycle.end(work, endpoint, None)


def _log_error(database: DatabaseContext, message: Message) -> None:
    error = parse_error_body(message.message_body)
    text = "unknown error" if error is None else f"{error.description} ({error.code})"
    log_failure(
        database,
        f"a conversation of the work queue service {message.service_name!r} ended with an error; no job receives the Error message",
        BrokerError(f"{text}; conversation_id {message.conversation_id}"),
    )


def end_with_job(work: Work, messages: Iterable[Message]) -> None:
    """Ends both endpoints of each conversation that `put` began, once its last message has been processed; leaves conversations begun by other senders open."""
    found = [each for each in messages if each.service_contract_name == WORK_QUEUE_CONTRACT]
    if not found or remove_received(work, WORK_QUEUE_CONTRACT, {each.conversation_id for each in found}):
        return
    for handle in {each.conversation_handle for each in found}:
        target = conversation_endpoints.by_handle(work.connection, handle.bytes)
        if target is not None and not queues.has_sent_messages(work.connection, target.endpoint_id):
            remove_job(work, target)


def remove_job(work: Work, target: ConversationEndpoint | None) -> bool:
    """Removes both endpoints and the message of a conversation that `put` began; returns False for other conversations."""
    if target is None or target.is_initiator or not work.objects.is_of_work_queue(target):
        return False
    initiator = conversation_endpoints.by_conversation(work.connection, target.conversation_id, is_initiator=True)
    if initiator is None:  # begun by a service with the same name in another database or instance
        return False
    for endpoint in (target, initiator):
        clean_up(work, endpoint)
    return True


def cancel_job(work: Work, initiator: ConversationEndpoint) -> bool:
    """Removes a conversation that `put` began, if no job holds its message; returns whether it was removed."""
    if not work.objects.is_of_work_queue(initiator):
        return False
    target = conversation_endpoints.by_conversation(work.connection, initiator.conversation_id, is_initiator=False)
    if target is None:
        is_waiting = transmission_queue.has_outgoing(work.connection, initiator.endpoint_id)
        if is_waiting:
            clean_up(work, initiator)
        return is_waiting
    if leases.of_job(work.connection, target.conversation_group_id, now=work.now()) is not None:
        return False
    is_waiting = queues.has_sent_messages(work.connection, target.endpoint_id) or transmission_queue.has_parked(
        work.connection, target.endpoint_id
    )
    return is_waiting and remove_job(work, target)


def clean_up(work: Work, endpoint: ConversationEndpoint) -> None:
    """Removes an endpoint with its messages, and the lease of its conversation group."""
    dialog_lifecycle.clean_up(work, endpoint)
    leases.remove(work.connection, endpoint.conversation_group_id)
