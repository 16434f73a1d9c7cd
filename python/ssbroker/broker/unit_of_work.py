"""The state of one begun transaction, and its effects that are announced after the commit."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from ssbroker.exceptions import BrokerError
from ssbroker.protocol.events import (
    Conversation,
    ConversationGroup,
    ConversationStep,
    Event,
    EventLog,
    GroupStep,
    MessageUndeliverable,
)
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.file import Done, Told
from ssbroker.store.objects import Objects, Picture, Queue
from ssbroker.store.sqlite import Connection, Cursor, clear

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


class Received(NamedTuple):
    """One RECEIVE or GET CONVERSATION GROUP of the transaction."""

    queue_id: int
    """The queue."""
    is_empty: bool
    """Whether nothing was there."""
    is_named: bool
    """Whether a conversation or a group was named; then being empty says nothing about the queue (fact 143)."""


@dataclass(slots=True)
class Effects:
    """What one transaction did. Nobody hears of it before the commit, and after a rollback only of `received` (B24)."""

    arrived: set[int] = field(default_factory=set)
    """The queues (`queue_id`) that hold messages now that can be received and could not before."""
    outbound: set[int] = field(default_factory=set)
    """The endpoints (`endpoint_id`) with new rows in the transmission queue, which are to be delivered (B9)."""
    received: list[Received] = field(default_factory=list)
    """Each RECEIVE, in order."""
    due: int | None = None
    """The earliest moment that was set: of a timer, a lifetime, the removal of a closed endpoint. Microseconds since 1970."""
    is_catalog_changed: bool = False
    """Whether a queue, service, route or the broker's state has changed, so that what waits is to be tried at once."""
    sent: int = 0
    """How many messages were sent."""
    enqueued: dict[tuple[bool, int], int] = field(default_factory=dict)
    """How many were put into queues, by whether the far side is reached over the network, and by priority."""
    fragments: int = 0
    """How many fragments were kept until their messages are whole."""
    put_off: int = 0
    """How many were put into the transmission queue."""
    taken_off: int = 0
    """How many left it."""
    events: list[Event] = field(default_factory=list)
    """What subscribers are to hear, in order."""
    log: EventLog | None = None
    """Who hears it; None is nobody."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody hears of events of a class, so that they are not made in vain.

        Args:
            kind: The class.

        Returns:
            Whether somebody does.

        Examples:
            >>> Effects().wants(Event)
            False
        """
        return self.log is not None and self.log.wants(kind)

    def are_done(self, done: Done) -> None:
        """Notes what a session did by itself.

        Args:
            done: What it says of it.

        Examples:
            >>> effects = Effects()
            >>> effects.are_done((3, [((7, 5, False), 2), ((None, 12, False), 1)], [(7, False)]))
            >>> effects.arrived, effects.outbound, effects.received[0].queue_id
            ({7}, {12}, 7)
        """
        sent, told, received = done
        self.sent += sent
        for where, number in told:
            self.stand(where, number)
        for queue_id, is_empty in received:
            self.received.append(Received(queue_id, is_empty, is_named=False))

    def stand(self, where: Told, number: int) -> None:
        """Notes where messages of one conversation stand now.

        Args:
            where: In which queue, or whose they are that wait.
            number: How many.
        """
        queue_id, either, is_remote = where
        if queue_id is None:
            self.outbound.add(either)
            self.put_off += number
        else:
            self.arrived.add(queue_id)
            self.are_enqueued(number, is_remote=is_remote, priority=either)

    def are_enqueued(self, number: int, *, is_remote: bool, priority: int) -> None:
        """Counts messages that were put into queues.

        Args:
            number: How many.
            is_remote: Whether the far side is reached over the network.
            priority: The priority of the side that receives them.

        Examples:
            >>> effects = Effects()
            >>> effects.are_enqueued(2, is_remote=False, priority=5)
            >>> effects.enqueued
            {(False, 5): 2}
        """
        key = is_remote, priority
        self.enqueued[key] = self.enqueued.get(key, 0) + number

    def is_due_at(self, moment: int) -> None:
        """Notes that something is to be done at a moment.

        Args:
            moment: In microseconds since 1970.

        Examples:
            >>> effects = Effects()
            >>> effects.is_due_at(7)
            >>> effects.is_due_at(9)
            >>> effects.due
            7
        """
        self.due = moment if self.due is None else min(self.due, moment)


class Way(NamedTuple):
    """Where a conversation's messages go now."""

    target_database: str | None
    """The database of this instance that takes them; None for another instance, or for none."""
    broker_instance: bytes | None
    """The broker id that they are sent to, where one is known."""


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

    def __init__(self, database: Database, connection: Connection, effects: Effects) -> None:
        self._database: Final = database
        self._ways: Callable[[Sequence[Endpoint]], list[Way]] | None = None
        self.database: Final = database.name
        self.connection: Final = connection
        self.objects: Final[Objects] = database.objects(connection)
        self.effects: Final = effects

    @property
    def picture(self) -> Picture:
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
        self._database.instance.worker.begins(self._database.database_id, endpoint_id)

    def ways_of(self, endpoints: Sequence[Endpoint]) -> list[Way]:
        """Routes conversations that have their senders here.

        Args:
            endpoints: The senders.

        Returns:
            Where the messages of each go.
        """
        if self._ways is None:
            self._ways = self._database.instance.worker.ways.ways_of(self.database, self.objects)
        return self._ways(endpoints)


_BLANK: Final = r"(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    rf"{_BLANK}(?P<word>BEGIN|COMMIT|END|ROLLBACK(?!(?:\s+TRANSACTION)?\s+TO\b))\b", re.IGNORECASE | re.DOTALL
)
_STAYS: Final = re.compile(rf"{_BLANK}(?:PRAGMA|ATTACH|DETACH|CREATE\b.*\bTEMP(?:ORARY)?)\b", re.IGNORECASE | re.DOTALL)
"""What SQLite keeps for the connection beyond the transaction, a rollback included."""


class Lent:
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
        if not clear(self._connection):
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
def own_work(database: Database, *, lock_timeout: float | None = None) -> Iterator[Work]:
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
    instance.worker.committed(database, effects)


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


def told_conversation(
    work: Work,
    endpoint: Endpoint,
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
    if not work.effects.wants(Conversation):
        return
    work.effects.events.append(
        Conversation(
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


def told_group(work: Work, group: bytes, step: GroupStep) -> None:
    """A conversation group came or went.

    Args:
        work: The transaction.
        group: The group.
        step: Which of the two.
    """
    if work.effects.wants(ConversationGroup):
        work.effects.events.append(
            ConversationGroup(
                at=work.now(), database=work.database, conversation_group_id=uuid.UUID(bytes=group), step=step
            )
        )


def told_undeliverable(work: Work, conversation_id: bytes, *, number: int, error: int, text: str) -> None:
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
