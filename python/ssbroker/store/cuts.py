"""With how long fragments the messages of endpoints are cut (N42)."""

from __future__ import annotations

from typing import Final

from ssbroker.store.sqlite import Connection


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
