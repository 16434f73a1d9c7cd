"""The transmission queue of a database, and its transmission objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ssbroker.store.due_work import WAITING
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.sqlite import Connection


class TransmissionRow(NamedTuple):
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


class NewTransmissionRow(NamedTuple):
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
) -> tuple[list[TransmissionRow], bool]:
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
    found: list[TransmissionRow] = []
    size = 0
    cursor = connection.execute(_OF_ENDPOINT, (endpoint_id, is_inbound, -1))
    try:
        for row in cursor:
            if len(found) >= most or (found and size >= bytes_max):
                return found, False
            found.append(TransmissionRow._make(row))
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


def is_settled(connection: Connection, fragment_bytes: int) -> bool:
    """Whether all endpoints cut with a length, and the file says so."""
    return bool(connection.execute(_IS_SETTLED, (fragment_bytes,)).get)


def settle(connection: Connection, fragment_bytes: int) -> dict[tuple[bytes, bool], int]:
    """Notes with what length messages are cut from now on; endpoints with messages under way stay with theirs.

    Args:
        connection: The database.
        fragment_bytes: The length.

    Returns:
        The endpoints that stay with another one, by conversation and side.
    """
    connection.execute(_FORGET)
    connection.execute(_STAY)
    connection.execute("DELETE FROM ssb_other_lengths WHERE fragment_bytes = ?", (fragment_bytes,))
    connection.execute("UPDATE ssb_database SET fragment_bytes = ?", (fragment_bytes,))
    return {(conversation_id, bool(side)): length for conversation_id, side, length in connection.execute(_OTHERS)}


_IS_SETTLED: Final = """
    SELECT fragment_bytes IS ? AND NOT EXISTS (SELECT 1 FROM ssb_other_lengths) FROM ssb_database"""
_FORGET: Final = """
    DELETE FROM ssb_other_lengths AS o WHERE NOT EXISTS (
        SELECT 1 FROM ssb_transmission_queue AS t WHERE t.endpoint_id = o.endpoint_id AND t.is_inbound = 0)"""
_STAY: Final = """
    INSERT OR IGNORE INTO ssb_other_lengths
    SELECT DISTINCT endpoint_id, fragment_bytes
    FROM ssb_database CROSS JOIN ssb_transmission_queue JOIN ssb_conversation_endpoints USING (endpoint_id)
    WHERE is_inbound = 0 AND fragment_bytes IS NOT NULL"""
_OTHERS: Final = """
    SELECT conversation_id, is_initiator, fragment_bytes FROM ssb_other_lengths JOIN ssb_conversation_endpoints USING (endpoint_id)"""


def write(connection: Connection, rows: Iterable[tuple[int, bytes]]) -> None:
    """Writes objects over what is there; each the endpoint and the object."""
    connection.executemany("INSERT OR REPLACE INTO ssb_transmission_objects VALUES (?, ?)", rows)


def read(connection: Connection, endpoint_id: int) -> bytes | None:
    """The object of an endpoint; None where there is none."""
    row = connection.execute(
        "SELECT packed FROM ssb_transmission_objects WHERE endpoint_id = ?", (endpoint_id,)
    ).fetchone()
    return None if row is None else row[0]


def is_empty(connection: Connection) -> bool:
    """Whether there is none at all."""
    return connection.execute("SELECT 1 FROM ssb_transmission_objects LIMIT 1").fetchone() is None


def clear(connection: Connection) -> None:
    """Removes all: they are of use only to the process that wrote them."""
    connection.execute("DELETE FROM ssb_transmission_objects")


def waiting(connection: Connection) -> dict[int, tuple[bytes, int]]:
    """The endpoints that have messages in the transmission queue, by number: the handle of each, and the number of its next message.

    Args:
        connection: The database.

    Returns:
        Both, by endpoint.
    """
    return {endpoint_id: (handle, number) for endpoint_id, handle, number in connection.execute(_WAITING)}


def senders(connection: Connection, endpoint_ids: Iterable[int]) -> list[ConversationEndpoint]:
    """Endpoints by their numbers; those that are gone are left out.

    Args:
        connection: The database.
        endpoint_ids: The numbers.

    Returns:
        The endpoints.
    """
    rows = connection.executemany(_BY_ID, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return [ConversationEndpoint._make(row) for row in rows]


def known(connection: Connection, keys: Iterable[tuple[bytes, bool]]) -> list[tuple[bytes, bool]]:
    """Which of some endpoints are in the database.

    Args:
        connection: The database.
        keys: Conversations, and which side of them.

    Returns:
        Those that are.
    """
    return [(conversation, bool(side)) for conversation, side in connection.executemany(_KNOWN, keys)]


_WAITING: Final = f"""{WAITING}
    SELECT endpoint_id, conversation_handle, send_sequence FROM waiting JOIN ssb_conversation_endpoints USING (endpoint_id)"""  # noqa: S608
_BY_ID: Final = "SELECT * FROM ssb_conversation_endpoints WHERE endpoint_id = ?"
_KNOWN: Final = """
    SELECT conversation_id, is_initiator FROM ssb_conversation_endpoints WHERE conversation_id = ? AND is_initiator = ?"""
