"""RECEIVE and GET CONVERSATION GROUP."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import optional_guid_bytes
from ssbroker.broker.dialogs import poison_message_handling
from ssbroker.broker.dialogs.enqueue import queue_of
from ssbroker.broker.effects import ReceiveCall
from ssbroker.broker.object_names import existing, plain_queue_name, queue_key
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import BrokerError, OptionError
from ssbroker.protocol.broker_errors import broker_error, refusal
from ssbroker.store import conversation_endpoints, leases, queues
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Queue
from ssbroker.store.sqlite import Connection

BYTES_MAX: Final = 1 << 30
"""Bytes of bodies after which a RECEIVE takes no more messages, so that the table can hold them."""


class ReceiveRequest(NamedTuple):
    """The options of a RECEIVE."""

    top: int | None = None
    """Maximum number of messages; None means all."""
    groups: int | None = 1
    """Maximum number of conversation groups; None means all."""
    conversation: bytes | None = None
    """The handle of the only conversation to receive from."""
    group: bytes | None = None
    """The only conversation group to receive from."""

    @property
    def is_named(self) -> bool:
        """Whether the RECEIVE names the one conversation or conversation group from which it receives."""
        return self.conversation is not None or self.group is not None


def receive_request(
    top: int | None, groups: int | None, conversation_handle: object, conversation_group_id: object
) -> ReceiveRequest:
    """Validates the options of a RECEIVE."""
    if conversation_handle is not None and conversation_group_id is not None:
        raise OptionError("conversation_handle and conversation_group_id cannot be used together: specify one of them")
    return ReceiveRequest(
        top,
        groups,
        optional_guid_bytes(conversation_handle, name="conversation_handle"),
        optional_guid_bytes(conversation_group_id, name="conversation_group_id"),
    )


def receive(work: Work, queue_name: str, request: ReceiveRequest) -> pa.Table:
    """Receives the messages of one or more conversation groups, in order."""
    queue = enabled_queue(work, queue_name)
    _free_ended_waits(work)
    top, groups, conversation, group = request
    try:
        batch = work.connection.statements.receive(
            work.native_snapshot,
            schemas.RECEIVED,
            queue.queue_id,
            top=top,
            groups=groups,
            bytes_max=BYTES_MAX,
            endpoint_id=None if conversation is None else _endpoint_id(work, queue, conversation),
            group=group,
            is_retained=queue.is_retention_enabled,
            now=work.now(),
        )
    except LookupError:
        members = [] if group is None else conversation_endpoints.in_group(work.connection, group, limit=1)
        raise _not_in_queue(work, queue, "conversation group", group, members) from None
    first = batch["conversation_handle"][0].as_py() if request.is_named and batch is not None else None
    work.effects.received.append(
        ReceiveCall(queue.queue_id, batch is None, request.is_named, conversation_handle=first)
    )
    return empty_table() if batch is None else pa.Table.from_batches([batch])


def _free_ended_waits(work: Work) -> None:
    """Makes available the messages whose wait has ended, if the background thread has not done so yet."""
    work.effects.arrived |= leases.free_ended_waits(work.connection, now=work.now())


@functools.cache
def empty_table() -> pa.Table:
    """Returns a table without messages, cached because creating it takes three times as long as the rest of an empty RECEIVE."""
    return schemas.RECEIVED.empty_table()


def _endpoint_id(work: Work, queue: Queue, conversation: bytes) -> int:
    endpoint = conversation_endpoints.by_handle(work.connection, conversation)
    if endpoint is None or queue_of(work, endpoint) is not queue:
        raise _not_in_queue(work, queue, "conversation", conversation, [] if endpoint is None else [endpoint])
    return endpoint.endpoint_id


def _not_in_queue(
    work: Work, queue: Queue, kind: str, handle: bytes | None, found: Sequence[ConversationEndpoint]
) -> BrokerError:
    """Returns the error for a conversation or group that does not exist, or whose messages are in another queue."""
    name = uuid.UUID(bytes=handle)
    if not found:
        return broker_error(8426, kind=kind, handle=name)
    here, there = plain_queue_name(queue), plain_queue_name(queue_of(work, found[0]))
    return refusal(f"the messages of the {kind} {name} are in the queue {there!r}, not in {here!r}", 8426)


def next_group(work: Work, queue_name: str) -> bytes | None:
    """Returns the conversation group that RECEIVE would take next; None if there are no messages."""
    queue = enabled_queue(work, queue_name)
    _free_ended_waits(work)
    endpoint = queues.next_endpoint(work.connection, queue.queue_id, now=work.now())
    work.effects.received.append(
        ReceiveCall(queue.queue_id, is_empty=endpoint is None, is_named=False, is_group_only=True)
    )
    return None if endpoint is None else endpoint.conversation_group_id


def check_enabled(connection: Connection, queue: Queue) -> None:
    """Raises error 9617 if the queue is disabled."""
    if not queue.is_receive_enabled:
        raise poison_message_handling.disabled_error(connection, queue)


def enabled_queue(work: Work, name: str) -> Queue:
    """Returns a queue by its name; raises error 15151 if there is none, and 9617 if it is disabled."""
    queue = existing(work.objects.queues, queue_key(name), kind="queue", database=work.database)
    check_enabled(work.connection, queue)
    return queue
