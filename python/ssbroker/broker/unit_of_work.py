"""A started transaction of a database: its connection, objects, effects and events."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.effects import Effects
from ssbroker.protocol.events import (
    ConversationEvent,
    ConversationGroupEvent,
    ConversationStep,
    GroupStep,
    MessageUndeliverable,
)
from ssbroker.store import failures
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import NativeSnapshot, Objects
from ssbroker.store.sqlite import Connection


class Work:
    """A started transaction of one database.

    Attributes:
        database: The name of the database.
        connection: The connection that holds the write lock.
        objects: The objects of the database.
        effects: The effects to announce after the transaction has ended.
    """

    __slots__ = ("_database", "_has_moved_groups", "_local_router", "connection", "database", "effects", "objects")

    def __init__(self, database: DatabaseContext, connection: Connection, effects: Effects) -> None:
        self._database: Final = database
        self._has_moved_groups: bool | None = None
        self._local_router: Callable[[Sequence[ConversationEndpoint]], list[bool]] | None = None
        self.database: Final = database.name
        self.connection: Final = connection
        self.objects: Final[Objects] = database.objects(connection)
        self.effects: Final = effects

    @property
    def native_snapshot(self) -> NativeSnapshot:
        """The snapshot of the objects for the fast path."""
        return self._database.native_snapshot(self.objects)

    @property
    def broker_instance(self) -> bytes:
        """The broker id of the database."""
        return self.objects.broker.service_broker_guid

    def are_routed_here(self, endpoints: Sequence[ConversationEndpoint]) -> list[bool]:
        """Returns for each endpoint of this database whether its messages stay in it, according to the routes at the time of the first call."""
        if self._local_router is None:
            self._local_router = self._database.instance.routes.local_router(self.database)
        return self._local_router(endpoints)

    def now(self) -> int:
        """Returns the current time in microseconds since 1970."""
        return self._database.instance.microseconds()

    def new_id(self) -> bytes:
        """Returns a random id."""
        return self._database.instance.new_guid().bytes

    def moved_queue_id(self, group: bytes) -> int | None:
        """Returns the queue to which poison message handling has moved a conversation group; None if the group has not been moved."""
        if self._has_moved_groups is None:
            self._has_moved_groups = failures.has_moved_groups(self.connection)
        return failures.queue_of_moved_group(self.connection, group) if self._has_moved_groups else None

    def group_moved(self) -> None:
        """Records that this transaction has moved a conversation group."""
        self._has_moved_groups = True

    def forget_earlier_endpoint(self, endpoint_id: int) -> None:
        """Notifies the listener that an endpoint was created, or sends its first message; an earlier endpoint may have had the same id."""
        self._database.instance.listener.conversation_begins(self._database.database_id, endpoint_id)


@contextmanager
def database_transaction(
    database: DatabaseContext, *, lock_timeout: float | None = None, is_durable: bool = True
) -> Iterator[Work]:
    """Runs a transaction that commits at the end of the block, as `DatabaseFile.write` does, and then announces its effects."""
    instance = database.instance
    effects = Effects(log=instance.events)
    with database.file.write(lock_timeout=lock_timeout, is_durable=is_durable) as connection:
        yield Work(database, connection, effects)
    instance.listener.committed(database, effects)


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
    """Emits an event about a step of a conversation, if there are subscribers."""
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
            far_service_name=endpoint.far_service,
        )
    )


def emit_group_event(work: Work, group: bytes, step: GroupStep) -> None:
    """Emits an event about a conversation group that was created or dropped."""
    if work.effects.wants(ConversationGroupEvent):
        work.effects.events.append(
            ConversationGroupEvent(
                at=work.now(), database=work.database, conversation_group_id=uuid.UUID(bytes=group), step=step
            )
        )


def emit_undeliverable_event(work: Work, conversation_id: bytes, *, number: int, error: int, text: str) -> None:
    """Emits an event about a message that cannot be delivered to any conversation of this database."""
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
