"""What happens after commits and over time: who is told, what is delivered, what falls due."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ssbroker import moment
from ssbroker.broker import timers
from ssbroker.broker.activation.activation import Activation
from ssbroker.broker.asking.dynamic_routing import DynamicRouting
from ssbroker.broker.counters import Counters
from ssbroker.broker.delivery.delivery import Delivery
from ssbroker.broker.delivery.retries import Key, Retries
from ssbroker.broker.delivery.ways import Ways
from ssbroker.broker.dialogs import poison
from ssbroker.broker.failing import told_failure
from ssbroker.broker.runner import Runner
from ssbroker.broker.work.effects import Effects
from ssbroker.exceptions import SsbrokerError, StorageError
from ssbroker.moment import EPOCH
from ssbroker.protocol.retry import SECOND, Backoff

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance


class Background:
    """The work of an instance that nobody asks for. `run_due` does it; with `background=True` a thread calls that.

    Attributes:
        ways: Where conversations go.
        delivery: What brings them there.
        activation: What starts the readers of queues.
        dynamic_routing: What asks for routes that are missing.
        counters: What has been done in this process.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance: Final = instance
        self._retries: Final = Retries(Backoff(roll=instance.random.random))
        self.ways: Final = Ways(instance)
        self.delivery: Final = Delivery(instance, self._retries)
        self.activation: Final = Activation(instance)
        self.dynamic_routing: Final = DynamicRouting(instance)
        self.counters: Final = Counters()
        self._versions: dict[int, int] = {}
        self._runner: Final = Runner(self.run_due, clock=instance.clock, name=f"ssbroker {instance.name}")

    def run_due(self, now: datetime | None = None) -> datetime | None:
        """Does everything that is due, once.

        Args:
            now: The moment; None is that of the instance's clock.

        Returns:
            When the next thing is due, as far as is known now; None where nothing is.
        """
        at = self._now() if now is None else moment.microseconds(moment.as_utc(now))
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

    def begins(self, database_id: int, endpoint_id: int) -> None:
        """A transaction makes an endpoint: whoever had its number before is gone, with the waits of its messages.

        Args:
            database_id: The database.
            endpoint_id: The endpoint.
        """
        self._retries.forget(Key(database_id, endpoint_id))

    def committed(self, database: Database, effects: Effects) -> None:
        """A transaction has committed: subscribers hear of it, whoever waits is woken, what it sent is delivered.

        Args:
            database: The database.
            effects: What the transaction did.
        """
        self.counters.committed(effects)
        try:
            for event in effects.events:
                self._instance.events.emit(event)
        finally:  # an interrupt, too, keeps nothing that is committed from its way
            self._go_on(database, effects)

    def _go_on(self, database: Database, effects: Effects) -> None:
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

    def rolled_back(self, database: Database, effects: Effects) -> None:
        """A transaction was rolled back, or could not be committed.

        Args:
            database: The database.
            effects: What it would have done.
        """
        self.counters.rolled_back()
        queue_ids = poison.received_from(effects)
        if queue_ids:
            try:
                poison.rolled_back(database, queue_ids)
            except SsbrokerError as error:
                told_failure(database, "a rollback could not be counted", error)
        self._activate(database, effects, is_committed=False)

    def changed(self, database: Database) -> None:
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
        for database, objects in self._instance.seen():
            if before.get(database.database_id) != objects.version:
                if before:
                    self._retries.hasten(now=self._now())
                if not self._take_up(database):
                    continue
            self._versions[database.database_id] = objects.version

    def _take_up(self, database: Database) -> bool:
        """Whether nothing failed; what did is taken up again at the next look."""
        try:
            timers.enter_queues(database)
            database.arrivals.tell(list(database.objects().queues_by_id))
            self.activation.changed(database)
        except SsbrokerError as error:
            told_failure(database, "what has changed is taken up later", error)
            return False
        return True

    def _now(self) -> int:
        return moment.microseconds(self._instance.clock())

    def _timers(self, database: Database, *, now: int, is_delivered: bool) -> int | None:
        try:
            self.dynamic_routing.settle(database)
            return timers.run_due(database, now=now, is_delivered=is_delivered)
        except SsbrokerError as error:
            told_failure(database, "what is due is tried again in a second", error)
            return now + SECOND

    def _deliver(self, database: Database, effects: Effects) -> None:
        try:
            is_left = self.delivery.sent(database, effects.outbound)
        except SsbrokerError as error:  # the commit stands, and the thread takes it up
            told_failure(database, "messages could not be delivered, and are tried again", error)
            is_left = True
        left = self._retries.next_moment()
        if left is not None:
            self._wake(None if is_left else left)

    def _activate(self, database: Database, effects: Effects, *, is_committed: bool) -> None:
        try:
            self.activation.ended(database, effects, is_committed=is_committed)
        except SsbrokerError as error:
            told_failure(database, "whether a reader is needed could not be found out", error)

    def _wake(self, at: int | None) -> None:
        """Has the thread call `run_due` at a moment; None is at once."""
        if self._instance.background:
            self._runner.wake(None if at is None else EPOCH + timedelta(microseconds=at))
