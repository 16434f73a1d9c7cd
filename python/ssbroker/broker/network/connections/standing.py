"""How far a connection has come, what went over it, and why it ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ssbroker.protocol.adjacent.goodbye import Reason

# Service Broker's numbers (fact 153).
CONNECT_FAILED: Final = 9754
RECEIVE_FAILED: Final = 9755
SEND_FAILED: Final = 9759
PROTOCOL_BROKEN: Final = 9757
LOGIN_REFUSED: Final = 9752
NAME_UNKNOWN: Final = 9783


class State(IntEnum):
    """How far a connection has come, with the numbers of `sys.dm_broker_connections` (fact 158)."""

    NEW = 1
    CONNECTING = 2
    CONNECTED = 3
    LOGGED_IN = 4
    CLOSED = 5


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a connection ends.

    Attributes:
        text: Why, for people.
        error: Service Broker's number for it, 0 where nothing is wrong.
        reason: What GOODBYE said; None where there was none.
    """

    text: str
    error: int = 0
    reason: Reason | None = None


@dataclass(slots=True)
class Counters:
    """What has gone over a connection.

    Attributes:
        bytes_sent: Bytes given to the socket.
        bytes_received: Bytes that it brought.
        fragments_received: Rows that it brought.
        sends: How often the socket was written.
        receives: How often it was read.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    fragments_received: int = 0
    sends: int = 0
    receives: int = 0
