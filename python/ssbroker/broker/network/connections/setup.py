"""What the parts of an endpoint share."""

from __future__ import annotations

import logging
import random as randomness
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ssbroker.broker.network.connections.connection import Connection
from ssbroker.broker.network.connections.credentials import Credentials
from ssbroker.broker.network.connections.limits import EndpointLimits
from ssbroker.broker.network.connections.reach import Reach
from ssbroker.broker.network.connections.tls import Channel, Plain, Secured
from ssbroker.broker.network.seam import Receiver
from ssbroker.protocol.adjacent.hello import Own
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.events import Connection as ConnectionEvent
from ssbroker.protocol.events import ConnectionStep

LOGGER: Final = logging.getLogger("ssbroker.broker")
_TEXT_MOST: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the parts of an endpoint share.

    Attributes:
        own: What this instance says of itself.
        receiver: Who is told what connections bring.
        credentials: What TLS is agreed with; None takes and makes connections without it.
        limits: How long it waits, and for how much.
        reach: What may be dialled.
        sent_by_priority: How many rows of each priority were written to connections.
        events: Where events go.
        clock: Tells the moment, in microseconds since 1970.
        random: Where ids and jitter come from.
    """

    own: Own
    receiver: Receiver
    credentials: Credentials | None
    limits: EndpointLimits
    events: EventLog
    clock: Callable[[], int]
    random: randomness.Random
    sent_by_priority: Counter[int] = field(default_factory=Counter)
    reach: Reach = field(default_factory=lambda: Reach(()))

    def channel(self, *, is_accept: bool) -> Channel:
        """What the bytes of a new connection go through.

        Args:
            is_accept: Whether the far side dialled.

        Returns:
            TLS, or nothing.
        """
        if self.credentials is None:
            return Plain()
        return Secured(self.credentials.contexts, is_accept=is_accept)

    def new_id(self) -> uuid.UUID:
        """A random id."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def tell(
        self, connection: Connection, step: ConnectionStep, *, error: int = 0, text: str = "", is_repeated: bool = False
    ) -> None:
        """Tells of a connection's step.

        Args:
            connection: The connection.
            step: What happened.
            error: Service Broker's number for what went wrong.
            text: What went wrong; what the far side said is shortened, and kept from looking like more than one line.
            is_repeated: Whether the dial before has failed in the same way.
        """
        line = "".join(character if character.isprintable() else " " for character in text)[:_TEXT_MOST]
        event = ConnectionEvent(
            at=self.clock(),
            connection_id=connection.connection_id,
            step=step,
            address=connection.address,
            error=error,
            text=line,
            is_repeated=is_repeated,
        )
        self.events.emit(event)

    def call(self, what: Callable[[], None]) -> None:
        """Calls the receiver; what it raises harms no connection.

        Args:
            what: The call.
        """
        try:
            what()
        except Exception:
            LOGGER.exception("what a connection brought could not be handed over")
