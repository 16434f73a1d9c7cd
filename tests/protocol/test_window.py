"""P13, P17: how much of a dialog may be unacknowledged depends on how fast acknowledgements arrive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, Pair, Row, established_pair

KIB = 1 << 10
BODY = bytes(512 * KIB)
Answer = Callable[[Pair, list[Row], int], int]
"""Handles what was sent at a time; returns the time after that."""


def bytes_sent(rows: list[Row]) -> int:
    return sum(len(row["message_body"]) for row in rows)


def acknowledged_after(wait: int) -> Answer:
    def answer(engines: Pair, rows: list[Row], now: int) -> int:
        engines.b.receive_and_commit(rows, now + wait)
        engines.a.receive_and_commit(engines.b.rows(now + wait), now + wait)
        return now + wait

    return answer


def windows(engines: Pair, answer: Answer, *, now: int = 20 * SECOND) -> list[int]:
    """Sends a message of 512 KiB; returns the KiB that are in flight at a time."""
    engines.a.send(engines.outgoing, BODY)
    found: list[int] = []
    while engines.a.waiting(engines.outgoing):
        rows = engines.a.rows(now)
        found.append(bytes_sent(rows) // KIB)
        now = answer(engines, rows, now)
    assert engines.b.queue(engines.incoming)[-1] == BODY
    return found


@pytest.fixture
def engines(engine: EngineFactory) -> Pair:
    return established_pair(
        engine, max_fragment_bytes=KIB, window_bytes=32 * KIB, max_window_bytes=128 * KIB, acknowledgement_wait=0
    )


@pytest.mark.rule("P13")
def test_the_window_grows_to_its_maximum_while_acknowledgements_are_fast(engines: Pair) -> None:
    assert windows(engines, acknowledged_after(SECOND // 10)) == [32, 64, 128, 128, 128, 32]


@pytest.mark.rule("P17")
def test_the_window_stays_if_acknowledgements_take_longer(engines: Pair) -> None:
    """Otherwise what is in flight might not arrive before it is sent again."""
    assert windows(engines, acknowledged_after(2 * SECOND)) == [32] * 16


@pytest.mark.rule("P17")
def test_the_window_shrinks_again_if_acknowledgements_become_slow(engines: Pair) -> None:
    windows(engines, acknowledged_after(SECOND // 10))
    assert windows(engines, acknowledged_after(3 * SECOND + SECOND // 4), now=100 * SECOND)[:4] == [128, 64, 32, 32]


@pytest.mark.rule("P17")
def test_the_window_starts_again_after_a_loss(engines: Pair) -> None:
    windows(engines, acknowledged_after(SECOND // 10))
    engines.a.send(engines.outgoing, BODY)
    now = 100 * SECOND
    assert bytes_sent(engines.a.rows(now)) == 128 * KIB  # they are lost
    now += 5 * SECOND
    again = engines.a.rows(now)
    assert bytes_sent(again) == 128 * KIB
    acknowledged_after(0)(engines, again, now)
    assert bytes_sent(engines.a.rows(now)) == 32 * KIB
