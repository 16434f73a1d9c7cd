"""Work that becomes due in a database over time: timers, lifetimes, ended leases, closed endpoints, and messages for enabled queues."""

from __future__ import annotations

from typing import Final

from ssbroker._well_known import DIALOG_TIMER
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.endpoint_end import end_with_error
from ssbroker.broker.dialogs.enqueue import enqueue, queue_of, unpark
from ssbroker.broker.dialogs.lease import release_ended
from ssbroker.broker.dialogs.message import DialogMessage
from ssbroker.broker.unit_of_work import Work, database_transaction, emit_conversation_event
from ssbroker.protocol.broker_errors import LIFETIME_EXPIRED, conversation_error
from ssbroker.protocol.events import ConversationStep
from ssbroker.store import conversation_endpoints, leases
from ssbroker.store.sqlite import Connection

BATCH: Final = 1_000
"""The maximum number of endpoints in one transaction."""


def run_due(
    database: DatabaseContext, *, now: int, is_delivered: bool, lock_timeout: float | None = None
) -> int | None:
    """Does due work in a database, unless its broker is disabled; returns the time at which more work is due.

    Returns None if the broker is disabled or no work is scheduled.
    """
    while _is_due(database, now=now):
        with database_transaction(database, lock_timeout=lock_timeout) as work:
            _enter_queues(work)
            if not _fire_timers(work, now=now):  # timers never outlast the lifetime of their conversation
                _end_lifetimes(work, now=now)
    _release_ended_leases(database, now=now, lock_timeout=lock_timeout)
    if is_delivered:
        _remove_closed(database, now=now, lock_timeout=lock_timeout)
    with database.file.read() as connection:
        if not _is_enabled(database, connection):
            return None
        times = (conversation_endpoints.next_due_time(connection), leases.next_end(connection, None, now=now))
        return min((each for each in times if each is not None), default=None)


def _release_ended_leases(database: DatabaseContext, *, now: int, lock_timeout: float | None) -> None:
    """Makes messages available whose lease has ended, or which were hidden until now."""
    with database.file.read() as connection:
        if not leases.ended(connection, now=now):
            return
    with database_transaction(database, lock_timeout=lock_timeout) as work:
        release_ended(work, now=now)


def _is_due(database: DatabaseContext, *, now: int) -> bool:
    with database.file.read() as connection:
        if not _is_enabled(database, connection):
            return False
        found = conversation_endpoints.expired_lifetimes(
            connection, now=now, limit=1
        ) or conversation_endpoints.expired_timers(connection, now=now, limit=1)
        return bool(found) or _has_messages_to_enter(database, connection)


def _remove_closed(database: DatabaseContext, *, now: int, lock_timeout: float | None) -> None:
    """Removes closed endpoints after their retention time."""
    while _has_closed(database, now=now):
        with database_transaction(database, lock_timeout=lock_timeout) as work:
            conversation_endpoints.remove_closed(work.connection, now=now, limit=BATCH)


def _has_closed(database: DatabaseContext, *, now: int) -> bool:
    with database.file.read() as connection:
        return _is_enabled(database, connection) and conversation_endpoints.has_removable(connection, now=now)


def enter_queues(database: DatabaseContext, *, lock_timeout: float | None = None) -> None:
    """Puts messages that waited for a disabled queue into the queue, once it is enabled (P34)."""
    with database.file.read() as connection:
        if not _is_enabled(database, connection) or not _has_messages_to_enter(database, connection):
            return
    with database_transaction(database, lock_timeout=lock_timeout) as work:
        _enter_queues(work)


def _is_enabled(database: DatabaseContext, connection: Connection) -> bool:
    return database.objects(connection).broker.is_delivering


def _has_messages_to_enter(database: DatabaseContext, connection: Connection) -> bool:
    """Returns whether messages wait for a queue that is now enabled.

    Only a change to the objects enables a queue, so a negative result holds until the next version of the objects.
    """
    version = database.objects(connection).version
    if database.drained_version == version:
        return False
    if conversation_endpoints.enqueueable_endpoints(connection):
        return True
    database.drained_version = version
    return False


def _enter_queues(work: Work) -> None:
    """Puts messages that waited for disabled queues into the queues that are now enabled (P34)."""
    waiting = [
        conversation_endpoints.by_id(work.connection, endpoint_id)
        for endpoint_id in conversation_endpoints.enqueueable_endpoints(work.connection)
    ]
    queues = {queue_of(work, endpoint).queue_id for endpoint in waiting if endpoint is not None}
    for queue_id in sorted(queues):
        unpark(work, work.objects.queues_by_id[queue_id])


def _end_lifetimes(work: Work, *, now: int) -> None:
    """Ends conversations whose lifetime has passed. Both endpoints store the lifetime, so neither notifies the other."""
    error = conversation_error(LIFETIME_EXPIRED)
    for endpoint_id in conversation_endpoints.expired_lifetimes(work.connection, now=now, limit=BATCH):
        endpoint = conversation_endpoints.by_id(work.connection, endpoint_id)
        if endpoint is not None:
            end_with_error(work, endpoint, error.body())
            emit_conversation_event(
                work, endpoint, ConversationStep.BROKER_INITIATED_ERROR, error=error.code, text=error.description
            )


def _fire_timers(work: Work, *, now: int) -> bool:
    """Puts the messages of expired conversation timers into queues; returns whether there were any."""
    found = conversation_endpoints.expired_timers(work.connection, now=now, limit=BATCH)
    for endpoint_id in found:
        endpoint = conversation_endpoints.by_id(work.connection, endpoint_id)
        if endpoint is not None:
            conversation_endpoints.set_timer(work.connection, endpoint_id, None)
            enqueue(work, endpoint, queue_of(work, endpoint), [DialogMessage(0, DIALOG_TIMER, None)])
    return bool(found)
