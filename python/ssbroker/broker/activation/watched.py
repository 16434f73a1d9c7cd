"""A queue whose readers this process starts."""

from __future__ import annotations

import inspect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ssbroker.broker.activation.queue_monitor import MonitorState, QueueMonitor
from ssbroker.broker.failing import told_failure
from ssbroker.broker.work.telling import queue_name
from ssbroker.exceptions import OptionError, StorageError
from ssbroker.store import queues
from ssbroker.store.objects import Queue

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

Procedure = Callable[["Database"], object]
"""What a reader runs: it is given the database, begins its own transactions, and returns when it finds the queue empty."""


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


class Asked(NamedTuple):
    """What is to read a queue."""

    procedure: Procedure
    procedure_name: str
    """What views call it."""
    max_queue_readers: int


Asking = Literal["method", "clause"]
"""Who asks for readers: `Database.activate`, or the queue's ACTIVATION clause."""
ASKING: Final[tuple[Asking, ...]] = ("method", "clause")
"""Whoever stands first goes first."""


class Watched:
    """A queue, its monitor, and what its readers run. For any number of threads.

    There is one for a queue, whoever asks for readers and however often that changes, so that the readers that still run count.

    Attributes:
        database: The queue's database.
        queue_id: The queue.
        queue_name: Its schema and name.
    """

    def __init__(self, database: Database, queue: Queue) -> None:
        self.database: Final = database
        self.queue_id: Final = queue.queue_id
        self.queue_name: Final = queue_name(queue)
        self._guard: Final = threading.RLock()
        self._monitor: Final = QueueMonitor(max_queue_readers=0)
        self._asked: dict[Asking, Asked] = {}
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

    def ask(self, asked: Asked | None, *, by: Asking) -> None:
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
        for by in ASKING:
            self.ask(None, by=by)

    def start_if_needed(self, *, now: int) -> Asked | None:
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

    def _effective(self) -> Asked | None:
        return next((self._asked[by] for by in ASKING if by in self._asked), None)

    def _has_messages(self) -> bool:
        """Whether messages can be received; a file that cannot be read keeps no other queue from its readers."""
        try:
            with self.database.file.read() as connection:
                objects = self.database.objects(connection)
                queue = objects.queues_by_id.get(self.queue_id)
                is_on = queue is not None and queue.is_receive_enabled and objects.broker.is_delivering
                return is_on and queues.has_ready(connection, self.queue_id)
        except StorageError as error:
            told_failure(self.database, "whether a reader is needed could not be found out", error)
            return False


class Reader(threading.local):
    """What the calling thread does as a reader."""

    watched: Watched | None = None
    """Of which queue it is one."""
    has_received = False
    """Whether it has received from that queue, or found it empty."""
    is_done = False
    """Whether it has taken something for good, or found a queue empty."""
    is_reading = False
    """Whether this thread runs readers one after the other."""


def with_messages(watched: Iterable[Watched]) -> set[Watched]:
    """Those whose queues hold messages; a database is looked at once, however many of its queues are watched.

    Args:
        watched: The queues.

    Returns:
        Some of them; none of a database that cannot be read.
    """
    by_database: dict[Database, list[Watched]] = defaultdict(list)
    for each in watched:
        by_database[each.database].append(each)
    found: set[Watched] = set()
    for database, queues_of_it in by_database.items():
        try:
            held = database.file.ask(queues.with_ready)
        except StorageError as error:
            told_failure(database, "whether readers are needed could not be found out", error)
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
