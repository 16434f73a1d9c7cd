"""R52 to R54: failovers, outages and lost answers in any order, checked against two databases whose roles are known."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ssbroker.protocol.config import SECOND
from ssbroker.protocol.mirroring import MirroredRoute, MirroredRouteState, MirrorSide

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
        self.asked: list[MirrorSide] = []
        self.greatest_claim = {MirrorSide.ADDRESS: 0, MirrorSide.MIRROR: 0}

    @property
    def principal(self) -> MirrorSide:
        """The actual principal."""
        return next(side for side, each in self.pair.items() if each.is_principal)

    @rule(wait=st.integers(0, 20 * SECOND), wants=st.booleans())
    def time_passes(self, *, wait: int, wants: bool) -> None:
        self.now += wait
        if wants:
            self.mirroring.mark_used(now=self.now)
        self.ask()

    @rule()
    def fail_over(self) -> None:
        old = self.principal
        self.pair[old].is_principal = False
        self.pair[old.other].is_principal = True
        self.pair[old.other].number = self.pair[old].number + 1

    @rule(side=SIDES, is_reachable=st.booleans())
    def cut_or_mend(self, *, side: MirrorSide, is_reachable: bool) -> None:
        self.pair[side].is_reachable = is_reachable

    @rule(side=SIDES)
    def connection_breaks(self, side: MirrorSide) -> None:
        """R53: nothing is sent to an unreachable address."""
        self.mirroring.mark_silent(side, now=self.now)
        self.asked = [each for each in self.asked if each is not side]
        assert self.mirroring.principal is not side
        self.ask()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def somebody_answers(self, data: st.DataObject) -> None:
        """R53: an address is the principal for the sender only if it claims so and no later claim is known."""
        side = data.draw(st.sampled_from(self.asked))
        self.answer(side)
        partner = self.pair[side]
        if not (partner.is_reachable and partner.is_principal):
            assert self.mirroring.principal is not side
        elif self.greatest_claim[side.other] < partner.number:
            others = self.mirroring.principal is side or side.other in self.asked
            assert others or self.mirroring.state is MirroredRouteState.UNKNOWN
        self.ask()

    @invariant()
    def only_the_principal_is_asked_while_it_is_known(self) -> None:
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
            self.ask()
            for side in [*self.asked]:
                self.answer(side)
            self.now = max(self.now + 1, self.mirroring.next_timeout() or 0)
        assert self.mirroring.principal is self.principal

    def ask(self) -> None:
        self.mirroring.handle_timeout(now=self.now)
        self.asked += [side for side in self.mirroring.sides_to_ask(now=self.now) if side not in self.asked]

    def answer(self, side: MirrorSide) -> None:
        self.asked.remove(side)
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
