"""The rows of `sys.dm_broker_connections` (fact 158)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ssbroker.broker.network.connections.connection import Connection
from ssbroker.broker.network.connections.standing import State
from ssbroker.broker.network.connections.switchboard import Switchboard

_NEW: Final = (0, "INITIAL")
_NEGOTIATES: Final = (1, "WAIT LOGIN NEGOTIATE")
_ARBITRATES: Final = (11, "WAIT ARBITRATION")
_ONLINE: Final = (12, "ONLINE")
_ERROR: Final = (13, "ERROR")
_NONE: Final = (0, "NONE")
_AES: Final = (3, "AES")


def rows(board: Switchboard) -> Iterator[tuple[Any, ...]]:
    """A row for each connection, in the order in which they began; from any thread.

    Args:
        board: All connections.

    Returns:
        The values, in the order of the view's columns.
    """
    return (_row(connection) for connection in list(board.connections.values()))


def _row(connection: Connection) -> tuple[Any, ...]:
    counters, peer = connection.counters, connection.peer
    return (
        connection.connection_id.bytes,
        connection.connection_id.bytes,  # a connection has one socket for as long as it is there
        int(connection.state),
        connection.state.name,
        connection.connected_at,
        connection.logged_in_at,
        connection.line.channel.method,
        connection.line.channel.principal,
        None if peer is None else peer.name,
        connection.active_at,
        connection.is_accept,
        *_login(connection),
        None,
        *(_NONE if connection.line.channel.method is None else _AES),
        int(not connection.line.is_paused),
        connection.line.is_paused,
        int(connection.unsent_bytes > 0),
        connection.is_send_paused,
        counters.bytes_sent,
        counters.bytes_received,
        connection.line.sent_rows,
        counters.fragments_received,
        counters.sends,
        counters.receives,
        None if peer is None else peer.instance_id,
    )


def _login(connection: Connection) -> tuple[int, str]:
    if connection.state is State.LOGGED_IN:
        return _ONLINE
    if connection.state is State.CLOSED or connection.ending is not None:
        return _ERROR
    if connection.state is not State.CONNECTED:
        return _NEW
    return _ARBITRATES if connection.line.channel.is_open else _NEGOTIATES
