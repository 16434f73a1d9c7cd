"""The messages of all queues of a database, and slices for parallel reads."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ssbroker.store import views
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.sqlite import Connection

RETAINED_RECEIVED: Final = 0
READY: Final = 1
EARLY: Final = 2
RETAINED_SENT: Final = 3

FIRST_OF_ALL: Final = 0
"""The precedence of DialogTimer (fact 118)."""
BEFORE_MESSAGES: Final = 1
"""That of Error."""
IN_ORDER: Final = 2
"""That of everything else."""


class QueueRow(NamedTuple):
    """What `add` writes."""

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


def add(connection: Connection, rows: Iterable[tuple[int, int, int, int, int, int, int, bytes | None]]) -> None:
    """Adds messages; rows as `Row` names them."""
    connection.executemany(_ADD, rows)


def next_endpoint(connection: Connection, queue_id: int) -> ConversationEndpoint | None:
    """Whose message is received next: of the highest priority the one that waits longest (B17)."""
    row = connection.execute(_NEXT_ENDPOINT, (queue_id,)).fetchone()
    return None if row is None else ConversationEndpoint._make(row)


def has_ready(connection: Connection, queue_id: int) -> bool:
    """Whether a message can be received."""
    row = connection.execute(
        "SELECT 1 FROM ssb_queued_messages WHERE queue_id = ? AND status = 1 LIMIT 1", (queue_id,)
    ).fetchone()
    return row is not None


def with_ready(connection: Connection) -> set[int]:
    """The queues of which a message can be received, found without looking at those that are empty."""
    return {queue_id for (queue_id,) in connection.execute(_WITH_READY)}


def ready(connection: Connection, endpoint_id: int, *, most: int, bytes_max: int) -> tuple[list[QueuedMessage], bool]:
    """The messages of a conversation that can be received, in order (fact 118), and whether these are all.

    Args:
        connection: The database.
        endpoint_id: The conversation's endpoint.
        most: How many at most; -1 is all.
        bytes_max: After how many bytes of bodies no further one is read; the first is read in any case.

    Returns:
        The messages, and whether there are no others.
    """
    found: list[QueuedMessage] = []
    for row in connection.execute(_READY, (endpoint_id, most)):
        found.append(QueuedMessage._make(row))
        bytes_max -= len(row[3]) if row[3] is not None else 0
        if bytes_max <= 0:
            return found, False
    return found, len(found) != most


def remove_early(connection: Connection, endpoint_id: int) -> None:
    """Removes the messages of a conversation that came before their turn, which will not come."""
    with _numbers_kept(connection):
        connection.execute("DELETE FROM ssb_queued_messages WHERE endpoint_id = ? AND status = 2", (endpoint_id,))


def remove_all(connection: Connection, endpoint_id: int) -> None:
    """Removes all messages of a conversation, what is retained too."""
    with _numbers_kept(connection):
        connection.execute("DELETE FROM ssb_queued_messages WHERE endpoint_id = ?", (endpoint_id,))


def last_number(connection: Connection) -> int:
    """The last number that a message of any queue has got, also where the message is gone since (U22)."""
    number = connection.execute("SELECT max(queuing_order) FROM ssb_queued_messages").get
    return 0 if number is None else int(number)


def early(connection: Connection, endpoint_id: int) -> list[tuple[int, int, int]]:
    """Number, queuing order and message type of what came before its turn, in order."""
    return [(number, order, kind) for number, order, kind in connection.execute(_EARLY, (endpoint_id,))]


def make_ready(connection: Connection, queuing_orders: Iterable[int]) -> None:
    """What came before its turn can be received now."""
    connection.executemany(
        "UPDATE ssb_queued_messages SET status = 1 WHERE queuing_order = ?", ((order,) for order in queuing_orders)
    )


@contextmanager
def _numbers_kept(connection: Connection) -> Iterator[None]:
    """Has no number be given again when messages are removed (U22)."""
    last = last_number(connection)
    yield
    connection.statements.keep_number(last)


_ADD: Final = """
    INSERT INTO ssb_queued_messages (queue_id, status, priority, endpoint_id, precedence, message_sequence_number, message_type_id,
        message_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
# CROSS JOIN: SQLite is to walk the queue in order, not the endpoints.
_NEXT_ENDPOINT: Final = """
    SELECT e.* FROM ssb_queued_messages AS m CROSS JOIN ssb_conversation_endpoints AS e USING (endpoint_id)
    WHERE m.queue_id = ? AND m.status = 1 ORDER BY m.priority DESC, m.queuing_order LIMIT 1"""
# A jump from one queue that holds anything to the next, however many messages each has.
_WITH_READY: Final = """
    WITH RECURSIVE held (queue_id) AS (
        SELECT (SELECT queue_id FROM ssb_queued_messages ORDER BY queue_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT later.queue_id FROM ssb_queued_messages AS later WHERE later.queue_id > held.queue_id ORDER BY later.queue_id LIMIT 1
        ) FROM held WHERE held.queue_id IS NOT NULL
    )
    SELECT queue_id FROM held
    WHERE EXISTS (SELECT 1 FROM ssb_queued_messages AS m WHERE m.queue_id = held.queue_id AND m.status = 1)"""
_READY: Final = """
    SELECT queuing_order, message_sequence_number, message_type_id, message_body FROM ssb_queued_messages
    WHERE endpoint_id = ? AND status = 1 ORDER BY precedence, message_sequence_number LIMIT ?"""
_EARLY: Final = """
    SELECT message_sequence_number, queuing_order, message_type_id FROM ssb_queued_messages
    WHERE endpoint_id = ? AND status = 2 ORDER BY message_sequence_number"""


class QueueSlice(NamedTuple):
    """A slice: what is numbered above `after`, up to `until`."""

    after: int
    until: int
    rows: int
    size: int
    """The bytes of its bodies."""


def cuts(
    connection: Connection, queue_id: int | None, *, after: int, until: int | None, rows_max: int, bytes_max: int
) -> Generator[QueueSlice]:
    """Cuts what waits in a queue, or in the transmission queue, into slices.

    Args:
        connection: The database.
        queue_id: The queue; None is the transmission queue.
        after: The number after which they begin.
        until: The last number; None is the last that there is.
        rows_max: The most rows of a slice.
        bytes_max: After how many bytes of bodies a slice ends.

    Yields:
        The slices in order.
    """
    rows = size = 0
    number = after
    for number, length in _lengths(connection, queue_id, after=after, until=_LAST_NUMBER if until is None else until):
        rows, size = rows + 1, size + (length or 0)
        if rows == rows_max or size >= bytes_max:
            yield QueueSlice(after, number, rows, size)
            after, rows, size = number, 0, 0
    if rows:
        yield QueueSlice(after, number, rows, size)


def rows(
    connection: Connection,
    queue_id: int | None,
    span: tuple[int, int] | None,
    *,
    names: Sequence[str],
    wanted: Sequence[str],
) -> list[tuple[Any, ...]]:
    """The rows of a slice; a body that is not wanted is not read.

    Args:
        connection: The database.
        queue_id: The queue; None is the transmission queue.
        span: The number after which the slice begins, and its last one; None is what is incomplete, and has no number.
        names: The names of all columns of the view, in order.
        wanted: The names of those to give.

    Returns:
        The rows, in order.
    """
    select, bindings = _select(queue_id, span)
    chosen = ", ".join(f'"{name}"' for name in wanted) or "NULL"
    view = ", ".join(f'"{name}"' for name in names)
    return connection.execute(f"WITH v ({view}) AS ({select}) SELECT {chosen} FROM v", bindings).fetchall()  # noqa: S608


def _lengths(
    connection: Connection, queue_id: int | None, *, after: int, until: int
) -> Iterator[tuple[int, int | None]]:
    """Number and length of each body, in order; no more of them are looked at than are taken."""
    if queue_id is None:
        return iter(connection.execute(_LENGTHS_WAITING, (after, until)))
    return heapq.merge(
        *(
            connection.execute(_LENGTHS_QUEUED, (queue_id, after, until, status, priority))
            for status in _STATUSES
            for priority in _PRIORITIES
        )
    )


def _select(queue_id: int | None, span: tuple[int, int] | None) -> tuple[str, tuple[object, ...]]:
    if queue_id is None:
        return (_PARKED, ()) if span is None else (_WAITING, span)
    return (views.QUEUE_INCOMPLETE, (queue_id,)) if span is None else (_QUEUED, (queue_id, *span))


_LAST_NUMBER: Final = 2**63 - 1
_STATUSES: Final = (RETAINED_RECEIVED, READY, EARLY, RETAINED_SENT)
_PRIORITIES: Final = range(1, 11)
# The index of a queue's messages has them by status and priority before their number.
_LENGTHS_QUEUED: Final = """
    SELECT queuing_order, length(message_body) FROM ssb_queued_messages
    WHERE queue_id = ?1 AND status = ?4 AND priority = ?5 AND queuing_order > ?2 AND queuing_order <= ?3 ORDER BY queuing_order"""
_LENGTHS_WAITING: Final = """
    SELECT transmission_id, length(message_body) FROM ssb_transmission_queue
    WHERE transmission_id > ?1 AND transmission_id <= ?2 ORDER BY transmission_id"""
_QUEUED: Final = f"""{views.QUEUED} AND q.status IN {_STATUSES} AND q.priority IN {tuple(_PRIORITIES)}
    AND queuing_order > ?2 AND queuing_order <= ?3 ORDER BY queuing_order"""
_WAITING: Final = f"""
    SELECT {views.TRANSMITTED} FROM ssb_transmission_queue t {views.TRANSMITTED_WITH}
    WHERE transmission_id > ?1 AND transmission_id <= ?2 ORDER BY transmission_id"""  # noqa: S608
_PARKED: Final = f"SELECT {views.TRANSMITTED} FROM ({views.INCOMPLETE_PARKED}) t {views.TRANSMITTED_WITH}"  # noqa: S608
