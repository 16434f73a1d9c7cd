"""Activation: starts queue readers when messages wait and no reader takes them."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ssbroker._arguments import integer_argument, returns_at_once
from ssbroker._text import exception_text
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.effects import Effects
from ssbroker.broker.object_names import existing, plain_queue_name, procedure_key, queue_key
from ssbroker.broker.queue_monitor import MonitorState, QueueMonitor
from ssbroker.ddl.statements import READERS_MAX
from ssbroker.exceptions import BrokerError, OptionError, StorageError
from ssbroker.protocol.broker_errors import RECEIVE_DISABLED
from ssbroker.protocol.events import ActivationEvent, ActivationStep
from ssbroker.store import failures, queues
from ssbroker.store.objects import Objects, Queue

Procedure: TypeAlias = Callable[[Any], object]
"""An activated function: it is called with the `Database`, runs transactions, and returns when the queue is empty."""


@dataclass(frozen=True, slots=True)
class MonitorRow:
    """A row of `sys.dm_broker_queue_monitors`. Times are in microseconds since 1970, UTC."""

    database_id: int
    queue_id: int
    state: MonitorState
    last_empty_rowset_time: int | None
    last_activated_time: int | None
    tasks_waiting: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A row of `sys.dm_broker_activated_tasks`: a running reader."""

    spid: int
    """The native id of the thread of the reader."""
    database_id: int
    queue_id: int
    procedure_name: str
    execute_as: int = 1


class ReaderRequest(NamedTuple):
    """A request for readers of a queue: the function that they run, and how many may run in parallel."""

    procedure: Procedure
    procedure_name: str
    """The name of the function in views."""
    max_queue_readers: int


RequestedBy = Literal["method", "clause"]
"""The source of a request for readers: `Database.activate`, or the ACTIVATION clause of the queue."""
REQUESTED_BY: Final[tuple[RequestedBy, ...]] = ("method", "clause")
"""The sources in order of precedence."""


class MonitoredQueue:
    """A queue with its monitor and readers. Thread-safe.

    There is one object for each queue, even if the requests change, so that readers of earlier requests still count towards the maximum.

    Attributes:
        database: The database of the queue.
        queue_id: The id of the queue.
        queue_name: The schema and name of the queue.
    """

    def __init__(self, database: DatabaseContext, queue: Queue) -> None:
        self.database: Final = database
        self.queue_id: Final = queue.queue_id
        self.queue_name: Final = plain_queue_name(queue)
        self._guard: Final = threading.RLock()
        self._monitor: Final = QueueMonitor(max_queue_readers=0)
        self._requests: dict[RequestedBy, ReaderRequest] = {}
        self._readers: dict[int, str] = {}

    @property
    def running(self) -> int:
        """The number of running readers."""
        return self._monitor.running

    @property
    def is_unused(self) -> bool:
        """Whether there are no requests and no running readers."""
        with self._guard:
            return not self._requests and not self._monitor.running

    def set_request(self, request: ReaderRequest | None, *, by: RequestedBy) -> None:
        """Sets the request of a source, or removes it if `request` is None. Running readers are not interrupted."""
        with self._guard:
            before = self._effective()
            if request is None:
                self._requests.pop(by, None)
            else:
                self._requests[by] = request
            effective = self._effective()
            if effective != before or (by == "method" and request is not None):
                self._monitor.reset(max_queue_readers=0 if effective is None else effective.max_queue_readers)

    def retire(self) -> None:
        """Removes all requests, because the queue is no longer monitored."""
        for by in REQUESTED_BY:
            self.set_request(None, by=by)

    def start_if_needed(self, *, now: int) -> ReaderRequest | None:
        """Returns the request if another reader is needed, otherwise None. The reader then counts as started, and the caller must start it."""
        with self._guard:
            if not self._monitor.can_start(now=now):
                return None
        has_messages = self._has_messages()
        waiting = self.database.commit_signals.waiting(self.queue_id)
        with self._guard:
            is_needed = self._monitor.is_reader_needed(has_messages=has_messages, waiting=waiting, now=now)
            if not is_needed:
                return None
            self._monitor.started(now=now)
            return self._effective()

    def is_limit_reached(self, *, now: int) -> bool:
        """Returns whether a new message gets no additional reader only because the maximum number of readers is running."""
        waiting = self.database.commit_signals.waiting(self.queue_id)
        with self._guard:
            return self._monitor.is_limit_reached(waiting=waiting, now=now)

    def next_check(self, *, now: int) -> int | None:
        """Returns when to check again whether the queue needs a reader; None if no message can be received."""
        if not self._has_messages():
            return None
        with self._guard:
            return self._monitor.next_check(now=now)

    def received(self, *, is_empty: bool, is_named: bool, now: int) -> None:
        """Records a RECEIVE from the queue."""
        with self._guard:
            self._monitor.received(is_empty=is_empty, is_named=is_named, now=now)

    def not_started(self, *, now: int) -> None:
        """Records that a reader could not be started; the next check tries again."""
        with self._guard:
            self._monitor.ended(has_received=False, has_progressed=False, now=now)

    def entered(self, procedure_name: str) -> None:
        """Records that the calling thread runs a reader."""
        with self._guard:
            self._readers[threading.get_native_id()] = procedure_name

    def ended(self, *, has_received: bool, has_progressed: bool, now: int) -> bool:
        """Records that the reader of the calling thread has ended; returns whether it ended without a RECEIVE although it was needed."""
        with self._guard:
            self._readers.pop(threading.get_native_id(), None)
            return self._monitor.ended(has_received=has_received, has_progressed=has_progressed, now=now)

    def monitor_row(self) -> MonitorRow:
        """Returns the row of this queue in `sys.dm_broker_queue_monitors`."""
        with self._guard:
            return MonitorRow(
                self.database.database_id,
                self.queue_id,
                self._monitor.state,
                self._monitor.last_empty_rowset_time,
                self._monitor.last_activated_time,
                self.database.commit_signals.waiting(self.queue_id),
            )

    def task_rows(self) -> list[TaskRow]:
        """Returns the rows of this queue in `sys.dm_broker_activated_tasks`."""
        with self._guard:
            return [
                TaskRow(reader, self.database.database_id, self.queue_id, name)
                for reader, name in sorted(self._readers.items())
            ]

    def _effective(self) -> ReaderRequest | None:
        return next((self._requests[by] for by in REQUESTED_BY if by in self._requests), None)

    def _has_messages(self) -> bool:
        """Returns whether messages of the queue can be received. If the file cannot be read, logs the error and returns False, so that other queues are still activated."""
        try:
            with self.database.file.read() as connection:
                objects = self.database.objects(connection)
                queue = objects.queues_by_id.get(self.queue_id)
                is_enabled = queue is not None and queue.is_receive_enabled and objects.broker.is_delivering
                return is_enabled and queues.has_ready_messages(
                    connection, self.queue_id, now=self.database.instance.microseconds()
                )
        except StorageError as error:
            log_failure(self.database, "could not determine whether a reader is needed; trying again later", error)
            return False


class Reader(threading.local):
    """The state of the calling thread as a reader."""

    watched: MonitoredQueue | None = None
    """The queue that the thread reads."""
    has_received = False
    """Whether the reader has called RECEIVE on that queue."""
    has_progressed = False
    """Whether the reader has committed a RECEIVE, or found a queue empty."""
    is_running_readers = False
    """Whether this thread is running readers in `run_due`."""


def queues_with_messages(watched: Iterable[MonitoredQueue]) -> set[MonitoredQueue]:
    """Returns the queues that have messages, with one query for each database."""
    by_database: dict[DatabaseContext, list[MonitoredQueue]] = defaultdict(list)
    for each in watched:
        by_database[each.database].append(each)
    found: set[MonitoredQueue] = set()
    for database, queues_of_it in by_database.items():
        try:
            now = database.instance.microseconds()
            held = database.file.query(functools.partial(queues.ready_queue_ids, now=now))
        except StorageError as error:
            log_failure(database, "could not determine whether readers are needed; trying again later", error)
            continue
        found.update(each for each in queues_of_it if each.queue_id in held)
    return found


def check_callable(procedure: object) -> None:
    """Raises `OptionError` if an activated function is not valid."""
    if not callable(procedure):
        raise OptionError(f"function: expected a callable that takes the database, got {procedure!r:.80}")
    if not returns_at_once(procedure):
        raise OptionError(
            f"function: expected a regular function, got {procedure!r:.80}, which is a coroutine or generator function and would "
            "do nothing when called; wrap it in a function that calls asyncio.run(...)"
        )


_NEVER_RECEIVED: Final = (
    "28087: the reader ended without a RECEIVE from its queue; if messages remain, it is called again after 5 s"
)
_LOGGER: Final = logging.getLogger("ssbroker.broker")
# Half of the maximum, so that the timeout stays valid even if the clock changes.
_LONGEST_WAIT: Final = threading.TIMEOUT_MAX / 2
_Key = tuple[int, int]


class Activation:
    """Starts readers of queues in this process, and tracks running readers. Thread-safe."""

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
        """Implements `Database.activate`."""
        check_callable(procedure)
        maximum = integer_argument(max_queue_readers, name="max_queue_readers", minimum=0, maximum=READERS_MAX)
        found = existing(database.objects().queues, queue_key(queue), kind="queue", database=database.name)
        name = getattr(procedure, "__qualname__", type(procedure).__qualname__)
        with self._guard:
            watched = self._monitor(database, found)
            watched.set_request(ReaderRequest(procedure, name, maximum), by="method")
        self._start_readers([watched])
        self._instance.listener.wake()  # the background thread now checks every few seconds

    def deactivate(self, database: DatabaseContext, queue: str) -> None:
        """Implements `Database.deactivate`."""
        found = existing(database.objects().queues, queue_key(queue), kind="queue", database=database.name)
        with self._guard:
            watched = self._queues.get((database.database_id, found.queue_id))
            if watched is not None:
                watched.set_request(None, by="method")
                self._remove_unused()

    def register(self, name: str, procedure: Procedure) -> None:
        """Implements `Instance.register_procedure`."""
        check_callable(procedure)
        self._instance.databases_list.check()
        with self._guard:
            self._procedures[procedure_key(name)] = procedure
        for database in self._instance.databases:
            self.changed(database)

    def changed(self, database: DatabaseContext) -> None:
        """Applies the ACTIVATION clauses of a database after its objects have changed."""
        objects = database.objects()
        with self._guard:
            for each in [
                one for one in self._queues.values() if one.database is database and _is_dropped(one, objects)
            ]:
                self._stop_monitoring(each)
            for queue in objects.queues.values():
                request = self._clause_request(queue)
                if request is not None or (database.database_id, queue.queue_id) in self._queues:
                    self._monitor(database, queue).set_request(request, by="clause")
            self._remove_unused()
        self._start_readers(queues_with_messages(self._queues_by_id(database.database_id, objects.queues_by_id)))

    def transaction_ended(self, database: DatabaseContext, effects: Effects, *, is_committed: bool) -> None:
        """Updates the queue monitors after a transaction, and starts readers that are needed now."""
        if not self._queues:
            return
        now = self._instance.microseconds()
        has_received = any(not each.is_empty and not each.is_leased for each in effects.received)
        if is_committed and (has_received or effects.is_acknowledged):
            self._reader.has_progressed = True
        own_queue = self._reader.watched
        if own_queue is not None and own_queue.database is database:
            self._reader.has_received |= any(each.queue_id == own_queue.queue_id for each in effects.received)
        for each in effects.received:
            if each.is_empty and not each.is_named:
                self._reader.has_progressed = True
            for watched in self._queues_by_id(database.database_id, [each.queue_id]):
                watched.received(is_empty=each.is_empty, is_named=each.is_named, now=now)
        arrived = effects.arrived if is_committed else set()
        for watched in self._queues_by_id(database.database_id, arrived):
            if watched.is_limit_reached(now=now):
                self._instance.counters.task_limit_reached()
        self._start_readers(
            self._queues_by_id(database.database_id, {*arrived, *(each.queue_id for each in effects.received)})
        )

    def run_due(self, *, now: int) -> int | None:
        """Checks all queues and starts needed readers; returns the time of the next check, or None if no message can be received."""
        with self._guard:
            for each in [one for one in self._queues.values() if one.database.commit_signals.is_closed]:
                self._stop_monitoring(each)
            self._remove_unused()
        databases = {each.database_id for each in self._instance.databases}
        watched = [each for each in self._monitored_queues() if each.database.database_id in databases]
        if self._instance.background:
            self._start_readers(queues_with_messages(watched))
        else:
            self._run_readers(watched)
        checks = [each.next_check(now=now) for each in queues_with_messages(watched)]
        return min((each for each in checks if each is not None), default=None)

    def close(self, *, timeout: float) -> None:
        """Stops starting readers, and waits for running readers to end."""
        deadline = time.monotonic() + min(timeout, _LONGEST_WAIT)
        with self._guard:
            self._is_closed = True
            threads = [each for each in self._threads if each is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def monitor_rows(self) -> list[MonitorRow]:
        """Returns the rows of `sys.dm_broker_queue_monitors`."""
        return [each.monitor_row() for each in self._monitored_queues()]

    def task_rows(self) -> list[TaskRow]:
        """Returns the rows of `sys.dm_broker_activated_tasks`."""
        return [row for each in self._monitored_queues() for row in each.task_rows()]

    def _monitored_queues(self) -> list[MonitoredQueue]:
        with self._guard:
            return list(self._queues.values())

    def _queues_by_id(self, database_id: int, queue_ids: Iterable[int]) -> list[MonitoredQueue]:
        with self._guard:
            found = [self._queues.get((database_id, each)) for each in sorted(queue_ids)]
        return [each for each in found if each is not None]

    def _monitor(self, database: DatabaseContext, queue: Queue) -> MonitoredQueue:
        """Returns the `MonitoredQueue` of a queue; creates it if it is missing, or if the known one belongs to a dropped queue with the same id."""
        key = (database.database_id, queue.queue_id)
        known = self._queues.get(key)
        if known is None or known.queue_name != plain_queue_name(queue):
            if known is not None:
                self._stop_monitoring(known)
            known = self._queues[key] = MonitoredQueue(database, queue)
            self._instance.counters.fast_path.watch(True)
        return known

    def _stop_monitoring(self, watched: MonitoredQueue) -> None:
        watched.retire()
        del self._queues[watched.database.database_id, watched.queue_id]
        self._instance.counters.fast_path.watch(bool(self._queues))

    def _remove_unused(self) -> None:
        for each in [one for one in self._queues.values() if one.is_unused]:
            self._stop_monitoring(each)

    def _clause_request(self, queue: Queue) -> ReaderRequest | None:
        """Returns the request of a queue's ACTIVATION clause; None if activation is off or this process has not registered the procedure."""
        if not queue.is_activation_enabled or queue.activation_procedure is None:
            return None
        try:
            procedure = self._procedures.get(procedure_key(queue.activation_procedure))
        except BrokerError:
            return None
        return None if procedure is None else ReaderRequest(procedure, queue.activation_procedure, queue.max_readers)

    def _start_readers(self, watched: Iterable[MonitoredQueue]) -> None:
        """Starts needed readers, each in its own thread; without `background`, `run_due` runs them."""
        if not self._instance.background:
            return
        now = self._instance.microseconds()
        for each in watched:
            with self._guard:
                request = None if self._is_closed else each.start_if_needed(now=now)
                if request is None:
                    continue
                name = f"ssbroker reader of {each.database.name}, {each.queue_name}"
                thread = threading.Thread(target=self._run_thread, args=(each, request), name=name, daemon=True)
                self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError as error:  # no system thread is available
                    self._threads.discard(thread)
                    each.not_started(now=now)
                    _LOGGER.warning("%s: the thread could not be started; retrying in a few seconds: %s", name, error)

    def _run_readers(self, watched: Collection[MonitoredQueue]) -> None:
        """Runs readers in this thread until no reader is needed; does nothing if called by a reader."""
        if self._reader.is_running_readers:
            return
        self._reader.is_running_readers = True
        try:
            found, has_run = queues_with_messages(watched), False
            for each in watched:
                if each not in found and not has_run:  # a reader that has run may have put messages into it
                    continue
                while (
                    not self._is_closed
                    and (request := each.start_if_needed(now=self._instance.microseconds())) is not None
                ):
                    self._run(each, request)
                    has_run = True
        finally:
            self._reader.is_running_readers = False

    def _run_thread(self, watched: MonitoredQueue, request: ReaderRequest | None) -> None:
        """Runs in the thread of a reader: calls the function of the request, and calls it again as long as a reader is needed."""
        try:
            while request is not None:
                with suppress(SystemExit):
                    self._run(watched, request)
                request = None if self._is_closed else watched.start_if_needed(now=self._instance.microseconds())
        finally:
            with self._guard:
                self._threads.discard(threading.current_thread())

    def _run(self, watched: MonitoredQueue, request: ReaderRequest) -> None:
        """Runs the activation procedure once; logs its exceptions."""
        self._reader.watched, self._reader.has_received, self._reader.has_progressed = watched, False, False
        watched.entered(request.procedure_name)
        place = f"{watched.database.name}, {watched.queue_name}"
        step, text = ActivationStep.ABORTED, "the reader was interrupted"
        try:
            self._emit_event(watched, ActivationStep.STARTED)
            request.procedure(self._public(watched.database))
            step, text = ActivationStep.ENDED, ""
        except Exception as error:
            if isinstance(error, BrokerError) and error.number == RECEIVE_DISABLED:
                _LOGGER.info("%s: the reader %s ended: %s", place, request.procedure_name, error)
            else:
                _LOGGER.exception(
                    "%s: the reader %s failed; it is called again while the queue has messages",
                    place,
                    request.procedure_name,
                )
            text = failures.shortened_error(exception_text(error))
        finally:
            self._reader.watched = None
            is_wasted = watched.ended(
                has_received=self._reader.has_received,
                has_progressed=self._reader.has_progressed,
                now=self._instance.microseconds(),
            )
            if step is ActivationStep.ENDED and is_wasted:
                text = _NEVER_RECEIVED
                _LOGGER.warning("%s: %s: %s", place, request.procedure_name, text)
            self._emit_event(watched, step, text)

    def _emit_event(self, watched: MonitoredQueue, step: ActivationStep, text: str = "") -> None:
        self._instance.events.emit(
            ActivationEvent(
                at=self._instance.microseconds(),
                database=watched.database.name,
                queue=watched.queue_name,
                step=step,
                active_readers=watched.running,
                text=text,
            )
        )


def _is_dropped(watched: MonitoredQueue, objects: Objects) -> bool:
    """Returns whether the queue was dropped, even if another queue has its id now."""
    queue = objects.queues_by_id.get(watched.queue_id)
    return queue is None or plain_queue_name(queue) != watched.queue_name
