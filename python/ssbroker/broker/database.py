"""A database of an instance: its broker id, objects and transactions."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

from ssbroker._arguments import (
    boolean,
    check_booleans,
    check_bytes,
    check_numbers,
    check_texts,
    guid_bytes,
    path_argument,
    string_list,
    timeout_seconds,
    utc_datetime,
)
from ssbroker._well_known import DEFAULT
from ssbroker.broker import async_calls, database_lifecycle, object_ddl, security_ddl
from ssbroker.broker.activation import Activation, Procedure
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import poison_message_handling
from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.broker.job import Job
from ssbroker.broker.object_ddl import OnPoison, SentBy, ValidationName
from ssbroker.broker.object_names import existing, queue_key
from ssbroker.broker.read_transaction import ReadTransaction
from ssbroker.broker.receive_wait import ReceiveWait
from ssbroker.broker.security_ddl import GivenCertificate
from ssbroker.broker.transaction import Transaction
from ssbroker.broker.work_queue import WorkQueue
from ssbroker.ddl.statements import DEFAULT_LEVEL, BrokerOption, QueueSettings, RouteClauses
from ssbroker.exceptions import OptionError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.security.certificates import certificate_to_pem
from ssbroker.store import object_changes as changes
from ssbroker.store.database_registry import MSDB_NAME
from ssbroker.store.objects import Objects, Role
from ssbroker.store.sqlite import Connection
from ssbroker.store.write_lock import holder_of_caller


class Database:
    """A database of an open instance. `Instance.database` and `Instance.create_database` return it.

    Methods that change the database run a transaction. They raise `LockTimeoutError` if other writers hold the write lock for longer than
    `lock_timeout`, or if they are called in the `with` block of another transaction of the same thread.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.name, sales.path.name, sales.is_broker_enabled
        ('Sales', 'Sales.sqlite', True)
    """

    def __init__(self, context: DatabaseContext, activation: Activation) -> None:
        self._context: Final = context
        self._activation: Final = activation

    @property
    def name(self) -> str:
        """The name of the database."""
        return self._context.name

    @property
    def database_id(self) -> int:
        """The id of the database in its instance, as in `sys.databases`."""
        return self._context.database_id

    @property
    def path(self) -> Path:
        """The SQLite file of the database."""
        return self._context.file.path

    @property
    def service_broker_guid(self) -> uuid.UUID:
        """The broker id of the database."""
        return uuid.UUID(bytes=self._context.objects().broker.service_broker_guid)

    @property
    def is_broker_enabled(self) -> bool:
        """Whether the broker of the database is enabled, so that it sends and receives messages."""
        return self._context.objects().broker.is_broker_enabled

    @property
    def mirroring_role(self) -> Role:
        """The mirroring role of the database: "principal" or "mirror". A database that is not mirrored is a principal."""
        return self._context.objects().broker.mirroring_role

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copies the database to a new file, while other threads and processes read and write.

        The copy is a snapshot of the last commit: queues, conversations and the application's own tables. `Instance.attach_database` restores it.

        Args:
            path: The path of the new file.

        Raises:
            OutputError: The file exists already, or cannot be created.
            StorageError: The database cannot be read, or the disk of the copy is full. The incomplete copy is removed.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(f"{folder}/shop", create=True) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.backup(f"{folder}/Sales.backup")
        """
        self._context.file.copy_to(path_argument(path, name="path"))

    def set_broker(self, option: BrokerOption) -> None:
        """Enables, disables or resets the broker of the database. Every option except `DISABLE_BROKER` enables it.

        Args:
            option: `ENABLE_BROKER` and `DISABLE_BROKER` keep the broker id and the conversations. `NEW_BROKER` sets a new broker id and
                ends all conversations of the database with an error, without notifying the remote endpoints.
                `ERROR_BROKER_CONVERSATIONS` keeps the broker id and ends all conversations with an error at both endpoints.

        Raises:
            BrokerError: Another database of the instance is enabled with the same broker id (9772).
            OptionError: The option is not valid.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

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
        instance = self._context.instance
        with InstanceTransaction(instance) as transaction:
            database_lifecycle.set_broker(instance, transaction, self._context, option)

    def set_mirroring_role(self, role: Role, *, number: int | None = None) -> None:
        """Sets the role of the database in a mirrored pair. The role is stored in the database file and copied with it.

        A mirror sends and receives no messages, and local routing does not find it. An instance with a mirrored route sends to the database
        that reports itself as the principal; if both databases do, to the one with the higher role sequence number.

        Args:
            role: "principal" or "mirror".
            number: The role sequence number (`mirroring_role_sequence`), which counts role changes of the pair. None
                increases it by one when a mirror becomes the principal. Pass a number if the file has not been copied
                from the partner database since the last failover.

        Raises:
            OptionError: The role is not valid, or the number is less than the stored one.
            BrokerError: The database is msdb.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

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
            raise refusal("msdb belongs to its instance and cannot be mirrored")
        self._context.change(object_ddl.set_mirroring_role, role=role, number=number)

    def transaction(self) -> Transaction:
        """Returns a new transaction, which commits changes to the application's tables and to conversations together.

        Returns:
            The transaction, for one `with` block. It locks the file at its first use; to read without a lock, use `read`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     with instance.create_database("Sales").transaction() as t:
            ...         _ = t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        """
        return Transaction(self._context, holder=holder_of_caller())

    def read(self) -> ReadTransaction:
        """Returns a new read transaction on the application's own tables, which neither waits for writers nor blocks them.

        Returns:
            The read transaction, for one `with` or `async with` block, which yields an `apsw.Connection` on a snapshot of the last
            commit. It does not see the changes of an open transaction, and cannot write.

        Raises:
            BrokerError: In the block: a statement would write, or begin or end a transaction.
            StorageError: When the block is entered or a statement is executed: the file cannot be read, or is closed.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     with sales.transaction() as t:
            ...         _ = t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            ...     with sales.read() as connection:
            ...         connection.execute("SELECT count(*) FROM orders").fetchone()
            (0,)
        """
        return ReadTransaction(self._context)

    async def await_message(self, queue: str, *, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # as `take`, and without an exception
        """Waits until a queue has a message, without blocking the event loop. It takes no message, so cancellation loses none.

        Args:
            queue: The name of the queue; the default schema is `dbo`.
            timeout: Seconds to wait; None waits until a message arrives.

        Returns:
            Whether there is a message; other receivers may take it first. False if none arrived, or the instance is being closed.

        Raises:
            BrokerError: The queue does not exist (15151), or is disabled and has no message that could be received (9617).
            OptionError: `timeout` is not a valid number of seconds.
            MissingDependencyError: anyio is not installed.

        Examples:
            >>> import asyncio, tempfile
            >>> from ssbroker import Instance
            >>> async def main() -> None:
            ...     with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...         sales = instance.create_database("Sales")
            ...         sales.create_queue("Orders")
            ...         sales.create_service("//Orders", queue="Orders")
            ...         async with sales.transaction() as t:
            ...             t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
            ...         while await sales.await_message("Orders", timeout=0):
            ...             async with sales.transaction() as t:
            ...                 print(t.receive("Orders")["message_body"].to_pylist())
            >>> asyncio.run(main())
            [b'two chairs']
        """
        seconds = None if timeout is None else timeout_seconds(timeout, name="timeout")
        deadline = None if seconds is None else time.monotonic() + seconds
        return await async_calls.wait(ReceiveWait(self._context, queue_key(queue), deadline=deadline))

    def take(
        self,
        queue: str,
        *,
        lease: float = 60.0,
        timeout: float | None = None,
        top: int | None = None,
        heartbeat: bool = False,
    ) -> Job:
        """Returns a job: messages that are received with a lease, for work that takes long.

        The messages stay in the queue until the job acknowledges them; until then, no other receiver gets messages of
        their conversation group. No transaction is open while the job runs, so other threads and processes can write,
        and can run jobs with messages of other groups.

        Args:
            queue: The name of the queue; the default schema is `dbo`.
            lease: Seconds after which other receivers may take the messages, unless the job has ended or extended its lease.
            timeout: Seconds to wait for a message; None waits until one arrives, `Instance.stop_workers` is called or the instance is closed.
            top: The maximum number of messages; None means all messages of the conversation group that `receive` would take.
            heartbeat: Whether a thread extends the lease while the block runs, so that the lease ends early only if the process ends.

        Returns:
            The job, for one `with` block. It takes the messages when the block is entered; `bool(job)` is false if no message arrived.

        Raises:
            BrokerError: `queue` is not a valid name (208). When the block is entered: the queue does not exist (15151) or is disabled (9617).
            OptionError: An option has an invalid value.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
            ...     with sales.take("Orders", lease=60) as job:
            ...         print(job.message.message_body)
            b'two chairs'
        """
        return Job(self._context, queue, lease=lease, timeout=timeout, top=top, heartbeat=heartbeat)

    def queue(
        self,
        name: str,
        *,
        on_poison: OnPoison | None = None,
        poison_queue: str | None = None,
        retry_after: float | Callable[[int], float] | None = None,
        create: bool = True,
    ) -> WorkQueue:
        """Returns a work queue of this database, and creates it with its service if it does not exist.

        Args:
            name: The name of the queue; the default schema is `dbo`. In a name that contains dots, use brackets, as in
                `[emails.high]`: otherwise, a dot separates the schema from the name.
            on_poison: What happens to a message after five failures: `disable` disables the queue until it is enabled again;
                `move` moves the message to another queue, and this queue stays enabled. The setting is stored with the
                queue and applies to all programs. None keeps the setting of an existing queue, and means `disable` for
                a new queue. A change to an existing queue is logged as a warning.
            poison_queue: With `move`, the queue to which messages are moved, created if missing; None means the name of this queue
                with `_failed` appended.
            retry_after: How many seconds a message waits after an exception in its job: a number, or a function of the number of failures so
                far. None means 1, 4, 16 and 64 seconds; the fifth failure is the last. The setting applies to jobs
                taken through the returned object, and is not stored.
            create: Whether a queue that does not exist is created. If false, an unknown name raises an error, which
                suggests a similar name.

        Returns:
            The work queue.

        Raises:
            BrokerError: The name is not valid, the service with this name belongs to another queue, the name differs
                only in case from the name of an existing queue (2714), or the queue does not exist and `create` is
                False (15151).
            OptionError: An option has an invalid value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     queue = sales.queue("Jobs")
            ...     with sales.transaction() as t:
            ...         _ = t.connection.execute("CREATE TABLE orders (article)")
            ...         _ = queue.put(b"ship it", transaction=t)
            ...     instance.view("dbo.Jobs")["message_body"].to_pylist()
            [b'ship it']
        """
        check_texts(on_poison=on_poison, poison_queue=poison_queue)
        return WorkQueue(
            self._context,
            name,
            on_poison=on_poison,
            poison_queue=poison_queue,
            retry_after=retry_after,
            create=create,
        )

    def activate(self, queue: str, function: Procedure, *, max_queue_readers: int = 1) -> None:
        """Activates a function in this process: calls it when messages wait in a queue and no receiver takes them.

        The function should start its own transactions and receive until the queue is empty; when more messages
        arrive, it is called again. While messages remain, more calls run in parallel, up to `max_queue_readers`. If the function raises an
        exception, its open transaction is rolled back, and the function is called again when it is next needed.

        Args:
            queue: The name of the queue; the default schema is `dbo`.
            function: The function. It is called with this database as its only argument.
            max_queue_readers: The maximum number of parallel calls, each in its own thread.

        Raises:
            BrokerError: The queue does not exist (15151).
            OptionError: `function` is not callable, or `max_queue_readers` is not an integer from 0 to 32767.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> def handle(database):
            ...     with database.transaction() as t:
            ...         t.receive("Orders")
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.activate("Orders", handle, max_queue_readers=2)
            ...     sales.deactivate("Orders")
        """
        self._activation.activate(self._context, queue, function, max_queue_readers=max_queue_readers)

    def deactivate(self, queue: str) -> None:
        """Stops the activation that `activate` started. Calls that are running finish normally.

        Does nothing if `activate` was not called. Activation by ALTER QUEUE continues.

        Args:
            queue: The name of the queue; the default schema is `dbo`.

        Raises:
            BrokerError: The queue does not exist (15151).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.activate("Orders", print)
            ...     sales.deactivate("Orders")
        """
        self._activation.deactivate(self._context, queue)

    def create_message_type(self, name: str, *, validation: ValidationName = "NONE", exist_ok: bool = False) -> None:
        """Creates a message type.

        Args:
            name: The name of the message type.
            validation: `NONE` accepts any body, `EMPTY` only an empty one, `WELL_FORMED_XML` only well-formed XML.
            exist_ok: Whether to keep an existing message type with this name unchanged instead of raising an error.

        Raises:
            BrokerError: The name already exists or is not valid.
            OptionError: `validation` is not valid.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_message_type("//order", validation="WELL_FORMED_XML")
            ...     instance.view("sys.service_message_types", "Sales")["name"].to_pylist()[-1]
            '//order'
        """
        self._create(
            object_ddl.create_message_type,
            lambda objects: name in objects.message_types,
            exist_ok=exist_ok,
            name=name,
            validation=validation,
        )

    def alter_message_type(self, name: str, *, validation: ValidationName) -> None:
        """Changes the validation of a message type for messages that arrive from now on.

        Args:
            name: The name of the message type.
            validation: `NONE`, `EMPTY` or `WELL_FORMED_XML`, as in `create_message_type`.

        Raises:
            BrokerError: The message type does not exist (15151), or is a system message type (9663).
            OptionError: `validation` is not valid.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_message_type("//order")
            ...     sales.alter_message_type("//order", validation="WELL_FORMED_XML")
            ...     instance.view("sys.service_message_types", "Sales")["validation"].to_pylist()[-1]
            'X'
        """
        self._context.change(object_ddl.alter_message_type, name=name, validation=validation)

    def drop_message_type(self, name: str) -> None:
        """Drops a message type.

        Args:
            name: The name of the message type.

        Raises:
            BrokerError: The message type does not exist (15151), is a system message type (9663), or is used by a contract or a message
                in a queue.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_message_type("//order")
            ...     sales.drop_message_type("//order")
        """
        self._context.change(object_ddl.drop_message_type, name=name)

    def create_contract(self, name: str, messages: Mapping[str, SentBy], *, exist_ok: bool = False) -> None:
        """Creates a contract.

        Args:
            name: The name of the contract.
            messages: For each message type, which side may send it: `INITIATOR`, `TARGET` or `ANY`.
            exist_ok: Whether to keep an existing contract with this name unchanged instead of raising an error.

        Raises:
            BrokerError: The name already exists, a message type does not exist (15151), or the initiator may not send
                any of the message types (8492).
            OptionError: `messages` is not a mapping, or has an invalid value.
            SchemaError: A message type is not a string.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_message_type("//order")
            ...     sales.create_contract("//ordering", {"//order": "INITIATOR", "DEFAULT": "ANY"})
            ...     instance.view("sys.service_contracts", "Sales")["name"].to_pylist()[-1]
            '//ordering'
        """
        given: object = messages
        if not isinstance(given, Mapping):
            raise OptionError(
                f"messages: expected a mapping of message types to INITIATOR, TARGET or ANY, got {given!r:.80}"
            )
        self._create(
            object_ddl.create_contract,
            lambda objects: name in objects.contracts,
            exist_ok=exist_ok,
            name=name,
            messages=messages,
        )

    def drop_contract(self, name: str) -> None:
        """Drops a contract.

        Args:
            name: The name of the contract.

        Raises:
            BrokerError: The contract does not exist (15151), is a system contract (9663), or is used by a service, a priority or an
                open conversation.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_contract("//ordering", {"DEFAULT": "ANY"})
            ...     sales.drop_contract("//ordering")
        """
        self._context.change(object_ddl.drop_contract, name=name)

    def create_queue(
        self,
        name: str,
        *,
        status: bool = True,
        retention: bool = False,
        activation: bool | None = None,
        procedure: str | None = None,
        max_queue_readers: int | None = None,
        poison_message_handling: bool = True,
        on_poison: OnPoison = "disable",
        poison_queue: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Creates a queue.

        Args:
            name: The name of the queue, optionally with its schema: `Orders`, `shop.Orders`, `[shop].[Orders.New]`. The default schema
                is `dbo`.
            status: Whether the queue is enabled.
            retention: Whether messages are kept until their conversation ends.
            activation: Whether the procedure is activated when messages wait; by default, true if there is a procedure.
            procedure: The name of the activation procedure; see `Instance.register_procedure`.
            max_queue_readers: The maximum number of procedures that run in parallel; by default, 1 if there is a procedure.
            poison_message_handling: Whether the queue is disabled, or its messages are moved, after five failures in a row.
            on_poison: What happens after five failures in a row: `disable` disables the queue; `move` moves the
                messages to another queue, and this queue stays enabled.
            poison_queue: With `move`, the queue to which the messages and all later messages of their conversation
                group are moved, until `requeue` puts them back. It must exist.
            exist_ok: Whether to keep an existing queue with this name unchanged instead of raising an error.

        Raises:
            BrokerError: The name already exists (2714) or is not valid, or the poison queue does not exist (15151).
            OptionError: `poison_queue` is missing, or is the queue itself.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders", retention=True)
            ...     instance.view("sys.service_queues")["is_retention_enabled"].to_pylist()
            [True]
        """
        settings = QueueSettings(status, retention, activation, procedure, max_queue_readers, poison_message_handling)
        _check_queue_settings(settings)
        check_texts(on_poison=on_poison, poison_queue=poison_queue)
        self._create(
            object_ddl.create_queue,
            lambda objects: queue_key(name) in objects.queues,
            exist_ok=exist_ok,
            name=name,
            settings=settings,
            on_poison=on_poison,
            poison_queue=poison_queue,
        )

    def alter_queue(
        self,
        name: str,
        *,
        status: bool | None = None,
        retention: bool | None = None,
        activation: bool | None = None,
        procedure: str | None = None,
        max_queue_readers: int | None = None,
        poison_message_handling: bool | None = None,
        on_poison: OnPoison | None = None,
        poison_queue: str | None = None,
    ) -> None:
        """Changes settings of a queue. Settings that are None stay unchanged.

        If a queue without a procedure gets one, `activation` and `max_queue_readers` have the same defaults as in `create_queue`, except
        that a maximum above 0 that was set before is kept.

        Args:
            name: The name of the queue.
            status: Whether the queue is enabled. Messages that arrive while it is disabled enter the queue when it is enabled again.
            retention: Whether messages are kept until their conversation ends.
            activation: Whether the procedure is activated when messages wait.
            procedure: The name of the activation procedure.
            max_queue_readers: The maximum number of procedures that run in parallel.
            poison_message_handling: Whether the queue is disabled, or its messages are moved, after five failures in a row.
            on_poison: What happens after five failures in a row, as in `create_queue`: `disable` or `move`.
            poison_queue: With `move`, the queue to which the messages are moved.

        Raises:
            BrokerError: The queue, or the poison queue, does not exist (15151).
            OptionError: No setting is passed, or `poison_queue` is missing, or is the queue itself.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.alter_queue("Orders", status=False)
            ...     instance.view("sys.service_queues")["is_receive_enabled"].to_pylist()
            [False]
        """
        settings = QueueSettings(status, retention, activation, procedure, max_queue_readers, poison_message_handling)
        if settings == QueueSettings() and on_poison is None and poison_queue is None:
            raise OptionError(f"alter_queue({name!r}): expected a setting to change, such as status=True")
        _check_queue_settings(settings)
        check_texts(on_poison=on_poison, poison_queue=poison_queue)
        self._context.change(
            object_ddl.alter_queue, name=name, settings=settings, on_poison=on_poison, poison_queue=poison_queue
        )

    def requeue(self, queue: str, *, conversation_handle: uuid.UUID | str | bytes | None = None) -> int:
        """Moves failed messages back from the poison queue to the queue that they came from, in their original order.

        Their recorded failures are deleted. Conversation groups that a job has leased are not moved.

        Args:
            queue: The queue from which the messages were moved.
            conversation_handle: The conversation whose group is moved back; None means all groups.

        Returns:
            The number of messages that can be received again.

        Raises:
            BrokerError: The queue does not exist (15151), or the conversation has not been moved, or is leased.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Failed")
            ...     sales.create_queue("Orders", on_poison="move", poison_queue="Failed")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
            ...     for _ in range(5):
            ...         try:
            ...             with sales.take("Orders") as job:
            ...                 raise ValueError("no price")
            ...         except ValueError:
            ...             pass
            ...     print(instance.view("Failed")["message_body"].to_pylist(), instance.view("sys.dm_broker_failures")["error"].to_pylist())
            ...     sales.requeue("Orders")
            [b'two chairs'] ['ValueError: no price']
            1
        """
        return poison_message_handling.requeue(self._context, queue, conversation_handle)

    def drop_queue(self, name: str) -> None:
        """Drops a queue and its messages.

        Args:
            name: The name of the queue.

        Raises:
            BrokerError: The queue does not exist (15151), or a service uses it.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.drop_queue("Orders")
            ...     instance.view("sys.service_queues").num_rows
            0
        """
        self._context.change(object_ddl.drop_queue, name=name)

    def create_service(
        self,
        name: str,
        *,
        queue: str,
        contracts: Sequence[str] = (DEFAULT,),
        owner: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Creates a service.

        Args:
            name: The name of the service.
            queue: The queue that receives the messages for the service.
            contracts: The contracts that the service accepts as a target; with none, it can only initiate conversations.
            owner: The user that owns the service, and whose certificates secure the dialogs of the service; None means dbo.
            exist_ok: Whether to keep an existing service with this name unchanged instead of raising an error.

        Raises:
            BrokerError: The name already exists, or the queue, a contract or the owner does not exist (15151).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     instance.view("sys.services")["name"].to_pylist()
            ['//Orders']
        """
        accepted = string_list(contracts, name="contracts")
        self._create(
            object_ddl.create_service,
            lambda objects: name in objects.services,
            exist_ok=exist_ok,
            name=name,
            queue=queue,
            contracts=accepted,
            owner=owner,
        )

    def alter_service(
        self,
        name: str,
        *,
        queue: str | None = None,
        add_contracts: Sequence[str] = (),
        drop_contracts: Sequence[str] = (),
    ) -> None:
        """Moves a service and its messages to another queue, and changes its contracts. Conversations of the service continue.

        Args:
            name: The name of the service.
            queue: The new queue; None keeps the current one.
            add_contracts: Contracts to accept in addition.
            drop_contracts: Contracts that new conversations may no longer use.

        Raises:
            BrokerError: The service, queue or a contract does not exist (15151), or the service already has an added contract.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_queue("Archive")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     sales.alter_service("//Orders", queue="Archive")
            ...     sales.drop_queue("Orders")
        """
        added = string_list(add_contracts, name="add_contracts")
        dropped = string_list(drop_contracts, name="drop_contracts")
        self._context.change(
            object_ddl.alter_service, name=name, queue=queue, add_contracts=added, drop_contracts=dropped
        )

    def drop_service(self, name: str) -> None:
        """Drops a service.

        Args:
            name: The name of the service.

        Raises:
            BrokerError: The service does not exist (15151), or is used by a priority or an open conversation.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     sales.drop_service("//Orders")
        """
        self._context.change(object_ddl.drop_service, name=name)

    def create_route(
        self,
        name: str,
        *,
        address: str,
        service_name: str | None = None,
        broker_instance: uuid.UUID | str | bytes | None = None,
        lifetime: int | None = None,
        mirror_address: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Creates a route.

        Args:
            name: The name of the route.
            address: `TCP://host:port`, `LOCAL` or `TRANSPORT`.
            service_name: The remote service; None matches any service.
            broker_instance: The broker id of the remote database; None matches any.
            lifetime: Seconds until the route expires; None means that it never expires.
            mirror_address: The address of the mirror, for a mirrored remote database.
            exist_ok: Whether to keep an existing route with this name unchanged instead of raising an error.

        Raises:
            BrokerError: The name already exists, or CREATE ROUTE would reject the route; see the error number.
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_route("Stock", service_name="//Stock", address="TCP://stock:4022", lifetime=3600)
            ...     instance.view("sys.routes", "Sales")["address"].to_pylist()
            ['LOCAL', 'TCP://stock:4022']
        """
        clauses = _route_clauses(service_name, broker_instance, lifetime, address, mirror_address)
        self._create(
            object_ddl.create_route,
            lambda objects: name in objects.routes,
            exist_ok=exist_ok,
            name=name,
            clauses=clauses,
            now=self._context.now(),
        )

    def alter_route(
        self,
        name: str,
        *,
        address: str | None = None,
        service_name: str | None = None,
        broker_instance: uuid.UUID | str | bytes | None = None,
        lifetime: int | None = None,
        mirror_address: str | None = None,
    ) -> None:
        """Changes settings of a route. Settings that are None stay unchanged.

        Args:
            name: The name of the route.
            address: `TCP://host:port`, `LOCAL` or `TRANSPORT`.
            service_name: The name of the remote service.
            broker_instance: The broker id of the remote database.
            lifetime: Seconds from now until the route expires.
            mirror_address: The address of the mirror, for a mirrored remote database.

        Raises:
            BrokerError: The route does not exist (15151), or ALTER ROUTE would reject the change; see the error number.
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_route("Stock", service_name="//Stock", address="TCP://stock:4022")
            ...     sales.alter_route("Stock", address="TCP://warehouse:4022")
            ...     instance.view("sys.routes", "Sales")["address"].to_pylist()
            ['LOCAL', 'TCP://warehouse:4022']
        """
        clauses = _route_clauses(service_name, broker_instance, lifetime, address, mirror_address)
        self._context.change(object_ddl.alter_route, name=name, clauses=clauses, now=self._context.now())

    def drop_route(self, name: str) -> None:
        """Drops a route.

        Args:
            name: The name of the route.

        Raises:
            BrokerError: The route does not exist (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.drop_route("AutoCreatedLocal")
            ...     instance.view("sys.routes", "Sales").num_rows
            0
        """
        self._context.change(object_ddl.drop_route, name=name)

    def create_broker_priority(
        self,
        name: str,
        *,
        level: int = DEFAULT_LEVEL,
        contract: str | None = None,
        local_service: str | None = None,
        remote_service: str | None = None,
    ) -> None:
        """Creates a priority for conversations that are started from now on. If several match a conversation, the most specific one applies.

        Args:
            name: The name of the priority.
            level: The priority level, from 1 (lowest) to 10 (highest).
            contract: The contract of the conversations; None matches any.
            local_service: The local service of the conversations; None matches any.
            remote_service: The remote service of the conversations; None matches any.

        Raises:
            BrokerError: The name already exists, another priority has the same criteria, the contract or the local
                service does not exist (15151), or the level is out of range (9606).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_broker_priority("Urgent", level=9, remote_service="//Stock")
            ...     instance.view("sys.conversation_priorities")["priority"].to_pylist()
            [9]
        """
        check_texts(contract=contract, local_service=local_service, remote_service=remote_service)
        check_numbers(level=level)
        clauses = [("level", level), ("contract", contract), ("local_service", local_service)]
        self._context.change(
            object_ddl.create_broker_priority, name=name, clauses=[*clauses, ("remote_service", remote_service)]
        )

    def alter_broker_priority(self, name: str, *, level: int) -> None:
        """Changes the level of a priority. Existing conversations keep their level.

        Args:
            name: The name of the priority.
            level: The priority level, from 1 (lowest) to 10 (highest).

        Raises:
            BrokerError: The priority does not exist (15151), or the level is out of range (9606).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_broker_priority("Urgent", level=9)
            ...     sales.alter_broker_priority("Urgent", level=10)
            ...     instance.view("sys.conversation_priorities")["priority"].to_pylist()
            [10]
        """
        check_numbers(level=level)
        self._context.change(object_ddl.alter_broker_priority, name=name, clauses=[("level", level)])

    def drop_broker_priority(self, name: str) -> None:
        """Drops a priority. Existing conversations keep their level.

        Args:
            name: The name of the priority.

        Raises:
            BrokerError: The priority does not exist (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_broker_priority("Urgent", level=9)
            ...     sales.drop_broker_priority("Urgent")
        """
        self._context.change(object_ddl.drop_broker_priority, name=name)

    def set_honor_broker_priority(self, *, is_on: bool) -> None:
        """Sets whether waiting messages are sent in the order of conversation priorities. Off by default.

        Args:
            is_on: True to send in the order of priorities.

        Raises:
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.set_honor_broker_priority(is_on=True)
            ...     instance.view("sys.databases")["is_honor_broker_priority_on"].to_pylist()
            [False, True]
        """
        self._context.change(_set_honor_broker_priority, is_on=boolean(is_on, name="is_on"))

    def create_user(self, name: str) -> None:
        """Creates a user, which can own services and certificates.

        Args:
            name: The name of the user.

        Raises:
            BrokerError: The name already exists (15023) or is not valid.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_user("Stock")
            ...     instance.view("sys.database_principals", "Sales")["name"].to_pylist()
            ['public', 'dbo', 'Stock']
        """
        self._context.change(security_ddl.create_user, name=name)

    def drop_user(self, name: str) -> None:
        """Drops a user.

        Args:
            name: The name of the user.

        Raises:
            BrokerError: The user does not exist (15151), or owns objects (15138).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_user("Stock")
            ...     sales.drop_user("Stock")
        """
        self._context.change(security_ddl.drop_user, name=name)

    def create_master_key(self, password: str) -> None:
        """Creates the database master key, which encrypts private keys. This instance can open the key without the password.

        Args:
            password: The password that opens the key after the database is attached to another instance.

        Raises:
            BrokerError: The database already has a master key (15578), or the password is empty (15118).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
        """
        check_texts(password=password)
        self._context.change(
            security_ddl.create_master_key, key_encryption=self._context.key_encryption, password=password
        )

    def open_master_key(self, password: str) -> None:
        """Opens the master key, and lets this instance open the key without the password from now on.

        Call it after attaching a database from another instance.

        Args:
            password: The password of the master key.

        Raises:
            BrokerError: The database has no master key (15151), or the password is wrong (15313).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
            ...     sales.open_master_key("long and secret")
        """
        check_texts(password=password)
        self._context.change(
            security_ddl.open_master_key, key_encryption=self._context.key_encryption, password=password
        )

    def drop_master_key(self) -> None:
        """Drops the master key.

        Raises:
            BrokerError: The database has no master key (15151), or the key encrypts a private key (15580).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
            ...     sales.drop_master_key()
        """
        self._context.change(security_ddl.drop_master_key)

    def create_certificate(
        self,
        name: str,
        *,
        certificate: bytes | None = None,
        private_key: bytes | None = None,
        password: str | None = None,
        subject: str | None = None,
        begins: datetime | None = None,
        ends: datetime | None = None,
        owner: str | None = None,
        active: bool = True,
    ) -> None:
        """Imports a certificate, or creates a self-signed one.

        Args:
            name: The name of the certificate in this database.
            certificate: The certificate in PEM or DER; None creates a self-signed one.
            private_key: The private key in PEM or DER; None for the certificate of another party.
            password: The password that encrypts `private_key`; None if it is not encrypted.
            subject: The subject (CN) of a created certificate; None means `name`.
            begins: The start of validity of a created certificate; None means now. A datetime must have a time zone.
            ends: The end of validity of a created certificate; None means one year after the start. A datetime must have a time zone.
            owner: The user that owns the certificate; None means dbo.
            active: Whether new dialogs may use the certificate.

        Raises:
            BrokerError: The name or the certificate already exists (15232), the owner does not exist (15151), the certificate has no RSA
                key of at least 2048 bits or does not match the private key (15208), a created certificate cannot have this
                subject or period of validity (15297), or there is no master key to encrypt the private key (15581).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
            ...     sales.create_certificate("Shop", subject="shop.example.com")
            ...     instance.view("sys.certificates", "Sales")["subject"].to_pylist()
            ['CN=shop.example.com']
        """
        boolean(active, name="active")
        check_texts(password=password, subject=subject)
        check_bytes(certificate=certificate, private_key=private_key)
        begins = None if begins is None else utc_datetime(begins, name="begins")
        ends = None if ends is None else utc_datetime(ends, name="ends")
        given = (
            security_ddl.self_signed_certificate(subject or name, now=self._context.now(), begins=begins, ends=ends)
            if certificate is None
            else GivenCertificate(certificate, private_key, password)
        )
        self._context.change(
            security_ddl.create_certificate,
            key_encryption=self._context.key_encryption,
            name=name,
            given=given,
            owner=owner,
            active=active,
        )

    def alter_certificate(self, name: str, *, active: bool) -> None:
        """Changes whether new dialogs may use a certificate. Existing dialogs continue.

        Args:
            name: The name of the certificate.
            active: Whether new dialogs may use it.

        Raises:
            BrokerError: The certificate does not exist (15151).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
            ...     sales.create_certificate("Shop")
            ...     sales.alter_certificate("Shop", active=False)
            ...     instance.view("sys.certificates", "Sales")["is_active_for_begin_dialog"].to_pylist()
            [False]
        """
        is_active = boolean(active, name="active")
        self._context.change(
            security_ddl.alter_certificate, key_encryption=self._context.key_encryption, name=name, active=is_active
        )

    def export_certificate(self, name: str) -> bytes:
        """Exports a certificate without its private key, for import into another instance.

        Args:
            name: The name of the certificate.

        Returns:
            The certificate in PEM format.

        Raises:
            BrokerError: The certificate does not exist (15151).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
            ...     sales.create_certificate("Shop")
            ...     sales.export_certificate("Shop").splitlines()[0]
            b'-----BEGIN CERTIFICATE-----'
        """
        found = existing(self._context.objects().security.certificates, name, kind="certificate")
        return certificate_to_pem(found.certificate)

    def drop_certificate(self, name: str) -> None:
        """Drops a certificate and its private key.

        Args:
            name: The name of the certificate.

        Raises:
            BrokerError: The certificate does not exist (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
            ...     sales.create_certificate("Shop")
            ...     sales.drop_certificate("Shop")
        """
        self._context.change(security_ddl.drop_certificate, name=name)

    def create_remote_service_binding(self, name: str, *, service: str, user: str, anonymous: bool = False) -> None:
        """Binds a remote service to a user. New dialogs with the service are then secured, even with `encryption=False`.

        Args:
            name: The name of the binding.
            service: The name of the remote service.
            user: The local user that owns the certificate of the remote service's owner.
            anonymous: Whether to hide the sender's identity from the remote service.

        Raises:
            BrokerError: The name already exists, the service already has a binding (9619), or the user does not exist (15151).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_user("Stock")
            ...     sales.create_remote_service_binding("ToStock", service="//Stock", user="Stock")
            ...     instance.view("sys.remote_service_bindings")["remote_service_name"].to_pylist()
            ['//Stock']
        """
        boolean(anonymous, name="anonymous")
        check_texts(service=service)
        self._context.change(security_ddl.create_binding, name=name, service=service, user=user, anonymous=anonymous)

    def alter_remote_service_binding(
        self, name: str, *, user: str | None = None, anonymous: bool | None = None
    ) -> None:
        """Changes settings of a remote service binding, for dialogs that have had no reply yet. Settings that are None stay unchanged.

        Args:
            name: The name of the binding.
            user: The local user that owns the certificate of the remote service's owner.
            anonymous: Whether to hide the sender's identity from the remote service.

        Raises:
            BrokerError: The binding or user does not exist (15151).
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_user("Stock")
            ...     sales.create_remote_service_binding("ToStock", service="//Stock", user="Stock")
            ...     sales.alter_remote_service_binding("ToStock", anonymous=True)
            ...     instance.view("sys.remote_service_bindings")["is_anonymous_on"].to_pylist()
            [True]
        """
        check_booleans(anonymous=anonymous)
        self._context.change(security_ddl.alter_binding, name=name, user=user, anonymous=anonymous)

    def drop_remote_service_binding(self, name: str) -> None:
        """Drops a remote service binding. Dialogs that have had a reply continue.

        Args:
            name: The name of the binding.

        Raises:
            BrokerError: The binding does not exist (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_user("Stock")
            ...     sales.create_remote_service_binding("ToStock", service="//Stock", user="Stock")
            ...     sales.drop_remote_service_binding("ToStock")
        """
        self._context.change(security_ddl.drop_binding, name=name)

    def grant_send(self, service: str, *users: str) -> None:
        """Grants users the SEND permission on a service, which lets them send to the service from other instances.

        `public` includes all users, and has the permission on every new service.

        Args:
            service: The name of the service.
            users: The names of the users.

        Raises:
            BrokerError: The service or a user does not exist, or a user is `dbo` (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     sales.create_user("Stock")
            ...     sales.grant_send("//Orders", "Stock")
            ...     instance.view("sys.database_permissions", "Sales")["state_desc"].to_pylist()
            ['GRANT', 'GRANT']
        """
        self._context.change(security_ddl.set_permission, verb="GRANT", service=service, users=users)

    def deny_send(self, service: str, *users: str) -> None:
        """Denies users the SEND permission on a service: they cannot send to the service from other instances. A denial overrides grants.

        Args:
            service: The name of the service.
            users: The names of the users.

        Raises:
            BrokerError: The service or a user does not exist, or a user is `dbo` (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     sales.create_user("Stock")
            ...     sales.deny_send("//Orders", "Stock")
            ...     instance.view("sys.database_permissions", "Sales")["state_desc"].to_pylist()
            ['GRANT', 'DENY']
        """
        self._context.change(security_ddl.set_permission, verb="DENY", service=service, users=users)

    def revoke_send(self, service: str, *users: str) -> None:
        """Revokes a grant or denial of the SEND permission on a service.

        Args:
            service: The name of the service.
            users: The names of the users.

        Raises:
            BrokerError: The service or a user does not exist, or a user is `dbo` (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     sales.create_user("Stock")
            ...     sales.revoke_send("//Orders", "public")
            ...     instance.view("sys.database_permissions", "Sales")["state_desc"].to_pylist()
            []
        """
        self._context.change(security_ddl.set_permission, verb="REVOKE", service=service, users=users)

    def set_service_owner(self, service: str, user: str) -> None:
        """Changes the owner of a service. The owner's certificates secure the dialogs of the service.

        Args:
            service: The name of the service.
            user: The new owner. The initial owner is dbo unless `create_service` names one.

        Raises:
            BrokerError: The service or user does not exist (15151).
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     sales.create_user("Stock")
            ...     sales.set_service_owner("//Orders", "Stock")
        """
        self._context.change(security_ddl.set_owner, name=service, user=user)

    def _create(
        self,
        create: Callable[..., None],
        exists: Callable[[Objects], bool],
        *,
        exist_ok: bool,
        **options: object,
    ) -> None:
        """Creates an object in its own transaction; with `exist_ok`, only if it does not exist."""
        boolean(exist_ok, name="exist_ok")

        def create_if_missing(connection: Connection, objects: Objects) -> None:
            if not (exist_ok and exists(objects)):
                create(connection, objects, **options)

        self._context.change(create_if_missing)

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied: a database holds an open file and locks of this process.

        Raises:
            TypeError: Always.
        """
        self._context.__reduce__()

    def __repr__(self) -> str:
        return f"Database({self.name!r})"


def database_context(database: Database) -> DatabaseContext:
    """Returns the internal state of a database."""
    return database._context  # noqa: SLF001


def _check_queue_settings(settings: QueueSettings) -> None:
    check_booleans(
        status=settings.status,
        retention=settings.retention,
        activation=settings.activation,
        poison_message_handling=settings.poison_message_handling,
    )
    check_texts(procedure=settings.procedure)
    check_numbers(max_queue_readers=settings.max_queue_readers)


def _set_honor_broker_priority(connection: Connection, _: Objects, *, is_on: bool) -> None:
    changes.set_honor_broker_priority(connection, is_on=is_on)


def _route_clauses(
    service_name: str | None,
    broker_instance: uuid.UUID | str | bytes | None,
    lifetime: int | None,
    address: str | None,
    mirror_address: str | None,
) -> RouteClauses:
    check_texts(service_name=service_name, address=address, mirror_address=mirror_address)
    check_numbers("an integer number of seconds", lifetime=lifetime)
    guid = broker_instance
    if isinstance(guid, bytes):
        guid = uuid.UUID(bytes=guid_bytes(guid, name="broker_instance"))
    return RouteClauses(service_name, None if guid is None else str(guid), lifetime, address, mirror_address)
