"""The checker of storms detects every kind of error alone; otherwise a storm without findings would prove nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.system import traffic
from tests.system.checker import Received, Sent, compare, compare_commits
from tests.system.traffic import Plan

LANES, NUMBERS = 3, 20
SENT = [Sent(lane, number) for number in range(NUMBERS) for lane in range(LANES)]
RECEIVED = [Received(lane, number, bytes([lane]), True) for lane, number in SENT]


def test_correct_results_are_accepted() -> None:
    """However the conversations are interleaved: order counts within each."""
    assert compare(SENT, RECEIVED).is_correct
    assert compare(SENT, sorted(RECEIVED)).is_correct
    assert str(compare(SENT, RECEIVED)).startswith(
        "60 messages: 0 lost, 0 duplicated, 0 out of order, 0 altered, 0 invented"
    )


def _swap(rows: list[Received]) -> None:
    rows[30], rows[33] = rows[33], rows[30]


def _lose(rows: list[Received]) -> None:
    del rows[30]


def _lose_the_last(rows: list[Received]) -> None:
    del rows[-1]


def _repeat(rows: list[Received]) -> None:
    rows.append(rows[30])


def _repeat_immediately(rows: list[Received]) -> None:
    rows.insert(31, rows[30])


def _alter(rows: list[Received]) -> None:
    rows.insert(30, rows[30]._replace(is_intact=False))


def _invent(rows: list[Received]) -> None:
    rows.append(Received(0, NUMBERS, bytes([0]), True))


def _misdirect(rows: list[Received]) -> None:
    rows[30] = rows[30]._replace(conversation=b"another")


def _mix_up(rows: list[Received]) -> None:
    rows[-1] = rows[-1]._replace(conversation=bytes([0]))


@pytest.mark.parametrize(
    ("damage", "counted"),
    [
        (_swap, {"out_of_order": 1}),
        (_lose, {"lost": 1}),
        (_lose_the_last, {"lost": 1}),
        (_repeat, {"duplicated": 1}),
        (_repeat_immediately, {"duplicated": 1}),
        (_alter, {"altered": 1}),
        (_invent, {"invented": 1}),
        (_misdirect, {"misdirected": 1}),
        (_mix_up, {"misdirected": 1}),
    ],
)
def test_each_error_is_detected_and_no_other(damage: Callable[[list[Received]], None], counted: dict[str, int]) -> None:
    rows = list(RECEIVED)
    damage(rows)
    verdict = compare(SENT, rows)
    kinds = ("lost", "duplicated", "out_of_order", "altered", "invented", "misdirected")
    assert {kind: found for kind in kinds if (found := getattr(verdict, kind))} == counted
    assert not verdict.is_correct
    assert verdict.first


def test_lost_commits_are_detected() -> None:
    assert compare_commits(SENT, SENT).is_correct
    assert compare_commits(SENT, SENT[1:]).lost_commits == 1


def test_counts_are_added() -> None:
    verdict = compare(SENT, RECEIVED[1:])
    verdict.add(compare(SENT, RECEIVED[2:]))
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
