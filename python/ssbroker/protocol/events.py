"""Broker events, and how they reach subscribers and the log."""

from __future__ import annotations

import logging
import math
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar, overload

from ssbroker._arguments import EPOCH, returns_at_once
from ssbroker.exceptions import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base class of all events.

    Attributes:
        at: When the event happened, in microseconds since 1970, UTC.
        database: The database in which the event happened; None if it belongs to no database.
        NAME: The name of the event class, as in SQL Server's Broker event category.
        TRACE_ID: The number of the event class in SQL Trace.
        LEVEL: The `logging` level of the event class.
    """

    at: int
    database: str | None = None

    NAME: ClassVar[str] = ""
    TRACE_ID: ClassVar[int] = 0
    LEVEL: ClassVar[int] = logging.DEBUG

    @property
    def level(self) -> int:
        """The `logging` level of this event."""
        return self.LEVEL

    @property
    def source(self) -> str | None:
        """The peer or cause whose log lines are rate-limited together; None if the event is never rate-limited."""
        return None

    @property
    def warned_about(self) -> str | None:
        """The subject of a warning that is written once; later events about it are logged at DEBUG. None if all keep their level."""
        return None

    @property
    def when(self) -> datetime:
        """The time of the event as a datetime in UTC."""
        return EPOCH + timedelta(microseconds=self.at)


class Classification(StrEnum):
    """How routing classified a message."""

    LOCAL = "Local"
    REMOTE = "Remote"
    DELAYED = "Delayed"


class ConversationStep(StrEnum):
    """The step of a `ConversationEvent`."""

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
    """The step of a `ConversationGroupEvent`."""

    CREATE = "Create"
    DROP = "Drop"


class AcknowledgementStep(StrEnum):
    """The direction of an acknowledgement, and whether a message carried it."""

    MESSAGE_WITH_ACK_SENT = "Message with Acknowledgement Sent"
    ACK_SENT = "Acknowledgement Sent"
    MESSAGE_WITH_ACK_RECEIVED = "Message with Acknowledgement Received"
    ACK_RECEIVED = "Acknowledgement Received"


class ActivationStep(StrEnum):
    """The step of an `ActivationEvent`."""

    STARTED = "Started"
    ENDED = "Ended"
    ABORTED = "Aborted"


class ConnectionStep(StrEnum):
    """The step of a `ConnectionEvent`."""

    CONNECTING = "Connecting"
    CONNECTED = "Connected"
    CONNECT_FAILED = "Connect Failed"
    CLOSING = "Closing"
    CLOSED = "Closed"
    ACCEPT = "Accept"
    SEND_IO_ERROR = "Send IO Error"
    RECEIVE_IO_ERROR = "Receive IO Error"


_FAILURES: Final = frozenset(
    {ConnectionStep.CONNECT_FAILED, ConnectionStep.SEND_IO_ERROR, ConnectionStep.RECEIVE_IO_ERROR}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEvent(Event):
    """A connection to another instance was opened, accepted or closed, or failed.

    Attributes:
        connection_id: The connection.
        step: What happened.
        address: The peer's address.
        error: Service Broker's error number; 0 if nothing went wrong.
        text: What went wrong.
        is_repeated: Whether the previous connection attempt failed in the same way.
    """

    NAME: ClassVar[str] = "Broker:Connection"
    TRACE_ID: ClassVar[int] = 138
    LEVEL: ClassVar[int] = logging.WARNING

    connection_id: uuid.UUID
    step: ConnectionStep
    address: str = ""
    error: int = 0
    text: str = ""
    is_repeated: bool = False

    @property
    def level(self) -> int:
        """WARNING for a failure, DEBUG for a repeated failure and for the start of a connection attempt, else INFO."""
        if self.is_repeated or self.step is ConnectionStep.CONNECTING:
            return logging.DEBUG
        return self.LEVEL if self.error and self.step in _FAILURES else logging.INFO

    @property
    def source(self) -> str:
        """The peer's host, without its port, and the step."""
        return f"{self.address.rpartition(':')[0]}, {self.step}"

    @property
    def warned_about(self) -> str | None:
        """The host, the step and the reason. None for a failed dial: `is_repeated` shows whether the previous dial failed in the same way."""
        return None if self.step is ConnectionStep.CONNECT_FAILED else f"{self.source}, {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedMessage(Event):
    """The base class of events about messages that this instance forwards.

    Attributes:
        conversation_id: The id of the conversation.
        message_sequence_number: The message's sequence number.
        fragment_number: The fragment's number within its message.
        to_service_name: The name of the receiving service.
        to_broker_instance: The receiver's broker id; None if it is not known.
        from_service_name: The name of the sending service.
        from_broker_instance: The sender's broker id.
        next_hop_address: The address of the next hop.
        hops_remaining: The number of further connections that the message may cross.
        time_to_live: The lifetime of the message in seconds.
        time_consumed: The number of seconds of the lifetime that have passed, as measured by the forwarders so far.
        message_id: The message's id, if it has one.
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
    """A message was forwarded."""

    NAME: ClassVar[str] = "Broker:Forwarded Message Sent"
    TRACE_ID: ClassVar[int] = 139


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedMessageDropped(ForwardedMessage):
    """A message was dropped instead of being forwarded.

    Attributes:
        error: Service Broker's error number for the reason.
        text: The reason.
    """

    NAME: ClassVar[str] = "Broker:Forwarded Message Dropped"
    TRACE_ID: ClassVar[int] = 140
    LEVEL: ClassVar[int] = logging.WARNING

    error: int = 0
    text: str = ""

    @property
    def source(self) -> str:
        """The error number, because the sender that a forwarded message names is not proven."""
        return str(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredRouteStateChanged(Event):
    """The state of a mirrored route changed.

    Attributes:
        broker_instance: The broker id that the route names.
        address: The route's address.
        mirror_address: The route's mirror address.
        state: The new state, a `MirroredRouteState`.
        principal_address: The address to which messages are sent; None while nothing is sent.
        text: What the state means, and what to do if it needs attention.
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


def _peer_name(peer: bytes | None) -> str:
    return "an unauthenticated peer" if peer is None else peer.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageClassify(Event):
    """Routing classified a message.

    Attributes:
        conversation_id: The id of the conversation.
        classification: Local, remote or delayed.
        to_service_name: The name of the receiving service.
        to_broker_instance: The receiver's broker id; None if it is not known.
        next_hop_address: The address of the next hop; None unless the message is remote.
        reason: The reason of the routing decision (column `reason` of `DECISIONS`).
    """

    NAME: ClassVar[str] = "Broker:Message Classify"
    TRACE_ID: ClassVar[int] = 141

    conversation_id: uuid.UUID
    classification: Classification
    to_service_name: str
    to_broker_instance: uuid.UUID | None = None
    next_hop_address: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptedMessage(Event):
    """A damaged, forged or malformed message arrived; it was dropped without an acknowledgement.

    Attributes:
        conversation_id: The conversation that the message names; None if it is not readable.
        is_initiator: Whether the message claims to come from the initiator.
        message_sequence_number: The sequence number that the message names.
        fragment_number: The fragment number that the message names.
        from_service_name: The sending service that the message names.
        peer: The peer that delivered the message, as authenticated by the connection.
        error: Service Broker's error number; 0 if there is none.
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
        """The peer that delivered the message."""
        return _peer_name(self.peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageUndeliverable(Event):
    """A message arrived intact, but no conversation here accepts it; it was dropped.

    Attributes:
        conversation_id: The conversation that the message names.
        is_sequenced: True for a message with a sequence number, False for an acknowledgement or a broker error.
        message_sequence_number: The message's sequence number.
        fragment_number: The fragment's number within its message.
        acked_sequence_number: The sequence number that the message acknowledges; None if it carries no acknowledgement.
        peer: The peer that delivered the message, as authenticated by the connection.
        error: Service Broker's error number for the reason; 0 if there is none.
        text: The reason.
    """

    NAME: ClassVar[str] = "Broker:Message Undeliverable"
    TRACE_ID: ClassVar[int] = 160
    LEVEL: ClassVar[int] = logging.WARNING

    conversation_id: uuid.UUID
    is_sequenced: bool = True
    message_sequence_number: int = 0
    fragment_number: int = 0
    acked_sequence_number: int | None = None
    peer: bytes | None = None
    error: int = 0
    text: str = ""

    @property
    def level(self) -> int:
        """WARNING for a message; INFO for an acknowledgement or an error, because these may arrive after the end of the conversation."""
        return self.LEVEL if self.is_sequenced else logging.INFO

    @property
    def source(self) -> str:
        """The peer that delivered the message."""
        return _peer_name(self.peer)

    @property
    def warned_about(self) -> str:
        """The peer and the reason, without the port from which the peer has connected."""
        return f"{self.source}, {self.error}, {self.text.partition(RECEIVED_FROM)[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMessageAcknowledgement(Event):
    """An acknowledgement was sent to, or received from, another instance.

    Attributes:
        conversation_id: The id of the conversation.
        step: The direction, and whether a message carried the acknowledgement.
        acked_sequence_number: All messages up to this number are acknowledged; None if no message is acknowledged yet.
        carrier_sequence_number: The message that carried the acknowledgement; None if the acknowledgement was sent alone.
        carrier_fragment_number: The fragment that carried the acknowledgement; None if the acknowledgement was sent alone.
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
    """A conversation was started, used, ended or failed.

    Attributes:
        conversation_id: The id of the conversation.
        step: What happened.
        is_initiator: Whether this side is the initiator.
        conversation_handle: This side's conversation handle.
        conversation_group_id: This side's conversation group.
        state: The endpoint's new state: SO, SI, CO, DI, DO, ER or CD.
        message_type_name: The message type, if the step concerns a message.
        message_sequence_number: The sequence number of the message, if the step concerns one.
        error: The error code, if the step concerns an error.
        text: The error's text.
        priority: The conversation's priority.
        far_service_name: The service at the other end of the conversation.
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
    far_service_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationGroupEvent(Event):
    """A conversation group was created or dropped.

    Attributes:
        conversation_group_id: The group.
        step: Whether the group was created or dropped.
    """

    NAME: ClassVar[str] = "Broker:Conversation Group"
    TRACE_ID: ClassVar[int] = 136

    conversation_group_id: uuid.UUID
    step: GroupStep


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Event):
    """A job failed, and its messages will be taken again: its block raised an exception, or its lease ended.

    If poison message handling moves the messages or disables the queue after the failure, `ConversationMoved` or
    `QueueDisabled` is emitted instead.

    Attributes:
        queue: The queue's name.
        conversation_id: The id of the conversation of the first message; None if the message was removed in the meantime.
        conversation_handle: The handle of the endpoint that received the first message.
        attempt: How often the messages have been taken.
        error: The error, as text of at most 2,000 characters.
        retry_at: The time from which the messages can be taken again, in UTC.
        exception: The exception of the block, which the log shows with its traceback; None if the lease ended, or for `Job.fail`.
    """

    NAME: ClassVar[str] = "Broker:Job Failed"
    LEVEL: ClassVar[int] = logging.WARNING

    queue: str
    conversation_id: uuid.UUID | None = None
    conversation_handle: uuid.UUID | None = None
    attempt: int
    error: str
    retry_at: datetime
    exception: Exception | None = field(default=None, repr=False, compare=False)

    @property
    def source(self) -> str:
        """The queue."""
        return f"{self.database}, {self.queue}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDisabled(Event):
    """Poison message handling disabled a queue, after five failures in a row or `Job.fail`.

    Attributes:
        queue: The queue's name.
        conversation_handle: The conversation of the message that failed; None if another receiver has taken the message in the meantime.
        error: The last error, as text.
    """

    NAME: ClassVar[str] = "Broker:Queue Disabled"
    TRACE_ID: ClassVar[int] = 143
    LEVEL: ClassVar[int] = logging.ERROR

    queue: str
    conversation_handle: uuid.UUID | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMoved(Event):
    """Poison message handling moved a conversation group to another queue, after five failures or `Job.fail`.

    Attributes:
        queue: The queue in which the messages failed.
        moved_to: The queue to which they were moved.
        conversation_group_id: The id of the conversation group.
        conversation_handle: The conversation of the message that failed.
        error: The last error, as text.
    """

    NAME: ClassVar[str] = "Broker:Conversation Moved"
    LEVEL: ClassVar[int] = logging.ERROR

    queue: str
    moved_to: str
    conversation_group_id: uuid.UUID
    conversation_handle: uuid.UUID | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationEvent(Event):
    """Activation started a queue reader, or a reader ended or failed.

    Attributes:
        queue: The queue's name.
        step: What happened.
        active_readers: The current number of readers of the queue.
        text: Why the reader failed.
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
    "ConversationMoved",
    "ConversationStep",
    "CorruptedMessage",
    "Event",
    "ForwardedMessage",
    "ForwardedMessageDropped",
    "ForwardedMessageSent",
    "GroupStep",
    "JobFailed",
    "MessageClassify",
    "MessageUndeliverable",
    "MirroredRouteStateChanged",
    "QueueDisabled",
    "RemoteMessageAcknowledgement",
]


RECEIVED_FROM: Final = "; received from "
"""Separates the reason from the address in the text of `MessageUndeliverable`; the address contains a port, which differs each time."""
LOG_LINES_MAX: Final = 20
"""The maximum number of log lines of one kind and source in a window."""
LOG_WINDOW: Final = 60_000_000
"""The length of a window: a minute, in microseconds."""
LOG_SOURCES_MAX: Final = 1000
"""The number of sources that are counted separately; all other sources share one count."""
WARNED_AGAIN_AFTER: Final = 3_600_000_000
"""The time without an event after which the next event is a warning again: an hour, in microseconds."""

Source = TypeVar("Source", bound=Hashable)


@dataclass(slots=True)
class _Window:
    """The lines of one source in one window."""

    began: int
    lines: int = 0


class LogRate(Generic[Source]):
    """Limits the log lines of each source. Thread-safe, except that concurrent calls may not be counted.

    Args:
        others: Maps a source to the shared source that replaces it when there are too many sources.

    Examples:
        >>> rate = LogRate(others=lambda _: "others")
        >>> [rate.allows("bank", now=0) for _ in range(22)][18:], rate.take_suppressed(now=0)
        ([True, True, False, False], [])
        >>> rate.take_suppressed(now=LOG_WINDOW), rate.allows("bank", now=LOG_WINDOW)
        ([('bank', 2)], True)
    """

    def __init__(self, *, others: Callable[[Source], Source]) -> None:
        self._others: Final = others
        self._windows: Final[dict[Source, _Window]] = {}
        self._earliest = math.inf
        self._latest = -math.inf

    def allows(self, source: Source, *, now: int) -> bool:
        """Counts a line; returns whether to write it."""
        if source not in self._windows and len(self._windows) >= LOG_SOURCES_MAX:
            source = self._others(source)
        window = self._windows.setdefault(source, _Window(now))
        self._cover(window)
        window.lines += 1
        return window.lines <= LOG_LINES_MAX

    def take_suppressed(self, *, now: int) -> list[tuple[Source, int]]:
        """Closes the windows that have ended; returns the number of suppressed lines of each source.

        Setting the clock back also ends windows.
        """
        if self._latest <= now < self._earliest + LOG_WINDOW:
            return []
        over = [source for source, each in list(self._windows.items()) if not 0 <= now - each.began < LOG_WINDOW]
        ended = [(source, self._windows.pop(source, None)) for source in over]
        self._earliest, self._latest = math.inf, -math.inf
        for window in list(self._windows.values()):
            self._cover(window)
        return [
            (source, each.lines - LOG_LINES_MAX)
            for source, each in ended
            if each is not None and each.lines > LOG_LINES_MAX
        ]

    def _cover(self, window: _Window) -> None:
        self._earliest = min(self._earliest, window.began)
        self._latest = max(self._latest, window.began)


LOGGER: Final = logging.getLogger("ssbroker.events")

Subscriber: TypeAlias = Callable[[Event], None]
First = TypeVar("First", bound=Event)
Second = TypeVar("Second", bound=Event)
Third = TypeVar("Third", bound=Event)


class EventLog:
    """Delivers events to subscribers and to `logging`.

    Every event goes to the logger `ssbroker.events`, with the event itself as the record's attribute `event`.
    Subscribers receive all events. In the log, events that a peer can trigger at will are limited to 20 lines a minute
    for each kind and peer; an additional line reports the number of suppressed lines. A connection failure or
    undeliverable message is a warning once for each peer and reason; repetitions are logged at DEBUG until there has
    been none for an hour.

    Exceptions in a subscriber are logged and do not affect other subscribers. Exceptions in a `logging` handler or filter are printed to stderr.
    Events may be emitted from several threads; a subscriber is called in the emitting thread.

    Attributes:
        counts: The number of emitted events, by `NAME`.

    Examples:
        >>> from ssbroker.protocol.events import QueueDisabled
        >>> log, seen = EventLog(), []
        >>> stop = log.subscribe(seen.append, QueueDisabled)
        >>> log.emit(QueueDisabled(at=0, queue="Orders"))
        >>> seen[0].queue, log.counts["Broker:Queue Disabled"]
        ('Orders', 1)
        >>> stop()
    """

    __slots__ = ("_rate", "_subscribers", "_warned_at", "counts")

    def __init__(self) -> None:
        # Copied on write: a thread that is emitting keeps iterating over the tuple with which it started.
        self._subscribers: tuple[tuple[Callable[..., None], tuple[type[Event], ...]], ...] = ()
        self._rate: Final[LogRate[tuple[str, int, str]]] = LogRate(others=lambda key: (*key[:2], "others"))
        self._warned_at: Final[dict[str, int]] = {}
        self.counts: Counter[str] = Counter()

    @overload
    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]: ...

    @overload
    def subscribe(
        self, subscriber: Callable[[First], None], kind: type[First], /, *kinds: type[First]
    ) -> Callable[[], None]: ...

    # mypy does not infer a union for `First`, so two and three kinds have their own overloads.
    @overload
    def subscribe(
        self, subscriber: Callable[[First | Second], None], kind: type[First], second: type[Second], /
    ) -> Callable[[], None]: ...

    @overload
    def subscribe(
        self,
        subscriber: Callable[[First | Second | Third], None],
        kind: type[First],
        second: type[Second],
        third: type[Third],
        /,
    ) -> Callable[[], None]: ...

    def subscribe(self, subscriber: Callable[..., None], *kinds: type[Event]) -> Callable[[], None]:
        """Calls `subscriber` with each event of the given kinds.

        Args:
            subscriber: A callable that takes the event.
            kinds: Event classes, including subclasses; all events if no class is passed.

        Returns:
            A function that ends the subscription.

        Raises:
            OptionError: `subscriber` is not callable, or one of `kinds` is not an event class.

        Examples:
            >>> stop = EventLog().subscribe(print)
            >>> stop()
        """
        if not callable(subscriber):
            raise OptionError(f"subscriber: expected a callable that takes an event, got {subscriber!r:.80}")
        if not returns_at_once(subscriber):
            raise OptionError(
                f"subscriber: expected a regular function, got {subscriber!r:.80}, which is a coroutine or generator function"
            )
        for kind in kinds:
            _check_kind(kind)
        entry = (subscriber, kinds or (Event,))
        self._subscribers = (*self._subscribers, entry)

        def stop() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not entry)

        return stop

    def wants(self, kind: type[Event]) -> bool:
        """Returns whether a subscriber or `logging` takes events of this class; if not, callers need not create them."""
        if LOGGER.isEnabledFor(kind.LEVEL):
            return True
        subscribers = self._subscribers
        return bool(subscribers) and any(issubclass(kind, kinds) for _, kinds in subscribers)

    def emit(self, event: Event) -> None:
        """Delivers an event to `logging` and to the subscribers."""
        self.counts[event.NAME] += 1
        if LOGGER.isEnabledFor(event.level):
            with print_logging_errors():
                level = self._level(event)
                if LOGGER.isEnabledFor(level) and self._may_be_logged(event, level):
                    exception = event.exception if isinstance(event, JobFailed) else None
                    text = _format_event(event)
                    LOGGER.log(level, "%s: %s", event.NAME, text, exc_info=exception, extra={"event": event})
        for subscriber, kinds in self._subscribers:
            if isinstance(event, kinds):
                try:
                    subscriber(event)
                except Exception:
                    with print_logging_errors():
                        LOGGER.exception(
                            "%s: a subscriber failed; the other subscribers still get the event", event.NAME
                        )

    def log_suppressed(self, *, now: int) -> None:
        """Logs how many lines were suppressed in the windows that have ended; `now` is in microseconds since 1970."""
        for (name, level, source), lines in self._rate.take_suppressed(now=now):
            words = {"event": name, "left_out": lines, "source": source}
            LOGGER.log(
                level,
                "%s: %d more lines suppressed within a minute, from %s",
                name,
                lines,
                _escape(source),
                extra={"details": words},
            )

    def allows_line(self, kind: str, *, level: int, source: str, now: int) -> bool:
        """Counts a rate-limited line that is not an event; returns whether to write it.

        Args:
            kind: The kind of line, such as Service Broker's error number.
            level: The log level.
            source: The cause of the line; each source is limited separately.
            now: The current time, in microseconds since 1970.
        """
        self.log_suppressed(now=now)
        return self._rate.allows((kind, level, source), now=now)

    def _may_be_logged(self, event: Event, level: int) -> bool:
        source = event.source
        return source is None or self.allows_line(event.NAME, level=level, source=source, now=event.at)

    def _level(self, event: Event) -> int:
        """Returns the level of an event: DEBUG for a warning that repeats an earlier one."""
        level, about = event.level, event.warned_about
        if level < logging.WARNING or about is None:
            return level
        key = f"{event.NAME}: {about}"
        before = self._warned_at.pop(key, None)
        while len(self._warned_at) >= LOG_SOURCES_MAX:
            with suppress(KeyError, StopIteration, RuntimeError):  # another thread may have removed the entry
                del self._warned_at[next(iter(self._warned_at))]
        self._warned_at[key] = event.at
        is_repeated = before is not None and 0 <= event.at - before < WARNED_AGAIN_AFTER
        return logging.DEBUG if is_repeated else level


def _check_kind(kind: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise OptionError(f"kinds: expected event classes, such as QueueDisabled, got {kind!r:.80}")


@contextmanager
def print_logging_errors() -> Iterator[None]:
    """Prints exceptions of `logging` handlers and filters instead of raising them, because the logged event has already happened."""
    try:
        yield
    except Exception:  # noqa: BLE001  # the log itself failed
        if logging.raiseExceptions:
            traceback.print_exc()


def _format_event(event: Event) -> str:
    values = attributes(event).items()
    # Names may come from peers and contain line breaks, which could forge log lines.
    text = ", ".join(f"{name}={readable_value(value)}" for name, value in values if value is not None)
    return _escape(text)


def attributes(event: Event) -> dict[str, object]:
    """Returns the attributes of an event that are shown as text, by name, without its time."""
    return {each.name: getattr(event, each.name) for each in fields(event) if each.repr and each.name != "at"}


def readable_value(value: object) -> object:
    """Returns the value of an event attribute as logs show it: the name of a peer becomes text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _escape(text: str) -> str:
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
