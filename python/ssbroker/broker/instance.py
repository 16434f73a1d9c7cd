"""A running instance: a folder with one SQLite file for each database."""

from __future__ import annotations

import os
import random as randomness
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self, overload

import pyarrow as pa

from ssbroker._arguments import boolean, path_argument, timeout_seconds
from ssbroker._well_known import PORT
from ssbroker.broker import async_calls, database_lifecycle, instance_files, scripts, views
from ssbroker.broker.activation import Procedure
from ssbroker.broker.background import Background
from ssbroker.broker.context import DatabaseContext, InstanceContext, system_clock
from ssbroker.broker.database import Database
from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.broker.job_retry_delays import check_retry_after
from ssbroker.broker.object_ddl import OnPoison, check_on_poison
from ssbroker.broker.open_databases import Databases
from ssbroker.broker.scripts.object_comparison import ObjectChange
from ssbroker.broker.work_queue import WorkQueue
from ssbroker.catalog.catalog import Catalog
from ssbroker.catalog.instance_folder import MSDB_FILE
from ssbroker.ddl import ScriptOptions, check_variables, refusal_texts
from ssbroker.ddl.script_notes import summary
from ssbroker.ddl.statements import BrokerOption
from ssbroker.ddl.system_objects import SYSTEM_DATABASES, canonical_name
from ssbroker.exceptions import BrokerError, DdlWarning, OptionError, SchemaError, StorageError, UnknownDatabaseError
from ssbroker.protocol.broker_errors import DATABASE_EXISTS, refusal
from ssbroker.protocol.events import Event, First, Second, Subscriber, Third
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.store import database_registry, file_ownership
from ssbroker.store.database_file import LOCK_TIMEOUT, DatabaseFile
from ssbroker.store.database_registry import MSDB_NAME
from ssbroker.store.sqlite import check_vfs

if TYPE_CHECKING:
    from ssbroker.broker.network.instance_server import Server
    from ssbroker.broker.network.limits import EndpointLimits
    from ssbroker.broker.network.tls import Trust
    from ssbroker.protocol.settings import ProtocolSettings


_QUEUES: Final = "Queues"
"""The database that `Instance.queue` uses."""


class Instance:
    """A broker instance: a folder with one SQLite file for each database.

    Create one with `create` or `open`; close it with `close` or a `with` block. All threads of the process can share an instance, and
    several processes can open the same folder.

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
            name, instance_id = database_registry.instance_row(connection)
            ownership = file_ownership.FileOwnership(
                instance_id, folder=folder, msdb_path=file.path, msdb_owner=file_ownership.read_owner(connection)
            )
        context = InstanceContext(
            folder,
            name=name,
            ownership=ownership,
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
        """Creates an instance, with the system database msdb.

        Args:
            folder: The folder for the database files; created if missing, accessible only to the current user.
            name: The name of the instance.
            clock: A function that returns the current time as an aware `datetime`.
            random: The random number generator for ids and jitter; None means the generator of the operating system.
            lock_timeout: Seconds to wait for the write lock of a file.
            background: Whether background threads do the work that is due: deliveries, timers, lifetimes and
                activation. If false, call `run_due`.
            vfs: The name of a SQLite virtual file system (VFS); None means the default.

        Returns:
            The open instance.

        Raises:
            BrokerError: The folder already contains an instance.
            OptionError: An argument has an invalid type or value.
            StorageError: The files cannot be written.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with Instance.create(f"{folder}/shop", name="shop") as instance:
            ...         [database.name for database in instance.databases]
            ['msdb']
        """
        resolved_folder = _instance_folder(folder)
        _check_options(clock, random, lock_timeout, background=background, vfs=vfs)
        source = random or randomness.SystemRandom()
        file = instance_files.create_msdb(
            resolved_folder / MSDB_FILE, name=name, random=source, lock_timeout=lock_timeout, vfs=vfs
        )
        return cls(resolved_folder, file, clock=clock, random=source, background=background, vfs=vfs)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        create: bool = False,
        name: str | None = None,
        clock: Callable[[], datetime] = system_clock,
        random: randomness.Random | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        background: bool = True,
        vfs: str | None = None,
    ) -> Self:
        """Opens an existing instance; with `create`, creates it if the folder does not contain one.

        Args:
            folder: The instance folder.
            create: Whether to create the instance if it does not exist. If several processes do so at the same time, one creates it, and
                all open it.
            name: The name of a new instance; None means the name of the folder.
            clock: A function that returns the current time as an aware `datetime`.
            random: The random number generator for ids and jitter; None means the generator of the operating system.
            lock_timeout: Seconds to wait for the write lock of a file.
            background: Whether background threads do the work that is due: deliveries, timers, lifetimes and
                activation. If false, call `run_due`.
            vfs: The name of a SQLite virtual file system (VFS); None means the default.

        Returns:
            The open instance.

        Raises:
            OptionError: An argument has an invalid type or value, or `name` is passed without `create`.
            StorageError: The folder does not contain an instance, or its files cannot be used.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     for _ in range(2):  # the first time it is created
            ...         with Instance.open(folder + "/shop", create=True) as instance:
            ...             print(instance.name)
            shop
            shop
        """
        boolean(create, name="create")
        if name is not None and not create:
            raise OptionError("name: only a new instance can be given a name; add create=True, or omit name")
        resolved_folder = _instance_folder(folder)
        _check_options(clock, random, lock_timeout, background=background, vfs=vfs)
        source = random or randomness.SystemRandom()
        path = resolved_folder / MSDB_FILE
        file = None
        if create:
            name = resolved_folder.name if name is None else name
            file = instance_files.create_msdb_if_missing(
                path, name=name, random=source, lock_timeout=lock_timeout, vfs=vfs
            )
        opened = cls(
            resolved_folder,
            file or instance_files.open_msdb(path, lock_timeout=lock_timeout, vfs=vfs),
            clock=clock,
            random=source,
            background=background,
            vfs=vfs,
        )
        opened._background.wake()
        return opened

    @property
    def folder(self) -> Path:
        """The instance folder."""
        return self._context.folder

    @property
    def name(self) -> str:
        """The name given when the instance was created."""
        return self._context.name

    @property
    def server(self) -> Server | None:
        """The running `Server` of this instance in this process; None if there is none."""
        return self._server

    @property
    def databases(self) -> tuple[Database, ...]:
        """The databases in the order of their ids, msdb first; without those in `unavailable_databases`."""
        return tuple(map(self._public, self._context.databases))

    @property
    def unavailable_databases(self) -> dict[str, StorageError]:
        """The names of the databases whose files are missing or cannot be used, with the reasons."""
        return self._context.databases_list.unavailable()

    @property
    def msdb(self) -> Database:
        """The msdb database, whose routes apply to messages that arrive from other instances."""
        return self.database(MSDB_NAME)

    def database(self, name: str) -> Database:
        """Returns a database by its name.

        Args:
            name: The exact name of the database.

        Returns:
            The database; always the same object while the database is attached.

        Raises:
            UnknownDatabaseError: The instance has no database with this name.
            StorageError: The database file is missing or cannot be used.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     instance.database("Sales") is sales
            True
        """
        return self._public(self._context.database(name))

    def create_database(self, name: str, *, exist_ok: bool = False) -> Database:
        """Creates a database in its own file in the instance folder, with a new broker id and an enabled broker.

        Args:
            name: The name of the database.
            exist_ok: Whether to return an existing database with this name unchanged instead of raising an error.

        Returns:
            The database.

        Raises:
            BrokerError: The name already exists (1801) or is not valid, or the file already exists (5170).
            StorageError: The file cannot be written.
            OptionError: `exist_ok` is not a bool.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     instance.create_database("Sales").service_broker_guid.version
            4
        """
        if boolean(exist_ok, name="exist_ok"):
            with suppress(UnknownDatabaseError):
                return self.database(name)
        try:
            with InstanceTransaction(self._context) as transaction:
                database_lifecycle.create(self._context, transaction, name)
        except BrokerError as error:
            if error.number != DATABASE_EXISTS or canonical_name(name) in SYSTEM_DATABASES:
                raise
            if not exist_ok:  # otherwise another process was faster
                hint = f"open it with instance.database({name!r}), or pass exist_ok=True to create the database only if it does not exist"
                raise BrokerError(f"{error}; {hint}", number=error.number) from error
        return self.database(name)

    def queue(
        self,
        name: str,
        *,
        on_poison: OnPoison | None = None,
        poison_queue: str | None = None,
        retry_after: float | Callable[[int], float] | None = None,
        create: bool = True,
    ) -> WorkQueue:
        """Returns a work queue in the database `Queues`; creates the queue and the database if they do not exist.

        To commit messages together with your own tables, call `Database.queue` on the database that contains the tables.

        Args:
            name: The name of the queue, as in `Database.queue`.
            on_poison: What happens to a message after five failures, as in `Database.queue`: `disable` or `move`.
            poison_queue: With `move`, the queue to which messages are moved, as in `Database.queue`.
            retry_after: How many seconds a message waits after an exception in its job, as in `Database.queue`.
            create: Whether a queue that does not exist is created, as in `Database.queue`.

        Returns:
            The work queue.

        Raises:
            BrokerError: The queue cannot be created, or does not exist, as in `Database.queue`.
            OptionError: An option has an invalid value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _ = queue.put(b"resize cat.png")
            ...     with queue.take() as job:
            ...         print(job.value)
            b'resize cat.png'
        """
        check_on_poison(on_poison, poison_queue)
        check_retry_after(retry_after)
        boolean(create, name="create")
        if create:
            database = self.create_database(_QUEUES, exist_ok=True)
        else:
            try:
                database = self.database(_QUEUES)
            except UnknownDatabaseError:
                raise refusal(refusal_texts.does_not_exist("queue", str(name), _QUEUES), 15151) from None
        return database.queue(
            name, on_poison=on_poison, poison_queue=poison_queue, retry_after=retry_after, create=create
        )

    def attach_database(
        self, name: str, file: str | os.PathLike[str], *, option: BrokerOption | None = None
    ) -> Database:
        """Attaches a database file: the file of a detached database, or a copy such as a backup.

        The database keeps its broker id unless `option` is `NEW_BROKER`.

        Args:
            name: The name of the database in this instance.
            file: The database file; it is not moved or copied.
            option: The broker option to apply, as in `Database.set_broker`; None keeps the state of the broker.

        Returns:
            The attached database. Its broker is disabled if another database of the instance is enabled with the same broker id, unless
            `option` is `NEW_BROKER`.

        Raises:
            BrokerError: The name already exists (1801), the file is not a database file (5171), or it is already attached (5120).
            StorageError: The file cannot be opened or written.
            OptionError: `option` is not valid.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Warns:
            BrokerWarning: The broker is disabled, because another database of the instance is enabled with the same broker id (9773).

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
        with InstanceTransaction(self._context) as transaction:
            database_lifecycle.attach(
                self._context, transaction, name, instance_files.resolve_path(file, name="file"), option
            )
        return self.database(name)

    def detach_database(self, name: str) -> None:
        """Detaches a database from the instance. The file can be attached again, to this or another instance.

        A database whose file is missing or damaged can also be detached; the file is not changed.

        Args:
            name: The name of the database.

        Raises:
            UnknownDatabaseError: The instance has no database with this name.
            BrokerError: The database is msdb (7940).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Warns:
            BrokerWarning: The last commits could not be moved from the `-wal` file into the database file, because readers were active
                for longer than `lock_timeout`, or the disk failed. Keep the `-wal` file together with the database file.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     instance.detach_database("Sales")
            ...     [database.name for database in instance.databases], sales.path.name
            (['msdb'], 'Sales.sqlite')
        """
        with InstanceTransaction(self._context) as transaction:
            database_lifecycle.detach(transaction, name)

    def drop_database(self, name: str) -> None:
        """Drops a database and deletes its file. A file that cannot be used is kept.

        If the file is missing from the instance folder, its `-wal`, `-shm` and `-notify` files are deleted.

        Args:
            name: The name of the database.

        Raises:
            UnknownDatabaseError: The instance has no database with this name.
            BrokerError: The database is msdb (3708).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     instance.drop_database("Sales")
            ...     sales.path.exists()
            False
        """
        with InstanceTransaction(self._context) as transaction:
            database_lifecycle.detach(transaction, name, is_dropped=True)

    def execute(
        self, ddl: str, *, file: str | None = None, variables: Mapping[str, str] | None = None, lenient: bool = False
    ) -> None:
        """Runs a T-SQL script that defines databases and their Service Broker objects, in the dialect of `Catalog.load`.

        Each batch (up to `GO`) runs in a transaction: either all of its statements take effect, or none. If a batch
        fails or is interrupted, earlier batches remain in effect, but databases, the endpoint and files that the script
        created are removed. Until the first `USE`, the script applies to the only user database. Conditions and dynamic
        SQL in `EXEC` are evaluated; the page `docs/reference/scripts.md` describes what each statement does.

        Args:
            ddl: The text of the script.
            file: The name of the script, for errors and warnings; paths of `:r` are relative to its folder.
            variables: Values of the sqlcmd variables in the script, such as `$(DatabaseName)`.
            lenient: Whether to skip statements that T-SQL does not have, and to accept a script without any statement about Service Broker.

        Raises:
            DdlError: A statement is rejected or has a syntax error; the error contains the line and the error number. The batch has changed nothing.
            OptionError: `ddl` is not a string (to run a file, pass its text), or `variables` or `lenient` is not valid.
            StorageError: A file cannot be written, or stays locked by another process for longer than `lock_timeout` (`LockTimeoutError`).

        Warns:
            DdlWarning: Statements were skipped because they do not apply to an instance, or could not be executed.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     instance.execute("CREATE DATABASE Sales; USE Sales; CREATE QUEUE Orders;")
            ...     instance.view("sys.service_queues")["name"].to_pylist()
            ['Orders']
        """
        options = _script_options(ddl, variables, lenient=lenient)
        notes = scripts.execute(self._context, ddl, file=file, options=options)
        for line in summary(notes, about="Service Broker"):
            warnings.warn(line, DdlWarning, stacklevel=2)

    def ensure(
        self, ddl: str, *, file: str | None = None, variables: Mapping[str, str] | None = None, lenient: bool = False
    ) -> tuple[ObjectChange, ...]:
        """Makes databases and their objects match a T-SQL script, such as the set-up of an application that runs at each start.

        `CREATE` of an existing object alters what differs; `DROP` of a missing object does nothing. Clauses that the
        script omits get their defaults, with two exceptions: whether a queue is enabled and who owns an object stay
        unchanged. A route with a LIFETIME in the script keeps the time at which it expires, because LIFETIME counts
        from the creation of the route. Objects that the script does not name stay unchanged; so do messages,
        conversations, the password of the master key and the content of certificates. The whole script is one
        transaction, even across batches: if a statement is rejected, nothing changes. (The files of several databases
        are committed one after the other.)

        Args:
            ddl: The text of the script, as for `execute`.
            file: The name of the script, for errors and warnings.
            variables: Values of the sqlcmd variables in the script.
            lenient: Whether to skip statements that T-SQL does not have, and to accept a script without any statement about Service Broker.

        Returns:
            What was created, altered and dropped, and what still differs because no statement can alter it. Empty if
            everything already matched.

        Raises:
            DdlError: A statement is rejected or has a syntax error, or changes the database each time, such as `SET NEW_BROKER`.
            OptionError: `ddl` is not a string, or `variables` or `lenient` is not valid.
            StorageError: A file cannot be written, or stays locked by another process for longer than `lock_timeout` (`LockTimeoutError`).

        Warns:
            DdlWarning: Statements were skipped because they do not apply to an instance, or could not be executed.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     setup = "CREATE DATABASE Sales; USE Sales; CREATE QUEUE Orders"
            ...     print(*instance.ensure(setup), sep="; ")
            ...     print(instance.ensure(setup))
            ...     print(*instance.ensure(f"{setup} WITH RETENTION = ON"))
            created database Sales; created queue [dbo].[Orders] in Sales
            ()
            altered queue [dbo].[Orders] in Sales: retention: off -> on
        """
        options = _script_options(ddl, variables, lenient=lenient)
        changes, notes = scripts.ensure(self._context, ddl, file=file, options=options)
        for line in summary(notes, about="Service Broker"):
            warnings.warn(line, DdlWarning, stacklevel=2)
        return changes

    def view(self, name: str, database: str | None = None) -> pa.Table:
        """Returns the current rows of a system view or a queue as an Arrow table.

        Args:
            name: A system view such as `sys.databases`, `sys.routes` or `sys.transmission_queue`, or a queue such as `dbo.Orders`.
            database: The name of one database; None means all databases.

        Returns:
            The rows, with SQL Server's columns. Views whose scope is a database, and queues, have `database` as an additional first column.

        Raises:
            InputError: The view or queue does not exist, or `database` is passed for a view of the instance.
            UnknownDatabaseError: The database does not exist.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     instance.view("sys.routes").select(["database", "name", "address"]).to_pylist()
            [{'database': 'msdb', 'name': 'AutoCreatedLocal', 'address': 'LOCAL'}]
        """
        return views.view(self._context, name, database)

    def catalog(self) -> Catalog:
        """Returns a catalog of the instance's current state, for routing, `explain`, `lint` and Spark.

        Returns:
            The catalog; the same object as before if nothing has changed.

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
        """Returns a router for the instance's current state.

        Args:
            tie_break: How to choose among equal candidates, as in `Router`. The rotation of `round_robin` starts again
                when the instance changes.
            pending_request: How to route a conversation while routing information is requested for its service, as in `Router`.

        Returns:
            The router; the same object as before if nothing has changed.

        Raises:
            StorageError: A file cannot be read.
            OptionError: An argument has an invalid type or value.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     instance.router() is instance.router()
            True
        """
        return self._background.catalog.router(tie_break=tie_break, pending_request=pending_request)

    @overload
    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]: ...

    @overload
    def subscribe(
        self, subscriber: Callable[[First], None], kind: type[First], /, *kinds: type[First]
    ) -> Callable[[], None]: ...

    # mypy does not infer a union for `First`, so two and three kinds have their own overloads.
    @overload
    def subscribe(
        self, subscriber: Callable[[First | Second], None], kind: type[First], second: type[Second], /
    ) -> Callable[[], None]: ...

    @overload
    def subscribe(
        self,
        subscriber: Callable[[First | Second | Third], None],
        kind: type[First],
        second: type[Second],
        third: type[Third],
        /,
    ) -> Callable[[], None]: ...

    def subscribe(self, subscriber: Callable[..., None], *kinds: type[Event]) -> Callable[[], None]:
        """Subscribes a function to events.

        The function is called in the thread that causes the event, after the transaction has committed.

        Args:
            subscriber: The function to call with each event. Its exceptions are logged and ignored.
            kinds: The event classes to subscribe to; none means all.

        Returns:
            A function that ends the subscription.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     events = []
            ...     unsubscribe = instance.subscribe(events.append)
            ...     unsubscribe()
        """
        return self._context.events.subscribe(subscriber, *kinds)

    def run_due(self, now: datetime | None = None) -> datetime | None:
        """Does all work that is due: deliveries, timers, lifetimes, activation, and, while the instance is served, sending to other instances.

        With `background=True`, background threads do this work; otherwise, call the method yourself.

        Args:
            now: The current time; None means the time of the instance's clock. A datetime must have a time zone.

        Returns:
            The next known time, in UTC, at which work is due; None if no such time is known.

        Raises:
            OptionError: `now` is not a datetime with a time zone.

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
        """Registers a function under the name that ACTIVATION clauses of queues use: `PROCEDURE_NAME = name`.

        Args:
            name: The name of the procedure; the default schema is `dbo`.
            function: The function to activate in this process, as in `Database.activate`.

        Raises:
            OptionError: `function` is not callable.
            BrokerError: `name` is not a valid name (208).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> def handle(database):
            ...     with database.transaction() as t:
            ...         t.receive("Orders")
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     instance.register_procedure("handle", handle)
            ...     sales.create_queue("Orders", procedure="handle")
        """
        self._background.activation.register(name, function)

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        trust: Trust | None = None,
        allow_unencrypted: bool = False,
        addresses: Sequence[str] = (),
        dial_only: Sequence[str] = (),
        limits: EndpointLimits | None = None,
        settings: ProtocolSettings | None = None,
        close_timeout: float = 10.0,
    ) -> Server:
        """Returns a server that exchanges messages with other instances over the network while its `with` block runs.

        Args:
            host: The address or host name to listen on; "0.0.0.0" and "::" mean all addresses of the machine.
            port: The TCP port; 0 means any free port.
            trust: The certificates of this instance, and which peers may connect. Required unless `allow_unencrypted` is true.
            allow_unencrypted: Whether to serve without TLS. Anyone who can reach the port can then send messages.
            addresses: Additional addresses by which other instances reach this one, such as `TCP://shop.example.com:4022`.
            dial_only: The only networks (`10.0.0.0/8`), addresses, host names and domains (`*.example.com`) to connect to; empty means all.
            limits: Timeouts, in microseconds, and limits of connections; None means the defaults.
            settings: Settings of the dialog protocol; None means the defaults. `max_fragment_bytes` must be from 2,048
                to 1,048,576.
            close_timeout: The maximum number of seconds that `close` waits for queued messages to be sent.

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
        from ssbroker.broker.network.instance_server import ServeOptions, Server  # noqa: PLC0415
        from ssbroker.broker.network.limits import EndpointLimits  # noqa: PLC0415  # loaded only when serving
        from ssbroker.protocol.settings import ProtocolSettings  # noqa: PLC0415

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
        return Server(self._context, self._background, options, on_change=self._set_server)

    def _set_server(self, server: Server | None) -> None:
        self._server = server

    def stop_workers(self) -> None:
        """Lets the workers of this process finish their jobs and stop: jobs that wait for a message stop waiting, and new jobs take no messages.

        `WorkQueue.run_worker` and `WorkQueue.arun_worker` then return. Running jobs are not affected. The method returns immediately, so
        a signal handler may call it: `signal.signal(signal.SIGTERM, lambda *_: instance.stop_workers())`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _, _ = queue.put(b"one"), queue.put(b"two")
            ...     def work(job):
            ...         instance.stop_workers()
            ...         print(job.value)
            ...     queue.run_worker(work)
            ...     queue.count()
            b'one'
            1
        """
        self._context.stop_workers()

    def close(self) -> None:
        """Stops the threads and closes the files. Does nothing in a forked process.

        Ends waiting RECEIVE calls, and waits up to `lock_timeout` for activated functions that are running. Committed changes are already
        on disk.
        """
        if self._databases.is_inherited:
            return
        with ExitStack() as stack:
            stack.callback(self._databases.close)
            stack.callback(self._background.close)
            if self._server is not None:
                stack.callback(self._server.close)

    def _public(self, context: DatabaseContext) -> Database:
        """Returns the public object of a database; the same object while the database is attached."""
        with self._public_guard:
            database: Database | None = context.public
            if database is None:
                database = context.public = Database(context, self._background.activation)
            return database

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied: an instance holds open files, locks and threads of this process.

        Raises:
            TypeError: Always.
        """
        self._context.__reduce__()

    def __enter__(self) -> Self:
        self._databases.check()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await async_calls.leave(self.__exit__, exc_type, error, trace)

    def __repr__(self) -> str:
        return f"Instance({self.name!r}, folder={str(self.folder)!r})"


def _instance_folder(folder: str | os.PathLike[str]) -> Path:
    """Returns the absolute path of an instance folder; refuses names that SQLite would open as an in-memory database."""
    if os.fspath(path_argument(folder, name="folder")) == ":memory:":
        raise OptionError(
            "folder: ':memory:' is not possible, because an instance is a folder of files; for a temporary instance, pass a folder from "
            "tempfile.TemporaryDirectory()"
        )
    path = instance_files.resolve_path(folder, name="folder")
    if os.path.isfile(path):  # noqa: PTH113  # pathlib raises if access is denied
        raise StorageError(f"{path}: is a file; pass the instance folder", file=str(path))
    return path


def _check_options(clock: object, random: object, lock_timeout: object, *, background: object, vfs: object) -> None:
    """Checks the options of a new instance, before a file is created; calls the clock once."""
    expected = "clock: expected a function that returns an aware datetime"
    if not callable(clock):
        raise OptionError(f"{expected}, got {clock!r:.80}")
    now = clock()
    if not isinstance(now, datetime) or now.utcoffset() is None:
        raise OptionError(f"{expected}, but it returned {now!r:.80}")
    if random is not None and not isinstance(random, randomness.Random):
        raise OptionError(f"random: expected a random.Random or None, got {random!r:.80}")
    timeout_seconds(lock_timeout, name="lock_timeout")
    boolean(background, name="background")
    check_vfs(vfs)


def _script_options(ddl: object, variables: Mapping[str, str] | None, *, lenient: bool) -> ScriptOptions:
    if not isinstance(ddl, str):
        raise OptionError(f"ddl: expected the text of a script, got {type(ddl).__name__}")
    return ScriptOptions(variables=check_variables(variables), lenient=boolean(lenient, name="lenient"))


def instance_context(instance: Instance) -> InstanceContext:
    """Returns the internal state of an instance; raises `SchemaError` for any other object."""
    given: object = instance
    if not isinstance(given, Instance):
        raise SchemaError(f"instance: expected Instance, got {type(given).__name__}", column="instance")
    return instance._context  # noqa: SLF001
