"""A running instance: a folder with one SQLite file for each database."""

from __future__ import annotations

import os
import random as randomness
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import pyarrow as pa

from ssbroker.broker import databases, identity, scripts, views
from ssbroker.broker.activation import Procedure
from ssbroker.broker.background import Background
from ssbroker.broker.clock import in_microseconds, system_clock
from ssbroker.broker.database import Database
from ssbroker.broker.databases import Alteration, Databases
from ssbroker.broker.principals import Credentials
from ssbroker.broker.routes import Pictures
from ssbroker.catalog.catalog import Catalog
from ssbroker.ddl.statements import BrokerOption
from ssbroker.exceptions import OptionError
from ssbroker.protocol.events import Event, EventLog, Subscriber
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.store import registry
from ssbroker.store.file import LOCK_TIMEOUT, DatabaseFile
from ssbroker.store.objects import Objects
from ssbroker.store.registry import MSDB_NAME

if TYPE_CHECKING:
    from ssbroker.broker.network.server import Server


class Hosting(ABC):
    """The methods of an instance that are about whole databases."""

    _databases: Databases

    @property
    @abstractmethod
    def _instance(self) -> Instance:
        """The instance that this is."""

    @abstractmethod
    def database(self, name: str) -> Database:
        """One database."""

    def __reduce__(self) -> NoReturn:
        """An instance is open files, locks and threads of this process.

        Raises:
            TypeError: Always; it says what another process can do.
        """
        instance = self._instance
        raise TypeError(
            f"{instance!r} cannot be pickled or copied: open it where it is needed, with Instance.open({str(instance.folder)!r})"
        )

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, and its parent has opened the instance: nothing of it can be used here."""
        return self._databases.is_inherited

    def check(self) -> None:
        """Refuses where the instance cannot be used by anybody here.

        Raises:
            StorageError: This process was forked after the instance was opened, or the instance is closed.
        """
        self._databases.check()

    def seen(self) -> list[tuple[Database, Objects]]:
        """The databases with what stands in them.

        Returns:
            Each database of now with its objects, msdb first.

        Raises:
            StorageError: A file cannot be read.
        """
        return self._databases.seen()

    @property
    def unavailable(self) -> list[str]:
        """The names of the databases whose files are not there, or cannot be used (B42)."""
        return self._databases.unavailable()

    def settle(self, database: Database) -> None:
        """Called when a file says that it is not this instance's: waits for whoever takes it away, or keeps it.

        Args:
            database: The database.

        Raises:
            StorageError: The file cannot be read.
        """
        self._databases.settle(database)

    def execute(self, ddl: str, *, file: str | None = None) -> None:
        """Runs a script of T-SQL that defines databases and what stands in them, as `Catalog.load` reads it.

        A batch, up to `GO`, is done as a whole or not at all. Before any `USE` the script is about the one user database.

        Args:
            ddl: The script.
            file: Its name, for errors and warnings.

        Raises:
            DdlError: A statement is refused, or cannot be read; with line and number. Its batch has changed nothing.
            OptionError: `ddl` is no text: a file is read first.
            StorageError: A file cannot be written.

        Warns:
            DdlWarning: A statement means nothing to an instance and was skipped.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     instance.execute("CREATE DATABASE Sales; USE Sales; CREATE QUEUE Orders;")
            ...     [queue.name for queue in instance.database("Sales").objects().queues.values()]
            ['Orders']
        """
        given: object = ddl
        if not isinstance(given, str):
            raise OptionError(f"ddl: expected the text of a script; got {type(given).__name__}")
        scripts.execute(self._instance, ddl, file=file)

    def view(self, name: str, database: str | None = None) -> pa.Table:
        """What one of SQL Server's views, or a queue, shows now; whoever reads Arrow can query it.

        Args:
            name: `sys.databases`, `sys.routes`, `sys.transmission_queue`, ...; or a queue, such as `dbo.Orders`.
            database: One database; None is all.

        Returns:
            The rows, with SQL Server's columns; where the view is of a database, its name stands before them.

        Raises:
            InputError: There is no such view or queue.
            UnknownDatabaseError: There is no such database.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     instance.view("sys.routes").select(["database", "name", "address"]).to_pylist()
            [{'database': 'msdb', 'name': 'AutoCreatedLocal', 'address': 'LOCAL'}]
        """
        return views.view(self._instance, name, database)

    def create_database(self, name: str) -> Database:
        """Makes a database in a file of its own beside msdb's, with a new broker id and its broker enabled (I1).

        Args:
            name: Its name.

        Returns:
            The database.

        Raises:
            BrokerError: The name is taken (1801) or none (102), or a file stands at its place (5170).
            StorageError: The file cannot be written.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     instance.create_database("Sales").service_broker_guid.version
            4
        """
        with Alteration(self._instance) as alteration:
            identity.create(self._instance, alteration, name)
        return self.database(name)

    def attach_database(
        self, name: str, file: str | os.PathLike[str], *, option: BrokerOption | None = None
    ) -> Database:
        """Takes in a database file: one that was detached, or a copy (a restore). Its broker id comes with it (I1, I8).

        Args:
            name: What the database is called here.
            file: The file; it stays where it is.
            option: What to do to its broker, as `Database.set_broker` has it; None leaves it as it is.

        Returns:
            The database. Where another is enabled under its broker id, it is disabled, whatever the option (I7).

        Raises:
            BrokerError: The name is taken (1801), the file is no database's (5171), or it is attached already (5120).
            StorageError: The file cannot be opened or written.

        Warns:
            BrokerWarning: The database is disabled, because another is enabled under its broker id (9773).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     guid, file = sales.service_broker_guid, sales.file.path
            ...     instance.detach_database("Sales")
            ...     instance.attach_database("Shop", file).service_broker_guid == guid
            True
        """
        with Alteration(self._instance) as alteration:
            identity.attach(self._instance, alteration, name, databases.resolved(file), option)
        return self.database(name)

    def detach_database(self, name: str) -> None:
        """Takes a database off the instance; its file stays whole and can be attached again, here or elsewhere (B29).

        One whose file cannot be used goes too, and what there is of the file stays as it is.

        Args:
            name: Its name.

        Raises:
            UnknownDatabaseError: There is none.
            BrokerError: It is msdb (7940).
            LockTimeoutError: Others were writing to it for too long.

        Warns:
            BrokerWarning: What was committed last could not be put into the file itself, since others read it for longer than
                `lock_timeout`, or the disk failed: it stands in the file's `-wal`, which has to stay beside it.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     instance.detach_database("Sales")
            ...     [database.name for database in instance.databases], sales.file.path.name
            (['msdb'], 'Sales.sqlite')
        """
        with Alteration(self._instance) as alteration:
            identity.detach(alteration, name)

    def drop_database(self, name: str) -> None:
        """Removes a database with all that stands in it, its file included, unless that cannot be used.

        Args:
            name: Its name.

        Raises:
            UnknownDatabaseError: There is none.
            BrokerError: It is msdb (3708).
            LockTimeoutError: Others were writing to it for too long.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     instance.drop_database("Sales")
            ...     sales.file.path.exists()
            False
        """
        with Alteration(self._instance) as alteration:
            identity.detach(alteration, name, is_dropped=True)

    def set_broker(self, database: Database, option: BrokerOption) -> None:
        """Does what `Database.set_broker` says.

        Args:
            database: The database.
            option: What is done to its broker.

        Raises:
            BrokerError: Another database of the instance is enabled under this id (9772, I7).
        """
        with Alteration(self._instance) as alteration:
            identity.set_broker(self._instance, alteration, database, option)


class Served(Hosting):
    """The methods of an instance that are about other instances.

    Attributes:
        server: What serves it in this process; None while nothing does.
    """

    server: Server | None = None
    _pictures: Pictures

    @property
    @abstractmethod
    def _instance(self) -> Instance:
        """The instance that this is."""

    def serve(self, host: str = "127.0.0.1", port: int = 4022, **options: Any) -> Server:
        """Serves the instance to others: its endpoint listens, and conversations with other instances go, until the block ends (P3).

        Args:
            host: Where it listens; "0.0.0.0" or "::" are all addresses of the machine.
            port: The port; 0 takes any that is free.
            options: `trust`, or `allow_unencrypted=True`; and whatever else `ServeOptions` has.

        Returns:
            The server, for a `with` block; `port` says where it listens, `close` ends it.

        Raises:
            OptionError: An option is not what it can be.
            InvalidAddressError: One of `addresses` is no address.
            InputError: A certificate cannot be read.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     with instance.serve(port=0, allow_unencrypted=True) as server:
            ...         server.address.startswith("TCP://127.0.0.1:")
            True
        """
        from ssbroker.broker.network.server import ServeOptions, Server  # noqa: PLC0415  # loaded only when serving

        return Server(self._instance, ServeOptions(host=host, port=port, **options))

    def is_reached_at(self, addresses: Iterable[str] | None) -> None:
        """Notes addresses at which this instance itself answers (R41).

        Args:
            addresses: More of them; None is that it does not any more.
        """
        self._pictures.is_reached_at(addresses)


MSDB_FILE: Final = "msdb.sqlite"


class Instance(Served):
    """The databases of a folder, for any number of threads of this process; other processes may have it open too.

    It is made by `create` and `open`, and closed by `close` or at the end of a `with` block.

    Attributes:
        folder: The folder.
        name: The name given when it was made.
        instance_id: What its databases note of it.
        clock: Tells the current moment, in UTC.
        microseconds: Tells the same in microseconds since 1970.
        has_system_clock: Whether that is the system's own clock.
        random: Where ids and jitter come from.
        lock_timeout: The seconds to wait for a file's write lock (B3).
        background: Whether threads of the instance deliver, end lifetimes and start readers; without, whoever holds the
            instance asks for it.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.is_broker_enabled, [database.name for database in instance.databases]
        (True, ['msdb', 'Sales'])
    """

    def __init__(
        self,
        folder: Path,
        file: DatabaseFile,
        *,
        clock: Callable[[], datetime],
        random: randomness.Random,
        background: bool,
        vfs: str | None,
    ) -> None:
        self.folder: Final = folder
        self.clock: Final = clock
        self.microseconds: Final = in_microseconds(clock)
        self.has_system_clock: Final = clock is system_clock
        self.random: Final = random
        self.lock_timeout: Final = file.lock_timeout
        self.background: Final = background
        self.vfs: Final = vfs
        self.credentials: Final = Credentials(folder)
        self._databases = Databases(self, file)
        self._pictures = Pictures(self)
        self.events: Final = EventLog()
        with file.read() as connection:
            self.name, self.instance_id = registry.instance_row(connection)
        self.worker: Final = Background(self)

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        name: str,
        clock: Callable[[], datetime] = system_clock,
        random: randomness.Random | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        background: bool = True,
        vfs: str | None = None,
    ) -> Self:
        """Makes an instance with the database msdb.

        Args:
            folder: Where its files stand; made where it is not there, for this user alone.
            name: What it is called.
            clock: Tells the current moment, in UTC.
            random: Where ids come from; left out, from the operating system.
            lock_timeout: The seconds to wait for a file's write lock.
            background: Whether threads of the instance do what happens over time.
            vfs: SQLite's virtual file system by name, None for its own.

        Returns:
            The instance, open.

        Raises:
            BrokerError: The folder holds an instance.
            OptionError: `lock_timeout` is no number of seconds, or `name` no text.
            StorageError: The files cannot be written.
        """
        place = databases.resolved(folder)
        chance = random or randomness.SystemRandom()
        file = databases.create_msdb(place / MSDB_FILE, name=name, random=chance, lock_timeout=lock_timeout, vfs=vfs)
        return cls(place, file, clock=clock, random=chance, background=background, vfs=vfs)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        clock: Callable[[], datetime] = system_clock,
        random: randomness.Random | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        background: bool = True,
        vfs: str | None = None,
    ) -> Self:
        """Opens an instance that `create` made.

        Args:
            folder: Where its files stand.
            clock: Tells the current moment, in UTC.
            random: Where ids come from; left out, from the operating system.
            lock_timeout: The seconds to wait for a file's write lock.
            background: Whether threads of the instance do what happens over time.
            vfs: SQLite's virtual file system by name, None for its own.

        Returns:
            The instance, open.

        Raises:
            OptionError: `lock_timeout` is no number of seconds.
            StorageError: There is none, or its files cannot be used.
        """
        place = databases.resolved(folder)
        file = databases.open_msdb(place / MSDB_FILE, lock_timeout=lock_timeout, vfs=vfs)
        opened = cls(
            place,
            file,
            clock=clock,
            random=random or randomness.SystemRandom(),
            background=background,
            vfs=vfs,
        )
        opened.worker.wake()
        return opened

    @property
    def databases(self) -> tuple[Database, ...]:
        """The databases in the order of their ids, msdb first."""
        return tuple(self._databases.all().values())

    @property
    def msdb(self) -> Database:
        """The database whose routing table is for what arrives from outside (R1)."""
        return self.database(MSDB_NAME)

    def database(self, name: str) -> Database:
        """One database.

        Args:
            name: Its name, exactly.

        Returns:
            The database; the same object each time, as long as it is attached.

        Raises:
            UnknownDatabaseError: There is none of this name.
            StorageError: Its file is not there, or cannot be used.
        """
        return self._databases.one(name)

    def catalog(self) -> Catalog:
        """What routing, `explain`, `lint` and Spark need to know of the instance as it is now.

        Returns:
            The catalog; the same object as before where nothing has changed.

        Raises:
            StorageError: A file cannot be read.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     _ = instance.create_database("Sales")
            ...     instance.catalog().databases["name"].to_pylist()
            ['msdb', 'Sales']
        """
        return self._pictures.catalog()

    def router(self, *, tie_break: TieBreak = "hash", pending_request: PendingRequest = "continue") -> Router:
        """A router on the instance as it is now.

        Args:
            tie_break: How one of several equals is picked; `round_robin` takes turns for as long as nothing changes (R24).
            pending_request: While routing information is requested, `continue` goes on at step 5, `delay` waits.

        Returns:
            The router; the same object as before where nothing has changed.

        Raises:
            StorageError: A file cannot be read.
        """
        return self._pictures.router(tie_break=tie_break, pending_request=pending_request)

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Has a function called with each event from now on, in the thread in which it happens, after the commit that makes it true.

        Args:
            subscriber: The function. What it raises is logged and goes no further.
            kinds: The classes of events that it is for; none means all.

        Returns:
            Ends the subscription.
        """
        return self.events.subscribe(subscriber, *kinds)

    def run_due(self, now: datetime | None = None) -> datetime | None:
        """Does everything that is due, once: deliveries, timers, lifetimes, readers of queues. With `background`, a thread does it.

        Args:
            now: The moment; None is that of the clock.

        Returns:
            When the next thing is due, as far as is known now; None where nothing is.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with Instance.create(folder, name="shop", background=False) as instance:
            ...         print(instance.run_due())
            None
        """
        if self.server is not None and not self.background:
            self.server.exchange.turn()
        return self.worker.run_due(now)

    def register_procedure(self, name: str, function: Procedure) -> None:
        """Gives a function a name for the ACTIVATION clauses of queues: `PROCEDURE_NAME = name` has this process run it.

        Args:
            name: The name; without a schema it is in `dbo`.
            function: What a reader runs, as `Database.activate` has it.

        Raises:
            OptionError: `function` cannot be called.
        """
        self.worker.activation.register(name, function)

    def objects_changed(self, database: Database) -> None:
        """Called when the objects of a database have changed, or it came or went: what waited for that is tried again.

        Args:
            database: The database.
        """
        self.worker.changed(database)

    def close(self) -> None:
        """Ends the threads and closes the files. What was committed is on the disk already (B4). A forked process has none of them."""
        if not self.is_inherited:
            if self.server is not None:
                self.server.close()
            self.worker.close()
            self._databases.close()

    @property
    def _instance(self) -> Instance:
        return self

    def new_guid(self) -> uuid.UUID:
        """A random id (B6)."""
        return databases.random_guid(self.random)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Instance({self.name!r}, folder={str(self.folder)!r})"
