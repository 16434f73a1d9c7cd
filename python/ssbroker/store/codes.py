"""The codes in the columns `status` and `precedence` of queued messages and `state` of endpoints, for SQL statements.

The same codes are in `rust/store/src/codes.rs`.
"""

from __future__ import annotations

from typing import Final

RETAINED_RECEIVED: Final = 0
"""Status of a message that stays in the queue after it was received."""
READY: Final = 1
"""Status of a message that can be received."""
EARLY: Final = 2
"""Status of a message that waits for earlier messages."""
RETAINED_SENT: Final = 3
"""Status of a copy of a message that was sent."""

PRECEDENCE_TIMER: Final = 0
"""Precedence of DialogTimer messages."""
PRECEDENCE_ERROR: Final = 1
"""Precedence of Error messages."""
PRECEDENCE_MESSAGE: Final = 2
"""Precedence of all other messages."""

CLOSED: Final = "CD"
"""State of an endpoint whose conversation has ended."""
RECEIVING_STATES: Final = ("SI", "CO")
"""States of endpoints that receive messages."""
ENDED_STATES: Final = ("ER", CLOSED)
"""States of endpoints whose incomplete messages are never completed."""
PEER_ENDED_STATES: Final = ("DI", *ENDED_STATES)
"""States of endpoints that have ended, or whose remote endpoint has ended the conversation."""
