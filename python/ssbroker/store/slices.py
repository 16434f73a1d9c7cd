"""Queues and the transmission queue in slices, which several processes can read at once."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ssbroker.store import queues, views
from ssbroker.store.sqlite import Connection


class Cut(NamedTuple):
    """A slice: what is numbered above `after`, up to `until`."""

    after: int
    until: int
    rows: int
    size: int
    """The bytes of its bodies."""


def cuts(
    connection: Connection, queue_id: int | None, *, after: int, until: int | None, rows_max: int, bytes_max: int
) -> Generator[Cut]:
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
            yield Cut(after, number, rows, size)
            after, rows, size = number, 0, 0
    if rows:
        yield Cut(after, number, rows, size)


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
_STATUSES: Final = (queues.RETAINED_RECEIVED, queues.READY, queues.EARLY, queues.RETAINED_SENT)
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
