"""A running instance: a folder with one SQLite file for each database."""

from __future__ import annotations

import os
import random as randomness
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self

import pyarrow as pa

from ssbroker.broker import databases, identity, scripts, views
from ssbroker.broker.activation import Procedure
from ssbroker.broker.background import Background
from ssbroker.broker.clock import system_clock
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.database import Database
from ssbroker.broker.databases import Databases, InstanceChange
from ssbroker.catalog.catalog import Catalog
from ssbroker.ddl.statements import BrokerOption
from ssbroker.exceptions import OptionError
from ssbroker.protocol.events import Event, Subscriber
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.store import registry
from ssbroker.store.file import LOCK_TIMEOUT, DatabaseFile
from ssbroker.store.registry import MSDB_NAME

if TYPE_CHECKING:
    from ssbroker.broker.network.connection import EndpointLimits
    from ssbroker.broker.network.server import Server
    from ssbroker.broker.network.tls import Trust
    from ssbroker.protocol.config import ProtocolSettings


MSDB_FILE: Final = "msdb.sqlite"


class Instance:
    """The databases of a folder, for any number of threads of this process; other processes may have it open too.

    It is made by `create` and `open`, and closed by `close` or at the end of a `with` block.

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
        with file.read() as connection:
            name, instance_id = registry.instance_row(connection)
        context = InstanceContext(
            folder,
            name=name,
            instance_id=instance_id,
            clock=clock,
            random=random,
            lock_timeout=file.lock_timeout,
            background=background,
            vfs=vfs,
        )
        self._context: Final = context
        self._databases: Final = Databases(context, file)
        self._background: Final = Background(context, public=self._public)
        context.databases_list = self._databases
        context.listener = self._background
        context.routes = self._background.routes
        self._public_guard: Final = threading.RLock()
        self._server: Server | None = None

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
        opened._background.wake()
        return opened

    @property
    def folder(self) -> Path:
        """The folder of the instance."""
        return self._context.folder

    @property
    def name(self) -> str:
        """The name given when the instance was created."""
        return self._context.name

    @property
    def server(self) -> Server | None:
        """The server that serves this instance in this process; None if nothing does."""
        return self._server

    @property
    def databases(self) -> tuple[Database, ...]:
        """The databases in the order of their ids, msdb first."""
        return tuple(map(self._public, self._context.databases))

    @property
    def msdb(self) -> Database:
        """The database whose routing table is for what arrives from outside (R1)."""
        return self.database(MSDB_NAME)

    def database(self, name: str) -> Database:
        """Returns one database.

        Args:
            name: The exact name.

        Returns:
            The database; the same object each time, for as long as it is attached.

        Raises:
            UnknownDatabaseError: The instance has no database of this name.
            StorageError: The database file is missing, or cannot be used.
        """
        return self._public(self._context.database(name))

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
        with InstanceChange(self._context) as alteration:
            identity.create(self._context, alteration, name)
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
            ...     guid, file = sales.service_broker_guid, sales.path
            ...     instance.detach_database("Sales")
            ...     instance.attach_database("Shop", file).service_broker_guid == guid
            True
        """
        with InstanceChange(self._context) as alteration:
            identity.attach(self._context, alteration, name, databases.resolved(file), option)
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
            ...     [database.name for database in instance.databases], sales.path.name
            (['msdb'], 'Sales.sqlite')
        """
        with InstanceChange(self._context) as alteration:
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
            ...     sales.path.exists()
            False
        """
        with InstanceChange(self._context) as alteration:
            identity.detach(alteration, name, is_dropped=True)

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
            ...     instance.view("sys.service_queues")["name"].to_pylist()
            ['Orders']
        """
        given: object = ddl
        if not isinstance(given, str):
            raise OptionError(f"ddl: expected the text of a script; got {type(given).__name__}")
        scripts.execute(self._context, ddl, file=file)

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
        return views.view(self._context, name, database)

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
        return self._background.catalog.catalog()

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
        return self._background.catalog.router(tie_break=tie_break, pending_request=pending_request)

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Has a function called with each event from now on, in the thread in which it happens, after the commit that makes it true.

        Args:
            subscriber: The function. What it raises is logged and goes no further.
            kinds: The classes of events that it is for; none means all.

        Returns:
            Ends the subscription.
        """
        return self._context.events.subscribe(subscriber, *kinds)

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
        if self._server is not None and not self._context.background:
            self._server.exchange.turn()
        return self._background.run_due(now)

    def register_procedure(self, name: str, function: Procedure) -> None:
        """Gives a function a name for the ACTIVATION clauses of queues: `PROCEDURE_NAME = name` has this process run it.

        Args:
            name: The name; without a schema it is in `dbo`.
            function: What a reader runs, as `Database.activate` has it.

        Raises:
            OptionError: `function` cannot be called.
        """
        self._background.activation.register(name, function)

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 4022,
        *,
        trust: Trust | None = None,
        allow_unencrypted: bool = False,
        addresses: Sequence[str] = (),
        dial_only: Sequence[str] = (),
        limits: EndpointLimits | None = None,
        settings: ProtocolSettings | None = None,
        close_timeout: float = 10.0,
    ) -> Server:
        """Serves the instance to other instances: accepts and makes connections, and exchanges messages, until the block ends.

        Args:
            host: The address or host name to listen on; "0.0.0.0" and "::" are all addresses of the machine.
            port: The port; 0 takes any free port.
            trust: The certificates of this instance, and which peers may connect. Required unless `allow_unencrypted` is true.
            allow_unencrypted: Do without TLS: whoever reaches the port can send messages.
            addresses: More addresses under which other instances reach this one, such as `TCP://shop.example.com:4022`.
            dial_only: The networks (`10.0.0.0/8`), addresses, host names and domains (`*.example.com`) that may be dialled; empty means all.
            limits: Timeouts and limits of connections; None means the defaults.
            settings: Settings of the dialog protocol; None means the defaults. `max_fragment_bytes` is from 2,048 to 1,048,576.
            close_timeout: The most seconds that `close` spends on sending what is queued.

        Returns:
            The server, for use in a `with` block; `Server.port` is the port in use.

        Raises:
            OptionError: An option has an invalid value.
            InvalidAddressError: One of `addresses` is not a valid address.
            InputError: A certificate cannot be read.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     with instance.serve(port=0, allow_unencrypted=True) as server:
            ...         server.address.startswith("TCP://127.0.0.1:")
            True
        """
        from ssbroker.broker.network.connection import EndpointLimits  # noqa: PLC0415  # loaded only when serving
        from ssbroker.broker.network.server import ServeOptions, Server  # noqa: PLC0415
        from ssbroker.protocol.config import ProtocolSettings  # noqa: PLC0415

        options = ServeOptions(
            host=host,
            port=port,
            trust=trust,
            allow_unencrypted=allow_unencrypted,
            addresses=addresses,
            dial_only=dial_only,
            limits=EndpointLimits() if limits is None else limits,
            settings=ProtocolSettings() if settings is None else settings,
            close_timeout=close_timeout,
        )
        return Server(self._context, self._background, options, changed=self._set_server)

    def _set_server(self, server: Server | None) -> None:
        self._server = server

    def close(self) -> None:
        """Ends the threads and closes the files. What was committed is on the disk already (B4). A forked process has none of them."""
        if not self._databases.is_inherited:
            if self._server is not None:
                self._server.close()
            self._background.close()
            self._databases.close()

    def _public(self, context: DatabaseContext) -> Database:
        """The public object of a database; the same one for as long as the database is attached."""
        with self._public_guard:
            database: Database | None = context.public
            if database is None:
                database = context.public = Database(context, self._background.activation)
            return database

    def __reduce__(self) -> NoReturn:
        """An instance is open files, locks and threads of this process.

        Raises:
            TypeError: Always; the message says what to do instead.
        """
        self._context.__reduce__()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Instance({self.name!r}, folder={str(self.folder)!r})"


def context_of(instance: Instance) -> InstanceContext:
    """The inner state of an instance, for the parts of the library that build on it."""
    return instance._context  # noqa: SLF001


def background_of(instance: Instance) -> Background:
    """The background work of an instance, for the parts of the library that build on it."""
    return instance._background  # noqa: SLF001
