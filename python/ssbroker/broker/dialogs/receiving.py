"""RECEIVE and GET CONVERSATION GROUP (facts 116 to 121, B17), without the waiting."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from ssbroker import schemas
from ssbroker.broker.dialogs.queueing import queue_of
from ssbroker.broker.objects.queue_names import queue_key
from ssbroker.broker.objects.refusals import existing
from ssbroker.broker.work.effects import Received
from ssbroker.broker.work.work import Work
from ssbroker.protocol.columns import WORTH_SHARING, bodies, tabled
from ssbroker.protocol.names import refused
from ssbroker.store import endpoints, queues
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import Queue
from ssbroker.store.queues import Message

_ALL: Final = -1
BYTES_MAX: Final = 1 << 30
"""After so many bytes of bodies no further message is taken at once, so that the table can hold them."""
_ROW: Final = pa.struct(list(schemas.RECEIVED))
_BODY: Final = schemas.RECEIVED.get_field_index("message_body")

Row: TypeAlias = tuple[Any, ...]


class Asked(NamedTuple):
    """What RECEIVE looks for."""

    top: int = _ALL
    """The most messages to take; -1 is all."""
    groups: int = 1
    """The most conversation groups to take them from; -1 is all."""
    conversation: bytes | None = None
    """The handle of the only conversation to look at."""
    group: bytes | None = None
    """The only conversation group to look at."""

    @property
    def is_named(self) -> bool:
        """Whether it is one conversation or group."""
        return self.conversation is not None or self.group is not None


def receive(work: Work, queue_name: str, asked: Asked) -> pa.Table:
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
    rows: list[Row] = []
    groups, room = asked.groups, BYTES_MAX
    while groups:
        left = asked.top - len(rows) if asked.top != _ALL else _ALL
        number = 0
        if groups != 1 and not asked.is_named:
            taken, size, number = _take_alone(work, queue, groups=groups, top=left, room=room)
        if not number:
            taken, size = _take_group(work, queue, asked, top=left, room=room)
            number = 1
        rows += taken
        room -= size
        if not taken or asked.is_named or room <= 0 or len(rows) == asked.top:
            break
        groups -= number if groups != _ALL else 0
    work.effects.received.append(Received(queue.queue_id, is_empty=not rows, is_named=asked.is_named))
    return _tabled(rows, size=BYTES_MAX - room) if rows else _nothing()


def _tabled(rows: Sequence[Row], *, size: int) -> pa.Table:
    """The messages; large bodies stay where they are."""
    if size < WORTH_SHARING or all(len(row[_BODY] or b"") < WORTH_SHARING for row in rows):
        return tabled(rows, _ROW)
    without = tabled([(*row[:_BODY], None, *row[_BODY + 1 :]) for row in rows], _ROW)
    return without.set_column(_BODY, schemas.RECEIVED.field(_BODY), bodies([row[_BODY] for row in rows]))


@functools.cache
def _nothing() -> pa.Table:
    """No messages. Made once: that takes as long as all else of a RECEIVE that finds nothing, three times over."""
    return schemas.RECEIVED.empty_table()


def _take_alone(work: Work, queue: Queue, *, groups: int, top: int, room: int) -> tuple[list[Row], int, int]:
    """The messages of the next groups that have one conversation each, the bytes of their bodies, and of how many groups they are."""
    with closing(queues.next_alone(work.connection, queue.queue_id)) as alone:
        members = alone if groups == _ALL else islice(alone, groups)
        found, is_all = queues.ready_in_turn(work.connection, members, most=top, bytes_max=room)
    rows: list[Row] = []
    size = 0
    for endpoint, messages in found:
        rows += _rows(work, queue, endpoint, messages)
        size += sum([len(body) for _, _, _, body in messages if body is not None])
    _take_off(work, queue, found, is_all=is_all)
    return rows, size, len(found)


def _take_off(work: Work, queue: Queue, found: Sequence[tuple[Endpoint, Sequence[Message]]], *, is_all: bool) -> None:
    """Takes messages off the queue; `is_all` is whether they are all of the last conversation, as they are of those before it."""
    if queue.is_retention_enabled:
        queues.retain(work.connection, [message.queuing_order for _, messages in found for message in messages])
        return
    whole = found if is_all else found[:-1]
    queues.remove_all_ready(work.connection, [endpoint.endpoint_id for endpoint, _ in whole])
    for _, messages in found[len(whole) :]:
        queues.remove(work.connection, [message.queuing_order for message in messages])


def _take_group(work: Work, queue: Queue, asked: Asked, *, top: int, room: int) -> tuple[list[Row], int]:
    """The messages of one group, and the bytes of their bodies; no further one where these are more than `room`."""
    rows: list[Row] = []
    size = 0
    for endpoint in _candidates(work, queue, asked):
        left = top - len(rows) if top != _ALL else _ALL
        messages, is_all = queues.ready(work.connection, endpoint.endpoint_id, most=left, bytes_max=room - size)
        if queue.is_retention_enabled:
            queues.retain(work.connection, [message.queuing_order for message in messages])
        elif is_all:
            queues.remove_ready(work.connection, endpoint.endpoint_id)
        else:
            queues.remove(work.connection, [message.queuing_order for message in messages])
        rows += _rows(work, queue, endpoint, messages)
        size += sum(len(message.message_body) for message in messages if message.message_body is not None)
        if len(rows) == top or size >= room:
            break
    return rows, size


def next_group(work: Work, queue_name: str) -> bytes | None:
    """The conversation group whose messages RECEIVE would take; None where nothing is there.

    Raises:
        BrokerError: There is no such queue (15151), or it is off (9617).
    """
    queue = _queue(work, queue_name)
    endpoint = queues.next_endpoint(work.connection, queue.queue_id)
    work.effects.received.append(Received(queue.queue_id, is_empty=endpoint is None, is_named=False))
    return None if endpoint is None else endpoint.conversation_group_id


def check_on(queue: Queue) -> None:
    """Refuses where nothing can be received from a queue.

    Raises:
        BrokerError: It is off (9617).
    """
    if not queue.is_receive_enabled:
        raise refused(9617, queue=queue.name)


def _queue(work: Work, name: str) -> Queue:
    queue = existing(work.objects.queues, queue_key(name), kind="queue")
    check_on(queue)
    return queue


def _candidates(work: Work, queue: Queue, asked: Asked) -> Iterator[Endpoint]:
    """The conversations to take from, one after the other."""
    conversation, group = asked.conversation, asked.group
    if conversation is not None:
        endpoint = endpoints.by_handle(work.connection, conversation)
        if endpoint is None or queue_of(work, endpoint) is not queue:
            raise refused(8426, kind="conversation", handle=uuid.UUID(bytes=conversation))
        yield endpoint
        return
    first = queues.next_endpoint(work.connection, queue.queue_id)
    if group is None:
        if first is None:
            return
        group = first.conversation_group_id
    if first is not None and first.conversation_group_id == group:
        # The first of its group too: by priority, then by how long it has waited.
        yield first
        if queues.is_alone(work.connection, group):
            return
    else:
        members = endpoints.in_group(work.connection, group)
        if not any(queue_of(work, member) is queue for member in members):
            raise refused(8426, kind="conversation group", handle=uuid.UUID(bytes=group))
        if len(members) == 1:  # nobody has to be compared with by how long its messages wait
            yield members[0]
            return
    yield from queues.members_ready(work.connection, group, queue.queue_id)


def _rows(work: Work, queue: Queue, endpoint: Endpoint, messages: list[Message]) -> list[Row]:
    objects = work.objects
    kinds = objects.message_types_by_id
    status = queues.RETAINED_RECEIVED if queue.is_retention_enabled else queues.READY
    service = objects.services_by_id[endpoint.service_id].name
    contract = objects.contracts_by_id[endpoint.service_contract_id].name
    _, handle, conversation_id, is_initiator, group, *_ = endpoint
    is_from_initiator = not is_initiator
    return [
        (
            conversation_id,
            is_from_initiator,
            number,
            body,
            None,
            handle,
            group,
            kinds[kind].name,
            service,
            contract,
            endpoint.priority,
            order,
            status,
            kinds[kind].validation,
        )
        for order, number, kind, body in messages
    ]
