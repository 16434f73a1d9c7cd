"""Conversations of work queues: those that `put` began end with their job, and others when their sender has ended them."""

from __future__ import annotations

from collections.abc import Iterable

from ssbroker._well_known import ERROR, WORK_QUEUE_CONTRACT
from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.dialogs import dialog_lifecycle, single_message_dialog
from ssbroker.broker.received_message import Message
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.broker_errors import parse_error_body
from ssbroker.protocol.conversation_states import ConversationState
from ssbroker.store import conversation_endpoints, leases, queues, transmission_queue
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Queue
from ssbroker.store.session import ReceivedRow


def process_system_messages(database: DatabaseContext, work: Work, queue: Queue, rows: Iterable[ReceivedRow]) -> None:
    """Removes the messages of a conversation group, which are all system messages, and ends the conversations that the remote endpoint has ended."""
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
        f"a conversation of the work queue service {message.service_name!r} ended with an error",
        BrokerError(f"{text}; conversation_id {message.conversation_id}"),
    )


def end_with_job(work: Work, messages: Iterable[Message]) -> None:
    """Ends both sides of conversations that `put` began, after the last message; leaves those of other senders open."""
    found = [each for each in messages if each.service_contract_name == WORK_QUEUE_CONTRACT]
    if not found or single_message_dialog.remove_received(
        work, WORK_QUEUE_CONTRACT, {each.conversation_id for each in found}
    ):
        return
    for handle in {each.conversation_handle for each in found}:
        target = conversation_endpoints.by_handle(work.connection, handle.bytes)
        if target is not None and not queues.has_sent_messages(work.connection, target.endpoint_id):
            remove_job(work, target)


def remove_job(work: Work, target: ConversationEndpoint | None) -> bool:
    """Removes both endpoints and the message of a conversation that `put` began; returns False for others."""
    if target is None or target.is_initiator or not single_message_dialog.is_of_work_queue(work.objects, target):
        return False
    initiator = conversation_endpoints.by_conversation(work.connection, target.conversation_id, is_initiator=True)
    if initiator is None:  # another instance has a service with this name
        return False
    for endpoint in (target, initiator):
        clean_up(work, endpoint)
    return True


def cancel_job(work: Work, initiator: ConversationEndpoint) -> bool:
    """Removes a conversation that `put` began, if its message waits and no job has it; returns whether it did."""
    if not single_message_dialog.is_of_work_queue(work.objects, initiator):
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
