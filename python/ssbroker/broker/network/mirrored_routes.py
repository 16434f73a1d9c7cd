"""Determines which of the two addresses of a mirrored route is the principal, and sends everything there (R51 to R54)."""

from __future__ import annotations

import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker.broker.context import InstanceContext
from ssbroker.broker.network.mirrored_route_states import MirroredRoute, MirroredRouteState, MirrorSide
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.backoff import MonotonicClock
from ssbroker.protocol.events import MirroredRouteStateChanged
from ssbroker.protocol.wire.frames import MirroringRole

if TYPE_CHECKING:
    from ssbroker.broker.network.endpoint_interfaces import NetworkEndpoint


UNKNOWN: Final[tuple[MirroringRole, int]] = ("unknown", 0)
"""The role reported for a database that is not in this instance."""
ROUTES_MAX: Final = 10_000
"""The mirrored routes to track; beyond that, the least recently used is forgotten."""


class MirroredAddresses(NamedTuple):
    """A mirrored route, for one broker id."""

    address: str
    mirror_address: str
    broker_instance: bytes

    def address_of(self, side: MirrorSide) -> str:
        """Returns the address of a side."""
        return self.address if side is MirrorSide.ADDRESS else self.mirror_address

    def sides(self, address: str) -> Iterator[MirrorSide]:
        """Returns the sides that have an address."""
        return (side for side in MirrorSide if self.address_of(side) == address)


@dataclass(slots=True)
class _RouteState:
    """The state of a mirrored route."""

    mirroring: MirroredRoute
    reported: MirroredRouteState = field(default=MirroredRouteState.UNKNOWN)
    """The state that was last reported."""


class MirroredRoutes:
    """Finds out which of two mirrored addresses is the principal; belongs to the exchange's thread.

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
        """Returns where to send now; None to wait until `changed` is called.

        Without a broker id no address can be asked; routes created by DDL have one.
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
        return self.principal_address(*pair)

    def principal_address(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """Returns what `resolve` would return, without querying roles; may be called from any thread."""
        if broker_instance is None:
            return None
        pair = MirroredAddresses(address, mirror_address, broker_instance)
        route = self._routes.get(pair)
        principal = None if route is None else route.mirroring.principal
        return None if principal is None else pair.address_of(principal)

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
        """Does what is due; returns when to call it again, in microseconds since 1970, if ever."""
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
        """Asks for the roles that are due, and reports a new state."""
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
