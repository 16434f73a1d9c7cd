"""The state that the parts of an endpoint share: its identity, listener, credentials, limits, clock and events."""

from __future__ import annotations

import random as randomness
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ssbroker.broker.context import random_guid
from ssbroker.broker.network.addresses import DialFilter
from ssbroker.broker.network.connection import PeerConnection
from ssbroker.broker.network.interfaces import EndpointListener
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.tls import Channel, TlsChannel, TlsCredentials, UnencryptedChannel
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep, EventLog
from ssbroker.protocol.wire.frames import OwnIdentity

_TEXT_MAX: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointContext:
    """The state that the parts of an endpoint share.

    Attributes:
        own: The identity of this instance.
        listener: Receives events about connections.
        credentials: The TLS credentials; None for unencrypted connections.
        limits: Time and size limits.
        events: Where events are emitted.
        clock: Returns the time in microseconds since 1970.
        random: The source of ids and jitter.
        sent_by_priority: The number of rows of each priority that were written to connections.
        dial_filter: The hosts and networks that may be dialled.
    """

    own: OwnIdentity
    listener: EndpointListener
    credentials: TlsCredentials | None
    limits: EndpointLimits
    events: EventLog
    clock: Callable[[], int]
    random: randomness.Random
    sent_by_priority: Counter[int] = field(default_factory=Counter)
    dial_filter: DialFilter = field(default_factory=lambda: DialFilter(()))

    def channel(self, *, is_accept: bool) -> Channel:
        """Returns the channel of a new connection."""
        if self.credentials is None:
            return UnencryptedChannel()
        return TlsChannel(self.credentials.contexts, is_accept=is_accept)

    def new_id(self) -> uuid.UUID:
        """Returns a random id."""
        return random_guid(self.random)

    def emit_step(
        self,
        connection: PeerConnection,
        step: ConnectionStep,
        *,
        error: int = 0,
        text: str = "",
        is_repeated: bool = False,
    ) -> None:
        """Emits the event of a connection's step.

        Text from the peer is shortened, and its unprintable characters are replaced so that it cannot forge log lines. `is_repeated` marks
        a dial that failed in the same way as the previous one.
        """
        printable = "".join(character if character.isprintable() else " " for character in text)[:_TEXT_MAX]
        event = ConnectionEvent(
            at=self.clock(),
            connection_id=connection.connection_id,
            step=step,
            address=connection.address,
            error=error,
            text=printable,
            is_repeated=is_repeated,
        )
        self.events.emit(event)
