"""Dialogs of one message of a service with itself, written and removed in one step.

The general path (`dialog_lifecycle`, `send`, `arrival`) updates each endpoint several times. These functions leave the same rows if the
rules allow it, and otherwise return None or False and change nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import NamedTuple

from ssbroker._well_known import WORK_QUEUE_CONTRACT
from ssbroker.broker.dialogs.arrival import receivable_type
from ssbroker.broker.unit_of_work import Work
from ssbroker.protocol.conversation_states import ConversationState
from ssbroker.protocol.events import ConversationEvent, ConversationGroupEvent
from ssbroker.protocol.settings import LIFETIME_MAX, SECOND
from ssbroker.store import conversation_endpoints, queues
from ssbroker.store.codes import PRECEDENCE_MESSAGE, READY
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Contract, MessageType, Objects, Queue, Service


class DialogPlan(NamedTuple):
    """What is the same for all dialogs of a service with itself under a contract, while the objects stay the same."""

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
    queued_type = receivable_type(objects, contract, message_type, from_initiator=True)
    if not isinstance(queued_type, MessageType) or queued_type.validation != "N" or _has_subscribers(work):
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
        work.endpoint_created(endpoint.endpoint_id)
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


def is_of_work_queue(objects: Objects, endpoint: ConversationEndpoint) -> bool:
    """Whether an endpoint belongs to a conversation that a work queue has begun."""
    contract = objects.contracts.get(WORK_QUEUE_CONTRACT)
    if contract is None or endpoint.service_contract_id != contract.service_contract_id:
        return False
    return endpoint.far_service == objects.services_by_id[endpoint.service_id].name


def remove_received(work: Work, contract_name: str, conversation_ids: Collection[uuid.UUID]) -> bool:
    """Removes both endpoints of dialogs that `send_first` began, once their message has been removed from the queue.

    Returns False if the general path must do it, because a dialog is another one, has more messages, or has subscribers.
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
    """Whether an endpoint is one that `send_first` made, and has no other messages, no timer and no retained copy."""
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
