"""When what could not be delivered is tried again (P17)."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from ssbroker.broker.delivery import Retries, SenderKey
from ssbroker.protocol.config import SECOND, Backoff

ONE, TWO, OTHER = SenderKey(5, 1), SenderKey(5, 2), SenderKey(6, 1)


def retries() -> Retries:
    return Retries(Backoff(random=lambda: 0.5))


@pytest.mark.rule("P17")
def test_the_waits_double_up_to_about_a_minute() -> None:
    waiting = retries()
    waiting.add([ONE], at=0)
    now = 0
    waits = []
    for _ in range(7):
        (attempt,) = waiting.claim(5, now=now).values()
        waiting.failed(ONE, attempt=attempt, now=now)
        moment = waiting.next_time()
        assert moment is not None
        waits.append((moment - now) // SECOND)
        now = moment
    assert waits == [4, 8, 16, 32, 64, 64, 64]


@pytest.mark.rule("P17")
def test_each_wait_has_a_jitter_of_an_eighth() -> None:
    waiting = Retries(Backoff(random=random.Random(1).random))
    for number in range(1000):
        waiting.failed(SenderKey(1, number), attempt=0, now=0)
    assert waiting.claim(1, now=int(3.5 * SECOND) - 1) == {}
    assert 450 < len(waiting.claim(1, now=4 * SECOND)) < 550
    waiting.claim(1, now=int(4.5 * SECOND))
    assert waiting.next_time() is None


def test_what_is_new_is_tried_at_its_moment_and_what_is_known_keeps_its_own() -> None:
    waiting = retries()
    waiting.failed(ONE, attempt=0, now=0)
    waiting.add([ONE, TWO], at=0)
    assert waiting.claim(5, now=0) == {2: 0}


def test_a_number_that_goes_to_another_conversation_keeps_no_wait() -> None:
    waiting = retries()
    waiting.failed(ONE, attempt=3, now=0)
    waiting.forget(ONE)
    assert waiting.next_time() is None
    waiting.add([ONE], at=0)
    assert waiting.claim(5, now=0) == {1: 0}


@pytest.mark.rule("P17")
def test_nor_a_wait_of_one_that_went_while_it_was_being_tried() -> None:
    """The attempt ends after the other conversation has sent, whose first message would wait for up to a minute."""
    waiting = retries()
    waiting.failed(ONE, attempt=8, now=0)
    now = 64 * SECOND
    assert waiting.claim(5, now=now) == {1: 9}
    waiting.forget(ONE)
    waiting.add([ONE], at=now)
    waiting.failed(ONE, attempt=9, now=now)
    assert waiting.claim(5, now=now) == {1: 0}
    waiting.failed(ONE, attempt=0, now=now)
    assert waiting.next_time() == now + 4 * SECOND


def test_numbers_of_conversations_that_were_never_tried_take_no_memory() -> None:
    """Each conversation that begins has one; where nothing has to wait, nobody comes to take them out."""
    waiting = retries()
    tracemalloc.start()
    try:
        for number in range(20_000):
            waiting.forget(SenderKey(5, number))
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.rule("P17")
def test_a_change_has_everything_tried_at_once_and_the_waits_go_on_growing() -> None:
    waiting = retries()
    waiting.failed(ONE, attempt=0, now=0)
    waiting.retry_all(now=SECOND)
    assert waiting.claim(5, now=SECOND) == {1: 1}
    waiting.failed(ONE, attempt=1, now=SECOND)
    assert waiting.next_time() == 9 * SECOND


def test_what_is_sent_while_a_conversation_is_being_delivered_has_it_delivered_again() -> None:
    waiting = retries()
    waiting.add([ONE], at=0)
    waiting.claim(5, now=0)
    waiting.add([ONE], at=0)
    assert waiting.claim(5, now=0) == {1: 0}


def test_conversations_of_other_databases_are_not_claimed_and_go_with_their_database() -> None:
    waiting = retries()
    waiting.add([ONE, OTHER], at=0)
    assert waiting.claim(6, now=0) == {1: 0}
    waiting.keep_databases([6])
    assert waiting.next_time() is None


@pytest.mark.rule("P17")
def test_a_change_while_a_conversation_is_being_tried_has_it_tried_at_once() -> None:
    """It may have come too late for the attempt that then failed."""
    waiting = retries()
    waiting.add([ONE], at=0)
    waiting.claim(5, now=0)
    waiting.retry_all(now=0)
    waiting.failed(ONE, attempt=0, now=0)
    assert waiting.claim(5, now=0) == {1: 1}
    waiting.failed(ONE, attempt=1, now=0)
    assert waiting.next_time() == 8 * SECOND


def test_a_clock_that_is_put_back_by_an_hour_does_not_prolong_a_wait() -> None:
    waiting = retries()
    waiting.failed(ONE, attempt=9, now=3600 * SECOND)
    assert waiting.claim(5, now=3600 * SECOND) == {}
    assert waiting.claim(5, now=0) == {1: 10}


@pytest.mark.rule("P17")
def test_a_thread_that_has_read_the_clock_before_another_has_nothing_tried_too_soon() -> None:
    """Each send would otherwise try all that waits as soon as two threads send."""
    waiting = retries()
    for number in range(100):
        waiting.failed(SenderKey(5, number), attempt=0, now=SECOND)
    assert waiting.claim(5, now=SECOND + 50) == {}
    for late in (50, SECOND, 50):
        assert waiting.claim(5, now=SECOND + 50 - late) == {}
        assert waiting.claim(5, now=SECOND + 50) == {}
    assert waiting.next_time() == 5 * SECOND
