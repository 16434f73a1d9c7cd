"""One transaction of a database: application tables and conversations, committed together."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NoReturn, Self

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import boolean, guid_bytes, timeout_seconds, whole_number
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import begin_end, receive, send
from ssbroker.broker.dialogs.receive import ReceiveRequest, check_on
from ssbroker.broker.effects import Effects
from ssbroker.broker.unit_of_work import GuardedConnection, Work
from ssbroker.broker.validation import existing, queue_key
from ssbroker.exceptions import BrokerError, OptionError, SsbrokerError, StorageError
from ssbroker.protocol.config import DEFAULT
from ssbroker.protocol.errors import broker_error
from ssbroker.protocol.events import ConversationEvent
from ssbroker.store import endpoints, queues
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.file import Done, Row
from ssbroker.store.sqlite import Connection, raise_storage_error, storage_errors

LOOK_EVERY: Final = 0.05
"""The seconds between two looks at what other processes have committed."""
_NOTHING: Final = -1
"""What `Arrivals.count` never says: whoever has seen no more looks at once."""


class ReceiveWait:
    """One RECEIVE that may have to wait. It notes what was told before its first look, so that nothing that comes after it is missed.

    Args:
        database: The database.
        queue: The queue's schema and name.
        until: When it gives up, by `time.monotonic`.
    """

    def __init__(self, database: DatabaseContext, queue: tuple[str, str], *, until: float) -> None:
        self._database: Final = database
        self._key: Final = queue
        self._until: Final = until
        self._told: Final = database.arrivals.total
        self._queue_id: int | None = None
        self._seen = _NOTHING

    def wait(self) -> bool:
        """Waits until a message may be there.

        Returns:
            Whether to look; False where the time is over, or the instance is being closed.

        Raises:
            BrokerError: The queue was turned off (9617) or dropped (15151).
            StorageError: The database was closed.
        """
        arrivals = self._database.arrivals
        queue_id = self._queue_id
        if queue_id is None:
            queue_id = self._queue_id = existing(self._database.objects().queues, self._key, kind="queue").queue_id
            seen = arrivals.count(queue_id)
            self._seen = seen if arrivals.total == self._told else _NOTHING
        with arrivals.waits(queue_id):
            while not arrivals.is_closed and (left := self._until - time.monotonic()) > 0:
                arrivals.wait(queue_id, seen=self._seen, timeout=min(LOOK_EVERY, left))
                self._seen = arrivals.count(queue_id)
                with self._database.file.read() as connection:
                    check_on(existing(self._database.objects(connection).queues, self._key, kind="queue"))
                    if queues.has_ready_messages(connection, queue_id):
                        return True
        return False


_ROW: Final = (
    "message_body",
    "conversation_handle",
    "conversation_group_id",
    "conversation_id",
    "is_initiator",
    "message_sequence_number",
    "message_type_name",
    "service_name",
    "service_contract_name",
    "priority",
    "queuing_order",
    "validation",
)
"""The columns of `schemas.RECEIVED` that a message has, in the order of `Row`."""


class Message:
    """A message that `Transaction.receive_one` took out of a queue, with the columns of `schemas.RECEIVED` but `status` and `message_signature`.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.create_queue("Orders")
        ...     sales.create_service("//Orders", queue="Orders")
        ...     with sales.transaction() as t:
        ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
        ...         message = t.receive_one("Orders")
        ...     message.message_body, message.message_type_name, message.message_sequence_number
        (b'two chairs', 'DEFAULT', 0)
    """

    __slots__ = ("_row",)

    def __init__(self, row: Row) -> None:
        self._row: Final = row

    @classmethod
    def first_of(cls, table: pa.Table) -> Self | None:
        """The first message of a table.

        Args:
            table: What `Transaction.receive` returned.

        Returns:
            The message; None where there is none.
        """
        if not table.num_rows:
            return None
        (row,) = table.slice(length=1).select(_ROW).to_pylist()
        body, handle, group, conversation, *rest = (row[name] for name in _ROW)
        return cls((body, handle, group, conversation, *rest))

    @property
    def message_body(self) -> bytes | None:
        """The message; None where it is empty."""
        return self._row[0]

    @property
    def conversation_handle(self) -> uuid.UUID:
        """The receiver's side of the conversation: what an answer is sent to, and what is ended."""
        return uuid.UUID(bytes=self._row[1])

    @property
    def conversation_group_id(self) -> uuid.UUID:
        """The conversation group of that side."""
        return uuid.UUID(bytes=self._row[2])

    @property
    def conversation_id(self) -> uuid.UUID:
        """The conversation, as both sides know it."""
        return uuid.UUID(bytes=self._row[3])

    @property
    def is_initiator(self) -> bool:
        """Whether the initiator sent it."""
        return self._row[4]

    @property
    def message_sequence_number(self) -> int:
        """Its number within its direction of the conversation, from 0."""
        return self._row[5]

    @property
    def message_type_name(self) -> str:
        """The name of its type."""
        return self._row[6]

    @property
    def service_name(self) -> str:
        """The service that it is for."""
        return self._row[7]

    @property
    def service_contract_name(self) -> str:
        """The contract of the conversation."""
        return self._row[8]

    @property
    def priority(self) -> int:
        """The priority of the receiver's side, 1 to 10."""
        return self._row[9]

    @property
    def queuing_order(self) -> int:
        """Its place in the queue."""
        return self._row[10]

    @property
    def validation(self) -> str:
        """How its type is validated: N, E or X."""
        return self._row[11]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._row == other._row

    def __hash__(self) -> int:
        return hash(self._row)

    def __repr__(self) -> str:
        size = 0 if self.message_body is None else len(self.message_body)
        return (
            f"Message({self.message_type_name!r}, number {self.message_sequence_number} of {self.conversation_handle}, "
            f"{size} bytes)"
        )


Guid = uuid.UUID | str | bytes
"""A handle or group: `uuid.UUID`, text of 36 characters, or 16 bytes."""
_COUNT_MAX: Final = 2**63 - 1


class Transaction:
    """A transaction of one database, as `with database.transaction() as t:` gives it.

    The file's write lock is taken at the first use, not when the block is entered. At the end of the block everything is committed;
    where an exception leaves it, nothing has happened. A call that is refused raises `BrokerError` and changes nothing; the
    transaction goes on. It is used by one thread at a time.

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

    __slots__ = ("__weakref__", "_context", "_effects", "_guarded", "_is_broken", "_session", "_work")

    def __init__(self, context: DatabaseContext) -> None:
        self._context: Final = context
        self._session: Final = context.session()
        self._effects: Effects | None = None
        self._work: Work | None = None
        self._guarded: GuardedConnection | None = None
        self._is_broken = False

    def __enter__(self) -> Self:
        if not self._session.open():
            raise BrokerError("a transaction is entered once; begin another with database.transaction()")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._is_broken:
            try:
                is_committed, done = self._session.commit_fast()
            except BaseException as failure:
                self._commit_failed(failure)
                raise
            if is_committed:
                if done is not None:
                    self._announce_fast(*done)
                return
        self._end(error)

    @property
    def connection(self) -> Connection:
        """The database's file, inside of this transaction: an `apsw.Connection` for the application's own tables."""
        self._begin()
        connection = self._session.begin()
        if self._guarded is None:
            self._guarded = GuardedConnection(connection)
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
        """Begins a conversation; nothing is sent before the first `send`.

        Args:
            from_service: The service of this database that begins it.
            to_service: The service that it is with, wherever that is.
            broker_instance: The broker id of the database whose copy of the service is meant (I3), or `CURRENT DATABASE`;
                None leaves the choice to routing.
            contract: What both sides may send.
            lifetime: After so many seconds both sides get an Error; None is 68 years.
            encryption: Whether the conversation is to be encrypted outside of the instance.
            related_conversation: The handle of a conversation whose group this one joins.
            related_conversation_group: The group that it joins; it is made where it is not there.

        Returns:
            The handle of this side.

        Raises:
            BrokerError: A service or contract is not there (15151), the lifetime is out of range (8411), the related conversation is
                not there (8426), or its group belongs to another service (9610).
        """
        with self._call() as work:
            endpoint = begin_end.begin(
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
        """Sends a message.

        Args:
            dialog: The handle of the conversation.
            body: The message; an empty one arrives as null.
            message_type: Its type.

        Raises:
            BrokerError: There is no such conversation (8426), its state forbids it (8429), its lifetime has passed (8489), the type is
                not there (8428), not in the contract (8431) or the other side's (8432, 8434), or the body is None (8433).
        """
        if type(dialog) is uuid.UUID and type(body) is bytes and type(message_type) is str and self._is_silent():
            try:
                if self._session.send(dialog.bytes, body, message_type, self._native_now()):
                    return
            except BaseException as error:  # noqa: BLE001  # a part may have been written
                self._fail(error)
        with self._call() as work:
            endpoint = _named(work, dialog)
            content = send.body_bytes(body)
            state = send.check(work, endpoint, (message_type,), now=work.now())
            send.send(work, [(endpoint, state, [(message_type, content)])])

    def send_batch(self, messages: ArrowArrayExportable | ArrowStreamExportable) -> None:
        """Sends many messages at once; those of one conversation keep their order.

        Args:
            messages: Any Arrow table with the columns `conversation_handle` (GUID), `message_body` (binary) and, where it is not
                DEFAULT, `message_type_name` (string).

        Raises:
            BrokerError: As `send`. Nothing was sent then.
            SchemaError: A column is missing or has another type.
            InputError: A value is not what was expected.
        """
        table = send.as_messages(messages)
        if table.num_rows and self._is_silent():
            try:
                if self._session.send_batch(table.to_batches(), DEFAULT, self._native_now()):
                    return
            except BaseException as error:  # noqa: BLE001  # a part may have been written
                self._fail(error)
        with self._call() as work:
            send.send_batch(work, table)

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
        """Takes messages of one conversation group out of a queue: the group of the highest priority that has waited longest.

        Args:
            queue: The queue; without a schema it is in `dbo`.
            top: The most messages to take; None is all of the group.
            groups: From how many groups to take, as so many calls one after the other would; None is all.
            timeout: The seconds to wait for one. A transaction that has done something holds the write lock already, and nothing
                can arrive: it does not wait.
            conversation_handle: Take from this conversation only.
            conversation_group_id: Take from this group only.

        Returns:
            The messages (`schemas.RECEIVED`) in the order in which they are to be read; without rows where none came.

        Raises:
            BrokerError: There is no such queue (15151), conversation or group (8426), or the queue is off (9617).
        """
        if top is not None:
            whole_number(top, name="top", minimum=1, maximum=_COUNT_MAX)
        if groups is not None:
            whole_number(groups, name="groups", minimum=1, maximum=_COUNT_MAX)
        patience = self._patience(queue, timeout)
        if conversation_handle is None and conversation_group_id is None and type(queue) is str:
            try:
                batch = self._session.receive(schemas.RECEIVED, queue, top, groups, receive.BYTES_MAX)
            except BaseException as error:  # noqa: BLE001  # a part may have been taken
                self._fail(error)
            if batch is not None:
                return pa.Table.from_batches([batch])
        return self._received(queue, receive.asked(top, groups, conversation_handle, conversation_group_id), patience)

    def receive_one(
        self,
        queue: str,
        *,
        timeout: float = 0.0,
        conversation_handle: Guid | None = None,
        conversation_group_id: Guid | None = None,
    ) -> Message | None:
        """Takes the one message out of a queue that `receive` would take first.

        Args:
            queue: The queue; without a schema it is in `dbo`.
            timeout: The seconds to wait for one, as `receive` does.
            conversation_handle: Take from this conversation only.
            conversation_group_id: Take from this group only.

        Returns:
            The message; None where none came.

        Raises:
            BrokerError: As `receive`.
        """
        patience = self._patience(queue, timeout)
        if conversation_handle is None and conversation_group_id is None and type(queue) is str:
            try:
                row = self._session.receive_one(queue)
            except BaseException as error:  # noqa: BLE001  # a part may have been taken
                self._fail(error)
            if row is not None:
                return Message(row)
        asked = receive.asked(1, 1, conversation_handle, conversation_group_id)
        return Message.first_of(self._received(queue, asked, patience))

    def get_conversation_group(self, queue: str, *, timeout: float = 0.0) -> uuid.UUID | None:
        """The conversation group whose messages `receive` would take next; until the transaction ends, nobody else gets it.

        Args:
            queue: The queue; without a schema it is in `dbo`.
            timeout: The seconds to wait for one, as `receive` does.

        Returns:
            The group; None where no message came.

        Raises:
            BrokerError: There is no such queue (15151), or it is off (9617).
        """
        patience = self._patience(queue, timeout)
        while True:
            with self._call() as work:
                group = receive.next_group(work, queue)
            if group is not None:
                return uuid.UUID(bytes=group)
            if not self._wait(patience):
                return None

    def end_conversation(self, dialog: Guid, *, error: tuple[int, str] | None = None, cleanup: bool = False) -> None:
        """Ends this side of a conversation; the messages that wait for it in its queue go.

        Args:
            dialog: The handle of the conversation.
            error: End it with an error: a code above 0 and a description, which the other side receives.
            cleanup: Remove all that is left of this side and tell nobody. For administrators.

        Raises:
            BrokerError: There is no such conversation (8426), or this side has ended already (8427).
        """
        failure = begin_end.failure_of(error)
        if boolean(cleanup, name="cleanup") and failure is not None:
            raise OptionError("error and cleanup: expected one of them, got both")
        with self._call() as work:
            endpoint = _named(work, dialog)
            if cleanup:
                begin_end.clean_up(work, endpoint)
            else:
                begin_end.end(work, endpoint, failure)

    def move_conversation(self, dialog: Guid, group: Guid) -> None:
        """Moves a conversation to another group on the same queue.

        Args:
            dialog: The handle of the conversation.
            group: The group.

        Raises:
            BrokerError: There is no such conversation or group (8426), its state forbids it (8438), or the group is on another
                queue (9610).
        """
        with self._call() as work:
            begin_end.move(work, _named(work, dialog), guid_bytes(group, name="group"))

    def begin_conversation_timer(self, dialog: Guid, timeout: int) -> None:
        """Has a DialogTimer message arrive in this side's own queue; a timer that was set before is forgotten.

        Args:
            dialog: The handle of the conversation.
            timeout: The seconds until then.

        Raises:
            BrokerError: There is no such conversation (8426), its state forbids it (8458), the number is out of range (8411), or the
                conversation's lifetime ends before (8410).
        """
        with self._call() as work:
            begin_end.set_timer(work, _named(work, dialog), timeout)

    def transmission_status(self, dialog: Guid) -> str:
        """Why messages of a conversation wait in the transmission queue, and what to do; empty where nothing is in the way.

        Args:
            dialog: The handle of the conversation.

        Returns:
            One or more sentences.

        Raises:
            BrokerError: There is no such conversation (8426).
        """
        with self._call() as work:
            return _named(work, dialog).transmission_status

    def __reduce__(self) -> NoReturn:
        """A transaction is an open file and a lock of this process.

        Raises:
            TypeError: Always; the message says what to do instead.
        """
        self._context.__reduce__()

    def __repr__(self) -> str:
        state = "open" if self._session.is_open else "not open"
        return f"<Transaction of {self._context.name!r}, {state}>"

    def _is_silent(self) -> bool:
        """Whether nobody receives events of messages, which the fast path does not emit."""
        return not self._context.instance.events.wants(ConversationEvent)

    def _native_now(self) -> int | None:
        """The time for the fast path; None has it ask the clock of the system itself, which is faster."""
        instance = self._context.instance
        return None if instance.has_system_clock else instance.microseconds()

    @contextmanager
    def _call(self) -> Iterator[Work]:
        """The transaction, for one call that is not on the fast path.

        A call that is refused has changed nothing. One that fails midway, because of the disk, an interrupt or a bug, may have written a
        part: then the whole transaction is rolled back, and every further call is refused.
        """
        work = self._begin()
        try:
            yield work
        except StorageError as error:
            self._fail(error)
        except SsbrokerError:
            raise
        except BaseException as error:  # noqa: BLE001
            self._fail(error)

    def _begin(self) -> Work:
        if self._is_broken:
            raise _rolled_back(self._context)
        if not self._session.is_open:
            raise BrokerError("the transaction is not open: use it inside its `with` block")
        connection = self._session.begin_unguarded()
        if self._work is None:
            with storage_errors(self._context.file.path, is_internal=True):
                work = Work(self._context, connection, self._collected())
                self._context.picture(work.objects)  # has the fast path know them
                self._work = work
        return self._work

    def _fail(self, error: BaseException) -> NoReturn:
        """Rolls back after a call that failed midway, and raises its error."""
        self._is_broken = True
        self._session.end()
        self._leave()
        with storage_errors(self._context.file.path, is_internal=True):
            raise error

    def _leave(self) -> None:
        """Rolls back what was not committed, and releases the lock."""
        self._take_back()
        self._work = None
        self._session.close()

    def _take_back(self) -> None:
        """Ends the application's use of the connection."""
        guarded, self._guarded = self._guarded, None
        if guarded is not None:
            self._session.is_reusable = guarded.take_back()

    def _end(self, error: BaseException | None) -> None:
        """Commits, or rolls back because of the error that left the block, and announces what was done."""
        self._session.end()
        is_committed = False
        try:
            if error is None:
                self._commit()
                is_committed = True
        finally:
            if not is_committed:
                self._leave()
            self._announce(is_committed=is_committed)
        if error is not None:
            raise_storage_error(error, self._context.file.path)

    def _commit(self) -> None:
        if self._is_broken:
            raise _rolled_back(self._context)
        self._take_back()
        self._work = None
        self._session.commit(received_from=receive.received_from(self._collected()))

    def _commit_failed(self, error: BaseException) -> None:
        """Ends the transaction after the fast path has failed to commit it."""
        self._session.end()
        try:
            self._session.failed(error)
        finally:
            self._announce(is_committed=False)

    def _announce(self, *, is_committed: bool) -> None:
        # In a forked process nothing has happened, and locks of its parent's threads are never given back.
        if not self._context.file.is_inherited:
            listener = self._context.instance.listener
            (listener.committed if is_committed else listener.rolled_back)(self._context, self._collected())

    def _announce_fast(self, has_changed: bool, done: Done) -> None:  # noqa: FBT001  # as the native module returns it
        context = self._context
        if has_changed and context.file.failure is not None:
            context.file.ended(None)
        effects = self._collected()
        effects.are_done(done)
        context.instance.listener.committed(context, effects)

    def _collected(self) -> Effects:
        """What was done so far, on the fast path too."""
        effects = self._effects
        if effects is None:
            effects = self._effects = Effects(log=self._context.instance.events)
        effects.are_done(self._session.take_done())
        return effects

    def _received(self, queue: str, asked: ReceiveRequest, wait: ReceiveWait | None) -> pa.Table:
        """Receives messages, and waits for them."""
        while True:
            with self._call() as work:
                table = receive.receive(work, queue, asked)
            if table.num_rows or not self._wait(wait):
                return table

    def _wait(self, wait: ReceiveWait | None) -> bool:
        """Waits, without the lock, until there may be a message; returns whether to look again."""
        if wait is not None:
            self._leave()
        return wait is not None and wait.wait()

    def _patience(self, queue: str, timeout: float) -> ReceiveWait | None:
        """How long to wait for a message; None if waiting is useless, because this transaction holds the lock."""
        if timeout == 0.0 and timeout is not False:
            return None
        seconds = timeout_seconds(timeout, name="timeout")
        if not seconds or self._session.is_begun:
            return None
        return ReceiveWait(self._context, queue_key(queue), until=time.monotonic() + seconds)


def _rolled_back(context: DatabaseContext) -> StorageError:
    path = context.file.path
    return StorageError(
        f"{path}: the transaction was rolled back after an error; no changes were saved", file=str(path)
    )


def _named(work: Work, dialog: Guid) -> ConversationEndpoint:
    handle = guid_bytes(dialog, name="dialog")
    endpoint = endpoints.by_handle(work.connection, handle)
    if endpoint is None:
        raise broker_error(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    return endpoint
