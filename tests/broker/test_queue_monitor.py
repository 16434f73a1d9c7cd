"""When a queue gets another reader, as a state machine without threads."""

from __future__ import annotations

import pytest

from ssbroker.broker.queue_monitor import (
    CHECK_EVERY,
    READERS_WITHOUT_PROGRESS_MAX,
    TRANSITIONS,
    MonitorInput,
    MonitorState,
    QueueMonitor,
)
from ssbroker.protocol.settings import SECOND

NOW = 1_000 * SECOND


def needed(monitor: QueueMonitor, *, has_messages: bool = True, waiting: int = 0, now: int = NOW) -> bool:
    return monitor.is_reader_needed(has_messages=has_messages, waiting=waiting, now=now)


def receiving(*, readers: int, max_readers: int) -> QueueMonitor:
    """Returns a queue whose readers have all received something."""
    monitor = QueueMonitor(max_queue_readers=max_readers)
    for _ in range(readers):
        monitor.started(now=NOW)
        monitor.received(is_empty=False, is_named=False, now=NOW)
    return monitor


def test_a_message_in_a_queue_without_readers_needs_a_reader() -> None:
    assert needed(QueueMonitor(max_queue_readers=1))


def test_an_empty_queue_needs_no_reader() -> None:
    assert not needed(QueueMonitor(max_queue_readers=1), has_messages=False)


def test_a_queue_limited_to_0_readers_gets_none() -> None:
    """MAX_QUEUE_READERS = 0."""
    assert not needed(QueueMonitor(max_queue_readers=0))


def test_no_reader_is_started_until_the_last_one_has_received() -> None:
    monitor = QueueMonitor(max_queue_readers=4)
    states = [monitor.state]
    monitor.started(now=NOW)
    states.append(monitor.state)
    assert not needed(monitor, now=NOW + 100 * CHECK_EVERY)
    monitor.received(is_empty=False, is_named=False, now=NOW)
    states.append(monitor.state)
    assert needed(monitor)
    assert states == [MonitorState.INACTIVE, MonitorState.NOTIFIED, MonitorState.RECEIVES_OCCURRING]


def test_no_more_readers_run_than_allowed() -> None:
    assert needed(receiving(readers=3, max_readers=4))
    assert not needed(receiving(readers=4, max_readers=4))


def test_a_reader_waiting_in_receive_is_enough() -> None:
    assert not needed(receiving(readers=1, max_readers=4), waiting=1)


@pytest.mark.parametrize(("later", "is_needed"), [(CHECK_EVERY - 1, False), (CHECK_EVERY, True)])
def test_an_empty_receive_counts_for_five_seconds(later: int, *, is_needed: bool) -> None:
    monitor = receiving(readers=1, max_readers=4)
    monitor.received(is_empty=True, is_named=False, now=NOW)
    assert needed(monitor, now=NOW + later) is is_needed


def test_an_empty_receive_of_one_conversation_does_not_count() -> None:
    monitor = receiving(readers=1, max_readers=4)
    monitor.received(is_empty=True, is_named=True, now=NOW)
    assert needed(monitor)


def test_a_reader_is_started_immediately_if_the_last_one_left_messages() -> None:
    """Even if the queue was empty just before: the messages arrived after that."""
    monitor = receiving(readers=1, max_readers=1)
    monitor.received(is_empty=True, is_named=False, now=NOW)
    monitor.ended(has_received=True, has_progressed=True, now=NOW)
    assert monitor.state is MonitorState.INACTIVE
    assert needed(monitor)


def test_a_reader_that_never_received_is_restarted_at_the_next_check() -> None:
    """Error 28087: it would be restarted forever."""
    monitor = QueueMonitor(max_queue_readers=1)
    monitor.started(now=NOW)
    assert monitor.ended(has_received=False, has_progressed=False, now=NOW), "it received nothing"
    assert not needed(monitor)
    assert monitor.next_check(now=NOW) == NOW + CHECK_EVERY
    assert needed(monitor, now=NOW + CHECK_EVERY)


def test_a_reader_that_ends_while_the_next_starts_delays_none() -> None:
    """A reader that takes one message and returns while the next one starts."""
    monitor = receiving(readers=1, max_readers=2)
    monitor.started(now=NOW)
    assert not monitor.ended(has_received=True, has_progressed=True, now=NOW)
    assert monitor.state is MonitorState.NOTIFIED, "the starting reader has not received yet"
    assert not needed(monitor)
    monitor.received(is_empty=False, is_named=False, now=NOW)
    assert needed(monitor)


def test_running_readers_count_after_a_change_of_the_definition() -> None:
    monitor = QueueMonitor(max_queue_readers=2)
    monitor.started(now=NOW)
    monitor.reset(max_queue_readers=1)
    assert not needed(monitor)
    monitor.reset(max_queue_readers=2)
    assert needed(monitor), "the reader that never received no longer delays others"


def test_readers_that_roll_back_are_restarted_immediately_five_times() -> None:
    """Five rollbacks can then turn the queue off; without poison message handling, the reader does not spin."""
    monitor = QueueMonitor(max_queue_readers=1)
    for _ in range(READERS_WITHOUT_PROGRESS_MAX):
        assert needed(monitor)
        monitor.started(now=NOW)
        monitor.received(is_empty=False, is_named=False, now=NOW)
        assert not monitor.ended(has_received=True, has_progressed=False, now=NOW)
    assert not needed(monitor)
    assert needed(monitor, now=NOW + CHECK_EVERY)


def test_a_message_at_the_maximum_of_readers_counts_as_limited() -> None:
    """As in Service Broker's performance counter."""
    busy = receiving(readers=2, max_readers=2)
    assert busy.is_limit_reached(waiting=0, now=NOW)
    assert not busy.is_limit_reached(waiting=1, now=NOW), "a waiting receive takes it"
    assert not receiving(readers=1, max_readers=2).is_limit_reached(waiting=0, now=NOW)
    assert not QueueMonitor(max_queue_readers=0).is_limit_reached(waiting=0, now=NOW), "the queue has no readers"
    busy.received(is_empty=True, is_named=False, now=NOW)
    assert not busy.is_limit_reached(waiting=0, now=NOW + CHECK_EVERY - 1), "the readers have just found it empty"
    assert busy.is_limit_reached(waiting=0, now=NOW + CHECK_EVERY)
    busy.ended(has_received=True, has_progressed=True, now=NOW)
    busy.started(now=NOW)
    assert not busy.is_limit_reached(waiting=0, now=NOW + CHECK_EVERY), "one reader has not received yet"


def test_every_state_handles_every_input() -> None:
    assert set(TRANSITIONS) == set(MonitorInput)
    assert all(set(row) == set(MonitorState) for row in TRANSITIONS.values())


def test_a_receive_of_an_application_leaves_the_monitor_inactive() -> None:
    monitor = QueueMonitor(max_queue_readers=1)
    monitor.received(is_empty=False, is_named=False, now=NOW)
    assert monitor.state is MonitorState.INACTIVE


def test_a_clock_set_back_delays_no_reader() -> None:
    monitor = QueueMonitor(max_queue_readers=1)
    monitor.started(now=NOW + 3600 * SECOND)
    monitor.ended(has_received=False, has_progressed=False, now=NOW + 3600 * SECOND)
    assert needed(monitor)
    monitor = receiving(readers=1, max_readers=2)
    monitor.received(is_empty=True, is_named=False, now=NOW + 3600 * SECOND)
    assert needed(monitor)
