"""A running instance: a folder with one file for each database."""

from __future__ import annotations

import os
import random as randomness
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ssbroker.broker.activation.watched import Procedure
from ssbroker.broker.background import Background
from ssbroker.broker.clock import in_microseconds, system_clock
from ssbroker.broker.database import Database
from ssbroker.broker.databases import creation
from ssbroker.broker.databases.databases import Databases
from ssbroker.broker.delivery.pictures import Pictures
from ssbroker.broker.objects.credentials import Credentials
from ssbroker.broker.served import Served
from ssbroker.catalog import Catalog
from ssbroker.protocol.event_log import EventLog, Subscriber
from ssbroker.protocol.events import Event
from ssbroker.routing import PendingRequest, Router, TieBreak
from ssbroker.store import registry
from ssbroker.store.file import LOCK_TIMEOUT, DatabaseFile
from ssbroker.store.registry import MSDB_NAME

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
        place = creation.resolved(folder)
        chance = random or randomness.SystemRandom()
        file = creation.create_msdb(place / MSDB_FILE, name=name, random=chance, lock_timeout=lock_timeout, vfs=vfs)
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
        place = creation.resolved(folder)
        file = creation.open_msdb(place / MSDB_FILE, lock_timeout=lock_timeout, vfs=vfs)
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
        return creation.random_guid(self.random)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Instance({self.name!r}, folder={str(self.folder)!r})"
