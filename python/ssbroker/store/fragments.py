"""What came over the network and is incomplete or early (P14)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ssbroker.store.sqlite import Connection

OVER: Final = ("ER", "CD")
"""The states of endpoints of which nothing becomes whole any more."""


def add(connection: Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Keeps fragments; what is there already goes.

    Args:
        connection: The database, with its write lock.
        rows: Endpoint, then message, fragment, count, both digests, type, message id, whether it ends the dialog, whether it is an
            error, moment, body.
    """
    connection.executemany(_ADD, rows)


def of(
    connection: Connection, side: tuple[bytes, bool], first: tuple[int, int], end: int, *, most_bytes: int
) -> list[tuple[Any, ...]]:
    """Fragments that are kept for an endpoint, in order; of one that is over none.

    Args:
        connection: The database.
        side: The conversation, and whether the initiator's side is meant.
        first: From which message and fragment on.
        end: Before which message.
        most_bytes: After how many bytes of bodies no more is read.

    Returns:
        Message, fragment, count, body, both digests, type, message id, whether it ends the dialog, whether it is an error.
    """
    found: list[tuple[Any, ...]] = []
    for row in connection.execute(_OF, (*side, *first, end)):
        found.append(row)
        most_bytes -= len(row[_BODY])
        if most_bytes <= 0:
            break
    return found


def kept(connection: Connection, sides: Iterable[tuple[bytes, bool]]) -> Iterable[tuple[Any, ...]]:
    """What is kept for endpoints, without the bodies; of those that are over none counts.

    Args:
        connection: The database.
        sides: The conversations, and whether the initiator's side is meant.

    Returns:
        Conversation, side, message, fragment, count, digest of the whole, length of the body.
    """
    return connection.executemany(_KEPT, sides)


def are_kept(connection: Connection) -> bool:
    """Whether there are fragments of anything."""
    return connection.execute("SELECT 1 FROM ssb_fragments LIMIT 1").fetchone() is not None


def remove_below(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Removes fragments of messages that have served; each the endpoint and the first number that stays."""
    connection.executemany("DELETE FROM ssb_fragments WHERE endpoint_id = ? AND message_sequence_number < ?", numbers)


def remove(connection: Connection, endpoint_id: int, number: int) -> None:
    """Removes the fragments of one message."""
    connection.execute(
        "DELETE FROM ssb_fragments WHERE endpoint_id = ? AND message_sequence_number = ?", (endpoint_id, number)
    )


_ADD: Final = """
    INSERT OR REPLACE INTO ssb_fragments (endpoint_id, message_sequence_number, fragment_number, fragment_count, message_digest,
        fragment_digest, message_type_name, message_id, is_end_of_dialog, is_conversation_error, enqueue_time, message_body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_BODY: Final = 3
# CROSS JOIN: SQLite is to find the endpoint first.
_OF_SIDE: Final = f"""
    FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_fragments AS f USING (endpoint_id)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND e.state NOT IN {OVER}"""  # words of this library
_KEPT: Final = f"""
    SELECT e.conversation_id, e.is_initiator, message_sequence_number, fragment_number, fragment_count, message_digest,
        length(message_body) {_OF_SIDE}"""
_OF: Final = f"""
    SELECT message_sequence_number, fragment_number, fragment_count, message_body, message_digest, fragment_digest, message_type_name,
        message_id, is_end_of_dialog, is_conversation_error {_OF_SIDE}
    AND (message_sequence_number, fragment_number) >= (?, ?) AND message_sequence_number < ?
    ORDER BY message_sequence_number, fragment_number"""
