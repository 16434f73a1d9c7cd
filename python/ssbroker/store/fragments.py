"""Fragments of incomplete and early messages from the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ssbroker.store.codes import ENDED_STATES
from ssbroker.store.sqlite import Connection


def add(connection: Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Inserts fragments, replacing existing fragments with the same numbers.

    Each row contains the endpoint id, the message and fragment numbers, the fragment count, the digests of message and
    fragment, the message type, the message id, whether the message ends the dialog, whether it is an error, the enqueue
    time, and the body.
    """
    connection.executemany(_ADD, rows)


def read(
    connection: Connection, side: tuple[bytes, bool], first: tuple[int, int], end: int, *, bytes_max: int
) -> list[tuple[Any, ...]]:
    """Reads the fragments of an endpoint in order, from `first` (message and fragment number) up to, but not including, message `end`.

    If the conversation has ended, there are none. Reading stops after `bytes_max` bytes of bodies. Each row contains
    the message number, the fragment number, the fragment count, the body, the digests of message and fragment, the
    message type, the message id, whether the message ends the dialog, and whether it is an error.
    """
    fragments: list[tuple[Any, ...]] = []
    for row in connection.execute(_READ, (*side, *first, end)):
        fragments.append(row)
        bytes_max -= len(row[_BODY_COLUMN])
        if bytes_max <= 0:
            break
    return fragments


def read_headers(connection: Connection, sides: Iterable[tuple[bytes, bool]]) -> Iterable[tuple[Any, ...]]:
    """Reads the stored fragments of endpoints without bodies; omits conversations that have ended.

    Each row contains the conversation, `is_initiator`, the message number, the fragment number, the fragment count, the
    message digest and the body length.
    """
    return connection.executemany(_HEADERS, sides)


def has_any(connection: Connection) -> bool:
    """Returns whether any fragments are stored."""
    return connection.execute("SELECT 1 FROM ssb_fragments LIMIT 1").fetchone() is not None


def remove_below(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Deletes fragments of processed messages; `numbers` are rows of endpoint id and the first message number to keep."""
    connection.executemany("DELETE FROM ssb_fragments WHERE endpoint_id = ? AND message_sequence_number < ?", numbers)


def remove(connection: Connection, endpoint_id: int, number: int) -> None:
    """Deletes the fragments of one message."""
    connection.execute(
        "DELETE FROM ssb_fragments WHERE endpoint_id = ? AND message_sequence_number = ?", (endpoint_id, number)
    )


_ADD: Final = """
    INSERT OR REPLACE INTO ssb_fragments (endpoint_id, message_sequence_number, fragment_number, fragment_count, message_digest,
        fragment_digest, message_type_name, message_id, is_end_of_dialog, is_conversation_error, enqueue_time, message_body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_BODY_COLUMN: Final = 3
# CROSS JOIN makes SQLite look up the endpoint first.
_FROM_SIDE: Final = f"""
    FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_fragments AS f USING (endpoint_id)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND e.state NOT IN {ENDED_STATES}"""
_HEADERS: Final = f"""
    SELECT e.conversation_id, e.is_initiator, message_sequence_number, fragment_number, fragment_count, message_digest,
        length(message_body) {_FROM_SIDE}"""
_READ: Final = f"""
    SELECT message_sequence_number, fragment_number, fragment_count, message_body, message_digest, fragment_digest, message_type_name,
        message_id, is_end_of_dialog, is_conversation_error {_FROM_SIDE}
    AND (message_sequence_number, fragment_number) >= (?, ?) AND message_sequence_number < ?
    ORDER BY message_sequence_number, fragment_number"""
