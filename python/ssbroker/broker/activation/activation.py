"""Starts the readers of queues when they are needed (B23, facts 143, 144)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ssbroker import moment, options
from ssbroker.broker.activation.watched import (
    Asked,
    MonitorRow,
    Procedure,
    Reader,
    TaskRow,
    Watched,
    check_callable,
    with_messages,
)
from ssbroker.broker.objects.queue_names import procedure_key, queue_key
from ssbroker.broker.objects.queues import READERS_MAX
from ssbroker.broker.objects.refusals import existing
from ssbroker.broker.work.effects import Effects
from ssbroker.broker.work.telling import queue_name
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.event_steps import ActivationStep
from ssbroker.protocol.events import Activation as ActivationEvent
from ssbroker.store.objects import Objects, Queue

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance

_QUEUE_OFF: Final = 9617
_NEVER_RECEIVED: Final = "28087: the reader ended without a RECEIVE from its queue"
LOGGER: Final = logging.getLogger("ssbroker.broker")
_LONGEST_WAIT: Final = threading.TIMEOUT_MAX / 2  # what is left of it can be waited for, whatever the clock says
_Key = tuple[int, int]


class Activation:
    """The queues whose readers this process starts, and the readers that run. For any number of threads.

    Args:
        instance: The instance. Without `background`, readers run in the thread that calls `run_due`, one after the other.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance: Final = instance
        self._guard: Final = threading.RLock()
        self._procedures: dict[tuple[str, str], Procedure] = {}
        self._queues: dict[_Key, Watched] = {}
        self._threads: set[threading.Thread] = set()
        self._reader: Final = Reader()
        self._is_closed = False

    def activate(self, database: Database, queue: str, procedure: Procedure, *, max_queue_readers: int) -> None:
        """Has readers of a queue started from now on, as `Database.activate` says."""
        check_callable(procedure)
        most = options.whole(max_queue_readers, name="max_queue_readers", least=0, most=READERS_MAX)
        found = existing(database.objects().queues, queue_key(queue), kind="queue")
        name = getattr(procedure, "__qualname__", type(procedure).__qualname__)
        with self._guard:
            watched = self._watch(database, found)
            watched.ask(Asked(procedure, name, most), by="method")
        self._look([watched])
        self._instance.worker.wake()  # from now on it looks every few seconds

    def deactivate(self, database: Database, queue: str) -> None:
        """Has no further reader started that `activate` asked for."""
        found = existing(database.objects().queues, queue_key(queue), kind="queue")
        with self._guard:
            watched = self._queues.get((database.database_id, found.queue_id))
            if watched is not None:
                watched.ask(None, by="method")
                self._forget_those_over()

    def register(self, name: str, procedure: Procedure) -> None:
        """Gives a function the name by which queues ask for it, as `Instance.register_procedure` says."""
        check_callable(procedure)
        self._instance.check()
        with self._guard:
            self._procedures[procedure_key(name)] = procedure
        for database in self._instance.databases:
            self.changed(database)

    def changed(self, database: Database) -> None:
        """The queues of a database have changed: what their ACTIVATION clauses say is done from now on."""
        objects = database.objects()
        with self._guard:
            for each in [one for one in self._queues.values() if one.database is database and _is_gone(one, objects)]:
                self._drop(each)
            for queue in objects.queues.values():
                wanted = self._wanted(queue)
                if wanted is not None or (database.database_id, queue.queue_id) in self._queues:
                    self._watch(database, queue).ask(wanted, by="clause")
            self._forget_those_over()
        self._look(with_messages(self._watched(database.database_id, objects.queues_by_id)))

    def ended(self, database: Database, effects: Effects, *, is_committed: bool) -> None:
        """A transaction has ended: the monitors of its queues hear of it, and readers are started where they are needed now."""
        if not self._queues:
            return
        now = self._now()
        if any(not each.is_empty for each in effects.received) and is_committed:
            self._reader.is_done = True
        reads = self._reader.watched
        if reads is not None and reads.database is database:
            self._reader.has_received |= any(each.queue_id == reads.queue_id for each in effects.received)
        for each in effects.received:
            if each.is_empty and not each.is_named:
                self._reader.is_done = True
            for watched in self._watched(database.database_id, [each.queue_id]):
                watched.received(is_empty=each.is_empty, is_named=each.is_named, now=now)
        arrived = effects.arrived if is_committed else set()
        for watched in self._watched(database.database_id, arrived):
            if watched.is_limit_reached(now=now):
                self._instance.worker.counters.task_limit_reached()
        self._look(self._watched(database.database_id, {*arrived, *(each.queue_id for each in effects.received)}))

    def run_due(self, *, now: int) -> int | None:
        """Looks at every queue, as is done every few seconds too.

        Args:
            now: The moment.

        Returns:
            When to look again; None where no queue has messages to be read.
        """
        with self._guard:
            for each in [one for one in self._queues.values() if one.database.arrivals.is_closed]:
                self._drop(each)
            self._forget_those_over()
        databases = {each.database_id for each in self._instance.databases}
        watched = [each for each in self._all() if each.database.database_id in databases]
        if self._instance.background:
            self._look(with_messages(watched))
        else:
            self._read_here(watched)
        checks = [each.next_check(now=now) for each in with_messages(watched)]
        return min((each for each in checks if each is not None), default=None)

    def close(self, *, timeout: float) -> None:
        """Starts no further reader, and waits for those that run.

        Args:
            timeout: The seconds to wait for all of them.
        """
        deadline = time.monotonic() + min(timeout, _LONGEST_WAIT)
        with self._guard:
            self._is_closed = True
            threads = [each for each in self._threads if each is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def monitor_rows(self) -> list[MonitorRow]:
        """The rows of `sys.dm_broker_queue_monitors`."""
        return [each.monitor_row() for each in self._all()]

    def task_rows(self) -> list[TaskRow]:
        """The rows of `sys.dm_broker_activated_tasks`."""
        return [row for each in self._all() for row in each.task_rows()]

    def _now(self) -> int:
        return moment.microseconds(self._instance.clock())

    def _all(self) -> list[Watched]:
        with self._guard:
            return list(self._queues.values())

    def _watched(self, database_id: int, queue_ids: Iterable[int]) -> list[Watched]:
        with self._guard:
            found = [self._queues.get((database_id, each)) for each in sorted(queue_ids)]
        return [each for each in found if each is not None]

    def _watch(self, database: Database, queue: Queue) -> Watched:
        """The one that watches a queue; another queue may have had its number."""
        key = (database.database_id, queue.queue_id)
        known = self._queues.get(key)
        if known is None or known.queue_name != queue_name(queue):
            if known is not None:
                self._drop(known)
            known = self._queues[key] = Watched(database, queue)
            self._instance.worker.counters.plain.watch(True)
        return known

    def _drop(self, watched: Watched) -> None:
        watched.retire()
        del self._queues[watched.database.database_id, watched.queue_id]
        self._instance.worker.counters.plain.watch(bool(self._queues))

    def _forget_those_over(self) -> None:
        for each in [one for one in self._queues.values() if one.is_over]:
            self._drop(each)

    def _wanted(self, queue: Queue) -> Asked | None:
        """What a queue's ACTIVATION clause asks for, if this process has the procedure."""
        if not queue.is_activation_enabled or queue.activation_procedure is None:
            return None
        try:
            procedure = self._procedures.get(procedure_key(queue.activation_procedure))
        except BrokerError:
            return None
        return None if procedure is None else Asked(procedure, queue.activation_procedure, queue.max_readers)

    def _look(self, watched: Iterable[Watched]) -> None:
        """Starts the readers that are needed now, each in a thread of its own; without `background`, `run_due` does it."""
        if not self._instance.background:
            return
        now = self._now()
        for each in watched:
            with self._guard:
                asked = None if self._is_closed else each.start_if_needed(now=now)
                if asked is None:
                    continue
                name = f"ssbroker reader of {each.database.name}, {each.queue_name}"
                thread = threading.Thread(target=self._read, args=(each, asked), name=name, daemon=True)
                self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no thread to give
                    self._threads.discard(thread)
                    each.not_started(now=now)
                    LOGGER.warning("%s: could not be started, and is in a few seconds: %s", name, error)

    def _read_here(self, watched: Collection[Watched]) -> None:
        """Runs readers in this thread until none is needed; one that reads is not asked to read by itself."""
        if self._reader.is_reading:
            return
        self._reader.is_reading = True
        try:
            found, has_run = with_messages(watched), False
            for each in watched:
                if each not in found and not has_run:  # a reader may have filled it
                    continue
                while not self._is_closed and (asked := each.start_if_needed(now=self._now())) is not None:
                    self._run(each, asked)
                    has_run = True
        finally:
            self._reader.is_reading = False

    def _read(self, watched: Watched, asked: Asked | None) -> None:
        """A reader's thread: when its function has returned and is needed again, it is called again."""
        try:
            while asked is not None:
                with suppress(SystemExit):
                    self._run(watched, asked)
                asked = None if self._is_closed else watched.start_if_needed(now=self._now())
        finally:
            with self._guard:
                self._threads.discard(threading.current_thread())

    def _run(self, watched: Watched, asked: Asked) -> None:
        """Calls a reader's function once. What it raises goes no further."""
        self._reader.watched, self._reader.has_received, self._reader.is_done = watched, False, False
        watched.entered(asked.procedure_name)
        step, text = ActivationStep.ABORTED, "it was interrupted"
        try:
            self._tell(watched, ActivationStep.STARTED)
            asked.procedure(watched.database)
            step, text = ActivationStep.ENDED, ""
        except Exception as error:
            if isinstance(error, BrokerError) and error.number == _QUEUE_OFF:
                LOGGER.info("a reader ended: %s: %s", asked.procedure_name, error)
            else:
                LOGGER.exception("a reader failed: %s", asked.procedure_name)
            text = f"{type(error).__name__}: {error}"
        finally:
            self._reader.watched = None
            is_in_vain = watched.ended(
                has_received=self._reader.has_received, is_done=self._reader.is_done, now=self._now()
            )
            if step is ActivationStep.ENDED and is_in_vain:
                text = _NEVER_RECEIVED
                LOGGER.warning("%s: %s", asked.procedure_name, text)
            self._tell(watched, step, text)

    def _tell(self, watched: Watched, step: ActivationStep, text: str = "") -> None:
        self._instance.events.emit(
            ActivationEvent(
                at=self._now(),
                database=watched.database.name,
                queue=watched.queue_name,
                step=step,
                active_readers=watched.running,
                text=text,
            )
        )


def _is_gone(watched: Watched, objects: Objects) -> bool:
    """Whether the queue is no longer there, though another may have its number since."""
    queue = objects.queues_by_id.get(watched.queue_id)
    return queue is None or queue_name(queue) != watched.queue_name
