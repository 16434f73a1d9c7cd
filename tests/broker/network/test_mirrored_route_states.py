"""R51 to R54: which of the two addresses of a mirrored route is the principal."""

from __future__ import annotations

import itertools

import pytest

from ssbroker.broker.network.mirrored_routes import (
    ANSWER_TIMEOUT,
    ASK_AFTER_USE,
    CHECK_INTERVAL,
    PRINCIPALS,
    ROUND_WAITS,
    TRANSITIONS,
    AnswerState,
    MirroredRoute,
    MirroredRouteState,
    MirrorSide,
)
from ssbroker.protocol.retry_waits import JITTER
from ssbroker.protocol.settings import SECOND

A, M = MirrorSide.ADDRESS, MirrorSide.MIRROR
HELD = [state for state in MirroredRouteState if state not in PRINCIPALS]
MIRRORED = {
    MirroredRouteState.PRINCIPAL_IS_ADDRESS: MirroredRouteState.PRINCIPAL_IS_MIRROR,
    MirroredRouteState.PRINCIPAL_IS_MIRROR: MirroredRouteState.PRINCIPAL_IS_ADDRESS,
    MirroredRouteState.LOST_ADDRESS: MirroredRouteState.LOST_MIRROR,
    MirroredRouteState.LOST_MIRROR: MirroredRouteState.LOST_ADDRESS,
}


def route_in_use(*, now: int = 0) -> MirroredRoute:
    """Returns a route in use whose addresses have been asked."""
    mirroring = MirroredRoute(random=lambda: 0.5)
    mirroring.mark_used(now=now)
    assert mirroring.sides_to_ask(now=now) == [A, M]
    return mirroring


def led_to(side: MirrorSide, *, number: int = 1) -> MirroredRoute:
    """Returns a route whose principal has been known since time 0."""
    mirroring = route_in_use()
    mirroring.role_received(side, "principal", number, now=0)
    mirroring.role_received(side.other, "mirror", 0, now=0)
    assert mirroring.principal is side
    return mirroring


@pytest.mark.rule("R51", "R54", "R52", "R53")
@pytest.mark.parametrize(
    ("state", "address", "mirror"), [*itertools.product(MirroredRouteState, AnswerState, AnswerState)]
)
def test_every_transition_follows_r54(state: MirroredRouteState, address: AnswerState, mirror: AnswerState) -> None:
    """Each sentence of R54, for the whole table."""
    after = TRANSITIONS[state][address][mirror]
    claims = {A: address is AnswerState.CLAIMS, M: mirror is AnswerState.CLAIMS}
    if all(claims.values()):
        assert after is MirroredRouteState.CONTESTED
        return
    chosen = PRINCIPALS.get(after)
    if chosen is not None:
        stays = after is state and {A: address, M: mirror}[chosen] is AnswerState.PENDING
        assert claims[chosen] or stays  # R53: nothing is sent to an address that does not claim the role
    before = PRINCIPALS.get(state)
    if before is not None and {A: address, M: mirror}[before] in (AnswerState.DENIES, AnswerState.SILENT):
        assert chosen is (before.other if claims[before.other] else None)  # R53, R54
    if state is MirroredRouteState.UNKNOWN and AnswerState.PENDING in (address, mirror):
        assert after is MirroredRouteState.UNKNOWN  # R51: both are asked
    if chosen is None and before is None:
        assert after is state  # R54
    one_claims = sum(claims.values()) == 1 and AnswerState.PENDING not in (address, mirror)
    assert not one_claims or (chosen is not None and claims[chosen])


@pytest.mark.rule("R52", "R51", "R53", "R54")
@pytest.mark.parametrize(
    ("state", "address", "mirror"), [*itertools.product(MirroredRouteState, AnswerState, AnswerState)]
)
def test_neither_address_is_preferred(state: MirroredRouteState, address: AnswerState, mirror: AnswerState) -> None:
    """The table with both sides swapped is the same table."""
    after = TRANSITIONS[state][address][mirror]
    assert TRANSITIONS[MIRRORED.get(state, state)][mirror][address] is MIRRORED.get(after, after)


@pytest.mark.rule("R51")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_nothing_is_sent_before_both_addresses_answer(side: MirrorSide) -> None:
    """R51."""
    mirroring = route_in_use()
    assert mirroring.principal is None
    mirroring.role_received(side, "principal", 7, now=1)
    assert mirroring.principal is None
    mirroring.role_received(side.other, "mirror", 6, now=2)
    assert mirroring.principal is side


@pytest.mark.rule("R51")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_a_claim_is_trusted_if_the_partner_does_not_answer(side: MirrorSide) -> None:
    """An answer takes 10 s at most."""
    mirroring = route_in_use()
    mirroring.role_received(side, "principal", 1, now=1)
    assert mirroring.next_timeout() == ANSWER_TIMEOUT
    mirroring.handle_timeout(now=ANSWER_TIMEOUT - 1)
    assert mirroring.principal is None
    mirroring.handle_timeout(now=ANSWER_TIMEOUT)
    assert mirroring.principal is side


@pytest.mark.rule("R51")
def test_addresses_of_an_unused_route_are_not_asked() -> None:
    """An unused mirror costs nothing."""
    mirroring = MirroredRoute(random=lambda: 0.5)
    assert mirroring.next_timeout() is None
    assert mirroring.sides_to_ask(now=10**12) == []


@pytest.mark.rule("R52")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_only_the_principal_is_asked_again_while_it_is_used(side: MirrorSide) -> None:
    """The mirror is not contacted."""
    mirroring = led_to(side)
    assert mirroring.next_timeout() is None
    mirroring.mark_used(now=SECOND)
    assert mirroring.next_timeout() == CHECK_INTERVAL
    assert mirroring.sides_to_ask(now=CHECK_INTERVAL - 1) == []
    assert mirroring.sides_to_ask(now=CHECK_INTERVAL) == [side]
    assert mirroring.sides_to_ask(now=CHECK_INTERVAL) == []
    mirroring.role_received(side, "principal", 1, now=CHECK_INTERVAL + 5)
    assert mirroring.principal is side
    assert mirroring.next_timeout() is None


@pytest.mark.rule("R53")
@pytest.mark.parametrize("side", [*MirrorSide])
@pytest.mark.parametrize("role", ["mirror", "unknown"])
def test_failover_if_the_principal_resigns(side: MirrorSide, role: str) -> None:
    """R53."""
    mirroring = led_to(side)
    mirroring.mark_used(now=SECOND)
    mirroring.role_received(side, "mirror" if role == "mirror" else "unknown", 1, now=SECOND)
    assert mirroring.principal is None
    assert mirroring.sides_to_ask(now=SECOND) == [A, M]
    mirroring.role_received(side.other, "principal", 2, now=2 * SECOND)
    assert mirroring.principal is side.other


@pytest.mark.rule("R53")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_failover_if_the_principal_is_unreachable(side: MirrorSide) -> None:
    """Without waiting for the unreachable address."""
    mirroring = led_to(side)
    mirroring.mark_used(now=SECOND)
    mirroring.mark_silent(side, now=SECOND)
    assert mirroring.state is (MirroredRouteState.LOST_ADDRESS if side is A else MirroredRouteState.LOST_MIRROR)
    assert mirroring.sides_to_ask(now=SECOND) == [A, M]
    mirroring.role_received(side.other, "principal", 2, now=SECOND + 1)
    assert mirroring.principal is side.other


@pytest.mark.rule("R53")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_a_late_answer_counts_as_unreachable(side: MirrorSide) -> None:
    """10 s."""
    mirroring = led_to(side)
    mirroring.mark_used(now=SECOND)
    assert mirroring.sides_to_ask(now=CHECK_INTERVAL) == [side]
    mirroring.handle_timeout(now=CHECK_INTERVAL + ANSWER_TIMEOUT - 1)
    assert mirroring.principal is side
    mirroring.handle_timeout(now=CHECK_INTERVAL + ANSWER_TIMEOUT)
    assert mirroring.principal is None


@pytest.mark.rule("R54")
@pytest.mark.parametrize("side", [*MirrorSide])
@pytest.mark.parametrize("word", ["mirror", "unknown", "silent"])
def test_no_failover_without_a_claim_of_the_partner(side: MirrorSide, word: str) -> None:
    """Nothing is sent, and both are asked again, until the principal is reachable."""
    mirroring = led_to(side)
    mirroring.mark_used(now=0)
    mirroring.mark_silent(side, now=0)
    now = 0
    for attempt in range(8):
        assert mirroring.sides_to_ask(now=now) == [A, M]
        mirroring.mark_silent(side, now=now)
        if word == "silent":
            mirroring.mark_silent(side.other, now=now)
        else:
            mirroring.role_received(side.other, "mirror" if word == "mirror" else "unknown", 1, now=now)
        assert mirroring.principal is None
        due = mirroring.next_timeout()
        assert due == now + ROUND_WAITS[min(attempt, len(ROUND_WAITS) - 1)]
        assert mirroring.sides_to_ask(now=due - 1) == []
        now = due
        mirroring.mark_used(now=now)
    assert mirroring.sides_to_ask(now=now) == [A, M]
    mirroring.role_received(side, "principal", 1, now=now)
    assert mirroring.principal is None, "the partner may have become it meanwhile"
    mirroring.mark_silent(side.other, now=now)
    assert mirroring.principal is side


@pytest.mark.rule("R54", "P17")
def test_waits_have_jitter() -> None:
    """So that periodic outages do not starve the route."""
    mirroring = MirroredRoute(random=lambda: 0.0)
    mirroring.mark_used(now=0)
    mirroring.sides_to_ask(now=0)
    mirroring.mark_silent(A, now=0)
    mirroring.mark_silent(M, now=0)
    assert mirroring.next_timeout() == round(ROUND_WAITS[0] * (1 - JITTER))


@pytest.mark.rule("R54")
def test_an_address_that_is_reachable_again_is_asked_immediately() -> None:
    """R54."""
    mirroring = led_to(A)
    mirroring.mark_used(now=0)
    mirroring.mark_silent(A, now=0)
    mirroring.sides_to_ask(now=0)
    mirroring.mark_silent(A, now=0)
    mirroring.mark_silent(M, now=0)
    mirroring.mark_reachable(A, now=3)
    assert mirroring.sides_to_ask(now=3) == [A, M]


@pytest.mark.rule("R54")
def test_questions_end_once_the_route_is_unused() -> None:
    """They resume with the next message."""
    mirroring = route_in_use()
    now = 0
    while mirroring.sides_to_ask(now=now) or now == 0:
        mirroring.mark_silent(A, now=now)
        mirroring.mark_silent(M, now=now)
        due = mirroring.next_timeout()
        if due is None:
            break
        assert due < ASK_AFTER_USE
        now = due
    assert mirroring.next_timeout() is None
    mirroring.mark_used(now=now + ASK_AFTER_USE)
    assert mirroring.sides_to_ask(now=now + ASK_AFTER_USE) == [A, M]


@pytest.mark.rule("R53")
@pytest.mark.threat("T23")
@pytest.mark.parametrize("first", [*MirrorSide])
@pytest.mark.parametrize("later", [*MirrorSide])
def test_the_later_of_two_claims_wins(first: MirrorSide, later: MirrorSide) -> None:
    """Whichever answers first."""
    mirroring = route_in_use()
    for side in (first, first.other):
        mirroring.role_received(side, "principal", 5 if side is later else 4, now=1)
    assert mirroring.principal is later


@pytest.mark.rule("R54")
@pytest.mark.threat("T23")
def test_nothing_is_sent_while_claims_are_equal() -> None:
    """Until one withdraws its claim or has a greater number."""
    for settles in ("mirror", "greater"):
        mirroring = route_in_use()
        mirroring.role_received(A, "principal", 4, now=1)
        mirroring.role_received(M, "principal", 4, now=1)
        assert (mirroring.state, mirroring.principal) == (MirroredRouteState.CONTESTED, None)
        due = mirroring.next_timeout()
        assert due is not None
        assert mirroring.sides_to_ask(now=due) == [A, M]
        mirroring.role_received(A, "principal", 4, now=due)
        if settles == "mirror":
            mirroring.role_received(M, "mirror", 4, now=due)
            assert mirroring.principal is A
        else:
            mirroring.role_received(M, "principal", 5, now=due)
            assert mirroring.principal is M


@pytest.mark.rule("R54")
@pytest.mark.threat("T23")
def test_a_former_principal_that_returns_is_not_trusted() -> None:
    """It does not know of the failover, and its partner does not answer now."""
    mirroring = led_to(A)
    mirroring.mark_used(now=0)
    mirroring.mark_silent(A, now=0)
    mirroring.sides_to_ask(now=0)
    mirroring.role_received(M, "principal", 2, now=0)
    assert mirroring.principal is M
    mirroring.mark_silent(M, now=SECOND)
    for number in (1, 2):
        mirroring.mark_used(now=SECOND)
        assert A in mirroring.sides_to_ask(now=mirroring.next_timeout() or 0)
        mirroring.mark_silent(M, now=SECOND)
        mirroring.role_received(A, "principal", number, now=SECOND)
        assert mirroring.principal is None
    due = mirroring.next_timeout()
    assert due is not None
    assert A in mirroring.sides_to_ask(now=due)
    mirroring.mark_silent(M, now=due)
    mirroring.role_received(A, "principal", 3, now=due)
    assert mirroring.principal is A


def test_a_late_answer_is_still_used() -> None:
    """The mirror was slow, and has the later claim."""
    mirroring = route_in_use()
    mirroring.role_received(A, "principal", 1, now=1)
    mirroring.handle_timeout(now=ANSWER_TIMEOUT)
    assert mirroring.principal is A
    mirroring.role_received(M, "principal", 2, now=ANSWER_TIMEOUT + 1)
    assert mirroring.principal is M


@pytest.mark.rule("R53")
def test_an_answer_from_before_is_not_used() -> None:
    """An answer from before the principal was known is not a claim now."""
    mirroring = route_in_use()
    mirroring.role_received(M, "principal", 1, now=0)
    mirroring.role_received(A, "principal", 2, now=0)
    assert mirroring.principal is A
    mirroring.mark_used(now=SECOND)
    mirroring.role_received(A, "unknown", 2, now=SECOND)
    assert mirroring.principal is None
