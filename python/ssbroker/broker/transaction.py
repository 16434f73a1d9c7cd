"""One transaction of a database: the application's own tables and its conversations together (B2)."""

from __future__ import annotations

import uuid
from typing import Final

import pyarrow as pa

from ssbroker import guids, options
from ssbroker.arrow_input import ArrowArrayExportable, ArrowStreamExportable
from ssbroker.broker.dialogs import batch, beginning, ending, receiving, sending
from ssbroker.broker.message import Message
from ssbroker.broker.turn import Turn
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import OptionError
from ssbroker.protocol.names import DEFAULT, refused
from ssbroker.store import endpoints
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.sqlite import Connection

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
        if self._is_sent(dialog, body, message_type):
            return
        with self._lifecycle() as work:
            if sending.send_plain(work, dialog, body, message_type):
                return
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
        with self._lifecycle() as work:
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
        if top is not None:
            options.whole(top, name="top", least=1, most=_COUNT_MAX)
        if groups is not None:
            options.whole(groups, name="groups", least=1, most=_COUNT_MAX)
        patience = self._patience(queue, timeout)
        if conversation_handle is None and conversation_group_id is None:
            batch = self._received_batch(queue, top, groups)
            if batch is not None:
                return pa.Table.from_batches([batch])
        return self._received(queue, receiving.asked(top, groups, conversation_handle, conversation_group_id), patience)

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
        asked = receiving.asked(1, 1, conversation_handle, conversation_group_id)
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
        with self._lifecycle() as work:
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
        with self._lifecycle() as work:
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
        with self._lifecycle() as work:
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
        with self._lifecycle() as work:
            return _named(work, dialog).transmission_status


def _named(work: Work, dialog: Guid) -> Endpoint:
    handle = guids.as_bytes(dialog, name="dialog")
    endpoint = endpoints.by_handle(work.connection, handle)
    if endpoint is None:
        raise refused(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    return endpoint
