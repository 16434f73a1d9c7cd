"""RECEIVE, GET CONVERSATION GROUP, and poison message handling."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import guid_bytes
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.enqueue import queue_of
from ssbroker.broker.effects import Effects, ReceiveCall
from ssbroker.broker.unit_of_work import Work, instance_transaction, queue_name
from ssbroker.broker.validation import existing, queue_key
from ssbroker.exceptions import OptionError
from ssbroker.protocol.errors import broker_error
from ssbroker.protocol.events import QueueDisabled
from ssbroker.store import endpoints, file, object_changes, queues
from ssbroker.store.objects import Queue

BYTES_MAX: Final = 1 << 30
"""After so many bytes of bodies no further message is taken at once, so that the table can hold them."""


class ReceiveRequest(NamedTuple):
    """What RECEIVE looks for."""

    top: int | None = None
    """The most messages to take; None is all."""
    groups: int | None = 1
    """The most conversation groups to take them from; None is all."""
    conversation: bytes | None = None
    """The handle of the only conversation to look at."""
    group: bytes | None = None
    """The only conversation group to look at."""


def asked(
    top: int | None, groups: int | None, conversation_handle: object, conversation_group_id: object
) -> ReceiveRequest:
    """What RECEIVE looks for, as an application says it.

    Args:
        top: The most messages to take; None is all.
        groups: The most conversation groups; None is all.
        conversation_handle: The only conversation, or None.
        conversation_group_id: The only conversation group, or None.

    Raises:
        InvalidGuidError: A handle or a group is none.
        OptionError: Both are named.
    """
    if conversation_handle is not None and conversation_group_id is not None:
        raise OptionError("conversation_handle and conversation_group_id: expected one of them, got both")
    return ReceiveRequest(
        top,
        groups,
        _guid(conversation_handle, "conversation_handle"),
        _guid(conversation_group_id, "conversation_group_id"),
    )


def receive(work: Work, queue_name: str, asked: ReceiveRequest) -> pa.Table:
    """Takes the messages of one conversation group out of a queue, or of several, one after the other.

    Args:
        work: The transaction.
        queue_name: The queue.
        asked: What to look for.

    Returns:
        The messages (`schemas.RECEIVED`), in the order in which they are to be read.

    Raises:
        BrokerError: There is no such queue (15151), it is off (9617), or there is no such conversation or group in it (8426).
    """
    queue = _queue(work, queue_name)
    top, groups, conversation, group = asked
    try:
        batch = work.connection.statements.receive(
            work.picture,
            schemas.RECEIVED,
            queue.queue_id,
            top=top,
            groups=groups,
            bytes_max=BYTES_MAX,
            endpoint_id=None if conversation is None else _endpoint_id(work, queue, conversation),
            group=group,
            is_retained=queue.is_retention_enabled,
        )
    except LookupError:
        raise broker_error(8426, kind="conversation group", handle=uuid.UUID(bytes=group)) from None
    is_named = conversation is not None or group is not None
    work.effects.received.append(ReceiveCall(queue.queue_id, is_empty=batch is None, is_named=is_named))
    return _nothing() if batch is None else pa.Table.from_batches([batch])


def _guid(value: object, name: str) -> bytes | None:
    return None if value is None else guid_bytes(value, name=name)


@functools.cache
def _nothing() -> pa.Table:
    """No messages. Made once: that takes as long as all else of a RECEIVE that finds nothing, three times over."""
    return schemas.RECEIVED.empty_table()


def _endpoint_id(work: Work, queue: Queue, conversation: bytes) -> int:
    endpoint = endpoints.by_handle(work.connection, conversation)
    if endpoint is None or queue_of(work, endpoint) is not queue:
        raise broker_error(8426, kind="conversation", handle=uuid.UUID(bytes=conversation))
    return endpoint.endpoint_id


def next_group(work: Work, queue_name: str) -> bytes | None:
    """The conversation group whose messages RECEIVE would take; None where nothing is there.

    Raises:
        BrokerError: There is no such queue (15151), or it is off (9617).
    """
    queue = _queue(work, queue_name)
    endpoint = queues.next_endpoint(work.connection, queue.queue_id)
    work.effects.received.append(ReceiveCall(queue.queue_id, is_empty=endpoint is None, is_named=False))
    return None if endpoint is None else endpoint.conversation_group_id


def check_on(queue: Queue) -> None:
    """Refuses where nothing can be received from a queue.

    Raises:
        BrokerError: It is off (9617).
    """
    if not queue.is_receive_enabled:
        raise broker_error(9617, queue=queue.name)


def _queue(work: Work, name: str) -> Queue:
    queue = existing(work.objects.queues, queue_key(name), kind="queue")
    check_on(queue)
    return queue


ROLLBACKS_MAX: Final = 5


def received_from(effects: Effects) -> set[int]:
    """The queues from which a transaction took something.

    Args:
        effects: What it did.

    Returns:
        Their ids.
    """
    return {each.queue_id for each in effects.received if not each.is_empty}


def rolled_back(database: DatabaseContext, queue_ids: Iterable[int]) -> None:
    """Counts a rollback, in a transaction of its own.

    Args:
        database: The database.
        queue_ids: The queues that the transaction had received from.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with instance_transaction(database) as work:
        for queue_id in queue_ids:
            counted = file.count(work.connection, queue_id)
            queue = work.objects.queues_by_id.get(queue_id)
            if queue is None or not queue.is_poison_message_handling_enabled or counted < ROLLBACKS_MAX:
                continue
            if not queue.is_receive_enabled:
                continue
            off = {"is_receive_enabled": False, "is_enqueue_enabled": False}
            object_changes.alter(work.connection, "ssb_queues", queue_id, off)
            work.effects.is_catalog_changed = True
            work.effects.events.append(QueueDisabled(at=work.now(), database=work.database, queue=queue_name(queue)))
