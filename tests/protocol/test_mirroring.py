"""R51 to R54, N23, N24: which of the two addresses of a mirrored route is the principal."""

from __future__ import annotations

import itertools

import pytest

from ssbroker.protocol.config import JITTER, SECOND
from ssbroker.protocol.mirroring import (
    ANSWER_TIMEOUT,
    ASK_AFTER_USE,
    CHECK_INTERVAL,
    PRINCIPALS,
    ROUND_WAITS,
    TABLE,
    AnswerState,
    MirroredRoute,
    MirroredRouteState,
    MirrorSide,
)

A, M = MirrorSide.ADDRESS, MirrorSide.MIRROR
HELD = [state for state in MirroredRouteState if state not in PRINCIPALS]
MIRRORED = {
    MirroredRouteState.PRINCIPAL_IS_ADDRESS: MirroredRouteState.PRINCIPAL_IS_MIRROR,
    MirroredRouteState.PRINCIPAL_IS_MIRROR: MirroredRouteState.PRINCIPAL_IS_ADDRESS,
    MirroredRouteState.LOST_ADDRESS: MirroredRouteState.LOST_MIRROR,
    MirroredRouteState.LOST_MIRROR: MirroredRouteState.LOST_ADDRESS,
}


def begun(*, now: int = 0) -> MirroredRoute:
    """A route on which something wants to go, whose addresses have been asked."""
    mirroring = MirroredRoute(random=lambda: 0.5)
    mirroring.mark_used(now=now)
    assert mirroring.sides_to_ask(now=now) == [A, M]
    return mirroring


def led_to(side: MirrorSide, *, number: int = 1) -> MirroredRoute:
    """A route whose principal is known, since moment 0."""
    mirroring = begun()
    mirroring.role_received(side, "principal", number, now=0)
    mirroring.role_received(side.other, "mirror", 0, now=0)
    assert mirroring.principal is side
    return mirroring


@pytest.mark.rule("R51", "R54", "R52", "R53")
@pytest.mark.parametrize(
    ("state", "address", "mirror"), [*itertools.product(MirroredRouteState, AnswerState, AnswerState)]
)
def test_to_r54_every_transition(state: MirroredRouteState, address: AnswerState, mirror: AnswerState) -> None:
    """Each sentence, against the whole table."""
    after = TABLE[state][address][mirror]
    claims = {A: address is AnswerState.CLAIMS, M: mirror is AnswerState.CLAIMS}
    if all(claims.values()):
        assert after is MirroredRouteState.CONTESTED  # N24
        return
    chosen = PRINCIPALS.get(after)
    if chosen is not None:
        stays = after is state and {A: address, M: mirror}[chosen] is AnswerState.PENDING
        assert claims[chosen] or stays  # R53: nothing goes to who does not claim the role
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
    """The table with both sides exchanged is the same table."""
    after = TABLE[state][address][mirror]
    assert TABLE[MIRRORED.get(state, state)][mirror][address] is MIRRORED.get(after, after)


@pytest.mark.rule("R51")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_both_are_asked_and_nothing_is_sent_before_both_are_heard(side: MirrorSide) -> None:
    """R51."""
    mirroring = begun()
    assert mirroring.principal is None
    mirroring.role_received(side, "principal", 7, now=1)
    assert mirroring.principal is None
    mirroring.role_received(side.other, "mirror", 6, now=2)
    assert mirroring.principal is side


@pytest.mark.rule("R51")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_a_claim_beside_a_silent_partner_is_believed(side: MirrorSide) -> None:
    """An answer takes 10 s at most."""
    mirroring = begun()
    mirroring.role_received(side, "principal", 1, now=1)
    assert mirroring.next_timeout() == ANSWER_TIMEOUT
    mirroring.handle_timeout(now=ANSWER_TIMEOUT - 1)
    assert mirroring.principal is None
    mirroring.handle_timeout(now=ANSWER_TIMEOUT)
    assert mirroring.principal is side


@pytest.mark.rule("R51")
def test_nobody_is_asked_for_a_route_that_nothing_wants_to_use() -> None:
    """The mirror costs nothing while it is not needed."""
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
def test_it_says_that_it_no_longer_is_and_the_other_one_claims(side: MirrorSide, role: str) -> None:
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
def test_it_is_unreachable_and_the_other_one_claims(side: MirrorSide) -> None:
    """Without waiting for who is gone."""
    mirroring = led_to(side)
    mirroring.mark_used(now=SECOND)
    mirroring.mark_silent(side, now=SECOND)
    assert mirroring.state is (MirroredRouteState.LOST_ADDRESS if side is A else MirroredRouteState.LOST_MIRROR)
    assert mirroring.sides_to_ask(now=SECOND) == [A, M]
    mirroring.role_received(side.other, "principal", 2, now=SECOND + 1)
    assert mirroring.principal is side.other


@pytest.mark.rule("R53")
@pytest.mark.parametrize("side", [*MirrorSide])
def test_an_answer_that_takes_too_long_counts_as_unreachable(side: MirrorSide) -> None:
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
def test_unreachable_and_the_partner_does_not_claim(side: MirrorSide, word: str) -> None:
    """Nothing is sent to anyone, and both are asked again, until the principal is reachable."""
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
def test_the_waits_have_a_jitter() -> None:
    """So that outages which recur in step starve nobody."""
    mirroring = MirroredRoute(random=lambda: 0.0)
    mirroring.mark_used(now=0)
    mirroring.sides_to_ask(now=0)
    mirroring.mark_silent(A, now=0)
    mirroring.mark_silent(M, now=0)
    assert mirroring.next_timeout() == round(ROUND_WAITS[0] * (1 - JITTER))


@pytest.mark.rule("R54")
def test_who_is_reached_again_is_asked_without_waiting() -> None:
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
def test_questions_end_when_nothing_wants_to_go_any_more() -> None:
    """And begin again with the next message."""
    mirroring = begun()
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
def test_both_claim_and_the_later_claim_wins(first: MirrorSide, later: MirrorSide) -> None:
    """Whoever answers first."""
    mirroring = begun()
    for side in (first, first.other):
        mirroring.role_received(side, "principal", 5 if side is later else 4, now=1)
    assert mirroring.principal is later


@pytest.mark.rule("R54")
@pytest.mark.threat("T23")
def test_both_claim_with_equal_numbers_and_nothing_is_sent() -> None:
    """Until one takes it back, or has a greater number."""
    for settles in ("mirror", "greater"):
        mirroring = begun()
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
def test_an_old_principal_that_comes_back_is_not_believed() -> None:
    """It has not heard of the failover, and its partner is silent now."""
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


def test_an_answer_that_comes_late_still_counts() -> None:
    """The mirror was slow, and has the later claim."""
    mirroring = begun()
    mirroring.role_received(A, "principal", 1, now=1)
    mirroring.handle_timeout(now=ANSWER_TIMEOUT)
    assert mirroring.principal is A
    mirroring.role_received(M, "principal", 2, now=ANSWER_TIMEOUT + 1)
    assert mirroring.principal is M


@pytest.mark.rule("R53")
def test_a_word_from_long_ago_does_not_count() -> None:
    """What the partner said before the principal was known is no claim now."""
    mirroring = begun()
    mirroring.role_received(M, "principal", 1, now=0)
    mirroring.role_received(A, "principal", 2, now=0)
    assert mirroring.principal is A
    mirroring.mark_used(now=SECOND)
    mirroring.role_received(A, "unknown", 2, now=SECOND)
    assert mirroring.principal is None
