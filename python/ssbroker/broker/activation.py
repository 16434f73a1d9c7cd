"""Activation: starts queue readers when messages wait and no reader takes them."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ssbroker._arguments import epoch_microseconds, whole_number
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.effects import Effects
from ssbroker.broker.failure_log import log_failure
from ssbroker.broker.object_definitions import READERS_MAX
from ssbroker.broker.queue_monitor import MonitorState, QueueMonitor
from ssbroker.broker.unit_of_work import queue_name
from ssbroker.broker.validation import existing, procedure_key, queue_key
from ssbroker.exceptions import BrokerError, OptionError, StorageError
from ssbroker.protocol.events import ActivationEvent, ActivationStep
from ssbroker.store import queues
from ssbroker.store.objects import Objects, Queue

Procedure: TypeAlias = Callable[[Any], object]
"""What a reader runs: it receives the `Database`, begins its own transactions, and returns when the queue is empty."""


@dataclass(frozen=True, slots=True)
class MonitorRow:
    """A row of `sys.dm_broker_queue_monitors` (fact 159). Moments are microseconds since 1970, UTC."""

    database_id: int
    queue_id: int
    state: MonitorState
    last_empty_rowset_time: int | None
    last_activated_time: int | None
    tasks_waiting: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A row of `sys.dm_broker_activated_tasks` (fact 159): a reader that runs."""

    spid: int
    """The number of its thread."""
    database_id: int
    queue_id: int
    procedure_name: str
    execute_as: int = 1


class ReaderRequest(NamedTuple):
    """What is to read a queue."""

    procedure: Procedure
    procedure_name: str
    """What views call it."""
    max_queue_readers: int


RequestedBy = Literal["method", "clause"]
"""Who asks for readers: `Database.activate`, or the queue's ACTIVATION clause."""
REQUESTED_BY: Final[tuple[RequestedBy, ...]] = ("method", "clause")
"""Whoever stands first goes first."""


class MonitoredQueue:
    """A queue, its monitor, and what its readers run. For any number of threads.

    There is one for a queue, whoever asks for readers and however often that changes, so that the readers that still run count.

    Attributes:
        database: The queue's database.
        queue_id: The queue.
        queue_name: Its schema and name.
    """

    def __init__(self, database: DatabaseContext, queue: Queue) -> None:
        self.database: Final = database
        self.queue_id: Final = queue.queue_id
        self.queue_name: Final = queue_name(queue)
        self._guard: Final = threading.RLock()
        self._monitor: Final = QueueMonitor(max_queue_readers=0)
        self._asked: dict[RequestedBy, ReaderRequest] = {}
        self._readers: dict[int, str] = {}

    @property
    def running(self) -> int:
        """How many readers run."""
        return self._monitor.running

    @property
    def is_over(self) -> bool:
        """Whether nobody asks for readers, and none runs."""
        with self._guard:
            return not self._asked and not self._monitor.running

    def ask(self, asked: ReaderRequest | None, *, by: RequestedBy) -> None:
        """Has readers started as somebody asks from now on; those that run end by themselves.

        Args:
            asked: What is asked for; None is nothing.
            by: Who asks. What the method says goes before what the clause says.
        """
        with self._guard:
            before = self._effective()
            if asked is None:
                self._asked.pop(by, None)
            else:
                self._asked[by] = asked
            now = self._effective()
            if now != before or (by == "method" and asked is not None):
                self._monitor.begin_anew(max_queue_readers=0 if now is None else now.max_queue_readers)

    def retire(self) -> None:
        """The queue is gone: no further reader is started."""
        for by in REQUESTED_BY:
            self.ask(None, by=by)

    def start_if_needed(self, *, now: int) -> ReaderRequest | None:
        """Whether one more reader is needed; if so, it counts as started, and has to be.

        Args:
            now: The moment.

        Returns:
            What it is to run; None where none is needed.
        """
        with self._guard:
            if not self._monitor.can_start(now=now):
                return None
        has_messages = self._has_messages()
        waiting = self.database.arrivals.waiting(self.queue_id)
        with self._guard:
            is_needed = self._monitor.is_reader_needed(has_messages=has_messages, waiting=waiting, now=now)
            if not is_needed:
                return None
            self._monitor.started(now=now)
            return self._effective()

    def is_limit_reached(self, *, now: int) -> bool:
        """Whether a message that has come now gets no further reader, only because as many run as may.

        Args:
            now: The moment.
        """
        waiting = self.database.arrivals.waiting(self.queue_id)
        with self._guard:
            return self._monitor.is_limit_reached(waiting=waiting, now=now)

    def next_check(self, *, now: int) -> int | None:
        """When to look again, if nothing is told before; None where nothing is there to be read.

        Args:
            now: The moment.

        Returns:
            A moment.
        """
        if not self._has_messages():
            return None
        with self._guard:
            return self._monitor.next_check(now=now)

    def received(self, *, is_empty: bool, is_named: bool, now: int) -> None:
        """Somebody received from the queue.

        Args:
            is_empty: Whether nothing was there.
            is_named: Whether a conversation or a group was named.
            now: The moment.
        """
        with self._guard:
            self._monitor.received(is_empty=is_empty, is_named=is_named, now=now)

    def not_started(self, *, now: int) -> None:
        """A reader that counts as started could not be; the next one waits for the next check.

        Args:
            now: The moment.
        """
        with self._guard:
            self._monitor.ended(has_received=False, is_done=False, now=now)

    def entered(self, procedure_name: str) -> None:
        """The calling thread is a reader from now on.

        Args:
            procedure_name: What views call it.
        """
        with self._guard:
            self._readers[threading.get_native_id()] = procedure_name

    def ended(self, *, has_received: bool, is_done: bool, now: int) -> bool:
        """The calling thread's reader has ended.

        Args:
            has_received: Whether it received from the queue, or found it empty.
            is_done: Whether it took something for good, or found a queue empty.
            now: The moment.

        Returns:
            Whether nobody has received from the queue since a reader was last started, nor has this one at all.
        """
        with self._guard:
            self._readers.pop(threading.get_native_id(), None)
            return self._monitor.ended(has_received=has_received, is_done=is_done, now=now)

    def monitor_row(self) -> MonitorRow:
        """What `sys.dm_broker_queue_monitors` says of it."""
        with self._guard:
            return MonitorRow(
                self.database.database_id,
                self.queue_id,
                self._monitor.state,
                self._monitor.last_empty_rowset_time,
                self._monitor.last_activated_time,
                self.database.arrivals.waiting(self.queue_id),
            )

    def task_rows(self) -> list[TaskRow]:
        """What `sys.dm_broker_activated_tasks` says of it."""
        with self._guard:
            return [
                TaskRow(reader, self.database.database_id, self.queue_id, name)
                for reader, name in sorted(self._readers.items())
            ]

    def _effective(self) -> ReaderRequest | None:
        return next((self._asked[by] for by in REQUESTED_BY if by in self._asked), None)

    def _has_messages(self) -> bool:
        """Whether messages can be received; a file that cannot be read keeps no other queue from its readers."""
        try:
            with self.database.file.read() as connection:
                objects = self.database.objects(connection)
                queue = objects.queues_by_id.get(self.queue_id)
                is_on = queue is not None and queue.is_receive_enabled and objects.broker.is_delivering
                return is_on and queues.has_ready_messages(connection, self.queue_id)
        except StorageError as error:
            log_failure(self.database, "whether a reader is needed could not be found out", error)
            return False


class Reader(threading.local):
    """What the calling thread does as a reader."""

    watched: MonitoredQueue | None = None
    """Of which queue it is one."""
    has_received = False
    """Whether it has received from that queue, or found it empty."""
    is_done = False
    """Whether it has taken something for good, or found a queue empty."""
    is_reading = False
    """Whether this thread runs readers one after the other."""


def queues_with_messages(watched: Iterable[MonitoredQueue]) -> set[MonitoredQueue]:
    """Those whose queues hold messages; a database is looked at once, however many of its queues are watched.

    Args:
        watched: The queues.

    Returns:
        Some of them; none of a database that cannot be read.
    """
    by_database: dict[DatabaseContext, list[MonitoredQueue]] = defaultdict(list)
    for each in watched:
        by_database[each.database].append(each)
    found: set[MonitoredQueue] = set()
    for database, queues_of_it in by_database.items():
        try:
            held = database.file.ask(queues.with_ready_messages)
        except StorageError as error:
            log_failure(database, "whether readers are needed could not be found out", error)
            continue
        found.update(each for each in queues_of_it if each.queue_id in held)
    return found


def check_callable(procedure: object) -> None:
    """Refuses what no reader can run.

    Raises:
        OptionError: It cannot be called, or a call would not do its work.
    """
    if not callable(procedure):
        raise OptionError(f"function: expected a callable that is given the database, got {procedure!r:.80}")
    if any(_only_promises(each) for each in (procedure, type(procedure).__call__)):
        raise OptionError(
            f"function: expected one that does its work when it is called, in a thread; got {procedure!r:.80}, which is async or "
            "yields and would do nothing: call it from a function of its own, with asyncio.run(...)"
        )


def _only_promises(function: object) -> bool:
    return any(
        kind(function)
        for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    )


_QUEUE_OFF: Final = 9617
_NEVER_RECEIVED: Final = "28087: the reader ended without a RECEIVE from its queue"
LOGGER: Final = logging.getLogger("ssbroker.broker")
_LONGEST_WAIT: Final = threading.TIMEOUT_MAX / 2  # what is left of it can be waited for, whatever the clock says
_Key = tuple[int, int]


class Activation:
    """The queues whose readers this process starts, and the readers that run. For any number of threads.

    Args:
        instance: The instance. Without `background`, readers run in the thread that calls `run_due`, one after the other.
        public: Returns the public object of a database, which readers receive.
    """

    def __init__(self, instance: InstanceContext, *, public: Callable[[DatabaseContext], object]) -> None:
        self._instance: Final = instance
        self._public: Final = public
        instance.row_sources["sys.dm_broker_activated_tasks"] = lambda: map(astuple, self.task_rows())
        instance.row_sources["sys.dm_broker_queue_monitors"] = lambda: map(astuple, self.monitor_rows())
        self._guard: Final = threading.RLock()
        self._procedures: dict[tuple[str, str], Procedure] = {}
        self._queues: dict[_Key, MonitoredQueue] = {}
        self._threads: set[threading.Thread] = set()
        self._reader: Final = Reader()
        self._is_closed = False

    def activate(self, database: DatabaseContext, queue: str, procedure: Procedure, *, max_queue_readers: int) -> None:
        """Has readers of a queue started from now on, as `Database.activate` says."""
        check_callable(procedure)
        most = whole_number(max_queue_readers, name="max_queue_readers", minimum=0, maximum=READERS_MAX)
        found = existing(database.objects().queues, queue_key(queue), kind="queue")
        name = getattr(procedure, "__qualname__", type(procedure).__qualname__)
        with self._guard:
            watched = self._watch(database, found)
            watched.ask(ReaderRequest(procedure, name, most), by="method")
        self._look([watched])
        self._instance.listener.wake()  # from now on it looks every few seconds

    def deactivate(self, database: DatabaseContext, queue: str) -> None:
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
        self._instance.databases_list.check()
        with self._guard:
            self._procedures[procedure_key(name)] = procedure
        for database in self._instance.databases:
            self.changed(database)

    def changed(self, database: DatabaseContext) -> None:
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
        self._look(queues_with_messages(self._watched(database.database_id, objects.queues_by_id)))

    def ended(self, database: DatabaseContext, effects: Effects, *, is_committed: bool) -> None:
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
                self._instance.counters.task_limit_reached()
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
            self._look(queues_with_messages(watched))
        else:
            self._read_here(watched)
        checks = [each.next_check(now=now) for each in queues_with_messages(watched)]
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
        return epoch_microseconds(self._instance.clock())

    def _all(self) -> list[MonitoredQueue]:
        with self._guard:
            return list(self._queues.values())

    def _watched(self, database_id: int, queue_ids: Iterable[int]) -> list[MonitoredQueue]:
        with self._guard:
            found = [self._queues.get((database_id, each)) for each in sorted(queue_ids)]
        return [each for each in found if each is not None]

    def _watch(self, database: DatabaseContext, queue: Queue) -> MonitoredQueue:
        """The one that watches a queue; another queue may have had its number."""
        key = (database.database_id, queue.queue_id)
        known = self._queues.get(key)
        if known is None or known.queue_name != queue_name(queue):
            if known is not None:
                self._drop(known)
            known = self._queues[key] = MonitoredQueue(database, queue)
            self._instance.counters.plain.watch(True)
        return known

    def _drop(self, watched: MonitoredQueue) -> None:
        watched.retire()
        del self._queues[watched.database.database_id, watched.queue_id]
        self._instance.counters.plain.watch(bool(self._queues))

    def _forget_those_over(self) -> None:
        for each in [one for one in self._queues.values() if one.is_over]:
            self._drop(each)

    def _wanted(self, queue: Queue) -> ReaderRequest | None:
        """What a queue's ACTIVATION clause asks for, if this process has the procedure."""
        if not queue.is_activation_enabled or queue.activation_procedure is None:
            return None
        try:
            procedure = self._procedures.get(procedure_key(queue.activation_procedure))
        except BrokerError:
            return None
        return None if procedure is None else ReaderRequest(procedure, queue.activation_procedure, queue.max_readers)

    def _look(self, watched: Iterable[MonitoredQueue]) -> None:
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

    def _read_here(self, watched: Collection[MonitoredQueue]) -> None:
        """Runs readers in this thread until none is needed; one that reads is not asked to read by itself."""
        if self._reader.is_reading:
            return
        self._reader.is_reading = True
        try:
            found, has_run = queues_with_messages(watched), False
            for each in watched:
                if each not in found and not has_run:  # a reader may have filled it
                    continue
                while not self._is_closed and (asked := each.start_if_needed(now=self._now())) is not None:
                    self._run(each, asked)
                    has_run = True
        finally:
            self._reader.is_reading = False

    def _read(self, watched: MonitoredQueue, asked: ReaderRequest | None) -> None:
        """A reader's thread: when its function has returned and is needed again, it is called again."""
        try:
            while asked is not None:
                with suppress(SystemExit):
                    self._run(watched, asked)
                asked = None if self._is_closed else watched.start_if_needed(now=self._now())
        finally:
            with self._guard:
                self._threads.discard(threading.current_thread())

    def _run(self, watched: MonitoredQueue, asked: ReaderRequest) -> None:
        """Calls a reader's function once. What it raises goes no further."""
        self._reader.watched, self._reader.has_received, self._reader.is_done = watched, False, False
        watched.entered(asked.procedure_name)
        step, text = ActivationStep.ABORTED, "it was interrupted"
        try:
            self._tell(watched, ActivationStep.STARTED)
            asked.procedure(self._public(watched.database))
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

    def _tell(self, watched: MonitoredQueue, step: ActivationStep, text: str = "") -> None:
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


def _is_gone(watched: MonitoredQueue, objects: Objects) -> bool:
    """Whether the queue is no longer there, though another may have its number since."""
    queue = objects.queues_by_id.get(watched.queue_id)
    return queue is None or queue_name(queue) != watched.queue_name
