"""Finds which of the two addresses of a mirrored route is the principal (R51 to R54), with queries and a state table."""

from __future__ import annotations

import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker.broker.context import InstanceContext
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.events import MirroredRouteStateChanged
from ssbroker.protocol.retry_waits import JITTER, MonotonicClock
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.wire.frames import MirroringRole

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import NetworkEndpoint


ANSWER_TIMEOUT: Final = 10 * SECOND
"""How long connecting and answering may take in total; after that, the address counts as silent."""
CHECK_INTERVAL: Final = 10 * SECOND
"""How often the principal is asked whether it still has the role, while messages are sent to it."""
ROUND_WAITS: Final = tuple(seconds * SECOND for seconds in (1, 2, 4, 8, 16))
"""The waits between rounds of queries that found no principal; the last wait repeats."""
ASK_AFTER_USE: Final = 128 * SECOND
"""How long queries continue after the last message to send; longer than the longest wait of P17."""


class MirrorSide(StrEnum):
    """One of the two addresses of a mirrored route."""

    ADDRESS = "address"
    MIRROR = "mirror"

    @property
    def other(self) -> MirrorSide:
        """The other side."""
        return MirrorSide.MIRROR if self is MirrorSide.ADDRESS else MirrorSide.ADDRESS


class MirroredRouteState(StrEnum):
    """The state of a mirrored route."""

    UNKNOWN = "UNKNOWN"
    """The route has not been used yet: both sides are asked (R51)."""
    PRINCIPAL_IS_ADDRESS = "PRINCIPAL_IS_ADDRESS"
    """Everything is sent to the address, and the mirror is not contacted (R52)."""
    PRINCIPAL_IS_MIRROR = "PRINCIPAL_IS_MIRROR"
    """Everything is sent to the mirror address."""
    LOST_ADDRESS = "LOST_ADDRESS"
    """The address was the principal, but is now silent or denies the role: both sides are asked, and nothing is sent (R54)."""
    LOST_MIRROR = "LOST_MIRROR"
    """The mirror address was the principal, but is now silent or denies the role: both sides are asked, and nothing is sent (R54)."""
    CONTESTED = "CONTESTED"
    """Both sides claim the role with the same number: nothing is sent."""


class AnswerState(StrEnum):
    """The result of the last query to one side."""

    PENDING = "PENDING"
    """No answer yet."""
    CLAIMS = "CLAIMS"
    """The side claims to be the principal."""
    DENIES = "DENIES"
    """The side is not the principal, does not know its role, or its claim is older than the other side's."""
    SILENT = "SILENT"
    """The side is unreachable, or has not answered in time."""


_UN, _PA, _PM, _LA, _LM, _CO = MirroredRouteState
_PENDING, _CLAIMS, _DENIES, _SILENT = AnswerState

# fmt: off
TRANSITIONS: Final[dict[MirroredRouteState, dict[AnswerState, dict[AnswerState, MirroredRouteState]]]] = {
    # The answer of the address selects the row; the answer of the mirror selects the column.
    _UN: {
        _PENDING: {_PENDING: _UN, _CLAIMS: _UN, _DENIES: _UN, _SILENT: _UN},
        _CLAIMS:  {_PENDING: _UN, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_PENDING: _UN, _CLAIMS: _PM, _DENIES: _UN, _SILENT: _UN},
        _SILENT:  {_PENDING: _UN, _CLAIMS: _PM, _DENIES: _UN, _SILENT: _UN},
    },
    _PA: {
        _PENDING: {_PENDING: _PA, _CLAIMS: _PM, _DENIES: _PA, _SILENT: _PA},
        _CLAIMS:  {_PENDING: _PA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_PENDING: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
        _SILENT:  {_PENDING: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
    },
    _PM: {
        _PENDING: {_PENDING: _PM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
        _CLAIMS:  {_PENDING: _PA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_PENDING: _PM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
        _SILENT:  {_PENDING: _PM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
    },
    _LA: {
        _PENDING: {_PENDING: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
        _CLAIMS:  {_PENDING: _LA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_PENDING: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
        _SILENT:  {_PENDING: _LA, _CLAIMS: _PM, _DENIES: _LA, _SILENT: _LA},
    },
    _LM: {
        _PENDING: {_PENDING: _LM, _CLAIMS: _LM, _DENIES: _LM, _SILENT: _LM},
        _CLAIMS:  {_PENDING: _PA, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_PENDING: _LM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
        _SILENT:  {_PENDING: _LM, _CLAIMS: _PM, _DENIES: _LM, _SILENT: _LM},
    },
    _CO: {
        _PENDING: {_PENDING: _CO, _CLAIMS: _CO, _DENIES: _CO, _SILENT: _CO},
        _CLAIMS:  {_PENDING: _CO, _CLAIMS: _CO, _DENIES: _PA, _SILENT: _PA},
        _DENIES:  {_PENDING: _CO, _CLAIMS: _PM, _DENIES: _CO, _SILENT: _CO},
        _SILENT:  {_PENDING: _CO, _CLAIMS: _PM, _DENIES: _CO, _SILENT: _CO},
    },
}
# fmt: on
"""The next state, for each state, answer of the address, and answer of the mirror."""

PRINCIPALS: Final = {
    MirroredRouteState.PRINCIPAL_IS_ADDRESS: MirrorSide.ADDRESS,
    MirroredRouteState.PRINCIPAL_IS_MIRROR: MirrorSide.MIRROR,
}
"""The states in which messages are sent, and the side that receives them."""


@dataclass(slots=True)
class _Side:
    """What is known about one of the two addresses of a mirrored route."""

    answer: AnswerState = AnswerState.PENDING
    claim: int | None = None
    """The number of the last claim that the side has not withdrawn."""
    queried_at: int | None = None
    """When the unanswered query was sent."""
    answered_at: int = 0
    """When the side last answered."""


class MirroredRoute:
    """Finds the principal of a mirrored route and detects failovers. Times are in microseconds; the caller sends the queries.

    A claim counts only if its number is not lower than the number of the other side's last claim, unless that claim has
    been withdrawn. It does not matter how long the other side has been silent.

    Attributes:
        state: The current state.

    Args:
        random: Returns numbers in [0, 1) for the jitter of the waits.

    Examples:
        >>> mirroring = MirroredRoute(random=lambda: 0.5)
        >>> mirroring.mark_used(now=0)
        >>> [side.value for side in mirroring.sides_to_ask(now=0)]
        ['address', 'mirror']
        >>> mirroring.role_received(MirrorSide.ADDRESS, "principal", 1, now=5)
        >>> mirroring.role_received(MirrorSide.MIRROR, "mirror", 1, now=9)
        >>> mirroring.state.value, mirroring.principal.value
        ('PRINCIPAL_IS_ADDRESS', 'address')
    """

    __slots__ = ("_last_used", "_next_round", "_random", "_rounds", "_sides", "state")

    def __init__(self, *, random: Callable[[], float]) -> None:
        self.state = MirroredRouteState.UNKNOWN
        self._random: Final = random
        self._sides: Final = {side: _Side() for side in MirrorSide}
        self._last_used: int | None = None
        self._rounds = 0
        self._next_round = 0

    @property
    def principal(self) -> MirrorSide | None:
        """The side to which messages are sent; None if there is none."""
        return PRINCIPALS.get(self.state)

    def mark_used(self, *, now: int) -> None:
        """Records that there are messages to send; without messages, no side is asked."""
        self._last_used = now

    def sides_to_ask(self, *, now: int) -> list[MirrorSide]:
        """Returns the sides that the caller must ask now. A side is returned only once until it has answered or is silent."""
        due = self._next_query_time()
        if due is None or due > now:
            return []
        sides = [*MirrorSide] if self.principal is None else [self.principal]
        for side in sides:
            self._sides[side].queried_at = now
            self._sides[side].answer = AnswerState.PENDING
        return sides

    def role_received(self, side: MirrorSide, role: MirroringRole, number: int, *, now: int) -> None:
        """Records that a side has reported its role and the number of that role."""
        answering = self._sides[side]
        is_claim = role == "principal"
        answering.answer = AnswerState.CLAIMS if is_claim else AnswerState.DENIES
        answering.claim = number if is_claim else None
        answering.answered_at = now
        self._apply_answer(answering, now=now)

    def mark_silent(self, side: MirrorSide, *, now: int) -> None:
        """Records that a side is unreachable, or that its connection broke."""
        silent = self._sides[side]
        silent.answer = AnswerState.SILENT
        self._apply_answer(silent, now=now)

    def mark_reachable(self, side: MirrorSide, *, now: int) -> None:
        """Records that a side is connected again: if there is no principal, the side is asked without waiting."""
        if self.principal is None and self._sides[side].answer is AnswerState.SILENT:
            self._rounds = 0
            self._next_round = min(self._next_round, now)

    def next_timeout(self) -> int | None:
        """Returns when to call `handle_timeout` and then `sides_to_ask`; None if no answer is awaited and no query is planned."""
        answer_deadlines = [
            each.queried_at + ANSWER_TIMEOUT for each in self._sides.values() if each.queried_at is not None
        ]
        next_query = self._next_query_time()
        return min([*answer_deadlines, *([] if next_query is None else [next_query])], default=None)

    def handle_timeout(self, *, now: int) -> None:
        """Marks the sides that have not answered in time as silent."""
        for side, asked in self._sides.items():
            if asked.queried_at is not None and now - asked.queried_at >= ANSWER_TIMEOUT:
                self.mark_silent(side, now=now)

    def _next_query_time(self) -> int | None:
        """Returns when to ask next; None while an answer is pending, or if the route is not in use."""
        used_at, principal = self._last_used, self.principal
        if used_at is None:
            return None
        if principal is not None:
            asked = self._sides[principal]
            due = asked.answered_at + CHECK_INTERVAL
            return due if asked.queried_at is None and used_at > asked.answered_at else None
        if any(each.queried_at is not None for each in self._sides.values()):
            return None
        return self._next_round if self._next_round - used_at < ASK_AFTER_USE else None

    def _apply_answer(self, answering: _Side, *, now: int) -> None:
        answering.queried_at = None
        before = self.state
        answers = self._answers()
        self.state = TRANSITIONS[before][answers[0]][answers[1]]
        principal = self.principal
        if principal is not None:
            self._rounds = 0
            if self.state is not before:
                # Only new answers of the other side count from now on.
                self._sides[principal.other].answer = AnswerState.PENDING
        elif before in PRINCIPALS:
            self._next_round = now
            self._cancel_queries()
        elif all(each.queried_at is None for each in self._sides.values()):
            wait = ROUND_WAITS[min(self._rounds, len(ROUND_WAITS) - 1)]
            self._next_round = now + round(wait * (1 + JITTER * (2 * self._random() - 1)))
            self._rounds += 1

    def _cancel_queries(self) -> None:
        """Treats answers to queries that were sent before the principal was lost as unsolicited."""
        for each in self._sides.values():
            each.queried_at = None

    def _answers(self) -> tuple[AnswerState, AnswerState]:
        """Returns the answers of both sides after comparing their claims."""
        address, mirror = self._sides.values()
        answers = address.answer, mirror.answer
        if AnswerState.CLAIMS not in answers or address.claim is None or mirror.claim is None:
            return answers
        if address.claim == mirror.claim:
            # A side that has not answered yet may withdraw its claim.
            both = AnswerState.PENDING if AnswerState.PENDING in answers else AnswerState.CLAIMS
            return both, both
        if address.claim < mirror.claim:
            return (AnswerState.DENIES if address.answer is AnswerState.CLAIMS else address.answer), mirror.answer
        return address.answer, (AnswerState.DENIES if mirror.answer is AnswerState.CLAIMS else mirror.answer)


UNKNOWN: Final[tuple[MirroringRole, int]] = ("unknown", 0)
"""The role reported for a database that is not in this instance."""
ROUTES_MAX: Final = 10_000
"""The maximum number of mirrored routes to track; beyond that, the least recently used route is forgotten."""


class MirroredAddresses(NamedTuple):
    """A mirrored route, for one broker id."""

    address: str
    mirror_address: str
    broker_instance: bytes

    def address_of(self, side: MirrorSide) -> str:
        """Returns the address of a side."""
        return self.address if side is MirrorSide.ADDRESS else self.mirror_address

    def sides(self, address: str) -> Iterator[MirrorSide]:
        """Returns the sides that have the given address."""
        return (side for side in MirrorSide if self.address_of(side) == address)


@dataclass(slots=True)
class _RouteState:
    """The state of a mirrored route."""

    mirroring: MirroredRoute
    reported: MirroredRouteState = field(default=MirroredRouteState.UNKNOWN)
    """The state that was last reported."""


def _principal_address(pair: MirroredAddresses, route: _RouteState) -> str | None:
    principal = route.mirroring.principal
    return None if principal is None else pair.address_of(principal)


class MirroredRoutes:
    """Finds out which of two mirrored addresses is the principal. Used by the exchange's thread.

    `changed` is called, never from within `resolve`, when the principal of a route may have changed.
    """

    def __init__(
        self, instance: InstanceContext, endpoint: NetworkEndpoint, *, changed: Callable[[MirroredAddresses], None]
    ) -> None:
        self._instance: Final = instance
        self._endpoint: Final = endpoint
        self._changed: Final = changed
        self._clock: Final = MonotonicClock()
        self._routes: Final[OrderedDict[MirroredAddresses, _RouteState]] = OrderedDict()
        self._by_address: Final[defaultdict[str, set[MirroredAddresses]]] = defaultdict(set)
        self._due: int | None = None

    def resolve(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """Returns the address of the principal, to which to send now; None to wait until `changed` is called.

        Without a broker id, no address can be asked; routes created by DDL always have a broker id.
        """
        if broker_instance is None:
            return None
        pair = MirroredAddresses(address, mirror_address, broker_instance)
        route = self._routes.get(pair)
        if route is None:
            route = self._add(pair)
        self._routes.move_to_end(pair)
        now = self._now()
        route.mirroring.mark_used(now=now)
        self._query_roles(pair, route.mirroring, now=now)
        return _principal_address(pair, route)

    def principal_address(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """Returns the address of the principal like `resolve`, but queries no roles; None if it is not known. May be called from any thread."""
        if broker_instance is None:
            return None
        pair = MirroredAddresses(address, mirror_address, broker_instance)
        route = self._routes.get(pair)
        return None if route is None else _principal_address(pair, route)

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """Returns the mirroring role and role number of databases of this instance; must not wait."""
        try:
            brokers = [objects.broker for _, objects in self._instance.databases_list.readable()]
        except SsbrokerError:
            brokers = []
        roles: dict[bytes, tuple[MirroringRole, int]] = {
            broker.service_broker_guid: (broker.mirroring_role, broker.mirroring_number)
            for broker in brokers
            if broker.is_broker_enabled
        }
        return [roles.get(each, UNKNOWN) for each in broker_instances]

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Handles the reply of an address to a role query."""
        now = self._now()
        for pair in self._pairs(address):
            if pair.broker_instance == broker_instance:
                for side in pair.sides(address):
                    self._routes[pair].mirroring.role_received(side, role, number, now=now)
                self._update(pair, now=now)

    def connected(self, address: str) -> None:
        """Reports a connection to an address."""
        now = self._now()
        for pair in self._pairs(address):
            for side in pair.sides(address):
                self._routes[pair].mirroring.mark_reachable(side, now=now)
            self._update(pair, now=now)

    def connection_failed(self, address: str) -> None:
        """Reports that a connection to an address failed or broke."""
        now = self._now()
        for pair in self._pairs(address):
            for side in pair.sides(address):
                self._routes[pair].mirroring.mark_silent(side, now=now)
            self._update(pair, now=now)

    def run_due(self, *, now: int) -> int | None:
        """Does the work that is due; returns when to call `run_due` again, in microseconds since 1970, or None if no work is scheduled."""
        monotonic = self._clock.monotonic(now)
        if self._due is not None and self._due <= monotonic:
            self._due = None
            for pair, route in [*self._routes.items()]:
                route.mirroring.handle_timeout(now=monotonic)
                self._update(pair, now=monotonic)
        return None if self._due is None else self._clock.wall_time(self._due)

    def _add(self, pair: MirroredAddresses) -> _RouteState:
        while len(self._routes) >= ROUTES_MAX:
            oldest, _ = self._routes.popitem(last=False)
            for side in MirrorSide:
                self._by_address[oldest.address_of(side)].discard(oldest)
                if not self._by_address[oldest.address_of(side)]:
                    del self._by_address[oldest.address_of(side)]
        route = self._routes[pair] = _RouteState(MirroredRoute(random=self._instance.random.random))
        for side in MirrorSide:
            self._by_address[pair.address_of(side)].add(pair)
        return route

    def _pairs(self, address: str) -> list[MirroredAddresses]:
        return sorted(self._by_address[address]) if address in self._by_address else []

    def _update(self, pair: MirroredAddresses, *, now: int) -> None:
        """Sends the role queries that are due, and reports a new state."""
        route = self._routes[pair]
        mirroring = route.mirroring
        self._query_roles(pair, mirroring, now=now)
        if mirroring.state is route.reported:
            return
        route.reported = mirroring.state
        principal = mirroring.principal
        self._instance.events.emit(
            MirroredRouteStateChanged(
                at=self._clock.wall_time(now),
                broker_instance=uuid.UUID(bytes=pair.broker_instance),
                address=pair.address,
                mirror_address=pair.mirror_address,
                state=str(mirroring.state),
                principal_address=None if principal is None else pair.address_of(principal),
                text=_TEXTS[mirroring.state],
            )
        )
        self._changed(pair)

    def _query_roles(self, pair: MirroredAddresses, mirroring: MirroredRoute, *, now: int) -> None:
        for side in mirroring.sides_to_ask(now=now):
            self._endpoint.query_role(pair.address_of(side), pair.broker_instance)
        due = mirroring.next_timeout()
        if due is not None and (self._due is None or due < self._due):
            self._due = due

    def _now(self) -> int:
        return self._clock.monotonic(self._instance.microseconds())


_TEXTS: Final = {
    MirroredRouteState.UNKNOWN: "the principal is unknown: nothing is sent",
    MirroredRouteState.PRINCIPAL_IS_ADDRESS: "the address is the principal: all messages are sent there",
    MirroredRouteState.PRINCIPAL_IS_MIRROR: "the mirror address is the principal: all messages are sent there",
    MirroredRouteState.LOST_ADDRESS: "the address was the principal, and no longer answers or no longer has that role: "
    "nothing is sent until it is the principal again or the mirror address has taken over",
    MirroredRouteState.LOST_MIRROR: "the mirror address was the principal, and no longer answers or no longer has that role: "
    "nothing is sent until it is the principal again or the address has taken over",
    MirroredRouteState.CONTESTED: "both addresses report, or last reported, the principal role with the same number: nothing is sent. "
    'Make the wrong one the mirror with set_mirroring_role("mirror"), '
    'or the right one the principal with a greater number with set_mirroring_role("principal", number=...)',
}
