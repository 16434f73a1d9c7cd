"""Puts messages into queues and the transmission queue, and deletes messages from the transmission queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ssbroker._well_known import DIALOG_TIMER, END_DIALOG, ERROR
from ssbroker.broker.dialogs.message import DialogMessage
from ssbroker.broker.dialogs.transmission_status import NO_PROBLEM, queue_disabled
from ssbroker.broker.unit_of_work import Work
from ssbroker.store import conversation_endpoints, queues, transmission_queue
from ssbroker.store.codes import EARLY, PRECEDENCE_ERROR, PRECEDENCE_MESSAGE, PRECEDENCE_TIMER, READY
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Queue

_PRECEDENCES: Final = {DIALOG_TIMER: PRECEDENCE_TIMER, ERROR: PRECEDENCE_ERROR}

_CHUNK_MESSAGES_MAX: Final = 2_000
_CHUNK_BYTES_MAX: Final = 8 << 20
"""Limits of the chunks in which unparked messages are read and put into the queue, because there may be many."""


def queue_of(work: Work, endpoint: ConversationEndpoint) -> Queue:
    """Returns the queue of an endpoint: the queue of its service, or the queue to which its conversation group has been moved."""
    objects, moved_to = work.objects, work.moved_queue_id(endpoint.conversation_group_id)
    return objects.queues_by_id[objects.services_by_id[endpoint.service_id].queue_id if moved_to is None else moved_to]


def enqueue(work: Work, endpoint: ConversationEndpoint, queue: Queue, messages: Sequence[DialogMessage]) -> None:
    """Puts messages into the queue of an endpoint; while the queue is disabled, puts them into the transmission queue as inbound messages."""
    if not messages:
        return
    if not queue.is_enqueue_enabled:
        _park(work, endpoint, queue, messages)
        return
    message_types = work.objects.message_types
    work.connection.statements.insert_queued(
        [
            queues.NewQueueRow(
                queue.queue_id,
                EARLY if message.is_early else READY,
                endpoint.priority,
                endpoint.endpoint_id,
                _PRECEDENCES.get(message.message_type_name, PRECEDENCE_MESSAGE),
                message.message_sequence_number,
                message_types[message.message_type_name].message_type_id,
                message.message_body or None,
            )
            for message in messages
        ],
        work.now(),
    )
    work.effects.count_enqueued(len(messages), is_remote=bool(endpoint.is_remote), priority=endpoint.priority)
    if not all(message.is_early for message in messages):
        work.effects.arrived.add(queue.queue_id)


def unpark(work: Work, queue: Queue) -> None:
    """Puts messages that waited for a disabled queue into the queue (P34)."""
    for endpoint_id in transmission_queue.waiting_receivers(work.connection, queue.queue_id):
        endpoint = conversation_endpoints.by_id(work.connection, endpoint_id)
        if endpoint is not None:
            unpark_for(work, endpoint, queue)


def unpark_for(work: Work, endpoint: ConversationEndpoint, queue: Queue) -> None:
    """Puts messages of one endpoint that waited for a disabled queue into the queue."""
    conversation_endpoints.set_transmission_status(work.connection, endpoint.endpoint_id, NO_PROBLEM)
    is_all = False
    while not is_all:
        rows, is_all = transmission_queue.first_messages(
            work.connection,
            endpoint.endpoint_id,
            limit=_CHUNK_MESSAGES_MAX,
            bytes_max=_CHUNK_BYTES_MAX,
            is_inbound=True,
        )
        transmission_queue.remove(work.connection, [row.transmission_id for row in rows])
        enqueue(work, endpoint, queue, [_unparked(endpoint, row) for row in rows])


def _park(work: Work, endpoint: ConversationEndpoint, queue: Queue, messages: Sequence[DialogMessage]) -> None:
    now = work.now()
    status = str(queue_disabled(work.database, queue.schema_name, queue.name))
    conversation_endpoints.set_transmission_status(work.connection, endpoint.endpoint_id, status)
    work.connection.statements.insert_transmissions(
        [
            transmission_queue.NewTransmissionRow(
                endpoint.endpoint_id,
                is_inbound=True,
                message_sequence_number=message.message_sequence_number,
                message_type_name=message.message_type_name,
                is_conversation_error=message.is_conversation_error,
                is_end_of_dialog=message.is_end_of_dialog,
                enqueue_time=now,
                message_body=message.message_body,
            )
            for message in messages
        ],
    )


def _unparked(endpoint: ConversationEndpoint, row: transmission_queue.TransmissionRow) -> DialogMessage:
    is_early = row.message_type_name not in _PRECEDENCES and row.message_sequence_number >= endpoint.receive_sequence
    return DialogMessage(row.message_sequence_number, row.message_type_name, row.message_body, is_early)


def queue_for_transmission(work: Work, sends: Sequence[tuple[ConversationEndpoint, Sequence[DialogMessage]]]) -> None:
    """Puts messages into the transmission queue, for delivery after the commit."""
    if not sends:
        return
    now = work.now()
    rows = [
        transmission_queue.NewTransmissionRow(
            sender.endpoint_id, False, number, name, name == ERROR, name == END_DIALOG, now, body
        )
        for sender, messages in sends
        for number, name, body, _ in messages
    ]
    work.connection.statements.insert_transmissions(rows)
    for sender, messages in sends:
        work.effects.outbound.add(sender.endpoint_id)
        if messages[0].message_sequence_number == 0:  # another process may have created the endpoint
            work.forget_earlier_endpoint(sender.endpoint_id)
    work.effects.transmission_added += len(rows)


def delete_acknowledged(work: Work, numbers: Iterable[tuple[int, int]]) -> None:
    """Deletes acknowledged messages from the transmission queue: for each endpoint id, the messages below a number (P16)."""
    before = work.connection.total_changes()
    transmission_queue.remove_below(work.connection, numbers)
    work.effects.transmission_removed += work.connection.total_changes() - before


def delete_unacknowledged(work: Work, endpoint_id: int) -> None:
    """Deletes from the transmission queue all messages that an endpoint sent."""
    before = work.connection.total_changes()
    transmission_queue.remove_sent(work.connection, endpoint_id)
    work.effects.transmission_removed += work.connection.total_changes() - before
