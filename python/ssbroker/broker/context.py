"""The shared state of an open instance: a context for the instance, a context for each database, and the protocols that they call."""

from __future__ import annotations

import logging
import random as randomness
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, NoReturn, ParamSpec, Protocol, Self
from weakref import ref

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.commit_signals import CommitSignals
from ssbroker.broker.counters import Counters
from ssbroker.broker.effects import Effects
from ssbroker.broker.keys_at_rest import KeyEncryption
from ssbroker.broker.object_names import is_unquoted_name
from ssbroker.exceptions import SsbrokerError, StorageError
from ssbroker.protocol.events import EventLog, print_logging_errors
from ssbroker.store import objects as stored
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.database_registry import MSDB_NAME
from ssbroker.store.file_ownership import FileOwnership
from ssbroker.store.objects import NativeSnapshot, Objects, lazy_objects, native_snapshot
from ssbroker.store.route_requests import SYSTEM_QUEUE_ID
from ssbroker.store.session import SessionContext
from ssbroker.store.sqlite import Connection


def system_clock() -> datetime:
    """Returns the current time, in UTC."""
    return datetime.now(UTC)


def in_microseconds(clock: Callable[[], datetime]) -> Callable[[], int]:
    """Returns a function that returns the time of `clock` in microseconds since 1970."""
    if clock is system_clock:
        return lambda: time.time_ns() // 1_000
    return lambda: epoch_microseconds(clock())


Options = ParamSpec("Options")


class DatabaseList(Protocol):
    """The databases that the registry of an instance currently lists."""

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process whose parent opened the instance."""

    @property
    def is_closed(self) -> bool:
        """Whether the instance is closed, or was opened before a fork."""

    def check(self) -> None:
        """Raises `StorageError` if the instance is closed, or was opened before a fork."""

    def all(self) -> Mapping[str, DatabaseContext]:
        """Returns the databases by name, msdb first."""

    def one(self, name: str) -> DatabaseContext:
        """Returns a database by its name."""

    def readable(self) -> list[tuple[DatabaseContext, Objects]]:
        """Returns the readable databases with their objects."""

    def unavailable(self) -> dict[str, StorageError]:
        """Returns the errors of the databases whose files cannot be used, by database name."""

    def reconcile(self, database: DatabaseContext) -> None:
        """Waits until an attach or detach of a database in another process has finished."""


class TransactionListener(Protocol):
    """Reacts to transactions: delivers messages, starts timers, activates readers."""

    def committed(self, database: DatabaseContext, effects: Effects) -> None:
        """Called after a transaction has committed."""

    def rolled_back(self, database: DatabaseContext, effects: Effects) -> None:
        """Called after a transaction was rolled back, or failed to commit."""

    def conversation_begins(self, database_id: int, endpoint_id: int) -> None:
        """Called when a transaction creates a conversation endpoint, or sends its first message; an earlier endpoint may have had the same id."""

    def changed(self, database: DatabaseContext) -> None:
        """Called after the objects of a database have changed, or the database was attached or detached."""

    def wake(self) -> None:
        """Called when something may be due now."""


class LocalRouting(Protocol):
    """Decides which conversations stay in their database."""

    def local_router(self, database: str) -> Callable[[Sequence[ConversationEndpoint]], list[bool]]:
        """Returns a function that determines, for each endpoint of a database, whether its messages stay in the database."""


class MessageIdentity(NamedTuple):
    """Identifies a message by values that both sides of its conversation know."""

    conversation_id: bytes
    is_initiator: bool
    """Whether the initiator sent the message."""
    message_sequence_number: int

    @property
    def conversation(self) -> str:
        """The id of the conversation as text."""
        return str(uuid.UUID(bytes=self.conversation_id))

    def __bytes__(self) -> bytes:
        return self.conversation_id + bytes([self.is_initiator]) + self.message_sequence_number.to_bytes(8, signed=True)

    def __str__(self) -> str:
        sender = "initiator" if self.is_initiator else "target"
        return f"{self.conversation}/{sender}/{self.message_sequence_number}"


class JobOutcome(Protocol):
    """Records how a job ended."""

    def __call__(self, outcome: str, failed_with: str | None = None) -> None:
        """Called at the end of a job; `failed_with` is the reason if the job has failed."""


class Tracing(Protocol):
    """Observes receives and jobs."""

    def received(self, database: str, queue: str, messages: Iterable[MessageIdentity]) -> None:
        """Called with the messages of a RECEIVE."""

    def job(
        self, database: str, queue: str, messages: Iterable[MessageIdentity], *, attempt: int
    ) -> AbstractContextManager[JobOutcome]:
        """Returns a context manager for the time in which a job runs; it yields a function that records how the job ended."""


class Cancellable(Protocol):
    """A wait that another thread or a signal handler can end."""

    def cancel(self) -> None:
        """Ends the wait."""


class InstanceContext:
    """The shared state of an open instance.

    `databases_list`, `listener` and `routes` are set once, after the instance has created them.

    Attributes:
        folder: The instance folder.
        name: The name given when the instance was created.
        instance_id: The id of the instance.
        ownership: Decides which database files belong to the instance.
        clock: Returns the current time, in UTC.
        microseconds: Returns the current time in microseconds since 1970.
        has_system_clock: Whether `clock` is the clock of the operating system.
        random: The source of ids and jitter.
        lock_timeout: Seconds to wait for a write lock.
        background: Whether background threads of the instance do due work.
        vfs: The name of SQLite's virtual file system; None means the default.
        key_encryption: Opens the keys of the databases.
        events: Delivers events to subscribers.
        counters: The performance counters of this process.
        row_sources: Functions that return the rows of views about this process, by view name.
        tracing: Observes receives and jobs; None if there is no observer.
        waiting_jobs: The jobs that wait for messages.
        has_stopped_workers: Whether `stop_workers` was called, so that jobs no longer take messages.
    """

    databases_list: DatabaseList
    listener: TransactionListener
    routes: LocalRouting

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        ownership: FileOwnership,
        clock: Callable[[], datetime],
        random: randomness.Random,
        lock_timeout: float,
        background: bool,
        vfs: str | None,
    ) -> None:
        self.folder: Final = folder
        self.name: Final = name
        self.instance_id: Final = ownership.instance_id
        self.ownership: Final = ownership
        self.clock: Final = clock
        self.microseconds: Final = in_microseconds(clock)
        self.has_system_clock: Final = clock is system_clock
        self.random: Final = random
        self.lock_timeout: Final = lock_timeout
        self.background: Final = background
        self.vfs: Final = vfs
        self.key_encryption: Final = KeyEncryption(folder)
        self.events: Final = EventLog()
        self.counters: Final = Counters()
        self.row_sources: Final[dict[str, Callable[[], Iterable[Sequence[Any]]]]] = {}
        self.tracing: Tracing | None = None
        self.waiting_jobs: Final[set[Cancellable]] = set()
        self.has_stopped_workers = False

    @property
    def databases(self) -> tuple[DatabaseContext, ...]:
        """The databases in the order of their ids, msdb first."""
        return tuple(self.databases_list.all().values())

    @property
    def msdb(self) -> DatabaseContext:
        """The msdb database, whose routes apply to messages from other instances (R1)."""
        return self.database(MSDB_NAME)

    def database(self, name: str) -> DatabaseContext:
        """Returns a database by its name."""
        return self.databases_list.one(name)

    def stop_workers(self) -> None:
        """Ends the waits of all present and future jobs. A signal handler may call this method: it takes no lock that the interrupted thread may hold."""
        self.has_stopped_workers = True
        for each in list(self.waiting_jobs):
            each.cancel()

    def new_guid(self) -> uuid.UUID:
        """Returns a random GUID."""
        return random_guid(self.random)

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied."""
        raise TypeError(
            f"Instance({self.name!r}, folder={str(self.folder)!r}) cannot be pickled or copied; where it is needed, open it "
            f"again with Instance.open({str(self.folder)!r})"
        )


class DatabaseContext:
    """The shared state of an open database.

    Attributes:
        public: The public `Database` object, created on first use.
        instance: The shared state of the instance.
        database_id: The id of the database in the instance.
        name: The name of the database.
        file: The database file.
        commit_signals: Wakes threads that wait for commits, such as receivers.
        session: Returns a session: a transaction of this thread that has not started, and that announces its commit natively if possible.
        holders_in_transactions: The thread or generator of each transaction block. A block that an interrupt has kept from ending is
            removed when its transaction is deleted.
        drained_version: The version of the objects at which no message was waiting to enter a queue that is enabled (P34); None if unknown.
    """

    def __init__(self, instance: InstanceContext, *, database_id: int, name: str, file: DatabaseFile) -> None:
        self.instance: Final = instance
        self.database_id: Final = database_id
        self.name = name
        self.file: Final = file
        self._owner_id: Final = instance.ownership.owner_id(file.path)
        self.commit_signals: Final = CommitSignals()
        shared = file.share_memory()
        if shared is not None:
            self.commit_signals.share(shared)
        announcer = (instance.counters.fast_path, self.commit_signals, SYSTEM_QUEUE_ID)
        self.session: Final = partial(file.session, SessionContext(file.write_lock, announcer))
        self.holders_in_transactions: Final[dict[ref[Any], int]] = {}
        self.drained_version: int | None = None
        self.public: Any = None
        self._is_removed = False
        self._is_detached = False
        self._objects: Objects | None = None
        self._snapshot: tuple[Objects, NativeSnapshot] | None = None

    def objects(self, connection: Connection | None = None) -> Objects:
        """Returns all objects; rereads them only after a change."""
        known = self._objects
        if connection is None:
            if known is not None and known.version == self.file.query(stored.version_of):
                return known
            found = self._read()
            if not self._is_attached(found):
                self.instance.databases_list.reconcile(self)
                found = self._read()
        else:
            if known is not None and known.version == stored.version_of(connection):
                return known
            found = stored.load(connection)
        self._check_attached(found)
        self._objects = found
        return found

    def last_objects(self) -> Objects:
        """Returns the objects that this process read last. They may have changed since: use them only for decisions that a transaction checks again."""
        return self.objects() if self._objects is None else self._objects

    def native_snapshot(self, objects: Objects) -> NativeSnapshot:
        """Returns the snapshot of the objects for the fast path, and makes the fast path use it."""
        known = self._snapshot
        if known is None or known[0] is not objects:
            known = self._snapshot = (
                objects,
                native_snapshot(objects, is_name=is_unquoted_name),
            )
            self.file.set_snapshot(objects.version, known[1])
        return known[1]

    def lazy_objects(self, connection: Connection) -> Objects:
        """Returns a lazy view of the objects, for callers that change many objects."""
        found = lazy_objects(connection)
        self._check_attached(found)
        return found

    def change(
        self,
        operation: Callable[Concatenate[Connection, Objects, Options], object],
        *args: Options.args,
        **kwargs: Options.kwargs,
    ) -> None:
        """Changes the objects in a separate transaction, and notifies the listener after the commit."""
        with self.file.write() as connection:
            operation(connection, self.objects(connection), *args, **kwargs)
        self.instance.listener.changed(self)

    @property
    def key_encryption(self) -> KeyEncryption:
        """The key store of the instance."""
        return self.instance.key_encryption

    def now(self) -> datetime:
        """Returns the current time of the instance's clock."""
        return self.instance.clock()

    def renamed(self, name: str) -> Self:
        """Sets the current name, and returns the database."""
        self.name = name
        return self

    def remove(self) -> None:
        """Closes the database because the instance no longer lists it; calls that wait for messages raise an error."""
        self._is_removed = True
        self.close()

    def is_gone(self) -> bool:
        """Returns whether the database was detached or dropped, so that its remaining work fails and need not be done."""
        with suppress(StorageError):
            self.instance.databases_list.all()  # another process may have detached it
        return self._is_removed or self._is_detached

    def check_listed(self) -> None:
        """Raises `StorageError` if the database was detached or dropped while it was open."""
        if self._is_removed:
            raise self._detached_error()

    def close(self) -> None:
        """Ends waits for messages, and closes the file."""
        if not self.file.is_inherited:
            self.commit_signals.close()
            self.file.close()

    def _read(self) -> Objects:
        with self.file.read() as reader:
            return stored.load(reader)

    def _check_attached(self, found: Objects) -> None:
        self._is_detached = not self._is_attached(found)
        if self._is_detached:
            raise self._detached_error()

    def _detached_error(self) -> StorageError:
        return StorageError(f"{self.file.path}: is no longer attached to this instance", file=str(self.file.path))

    def _is_attached(self, found: Objects) -> bool:
        return found.broker.attached_to == self._owner_id

    def __reduce__(self) -> NoReturn:
        self.instance.__reduce__()

    def __repr__(self) -> str:
        return f"DatabaseContext({self.name!r})"


def random_guid(random: randomness.Random) -> uuid.UUID:
    """Returns a random GUID."""
    return uuid.UUID(int=random.getrandbits(128), version=4)


_LOGGER: Final = logging.getLogger("ssbroker.broker")


def log_failure(database: DatabaseContext, message: str, error: Exception) -> str:
    """Logs a failure, at most 20 lines a minute for each message and database, unless the database is gone; returns the reason as text."""
    is_expected = isinstance(error, SsbrokerError)
    reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
    if isinstance(error, StorageError) and database.is_gone():
        return reason
    now = database.instance.microseconds()
    if database.instance.events.allows_line(message, level=logging.WARNING, source=database.name, now=now):
        with print_logging_errors():
            _LOGGER.warning("%s: %s: %s", database.name, message, reason, exc_info=None if is_expected else error)
    return reason
