"""The messages in the queues of a database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from ssbroker._well_known import SYSTEM_MESSAGE_TYPES
from ssbroker.store import leases
from ssbroker.store.codes import EARLY, READY
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.sqlite import Connection


class NewQueueRow(NamedTuple):
    """A row to insert with `Connection.statements.insert_queued`."""

    queue_id: int
    status: int
    priority: int
    endpoint_id: int
    precedence: int
    message_sequence_number: int
    message_type_id: int
    message_body: bytes | None


class QueuedMessage(NamedTuple):
    """A message that can be received."""

    queuing_order: int
    message_sequence_number: int
    message_type_id: int
    message_body: bytes | None


def next_endpoint(connection: Connection, queue_id: int, *, now: int) -> ConversationEndpoint | None:
    """Returns the endpoint whose message is received next, by highest priority and then lowest queuing order; None if no message can be received."""
    row = connection.execute(_NEXT_ENDPOINT, (queue_id, now)).fetchone()
    return None if row is None else ConversationEndpoint._make(row)


def has_ready_messages(connection: Connection, queue_id: int, *, now: int) -> bool:
    """Returns whether a queue has a message that can be received: one that is ready, and whose conversation group is not leased."""
    return connection.execute(_HAS_READY, (queue_id, now)).fetchone() is not None


def has_ready_messages_of(
    connection: Connection, queue_id: int, *, now: int, conversation: bytes | None, group: bytes | None
) -> bool:
    """Returns whether a message of a conversation, by its handle, or of a conversation group can be received."""
    query, name = (_HAS_READY_OF_GROUP, group) if conversation is None else (_HAS_READY_OF_CONVERSATION, conversation)
    return connection.execute(query, (queue_id, now, name)).fetchone() is not None


def ready_queue_ids(connection: Connection, *, now: int) -> set[int]:
    """Returns the ids of queues with messages that can be received, without visiting empty queues."""
    return {queue_id for (queue_id,) in connection.execute(_WITH_READY, (None, now))}


def ready_messages(
    connection: Connection, endpoint_id: int, *, limit: int, bytes_max: int
) -> tuple[list[QueuedMessage], bool]:
    """Returns the messages of a conversation that can be received, in order, and whether these are all.

    Reading stops after `limit` messages (-1 for all) or after `bytes_max` bytes of bodies; the first message is always read.
    """
    messages: list[QueuedMessage] = []
    for row in connection.execute(_READY, (endpoint_id, limit)):
        messages.append(QueuedMessage._make(row))
        bytes_max -= len(row[3]) if row[3] is not None else 0
        if bytes_max <= 0:
            return messages, False
    return messages, len(messages) != limit


def remove_early_messages(connection: Connection, endpoint_id: int) -> None:
    """Deletes the early messages of a conversation."""
    with _without_reusing_numbers(connection):
        connection.execute("DELETE FROM ssb_queued_messages WHERE endpoint_id = ? AND status = ?", (endpoint_id, EARLY))


def remove_messages(connection: Connection, endpoint_id: int) -> None:
    """Deletes all messages of a conversation, including retained ones."""
    with _without_reusing_numbers(connection):
        connection.execute("DELETE FROM ssb_queued_messages WHERE endpoint_id = ?", (endpoint_id,))


def count_messages(connection: Connection, queue_id: int) -> int:
    """Returns the number of messages in a queue that can be received now or later."""
    return int(connection.execute(_COUNT, (queue_id, READY)).get)


def has_sent_messages(connection: Connection, endpoint_id: int) -> bool:
    """Returns whether a conversation has a message that can be received and is not a system message."""
    return connection.execute(_HAS_SENT, (endpoint_id, READY, *SYSTEM_MESSAGE_TYPES)).fetchone() is not None


def next_messages(
    connection: Connection, queue_id: int, *, after: int, until: int, limit: int
) -> list[tuple[int, int]]:
    """Returns the queuing order and endpoint id of the first messages of a queue, in any state, with orders above `after` and up to `until`."""
    return [(order, endpoint_id) for order, endpoint_id in connection.execute(_NEXT, (queue_id, after, until, limit))]


def last_queuing_order(connection: Connection) -> int:
    """Returns the highest queuing order ever assigned, even if its message has been deleted; 0 if none was assigned."""
    number = connection.execute("SELECT max(queuing_order) FROM ssb_queued_messages").get
    return 0 if number is None else int(number)


def early_messages(connection: Connection, endpoint_id: int) -> list[tuple[int, int, int]]:
    """Returns the sequence number, queuing order and message type id of the early messages of a conversation, in order."""
    return [(number, order, kind) for number, order, kind in connection.execute(_EARLY, (endpoint_id,))]


def make_ready(connection: Connection, queuing_orders: Iterable[int]) -> None:
    """Makes early messages receivable."""
    connection.executemany(
        "UPDATE ssb_queued_messages SET status = ? WHERE queuing_order = ?",
        ((READY, order) for order in queuing_orders),
    )


@contextmanager
def _without_reusing_numbers(connection: Connection) -> Iterator[None]:
    """Keeps queuing orders of deleted messages from being assigned again."""
    last = last_queuing_order(connection)
    yield
    connection.statements.reserve_queuing_order(last)


# A subquery for each message, so that SQLite reads only the first messages. Looking up the endpoint takes longer than
# determining that there are no leases.
_NOT_LEASED: Final = f"""(NOT EXISTS (SELECT 1 FROM ssb_group_leases) OR NOT EXISTS (
        SELECT 1 FROM ssb_conversation_endpoints AS leased JOIN ssb_group_leases USING (conversation_group_id)
        WHERE leased.endpoint_id = m.endpoint_id AND {leases.IS_HELD_SQL.format(now="?2")}))"""  # noqa: S608
_HAS_READY: Final = f"""
    SELECT 1 FROM ssb_queued_messages AS m
    WHERE queue_id = ?1 AND status = {READY} AND is_hidden = 0 AND {_NOT_LEASED} LIMIT 1"""  # noqa: S608
_HAS_READY_OF: Final = f"""
    SELECT 1 FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_queued_messages AS m USING (endpoint_id)
    WHERE {{0}} = ?3 AND m.queue_id = ?1 AND m.status = {READY} AND {_NOT_LEASED} LIMIT 1"""  # noqa: S608
_HAS_READY_OF_CONVERSATION: Final = _HAS_READY_OF.format("e.conversation_handle")
_HAS_READY_OF_GROUP: Final = _HAS_READY_OF.format("e.conversation_group_id")
_COUNT: Final = "SELECT count(*) FROM ssb_queued_messages WHERE queue_id = ? AND status = ?"
_HAS_SENT: Final = """
    SELECT 1 FROM ssb_queued_messages JOIN ssb_message_types USING (message_type_id)
    WHERE endpoint_id = ? AND status = ? AND name NOT IN (?, ?, ?) LIMIT 1"""
_NEXT: Final = """
    SELECT queuing_order, endpoint_id FROM ssb_queued_messages
    WHERE queue_id = ? AND queuing_order > ? AND queuing_order <= ? ORDER BY queuing_order LIMIT ?"""
# CROSS JOIN makes SQLite read the queue, in order, before the endpoints.
_NEXT_ENDPOINT: Final = f"""
    SELECT e.* FROM ssb_queued_messages AS m CROSS JOIN ssb_conversation_endpoints AS e USING (endpoint_id)
    WHERE m.queue_id = ?1 AND m.status = {READY} AND m.is_hidden = 0 AND {_NOT_LEASED} ORDER BY m.priority DESC, m.queuing_order LIMIT 1"""  # noqa: S608
# Jumps in the index from one queue with messages to the next, instead of reading every message.
_WITH_READY: Final = f"""
    WITH RECURSIVE nonempty (queue_id) AS (
        SELECT (SELECT queue_id FROM ssb_queued_messages ORDER BY queue_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT later.queue_id FROM ssb_queued_messages AS later WHERE later.queue_id > nonempty.queue_id ORDER BY later.queue_id LIMIT 1
        ) FROM nonempty WHERE nonempty.queue_id IS NOT NULL
    )
    SELECT queue_id FROM nonempty
    WHERE EXISTS (
        SELECT 1 FROM ssb_queued_messages AS m
        WHERE m.queue_id = nonempty.queue_id AND m.status = {READY} AND m.is_hidden = 0 AND {_NOT_LEASED}
    )"""  # noqa: S608
_READY: Final = f"""
    SELECT queuing_order, message_sequence_number, message_type_id, message_body FROM ssb_queued_messages
    WHERE endpoint_id = ? AND status = {READY} ORDER BY precedence, message_sequence_number LIMIT ?"""  # noqa: S608
_EARLY: Final = f"""
    SELECT message_sequence_number, queuing_order, message_type_id FROM ssb_queued_messages
    WHERE endpoint_id = ? AND status = {EARLY} ORDER BY message_sequence_number"""  # noqa: S608


def count_rollback(connection: Connection, queue_id: int) -> int:
    """Counts a rollback of a transaction that received from a queue; returns the new count, 0 if the queue no longer exists."""
    connection.execute("UPDATE ssb_queues SET rollbacks = rollbacks + 1 WHERE queue_id = ?", (queue_id,))
    row = connection.execute("SELECT rollbacks FROM ssb_queues WHERE queue_id = ?", (queue_id,)).fetchone()
    return 0 if row is None else row[0]


def reset_rollbacks(connection: Connection, queue_ids: Iterable[int]) -> None:
    """Resets the rollback counts of queues; writes nothing if they are zero."""
    for queue_id in queue_ids:
        connection.statements.reset_rollback_count(queue_id)
