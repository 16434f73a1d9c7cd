"""RECEIVE with a lease: takes messages for a limited time, and acknowledges them or returns them to the queue."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from ssbroker._arguments import EPOCH
from ssbroker._text import exception_text
from ssbroker._well_known import SYSTEM_MESSAGE_TYPES
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import poison_message_handling, receive, work_queue_conversations
from ssbroker.broker.effects import ReceiveCall
from ssbroker.broker.object_names import plain_queue_name
from ssbroker.broker.unit_of_work import Work, database_transaction
from ssbroker.exceptions import LeaseLostError
from ssbroker.protocol.events import JobFailed
from ssbroker.store import conversation_endpoints, failures, leases
from ssbroker.store.leases import Lease
from ssbroker.store.objects import Queue
from ssbroker.store.session import ReceivedRow

_GROUP: Final = 2
"""The position of the conversation group in a received row."""
_TYPE: Final = 6
"""The position of the name of the message type in a received row."""


class Claim(NamedTuple):
    """Messages of one conversation group that were received with a lease."""

    messages: list[ReceivedRow]
    lease: Lease


def claim(
    database: DatabaseContext,
    queue_name: str,
    *,
    top: int | None,
    microseconds: int,
    is_work_queue: bool = False,
    before_commit: Callable[[Lease], object],
) -> Claim | None:
    """Leases the conversation group that RECEIVE would take next; returns None if there are no messages.

    The reader of a work queue gets no system messages: a group that contains only system messages is processed here, and the next group is leased.

    `before_commit` gets the lease, which an interrupt after the commit would lose.

    The commits need not be durable. A power cut that undoes them also ends the process that holds the lease, so the
    messages become available again; system messages are processed again.
    """
    while True:
        with database_transaction(database, is_durable=False) as work:
            queue = receive.enabled_queue(work, queue_name)
            now = work.now()
            has_ended_leases = bool(leases.ended(work.connection, now=now))
            if not has_ended_leases:
                rows = _read_next_group(work, queue, top=top, now=now)
                wanted = [row for row in rows if row[_TYPE] not in SYSTEM_MESSAGE_TYPES] if is_work_queue else rows
                if wanted:
                    lease = _lease(work, queue, wanted[0][_GROUP], microseconds=microseconds, now=now)
                    before_commit(lease)
                    return Claim(wanted, lease)
                if not rows:
                    return None
                work_queue_conversations.process_system_messages(database, work, queue, rows)
        if has_ended_leases:
            # Durable: a lost lease counts as a failure, which may disable the queue.
            with database_transaction(database) as work:
                release_ended(work, now=work.now())


def _read_next_group(work: Work, queue: Queue, *, top: int | None, now: int) -> list[ReceivedRow]:
    rows = work.connection.statements.read_next_group(
        work.native_snapshot, queue.queue_id, top=top, bytes_max=receive.BYTES_MAX, now=now
    )
    work.effects.received.append(ReceiveCall(queue.queue_id, is_empty=not rows, is_named=False, is_leased=True))
    return rows


def _lease(work: Work, queue: Queue, group: bytes, *, microseconds: int, now: int) -> Lease:
    before = leases.of_group(work.connection, group)
    lease = Lease(
        group,
        queue.queue_id,
        lease_id=work.new_id(),
        process_id=os.getpid(),
        since=now,
        until=now + microseconds,
        attempts=1 + (0 if before is None else before.attempts),
        failures=0 if before is None else before.failures,
    )
    leases.store(work.connection, lease)
    work.effects.set_due(lease.until)
    return lease


def schedule(work: Work, group: bytes, queue_id: int, *, until: int) -> None:
    """Hides the messages of a new conversation group until a time."""
    lease = Lease(group, queue_id, None, None, since=0, until=0, attempts=0, failures=0)
    _hide(work, lease, until=until)


def acknowledge(work: Work, lease: Lease, queuing_orders: list[int]) -> None:
    """Removes the messages of a lease from the queue, and ends the lease; raises `LeaseLostError` if others have taken any of them."""
    lease = _stored_lease(work, lease)  # the service may have another queue by now
    queue = work.objects.queues_by_id.get(lease.queue_id)
    is_retained = queue is not None and queue.is_retention_enabled
    if work.connection.statements.acknowledge(queuing_orders, is_retained=is_retained) != len(queuing_orders):
        raise _lease_lost_error(lease, now=work.now())
    leases.remove(work.connection, lease.conversation_group_id)
    work.connection.statements.reset_rollback_count(lease.queue_id)
    work.effects.received.append(ReceiveCall(lease.queue_id, is_empty=False, is_named=True, is_leased=True))
    work.effects.is_acknowledged = True
    _announce_ready(work, lease)


def extend(work: Work, lease: Lease, *, microseconds: int) -> Lease:
    """Extends a lease to `microseconds` from now."""
    now = work.now()
    extended = _stored_lease(work, lease)._replace(since=now, until=now + microseconds)
    leases.store(work.connection, extended)
    work.effects.set_due(extended.until)
    return extended


def retry(work: Work, lease: Lease, *, microseconds: int) -> None:
    """Ends a lease, and hides the messages of the group for a while."""
    stored = _stored_lease(work, lease)
    if microseconds:
        _hide(work, stored, until=work.now() + microseconds)
    else:
        leases.store(work.connection, stored._replace(lease_id=None, process_id=None, since=work.now(), until=0))
        _announce_ready(work, stored)


def release(work: Work, lease: Lease, *, exception: Exception | None, retry_after: int = 0) -> None:
    """Ends a lease without acknowledging its messages, unless the lease is over already; an exception counts for poison message handling.

    After an exception, the messages are hidden for `retry_after` microseconds.
    """
    found = leases.of_group(work.connection, lease.conversation_group_id)
    if found is None or found.lease_id != lease.lease_id or found.until == 0:  # the end was already counted
        return
    if exception is not None:
        fail(work, found, exception_text(exception), exception=exception, retry_after=retry_after)
    else:
        _make_available(work, found)


def release_ended(work: Work, *, now: int) -> None:
    """Releases groups whose lease has ended, or whose messages were hidden until now; counts lost leases as failures."""
    ended = leases.ended(work.connection, now=now)
    for lease in ended:
        if lease.lease_id is None:
            _make_available(work, lease)
            continue
        process = lease.process_id
        fail(
            work, lease, f"the lease ended, because process {process} was killed or the job took longer than its lease"
        )
    if ended:
        leases.remove_unused(work.connection)


def fail(
    work: Work,
    lease: Lease,
    error: str,
    *,
    exception: Exception | None = None,
    is_last: bool = False,
    retry_after: int = 0,
) -> None:
    """Returns messages to the queue after a failure, unless the failure was one too many and the messages have been moved to another queue.

    The messages are hidden for `retry_after` microseconds, unless the failure has disabled the queue: then they are
    available once the queue is enabled.
    """
    counted = poison_message_handling.handle_job_failure(work, lease, error, is_last=is_last)
    if counted is None:
        return
    retry_at = work.now() + retry_after
    if counted.failures:
        _emit_job_failed(work, lease, error, exception, retry_at=retry_at)
    if retry_after and counted.failures:
        _hide(work, counted, until=retry_at)
    else:
        _make_available(work, counted)


def fail_for_good(work: Work, lease: Lease, error: str, *, retry_after: int = 0) -> None:
    """Ends a lease with a failure, and handles its messages as poison messages."""
    fail(work, _stored_lease(work, lease), error, is_last=True, retry_after=retry_after)


def _emit_job_failed(work: Work, lease: Lease, error: str, exception: Exception | None, *, retry_at: int) -> None:
    queue = work.objects.queues_by_id.get(lease.queue_id)
    if queue is None or not work.effects.wants(JobFailed):
        return
    handle = failures.first_ready_handle(work.connection, lease.conversation_group_id)
    endpoint = None if handle is None else conversation_endpoints.by_handle(work.connection, handle)
    work.effects.events.append(
        JobFailed(
            at=work.now(),
            database=work.database,
            queue=plain_queue_name(queue),
            conversation_handle=None if handle is None else uuid.UUID(bytes=handle),
            conversation_id=None if endpoint is None else uuid.UUID(bytes=endpoint.conversation_id),
            attempt=lease.attempts,
            error=failures.shortened_error(error),
            retry_at=EPOCH + timedelta(microseconds=retry_at),
            exception=exception,
        )
    )


def _stored_lease(work: Work, lease: Lease) -> Lease:
    """Returns a lease as it is stored, even after its end; raises `LeaseLostError` if another receiver has replaced it."""
    found = leases.of_group(work.connection, lease.conversation_group_id)
    if found is None or found.lease_id != lease.lease_id:
        raise _lease_lost_error(lease, now=work.now())
    return found


def _lease_lost_error(lease: Lease, *, now: int) -> LeaseLostError:
    lost = f"the lease of the conversation group {uuid.UUID(bytes=lease.conversation_group_id)} is lost:"
    if lease.is_held(now):  # no other receiver could take the messages
        return LeaseLostError(
            f"{lost} the messages were removed, for example by WorkQueue.clear, or the conversation of the messages was ended or moved. "
            "Nothing was committed"
        )
    return LeaseLostError(
        f"{lost} it ended, and another receiver took the messages, or the conversation of the messages was ended. "
        "Nothing was committed. Use a longer lease, or keep it with heartbeat=True"
    )


def _hide(work: Work, lease: Lease, *, until: int) -> None:
    """Ends a lease, and hides the messages of the group until a time."""
    leases.store(work.connection, lease._replace(lease_id=None, process_id=None, since=work.now(), until=until))
    leases.hide(work.connection, lease.conversation_group_id)
    work.effects.set_due(until)


def _make_available(work: Work, lease: Lease) -> None:
    """Makes the messages of a group available. The previous holder can still acknowledge them until another receiver takes them."""
    leases.free(work.connection, lease, now=work.now())
    _announce_ready(work, lease)


def _announce_ready(work: Work, lease: Lease) -> None:
    if leases.group_has_messages(work.connection, lease.conversation_group_id):
        work.effects.arrived.add(lease.queue_id)
