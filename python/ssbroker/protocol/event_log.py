"""Events, handed to who asked for them and to `logging`."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Final, TypeAlias

from ssbroker.exceptions import OptionError
from ssbroker.protocol.events import Event
from ssbroker.protocol.log_rate import LogRate

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
            >>> from ssbroker.protocol.events import Conversation
            >>> EventLog().wants(Conversation)
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
