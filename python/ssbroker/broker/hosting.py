"""How databases come to an instance, go, and change their identity, by method."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from ssbroker.broker.database import Database
from ssbroker.broker.databases import creation, identity
from ssbroker.broker.databases.alteration import Alteration
from ssbroker.broker.databases.databases import Databases
from ssbroker.broker.scripts import execution
from ssbroker.broker.views import views
from ssbroker.ddl.statements import BrokerOption
from ssbroker.exceptions import OptionError
from ssbroker.store.objects import Objects

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


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
        execution.execute(self._instance, ddl, file=file)

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
            identity.attach(self._instance, alteration, name, creation.resolved(file), option)
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
