"""Passes on what is for other instances: in memory only, within its limit, acknowledging nothing (R43, N21, N22)."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker.network.carriage.holding import BACKWARDS, NO_WAY, TOO_MUCH, UNREACHABLE, Counters, Holding
from ssbroker.broker.network.carriage.hop import Hop
from ssbroker.broker.network.carriage.parcels import (
    NOWHERE,
    Course,
    Parcel,
    courses_of,
    hops_after,
    keys_of,
    sizes_of,
)
from ssbroker.broker.network.seam import Endpoint, Peer
from ssbroker.protocol.adjacent.batch import WIRE
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.retry import SECOND

LOOK_EVERY: Final = SECOND
"""How often what has been written is let go where nothing else asks for it."""
HOPS_KNOWN: Final = 1024
"""The addresses of which something is known while nothing goes there."""


class Forwarding:
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
        endpoint: Endpoint,
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
        self._hops: Final[defaultdict[str, Hop]] = defaultdict(Hop)
        self._on_hold: list[Parcel] = []
        self._due: int | None = None
        self._holding: Final = Holding(most=most, events=events)

    @property
    def counters(self) -> Counters:
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
        whole = Parcel(counted, keys_of(rows), sizes_of(rows), now, peer.instance_id)
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

    def has_no_room(self, address: str) -> None:
        """The outbox of an address is full, with what this instance sends itself: what comes waits for `has_room`.

        Args:
            address: The address.
        """
        with self._guard:
            if address in self._hops:
                self._hops[address].is_full = True

    def has_room(self, address: str) -> None:
        """The outbox of an address takes rows again.

        Args:
            address: The address.
        """
        with self._telling():
            self._hops[address].is_full = False
            self._drain(address, now=self._clock())

    def reached(self, address: str, peer: Peer) -> None:
        """A connection to an address stands; `has_room` follows.

        Args:
            address: The address.
            peer: Who has answered.
        """
        with self._guard:
            hop = self._hops[address]
            hop.instance_id, hop.is_failing = peer.instance_id, False

    def unreachable(self, address: str, why: str) -> None:
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

    def settled(self) -> None:
        """Another address of a mirrored route may be the principal now: what waits for the one before goes there no more (R53)."""
        with self._telling():
            held: list[Parcel] = []
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

    def _place(self, parcel: Parcel, *, now: int) -> None:
        """Puts rows on the way that is theirs now."""
        address, mirror, broker_instance = parcel.course
        chosen = address if mirror is None else self._way(address, mirror, broker_instance)
        if chosen is None:
            self._on_hold.append(parcel)
        elif chosen not in self._hops and (why := self._endpoint.refuses(chosen)) is not None:
            self._holding.drop(parcel, error=UNREACHABLE, now=now, why=f": {why}")
        elif self._hops[chosen].instance_id == parcel.came_from:
            self._holding.drop(parcel, error=BACKWARDS, now=now)
        else:
            self._hops[chosen].waiting.append(parcel)
            self._drain(chosen, now=now)

    def _place_anew(self, parcel: Parcel, courses: Mapping[Course, Sequence[int]], *, now: int) -> None:
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
