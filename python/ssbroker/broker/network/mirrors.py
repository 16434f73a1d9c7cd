"""Asks the two addresses of mirrored routes which one is the principal, and sends everything there (R51 to R54, N23, N24)."""

from __future__ import annotations

import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.context import InstanceContext
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.engine import MonotonicClock
from ssbroker.protocol.events import MirroredRouteStateChanged
from ssbroker.protocol.mirroring import MirroredRoute, MirroredRouteState, MirroringRole, MirrorSide

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import NetworkEndpoint


UNKNOWN: Final[tuple[MirroringRole, int]] = ("unknown", 0)
"""What is answered about a database that is not in this instance; it claims nothing (N24)."""
ROUTES_MAX: Final = 10_000
"""The mirrored routes of which something is known; beyond that, what is known of the one that was used longest ago is forgotten."""


class MirroredAddresses(NamedTuple):
    """A mirrored route, for one broker id."""

    address: str
    mirror_address: str
    broker_instance: bytes

    def at(self, side: MirrorSide) -> str:
        """The address of one side."""
        return self.address if side is MirrorSide.ADDRESS else self.mirror_address

    def sides(self, address: str) -> Iterator[MirrorSide]:
        """The sides that have an address."""
        return (side for side in MirrorSide if self.at(side) == address)


@dataclass(slots=True)
class _PairState:
    """What is known of a mirrored route."""

    mirroring: MirroredRoute
    told: MirroredRouteState = field(default=MirroredRouteState.UNKNOWN)
    """The state that was last told of."""


class MirroredRoutes:
    """The principals of mirrored routes. It implements `hooks.Mirrors`, and belongs to the exchange's thread.

    Args:
        instance: The instance that sends.
        endpoint: What asks.
        changed: Called when `way` may have another answer for a route; never from within `way`.
    """

    def __init__(
        self, instance: InstanceContext, endpoint: NetworkEndpoint, *, changed: Callable[[MirroredAddresses], None]
    ) -> None:
        self._instance: Final = instance
        self._endpoint: Final = endpoint
        self._changed: Final = changed
        self._clock: Final = MonotonicClock()
        self._known: Final[OrderedDict[MirroredAddresses, _PairState]] = OrderedDict()
        self._at: Final[defaultdict[str, set[MirroredAddresses]]] = defaultdict(set)
        self._due: int | None = None

    def resolve(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """Where to send now.

        Args:
            address: The address of a mirrored route.
            mirror_address: Its other address.
            broker_instance: The broker id whose principal is meant. Without one nobody can be asked; routes that are made by DDL have one.

        Returns:
            The principal's address; None: nothing is to be sent.
        """
        if broker_instance is None:
            return None
        pair = MirroredAddresses(address, mirror_address, broker_instance)
        known = self._known.get(pair)
        if known is None:
            known = self._add(pair)
        self._known.move_to_end(pair)
        now = self._now()
        known.mirroring.mark_used(now=now)
        self._ask(pair, known.mirroring, now=now)
        return self.principal(*pair)

    def principal(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """What `way` would say, without wanting to send. It may be asked for by any thread.

        Args:
            address: The address of a mirrored route.
            mirror_address: Its other address.
            broker_instance: The broker id whose principal is meant.

        Returns:
            The principal's address; None where none is known.
        """
        if broker_instance is None:
            return None
        pair = MirroredAddresses(address, mirror_address, broker_instance)
        known = self._known.get(pair)
        principal = None if known is None else known.mirroring.principal
        return None if principal is None else pair.at(principal)

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """What the databases with some broker ids are here. It may be asked for by any thread.

        Args:
            broker_instances: The broker ids.

        Returns:
            For each the role and its number.
        """
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
        """An address has said what its database is.

        Args:
            address: Who.
            broker_instance: The database's broker id.
            role: What it is.
            number: The role's number.
        """
        now = self._now()
        for pair in self._pairs(address):
            if pair.broker_instance == broker_instance:
                for side in pair.sides(address):
                    self._known[pair].mirroring.role_received(side, role, number, now=now)
                self._proceed(pair, now=now)

    def connected(self, address: str) -> None:
        """A connection to an address stands.

        Args:
            address: The address.
        """
        now = self._now()
        for pair in self._pairs(address):
            for side in pair.sides(address):
                self._known[pair].mirroring.mark_reachable(side, now=now)
            self._proceed(pair, now=now)

    def connection_failed(self, address: str) -> None:
        """A connection to an address failed or broke.

        Args:
            address: The address.
        """
        now = self._now()
        for pair in self._pairs(address):
            for side in pair.sides(address):
                self._known[pair].mirroring.mark_silent(side, now=now)
            self._proceed(pair, now=now)

    def run_due(self, *, now: int) -> int | None:
        """Asks whom it is time to ask, and takes those for silent who have not answered.

        Args:
            now: The moment.

        Returns:
            When to call again; None where nobody wants to send.
        """
        steady = self._clock.monotonic(now)
        if self._due is not None and self._due <= steady:
            self._due = None
            for pair, known in [*self._known.items()]:
                known.mirroring.handle_timeout(now=steady)
                self._proceed(pair, now=steady)
        return None if self._due is None else self._clock.wall_time(self._due)

    def _add(self, pair: MirroredAddresses) -> _PairState:
        while len(self._known) >= ROUTES_MAX:
            gone, _ = self._known.popitem(last=False)
            for side in MirrorSide:
                self._at[gone.at(side)].discard(gone)
                if not self._at[gone.at(side)]:
                    del self._at[gone.at(side)]
        known = self._known[pair] = _PairState(MirroredRoute(random=self._instance.random.random))
        for side in MirrorSide:
            self._at[pair.at(side)].add(pair)
        return known

    def _pairs(self, address: str) -> list[MirroredAddresses]:
        return sorted(self._at[address]) if address in self._at else []

    def _proceed(self, pair: MirroredAddresses, *, now: int) -> None:
        """Asks who is to be asked now, and tells of a new state."""
        known = self._known[pair]
        mirroring = known.mirroring
        self._ask(pair, mirroring, now=now)
        if mirroring.state is known.told:
            return
        known.told = mirroring.state
        principal = mirroring.principal
        self._instance.events.emit(
            MirroredRouteStateChanged(
                at=self._clock.wall_time(now),
                broker_instance=uuid.UUID(bytes=pair.broker_instance),
                address=pair.address,
                mirror_address=pair.mirror_address,
                state=str(mirroring.state),
                principal_address=None if principal is None else pair.at(principal),
                text=_TEXTS[mirroring.state],
            )
        )
        self._changed(pair)

    def _ask(self, pair: MirroredAddresses, mirroring: MirroredRoute, *, now: int) -> None:
        for side in mirroring.sides_to_ask(now=now):
            self._endpoint.query_role(pair.at(side), pair.broker_instance)
        due = mirroring.next_timeout()
        if due is not None and (self._due is None or due < self._due):
            self._due = due

    def _now(self) -> int:
        return self._clock.monotonic(epoch_microseconds(self._instance.clock()))


_TEXTS: Final = {
    MirroredRouteState.UNKNOWN: "neither is known to be the principal: nothing is sent",
    MirroredRouteState.PRINCIPAL_IS_ADDRESS: "the address is the principal: everything goes there",
    MirroredRouteState.PRINCIPAL_IS_MIRROR: "the mirror address is the principal: everything goes there",
    MirroredRouteState.LOST_ADDRESS: "the address was the principal, and is silent or says that it is no longer: "
    "nothing is sent until it is again, or the mirror address says that it has taken over",
    MirroredRouteState.LOST_MIRROR: "the mirror address was the principal, and is silent or says that it is no longer: "
    "nothing is sent until it is again, or the address says that it has taken over",
    MirroredRouteState.CONTESTED: "both say, or said last, that they are the principal, with the same number: nothing is sent. "
    'Have the wrong one be the mirror, with set_mirroring_role("mirror"), '
    'or the right one the principal with a greater number, with set_mirroring_role("principal", number=...)',
}
