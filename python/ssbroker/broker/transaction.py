"""One transaction of a database: the application's own tables and its conversations together (B2)."""

from __future__ import annotations

import time
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from ssbroker import guids, options
from ssbroker.arrow_input import ArrowArrayExportable, ArrowStreamExportable
from ssbroker.broker.dialogs import batch, beginning, ending, receiving, sending
from ssbroker.broker.lifecycle import Lifecycle
from ssbroker.broker.objects.queue_names import queue_key
from ssbroker.broker.waiting import Patience
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import OptionError
from ssbroker.protocol.names import DEFAULT, refused
from ssbroker.store import endpoints
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.sqlite import Connection

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

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

    def __init__(self, database: Database) -> None:
        self._life: Final = Lifecycle(database)

    @property
    def connection(self) -> Connection:
        """The database's file, inside of this transaction: an `apsw.Connection` for the application's own tables."""
        return self._life.lend()

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
        with self._life as work:
            endpoint = beginning.begin(
                work,
                from_service,
                to_service,
                broker_instance=broker_instance,
                contract=contract,
                lifetime=lifetime,
                encryption=options.flag(encryption, name="encryption"),
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
        with self._life as work:
            endpoint = _named(work, dialog)
            content = sending.body_bytes(body)
            state = sending.check(work, endpoint, (message_type,), now=work.now())
            sending.send(work, [(endpoint, state, [(message_type, content)])])

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
        with self._life as work:
            batch.send_batch(work, messages)

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
        most = -1 if top is None else options.whole(top, name="top", least=1, most=_COUNT_MAX)
        group_count = -1 if groups is None else options.whole(groups, name="groups", least=1, most=_COUNT_MAX)
        if conversation_handle is not None and conversation_group_id is not None:
            raise OptionError("conversation_handle and conversation_group_id: expected one of them, got both")
        conversation = _guid(conversation_handle, "conversation_handle")
        asked = receiving.Asked(most, group_count, conversation, _guid(conversation_group_id, "conversation_group_id"))
        patience = self._patience(queue, timeout)
        while True:
            with self._life as work:
                table = receiving.receive(work, queue, asked)
            if table.num_rows or not self._wait(patience):
                return table

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
            with self._life as work:
                group = receiving.next_group(work, queue)
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
        failure = ending.failure_of(error)
        if options.flag(cleanup, name="cleanup") and failure is not None:
            raise OptionError("error and cleanup: expected one of them, got both")
        with self._life as work:
            endpoint = _named(work, dialog)
            if cleanup:
                ending.clean_up(work, endpoint)
            else:
                ending.end(work, endpoint, failure)

    def move_conversation(self, dialog: Guid, group: Guid) -> None:
        """Moves a conversation to another group on the same queue.

        Args:
            dialog: The handle of the conversation.
            group: The group.

        Raises:
            BrokerError: There is no such conversation or group (8426), its state forbids it (8438), or the group is on another
                queue (9610).
        """
        with self._life as work:
            ending.move(work, _named(work, dialog), guids.as_bytes(group, name="group"))

    def begin_conversation_timer(self, dialog: Guid, timeout: int) -> None:
        """Has a DialogTimer message arrive in this side's own queue; a timer that was set before is forgotten.

        Args:
            dialog: The handle of the conversation.
            timeout: The seconds until then.

        Raises:
            BrokerError: There is no such conversation (8426), its state forbids it (8458), the number is out of range (8411), or the
                conversation's lifetime ends before (8410).
        """
        with self._life as work:
            ending.set_timer(work, _named(work, dialog), timeout)

    def transmission_status(self, dialog: Guid) -> str:
        """Why messages of a conversation wait in the transmission queue, and what to do; empty where nothing is in the way.

        Args:
            dialog: The handle of the conversation.

        Returns:
            One or more sentences.

        Raises:
            BrokerError: There is no such conversation (8426).
        """
        with self._life as work:
            return _named(work, dialog).transmission_status

    def __enter__(self) -> Self:
        self._life.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life.end(error)

    def _wait(self, patience: Patience | None) -> bool:
        """Waits, without the lock, until there may be a message; whether to look again."""
        if patience is not None:
            self._life.leave()
        return patience is not None and patience.wait()

    def _patience(self, queue: str, timeout: float) -> Patience | None:
        """How long to wait for a message; None where a wait is useless, because the lock is held."""
        wait = options.seconds(timeout, name="timeout")
        if not wait or self._life.has_lock:
            return None
        return Patience(self._life.database, queue_key(queue), until=time.monotonic() + wait)


def _named(work: Work, dialog: Guid) -> Endpoint:
    handle = guids.as_bytes(dialog, name="dialog")
    endpoint = endpoints.by_handle(work.connection, handle)
    if endpoint is None:
        raise refused(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    return endpoint


def _guid(value: Guid | None, name: str) -> bytes | None:
    return None if value is None else guids.as_bytes(value, name=name)
