"""A transaction of a database, which commits changes to application tables and conversations together."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar
from weakref import ref

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import boolean, guid_bytes, integer_argument, timeout_seconds
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable
from ssbroker._text import exception_text
from ssbroker._well_known import DEFAULT
from ssbroker.broker import async_calls
from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.dialogs import dialog_lifecycle, poison_message_handling, receive, send, send_batch
from ssbroker.broker.dialogs.receive import ReceiveRequest
from ssbroker.broker.effects import Effects, ReceiveCall
from ssbroker.broker.object_names import queue_key
from ssbroker.broker.receive_wait import ReceiveWait
from ssbroker.broker.received_message import Message, identities_of, messages_of
from ssbroker.broker.sql_guard import ConnectionGuard
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import BrokerError, OptionError, SchemaError, SsbrokerError, StorageError
from ssbroker.protocol.broker_errors import broker_error
from ssbroker.protocol.events import ConversationEvent
from ssbroker.store import conversation_endpoints
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.session import SessionSummary
from ssbroker.store.sqlite import Connection, raise_storage_error, rolled_back_error, storage_errors
from ssbroker.store.write_lock import LockCall

_Received = TypeVar("_Received")
Guid = uuid.UUID | str | bytes
"""A conversation handle or group id: a `uuid.UUID`, its text of 36 characters, or its 16 bytes."""
COUNT_MAX: Final = 2**63 - 1


class Transaction:
    """A transaction of one database, for use in a `with` block: `with database.transaction() as t:`.

    The transaction takes the write lock of the database file at its first use, not when the block is entered; the first
    call raises `LockTimeoutError` if other writers hold the lock for longer than `lock_timeout`. The transaction commits
    at the end of the block, and rolls back if the block raises an exception. A call that raises `BrokerError` changes
    nothing, and the transaction can continue. Use a transaction from one thread at a time.

    In a coroutine, use `async with`: entering waits for the write lock, and leaving commits, without blocking the event loop.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.create_queue("Orders")
        ...     sales.create_service("//Orders", queue="Orders")
        ...     with sales.transaction() as t:
        ...         dialog = t.begin_dialog("//Orders", "//Orders")
        ...         t.send(dialog, b"two chairs")
        ...     with sales.transaction() as t:
        ...         t.receive("Orders")["message_body"].to_pylist()
        [b'two chairs']
    """

    __slots__ = (
        "__weakref__",
        "_block",
        "_context",
        "_effects",
        "_guard",
        "_holder",
        "_is_broken",
        "_session",
        "_task",
        "_work",
    )

    def __init__(self, context: DatabaseContext, *, holder: int | None = None) -> None:
        self._context: Final = context
        self._holder: Final = get_ident() if holder is None else holder
        self._session: Final = context.session(holder=self._holder)
        self._effects: Effects | None = None
        self._work: Work | None = None
        self._guard: ConnectionGuard | None = None
        self._is_broken = False
        self._block: ref[Any] | None = None
        self._task: int | None = None

    def __enter__(self) -> Self:
        if not self._session.open():
            raise BrokerError("a transaction can be entered only once; start another with database.transaction()")
        holders = self._context.holders_in_transactions
        self._block = block = ref(self, holders.pop)
        holders[block] = self._holder
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave_block()
            self._finish(error)
        except BaseException:  # an interrupt may have come before the end
            self._abandon()
            raise

    def _finish(self, error: BaseException | None) -> None:
        """Commits, or rolls back because of the error that left the block, on the fast path if possible."""
        if error is None and not self._is_broken and self._guard is None:
            try:
                is_committed, summary = self._session.commit_fast()
            except BaseException as failure:
                self._commit_failed(failure)
                raise
            if is_committed:
                if summary is not None:
                    self._announce_fast(*summary)
                elif self._effects is not None and not all(each.is_repeated for each in self._effects.received):
                    self._announce(None)  # for a RECEIVE that timed out, which the native session does not count
                return
        self._end(error)

    async def __aenter__(self) -> Self:
        entered = await async_calls.acquire(
            self._enter_and_begin, undo=lambda _: self._roll_back(InterruptedError("the task was cancelled"))
        )
        self._task = self._context.file.write_lock.holder_task = async_calls.current_task()
        return entered

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        write_lock = self._context.file.write_lock
        if write_lock.holder_task == self._task:  # not if this transaction was rolled back before
            write_lock.holder_task = None
        await async_calls.leave(self.__exit__, exc_type, error, trace)

    @property
    def connection(self) -> Connection:
        """An `apsw.Connection` within this transaction, for the application's own tables in the database file.

        Settings of the connection, such as a `row_trace`, end with the transaction, and apply to your statements only; hooks of SQLite
        itself, such as an authorizer, apply to all statements of the transaction.
        """
        self._begin()
        connection = self._session.begin()
        self._context.file.write_lock.record_call(LockCall.SQL)
        if self._guard is None:
            guard = ConnectionGuard(connection)
            guard.start()
            self._guard = guard
        return connection

    def begin_dialog(
        self,
        from_service: str,
        to_service: str,
        *,
        broker_instance: Guid | None = None,
        contract: str = DEFAULT,
        lifetime: int | None = None,
        encryption: bool = True,
        related_conversation: Guid | None = None,
        related_conversation_group: Guid | None = None,
    ) -> uuid.UUID:
        """Begins a conversation. Nothing is sent before the first `send`.

        Args:
            from_service: The initiating service, which must be in this database.
            to_service: The target service, in this or any other database or instance.
            broker_instance: The broker id of the database whose service is the target, or `CURRENT DATABASE`; None lets
                routing choose.
            contract: The contract, which defines the message types that each side may send.
            lifetime: Seconds after which the conversation ends with an error at both endpoints; None means 68 years.
            encryption: Whether messages are encrypted when they leave the instance.
            related_conversation: The handle of a conversation whose group the new conversation joins.
            related_conversation_group: The conversation group to join; created if missing.

        Returns:
            The handle of the initiator's endpoint.

        Raises:
            BrokerError: A service or contract does not exist (15151), the lifetime is out of range (8411), the related conversation
                does not exist (8426), or its group belongs to another service (9610).
            SchemaError: A name is not a string.
            OptionError: An argument has an invalid type or value.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         dialog = t.begin_dialog("//Orders", "//Stock", lifetime=3600)
            ...     instance.view("sys.conversation_endpoints")["far_service"].to_pylist()
            ['//Stock']
        """
        with self._call() as work:
            endpoint = dialog_lifecycle.begin(
                work,
                from_service,
                to_service,
                broker_instance=broker_instance,
                contract=contract,
                lifetime=lifetime,
                encryption=boolean(encryption, name="encryption"),
                related_conversation=related_conversation,
                related_conversation_group=related_conversation_group,
            )
        return uuid.UUID(bytes=endpoint.conversation_handle)

    def send(self, dialog: Guid, body: bytes | bytearray | memoryview = b"", *, message_type: str = DEFAULT) -> None:
        """Sends a message on a conversation.

        Args:
            dialog: The conversation handle of the sending endpoint.
            body: The message body.
            message_type: The name of the message type.

        Raises:
            BrokerError: The conversation does not exist (8426), is in a state that does not allow sending (8429) or has expired (8489);
                the message type does not exist (8428), is not in the contract (8431) or is reserved for the other side (8432, 8434);
                the body is None (8433) or too long (8459); or the queue of the sending service has RETENTION and is disabled (9618).
            SchemaError: `body` is not bytes, a bytearray or a memoryview.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
            ...     instance.view("dbo.Orders")["message_body"].to_pylist()
            [b'two chairs']
        """
        if type(dialog) is uuid.UUID and type(body) is bytes and type(message_type) is str and self._needs_no_events():
            try:
                if self._session.send(dialog.bytes, body, message_type, self._native_now()):
                    return
            except BaseException as error:  # noqa: BLE001  # some changes may have been written
                self._fail(error)
        with self._call() as work:
            endpoint = _endpoint(work, dialog)
            content = send.body_bytes(body)
            send.send_one(work, endpoint, message_type, content)
        self._context.file.write_lock.record_call(LockCall.SEND)

    def send_batch(self, messages: ArrowArrayExportable | ArrowStreamExportable) -> None:
        """Sends a batch of messages. Messages of the same conversation keep their order.

        Args:
            messages: An Arrow table, record batch or stream with the columns `conversation_handle` (GUID as 16 bytes or text),
                `message_body` (binary) and, optionally, `message_type_name` (string; the default is `DEFAULT`).

        Raises:
            BrokerError: A message cannot be sent, for the same reasons as in `send`. No message of the batch is sent.
            SchemaError: A column is missing or has the wrong type.
            InputError: A value is not valid.

        Examples:
            >>> import tempfile
            >>> import pyarrow as pa
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         dialog = t.begin_dialog("//Orders", "//Orders").bytes
            ...         bodies = pa.array([b"two chairs", b"a table"])
            ...         t.send_batch(pa.table({"conversation_handle": [dialog, dialog], "message_body": bodies}))
            ...     instance.view("dbo.Orders")["message_body"].to_pylist()
            [b'two chairs', b'a table']
        """
        table = send_batch.as_messages(messages)
        if table.num_rows and self._needs_no_events():
            try:
                if self._session.send_batch(table.to_batches(), DEFAULT, self._native_now()):
                    return
            except BaseException as error:  # noqa: BLE001  # some changes may have been written
                self._fail(error)
        with self._call() as work:
            send_batch.send_batch(work, table)
        self._context.file.write_lock.record_call(LockCall.SEND)

    def receive(
        self,
        queue: str,
        *,
        top: int | None = None,
        groups: int | None = 1,
        timeout: float = 0.0,
        conversation_handle: Guid | None = None,
        conversation_group_id: Guid | None = None,
    ) -> pa.Table:
        """Receives messages from a queue and removes them from the queue.

        Receives messages of one conversation group: of the groups with the highest priority, the group that has waited longest.

        Args:
            queue: The name of the queue; the default schema is `dbo`.
            top: The maximum number of messages; None means all messages of the group, up to 1 GiB of bodies in one call.
            groups: The number of conversation groups to receive from, as if `receive` were called once for each; None
                means all groups.
            timeout: Seconds to wait for a message. A transaction that has already read or written something does not
                wait: it holds the write lock, so no message can arrive.
            conversation_handle: Receive only from this conversation.
            conversation_group_id: Receive only from this conversation group.

        Returns:
            The messages (`schemas.RECEIVED`) in reading order; an empty table if there are none.

        Raises:
            BrokerError: The queue (15151), conversation or group (8426) does not exist, or the queue is disabled (9617).
            OptionError: An argument has an invalid type or value.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
            ...     with sales.transaction() as t:
            ...         t.receive("Orders", top=1, timeout=5.0)["message_body"].to_pylist()
            [b'two chairs']
        """
        if top is not None:
            integer_argument(top, name="top", minimum=1, maximum=COUNT_MAX)
        if groups is not None:
            integer_argument(groups, name="groups", minimum=1, maximum=COUNT_MAX)
        found = self._receive(
            queue,
            top,
            groups,
            conversation_handle,
            conversation_group_id,
            timeout=timeout,
            fast_path=lambda name, now: self._session.receive(
                schemas.RECEIVED, name, top, groups, receive.BYTES_MAX, now
            ),
        )
        table = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
        self._trace_receive(queue, messages_of(table))
        return table

    def receive_one(
        self,
        queue: str,
        *,
        timeout: float = 0.0,
        conversation_handle: Guid | None = None,
        conversation_group_id: Guid | None = None,
    ) -> Message | None:
        """Receives one message from a queue and removes it from the queue: the message that `receive` would return first.

        Args:
            queue: The name of the queue; the default schema is `dbo`.
            timeout: Seconds to wait for a message, as in `receive`.
            conversation_handle: Receive only from this conversation.
            conversation_group_id: Receive only from this conversation group.

        Returns:
            The message; None if there are no messages.

        Raises:
            BrokerError: The queue (15151), conversation or group (8426) does not exist, or the queue is disabled (9617).
            OptionError: An argument has an invalid type or value.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     with sales.transaction() as t:
            ...         print(t.receive_one("Orders"))
            None
        """
        found = self._receive(
            queue,
            1,
            1,
            conversation_handle,
            conversation_group_id,
            timeout=timeout,
            fast_path=self._session.receive_one,
        )
        message = Message(found) if isinstance(found, tuple) else next(iter(messages_of(found)), None)
        if message is not None:
            self._trace_receive(queue, [message])
        return message

    def get_conversation_group(self, queue: str, *, timeout: float = 0.0) -> uuid.UUID | None:
        """Returns the conversation group that `receive` would take next, and locks it until the transaction ends.

        Args:
            queue: The name of the queue; the default schema is `dbo`.
            timeout: Seconds to wait for a message, as in `receive`.

        Returns:
            The id of the conversation group; None if there are no messages.

        Raises:
            BrokerError: The queue does not exist (15151) or is disabled (9617).
            OptionError: An argument has an invalid type or value.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
            ...         group = t.get_conversation_group("Orders")
            ...         t.receive("Orders", conversation_group_id=group).num_rows
            1
        """
        wait = self._receive_wait(queue, timeout)
        while True:
            with self._call() as work:
                group = receive.next_group(work, queue)
            if group is not None:
                return uuid.UUID(bytes=group)
            if not self._wait(wait):
                return None

    def end_conversation(self, dialog: Guid, *, error: tuple[int, str] | None = None, cleanup: bool = False) -> None:
        """Ends one side of a conversation, and removes the unread messages of that side from the queue.

        Args:
            dialog: The conversation handle of the endpoint to end.
            error: An error to send to the other side: a code above 0, and a description of up to 3,000 characters. None ends the
                conversation without an error.
            cleanup: Remove all traces of this side without notifying the other side. Intended for administrators.

        Raises:
            BrokerError: The conversation does not exist (8426), or this side has already ended (8427).
            OptionError: Both `error` and `cleanup` are passed.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         dialog = t.begin_dialog("//Orders", "//Orders")
            ...         t.send(dialog, b"two chairs")
            ...         t.end_conversation(dialog, error=(7, "out of stock"))
            ...     instance.view("dbo.Orders")["message_type_name"].to_pylist()[-1]
            'http://schemas.microsoft.com/SQL/ServiceBroker/Error'
        """
        failure = dialog_lifecycle.parse_application_error(error)
        if boolean(cleanup, name="cleanup") and failure is not None:
            raise OptionError("error and cleanup cannot be used together: specify one of them")
        with self._call() as work:
            endpoint = _endpoint(work, dialog)
            if cleanup:
                dialog_lifecycle.clean_up(work, endpoint)
            else:
                dialog_lifecycle.end(work, endpoint, failure)

    def move_conversation(self, dialog: Guid, group: Guid) -> None:
        """Moves a conversation to another conversation group on the same queue.

        Args:
            dialog: The conversation handle of the endpoint to move.
            group: The id of the target conversation group, which must exist.

        Raises:
            BrokerError: The conversation or group does not exist (8426), the conversation is in a state that does not allow the move
                (8438), or the group is on another queue (9610).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         first = t.begin_dialog("//Orders", "//Orders")
            ...         second = t.begin_dialog("//Orders", "//Orders")
            ...         t.send(first, b"two chairs")
            ...         t.move_conversation(second, t.get_conversation_group("Orders"))
        """
        with self._call() as work:
            dialog_lifecycle.move_to_group(work, _endpoint(work, dialog), guid_bytes(group, name="group"))

    def begin_conversation_timer(self, dialog: Guid, timeout: int) -> None:
        """Starts a timer that puts a DialogTimer message into the queue of an endpoint; replaces an earlier timer of the endpoint.

        Args:
            dialog: The conversation handle of the endpoint.
            timeout: Seconds until the message arrives, an integer from 1 to 2,147,483,647.

        Raises:
            BrokerError: The conversation does not exist (8426), is in a state that does not allow a timer (8458), the timeout is out of
                range (8411), or the conversation expires before the timer (8410).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         t.begin_conversation_timer(t.begin_dialog("//Orders", "//Orders"), 60)
            ...     instance.view("sys.conversation_endpoints")["dialog_timer"].null_count
            0
        """
        with self._call() as work:
            dialog_lifecycle.set_timer(work, _endpoint(work, dialog), timeout)

    def transmission_status(self, dialog: Guid) -> str:
        """Returns why messages of a conversation wait in the transmission queue, and how to fix the problem.

        Args:
            dialog: The conversation handle of the sending endpoint.

        Returns:
            One or more sentences; an empty string if no problem is known.

        Raises:
            BrokerError: The conversation does not exist (8426).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         dialog = t.begin_dialog("//Orders", "//Orders")
            ...         t.send(dialog, b"two chairs")
            ...         t.transmission_status(dialog)
            ''
        """
        with self._call() as work:
            return _endpoint(work, dialog).transmission_status

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied: a transaction holds an open file and a lock of this process.

        Raises:
            TypeError: Always.
        """
        self._context.__reduce__()

    def __repr__(self) -> str:
        state = "open" if self._session.is_open else "not open"
        return f"<Transaction of {self._context.name!r}, {state}>"

    def _needs_no_events(self) -> bool:
        """Returns whether no subscriber needs conversation events, which the fast path does not emit."""
        return not self._context.instance.events.wants(ConversationEvent)

    def _native_now(self) -> int | None:
        """Returns the time for the fast path; None lets it read the system clock itself, which is faster."""
        instance = self._context.instance
        return None if instance.has_system_clock else instance.microseconds()

    def _leave_block(self) -> None:
        """Stops counting the transaction as open."""
        block, self._block = self._block, None
        if block is not None:
            self._context.holders_in_transactions.pop(block)

    def _abandon(self) -> None:
        """Rolls back without announcing it, unless the transaction has ended; an interrupt may have kept the caller from ending it."""
        self._leave_block()
        self._session.end()
        self._roll_back_and_release()

    def _enter_and_begin(self) -> Self:
        """Enters the block of a coroutine, in a worker thread. Its task may have been cancelled, and may do something else by now."""
        Transaction.__enter__(self)
        self._leave_block()
        try:
            self._prepare_block()
        except BaseException as error:
            self._roll_back(error)
            raise
        return self

    def _prepare_block(self) -> None:
        """Does what the transaction of a coroutine does before its block."""
        self._begin()

    @contextmanager
    def _call(self) -> Iterator[Work]:
        """Runs one call that is not on the fast path.

        A rejected call has changed nothing. A call that fails midway, because of the disk, an interrupt or a bug, may
        have written some of its changes. Then the whole transaction is rolled back, and every later call is rejected.
        """
        work = self._begin()
        try:
            with nullcontext() if self._guard is None else self._guard.suspended():
                yield work
        except StorageError as error:
            self._fail(error)
        except SsbrokerError:
            raise
        except BaseException as error:  # noqa: BLE001
            self._fail(error)

    def _begin(self) -> Work:
        if self._is_broken:
            raise rolled_back_error(self._context.file.path, "was rolled back after an error")
        if not self._session.is_open:
            raise BrokerError("the transaction is not open: use it inside its `with` block")
        connection = self._session.begin_unguarded()
        if self._work is None:
            with storage_errors(self._context.file.path, is_internal=True):
                work = Work(self._context, connection, self._collected_effects())
                self._context.native_snapshot(work.objects)  # makes the objects known to the fast path
                self._work = work
        return self._work

    def _fail(self, error: BaseException) -> NoReturn:
        """Rolls back after a call that failed midway, and raises its error."""
        self._is_broken = True
        if isinstance(error, SystemError) and error.__cause__ is not None:
            error = error.__cause__  # the error of a hook of the application, raised during a native call
        self._session.end()
        self._roll_back_and_release()
        try:
            with storage_errors(self._context.file.path, is_internal=True):
                raise error
        except StorageError as failure:
            self._context.file.record_write_error(failure)
            raise

    def _roll_back_and_release(self) -> None:
        """Rolls back what was not committed, and releases the lock."""
        self._reclaim_connection()
        self._work = None
        self._session.close()

    def _reclaim_connection(self) -> bool:
        """Ends the application's access to the connection; returns whether this has interrupted a statement of another thread."""
        is_interrupted = self._guard is not None and self._guard.reclaim()
        self._guard = None
        return is_interrupted

    def _end(self, error: BaseException | None) -> None:
        """Commits, or rolls back because of the error that left the block, and announces the result."""
        if error is not None:
            self._roll_back(error)
            try:
                raise_storage_error(error, self._context.file.path)
            except StorageError as failure:
                self._context.file.record_write_error(failure)
                raise
        else:
            self._session.end()
            try:
                self._commit()
            except BaseException as failure:
                self._roll_back(failure)
                raise
            self._announce(None)

    def _roll_back(self, error: BaseException) -> None:
        """Rolls back because of an error, and announces the rollback."""
        self._session.end()
        self._roll_back_and_release()
        self._announce(error)

    def _commit(self) -> None:
        if self._is_broken:
            raise rolled_back_error(self._context.file.path, "was rolled back after an error")
        is_interrupted = self._reclaim_connection()
        self._work = None
        if is_interrupted:
            raise BrokerError(
                f"{self._context.file.path}: the transaction is rolled back, because another thread was still executing a statement on its "
                "connection at the end of the block; wait for that thread inside the block"
            )
        self._session.commit(received_from=poison_message_handling.received_from(self._collected_effects()))

    def _commit_failed(self, error: BaseException) -> None:
        """Ends the transaction after the fast path has failed to commit it."""
        self._session.end()
        try:
            self._session.handle_commit_failure(error)
        finally:
            self._announce(error)

    def _announce(self, error: BaseException | None) -> None:
        """Reports the commit, or the rollback that `error` caused, to the instance."""
        # A forked process has changed nothing, and locks that its parent's threads held are never released in it.
        if not self._context.file.is_inherited:
            listener, effects = self._context.instance.listener, self._collected_effects()
            if error is None:
                listener.committed(self._context, effects)
            else:
                effects.error = exception_text(error)
                listener.rolled_back(self._context, effects)

    def _announce_fast(self, has_changed: bool, summary: SessionSummary) -> None:  # noqa: FBT001  # as the native module returns it
        context = self._context
        if has_changed and context.file.failure is not None:
            context.file.record_commit_result(None)
        effects = self._collected_effects()
        effects.add_session_summary(summary)
        context.instance.listener.committed(context, effects)

    def _collected_effects(self) -> Effects:
        """Returns the effects so far, including those of the fast path."""
        effects = self._effects
        if effects is None:
            effects = self._effects = Effects(log=self._context.instance.events)
        effects.add_session_summary(self._session.take_summary())
        return effects

    def _receive(
        self,
        queue: str,
        top: int | None,
        groups: int | None,
        conversation_handle: Guid | None,
        conversation_group_id: Guid | None,
        *,
        timeout: float,
        fast_path: Callable[[str, int | None], _Received | None],
    ) -> _Received | pa.Table:
        """Receives on the fast path if possible, and waits if there are no messages; off the fast path, the result is a table."""
        request = receive.receive_request(top, groups, conversation_handle, conversation_group_id)
        wait = self._receive_wait(queue, timeout, named=request if request.is_named else None)
        can_be_fast = not request.is_named and type(queue) is str
        has_waited = False
        while True:
            if can_be_fast:
                try:
                    found = fast_path(queue, self._native_now())
                except BaseException as error:  # noqa: BLE001  # some messages may have been taken
                    self._fail(error)
                if found is not None:
                    return found
                if wait is not None and not has_waited:
                    # Usually there was no message; looking again, off the fast path, would delay the thread that is
                    # about to send.
                    has_waited = True
                    is_ready = self._wait(wait)
                    if wait.empty_queue_id is not None:
                        self._collected_effects().received.append(
                            ReceiveCall(wait.empty_queue_id, is_empty=True, is_named=False, is_repeated=is_ready)
                        )
                    if not is_ready:
                        return receive.empty_table()
                    continue
            with self._call() as work:
                table = receive.receive(work, queue, request)
            if table.num_rows:
                self._context.file.write_lock.record_call(LockCall.RECEIVE)
            if table.num_rows or not self._wait(wait):
                return table
            received = self._collected_effects().received
            received[-1] = received[-1]._replace(is_repeated=True)

    def _wait(self, wait: ReceiveWait | None) -> bool:
        """Waits, without the lock, until there may be a message; returns whether to look for one again."""
        if wait is not None:
            self._roll_back_and_release()
        return wait is not None and wait.wait()

    def _trace_receive(self, queue: str, messages: Iterable[Message]) -> None:
        tracing = self._context.instance.tracing
        if tracing is None:
            return
        try:
            tracing.received(self._context.name, queue, identities_of(messages))
        except Exception as error:  # noqa: BLE001  # a failure of tracing does not change what is received
            log_failure(
                self._context,
                "the tracing span of a receive could not be recorded; the messages are received without it",
                error,
            )

    def _receive_wait(self, queue: str, timeout: float, *, named: ReceiveRequest | None = None) -> ReceiveWait | None:
        """Returns how to wait for a message; None if waiting is useless, because this transaction holds the lock."""
        if timeout == 0.0 and timeout is not False:
            return None
        seconds = timeout_seconds(timeout, name="timeout")
        if not seconds or self._session.has_begun:
            return None
        return ReceiveWait(self._context, queue_key(queue), deadline=time.monotonic() + seconds, named=named)


def transaction_database_context(transaction: Transaction) -> DatabaseContext:
    """Returns the internal state of the database of a transaction; raises `SchemaError` for any other object."""
    given: object = transaction
    if not isinstance(given, Transaction):
        got = "a connection; pass the transaction itself" if hasattr(given, "execute") else type(given).__name__
        raise SchemaError(f"transaction: expected Transaction, got {got}", column="transaction")
    return transaction._context  # noqa: SLF001


@contextmanager
def work_of(transaction: Transaction) -> Iterator[Work]:
    """Runs a part of an open transaction as if it were one of the transaction's methods."""
    with transaction._call() as work:  # noqa: SLF001
        yield work


def _endpoint(work: Work, dialog: Guid) -> ConversationEndpoint:
    handle = guid_bytes(dialog, name="dialog")
    endpoint = conversation_endpoints.by_handle(work.connection, handle)
    if endpoint is None:
        raise broker_error(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    return endpoint
