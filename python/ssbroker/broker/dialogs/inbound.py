"""Takes whole messages that arrive for one side of a conversation, in a transaction of its database (P11, P12, P14, B11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ssbroker.broker.dialogs import contract_rules
from ssbroker.broker.dialogs.arriving import Arrival, Envelope, Message
from ssbroker.broker.dialogs.conversation import Conversation
from ssbroker.broker.dialogs.error_body import Failure, failure
from ssbroker.broker.dialogs.queueing import queue_of
from ssbroker.broker.work.telling import told_conversation, told_group
from ssbroker.broker.work.work import Work
from ssbroker.protocol.event_steps import ConversationStep, GroupStep
from ssbroker.protocol.names import text
from ssbroker.protocol.states import FIRST_PART, FIRST_WHOLE, State
from ssbroker.store import endpoints
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import Contract, Objects, Service

_TAKING: Final = (State.SI, State.CO)
"""Where something may come into the queue; for a conversation that is over nothing has to wait until the queue is on."""


def arrive(work: Work, envelope: Envelope, messages: Sequence[Message], *, waits_here: bool = True) -> Arrival:
    """Takes messages of one conversation and one direction; makes the target's endpoint where they are its first.

    Args:
        work: The transaction of the database that they are for.
        envelope: What they have in common.
        messages: The messages, in order of their numbers; at least one.
        waits_here: Whether they may wait in this database's transmission queue while the queue is off (P34). False where they
            stand in it already.

    Returns:
        What became of them. Nothing is durable before the transaction commits.
    """
    endpoint = endpoints.by_conversation(
        work.connection, envelope.conversation_id, is_initiator=not envelope.is_initiator
    )
    if endpoint is None:
        return _first(work, envelope, messages, waits_here=waits_here)
    return _further(work, envelope, endpoint, messages, waits_here=waits_here)


def _further(
    work: Work, envelope: Envelope, endpoint: Endpoint, messages: Sequence[Message], *, waits_here: bool
) -> Arrival:
    if endpoint.far_service != envelope.from_service_name:
        return _undelivered(endpoint.receive_sequence, 11222)
    if endpoint.is_bound and endpoint.far_broker_instance != envelope.from_broker_instance:
        return Arrival(messages[-1].message_sequence_number + 1, error=failure(8495))
    queue = queue_of(work, endpoint)
    if not queue.is_enqueue_enabled and not waits_here and endpoint.state in _TAKING:
        return _undelivered(endpoint.receive_sequence, 11219, queue=queue.name)
    if not endpoint.is_bound:
        # A reply that overtook the acknowledgement says the same (R8).
        endpoints.bind(work.connection, endpoint.endpoint_id, far_broker_instance=envelope.from_broker_instance)
    return Conversation(work, endpoint, queue).take(messages)


def _first(work: Work, envelope: Envelope, messages: Sequence[Message], *, waits_here: bool) -> Arrival:
    above = messages[-1].message_sequence_number + 1
    if not envelope.is_initiator:
        # The initiator's endpoint is gone. Who only says that it is over as well gets no answer.
        is_over = all(message.is_conversation_error or message.is_end_of_dialog for message in messages)
        return Arrival(above, error=None if is_over else failure(8462))
    if messages[0].is_conversation_error:
        return Arrival(above)  # the end of a conversation that nobody here has heard of
    found = target_of(work.objects, envelope)
    if isinstance(found, Arrival):
        return found
    service, contract = found
    queue = work.objects.queues_by_id[service.queue_id]
    if not queue.is_enqueue_enabled and not waits_here:
        return _undelivered(0, 11219, queue=queue.name)
    is_first = messages[0].message_sequence_number == 0
    if is_first:
        refused = _refusal(work, contract, messages[0])
        if refused is not None:
            return Arrival(0, error=refused)
    endpoint = begin_here(work, envelope, service, contract, is_whole=is_first)
    return Conversation(work, endpoint, queue, is_first_fit=is_first).take(messages)


def target_of(objects: Objects, envelope: Envelope) -> tuple[Service, Contract] | Arrival:
    """The service and the contract of a conversation that begins, or what keeps it from beginning."""
    if not objects.broker.is_delivering:
        return _undelivered(0, 28013)
    service = objects.services.get(envelope.to_service_name)
    if service is None:
        if envelope.to_broker_instance == objects.broker.service_broker_guid:
            return Arrival(0, error=failure(8490, service=envelope.to_service_name))
        return _undelivered(0, 11210, service=envelope.to_service_name)
    contract = objects.contracts.get(envelope.service_contract_name)
    if contract is None or contract.service_contract_id not in service.contracts:
        return Arrival(0, error=failure(8408, service=service.name, contract=envelope.service_contract_name))
    return service, contract


def begin_here(work: Work, envelope: Envelope, service: Service, contract: Contract, *, is_whole: bool) -> Endpoint:
    """Makes the target's endpoint.

    Args:
        work: The transaction.
        envelope: What the initiator says of the conversation.
        service: The service that it is for.
        contract: Its contract.
        is_whole: Whether the whole first message is there.

    Returns:
        The endpoint.
    """
    endpoint = endpoints.insert(
        work.connection,
        conversation_handle=work.new_id(),
        conversation_id=envelope.conversation_id,
        is_initiator=False,
        conversation_group_id=work.new_id(),
        service_id=service.service_id,
        service_contract_id=contract.service_contract_id,
        far_service=envelope.from_service_name,
        far_broker_instance=envelope.from_broker_instance,
        is_bound=True,
        is_encrypted=envelope.is_encrypted,
        state=FIRST_WHOLE if is_whole else FIRST_PART,
        lifetime=envelope.lifetime,
        priority=contract_rules.priority(
            work.objects,
            service_contract_id=contract.service_contract_id,
            service_id=service.service_id,
            far_service=envelope.from_service_name,
        ),
    )
    work.begins(endpoint.endpoint_id)
    work.effects.is_due_at(envelope.lifetime)
    told_group(work, endpoint.conversation_group_id, GroupStep.CREATE)
    told_conversation(work, endpoint, ConversationStep.DIALOG_CREATED)
    return endpoint


def _refusal(work: Work, contract: Contract, message: Message) -> Failure | None:
    kind = contract_rules.takeable(work.objects, contract, message.message_type_name, from_initiator=True)
    return kind if isinstance(kind, Failure) else contract_rules.unfit(kind, message.message_body)


def _undelivered(acknowledged: int, number: int, **values: object) -> Arrival:
    return Arrival(acknowledged, undelivered=number, reason=text(number, **values))
