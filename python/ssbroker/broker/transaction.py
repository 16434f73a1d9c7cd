"""One transaction of a database: application tables and conversations, committed together."""

from __future__ import annotations

import time
import uuid
import warnings
from types import TracebackType
from typing import Final, NoReturn, Self

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import boolean, guid_bytes, timeout_seconds, whole_number
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import begin_end, receive, send
from ssbroker.broker.dialogs.receive import check_on
from ssbroker.broker.effects import Effects
from ssbroker.broker.unit_of_work import GuardedConnection, Work
from ssbroker.broker.validation import existing, queue_key
from ssbroker.exceptions import BrokerError, OptionError, SsbrokerError, StorageError
from ssbroker.protocol.errors import broker_error
from ssbroker.protocol.events import ConversationEvent
from ssbroker.protocol.message_types import DEFAULT
from ssbroker.store import endpoints, queues
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.file import Done, PlainSession, Row
from ssbroker.store.sqlite import Connection, raise_storage_error, storage_errors


class Lifecycle:
    """A transaction that does more than what is plain. As a context manager it stands around each call.

    A call that is refused has changed nothing. One that fails on its way, because of the disk, an interrupt or a mistake in here,
    may have written a part: then the whole transaction is undone, and every further call says so.

    Args:
        database: The database.
        plain: Its transaction so far; what that did is told with what is done from here on.
    """

    __slots__ = ("_database", "_effects", "_is_broken", "_lent", "_plain", "_session", "_work")

    def __init__(self, database: DatabaseContext, plain: PlainSession) -> None:
        self._database: Final = database
        self._plain: Final = plain
        self._effects: Final = Effects(log=database.instance.events)
        self._work: Work | None = None
        self._lent: GuardedConnection | None = None
        self._session: Final = database.file.session()
        # An exception of a signal's handler may have taken with it what this has been left before.
        self._is_broken = plain.is_left
        self._effects.are_done(self._session.adopt(plain))

    def __del__(self) -> None:
        """Undoes what was entered without `with`, and dropped: nobody else could give back the lock."""
        session = getattr(self, "_session", None)  # where the handler of a signal has raised, it is not made whole
        if session is not None and session.is_begun and not self._database.file.is_inherited:
            self.leave()
            message = f"{self._database.file.path}: a transaction was dropped before its end, and is undone; use it in a `with` block"
            warnings.warn(message, ResourceWarning, stacklevel=2)

    @property
    def has_lock(self) -> bool:
        """Whether the write lock is held."""
        return self._session.is_begun

    def lend(self) -> Connection:
        """The connection, for the application's own SQL."""
        self._begin()
        connection = self._session.begin()
        if self._lent is None:
            self._lent = GuardedConnection(connection)
        return connection

    def leave(self) -> None:
        """Gives the lock back before the end; what was not committed is undone."""
        self._take_back()
        self._work = None
        self._session.close()

    def end(self, error: BaseException | None) -> None:
        """Ends the transaction, and tells the instance what it did.

        Args:
            error: What left the block; None makes the transaction durable.

        Raises:
            StorageError: It could not be; then nothing has changed. Or the application's own SQL met with a disk that fails.
        """
        self._plain.end()
        is_committed = False
        try:
            if error is None:
                self._commit()
                is_committed = True
        finally:
            if not is_committed:
                self.leave()
            self._tell(is_committed=is_committed)
        if error is not None:
            raise_storage_error(error, self._database.file.path)

    def not_committed(self, error: BaseException) -> None:
        """What `end` does where the plain session has tried to commit.

        Args:
            error: What it raised.

        Raises:
            StorageError: What that means.
        """
        self._plain.end()
        try:
            self._session.failed(error)
        finally:
            self._tell(is_committed=False)

    def failed(self, error: BaseException) -> NoReturn:
        """What is done where a call fails on its way.

        Args:
            error: What it raised.

        Raises:
            StorageError: What that means, where it is about the file; otherwise the error itself.
        """
        self._is_broken = True
        self.leave()
        with storage_errors(self._database.file.path, is_internal=True):
            raise error

    def __enter__(self) -> Work:
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SsbrokerError) and not isinstance(error, StorageError)):
            return
        self.failed(error)

    def _commit(self) -> None:
        if self._is_broken:
            raise _undone(self._database)
        self._take_back()
        self._work = None
        self._session.commit(received_from=receive.received_from(self._effects))

    def _tell(self, *, is_committed: bool) -> None:
        # In a forked process nothing has happened, and locks of its parent's threads are never given back.
        if not self._database.file.is_inherited:
            listener = self._database.instance.listener
            (listener.committed if is_committed else listener.rolled_back)(self._database, self._effects)

    def _take_back(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            self._session.is_reusable = lent.take_back()

    def _begin(self) -> Work:
        if not self._plain.is_open:
            raise BrokerError("the transaction is over, or not begun: use it inside of its `with` block")
        if self._is_broken:
            raise _undone(self._database)
        connection = self._session.begin_unguarded()
        if self._work is None:
            with storage_errors(self._database.file.path, is_internal=True):
                self._work = Work(self._database, connection, self._effects)
        return self._work


def _undone(database: DatabaseContext) -> StorageError:
    path = database.file.path
    return StorageError(
        f"{path}: a call failed on its way and the transaction was undone; nothing of it stands", file=str(path)
    )


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
        self._told: Final = database.arrivals.told
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
            self._seen = seen if arrivals.told == self._told else _NOTHING
        with arrivals.waits(queue_id):
            while not arrivals.is_closed and (left := self._until - time.monotonic()) > 0:
                arrivals.wait(queue_id, seen=self._seen, timeout=min(LOOK_EVERY, left))
                self._seen = arrivals.count(queue_id)
                with self._database.file.read() as connection:
                    check_on(existing(self._database.objects(connection).queues, self._key, kind="queue"))
                    if queues.has_ready_messages(connection, queue_id):
                        return True
        return False


class Turn:
    """One transaction of a database, from its `with` to its end.

    It begins as a plain session, which is the native module's. What that leaves to others, and all after it, is done by a `Lifecycle`.

    Args:
        database: The database.
    """

    __slots__ = ("__weakref__", "_database", "_life", "_plain")

    def __init__(self, database: DatabaseContext) -> None:
        self._database: Final = database
        self._plain: Final = database.plain_session()
        self._life: Lifecycle | None = None

    def __reduce__(self) -> NoReturn:
        """A transaction is of this process.

        Raises:
            TypeError: Always; it says what another process can do.
        """
        self._database.instance.__reduce__()

    def __enter__(self) -> Self:
        if not self._plain.open():
            raise BrokerError("a transaction is entered once; begin another with database.transaction()")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._life is None:
            try:
                is_committed, told = self._plain.commit()
            except BaseException as failure:
                self._lifecycle().not_committed(failure)
                raise
            if is_committed:
                if told is not None:
                    self._tell(*told)
                return
        self._lifecycle().end(error)

    def _lifecycle(self) -> Lifecycle:
        """What does more than what is plain."""
        if self._life is None:
            self._life = Lifecycle(self._database, self._plain)
        return self._life

    def _is_sent(self, dialog: object, body: object, message_type: object) -> bool:
        """Sends a message, if that is plain; whether it was."""
        instance = self._database.instance
        message = send.as_plain(dialog, body, message_type)
        if message is None or self._life is not None or instance.events.wants(ConversationEvent):
            return False
        now = None if instance.has_system_clock else instance.microseconds()
        try:
            return self._plain.send(*message, now)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a part may have been written
            self._lifecycle().failed(error)

    def _received_batch(self, queue: object, top: int | None, groups: int | None) -> pa.RecordBatch | None:
        """Receives messages, if that is plain and there are any."""
        if self._life is not None or type(queue) is not str:
            return None
        try:
            return self._plain.receive(schemas.RECEIVED, queue, top, groups, receive.BYTES_MAX)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a part may have been taken
            self._lifecycle().failed(error)

    def _received_row(self, queue: object) -> Row | None:
        """Receives a message, if that is plain and there is one."""
        if self._life is not None or type(queue) is not str:
            return None
        try:
            return self._plain.receive_one(queue)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a part may have been taken
            self._lifecycle().failed(error)

    def _received(self, queue: str, asked: receive.ReceiveRequest, patience: ReceiveWait | None) -> pa.Table:
        """Receives messages, and waits for them."""
        while True:
            with self._lifecycle() as work:
                table = receive.receive(work, queue, asked)
            if table.num_rows or not self._wait(patience):
                return table

    def _wait(self, patience: ReceiveWait | None) -> bool:
        """Waits, without the lock, until there may be a message; whether to look again."""
        if patience is not None:
            self._lifecycle().leave()
        return patience is not None and patience.wait()

    def _patience(self, queue: str, timeout: float) -> ReceiveWait | None:
        """How long to wait for a message; None where a wait is useless, because the lock is held."""
        if timeout == 0.0 and timeout is not False:
            return None
        wait = timeout_seconds(timeout, name="timeout")
        if not wait or self._plain.is_begun or (self._life is not None and self._life.has_lock):
            return None
        return ReceiveWait(self._database, queue_key(queue), until=time.monotonic() + wait)

    def _tell(self, has_changed: bool, done: Done) -> None:  # noqa: FBT001  # as the native module gives it
        """Tells whom it concerns what was committed."""
        database = self._database
        if has_changed and database.file.failure is not None:
            database.file.ended(None)
        effects = Effects(log=database.instance.events)
        effects.are_done(done)
        database.instance.listener.committed(database, effects)


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


class Transaction(Turn):
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

    @property
    def connection(self) -> Connection:
        """The database's file, inside of this transaction: an `apsw.Connection` for the application's own tables."""
        return self._lifecycle().lend()

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
        with self._lifecycle() as work:
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
        if self._is_sent(dialog, body, message_type):
            return
        with self._lifecycle() as work:
            if send.send_plain(work, dialog, body, message_type):
                return
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
        with self._lifecycle() as work:
            send.send_batch(work, messages)

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
        if conversation_handle is None and conversation_group_id is None:
            batch = self._received_batch(queue, top, groups)
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
        if conversation_handle is None and conversation_group_id is None:
            row = self._received_row(queue)
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
            with self._lifecycle() as work:
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
        with self._lifecycle() as work:
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
        with self._lifecycle() as work:
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
        with self._lifecycle() as work:
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
        with self._lifecycle() as work:
            return _named(work, dialog).transmission_status


def _named(work: Work, dialog: Guid) -> ConversationEndpoint:
    handle = guid_bytes(dialog, name="dialog")
    endpoint = endpoints.by_handle(work.connection, handle)
    if endpoint is None:
        raise broker_error(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    return endpoint
