"""What has gone over the connections of an endpoint, those that have ended included (fact 169)."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Final

from ssbroker.broker.network.connections.connection import Connection


class Traffic:
    """Counts by the names of `sys.dm_broker_connections`. The numbers only grow, whichever thread asks for them while connections end."""

    def __init__(self) -> None:
        self._guard: Final = threading.RLock()
        self._ended: Final[Counter[str]] = Counter()

    def ends(self, connections: dict[uuid.UUID, Connection], connection: Connection) -> None:
        """Takes out a connection that is closed, and keeps what went over it.

        Args:
            connections: All that there are.
            connection: The one.
        """
        with self._guard:
            if connections.pop(connection.connection_id, None) is not None:
                self._ended.update(_carried(connection))

    def totals(self, connections: Mapping[uuid.UUID, Connection]) -> Mapping[str, int]:
        """What has gone over those that there are, and over those that have ended.

        Args:
            connections: Those that there are.

        Returns:
            The numbers.
        """
        with self._guard:
            totals = Counter(self._ended)
            for connection in list(connections.values()):
                totals.update(_carried(connection))
        return totals


def _carried(connection: Connection) -> dict[str, int]:
    counters = connection.counters
    return {
        "total_bytes_sent": counters.bytes_sent,
        "total_bytes_received": counters.bytes_received,
        "total_fragments_sent": connection.line.sent_rows,
        "total_fragments_received": counters.fragments_received,
        "total_sends": counters.sends,
        "total_receives": counters.receives,
    }
