"""Forwards messages for other instances, in memory and within a size limit."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.broker.network.interfaces import NetworkEndpoint, Peer
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.envelope import column_values
from ssbroker.protocol.events import Event, EventLog, ForwardedMessageDropped, ForwardedMessageSent
from ssbroker.protocol.wire.frames import HOPS_MAX, WIRE

ROW_BYTES: Final = 512
"""What a row counts beside its values of no fixed length (N21)."""

Key: TypeAlias = tuple[bytes, bool, int, int, bytes]
"""What makes two rows the same: conversation, direction, numbers, and the signature of the header."""

_KEY: Final = (
    "conversation_id",
    "is_initiator",
    "message_sequence_number",
    "fragment_number",
    "header_signature",
)
_VARYING: Final = tuple(field.name for field in WIRE if field.type in (pa.binary(), pa.string()))
_TOLD: Final = (
    "conversation_id",
    "is_initiator",
    "to_service_name",
    "to_broker_instance",
    "from_service_name",
    "from_broker_instance",
    "message_sequence_number",
    "fragment_number",
    "hops_remaining",
    "time_to_live",
    "message_id",
)
_GUIDS: Final = ("conversation_id", "to_broker_instance", "from_broker_instance", "message_id")
_SERVICES: Final = _TOLD.index("message_sequence_number")
_SECONDS_MAX: Final = 2**31 - 1


class ForwardRoute(NamedTuple):
    """Where rows go, as routing decided."""

    address: str
    mirror_address: str | None = None
    broker_instance: bytes | None = None


NOWHERE: Final = ForwardRoute("")
"""That of rows that are not passed on."""


def values(rows: pa.Table, column: str) -> list[Any]:
    """The values of a column.

    Args:
        rows: Rows of `WIRE`.
        column: Its name.

    Returns:
        The values.
    """
    return column_values(rows[column])


def courses_of(decisions: pa.Table) -> dict[ForwardRoute, Sequence[int]]:
    """Where rows go; the broker id matters to mirrored routes only, so that without one all rows to an address go together.

    Args:
        decisions: `schemas.DECISIONS`, a row for each.

    Returns:
        The rows of each course; `NOWHERE` is that of those that are not passed on.
    """
    addresses = decisions["next_hop_address"].unique().to_pylist()
    if len(addresses) == 1 and decisions["mirror_address"].null_count == decisions.num_rows:
        return {ForwardRoute(addresses[0] or ""): range(decisions.num_rows)}
    courses: defaultdict[ForwardRoute, list[int]] = defaultdict(list)
    names = ("next_hop_address", "mirror_address", "broker_instance")
    for row, (address, mirror, broker) in enumerate(zip(*(values(decisions, name) for name in names), strict=True)):
        if address is None:
            courses[NOWHERE].append(row)
        else:
            courses[ForwardRoute(address) if mirror is None else ForwardRoute(address, mirror, broker)].append(row)
    return {**courses}


def keys_of(rows: pa.Table) -> list[Key]:
    """What tells rows from each other.

    Args:
        rows: Rows of `WIRE`.

    Returns:
        The keys.
    """
    return [*zip(*(values(rows, name) for name in _KEY), strict=True)]


def sizes_of(rows: pa.Table) -> list[int]:
    """What rows count against `message_forward_size`.

    Args:
        rows: Rows of `WIRE`.

    Returns:
        Their bytes.
    """
    lengths = (pc.fill_null(pc.binary_length(rows[name]), 0).to_pylist() for name in _VARYING)
    return [ROW_BYTES + sum(each) for each in zip(*lengths, strict=True)]


def hops_after(rows: pa.Table) -> list[int]:
    """How many hops are left once this instance has counted its own; a neighbour cannot give more than there are.

    Args:
        rows: Rows of `WIRE`.

    Returns:
        The hops; at 0 a row goes no further.
    """
    return [max(min(hops, HOPS_MAX) - 1, 0) for hops in values(rows, "hops_remaining")]


@dataclass(slots=True)
class ForwardedRows:
    """Rows of others that go one way together.

    Attributes:
        rows: Rows of `WIRE`, as they go on.
        keys: What tells them from each other.
        sizes: What they count.
        since: When they came.
        came_from: The instance that brought them.
        course: Where they go.
        end: How many rows their outbox had taken when it had taken these.
    """

    rows: pa.Table
    keys: list[Key]
    sizes: list[int]
    since: int
    came_from: bytes
    course: ForwardRoute = NOWHERE
    end: int = 0

    def bound_for(self, course: ForwardRoute) -> ForwardedRows:
        """The rows with another course."""
        return replace(self, course=course)

    def picked(self, indices: Sequence[int]) -> ForwardedRows:
        """Some of the rows, in the order given. What they do not hold is not kept alive by them."""
        if len(indices) == len(self.keys):
            return self
        return ForwardedRows(
            self.rows.take(pa.array(indices, pa.int64())),
            [self.keys[each] for each in indices],
            [self.sizes[each] for each in indices],
            self.since,
            self.came_from,
            self.course,
        )

    def without(self, indices: Collection[int]) -> ForwardedRows:
        """The rows but for some."""
        return self.picked([each for each in range(len(self.keys)) if each not in indices])

    def consumed(self, *, now: int) -> list[int]:
        """The seconds that each row has been on its way, those here among them."""
        held = max(now - self.since, 0) // SECOND
        return [min(max(each, 0) + held, _SECONDS_MAX) for each in values(self.rows, "time_consumed")]

    def late(self, *, now: int) -> list[int]:
        """The rows whose time to live is over."""
        lives = values(self.rows, "time_to_live")
        return [row for row, (used, life) in enumerate(zip(self.consumed(now=now), lives, strict=True)) if used >= life]

    def deadline(self) -> int:
        """When the time to live of the first row is over."""
        lives: Any = self.rows["time_to_live"].cast(pa.int64())
        left = pc.min(pc.subtract(lives, pa.array(self.consumed(now=self.since), pa.int64()))).as_py()
        return self.since + SECOND * (left or 0)

    def aged(self, *, now: int) -> pa.Table:
        """The rows as they go on now."""
        at = WIRE.get_field_index("time_consumed")
        return self.rows.set_column(at, WIRE.field(at), pa.array(self.consumed(now=now), pa.int32()))

    def view_rows(self, *, now: int) -> Iterator[tuple[Any, ...]]:
        """What `sys.dm_broker_forwarded_messages` shows of them (fact 78)."""
        columns = [values(self.rows, name) for name in _TOLD]
        for *shown, message_id, used in zip(*columns, self.consumed(now=now), strict=True):
            yield (*shown[:_SERVICES], self.course.address, *shown[_SERVICES:], used, message_id)

    def sent(self, *, at: int, next_hop: str) -> Iterator[ForwardedMessageSent]:
        """The events of rows that go on."""
        for told in self._told(range(len(self.keys)), at=at):
            yield ForwardedMessageSent(next_hop_address=next_hop, **told)

    def dropped(self, indices: Collection[int], *, at: int, error: int, text: str) -> Iterator[ForwardedMessageDropped]:
        """The events of rows that go no further."""
        for told in self._told(indices, at=at):
            yield ForwardedMessageDropped(next_hop_address=self.course.address, error=error, text=text, **told)

    def _told(self, indices: Collection[int], *, at: int) -> Iterator[dict[str, Any]]:
        rows = self.rows if len(indices) == len(self.keys) else self.rows.take(pa.array(indices, pa.int64()))
        columns = {name: values(rows, name) for name in _TOLD if name != "is_initiator"}
        consumed = self.consumed(now=at)
        for index, row in zip(indices, zip(*columns.values(), strict=True), strict=True):
            told: dict[str, Any] = dict(zip(columns, row, strict=True))
            told |= {name: _guid(told[name]) for name in _GUIDS}
            yield {"at": at, "time_consumed": consumed[index], **told}


def _guid(value: bytes | None) -> uuid.UUID | None:
    return None if value is None else uuid.UUID(bytes=value)


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
class ForwardingCounters:
    """What has passed, for the performance counters of fact 168.

    Attributes:
        messages: Rows passed on.
        bytes: What they counted.
        discarded: Rows dropped.
    """

    messages: int = 0
    bytes: int = 0
    discarded: int = 0


class ForwardingBuffer:
    """Counts the rows that are held for others, and collects what is to be told of them.

    Attributes:
        counters: What has passed so far.

    Args:
        most: How many bytes may be held.
        events: Who is interested in events.
    """

    def __init__(self, *, most: Callable[[], int], events: EventLog) -> None:
        self.counters: Final = ForwardingCounters()
        self._most: Final = most
        self._log: Final = events
        self._keys: Final[set[Key]] = set()
        self._bytes = 0
        self._said: list[Event] = []

    @property
    def pending(self) -> tuple[int, int]:
        """How many rows are held, and what they count."""
        return len(self._keys), self._bytes

    def admit(self, parcel: ForwardedRows, *, now: int, make_room: Callable[[], None]) -> ForwardedRows:
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

    def drop(self, parcel: ForwardedRows, *, error: int, now: int, why: str = "") -> None:
        """Drops rows that are held.

        Args:
            parcel: The rows.
            error: Why, as `REASONS` has it.
            now: The moment.
            why: More about it.
        """
        self._let_go(parcel)
        self._discard(parcel, dict.fromkeys(range(len(parcel.keys)), error), now=now, why=why)

    def may_come_again(self, parcel: ForwardedRows) -> None:
        """Has the same rows taken, should they come: those that are held go another way than they would.

        Args:
            parcel: Rows that are held.
        """
        self._keys.difference_update(parcel.keys)

    def punctual(self, parcels: Iterable[ForwardedRows], *, now: int) -> Iterator[ForwardedRows]:
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

    def sent(self, parcel: ForwardedRows, *, next_hop: str, now: int) -> None:
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

    def _let_go(self, parcel: ForwardedRows) -> None:
        self._keys.difference_update(parcel.keys)
        self._bytes -= sum(parcel.sizes)

    def _discard(self, parcel: ForwardedRows, doomed: Mapping[int, int], *, now: int, why: str = "") -> None:
        self.counters.discarded += len(doomed)
        if not doomed or not self._log.wants(ForwardedMessageDropped):
            return
        for error in sorted({*doomed.values()}):
            rows: Collection[int] = [row for row, number in doomed.items() if number == error]
            self._said += parcel.dropped(rows, at=now, error=error, text=f"{error}: {REASONS[error]}{why}")


@dataclass(slots=True)
class ForwardingHop:
    """An address to which rows go.

    Attributes:
        waiting: What its outbox has not taken.
        under_way: What its outbox has taken and not written.
        is_full: Whether its outbox takes nothing now.
        is_failing: Whether it could not be reached.
        instance_id: Which instance has answered there.
    """

    waiting: deque[ForwardedRows] = field(default_factory=deque)
    under_way: deque[ForwardedRows] = field(default_factory=deque)
    is_full: bool = False
    is_failing: bool = False
    instance_id: bytes | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no rows go there."""
        return not self.waiting and not self.under_way


LOOK_EVERY: Final = SECOND
"""How often what has been written is let go where nothing else asks for it."""
HOPS_KNOWN: Final = 1024
"""The addresses of which something is known while nothing goes there."""


class MessageForwarder:
    """The rows that an instance holds for others. It implements `hooks.Forwards`; what it shows may be asked for by any thread.

    Args:
        endpoint: What sends.
        way: Which of the addresses of a mirrored route is the principal, as `hooks.Mirrors.way`; None is to hold.
        most: How many bytes may be held.
        events: Where it is told what is passed on and what is dropped.
        clock: The moment, in microseconds since 1970.
    """

    def __init__(
        self,
        endpoint: NetworkEndpoint,
        *,
        way: Callable[[str, str, bytes | None], str | None],
        most: Callable[[], int],
        events: EventLog,
        clock: Callable[[], int],
    ) -> None:
        self._endpoint: Final = endpoint
        self._way: Final = way
        self._log: Final = events
        self._clock: Final = clock
        self._guard: Final = threading.RLock()
        self._hops: Final[defaultdict[str, ForwardingHop]] = defaultdict(ForwardingHop)
        self._on_hold: list[ForwardedRows] = []
        self._due: int | None = None
        self._holding: Final = ForwardingBuffer(most=most, events=events)

    @property
    def counters(self) -> ForwardingCounters:
        """What has passed so far."""
        with self._guard:
            self._let_go()
            return replace(self._holding.counters)

    @property
    def pending(self) -> tuple[int, int]:
        """How many rows are held, and what they count."""
        with self._guard:
            self._let_go()
            return self._holding.pending

    def view_rows(self) -> list[tuple[Any, ...]]:
        """The rows of `sys.dm_broker_forwarded_messages`: what is held until it has been written to its connection."""
        now = self._clock()
        with self._guard:
            self._let_go()
            held = [*self._on_hold, *(each for hop in self._hops.values() for each in (*hop.under_way, *hop.waiting))]
        return [row for parcel in held for row in parcel.view_rows(now=now)]

    def forward(self, peer: Peer, rows: pa.Table, decisions: pa.Table) -> None:
        """Takes rows that routing would have passed on.

        Args:
            peer: Who brought them.
            rows: Rows of `WIRE`, as they came.
            decisions: `schemas.DECISIONS`, a row for each.
        """
        now = self._clock()
        at = WIRE.get_field_index("hops_remaining")
        counted = rows.set_column(at, WIRE.field(at), pa.array(hops_after(rows), pa.int8()))
        whole = ForwardedRows(counted, keys_of(rows), sizes_of(rows), now, peer.instance_id)
        with self._telling():
            self._let_go()
            for course, indices in courses_of(decisions).items():
                parcel = whole.picked(indices).bound_for(course)
                admitted = self._holding.admit(parcel, now=now, make_room=lambda: self._make_room(now=now))
                if admitted.keys:
                    self._due = min(admitted.deadline(), self._due or admitted.deadline())
                    self._place(admitted, now=now)
                elif course.mirror_address is not None:  # what comes again while it is held still wants to go (N23)
                    self._way(course.address, course.mirror_address, course.broker_instance)

    def outbox_full(self, address: str) -> None:
        """The outbox of an address is full, with what this instance sends itself: what comes waits for `has_room`.

        Args:
            address: The address.
        """
        with self._guard:
            if address in self._hops:
                self._hops[address].is_full = True

    def outbox_drained(self, address: str) -> None:
        """The outbox of an address takes rows again.

        Args:
            address: The address.
        """
        with self._telling():
            self._hops[address].is_full = False
            self._drain(address, now=self._clock())

    def connected(self, address: str, peer: Peer) -> None:
        """A connection to an address stands; `has_room` follows.

        Args:
            address: The address.
            peer: Who has answered.
        """
        with self._guard:
            hop = self._hops[address]
            hop.instance_id, hop.is_failing = peer.instance_id, False

    def connection_failed(self, address: str, why: str) -> None:
        """An address cannot be reached, or its connection broke: what was under way is dropped, since its senders have it.

        What its outbox had not taken yet waits until it is dialled again.

        Args:
            address: The address.
            why: Why not.
        """
        now = self._clock()
        with self._telling():
            hop = self._hops[address]
            while hop.under_way:
                self._holding.drop(hop.under_way.popleft(), error=UNREACHABLE, now=now, why=f": {why}")
            hop.is_failing, hop.is_full = True, False
            self._drain(address, now=now)  # so that its outbox says when it takes something again

    def mirrors_changed(self) -> None:
        """Another address of a mirrored route may be the principal now: what waits for the one before goes there no more (R53)."""
        with self._telling():
            held: list[ForwardedRows] = []
            for hop in self._hops.values():
                held += (each for each in hop.waiting if each.course.mirror_address is not None)
                hop.waiting = deque(each for each in hop.waiting if each.course.mirror_address is None)
            held += self._on_hold
            self._on_hold = []
            for parcel in held:
                self._place(parcel, now=self._clock())

    def reroute(self, route: Callable[[pa.Table], pa.Table]) -> None:
        """The catalog has changed: what no outbox has taken goes where it leads now, and is dropped where it leads nowhere on (N21).

        What an outbox has taken for another way than the one of now may come again meanwhile: it is no double there.

        Args:
            route: Gives `schemas.DECISIONS` for rows of `WIRE`.
        """
        now = self._clock()
        with self._telling():
            self._let_go()
            waiting = [*self._on_hold, *(each for hop in self._hops.values() for each in hop.waiting)]
            taken = [each for hop in self._hops.values() for each in hop.under_way]
            if not waiting and not taken:
                return
            decisions, place = route(pa.concat_tables([each.rows for each in (*waiting, *taken)])), 0
            self._on_hold = []
            for hop in self._hops.values():
                hop.waiting.clear()
            for number, parcel in enumerate((*waiting, *taken)):
                courses = courses_of(decisions.slice(place, len(parcel.keys)))
                place += len(parcel.keys)
                if number < len(waiting):
                    self._place_anew(parcel, courses, now=now)
                elif {*courses} != {parcel.course}:
                    self._holding.may_come_again(parcel)

    def run_due(self, *, now: int) -> int | None:
        """Drops what has been held for too long, and lets go what has been written.

        Args:
            now: The moment.

        Returns:
            When to call again; None where nothing is held.
        """
        with self._telling():
            self._let_go()
            if self._due is not None and self._due <= now:
                self._drop_late(now=now)
            self._forget_idle()
            looks = [now + LOOK_EVERY] if any(hop.under_way for hop in self._hops.values()) else []
            is_held = self._on_hold or any(hop.waiting for hop in self._hops.values())
            return min((*looks, *([self._due] if is_held and self._due is not None else [])), default=None)

    def _place(self, parcel: ForwardedRows, *, now: int) -> None:
        """Puts rows on the way that is theirs now."""
        address, mirror, broker_instance = parcel.course
        chosen = address if mirror is None else self._way(address, mirror, broker_instance)
        if chosen is None:
            self._on_hold.append(parcel)
        elif chosen not in self._hops and (why := self._endpoint.refusal_reason(chosen)) is not None:
            self._holding.drop(parcel, error=UNREACHABLE, now=now, why=f": {why}")
        elif self._hops[chosen].instance_id == parcel.came_from:
            self._holding.drop(parcel, error=BACKWARDS, now=now)
        else:
            self._hops[chosen].waiting.append(parcel)
            self._drain(chosen, now=now)

    def _place_anew(self, parcel: ForwardedRows, courses: Mapping[ForwardRoute, Sequence[int]], *, now: int) -> None:
        for course, indices in courses.items():
            some = parcel.picked(indices)
            if course == NOWHERE:
                self._holding.drop(some, error=NO_WAY, now=now)
            else:
                self._place(some.bound_for(course), now=now)

    def _drain(self, address: str, *, now: int) -> None:
        hop = self._hops[address]
        while hop.waiting and not hop.is_full:
            for parcel in self._holding.punctual([hop.waiting.popleft()], now=now):
                before, _ = self._endpoint.progress(address)
                hop.is_full = self._endpoint.send(address, parcel.aged(now=now)) <= 0
                parcel.end, _ = self._endpoint.progress(address)
                if parcel.end > before:
                    hop.under_way.append(parcel)
                else:  # its outbox was full, or a failed dial has to be waited for
                    hop.is_full = True
                    hop.waiting.appendleft(parcel)

    def _drop_late(self, *, now: int) -> None:
        """Drops what has been held for too long, and finds out when there is more of it."""
        self._on_hold = [*self._holding.punctual(self._on_hold, now=now)]
        for hop in self._hops.values():
            hop.waiting = deque(self._holding.punctual(hop.waiting, now=now))
        held = [*self._on_hold, *(each for hop in self._hops.values() for each in hop.waiting)]
        self._due = min((parcel.deadline() for parcel in held), default=None)

    def _make_room(self, *, now: int) -> None:
        """Drops what waits for those who cannot be reached, so that it is in nobody else's way."""
        stuck, self._on_hold = self._on_hold, []
        for hop in self._hops.values():
            if hop.is_failing:
                stuck += hop.waiting
                hop.waiting.clear()
        for parcel in stuck:
            self._holding.drop(parcel, error=TOO_MUCH, now=now)

    def _let_go(self) -> None:
        """Tells of what has been written, and holds it no longer."""
        for address, hop in self._hops.items():
            if hop.under_way:
                _, done = self._endpoint.progress(address)
                while hop.under_way and hop.under_way[0].end <= done:
                    self._holding.sent(hop.under_way.popleft(), next_hop=address, now=self._clock())

    def _forget_idle(self) -> None:
        """Addresses may come from the names of services (R23), so from anybody."""
        if len(self._hops) > HOPS_KNOWN:
            for address in [address for address, hop in self._hops.items() if hop.is_idle]:
                del self._hops[address]

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Changes what is held, and tells of it afterwards, when a subscriber may ask for the view."""
        with self._guard:
            yield
            said = self._holding.said()
        for event in said:
            self._log.emit(event)
