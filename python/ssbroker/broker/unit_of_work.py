"""One begun transaction of a database: its connection, its objects, its effects, and its events."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from weakref import WeakSet

from ssbroker.broker.context import DatabaseContext, LocalRoute
from ssbroker.broker.effects import Effects
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.events import (
    ConversationEvent,
    ConversationGroupEvent,
    ConversationStep,
    GroupStep,
    MessageUndeliverable,
)
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import NativeSnapshot, Objects, Queue
from ssbroker.store.sqlite import Connection, Cursor, remove_hooks


class Work:
    """A begun transaction of one database.

    Args:
        database: The database.
        connection: Its file, with the write lock.
        effects: Gathers what others are to be told after the commit.

    Attributes:
        database: The name of the database.
        connection: Its file, with the write lock.
        objects: What stands in the database.
        effects: What others are told when the transaction has ended.
    """

    __slots__ = ("_database", "_ways", "connection", "database", "effects", "objects")

    def __init__(self, database: DatabaseContext, connection: Connection, effects: Effects) -> None:
        self._database: Final = database
        self._ways: Callable[[Sequence[ConversationEndpoint]], list[LocalRoute]] | None = None
        self.database: Final = database.name
        self.connection: Final = connection
        self.objects: Final[Objects] = database.objects(connection)
        self.effects: Final = effects

    @property
    def picture(self) -> NativeSnapshot:
        """The objects, as far as they decide about plain messages."""
        return self._database.picture(self.objects)

    @property
    def broker_instance(self) -> bytes:
        """The database's own broker id."""
        return self.objects.broker.service_broker_guid

    def now(self) -> int:
        """The moment, in microseconds since 1970."""
        return self._database.instance.microseconds()

    def new_id(self) -> bytes:
        """A random id."""
        return self._database.instance.new_guid().bytes

    def begins(self, endpoint_id: int) -> None:
        """Tells that an endpoint is made: another one may have had its number.

        Args:
            endpoint_id: The endpoint.
        """
        self._database.instance.listener.conversation_begins(self._database.database_id, endpoint_id)

    def ways_of(self, endpoints: Sequence[ConversationEndpoint]) -> list[LocalRoute]:
        """Routes conversations that have their senders here.

        Args:
            endpoints: The senders.

        Returns:
            Where the messages of each go.
        """
        if self._ways is None:
            self._ways = self._database.instance.routes.ways_of(self.database, self.objects)
        return self._ways(endpoints)


_BLANK: Final = r"(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    rf"{_BLANK}(?P<word>BEGIN|COMMIT|END|ROLLBACK(?!(?:\s+TRANSACTION)?\s+TO\b))\b", re.IGNORECASE | re.DOTALL
)
_STAYS: Final = re.compile(rf"{_BLANK}(?:PRAGMA|ATTACH|DETACH|CREATE\b.*\bTEMP(?:ORARY)?)\b", re.IGNORECASE | re.DOTALL)
"""What SQLite keeps for the connection beyond the transaction, a rollback included."""


class GuardedConnection:
    """A connection while the application has it: statements that begin or end a transaction raise on it, and change nothing.

    Args:
        connection: With its transaction begun.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._cursors: Final[WeakSet[Cursor | Connection]] = WeakSet()
        self._has_set = False
        connection.exec_trace = self._traced

    def take_back(self) -> bool:
        """Has the connection as it was. Cursors that were not read to their end are closed: with `RETURNING`, they would keep SQLite from committing.

        Returns:
            Whether it may serve other transactions: the application has set nothing that would stay, and has not closed it.
        """
        if not remove_hooks(self._connection):
            return False
        for cursor in list(self._cursors):
            cursor.close(force=True)
        return not self._has_set

    def _traced(self, cursor: Cursor | Connection, sql: str, _bindings: object) -> bool:
        found = _ENDS.match(sql)
        if found is not None:
            raise BrokerError(
                f"{found['word'].upper()} has no place inside of a transaction of the broker: its `with` block commits at its end, "
                "and is rolled back where an exception leaves it; for a part of it, use SAVEPOINT"
            )
        if cursor is not self._connection:  # which it is where `with connection` makes a savepoint
            self._cursors.add(cursor)
        self._has_set = self._has_set or _STAYS.match(sql) is not None
        return True


@contextmanager
def instance_transaction(database: DatabaseContext, *, lock_timeout: float | None = None) -> Iterator[Work]:
    """A transaction that is committed at the end of the block; then whoever it concerns is told.

    Args:
        database: The database.
        lock_timeout: The seconds to wait for the write lock; None is as long as always.

    Yields:
        The transaction.

    Raises:
        LockTimeoutError: The write lock was not free in time.
        StorageError: The file cannot be written; nothing has changed.
    """
    instance = database.instance
    effects = Effects(log=instance.events)
    with database.file.write(lock_timeout=lock_timeout) as connection:
        yield Work(database, connection, effects)
    instance.listener.committed(database, effects)


def queue_name(queue: Queue) -> str:
    """A queue as events and views name it.

    Args:
        queue: The queue.

    Returns:
        Schema and name.

    Examples:
        >>> queue_name(Queue(65536, "dbo", "Orders"))
        'dbo.Orders'
    """
    return f"{queue.schema_name}.{queue.name}"


def emit_conversation_event(
    work: Work,
    endpoint: ConversationEndpoint,
    step: ConversationStep,
    *,
    state: str | None = None,
    message_type_name: str | None = None,
    message_sequence_number: int | None = None,
    error: int = 0,
    text: str = "",
) -> None:
    """A conversation went a step.

    Args:
        work: The transaction.
        endpoint: This side of the conversation.
        step: What happened.
        state: The state that it is in now; None is that of `endpoint`.
        message_type_name: The message's type, where the step is about one.
        message_sequence_number: Its number.
        error: The error's code, where the step is about one.
        text: The error's text.
    """
    if not work.effects.wants(ConversationEvent):
        return
    work.effects.events.append(
        ConversationEvent(
            at=work.now(),
            database=work.database,
            conversation_id=uuid.UUID(bytes=endpoint.conversation_id),
            step=step,
            is_initiator=bool(endpoint.is_initiator),
            conversation_handle=uuid.UUID(bytes=endpoint.conversation_handle),
            conversation_group_id=uuid.UUID(bytes=endpoint.conversation_group_id),
            state=endpoint.state if state is None else state,
            message_type_name=message_type_name,
            message_sequence_number=message_sequence_number,
            error=error,
            text=text,
            priority=endpoint.priority,
        )
    )


def emit_group_event(work: Work, group: bytes, step: GroupStep) -> None:
    """A conversation group came or went.

    Args:
        work: The transaction.
        group: The group.
        step: Which of the two.
    """
    if work.effects.wants(ConversationGroupEvent):
        work.effects.events.append(
            ConversationGroupEvent(
                at=work.now(), database=work.database, conversation_group_id=uuid.UUID(bytes=group), step=step
            )
        )


def emit_undeliverable_event(work: Work, conversation_id: bytes, *, number: int, error: int, text: str) -> None:
    """A message cannot be taken by any conversation here.

    Args:
        work: The transaction.
        conversation_id: The conversation that it names.
        number: Its sequence number.
        error: Service Broker's number for the reason.
        text: The reason.
    """
    if work.effects.wants(MessageUndeliverable):
        work.effects.events.append(
            MessageUndeliverable(
                at=work.now(),
                database=work.database,
                conversation_id=uuid.UUID(bytes=conversation_id),
                message_sequence_number=number,
                error=error,
                text=text,
            )
        )
