"""Endpoints whose far side is reached over the network, and what they send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ssbroker.store.endpoints import Endpoint
from ssbroker.store.sqlite import Connection


def find(connection: Connection, sides: Iterable[tuple[bytes, bool]]) -> dict[tuple[bytes, bool], Endpoint]:
    """Endpoints by conversation and side; what is not there is left out.

    Args:
        connection: The database.
        sides: The conversations, and whether the initiator's side is meant.

    Returns:
        Those that are there.
    """
    rows = (Endpoint._make(row) for row in connection.executemany(_FIND, sides))
    return {(row.conversation_id, bool(row.is_initiator)): row for row in rows}


def contracts_of(
    connection: Connection, sides: Iterable[tuple[bytes, bool]]
) -> dict[tuple[bytes, bool], tuple[int, str]]:
    """Contract and state of endpoints by conversation and side; what is not there is left out.

    Args:
        connection: The database.
        sides: As `find` has them.

    Returns:
        The contract's id and the state of each.
    """
    rows = connection.executemany(_CONTRACT, sides)
    return {(conversation_id, bool(side)): (contract, state) for conversation_id, side, contract, state in rows}


def undisturbed(connection: Connection, endpoint_ids: Iterable[int]) -> set[int]:
    """Which endpoints have nothing that waits beside their queue, or has come before its turn.

    Args:
        connection: The database.
        endpoint_ids: The endpoints.

    Returns:
        Those that have nothing of the kind.
    """
    rows = connection.executemany(_UNDISTURBED, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return {endpoint_id for (endpoint_id,) in rows}


def sides_of(connection: Connection, endpoint_ids: Iterable[int]) -> dict[int, tuple[bytes, bool]]:
    """Conversation and side of endpoints; those that are gone are left out.

    Args:
        connection: The database.
        endpoint_ids: The endpoints.

    Returns:
        Both by the endpoint's id.
    """
    rows = connection.executemany(_SIDE, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return {endpoint_id: (conversation_id, bool(side)) for endpoint_id, conversation_id, side in rows}


def place_of(connection: Connection, side: tuple[bytes, bool], number: int) -> int | None:
    """Where a message that an endpoint sent stands in the transmission queue (`transmission_id`); None where it is not there.

    Args:
        connection: The database.
        side: The conversation, and whether its initiator is meant.
        number: The message.

    Returns:
        The number of its row.
    """
    row = connection.execute(_PLACE, (*side, number)).fetchone()
    return None if row is None else int(row[0])


def parts_of(connection: Connection, transmission_id: int, spans: Iterable[tuple[int, int]]) -> list[bytes]:
    """Parts of the body of a message in the transmission queue. SQLite walks to each from the body's beginning, once for all of them.

    Args:
        connection: The database, within the transaction in which the message was found.
        transmission_id: Its row.
        spans: From which byte to before which; what is beyond the end is left out.

    Returns:
        The bytes of each.
    """
    found: list[bytes] = []
    with connection.blob_open("main", "ssb_transmission_queue", "message_body", transmission_id, False) as blob:
        for begin, end in spans:
            blob.seek(min(begin, blob.length()))
            found.append(blob.read(end - begin))
    return found


def ended(connection: Connection, sides: Iterable[tuple[bytes, bool]]) -> dict[tuple[bytes, bool], int]:
    """The numbers of the errors with which applications have ended conversations, as far as they wait.

    Args:
        connection: The database.
        sides: The conversations, and whether their initiator is meant.

    Returns:
        The number by conversation and side.
    """
    rows = connection.executemany(_ENDED, sides)
    return {(conversation_id, bool(side)): number for conversation_id, side, number in rows}


def note(connection: Connection, endpoint: Endpoint) -> None:
    """Writes who the far side of an endpoint is, now that it has been heard of over the network."""
    known = (endpoint.far_peer, endpoint.session_key, endpoint.far_session_key, endpoint.far_certificate)
    connection.execute(_NOTE, (*known, endpoint.endpoint_id))


def raise_taken(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Writes the number of the next message to be taken, where it is higher than what stands there; each the number and the endpoint."""
    connection.executemany(_RAISE_TAKEN, numbers)


_FIND: Final = "SELECT * FROM ssb_conversation_endpoints WHERE conversation_id = ? AND is_initiator = ?"
_CONTRACT: Final = """
    SELECT conversation_id, is_initiator, service_contract_id, state FROM ssb_conversation_endpoints
    WHERE conversation_id = ? AND is_initiator = ?"""
_UNDISTURBED: Final = """
    SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = ?1 AND is_inbound = 1)
    AND NOT EXISTS (SELECT 1 FROM ssb_queued_messages WHERE endpoint_id = ?1 AND status = 2)"""
_SIDE: Final = """
    SELECT endpoint_id, conversation_id, is_initiator FROM ssb_conversation_endpoints WHERE endpoint_id = ?"""
# CROSS JOIN: SQLite is to find the endpoint first.
_PLACE: Final = """
    SELECT t.transmission_id FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t USING (endpoint_id)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND t.is_inbound = 0 AND t.message_sequence_number = ?"""
_ENDED: Final = """
    SELECT e.conversation_id, e.is_initiator, t.message_sequence_number
    FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t ON t.transmission_id = (
        SELECT transmission_id FROM ssb_transmission_queue WHERE endpoint_id = e.endpoint_id AND is_inbound = 0
        ORDER BY message_sequence_number DESC LIMIT 1)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND t.is_conversation_error = 1"""
_NOTE: Final = """
    UPDATE ssb_conversation_endpoints SET is_remote = 1, far_peer = ?, session_key = ?, far_session_key = ?, far_certificate = ?
    WHERE endpoint_id = ?"""
_RAISE_TAKEN: Final = """
    UPDATE ssb_conversation_endpoints SET receive_sequence = ?1 WHERE endpoint_id = ?2 AND receive_sequence < ?1"""
