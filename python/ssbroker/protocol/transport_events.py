"""What a broker reports of its connections, and of messages that only pass through."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import ClassVar

from ssbroker.protocol.event import Event
from ssbroker.protocol.event_steps import ConnectionStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(Event):
    """A connection to another instance went a step.

    Attributes:
        connection_id: The connection.
        step: What happened.
        address: The far side's address.
        error: Service Broker's number for what went wrong, 0 for nothing.
        text: What went wrong.
        is_repeated: Whether the dial before has failed in the same way.
    """

    NAME: ClassVar[str] = "Broker:Connection"
    TRACE_ID: ClassVar[int] = 138
    LEVEL: ClassVar[int] = logging.INFO

    connection_id: uuid.UUID
    step: ConnectionStep
    address: str = ""
    error: int = 0
    text: str = ""
    is_repeated: bool = False

    @property
    def level(self) -> int:
        """A dial that has failed as the one before it is for those who debug; so is that one begins."""
        is_told = not self.is_repeated and self.step is not ConnectionStep.CONNECTING
        return self.LEVEL if is_told else logging.DEBUG

    @property
    def source(self) -> str:
        """The host, whatever its port."""
        return f"{self.address.rpartition(':')[0]}, {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedMessage(Event):
    """A message of others that passed through here.

    Attributes:
        conversation_id: The conversation.
        message_sequence_number: Its number.
        fragment_number: Its fragment.
        to_service_name: Where it is for.
        to_broker_instance: The target's broker id, where it is known.
        from_service_name: Where it is from.
        from_broker_instance: The sender's broker id.
        next_hop_address: Where it goes next.
        hops_remaining: How many times it may be forwarded from now on.
        time_to_live: The seconds that it may be on its way.
        time_consumed: The seconds that it has been, as far as those know who held it.
        message_id: Its id, where it has one.
    """

    conversation_id: uuid.UUID
    message_sequence_number: int
    fragment_number: int
    to_service_name: str
    to_broker_instance: uuid.UUID | None = None
    from_service_name: str = ""
    from_broker_instance: uuid.UUID | None = None
    next_hop_address: str | None = None
    hops_remaining: int = 0
    time_to_live: int = 0
    time_consumed: int = 0
    message_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedMessageSent(ForwardedMessage):
    """A message of others was passed on."""

    NAME: ClassVar[str] = "Broker:Forwarded Message Sent"
    TRACE_ID: ClassVar[int] = 139


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedMessageDropped(ForwardedMessage):
    """A message of others was not passed on.

    Attributes:
        error: Service Broker's number for why not.
        text: Why not.
    """

    NAME: ClassVar[str] = "Broker:Forwarded Message Dropped"
    TRACE_ID: ClassVar[int] = 140
    LEVEL: ClassVar[int] = logging.WARNING

    error: int = 0
    text: str = ""

    @property
    def source(self) -> str:
        """Why, since who has sent it is whoever says so."""
        return str(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredRouteStateChanged(Event):
    """What is known of a mirrored route is another thing now (R51 to R54).

    Attributes:
        broker_instance: The broker id that the route names.
        address: Its address.
        mirror_address: Its mirror address.
        state: What is known now.
        principal_address: Where everything goes now; None: nothing is sent.
        text: What it means, and what to do where somebody has to.
    """

    NAME: ClassVar[str] = "Broker:Mirrored Route State Changed"
    TRACE_ID: ClassVar[int] = 144
    LEVEL: ClassVar[int] = logging.WARNING

    broker_instance: uuid.UUID
    address: str
    mirror_address: str
    state: str
    principal_address: str | None = None
    text: str = ""
