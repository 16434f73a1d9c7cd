"""R52 to R54: failovers, outages and lost answers in any order, checked against two databases whose roles are known."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ssbroker.broker.network.mirrored_routes import MirroredRoute, MirroredRouteState, MirrorSide
from ssbroker.protocol.settings import SECOND

ROUNDS_MAX = 20
SIDES = st.sampled_from([*MirrorSide])


@dataclass
class Partner:
    """A database of a mirrored pair and its actual role."""

    is_principal: bool
    number: int = 1
    is_reachable: bool = True


class Pair(RuleBasedStateMachine):
    """A mirrored pair that fails over, and a sender."""

    @initialize(principal=SIDES)
    def begin(self, principal: MirrorSide) -> None:
        self.now = 0
        self.pair = {side: Partner(is_principal=side is principal) for side in MirrorSide}
        self.mirroring = MirroredRoute(random=lambda: 0.5)
        self.pending_queries: list[MirrorSide] = []
        self.greatest_claim = {MirrorSide.ADDRESS: 0, MirrorSide.MIRROR: 0}

    @property
    def principal(self) -> MirrorSide:
        """The actual principal."""
        return next(side for side, each in self.pair.items() if each.is_principal)

    @rule(wait=st.integers(0, 20 * SECOND), is_used=st.booleans())
    def time_passes(self, *, wait: int, is_used: bool) -> None:
        self.now += wait
        if is_used:
            self.mirroring.mark_used(now=self.now)
        self.query()

    @rule()
    def fail_over(self) -> None:
        old = self.principal
        self.pair[old].is_principal = False
        self.pair[old.other].is_principal = True
        self.pair[old.other].number = self.pair[old].number + 1

    @rule(side=SIDES, is_reachable=st.booleans())
    def set_reachable(self, *, side: MirrorSide, is_reachable: bool) -> None:
        self.pair[side].is_reachable = is_reachable

    @rule(side=SIDES)
    def connection_breaks(self, side: MirrorSide) -> None:
        """R53: nothing is sent to an unreachable address."""
        self.mirroring.mark_silent(side, now=self.now)
        self.pending_queries = [each for each in self.pending_queries if each is not side]
        assert self.mirroring.principal is not side
        self.query()

    @precondition(lambda self: self.pending_queries)
    @rule(data=st.data())
    def answer_arrives(self, data: st.DataObject) -> None:
        """R53: an address is the principal for the sender only if it claims so and no later claim is known."""
        side = data.draw(st.sampled_from(self.pending_queries))
        self.answer(side)
        partner = self.pair[side]
        if not (partner.is_reachable and partner.is_principal):
            assert self.mirroring.principal is not side
        elif self.greatest_claim[side.other] < partner.number:
            others = self.mirroring.principal is side or side.other in self.pending_queries
            assert others or self.mirroring.state is MirroredRouteState.UNKNOWN
        self.query()

    @invariant()
    def only_a_known_principal_is_queried(self) -> None:
        """R52."""
        if hasattr(self, "mirroring") and self.mirroring.principal is not None:
            assert self.mirroring.sides_to_ask(now=self.now) in ([], [self.mirroring.principal])

    def teardown(self) -> None:
        """R54: once both are reachable again, everything is sent to the principal."""
        if not hasattr(self, "mirroring"):
            return
        for each in self.pair.values():
            each.is_reachable = True
        for _ in range(ROUNDS_MAX):
            self.mirroring.mark_used(now=self.now)
            self.query()
            for side in [*self.pending_queries]:
                self.answer(side)
            self.now = max(self.now + 1, self.mirroring.next_timeout() or 0)
        assert self.mirroring.principal is self.principal

    def query(self) -> None:
        self.mirroring.handle_timeout(now=self.now)
        self.pending_queries += [
            side for side in self.mirroring.sides_to_ask(now=self.now) if side not in self.pending_queries
        ]

    def answer(self, side: MirrorSide) -> None:
        self.pending_queries.remove(side)
        partner = self.pair[side]
        if not partner.is_reachable:
            self.mirroring.mark_silent(side, now=self.now)
        elif partner.is_principal:
            self.greatest_claim[side] = partner.number
            self.mirroring.role_received(side, "principal", partner.number, now=self.now)
        else:
            self.greatest_claim[side] = 0
            self.mirroring.role_received(side, "mirror", partner.number, now=self.now)


TestPair = Pair.TestCase
