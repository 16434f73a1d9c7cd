"""Trace events of the broker, their subclasses, and how they reach subscribers and the log."""

from __future__ import annotations

import logging
import math
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar

from ssbroker._arguments import EPOCH
from ssbroker.exceptions import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have.

    Attributes:
        at: The moment, in microseconds since 1970, UTC.
        database: The database in which it happened; None where it was none of them.
    """

    at: int
    database: str | None = None

    NAME: ClassVar[str] = ""
    TRACE_ID: ClassVar[int] = 0
    LEVEL: ClassVar[int] = logging.DEBUG

    @property
    def level(self) -> int:
        """At which level it is logged."""
        return self.LEVEL

    @property
    def source(self) -> str | None:
        """Whose doing it is, as far as neighbours can have as many as they like of it: these are logged for a while only (N35)."""
        return None

    @property
    def when(self) -> datetime:
        """The moment as a datetime in UTC."""
        return EPOCH + timedelta(microseconds=self.at)


class Classification(StrEnum):
    """What routing made of a message."""

    LOCAL = "Local"
    REMOTE = "Remote"
    DELAYED = "Delayed"


class ConversationStep(StrEnum):
    """What happened to a conversation."""

    SEND_MESSAGE = "SEND Message"
    END_CONVERSATION = "END CONVERSATION"
    END_CONVERSATION_WITH_ERROR = "END CONVERSATION WITH ERROR"
    BROKER_INITIATED_ERROR = "Broker Initiated Error"
    TERMINATE_DIALOG = "Terminate Dialog"
    RECEIVED_SEQUENCED_MESSAGE = "Received Sequenced Message"
    RECEIVED_END_CONVERSATION = "Received END CONVERSATION"
    RECEIVED_END_CONVERSATION_WITH_ERROR = "Received END CONVERSATION WITH ERROR"
    RECEIVED_BROKER_ERROR = "Received Broker Error Message"
    RECEIVED_END_CONVERSATION_ACK = "Received END CONVERSATION Ack"
    BEGIN_DIALOG = "BEGIN DIALOG"
    DIALOG_CREATED = "Dialog Created"
    END_CONVERSATION_WITH_CLEANUP = "END CONVERSATION WITH CLEANUP"


class GroupStep(StrEnum):
    """What happened to a conversation group."""

    CREATE = "Create"
    DROP = "Drop"


class AcknowledgementStep(StrEnum):
    """Which way an acknowledgement went, and whether a message carried it."""

    MESSAGE_WITH_ACK_SENT = "Message with Acknowledgement Sent"
    ACK_SENT = "Acknowledgement Sent"
    MESSAGE_WITH_ACK_RECEIVED = "Message with Acknowledgement Received"
    ACK_RECEIVED = "Acknowledgement Received"


class ActivationStep(StrEnum):
    """What happened to a reader of a queue."""

    STARTED = "Started"
    ENDED = "Ended"
    ABORTED = "Aborted"


class ConnectionStep(StrEnum):
    """What happened to a connection to another instance."""

    CONNECTING = "Connecting"
    CONNECTED = "Connected"
    CONNECT_FAILED = "Connect Failed"
    CLOSING = "Closing"
    CLOSED = "Closed"
    ACCEPT = "Accept"
    SEND_IO_ERROR = "Send IO Error"
    RECEIVE_IO_ERROR = "Receive IO Error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEvent(Event):
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
class ConversationEvent(Event):
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
class ConversationGroupEvent(Event):
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
class ActivationEvent(Event):
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
    "ActivationEvent",
    "ActivationStep",
    "Classification",
    "ConnectionEvent",
    "ConnectionStep",
    "ConversationEvent",
    "ConversationGroupEvent",
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


LINES: Final = 20
"""The lines of one kind that one neighbour has in a minute."""
WINDOW: Final = 60_000_000
"""A minute, in microseconds."""
SOURCES: Final = 1000
"""The neighbours that are told apart; all further ones are one."""

Source = TypeVar("Source", bound=Hashable)


@dataclass(slots=True)
class _Window:
    """One minute of one neighbour."""

    began: int
    lines: int = 0


class LogRate(Generic[Source]):
    """Counts lines by where they come from. For any number of threads; where two of them meet, a line may be counted as none.

    Args:
        others: What a source counts as where there are too many of them.

    Examples:
        >>> rate = LogRate(others=lambda _: "others")
        >>> [rate.passes("bank", now=0) for _ in range(22)][18:], rate.left_out(now=0)
        ([True, True, False, False], [])
        >>> rate.left_out(now=WINDOW), rate.passes("bank", now=WINDOW)
        ([('bank', 2)], True)
    """

    def __init__(self, *, others: Callable[[Source], Source]) -> None:
        self._others: Final = others
        self._windows: Final[dict[Source, _Window]] = {}
        self._earliest = math.inf
        self._latest = -math.inf

    def passes(self, source: Source, *, now: int) -> bool:
        """Counts a line.

        Args:
            source: Where it comes from.
            now: The moment, in microseconds.

        Returns:
            Whether it is to be written.
        """
        if source not in self._windows and len(self._windows) >= SOURCES:
            source = self._others(source)
        window = self._windows.setdefault(source, _Window(now))
        self._cover(window)
        window.lines += 1
        return window.lines <= LINES

    def left_out(self, *, now: int) -> list[tuple[Source, int]]:
        """Ends the minutes that are over; a clock that goes back ends them too.

        Args:
            now: The moment, in microseconds.

        Returns:
            For each source of which lines were left out: how many.
        """
        if self._latest <= now < self._earliest + WINDOW:
            return []
        over = [source for source, each in list(self._windows.items()) if not 0 <= now - each.began < WINDOW]
        ended = [(source, self._windows.pop(source, None)) for source in over]
        self._earliest, self._latest = math.inf, -math.inf
        for window in list(self._windows.values()):
            self._cover(window)
        return [(source, each.lines - LINES) for source, each in ended if each is not None and each.lines > LINES]

    def _cover(self, window: _Window) -> None:
        self._earliest = min(self._earliest, window.began)
        self._latest = max(self._latest, window.began)


LOGGER: Final = logging.getLogger("ssbroker.events")
# Who has not set up logging is not written to.
LOGGER.addHandler(logging.NullHandler())

Subscriber: TypeAlias = Callable[[Event], None]


class EventLog:
    """Hands every event to its subscribers, and forwards it to `logging` as `ssbroker.events`, with itself as the record's `event`.

    Of what neighbours can have happen as often as they like, subscribers see all; a log gets the first lines of a minute of each kind and
    neighbour, and then one that counts the others (N35).

    An exception in a subscriber is logged and harms nobody else; one in a handler or filter of `logging` is printed, as `logging` does
    with most. It may be fed from several threads; a subscriber is called in the thread that feeds.

    Examples:
        >>> from ssbroker.protocol.events import QueueDisabled
        >>> log, seen = EventLog(), []
        >>> stop = log.subscribe(seen.append, QueueDisabled)
        >>> log.emit(QueueDisabled(at=0, queue="Orders"))
        >>> seen[0].queue, log.counts["Broker:Queue Disabled"]
        ('Orders', 1)
        >>> stop()
    """

    __slots__ = ("_rate", "_subscribers", "counts")

    def __init__(self) -> None:
        # Replaced as a whole, never changed: who is emitting goes on with the one it began with.
        self._subscribers: tuple[tuple[Subscriber, tuple[type[Event], ...]], ...] = ()
        self._rate: Final[LogRate[tuple[str, int, str]]] = LogRate(others=lambda key: (*key[:2], "others"))
        self.counts: Counter[str] = Counter()

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Calls `subscriber` with every event of these kinds, or of all.

        Args:
            subscriber: What is called.
            kinds: The classes that it is for; none means all.

        Returns:
            A function that ends it.

        Raises:
            OptionError: `subscriber` cannot be called, or one of `kinds` is no class of events.

        Examples:
            >>> stop = EventLog().subscribe(print)
            >>> stop()
        """
        if not callable(subscriber):
            raise OptionError(f"subscriber: expected a callable that is given the event, got {subscriber!r:.80}")
        for kind in kinds:
            _check_kind(kind)
        entry = (subscriber, kinds or (Event,))
        self._subscribers = (*self._subscribers, entry)

        def stop() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not entry)

        return stop

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody looks at events of this class, so that those which come in masses need not be made in vain.

        Args:
            kind: The class.

        Returns:
            Whether a subscriber or `logging` does.

        Examples:
            >>> from ssbroker.protocol.events import ConversationEvent
            >>> EventLog().wants(ConversationEvent)
            False
        """
        if LOGGER.isEnabledFor(kind.LEVEL):
            return True
        subscribers = self._subscribers
        return bool(subscribers) and any(issubclass(kind, kinds) for _, kinds in subscribers)

    def emit(self, event: Event) -> None:
        """Tells of an event.

        Args:
            event: What happened.

        Examples:
            >>> from ssbroker.protocol.events import QueueDisabled
            >>> EventLog().emit(QueueDisabled(at=0, queue="Orders"))
        """
        self.counts[event.NAME] += 1
        if LOGGER.isEnabledFor(event.level):
            with printed():
                if self._may_be_logged(event):
                    LOGGER.log(event.level, "%s: %s", event.NAME, _said(event), extra={"event": event})
        for subscriber, kinds in self._subscribers:
            if isinstance(event, kinds):
                try:
                    subscriber(event)
                except Exception:
                    with printed():
                        LOGGER.exception("%s: a subscriber failed", event.NAME)

    def count_left_out(self, *, now: int) -> None:
        """Logs how many lines were left out in the minutes that are over (N35).

        Args:
            now: The moment, in microseconds since 1970.

        Examples:
            >>> EventLog().count_left_out(now=0)
        """
        for (name, level, source), lines in self._rate.left_out(now=now):
            words = {"event": name, "left_out": lines, "source": source}
            LOGGER.log(level, "%s: %d more in a minute, from %s", name, lines, _shown(source), extra={"said": words})

    def may_be_logged(self, kind: str, *, level: int, source: str, now: int) -> bool:
        """Counts a line of a log that is of no event, and of which neighbours can have as many as they like too (N35).

        Args:
            kind: What it says, such as Service Broker's number.
            level: Its level.
            source: Whose doing it is.
            now: The moment, in microseconds since 1970.

        Returns:
            Whether it is to be written.

        Examples:
            >>> EventLog().may_be_logged("9761", level=logging.WARNING, source="msdb", now=0)
            True
        """
        self.count_left_out(now=now)
        return self._rate.passes((kind, level, source), now=now)

    def _may_be_logged(self, event: Event) -> bool:
        source = event.source
        return source is None or self.may_be_logged(event.NAME, level=event.level, source=source, now=event.at)


def _check_kind(kind: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise OptionError(f"kinds: expected classes of events, such as QueueDisabled, got {kind!r:.80}")


@contextmanager
def printed() -> Iterator[None]:
    """What a handler or filter of `logging` raises is printed and goes no further, as most of them have it: what the line tells of has happened.

    Examples:
        >>> with printed():
        ...     raise OSError("the log is full")
    """
    try:
        yield
    except Exception:  # noqa: BLE001  # there is no log to tell of it
        if logging.raiseExceptions:
            traceback.print_exc()


def _said(event: Event) -> str:
    values = ((field.name, getattr(event, field.name)) for field in fields(event) if field.name != "at")
    # Names come from neighbours too, and may hold what would begin a line of its own.
    said = ", ".join(f"{name}={value}" for name, value in values if value is not None)
    return _shown(said)


def _shown(said: str) -> str:
    return said if said.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in said)
