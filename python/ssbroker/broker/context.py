"""State that all parts of an open instance share: one context for the instance, and one for each of its databases."""

from __future__ import annotations

import random as randomness
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, Final, NamedTuple, NoReturn, ParamSpec, Protocol, Self

from ssbroker.broker.clock import in_microseconds, system_clock
from ssbroker.broker.counters import Counters
from ssbroker.broker.effects import Effects
from ssbroker.broker.local_routes import services_routed_locally
from ssbroker.broker.principals import KeyStore
from ssbroker.broker.validation import means_itself
from ssbroker.broker.waiters import QueueWaiters
from ssbroker.exceptions import StorageError
from ssbroker.protocol.events import EventLog
from ssbroker.store import objects as stored
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.file import DatabaseFile, Session, SessionContext
from ssbroker.store.objects import NativeSnapshot, Objects, lazy_objects, native_snapshot
from ssbroker.store.registry import MSDB_NAME, SYSTEM_QUEUE_ID
from ssbroker.store.sqlite import Connection

Options = ParamSpec("Options")


class LocalRoute(NamedTuple):
    """Where a conversation's messages go now."""

    target_database: str | None
    """The database of this instance that takes them; None for another instance, or for none."""
    broker_instance: bytes | None
    """The broker id that they are sent to, where one is known."""


class DatabaseList(Protocol):
    """The databases of an instance, as its registry lists them now."""

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, and its parent has opened the instance."""

    def check(self) -> None:
        """Refuses an instance that is closed, or was opened before a fork."""

    def all(self) -> Mapping[str, DatabaseContext]:
        """The databases by name, msdb first."""

    def one(self, name: str) -> DatabaseContext:
        """One database by its name."""

    def seen(self) -> list[tuple[DatabaseContext, Objects]]:
        """The databases with their objects; those that cannot be read are left out."""

    def unavailable(self) -> list[str]:
        """The names of databases whose files cannot be used."""

    def settle(self, database: DatabaseContext) -> None:
        """Waits until a database is attached or detached for good, by whichever process is doing that."""


class TransactionListener(Protocol):
    """Continues what transactions begin: deliveries, timers, activation."""

    def committed(self, database: DatabaseContext, effects: Effects) -> None:
        """A transaction has committed."""

    def rolled_back(self, database: DatabaseContext, effects: Effects) -> None:
        """A transaction was rolled back, or could not be committed."""

    def conversation_begins(self, database_id: int, endpoint_id: int) -> None:
        """A transaction creates a conversation endpoint; an earlier one may have had the same id."""

    def changed(self, database: DatabaseContext) -> None:
        """The objects of a database have changed, or it was attached or detached."""

    def wake(self) -> None:
        """Something may be due now."""


class LocalRouting(Protocol):
    """Finds the databases of this instance to which messages go."""

    def ways_of(self, database: str, objects: Objects) -> Callable[[Sequence[ConversationEndpoint]], list[LocalRoute]]:
        """A function that routes endpoints of a database."""


class InstanceContext:
    """What the parts of an open instance share.

    `databases_list`, `listener` and `routes` are set once, when the instance has made them.

    Attributes:
        folder: The folder of the instance.
        name: The name given when it was created.
        instance_id: The id that its database files record as their owner.
        clock: Returns the current time, in UTC.
        microseconds: Returns the current time in microseconds since 1970.
        has_system_clock: Whether `clock` is the clock of the operating system.
        random: The source of ids and jitter.
        lock_timeout: The seconds to wait for a write lock.
        background: Whether threads of the instance do what falls due.
        vfs: The name of SQLite's virtual file system; None is the default.
        credentials: Opens the keys of the databases.
        events: Delivers events to subscribers.
        counters: Counts what this process does.
        row_sources: For each view of what this process does now, by its name, a function that returns its rows.
    """

    databases_list: DatabaseList
    listener: TransactionListener
    routes: LocalRouting

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        instance_id: bytes,
        clock: Callable[[], datetime],
        random: randomness.Random,
        lock_timeout: float,
        background: bool,
        vfs: str | None,
    ) -> None:
        self.folder: Final = folder
        self.name: Final = name
        self.instance_id: Final = instance_id
        self.clock: Final = clock
        self.microseconds: Final = in_microseconds(clock)
        self.has_system_clock: Final = clock is system_clock
        self.random: Final = random
        self.lock_timeout: Final = lock_timeout
        self.background: Final = background
        self.vfs: Final = vfs
        self.credentials: Final = KeyStore(folder)
        self.events: Final = EventLog()
        self.counters: Final = Counters()
        self.row_sources: Final[dict[str, Callable[[], Iterable[Sequence[Any]]]]] = {}

    @property
    def databases(self) -> tuple[DatabaseContext, ...]:
        """The databases in the order of their ids, msdb first."""
        return tuple(self.databases_list.all().values())

    @property
    def msdb(self) -> DatabaseContext:
        """The database whose routing table is used for messages from outside (R1)."""
        return self.database(MSDB_NAME)

    def database(self, name: str) -> DatabaseContext:
        """One database by its name.

        Raises:
            UnknownDatabaseError: There is no database of this name.
            StorageError: Its file is missing, or cannot be used.
        """
        return self.databases_list.one(name)

    def new_guid(self) -> uuid.UUID:
        """A random id (B6)."""
        return random_guid(self.random)

    def __reduce__(self) -> NoReturn:
        """An instance is open files, locks and threads of this process.

        Raises:
            TypeError: Always; the message says what to do instead.
        """
        raise TypeError(
            f"Instance({self.name!r}, folder={str(self.folder)!r}) cannot be pickled or copied: open it where it is needed, "
            f"with Instance.open({str(self.folder)!r})"
        )


class DatabaseContext:
    """A database of an open instance; `Instance.database` gives it.

    Attributes:
        public: The public `Database` object, once somebody has asked for it.
        instance: The instance.
        database_id: Its number in the instance.
        name: Its name.
        file: Its file.
        arrivals: Who waits for its messages in this process.
        enters_nothing: The version of the objects with which nothing that waits for a queue may enter it (P34), as far as one was found.
    """

    def __init__(self, instance: InstanceContext, *, database_id: int, name: str, file: DatabaseFile) -> None:
        self.instance: Final = instance
        self.database_id: Final = database_id
        self.name = name
        self.file: Final = file
        self.arrivals: Final = QueueWaiters()
        self.enters_nothing: int | None = None
        self.public: Any = None
        self._sessions: SessionContext | None = None
        self._objects: Objects | None = None
        self._picture: tuple[Objects, NativeSnapshot] | None = None

    def objects(self, connection: Connection | None = None) -> Objects:
        """All objects, read again only when something has changed.

        Args:
            connection: Whose sight of the file counts; None is what was committed last.

        Returns:
            An immutable picture.
        """
        known = self._objects
        if connection is None:
            if known is not None and known.version == self.file.ask(stored.version_of):
                return known
            found = self._read()
            if not self._is_attached(found):
                self.instance.databases_list.settle(self)
                found = self._read()
        else:
            if known is not None and known.version == stored.version_of(connection):
                return known
            found = stored.load(connection)
        self._refuse_foreign(found)
        self._objects = found
        return found

    def picture(self, objects: Objects) -> NativeSnapshot:
        """Objects as far as they decide about plain messages.

        Args:
            objects: What stands in the database.

        Returns:
            Their picture, made once.
        """
        known = self._picture
        if known is None or known[0] is not objects:
            known = self._picture = (
                objects,
                native_snapshot(objects, services_routed_locally(objects), is_name=means_itself),
            )
            self.file.know(objects.version, known[1])
        return known[1]

    def sight(self, connection: Connection) -> Objects:
        """The objects as a connection sees them, each read when it is asked for: for who changes many.

        Args:
            connection: The file, locked.

        Returns:
            The objects.

        Raises:
            StorageError: The database is no longer the instance's.
        """
        found = lazy_objects(connection)
        self._refuse_foreign(found)
        return found

    def session(self) -> Session:
        """A transaction of this thread that has not begun yet, and announces its commits natively where that is enough."""
        context = self._sessions
        if context is None:
            announcer = (self.instance.counters.plain, self.arrivals, SYSTEM_QUEUE_ID)
            context = self._sessions = SessionContext(self.file.gate, announcer)
        return self.file.session(context)

    def change(
        self,
        what: Callable[Concatenate[Connection, Objects, Options], object],
        *args: Options.args,
        **kwargs: Options.kwargs,
    ) -> None:
        """Changes the objects in a transaction of its own, and tells the instance once it is durable.

        Args:
            what: Changes them, given a connection and the objects as they are.
            args: Passed on.
            kwargs: Passed on.

        Raises:
            BrokerError: `what` refuses the change.
            StorageError: The file cannot be written.
        """
        with self.file.write() as connection:
            what(connection, self.objects(connection), *args, **kwargs)
        self.instance.listener.changed(self)

    @property
    def credentials(self) -> KeyStore:
        """What opens the keys of the instance."""
        return self.instance.credentials

    def now(self) -> datetime:
        """The current moment, as the instance's clock tells it."""
        return self.instance.clock()

    def renamed(self, name: str) -> Self:
        """The database under its name of now."""
        self.name = name
        return self

    def close(self) -> None:
        """Ends the waits for its messages, and closes the file."""
        if not self.file.is_inherited:
            self.arrivals.close()
            self.file.close()

    def _read(self) -> Objects:
        with self.file.read() as reader:
            return stored.load(reader)

    def _refuse_foreign(self, found: Objects) -> None:
        if not self._is_attached(found):
            raise StorageError(f"{self.file.path}: is no longer attached to this instance", file=str(self.file.path))

    def _is_attached(self, found: Objects) -> bool:
        return found.broker.attached_to == self.instance.instance_id

    def __reduce__(self) -> NoReturn:
        self.instance.__reduce__()

    def __repr__(self) -> str:
        return f"DatabaseContext({self.name!r})"


def random_guid(random: randomness.Random) -> uuid.UUID:
    """A random id (B6).

    Args:
        random: Where it comes from.

    Returns:
        An id of version 4.

    Examples:
        >>> random_guid(randomness.Random(7)).version
        4
    """
    return uuid.UUID(int=random.getrandbits(128), version=4)
