from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ssbroker._core import SharedMemory
from ssbroker.broker.commit_signals import CommitSignals

DEADLINE = 30.0


@pytest.fixture(params=[True, False], ids=["shared memory", "one process"])
def signals(request: pytest.FixtureRequest, tmp_path: Path) -> CommitSignals:
    """With and without other processes."""
    made = CommitSignals()
    if request.param:
        (tmp_path / "database").touch()
        made.share(SharedMemory(tmp_path / "notify", tmp_path / "database", 1))
    return made


def test_an_arrival_after_the_check_ends_the_wait_immediately(signals: CommitSignals) -> None:
    seen = signals.count(1)
    signals.notify([1])
    assert signals.wait(1, seen=seen, timeout=DEADLINE)


def test_an_arrival_before_the_check_does_not_end_the_wait(signals: CommitSignals) -> None:
    signals.notify([1])
    assert not signals.wait(1, seen=signals.count(1), timeout=0.0)


def test_an_arrival_in_another_queue_does_not_end_the_wait(signals: CommitSignals) -> None:
    seen = signals.count(1)
    signals.notify([2])
    assert not signals.wait(1, seen=seen, timeout=0.0)


def wait(signals: CommitSignals, results: list[bool]) -> None:
    with signals.count_waiter(1):
        results.append(signals.wait(1, seen=0, timeout=DEADLINE))


def test_all_waiting_threads_are_woken_and_counted(signals: CommitSignals) -> None:
    results: list[bool] = []
    threads = [threading.Thread(target=wait, args=(signals, results)) for _ in range(4)]
    for thread in threads:
        thread.start()
    while signals.waiting(1) < 4:
        threads[0].join(0.001)
    signals.notify([1])
    for thread in threads:
        thread.join(DEADLINE)
    assert results == [True] * 4
    assert signals.waiting(1) == 0


def test_closing_ends_every_wait_now_and_later(signals: CommitSignals) -> None:
    results: list[bool] = []
    thread = threading.Thread(target=wait, args=(signals, results))
    thread.start()
    while signals.waiting(1) < 1:
        thread.join(0.001)
    signals.close()
    thread.join(DEADLINE)
    assert results == [False]
    assert signals.is_closed
    assert not signals.wait(1, seen=0, timeout=DEADLINE)
