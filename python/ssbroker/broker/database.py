"""A database of an instance: its id, its objects, its transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Concatenate, Final, Self

from ssbroker.broker.activation.watched import Procedure
from ssbroker.broker.arrivals import Arrivals
from ssbroker.broker.databases import mirrored
from ssbroker.broker.delivery.staying import staying
from ssbroker.broker.objects.credentials import Credentials
from ssbroker.broker.objects.definitions import Definitions
from ssbroker.broker.objects.queue_names import means_itself
from ssbroker.broker.objects.refusals import refusal
from ssbroker.broker.objects.route_definitions import Options
from ssbroker.broker.transaction import Transaction
from ssbroker.ddl.statements import BrokerOption
from ssbroker.exceptions import StorageError
from ssbroker.store import objects as stored
from ssbroker.store.file import DatabaseFile
from ssbroker.store.mirroring import Role
from ssbroker.store.objects import Objects
from ssbroker.store.pictures import Picture, picture
from ssbroker.store.plain import Plain, PlainSession
from ssbroker.store.registry import MSDB_NAME
from ssbroker.store.route_requests import SYSTEM_QUEUE_ID
from ssbroker.store.sight import sight
from ssbroker.store.sqlite import Connection

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


class Database(Definitions):
    """A database of an open instance; `Instance.database` gives it.

    Attributes:
        instance: The instance.
        database_id: Its number in the instance.
        name: Its name.
        file: Its file.
        arrivals: Who waits for its messages in this process.
        enters_nothing: The version of the objects with which nothing that waits for a queue may enter it (P34), as far as one was found.
    """

    def __init__(self, instance: Instance, *, database_id: int, name: str, file: DatabaseFile) -> None:
        self.instance: Final = instance
        self.database_id: Final = database_id
        self.name = name
        self.file: Final = file
        self.arrivals: Final = Arrivals()
        self.enters_nothing: int | None = None
        self._plain: Plain | None = None
        self._objects: Objects | None = None
        self._picture: tuple[Objects, Picture] | None = None

    @property
    def service_broker_guid(self) -> uuid.UUID:
        """The broker id (I1)."""
        return uuid.UUID(bytes=self.objects().broker.service_broker_guid)

    @property
    def is_broker_enabled(self) -> bool:
        """Whether the database sends and receives (I2)."""
        return self.objects().broker.is_broker_enabled

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
                self.instance.settle(self)
                found = self._read()
        else:
            if known is not None and known.version == stored.version_of(connection):
                return known
            found = stored.load(connection)
        self._refuse_foreign(found)
        self._objects = found
        return found

    def picture(self, objects: Objects) -> Picture:
        """Objects as far as they decide about plain messages.

        Args:
            objects: What stands in the database.

        Returns:
            Their picture, made once.
        """
        known = self._picture
        if known is None or known[0] is not objects:
            known = self._picture = (objects, picture(objects, staying(objects), is_name=means_itself))
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
        found = sight(connection)
        self._refuse_foreign(found)
        return found

    def set_broker(self, option: BrokerOption) -> None:
        """Enables or disables the broker, with a new id or the old one (I4, I5, I6).

        Args:
            option: `ENABLE_BROKER` and `DISABLE_BROKER` keep id and conversations; `NEW_BROKER` gives a new id and ends every
                conversation here; `ERROR_BROKER_CONVERSATIONS` keeps the id and ends every conversation with an error at both ends.

        Raises:
            BrokerError: Another database of the instance is enabled under this id (9772, I7).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     guid = sales.service_broker_guid
            ...     sales.set_broker("NEW_BROKER")
            ...     sales.service_broker_guid == guid
            False
        """
        self.instance.set_broker(self, option)

    @property
    def mirroring_role(self) -> Role:
        """Whether the database is the principal of its mirrored pair, or the mirror (N25); without a pair it is the principal."""
        return self.objects().broker.mirroring_role

    def set_mirroring_role(self, role: Role, *, number: int | None = None) -> None:
        """Says what the database is in a mirrored pair (N25). It stands in the file, and travels with it.

        A mirror is not found by *Locate*, sends nothing and takes nothing. Whoever has a mirrored route sends to the one that says that it
        is the principal, and of two that say so to the one with the greater number (N24).

        Args:
            role: "principal" or "mirror".
            number: How often the role has changed hands; left out, one more than the file says where a mirror becomes the principal.
                Name it where the file does not know of the last failover, since it was not copied from the other one after that.

        Raises:
            OptionError: The role is neither, or the number is less than the file says.
            BrokerError: The database is msdb.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.set_mirroring_role("mirror")
            ...     sales.mirroring_role, instance.catalog().databases["is_broker_enabled"].to_pylist()
            ('mirror', [True, False])
        """
        if self.name == MSDB_NAME:
            raise refusal("msdb belongs to its instance, and cannot be mirrored")
        self.change(mirrored.set_role, role=role, number=number)

    def transaction(self) -> Transaction:
        """A transaction of this database: the application's own tables and its conversations, committed together or not at all.

        Returns:
            The transaction, for one `with` block; nothing is locked before its first use.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     with instance.create_database("Sales").transaction() as t:
            ...         _ = t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        """
        return Transaction(self)

    def plain_session(self) -> PlainSession:
        """A transaction that is not begun yet, for as long as it does what is plain.

        Returns:
            The transaction, of this thread.
        """
        plain = self._plain
        if plain is None:
            counts = self.instance.worker.counters.plain
            plain = self._plain = Plain(self.file.gate, counts, self.arrivals, SYSTEM_QUEUE_ID)
        return plain.session(get_ident())

    def activate(self, queue: str, function: Procedure, *, max_queue_readers: int = 1) -> None:
        """Has this process call a function when messages wait in a queue and nobody receives them.

        The function is called with the database. It begins transactions of its own and receives until it finds the queue empty;
        when messages come later, it is called again. More run at once, up to the limit, while messages are left for them. One that
        raises has its transaction rolled back, and is called again when it is next needed.

        Args:
            queue: The queue; without a schema it is in `dbo`.
            function: The function.
            max_queue_readers: How many may run at once, each in a thread of its own.

        Raises:
            BrokerError: There is no such queue (15151).
            OptionError: `function` cannot be called, or the number is none from 0 to 32767.
        """
        self.instance.worker.activation.activate(self, queue, function, max_queue_readers=max_queue_readers)

    def deactivate(self, queue: str) -> None:
        """Ends what `activate` began: no further reader is started; those that run end by themselves.

        Args:
            queue: The queue; without a schema it is in `dbo`.

        Raises:
            BrokerError: There is no such queue (15151).
        """
        self.instance.worker.activation.deactivate(self, queue)

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
        self.instance.objects_changed(self)

    @property
    def credentials(self) -> Credentials:
        """What opens the keys of the instance."""
        return self.instance.credentials

    def current(self) -> Objects:
        """What stands in the database, as last committed."""
        return self.objects()

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

    def __repr__(self) -> str:
        return f"Database({self.name!r})"
