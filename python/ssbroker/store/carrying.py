"""What the exchange asks of a database file: which conversations wait to be sent, and which have an endpoint there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ssbroker.store.due import WAITING
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.sqlite import Connection


def waiting(connection: Connection) -> dict[int, tuple[bytes, int]]:
    """The endpoints that have messages in the transmission queue, by number: the handle of each, and the number of its next message.

    Args:
        connection: The database.

    Returns:
        Both, by endpoint.
    """
    return {endpoint_id: (handle, number) for endpoint_id, handle, number in connection.execute(_WAITING)}


def senders(connection: Connection, endpoint_ids: Iterable[int]) -> list[Endpoint]:
    """Endpoints by their numbers; those that are gone are left out.

    Args:
        connection: The database.
        endpoint_ids: The numbers.

    Returns:
        The endpoints.
    """
    rows = connection.executemany(_BY_ID, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return [Endpoint._make(row) for row in rows]


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
