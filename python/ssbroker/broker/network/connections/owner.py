"""What a connection tells of itself, and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ssbroker.broker.network.connections.standing import Ending
from ssbroker.protocol.adjacent.occurrences import Occurrence

if TYPE_CHECKING:
    from ssbroker.broker.network.connections.connection import Connection


class Owner(Protocol):
    """Who has all connections. It is called in the endpoint's thread."""

    @property
    def buffer(self) -> memoryview:
        """Where sockets are read into, one at a time."""

    def now(self) -> int:
        """The moment, in microseconds since 1970."""

    def accepted(self, connection: Connection) -> None:
        """The socket of a connection that others have dialled is there."""

    def occurred(self, connection: Connection, occurrence: Occurrence) -> None:
        """Something has come over a connection."""

    def closing(self, connection: Connection, ending: Ending) -> None:
        """One of the sides says GOODBYE, or falls silent."""

    def ended(self, connection: Connection, ending: Ending) -> None:
        """A connection's socket is closed."""
