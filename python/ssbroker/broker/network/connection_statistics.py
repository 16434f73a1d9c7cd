"""The rows of `sys.dm_broker_connections`, and the traffic of all connections."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ssbroker.broker.network.connection import ConnectionState, PeerConnection


class TrafficCounters:
    """Counts traffic by column name of `sys.dm_broker_connections`; totals never decrease, in any thread."""

    def __init__(self) -> None:
        self._lock: Final = threading.RLock()
        self._ended: Final[Counter[str]] = Counter()

    def remove(self, connections: dict[uuid.UUID, PeerConnection], connection: PeerConnection) -> None:
        """Removes a closed connection and keeps its traffic."""
        with self._lock:
            if connections.pop(connection.connection_id, None) is not None:
                self._ended.update(_traffic_of(connection))

    def totals(self, connections: Mapping[uuid.UUID, PeerConnection]) -> Mapping[str, int]:
        """Returns the traffic of open and closed connections."""
        with self._lock:
            totals = Counter(self._ended)
            for connection in list(connections.values()):
                totals.update(_traffic_of(connection))
        return totals


def _traffic_of(connection: PeerConnection) -> dict[str, int]:
    """Returns the traffic by column name, in the order of the columns."""
    counters = connection.counters
    return {
        "total_bytes_sent": counters.bytes_sent,
        "total_bytes_received": counters.bytes_received,
        "total_fragments_sent": connection.link.sent_rows,
        "total_fragments_received": counters.fragments_received,
        "total_sends": counters.sends,
        "total_receives": counters.receives,
    }


_NEW: Final = (0, "INITIAL")
_WAIT_LOGIN: Final = (1, "WAIT LOGIN NEGOTIATE")
_WAIT_ARBITRATION: Final = (11, "WAIT ARBITRATION")
_ONLINE: Final = (12, "ONLINE")
_ERROR: Final = (13, "ERROR")
_NONE: Final = (0, "NONE")
_AES: Final = (3, "AES")


def rows(connections: Mapping[uuid.UUID, PeerConnection]) -> Iterator[tuple[Any, ...]]:
    """Returns the rows of `sys.dm_broker_connections`, oldest connection first; may be called from any thread."""
    return (_row(connection) for connection in list(connections.values()))


def _row(connection: PeerConnection) -> tuple[Any, ...]:
    peer = connection.peer
    return (
        connection.connection_id.bytes,
        connection.connection_id.bytes,  # a connection has one socket
        int(connection.state),
        connection.state.name,
        connection.connected_at,
        connection.logged_in_at,
        connection.link.channel.method,
        connection.link.channel.principal,
        None if peer is None else peer.name,
        connection.active_at,
        connection.is_accept,
        *_login(connection),
        None,
        *(_NONE if connection.link.channel.method is None else _AES),
        int(not connection.link.is_paused),
        connection.link.is_paused,
        int(connection.unsent_bytes > 0),
        connection.is_send_paused,
        *_traffic_of(connection).values(),
        None if peer is None else peer.instance_id,
    )


def _login(connection: PeerConnection) -> tuple[int, str]:
    if connection.state is ConnectionState.LOGGED_IN:
        return _ONLINE
    if connection.state is ConnectionState.CLOSED or connection.close_reason is not None:
        return _ERROR
    if connection.state is not ConnectionState.CONNECTED:
        return _NEW
    return _WAIT_ARBITRATION if connection.link.channel.is_open else _WAIT_LOGIN
