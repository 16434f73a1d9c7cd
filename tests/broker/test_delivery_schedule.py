"""The times at which failed deliveries are retried (P17)."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from ssbroker.broker.delivery_schedule import DeliverySchedule, SenderId
from ssbroker.protocol.retry_waits import Backoff
from ssbroker.protocol.settings import SECOND
from tests.interruption import interruptions

ONE, TWO, OTHER = SenderId(5, 1), SenderId(5, 2), SenderId(6, 1)


def schedule() -> DeliverySchedule:
    return DeliverySchedule(Backoff(random=lambda: 0.5))


@pytest.mark.rule("P17")
def test_waits_double_up_to_about_a_minute() -> None:
    waiting = schedule()
    waiting.add([ONE], at=0)
    now = 0
    waits = []
    for _ in range(7):
        (attempt,) = waiting.claim(5, now=now).values()
        waiting.schedule_retry(ONE, attempt=attempt, now=now)
        next_time = waiting.next_time()
        assert next_time is not None
        waits.append((next_time - now) // SECOND)
        now = next_time
    assert waits == [4, 8, 16, 32, 64, 64, 64]


@pytest.mark.rule("P17")
def test_each_wait_has_a_jitter_of_an_eighth() -> None:
    waiting = DeliverySchedule(Backoff(random=random.Random(1).random))
    for number in range(1000):
        waiting.schedule_retry(SenderId(1, number), attempt=0, now=0)
    assert waiting.claim(1, now=int(3.5 * SECOND) - 1) == {}
    assert 450 < len(waiting.claim(1, now=4 * SECOND)) < 550
    waiting.claim(1, now=int(4.5 * SECOND))
    assert waiting.next_time() is None


def test_new_conversations_are_tried_immediately_and_known_ones_keep_their_time() -> None:
    waiting = schedule()
    waiting.schedule_retry(ONE, attempt=0, now=0)
    waiting.add([ONE, TWO], at=0)
    assert waiting.claim(5, now=0) == {2: 0}


def test_a_reused_endpoint_id_has_no_wait() -> None:
    waiting = schedule()
    waiting.schedule_retry(ONE, attempt=3, now=0)
    waiting.forget(ONE)
    assert waiting.next_time() is None
    waiting.add([ONE], at=0)
    assert waiting.claim(5, now=0) == {1: 0}


@pytest.mark.rule("P17")
def test_an_endpoint_id_reused_during_an_attempt_has_no_wait() -> None:
    """Otherwise the first message of the new conversation could wait for up to a minute."""
    waiting = schedule()
    waiting.schedule_retry(ONE, attempt=8, now=0)
    now = 64 * SECOND
    assert waiting.claim(5, now=now) == {1: 9}
    waiting.forget(ONE)
    waiting.add([ONE], at=now)
    waiting.schedule_retry(ONE, attempt=9, now=now)
    assert waiting.claim(5, now=now) == {1: 0}
    waiting.schedule_retry(ONE, attempt=0, now=now)
    assert waiting.next_time() == now + 4 * SECOND


def test_conversations_that_were_never_retried_use_no_memory() -> None:
    """Their entries would never be removed."""
    waiting = schedule()
    tracemalloc.start()
    try:
        for number in range(20_000):
            waiting.forget(SenderId(5, number))
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.rule("P17")
def test_a_change_retries_everything_immediately_and_waits_still_grow() -> None:
    waiting = schedule()
    waiting.schedule_retry(ONE, attempt=0, now=0)
    waiting.schedule_all_now(now=SECOND)
    assert waiting.claim(5, now=SECOND) == {1: 1}
    waiting.schedule_retry(ONE, attempt=1, now=SECOND)
    assert waiting.next_time() == 9 * SECOND


def test_a_send_during_a_delivery_causes_another_delivery() -> None:
    waiting = schedule()
    waiting.add([ONE], at=0)
    waiting.claim(5, now=0)
    waiting.add([ONE], at=0)
    assert waiting.claim(5, now=0) == {1: 0}


@pytest.mark.rule("P17")
@pytest.mark.parametrize(("is_in_transit", "wait"), [(True, 0), (False, 4)])
def test_a_send_during_an_attempt_waits_only_if_the_attempt_failed(*, is_in_transit: bool, wait: int) -> None:
    """Messages in transit may have been read before the send; after a failure, all messages of a conversation wait."""
    waiting = schedule()
    waiting.add([ONE], at=0)
    waiting.claim(5, now=0)
    waiting.add([ONE], at=0)
    waiting.schedule_retry(ONE, attempt=0, now=0, is_in_transit=is_in_transit)
    assert waiting.next_time() == wait * SECOND


def test_an_interrupted_call_does_not_prevent_later_attempts() -> None:
    """The next scan adds the conversation again."""

    def calls() -> None:
        waiting.add([ONE], at=0)
        waiting.claim(5, now=0)
        waiting.schedule_retry(ONE, attempt=0, now=0)
        waiting.schedule_all_now(now=0)
        waiting.next_time()
        waiting.forget(ONE)
        waiting.next_time()

    waiting = schedule()
    for interruption in interruptions(calls):
        waiting.add([ONE], at=0)
        assert waiting.claim(5, now=8 * SECOND).keys() == {1}, interruption.where


def test_conversations_are_removed_with_their_database() -> None:
    waiting = schedule()
    waiting.add([ONE, OTHER], at=0)
    assert waiting.claim(6, now=0) == {1: 0}
    waiting.keep_databases([6])
    assert waiting.next_time() is None


def test_dropped_databases_use_no_memory() -> None:
    waiting = schedule()
    tracemalloc.start()
    try:
        for number in range(5_000):
            key = SenderId(number, 1)
            waiting.add([key], at=0)
            waiting.claim(number, now=0)
            waiting.forget(key)
            waiting.claim(number + 1, now=0)
            waiting.keep_databases([])
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.rule("P17")
def test_a_change_during_an_attempt_causes_an_immediate_retry() -> None:
    """The failed attempt may not have seen the change."""
    waiting = schedule()
    waiting.add([ONE], at=0)
    waiting.claim(5, now=0)
    waiting.schedule_all_now(now=0)
    waiting.schedule_retry(ONE, attempt=0, now=0)
    assert waiting.claim(5, now=0) == {1: 1}
    waiting.schedule_retry(ONE, attempt=1, now=0)
    assert waiting.next_time() == 8 * SECOND


def test_a_clock_set_back_does_not_prolong_a_wait() -> None:
    waiting = schedule()
    waiting.schedule_retry(ONE, attempt=9, now=3600 * SECOND)
    assert waiting.claim(5, now=3600 * SECOND) == {}
    assert waiting.claim(5, now=0) == {1: 10}


@pytest.mark.rule("P17")
def test_threads_with_different_times_cause_no_early_retry() -> None:
    """Otherwise two threads that send would cause all waiting messages to be retried with each send."""
    waiting = schedule()
    for number in range(100):
        waiting.schedule_retry(SenderId(5, number), attempt=0, now=SECOND)
    assert waiting.claim(5, now=SECOND + 50) == {}
    for late in (50, SECOND, 50):
        assert waiting.claim(5, now=SECOND + 50 - late) == {}
        assert waiting.claim(5, now=SECOND + 50) == {}
    assert waiting.next_time() == 5 * SECOND
