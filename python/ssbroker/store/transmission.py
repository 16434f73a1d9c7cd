"""The transmission queue of a database: what its conversations sent and nobody has taken, and what waits for a queue that is off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ssbroker.store.sqlite import Connection


class Waiting(NamedTuple):
    """A row of `ssb_transmission_queue`, in the order of its columns."""

    transmission_id: int
    endpoint_id: int
    """The sender's endpoint; of what is inbound, the receiver's."""
    is_inbound: int
    """Whether it has arrived while its queue was off (P34)."""
    message_sequence_number: int
    message_type_name: str
    is_conversation_error: int
    is_end_of_dialog: int
    enqueue_time: int
    message_body: bytes | None


class Row(NamedTuple):
    """What `add` writes."""

    endpoint_id: int
    is_inbound: bool
    message_sequence_number: int
    message_type_name: str
    is_conversation_error: bool
    is_end_of_dialog: bool
    enqueue_time: int
    message_body: bytes | None


def add(connection: Connection, rows: Iterable[tuple[int, bool, int, str, bool, bool, int, bytes | None]]) -> None:
    """Adds messages at the end; rows as `Row` names them."""
    connection.executemany(_ADD, rows)


def is_waiting(connection: Connection, endpoint_id: int) -> bool:
    """Whether messages that an endpoint sent wait here."""
    row = connection.execute(
        "SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0 LIMIT 1", (endpoint_id,)
    ).fetchone()
    return row is not None


def first_waiting(connection: Connection, endpoint_id: int) -> int | None:
    """The number of the first message that an endpoint sent and that waits here; None where none does."""
    row = connection.execute(_FIRST, (endpoint_id,)).fetchone()
    return None if row is None else int(row[0])


def head_of(
    connection: Connection, endpoint_id: int, *, most: int, bytes_max: int, is_inbound: bool = False
) -> tuple[list[Waiting], bool]:
    """The first messages that an endpoint sent and that wait, or that wait for its queue to be on, and whether these are all.

    Args:
        connection: The database.
        endpoint_id: The endpoint.
        most: How many at most.
        bytes_max: After how many bytes of bodies no further one is read; the first is read in any case.
        is_inbound: Whether those are meant that wait for its queue.

    Returns:
        The messages in order, and whether no more wait.
    """
    found: list[Waiting] = []
    size = 0
    cursor = connection.execute(_OF_ENDPOINT, (endpoint_id, is_inbound, -1))
    try:
        for row in cursor:
            if len(found) >= most or (found and size >= bytes_max):
                return found, False
            found.append(Waiting._make(row))
            size += len(found[-1].message_body or b"")
    finally:
        cursor.close()
    return found, True


def has_arrived(connection: Connection, endpoint_id: int) -> bool:
    """Whether messages for an endpoint wait for its queue to be on."""
    row = connection.execute(
        "SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 1 LIMIT 1", (endpoint_id,)
    ).fetchone()
    return row is not None


def early_for(connection: Connection, endpoint_id: int, number: int) -> list[tuple[int, str]]:
    """Number and type of what waits for an endpoint's queue and has come before its turn, which is that of `number`."""
    rows = connection.execute(_EARLY, (endpoint_id, number))
    return [(row[0], row[1]) for row in rows]


def receivers(connection: Connection, queue_id: int) -> list[int]:
    """The endpoints with messages that wait for a queue to be on, who waits longest first."""
    return [row[0] for row in connection.execute(_RECEIVERS, (queue_id,))]


def remove_below(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Takes off what endpoints sent with a lower number: it has been taken (P16); each the endpoint and the number."""
    connection.executemany(_REMOVE_BELOW, numbers)


def remove(connection: Connection, transmission_ids: Iterable[int]) -> None:
    """Takes off messages by their own numbers."""
    connection.executemany(
        "DELETE FROM ssb_transmission_queue WHERE transmission_id = ?", ((each,) for each in transmission_ids)
    )


def remove_sent(connection: Connection, endpoint_id: int) -> None:
    """Takes off all that an endpoint sent."""
    connection.execute("DELETE FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0", (endpoint_id,))


def remove_arrived(connection: Connection, endpoint_id: int) -> None:
    """Takes off all that waits for an endpoint's queue."""
    connection.execute("DELETE FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 1", (endpoint_id,))


_ADD: Final = """
    INSERT INTO ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error,
        is_end_of_dialog, enqueue_time, message_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_REMOVE_BELOW: Final = """
    DELETE FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0 AND message_sequence_number < ?"""
_RECEIVERS: Final = """
    SELECT endpoint_id FROM ssb_transmission_queue
    JOIN ssb_conversation_endpoints USING (endpoint_id) JOIN ssb_services USING (service_id)
    WHERE is_inbound = 1 AND queue_id = ? GROUP BY endpoint_id ORDER BY min(transmission_id)"""
_EARLY: Final = """
    SELECT message_sequence_number, message_type_name FROM ssb_transmission_queue
    WHERE endpoint_id = ? AND is_inbound = 1 AND message_sequence_number >= ?"""
_FIRST: Final = """
    SELECT message_sequence_number FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0
    ORDER BY message_sequence_number LIMIT 1"""
_OF_ENDPOINT: Final = """
    SELECT * FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = ? ORDER BY message_sequence_number LIMIT ?"""
