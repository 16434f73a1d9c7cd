"""Work after commits and over time: notifications, deliveries, and due work in each database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from ssbroker._arguments import EPOCH, epoch_microseconds, utc_datetime
from ssbroker.broker.activation import Activation
from ssbroker.broker.background_thread import WorkerThread
from ssbroker.broker.commit_signals import OBJECTS_CHANNEL, TRANSMISSIONS_CHANNEL
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.delivery import Delivery
from ssbroker.broker.delivery_schedule import DeliverySchedule, SenderId
from ssbroker.broker.dialogs import poison_message_handling
from ssbroker.broker.due_work import enter_queues, run_due
from ssbroker.broker.dynamic_routing import DynamicRouting
from ssbroker.broker.effects import Effects
from ssbroker.broker.live_catalog import LiveCatalog
from ssbroker.broker.live_routes import LiveRoutes
from ssbroker.broker.lock_patience import LockPatience, LockWait, has_work_failed, lock_timeout_for
from ssbroker.exceptions import LockTimeoutError, SsbrokerError, StorageError
from ssbroker.protocol.retry_waits import Backoff
from ssbroker.protocol.settings import SECOND


class Background:
    """The background work of an instance, done by `run_due`; with `background=True`, a thread calls `run_due`.

    Attributes:
        catalog: The live catalog of the instance.
        routes: The routing decisions for live conversations.
        delivery: The delivery of messages.
        activation: The activation of queue readers.
        dynamic_routing: The requests for missing routes.
    """

    def __init__(self, instance: InstanceContext, *, public: Callable[[DatabaseContext], object]) -> None:
        self._instance: Final = instance
        self._schedule: Final = DeliverySchedule(Backoff(random=instance.random.random))
        self.dynamic_routing: Final = DynamicRouting(instance)
        self.catalog: Final = LiveCatalog(instance, pending_requests=self.dynamic_routing.pending)
        self.routes: Final = LiveRoutes(instance, self.catalog)
        self.delivery: Final = Delivery(
            instance, self._schedule, routes=self.routes, dynamic_routing=self.dynamic_routing
        )
        self.activation: Final = Activation(instance, public=public)
        self._versions: dict[int, int] = {}
        # Separate, because a database without due timers succeeds without the lock, although deliveries to it may have to wait.
        self._timer_patience: Final = LockPatience()
        self._delivery_patience: Final = LockPatience()
        self._runner: Final = WorkerThread(
            self._run_due_in_thread, clock=instance.clock, name=f"ssbroker {instance.name}"
        )

    def run_due(self, now: datetime | None = None) -> datetime | None:
        """Does all work that is due; returns the time at which more work is due, or None if no work is scheduled."""
        return self._run_due(now, timers_wait=None, delivery_wait=None)

    def _run_due_in_thread(self) -> datetime | None:
        """Does all work that is due; waits for a locked database as long as `LockPatience` determines."""
        self._timer_patience.begin_round()
        self._delivery_patience.begin_round()
        return self._run_due(None, timers_wait=self._timer_patience, delivery_wait=self._delivery_patience)

    def _run_due(self, now: datetime | None, *, timers_wait: LockWait, delivery_wait: LockWait) -> datetime | None:
        at = self._instance.microseconds() if now is None else epoch_microseconds(utc_datetime(now))
        self._check_for_changes(timers_wait)
        retries: dict[int, int] = {}
        for database in self._instance.databases:
            self._run_timers(database, retries, now=at, is_delivered=False, lock_wait=timers_wait)
        self.delivery.run_due(now=at, lock_wait=delivery_wait)
        # Readers run last, and due times are read after they have run, because readers may set timers.
        due_times = [self.activation.run_due(now=at), self.delivery.next_time()]
        due_times += [
            self._run_timers(database, retries, now=at, is_delivered=True, lock_wait=timers_wait)
            for database in self._instance.databases
        ]
        first = min((each for each in due_times if each is not None), default=None)
        return None if first is None else EPOCH + timedelta(microseconds=first)

    def wake(self) -> None:
        """Wakes the thread immediately. When the instance is opened, the thread also finishes work that was left when the files were last closed."""
        self._wake(None)

    def close(self) -> None:
        """Stops the threads. Ends waiting RECEIVE calls, and waits up to `lock_timeout` for readers that are running."""
        self._runner.close()
        with suppress(StorageError):  # the instance is already closed, or its files are inaccessible
            for database in self._instance.databases:
                database.commit_signals.close()
        self.activation.close(timeout=self._instance.lock_timeout)

    def conversation_begins(self, database_id: int, endpoint_id: int) -> None:
        """Forgets the deliveries of an earlier endpoint that had the same id."""
        self.delivery.forget(SenderId(database_id, endpoint_id))

    def committed(self, database: DatabaseContext, effects: Effects) -> None:
        """Processes a committed transaction: emits its events, wakes receivers, and delivers its messages."""
        self._instance.counters.committed(effects)
        try:
            for event in effects.events:
                self._instance.events.emit(event)
        finally:  # committed work continues even after an interrupt
            self._continue_after_commit(database, effects)

    def _continue_after_commit(self, database: DatabaseContext, effects: Effects) -> None:
        if effects.arrived:
            database.commit_signals.notify(effects.arrived)
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
        """Counts the rollback, also for poison message handling, and starts needed readers."""
        self._instance.counters.rolled_back()
        received = poison_message_handling.received_from(effects)
        if received:
            try:
                poison_message_handling.handle_rollbacks(database, received, effects.error)
            except SsbrokerError as error:
                log_failure(
                    database,
                    "a rollback could not be counted; poison message handling takes effect one rollback later",
                    error,
                )
        self._activate(database, effects, is_committed=False)

    def changed(self, database: DatabaseContext) -> None:
        """Retries waiting messages after objects of a database have changed, or the database was attached or detached."""
        self._schedule.schedule_all_now(now=self._instance.microseconds())
        self._apply_changes(database)
        self._wake(None)
        with suppress(StorageError):  # msdb may be unavailable
            self._instance.msdb.commit_signals.notify([OBJECTS_CHANNEL, TRANSMISSIONS_CHANNEL])

    def _check_for_changes(self, lock_wait: LockWait) -> None:
        """Applies changes made by other processes; on the first call, applies everything."""
        before, self._versions = self._versions, {}
        for database, objects in self._instance.databases_list.readable():
            if before.get(database.database_id) != objects.version:
                if before:
                    self._schedule.schedule_all_now(now=self._instance.microseconds())
                if not self._apply_changes(database, lock_wait=lock_wait):
                    continue
            self._versions[database.database_id] = objects.version

    def _apply_changes(self, database: DatabaseContext, *, lock_wait: LockWait = None) -> bool:
        """Applies changed objects; returns whether it succeeded. A failure is retried later."""
        try:
            with lock_timeout_for(database, lock_wait) as lock_timeout:
                enter_queues(database, lock_timeout=lock_timeout)
            database.commit_signals.notify(list(database.objects().queues_by_id))
            self.activation.changed(database)
        except SsbrokerError as error:
            if _has_failed(error, database, lock_wait):
                log_failure(database, "changed objects could not be applied; retrying later", error)
            return False
        return True

    def _run_timers(
        self,
        database: DatabaseContext,
        retries: dict[int, int],
        *,
        now: int,
        is_delivered: bool,
        lock_wait: LockWait,
    ) -> int | None:
        """Does due work in a database; returns the time at which more work is due.

        After a failure, `retries` contains the time of the next attempt, and further calls with these `retries` do nothing.
        """
        if database.database_id in retries:
            return retries[database.database_id]
        try:
            with lock_timeout_for(database, lock_wait) as lock_timeout:
                self.dynamic_routing.close_ended_requests(database, lock_timeout=lock_timeout)
                return run_due(database, now=now, is_delivered=is_delivered, lock_timeout=lock_timeout)
        except SsbrokerError as error:
            retry_at = now
            if _has_failed(error, database, lock_wait):
                log_failure(database, "timers and lifetimes could not be processed; retrying in 1 s", error)
                retry_at += SECOND
            return retries.setdefault(database.database_id, retry_at)

    def _deliver(self, database: DatabaseContext, effects: Effects) -> None:
        is_left = True
        try:
            is_left = self.delivery.deliver_sent(database, effects.outbound, messages=effects.transmission_added)
        except Exception as error:  # noqa: BLE001 - the commit is durable, so the background thread delivers
            log_failure(database, "messages could not be delivered; retrying later", error)
        retry_at = self.delivery.next_time()
        if is_left or retry_at is not None:
            self._wake(None if is_left else retry_at)

    def _activate(self, database: DatabaseContext, effects: Effects, *, is_committed: bool) -> None:
        try:
            self.activation.transaction_ended(database, effects, is_committed=is_committed)
        except SsbrokerError as error:
            log_failure(database, "could not determine whether a reader is needed; trying again later", error)

    def _wake(self, at: int | None) -> None:
        """Makes the thread call `run_due` at a time; None means immediately."""
        if self._instance.background:
            self._runner.wake(None if at is None else EPOCH + timedelta(microseconds=at))


def _has_failed(error: SsbrokerError, database: DatabaseContext, lock_wait: LockWait) -> bool:
    """Returns whether an error ends the work in a database, and not only a short wait for its lock."""
    return not isinstance(error, LockTimeoutError) or has_work_failed(database, lock_wait)
