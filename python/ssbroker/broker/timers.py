"""What time brings about in a database: timers, lifetimes, closed endpoints, and what waited for a queue to be on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ssbroker.broker.dialogs.closing import break_off
from ssbroker.broker.dialogs.error_body import failure
from ssbroker.broker.dialogs.queueing import Entry, enqueue, queue_of, release
from ssbroker.broker.work.own_work import own_work
from ssbroker.broker.work.telling import told_conversation
from ssbroker.broker.work.work import Work
from ssbroker.protocol.event_steps import ConversationStep
from ssbroker.protocol.names import DIALOG_TIMER
from ssbroker.store import due, endpoints
from ssbroker.store.sqlite import Connection

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

BATCH: Final = 1_000
"""The endpoints that one transaction deals with at most."""
_LIFETIME_PASSED: Final = 8489


def run_due(database: Database, *, now: int, is_delivered: bool) -> int | None:
    """Does what is due in a database. While its broker is disabled it is left alone, and what is overdue is done after that.

    Args:
        database: The database.
        now: The moment.
        is_delivered: Whether what waited at this moment has been delivered, as far as it can be. Closed endpoints stay until then: what
            was left on its way when a process ended is a duplicate to them (B14), however long ago that was.

    Returns:
        The next moment at which something is due; None where there is none.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be used.
    """
    while _is_due(database, now=now):
        with own_work(database) as work:
            _enter_queues(work)
            if not _fire_timers(work, now=now):  # none is set beyond the lifetime of its conversation
                _end_lifetimes(work, now=now)
    if is_delivered:
        _remove_closed(database, now=now)
    with database.file.read() as connection:
        return due.next_moment(connection) if _is_enabled(database, connection) else None


def enter_queues(database: Database) -> None:
    """Puts what waited for a queue to be on into the queue (P34), where it is on now.

    Args:
        database: The database.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be used.
    """
    with database.file.read() as connection:
        if not _is_enabled(database, connection) or not _enters(database, connection):
            return
    with own_work(database) as work:
        _enter_queues(work)


def _is_enabled(database: Database, connection: Connection) -> bool:
    return database.objects(connection).broker.is_delivering


def _is_due(database: Database, *, now: int) -> bool:
    with database.file.read() as connection:
        if not _is_enabled(database, connection):
            return False
        found = due.lifetimes(connection, now=now, limit=1) or due.timers(connection, now=now, limit=1)
        return bool(found) or _enters(database, connection)


def _enters(database: Database, connection: Connection) -> bool:
    """Whether anything waits for a queue that is on by now.

    What comes waits for a queue that is off, so nothing enters one before the objects have changed; what waits is not walked through at each look.
    """
    version = database.objects(connection).version
    if database.enters_nothing == version:
        return False
    if due.inbound(connection):
        return True
    database.enters_nothing = version
    return False


def _remove_closed(database: Database, *, now: int) -> None:
    """B14."""
    while _has_closed(database, now=now):
        with own_work(database) as work:
            due.remove_closed(work.connection, now=now, limit=BATCH)


def _has_closed(database: Database, *, now: int) -> bool:
    with database.file.read() as connection:
        return _is_enabled(database, connection) and due.has_closed(connection, now=now)


def _enter_queues(work: Work) -> None:
    """P34."""
    waiting = [endpoints.by_id(work.connection, endpoint_id) for endpoint_id in due.inbound(work.connection)]
    queues = {queue_of(work, endpoint).queue_id for endpoint in waiting if endpoint is not None}
    for queue_id in sorted(queues):
        release(work, work.objects.queues_by_id[queue_id])


def _end_lifetimes(work: Work, *, now: int) -> None:
    """B16: each end by itself, since each knows the lifetime."""
    error = failure(_LIFETIME_PASSED)
    for endpoint_id in due.lifetimes(work.connection, now=now, limit=BATCH):
        endpoint = endpoints.by_id(work.connection, endpoint_id)
        if endpoint is not None:
            break_off(work, endpoint, error.body())
            told_conversation(
                work, endpoint, ConversationStep.BROKER_INITIATED_ERROR, error=error.code, text=error.description
            )


def _fire_timers(work: Work, *, now: int) -> bool:
    """Fact 137; whether there were any."""
    found = due.timers(work.connection, now=now, limit=BATCH)
    for endpoint_id in found:
        endpoint = endpoints.by_id(work.connection, endpoint_id)
        if endpoint is not None:
            endpoints.set_timer(work.connection, endpoint_id, None)
            enqueue(work, endpoint, queue_of(work, endpoint), [Entry(0, DIALOG_TIMER, None)])
    return bool(found)
