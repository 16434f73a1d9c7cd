"""What a broker reports while it works: one record for each of Service Broker's trace events, by its name and number."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import ClassVar

from ssbroker.protocol.event import Event
from ssbroker.protocol.event_steps import (
    AcknowledgementStep,
    ActivationStep,
    Classification,
    ConnectionStep,
    ConversationStep,
    GroupStep,
)
from ssbroker.protocol.transport_events import (
    Connection,
    ForwardedMessage,
    ForwardedMessageDropped,
    ForwardedMessageSent,
    MirroredRouteStateChanged,
)


def _neighbour(peer: bytes | None) -> str:
    return "somebody" if peer is None else peer.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageClassify(Event):
    """Routing decided about a message.

    Attributes:
        conversation_id: The conversation.
        classification: Local, remote or delayed.
        to_service_name: The target service.
        to_broker_instance: The target's broker id, where it is known.
        next_hop_address: Where it goes next; None unless it is remote.
        is_from_network: Whether the message came from outside the instance.
        reason: The reason that routing gave (`decisions.reason`).
    """

    NAME: ClassVar[str] = "Broker:Message Classify"
    TRACE_ID: ClassVar[int] = 141

    conversation_id: uuid.UUID
    classification: Classification
    to_service_name: str
    to_broker_instance: uuid.UUID | None = None
    next_hop_address: str | None = None
    is_from_network: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptedMessage(Event):
    """What arrived is damaged, forged or unreadable; it was dropped and not acknowledged (P21).

    Attributes:
        conversation_id: The conversation that it names; None where not even that can be read.
        is_initiator: Whether its sender says to be the initiator.
        message_sequence_number: The number that it names.
        fragment_number: The fragment that it names.
        from_service_name: The sender that it names.
        peer: Who handed it over, as the connection knows them.
        error: Service Broker's number for what is wrong, 0 where it has none.
        text: What is wrong.
    """

    NAME: ClassVar[str] = "Broker:Corrupted Message"
    TRACE_ID: ClassVar[int] = 161
    LEVEL: ClassVar[int] = logging.WARNING

    conversation_id: uuid.UUID | None
    is_initiator: bool = True
    message_sequence_number: int = 0
    fragment_number: int = 0
    from_service_name: str = ""
    peer: bytes | None = None
    error: int = 0
    text: str = ""

    @property
    def source(self) -> str:
        """Who has handed it over."""
        return _neighbour(self.peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUndeliverable(Event):
    """What arrived is whole, and cannot be taken by any conversation here; it was dropped.

    Attributes:
        conversation_id: The conversation that it names.
        is_sequenced: Whether it was a message with a number, or an acknowledgement or error of the broker.
        message_sequence_number: Its number.
        fragment_number: Its fragment.
        acked_sequence_number: The number that it acknowledged; None for none.
        peer: Who handed it over, as the connection knows them.
        error: Service Broker's number for the reason.
        text: The reason.
    """

    NAME: ClassVar[str] = "Broker:Message Undeliverable"
    TRACE_ID: ClassVar[int] = 160
    LEVEL: ClassVar[int] = logging.INFO

    conversation_id: uuid.UUID
    is_sequenced: bool = True
    message_sequence_number: int = 0
    fragment_number: int = 0
    acked_sequence_number: int | None = None
    peer: bytes | None = None
    error: int = 0
    text: str = ""

    @property
    def source(self) -> str:
        """Who has handed it over."""
        return _neighbour(self.peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMessageAcknowledgement(Event):
    """An acknowledgement was sent to another instance or came from one.

    Attributes:
        conversation_id: The conversation.
        step: Which way it went, and whether a message carried it.
        acked_sequence_number: All messages up to this number are acknowledged; None for none yet.
        carrier_sequence_number: The message that carried it; None where it went alone.
        carrier_fragment_number: The fragment that carried it.
        priority: The conversation's priority.
    """

    NAME: ClassVar[str] = "Broker:Remote Message Acknowledgement"
    TRACE_ID: ClassVar[int] = 149

    conversation_id: uuid.UUID
    step: AcknowledgementStep
    acked_sequence_number: int | None
    carrier_sequence_number: int | None = None
    carrier_fragment_number: int | None = None
    priority: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation(Event):
    """A conversation went a step.

    Attributes:
        conversation_id: The conversation.
        step: What happened.
        is_initiator: Which side this is.
        conversation_handle: This side's handle.
        conversation_group_id: This side's group.
        state: The state that the endpoint is in now (SO, SI, CO, DI, DO, ER, CD).
        message_type_name: The message's type, where the step is about one.
        message_sequence_number: Its number.
        error: The error's code, where the step is about one.
        text: The error's text.
        priority: The conversation's priority.
    """

    NAME: ClassVar[str] = "Broker:Conversation"
    TRACE_ID: ClassVar[int] = 124

    conversation_id: uuid.UUID
    step: ConversationStep
    is_initiator: bool
    conversation_handle: uuid.UUID | None = None
    conversation_group_id: uuid.UUID | None = None
    state: str = ""
    message_type_name: str | None = None
    message_sequence_number: int | None = None
    error: int = 0
    text: str = ""
    priority: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationGroup(Event):
    """A conversation group came or went.

    Attributes:
        conversation_group_id: The group.
        step: Which of the two.
    """

    NAME: ClassVar[str] = "Broker:Conversation Group"
    TRACE_ID: ClassVar[int] = 136

    conversation_group_id: uuid.UUID
    step: GroupStep


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDisabled(Event):
    """A queue was turned off, since its readers rolled back five times in a row.

    Attributes:
        queue: The queue.
    """

    NAME: ClassVar[str] = "Broker:Queue Disabled"
    TRACE_ID: ClassVar[int] = 143
    LEVEL: ClassVar[int] = logging.ERROR

    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(Event):
    """A reader of a queue was started, ended or failed.

    Attributes:
        queue: The queue.
        step: Which of them.
        active_readers: How many readers the queue has now.
        text: What it failed of.
    """

    NAME: ClassVar[str] = "Broker:Activation"
    TRACE_ID: ClassVar[int] = 163
    LEVEL: ClassVar[int] = logging.INFO

    queue: str
    step: ActivationStep
    active_readers: int = 0
    text: str = ""


__all__ = [
    "AcknowledgementStep",
    "Activation",
    "ActivationStep",
    "Classification",
    "Connection",
    "ConnectionStep",
    "Conversation",
    "ConversationGroup",
    "ConversationStep",
    "CorruptedMessage",
    "Event",
    "ForwardedMessage",
    "ForwardedMessageDropped",
    "ForwardedMessageSent",
    "GroupStep",
    "MessageClassify",
    "MessageUndeliverable",
    "MirroredRouteStateChanged",
    "QueueDisabled",
    "RemoteMessageAcknowledgement",
]
