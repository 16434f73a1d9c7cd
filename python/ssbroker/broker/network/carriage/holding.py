"""What an instance holds for others, counted against its limit (R43, N21), and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ssbroker.broker.network.carriage.parcels import Key, Parcel, values
from ssbroker.protocol.event import Event
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.events import ForwardedMessageDropped, ForwardedMessageSent

USED_UP: Final = 11285
DOUBLE: Final = 11288
TOO_MUCH: Final = 11289
TOO_LATE: Final = 11291
UNREACHABLE: Final = 11292
NO_WAY: Final = 11294
BACKWARDS: Final = 28071

REASONS: Final = {
    USED_UP: "its hops are used up",
    DOUBLE: "the same message is being forwarded already",
    TOO_MUCH: "it would exceed message_forward_size",
    TOO_LATE: "its time to live is over",
    UNREACHABLE: "the next hop cannot be reached",
    NO_WAY: "no route leads it on any more",
    BACKWARDS: "it would go back to the instance that brought it",
}
"""Why a row is dropped, by Service Broker's numbers (facts 70 to 75). Its sender has it still, and sends it again."""


@dataclass(slots=True)
class Counters:
    """What has passed, for the performance counters of fact 168.

    Attributes:
        messages: Rows passed on.
        bytes: What they counted.
        discarded: Rows dropped.
    """

    messages: int = 0
    bytes: int = 0
    discarded: int = 0


class Holding:
    """Counts the rows that are held for others, and collects what is to be told of them.

    Attributes:
        counters: What has passed so far.

    Args:
        most: How many bytes may be held.
        events: Who is interested in events.
    """

    def __init__(self, *, most: Callable[[], int], events: EventLog) -> None:
        self.counters: Final = Counters()
        self._most: Final = most
        self._log: Final = events
        self._keys: Final[set[Key]] = set()
        self._bytes = 0
        self._said: list[Event] = []

    @property
    def pending(self) -> tuple[int, int]:
        """How many rows are held, and what they count."""
        return len(self._keys), self._bytes

    def admit(self, parcel: Parcel, *, now: int, make_room: Callable[[], None]) -> Parcel:
        """Holds what may be held.

        Args:
            parcel: Rows that have come.
            now: The moment.
            make_room: Drops what may go for them, where they would exceed the limit.

        Returns:
            The rows that are held now; the others are dropped, each for its first reason.
        """
        doomed: dict[int, int] = dict.fromkeys(parcel.late(now=now), TOO_LATE)
        doomed |= {row: USED_UP for row, hops in enumerate(values(parcel.rows, "hops_remaining")) if not hops}
        most = self._most()
        for index, (key, size) in enumerate(zip(parcel.keys, parcel.sizes, strict=True)):
            if index in doomed:
                continue
            if key in self._keys:
                doomed[index] = DOUBLE
                continue
            if self._bytes + size > most >= size:
                make_room()
            if self._bytes + size > most:
                doomed[index] = TOO_MUCH
            else:
                self._keys.add(key)
                self._bytes += size
        self._discard(parcel, doomed, now=now)
        return parcel.without(doomed)

    def drop(self, parcel: Parcel, *, error: int, now: int, why: str = "") -> None:
        """Drops rows that are held.

        Args:
            parcel: The rows.
            error: Why, as `REASONS` has it.
            now: The moment.
            why: More about it.
        """
        self._let_go(parcel)
        self._discard(parcel, dict.fromkeys(range(len(parcel.keys)), error), now=now, why=why)

    def may_come_again(self, parcel: Parcel) -> None:
        """Has the same rows taken, should they come: those that are held go another way than they would.

        Args:
            parcel: Rows that are held.
        """
        self._keys.difference_update(parcel.keys)

    def punctual(self, parcels: Iterable[Parcel], *, now: int) -> Iterator[Parcel]:
        """Drops rows whose time to live is over.

        Args:
            parcels: Rows that are held.
            now: The moment.

        Yields:
            What is left of each, where there is something.
        """
        for parcel in parcels:
            late = parcel.late(now=now)
            if late:
                self.drop(parcel.picked(late), error=TOO_LATE, now=now)
            if len(late) < len(parcel.keys):
                yield parcel.without(late)

    def sent(self, parcel: Parcel, *, next_hop: str, now: int) -> None:
        """Tells that rows have been written to their connection, and holds them no longer.

        Args:
            parcel: The rows.
            next_hop: To where.
            now: The moment.
        """
        self._let_go(parcel)
        self.counters.messages += len(parcel.keys)
        self.counters.bytes += sum(parcel.sizes)
        if self._log.wants(ForwardedMessageSent):
            self._said += parcel.sent(at=now, next_hop=next_hop)

    def said(self) -> list[Event]:
        """What is to be told since the last time."""
        said, self._said = self._said, []
        return said

    def _let_go(self, parcel: Parcel) -> None:
        self._keys.difference_update(parcel.keys)
        self._bytes -= sum(parcel.sizes)

    def _discard(self, parcel: Parcel, doomed: Mapping[int, int], *, now: int, why: str = "") -> None:
        self.counters.discarded += len(doomed)
        if not doomed or not self._log.wants(ForwardedMessageDropped):
            return
        for error in sorted({*doomed.values()}):
            rows: Collection[int] = [row for row, number in doomed.items() if number == error]
            self._said += parcel.dropped(rows, at=now, error=error, text=f"{error}: {REASONS[error]}{why}")
