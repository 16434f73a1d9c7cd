"""The checker of storms detects every kind of error by itself; otherwise a storm without findings would prove nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.system import traffic
from tests.system.checker import Received, Sent, judge, judge_promises
from tests.system.traffic import Plan

LANES, NUMBERS = 3, 20
SENT = [Sent(lane, number) for number in range(NUMBERS) for lane in range(LANES)]
RIGHT = [Received(lane, number, bytes([lane]), True) for lane, number in SENT]


def test_correct_results_are_accepted() -> None:
    """However the conversations are interleaved: order counts within each."""
    assert judge(SENT, RIGHT).is_correct
    assert judge(SENT, sorted(RIGHT)).is_correct
    assert str(judge(SENT, RIGHT)).startswith("60 messages: 0 lost, 0 twice, 0 out of order, 0 altered, 0 that nobody")


def _swap(rows: list[Received]) -> None:
    rows[30], rows[33] = rows[33], rows[30]


def _lose(rows: list[Received]) -> None:
    del rows[30]


def _lose_the_last(rows: list[Received]) -> None:
    del rows[-1]


def _repeat(rows: list[Received]) -> None:
    rows.append(rows[30])


def _repeat_at_once(rows: list[Received]) -> None:
    rows.insert(31, rows[30])


def _alter(rows: list[Received]) -> None:
    rows.insert(30, rows[30]._replace(is_intact=False))


def _make_up(rows: list[Received]) -> None:
    rows.append(Received(0, NUMBERS, bytes([0]), True))


def _lead_astray(rows: list[Received]) -> None:
    rows[30] = rows[30]._replace(conversation=b"another")


def _mix_up(rows: list[Received]) -> None:
    rows[-1] = rows[-1]._replace(conversation=bytes([0]))


@pytest.mark.parametrize(
    ("harm", "counted"),
    [
        (_swap, {"out_of_order": 1}),
        (_lose, {"lost": 1}),
        (_lose_the_last, {"lost": 1}),
        (_repeat, {"twice": 1}),
        (_repeat_at_once, {"twice": 1}),
        (_alter, {"altered": 1}),
        (_make_up, {"unsent": 1}),
        (_lead_astray, {"strayed": 1}),
        (_mix_up, {"strayed": 1}),
    ],
)
def test_each_error_is_detected_and_no_other(harm: Callable[[list[Received]], None], counted: dict[str, int]) -> None:
    rows = list(RIGHT)
    harm(rows)
    verdict = judge(SENT, rows)
    kinds = ("lost", "twice", "out_of_order", "altered", "unsent", "strayed")
    assert {kind: found for kind in kinds if (found := getattr(verdict, kind))} == counted
    assert not verdict.is_correct
    assert verdict.first


def test_lost_commits_are_detected() -> None:
    assert judge_promises(SENT, SENT).is_correct
    assert judge_promises(SENT, SENT[1:]).taken_back == 1


def test_counts_are_added() -> None:
    verdict = judge(SENT, RIGHT[1:])
    verdict.add(judge(SENT, RIGHT[2:]))
    assert (verdict.sent, verdict.lost) == (120, 3)


def test_any_changed_bit_of_a_body_is_detected() -> None:
    right = traffic.body(2, 7, 100)
    assert traffic.read(right) == (2, 7, True)
    assert len(right) == 100
    for place in range(len(right) * 8):
        altered = bytearray(right)
        altered[place // 8] ^= 1 << place % 8
        assert not traffic.read(bytes(altered))[2], place
    assert traffic.read(right[:-1]) == (2, 7, False)
    assert traffic.read(right + b"x") == (2, 7, False)
    assert traffic.read(b"") == (-1, -1, False)


def test_large_messages_are_spread_evenly() -> None:
    plan = Plan(lanes=7, messages=93, small_bytes=30, large=5, large_bytes=1000)
    places = [
        number * plan.lanes + lane
        for lane in range(plan.lanes)
        for number in range(plan.count(lane))
        if plan.size(lane, number) == 1000
    ]
    gaps = [after - before for before, after in zip(sorted(places), sorted(places)[1:], strict=False)]
    assert sum(plan.count(lane) for lane in range(plan.lanes)) == 98
    assert len(places) == 5
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("reply_every", [1, 3, 10])
def test_replies_are_counted(reply_every: int) -> None:
    plan = Plan(lanes=4, messages=50, reply_every=reply_every)
    counted = sum(number % reply_every == 0 for lane in range(4) for number in range(plan.count(lane)))
    assert plan.replies == counted


def test_consecutive_numbers_are_shown_as_ranges() -> None:
    rng = random.Random(1)
    numbers = sorted(rng.sample(range(100), 60))
    emitted = [number for first, last in traffic.runs(numbers) for number in range(first, last + 1)]
    assert emitted == numbers
    assert list(traffic.runs([])) == []
