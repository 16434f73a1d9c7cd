"""Poison message handling: moves messages that fail again and again, or disables their queue."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ssbroker._arguments import EPOCH, optional_guid_bytes
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.enqueue import queue_of, unpark_for
from ssbroker.broker.effects import Effects
from ssbroker.broker.object_names import existing, plain_queue_name, queue_key
from ssbroker.broker.unit_of_work import Work, database_transaction
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.broker_errors import broker_error
from ssbroker.protocol.events import ConversationMoved, QueueDisabled
from ssbroker.store import conversation_endpoints, failures, leases, object_changes, queues, transmission_queue
from ssbroker.store.failures import Failure
from ssbroker.store.leases import Lease
from ssbroker.store.objects import Queue
from ssbroker.store.sqlite import Connection

FAILURES_UNTIL_POISONED: Final = 5
"""Rollbacks in a row of transactions that received from a queue, or failed jobs of a conversation group, that make it poisoned.

Texts for users say "five".
"""


def received_from(effects: Effects) -> dict[int, bytes | None]:
    """Returns the queues from which a transaction received messages, each with the conversation handle of the last RECEIVE from it."""
    return {
        each.queue_id: each.conversation_handle
        for each in effects.received
        if not (each.is_empty or each.is_leased or each.is_group_only)
    }


def handle_rollbacks(database: DatabaseContext, received: Mapping[int, bytes | None], error: str) -> None:
    """Counts a rollback because of an error for each queue, and handles the poison message after too many rollbacks."""
    with database_transaction(database) as work:
        for queue_id, named_handle in received.items():
            if queues.count_rollback(work.connection, queue_id) < FAILURES_UNTIL_POISONED:
                continue
            next_endpoint = queues.next_endpoint(work.connection, queue_id, now=work.now())
            endpoint = (
                conversation_endpoints.by_handle(work.connection, named_handle) if named_handle else next_endpoint
            )
            group = None if endpoint is None else endpoint.conversation_group_id
            if group is not None and leases.of_job(work.connection, group, now=work.now()) is not None:
                group = None
            handle = named_handle or (next_endpoint and next_endpoint.conversation_handle)
            if _handle_poison_message(work, queue_id, group, handle, error):
                queues.reset_rollbacks(work.connection, [queue_id])


def handle_job_failure(work: Work, lease: Lease, error: str, *, is_last: bool) -> Lease | None:
    """Counts a failed job, and handles the poison messages after too many failures.

    Returns the lease with the new count, which is 0 if the queue is disabled; None if the messages have been moved to
    another queue. With `is_last`, the messages are handled as poison messages whatever the count.
    """
    count = lease.failures + 1
    queue = work.objects.queues_by_id.get(lease.queue_id)
    is_handled = queue is not None and queue.is_poison_message_handling_enabled
    if not is_handled or (count < FAILURES_UNTIL_POISONED and not is_last):
        return lease._replace(failures=count)
    group = lease.conversation_group_id
    handle = failures.first_ready_handle(work.connection, group)
    return None if _handle_poison_message(work, lease.queue_id, group, handle, error) else lease._replace(failures=0)


def requeue(database: DatabaseContext, name: str, conversation_handle: object) -> int:
    """Implements `Database.requeue`."""
    handle = optional_guid_bytes(conversation_handle, name="conversation_handle")
    with database_transaction(database) as work:
        return _requeue_groups(
            work, existing(work.objects.queues, queue_key(name), kind="queue", database=work.database), handle
        )


def _requeue_groups(work: Work, queue: Queue, handle: bytes | None) -> int:
    """Moves groups back to the queue from which poison message handling moved them; returns the number of messages that became ready.

    Skips groups that a job has leased; raises BrokerError if `handle` belongs to such a group.
    """
    groups = failures.groups_moved_from(work.connection, queue.queue_id)
    if handle is not None:
        endpoint = conversation_endpoints.by_handle(work.connection, handle)
        if endpoint is None or endpoint.conversation_group_id not in groups:
            raise BrokerError(
                f"the conversation {uuid.UUID(bytes=handle)} was not moved away from the queue {queue.name!r}; "
                "sys.dm_broker_failures lists the conversations that were moved"
            )
        groups = [endpoint.conversation_group_id]
    ready = 0
    for group in groups:
        lease = leases.of_job(work.connection, group, now=work.now())
        if lease is not None:
            if handle is not None:
                raise BrokerError(
                    f"the conversation group {uuid.UUID(bytes=group)} is leased by process {lease.process_id}; wait until its job ends"
                )
            continue
        failures.forget_moved_group(work.connection, group)
        ready += _move_messages_to_current_queue(work, group)
    return ready


def disabled_error(connection: Connection, queue: Queue) -> BrokerError:
    """Returns error 9617, with the reason why the queue was disabled, if the reason is known."""
    error = broker_error(9617, queue=plain_queue_name(queue))
    failure = failures.failure_of_queue(connection, queue.queue_id)
    return error if failure is None else BrokerError(f"{error}. {describe_failure(failure)}", number=error.number)


def describe_failure(failure: Failure) -> str:
    """Returns why a queue was disabled."""
    at = EPOCH + timedelta(microseconds=failure.failed_at)
    handle = failure.conversation_handle
    last = "" if handle is None else f", with a message of the conversation {uuid.UUID(bytes=handle)}"
    return f"Poison message handling disabled the queue at {at:%Y-%m-%d %H:%M:%S} UTC. The last failure{last}: {failure.error}"


def _handle_poison_message(work: Work, queue_id: int, group: bytes | None, handle: bytes | None, error: str) -> bool:
    """Moves the group or disables the queue, as the queue specifies; returns whether the group has been moved."""
    queue = work.objects.queues_by_id.get(queue_id)
    if queue is None or not queue.is_poison_message_handling_enabled:
        return False
    error = failures.shortened_error(error)
    if queue.poison_queue_id is None:
        _disable_queue(work, queue, handle, error)
        return False
    if group is None:  # others have taken the messages meanwhile
        return False
    _move_to_poison_queue(work, queue, work.objects.queues_by_id[queue.poison_queue_id], group, handle, error)
    return True


def _move_to_poison_queue(work: Work, queue: Queue, to: Queue, group: bytes, handle: bytes | None, error: str) -> None:
    failures.record_failure(work.connection, Failure(queue.queue_id, handle, work.now(), error, group, to.queue_id))
    work.group_moved()
    _move_messages_to_current_queue(work, group)
    work.effects.events.append(
        ConversationMoved(
            at=work.now(),
            database=work.database,
            queue=plain_queue_name(queue),
            moved_to=plain_queue_name(to),
            conversation_group_id=uuid.UUID(bytes=group),
            conversation_handle=None if handle is None else uuid.UUID(bytes=handle),
            error=error,
        )
    )


def _move_messages_to_current_queue(work: Work, group: bytes) -> int:
    """Moves the messages of a group to its current queue, ready to be taken; returns how many can be received."""
    leases.remove(work.connection, group)
    # Messages that wait because the previous queue is disabled are delivered if the current queue is enabled.
    work.effects.is_catalog_changed = True
    ready = 0
    for endpoint in conversation_endpoints.in_group(work.connection, group):
        queue = queue_of(work, endpoint)
        ready += failures.move_messages(work.connection, endpoint.endpoint_id, queue.queue_id)
        if queue.is_enqueue_enabled and transmission_queue.has_parked(work.connection, endpoint.endpoint_id):
            unpark_for(work, endpoint, queue)
        work.effects.arrived.add(queue.queue_id)
    return ready


def _disable_queue(work: Work, queue: Queue, handle: bytes | None, error: str) -> None:
    if not queue.is_receive_enabled:
        return
    disabled = {"is_receive_enabled": False, "is_enqueue_enabled": False}
    object_changes.alter(work.connection, "ssb_queues", queue.queue_id, disabled)
    work.effects.is_catalog_changed = True
    failures.record_failure(work.connection, Failure(queue.queue_id, handle, work.now(), error))
    work.effects.events.append(
        QueueDisabled(
            at=work.now(),
            database=work.database,
            queue=plain_queue_name(queue),
            conversation_handle=None if handle is None else uuid.UUID(bytes=handle),
            error=error,
        )
    )
