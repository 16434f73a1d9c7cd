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


def of(connection: Connection, endpoint_id: int) -> list[tuple[Any, ...]]:
    """The fragments that are kept for an endpoint, in order.

    Args:
        connection: The database.
        endpoint_id: The endpoint.

    Returns:
        Message, fragment, count, body, both digests, type, message id, whether it ends the dialog, whether it is an error.
    """
    return connection.execute(_OF, (endpoint_id,)).fetchall()


def amounts(connection: Connection, sides: Iterable[tuple[bytes, bool]]) -> dict[tuple[bytes, bool], tuple[int, int]]:
    """How many fragments are kept for endpoints, and how many bytes they have; of those that are over none counts.

    Args:
        connection: The database.
        sides: The conversations, and whether the initiator's side is meant.

    Returns:
        The numbers, of the endpoints that have any.
    """
    rows = connection.executemany(_AMOUNT, sides)
    return {(conversation, bool(side)): (count, size) for conversation, side, count, size in rows}


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
_AMOUNT: Final = f"""
    SELECT e.conversation_id, e.is_initiator, count(*), sum(length(message_body))
    FROM ssb_conversation_endpoints e JOIN ssb_fragments USING (endpoint_id)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND e.state NOT IN {OVER} GROUP BY endpoint_id"""  # noqa: S608  # words of this library
_OF: Final = """
    SELECT message_sequence_number, fragment_number, fragment_count, message_body, message_digest, fragment_digest, message_type_name,
        message_id, is_end_of_dialog, is_conversation_error
    FROM ssb_fragments WHERE endpoint_id = ? ORDER BY message_sequence_number, fragment_number"""
