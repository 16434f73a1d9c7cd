"""Work after commits and over time: notifications, deliveries, timers, lifetimes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from ssbroker._arguments import EPOCH, epoch_microseconds, utc_datetime
from ssbroker.broker.activation import Activation
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.delivery import Delivery, Retries, SenderKey
from ssbroker.broker.dialogs import receive
from ssbroker.broker.dialogs.deliver import end_with_error
from ssbroker.broker.dialogs.enqueue import QueueEntry, enqueue, queue_of, release
from ssbroker.broker.dialogs.errors import failure
from ssbroker.broker.dynamic_routing import DynamicRouting
from ssbroker.broker.effects import Effects
from ssbroker.broker.failure_log import log_failure
from ssbroker.broker.routes import LiveCatalog, LiveRoutes
from ssbroker.broker.unit_of_work import Work, emit_conversation_event, instance_transaction
from ssbroker.broker.worker_thread import WorkerThread
from ssbroker.exceptions import SsbrokerError, StorageError
from ssbroker.protocol.config import DIALOG_TIMER, SECOND, Backoff
from ssbroker.protocol.events import ConversationStep
from ssbroker.store import endpoints
from ssbroker.store.sqlite import Connection

BATCH: Final = 1_000
"""The endpoints that one transaction deals with at most."""
_LIFETIME_PASSED: Final = 8489


def run_due(database: DatabaseContext, *, now: int, is_delivered: bool) -> int | None:
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
        with instance_transaction(database) as work:
            _enter_queues(work)
            if not _fire_timers(work, now=now):  # none is set beyond the lifetime of its conversation
                _end_lifetimes(work, now=now)
    if is_delivered:
        _remove_closed(database, now=now)
    with database.file.read() as connection:
        return endpoints.next_due_time(connection) if _is_enabled(database, connection) else None


def enter_queues(database: DatabaseContext) -> None:
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
    with instance_transaction(database) as work:
        _enter_queues(work)


def _is_enabled(database: DatabaseContext, connection: Connection) -> bool:
    return database.objects(connection).broker.is_delivering


def _is_due(database: DatabaseContext, *, now: int) -> bool:
    with database.file.read() as connection:
        if not _is_enabled(database, connection):
            return False
        found = endpoints.expired_lifetimes(connection, now=now, limit=1) or endpoints.expired_timers(
            connection, now=now, limit=1
        )
        return bool(found) or _enters(database, connection)


def _enters(database: DatabaseContext, connection: Connection) -> bool:
    """Whether anything waits for a queue that is on by now.

    What comes waits for a queue that is off, so nothing enters one before the objects have changed; what waits is not walked through at each look.
    """
    version = database.objects(connection).version
    if database.enters_nothing == version:
        return False
    if endpoints.enqueueable_endpoints(connection):
        return True
    database.enters_nothing = version
    return False


def _remove_closed(database: DatabaseContext, *, now: int) -> None:
    """B14."""
    while _has_closed(database, now=now):
        with instance_transaction(database) as work:
            endpoints.remove_closed(work.connection, now=now, limit=BATCH)


def _has_closed(database: DatabaseContext, *, now: int) -> bool:
    with database.file.read() as connection:
        return _is_enabled(database, connection) and endpoints.has_removable(connection, now=now)


def _enter_queues(work: Work) -> None:
    """P34."""
    waiting = [
        endpoints.by_id(work.connection, endpoint_id)
        for endpoint_id in endpoints.enqueueable_endpoints(work.connection)
    ]
    queues = {queue_of(work, endpoint).queue_id for endpoint in waiting if endpoint is not None}
    for queue_id in sorted(queues):
        release(work, work.objects.queues_by_id[queue_id])


def _end_lifetimes(work: Work, *, now: int) -> None:
    """B16: each end by itself, since each knows the lifetime."""
    error = failure(_LIFETIME_PASSED)
    for endpoint_id in endpoints.expired_lifetimes(work.connection, now=now, limit=BATCH):
        endpoint = endpoints.by_id(work.connection, endpoint_id)
        if endpoint is not None:
            end_with_error(work, endpoint, error.body())
            emit_conversation_event(
                work, endpoint, ConversationStep.BROKER_INITIATED_ERROR, error=error.code, text=error.description
            )


def _fire_timers(work: Work, *, now: int) -> bool:
    """Fact 137; whether there were any."""
    found = endpoints.expired_timers(work.connection, now=now, limit=BATCH)
    for endpoint_id in found:
        endpoint = endpoints.by_id(work.connection, endpoint_id)
        if endpoint is not None:
            endpoints.set_timer(work.connection, endpoint_id, None)
            enqueue(work, endpoint, queue_of(work, endpoint), [QueueEntry(0, DIALOG_TIMER, None)])
    return bool(found)


class Background:
    """The work of an instance that nobody asks for. `run_due` does it; with `background=True` a thread calls that.

    Attributes:
        catalog: The catalog of the instance.
        routes: Where conversations go.
        delivery: What brings them there.
        activation: What starts the readers of queues.
        dynamic_routing: What asks for routes that are missing.
    """

    def __init__(self, instance: InstanceContext, *, public: Callable[[DatabaseContext], object]) -> None:
        self._instance: Final = instance
        self._retries: Final = Retries(Backoff(random=instance.random.random))
        self.dynamic_routing: Final = DynamicRouting(instance)
        self.catalog: Final = LiveCatalog(instance, pending_requests=self.dynamic_routing.pending)
        self.routes: Final = LiveRoutes(instance, self.catalog)
        self.delivery: Final = Delivery(
            instance, self._retries, routes=self.routes, dynamic_routing=self.dynamic_routing
        )
        self.activation: Final = Activation(instance, public=public)
        self._versions: dict[int, int] = {}
        self._runner: Final = WorkerThread(self.run_due, clock=instance.clock, name=f"ssbroker {instance.name}")

    def run_due(self, now: datetime | None = None) -> datetime | None:
        """Does everything that is due, once.

        Args:
            now: The moment; None is that of the instance's clock.

        Returns:
            When the next thing is due, as far as is known now; None where nothing is.
        """
        at = self._now() if now is None else epoch_microseconds(utc_datetime(now))
        self._look_for_changes()
        for database in self._instance.databases:
            self._timers(database, now=at, is_delivered=False)
        self.delivery.run_due(now=at)
        # Readers last, and asked for moments after them: they may have set timers.
        moments = [self.activation.run_due(now=at), self._retries.next_moment()]
        moments += [self._timers(database, now=at, is_delivered=True) for database in self._instance.databases]
        first = min((each for each in moments if each is not None), default=None)
        return None if first is None else EPOCH + timedelta(microseconds=first)

    def wake(self) -> None:
        """Has the thread look at once; it takes up what was left when the files were last closed, too."""
        self._wake(None)

    def close(self) -> None:
        """Ends the threads. Readers that wait in a RECEIVE find nothing; those that work are waited for, up to `lock_timeout`."""
        self._runner.close()
        with suppress(StorageError):  # it was closed before, or its files are out of reach
            for database in self._instance.databases:
                database.arrivals.close()
        self.activation.close(timeout=self._instance.lock_timeout)

    def conversation_begins(self, database_id: int, endpoint_id: int) -> None:
        """A transaction makes an endpoint: whoever had its number before is gone, with the waits of its messages.

        Args:
            database_id: The database.
            endpoint_id: The endpoint.
        """
        self._retries.forget(SenderKey(database_id, endpoint_id))

    def committed(self, database: DatabaseContext, effects: Effects) -> None:
        """A transaction has committed: subscribers hear of it, whoever waits is woken, what it sent is delivered.

        Args:
            database: The database.
            effects: What the transaction did.
        """
        self._instance.counters.committed(effects)
        try:
            for event in effects.events:
                self._instance.events.emit(event)
        finally:  # an interrupt, too, keeps nothing that is committed from its way
            self._go_on(database, effects)

    def _go_on(self, database: DatabaseContext, effects: Effects) -> None:
        if effects.arrived:
            database.arrivals.tell(effects.arrived)
            if self.dynamic_routing.arrived(database, effects.arrived):
                self._wake(None)
        if effects.outbound:
            self._deliver(database, effects)
        if effects.is_catalog_changed:
            self.changed(database)
        if effects.due is not None:
            self._wake(effects.due)
        self._activate(database, effects, is_committed=True)

    def rolled_back(self, database: DatabaseContext, effects: Effects) -> None:
        """A transaction was rolled back, or could not be committed.

        Args:
            database: The database.
            effects: What it would have done.
        """
        self._instance.counters.rolled_back()
        queue_ids = receive.received_from(effects)
        if queue_ids:
            try:
                receive.rolled_back(database, queue_ids)
            except SsbrokerError as error:
                log_failure(database, "a rollback could not be counted", error)
        self._activate(database, effects, is_committed=False)

    def changed(self, database: DatabaseContext) -> None:
        """Objects of a database have changed, or it came or went: what waits is tried at once.

        Args:
            database: The database.
        """
        self._retries.hasten(now=self._now())
        self._take_up(database)
        self._wake(None)

    def _look_for_changes(self) -> None:
        """Takes up what other processes have changed; at the first look, everything."""
        before, self._versions = self._versions, {}
        for database, objects in self._instance.databases_list.seen():
            if before.get(database.database_id) != objects.version:
                if before:
                    self._retries.hasten(now=self._now())
                if not self._take_up(database):
                    continue
            self._versions[database.database_id] = objects.version

    def _take_up(self, database: DatabaseContext) -> bool:
        """Whether nothing failed; what did is taken up again at the next look."""
        try:
            enter_queues(database)
            database.arrivals.tell(list(database.objects().queues_by_id))
            self.activation.changed(database)
        except SsbrokerError as error:
            log_failure(database, "what has changed is taken up later", error)
            return False
        return True

    def _now(self) -> int:
        return epoch_microseconds(self._instance.clock())

    def _timers(self, database: DatabaseContext, *, now: int, is_delivered: bool) -> int | None:
        try:
            self.dynamic_routing.settle(database)
            return run_due(database, now=now, is_delivered=is_delivered)
        except SsbrokerError as error:
            log_failure(database, "what is due is tried again in a second", error)
            return now + SECOND

    def _deliver(self, database: DatabaseContext, effects: Effects) -> None:
        try:
            is_left = self.delivery.sent(database, effects.outbound)
        except SsbrokerError as error:  # the commit stands, and the thread takes it up
            log_failure(database, "messages could not be delivered, and are tried again", error)
            is_left = True
        left = self._retries.next_moment()
        if left is not None:
            self._wake(None if is_left else left)

    def _activate(self, database: DatabaseContext, effects: Effects, *, is_committed: bool) -> None:
        try:
            self.activation.ended(database, effects, is_committed=is_committed)
        except SsbrokerError as error:
            log_failure(database, "whether a reader is needed could not be found out", error)

    def _wake(self, at: int | None) -> None:
        """Has the thread call `run_due` at a moment; None is at once."""
        if self._instance.background:
            self._runner.wake(None if at is None else EPOCH + timedelta(microseconds=at))
