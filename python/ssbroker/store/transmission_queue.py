"""The transmission queue of a database, and its transmission objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ssbroker.store.conversation_endpoints import QUEUE_OF, WAITING_ENDPOINTS
from ssbroker.store.sqlite import Connection


class TransmissionRow(NamedTuple):
    """A row of `ssb_transmission_queue`, in the order of its columns."""

    transmission_id: int
    endpoint_id: int
    """The sender's endpoint; for an inbound message, the receiver's."""
    is_inbound: int
    """Whether the message arrived while its queue was disabled."""
    message_sequence_number: int
    message_type_name: str
    is_conversation_error: int
    is_end_of_dialog: int
    enqueue_time: int
    message_body: bytes | None


class NewTransmissionRow(NamedTuple):
    """A row to insert with `Connection.statements.insert_transmissions`."""

    endpoint_id: int
    is_inbound: bool
    message_sequence_number: int
    message_type_name: str
    is_conversation_error: bool
    is_end_of_dialog: bool
    enqueue_time: int
    message_body: bytes | None


def has_outgoing(connection: Connection, endpoint_id: int) -> bool:
    """Returns whether messages that an endpoint sent wait in the transmission queue."""
    row = connection.execute(
        "SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0 LIMIT 1", (endpoint_id,)
    ).fetchone()
    return row is not None


def first_waiting_sequence(connection: Connection, endpoint_id: int) -> int | None:
    """Returns the sequence number of the first waiting message that an endpoint sent; None if there is none."""
    row = connection.execute(_FIRST, (endpoint_id,)).fetchone()
    return None if row is None else int(row[0])


def first_messages(
    connection: Connection, endpoint_id: int, *, limit: int, bytes_max: int, is_inbound: bool = False
) -> tuple[list[TransmissionRow], bool]:
    """Returns the first waiting messages of an endpoint, in order, and whether these are all.

    Args:
        connection: The database.
        endpoint_id: The endpoint.
        limit: Maximum number of messages.
        bytes_max: Number of body bytes after which reading stops; the first message is always read.
        is_inbound: True for messages that wait until the endpoint's queue is enabled; False for messages that it sent.
    """
    messages: list[TransmissionRow] = []
    size = 0
    cursor = connection.execute(_OF_ENDPOINT, (endpoint_id, is_inbound))
    try:
        for row in cursor:
            if len(messages) >= limit or (messages and size >= bytes_max):
                return messages, False
            messages.append(TransmissionRow._make(row))
            size += len(messages[-1].message_body or b"")
    finally:
        cursor.close()
    return messages, True


def has_parked(connection: Connection, endpoint_id: int) -> bool:
    """Returns whether messages for an endpoint wait until its queue is enabled."""
    row = connection.execute(
        "SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 1 LIMIT 1", (endpoint_id,)
    ).fetchone()
    return row is not None


def early_messages(connection: Connection, endpoint_id: int, number: int) -> list[tuple[int, str]]:
    """Returns the sequence number and type of messages that wait until an endpoint's queue is enabled, from sequence number `number` on."""
    rows = connection.execute(_EARLY_MESSAGES, (endpoint_id, number))
    return [(row[0], row[1]) for row in rows]


def transmission_id_of(connection: Connection, side: tuple[bytes, bool], number: int) -> int | None:
    """Returns the `transmission_id` of a message that an endpoint sent; None if it is not in the transmission queue."""
    row = connection.execute(_TRANSMISSION_ID, (*side, number)).fetchone()
    return None if row is None else int(row[0])


def read_body_ranges(connection: Connection, transmission_id: int, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
    """Reads byte ranges of the body of a message in the transmission queue; ranges beyond the end are truncated.

    All ranges use one blob handle, because SQLite finds each range by reading from the start of the body.
    """
    parts: list[bytes] = []
    with connection.blob_open("main", "ssb_transmission_queue", "message_body", transmission_id, False) as blob:
        for start, end in ranges:
            blob.seek(min(start, blob.length()))
            parts.append(blob.read(end - start))
    return parts


def error_sequence_numbers(
    connection: Connection, sides: Iterable[tuple[bytes, bool]]
) -> dict[tuple[bytes, bool], int]:
    """Returns the sequence numbers of the error messages that end conversations and wait to be sent, by conversation and `is_initiator`."""
    rows = connection.executemany(_ERROR_NUMBERS, sides)
    return {(conversation_id, bool(side)): number for conversation_id, side, number in rows}


def waiting_receivers(connection: Connection, queue_id: int) -> list[int]:
    """Returns the ids of endpoints with messages that wait until a queue is enabled, the longest waiting first."""
    return [row[0] for row in connection.execute(_RECEIVERS, (queue_id,))]


def remove_below(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Deletes acknowledged messages that endpoints sent; `numbers` are rows of endpoint id and the first sequence number to keep."""
    connection.executemany(_REMOVE_BELOW, numbers)


def remove(connection: Connection, transmission_ids: Iterable[int]) -> None:
    """Deletes messages by transmission id."""
    connection.executemany(
        "DELETE FROM ssb_transmission_queue WHERE transmission_id = ?", ((each,) for each in transmission_ids)
    )


def remove_sent(connection: Connection, endpoint_id: int) -> None:
    """Deletes all messages that an endpoint sent."""
    connection.execute("DELETE FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0", (endpoint_id,))


def remove_parked(connection: Connection, endpoint_id: int) -> None:
    """Deletes all messages that wait until an endpoint's queue is enabled."""
    connection.execute("DELETE FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 1", (endpoint_id,))


_REMOVE_BELOW: Final = """
    DELETE FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0 AND message_sequence_number < ?"""
_RECEIVERS: Final = f"""
    SELECT endpoint_id FROM ssb_transmission_queue
    JOIN ssb_conversation_endpoints AS e USING (endpoint_id) JOIN ssb_services AS s USING (service_id)
    WHERE is_inbound = 1 AND {QUEUE_OF} = ? GROUP BY endpoint_id ORDER BY min(transmission_id)"""  # noqa: S608
_EARLY_MESSAGES: Final = """
    SELECT message_sequence_number, message_type_name FROM ssb_transmission_queue
    WHERE endpoint_id = ? AND is_inbound = 1 AND message_sequence_number >= ?"""
# CROSS JOIN makes SQLite look up the endpoint first.
_TRANSMISSION_ID: Final = """
    SELECT t.transmission_id FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t USING (endpoint_id)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND t.is_inbound = 0 AND t.message_sequence_number = ?"""
_ERROR_NUMBERS: Final = """
    SELECT e.conversation_id, e.is_initiator, t.message_sequence_number
    FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t ON t.transmission_id = (
        SELECT transmission_id FROM ssb_transmission_queue WHERE endpoint_id = e.endpoint_id AND is_inbound = 0
        ORDER BY message_sequence_number DESC LIMIT 1)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND t.is_conversation_error = 1"""
_FIRST: Final = """
    SELECT message_sequence_number FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = 0
    ORDER BY message_sequence_number LIMIT 1"""
_OF_ENDPOINT: Final = """
    SELECT * FROM ssb_transmission_queue WHERE endpoint_id = ? AND is_inbound = ? ORDER BY message_sequence_number"""


def is_fragment_size_uniform(connection: Connection, fragment_bytes: int) -> bool:
    """Returns whether the file records this fragment size and no endpoint uses a different size."""
    return bool(connection.execute(_IS_UNIFORM, (fragment_bytes,)).get)


def set_fragment_size(connection: Connection, fragment_bytes: int) -> dict[tuple[bytes, bool], int]:
    """Records the fragment size; endpoints with messages in transit keep their previous size.

    Returns:
        The sizes of the endpoints that keep a different size, by conversation and `is_initiator`.
    """
    connection.execute(_DELETE_UNUSED_SIZES)
    connection.execute(_KEEP_SIZES)
    connection.execute("DELETE FROM ssb_other_lengths WHERE fragment_bytes = ?", (fragment_bytes,))
    connection.execute("UPDATE ssb_database SET fragment_bytes = ?", (fragment_bytes,))
    return {(conversation_id, bool(side)): length for conversation_id, side, length in connection.execute(_OTHER_SIZES)}


_IS_UNIFORM: Final = """
    SELECT fragment_bytes IS ? AND NOT EXISTS (SELECT 1 FROM ssb_other_lengths) FROM ssb_database"""
_DELETE_UNUSED_SIZES: Final = """
    DELETE FROM ssb_other_lengths AS o WHERE NOT EXISTS (
        SELECT 1 FROM ssb_transmission_queue AS t WHERE t.endpoint_id = o.endpoint_id AND t.is_inbound = 0)"""
_KEEP_SIZES: Final = """
    INSERT OR IGNORE INTO ssb_other_lengths
    SELECT DISTINCT endpoint_id, fragment_bytes
    FROM ssb_database CROSS JOIN ssb_transmission_queue JOIN ssb_conversation_endpoints USING (endpoint_id)
    WHERE is_inbound = 0 AND fragment_bytes IS NOT NULL"""
_OTHER_SIZES: Final = """
    SELECT conversation_id, is_initiator, fragment_bytes FROM ssb_other_lengths JOIN ssb_conversation_endpoints USING (endpoint_id)"""


def save_transmissions(connection: Connection, rows: Iterable[tuple[int, bytes]]) -> None:
    """Writes transmissions that the engine does not currently need to the work table; `rows` contain endpoint id and packed transmission."""
    connection.executemany("INSERT OR REPLACE INTO ssb_transmission_objects VALUES (?, ?)", rows)


def load_transmission(connection: Connection, endpoint_id: int) -> bytes | None:
    """Returns the transmission of an endpoint in the work table; None if there is none."""
    row = connection.execute(
        "SELECT packed FROM ssb_transmission_objects WHERE endpoint_id = ?", (endpoint_id,)
    ).fetchone()
    return None if row is None else row[0]


def has_work_table_rows(connection: Connection) -> bool:
    """Returns whether the work table has rows."""
    return connection.execute("SELECT 1 FROM ssb_transmission_objects LIMIT 1").fetchone() is not None


def clear_work_table(connection: Connection) -> None:
    """Empties the work table; only the process that wrote its rows can use them."""
    connection.execute("DELETE FROM ssb_transmission_objects")


def waiting_endpoints(connection: Connection) -> dict[int, tuple[bytes, int]]:
    """Returns the handle and the send sequence number of endpoints with waiting messages, by endpoint id."""
    return {endpoint_id: (handle, number) for endpoint_id, handle, number in connection.execute(_WAITING)}


_WAITING: Final = f"""{WAITING_ENDPOINTS}
    SELECT endpoint_id, conversation_handle, send_sequence FROM waiting JOIN ssb_conversation_endpoints USING (endpoint_id)"""  # noqa: S608
