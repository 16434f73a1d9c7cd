from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ssbroker.broker.queue_arrivals import QueueArrivals
from ssbroker.store.shared_memory import SharedMemory

DEADLINE = 30.0


@pytest.fixture(params=[True, False], ids=["shared memory", "one process"])
def arrivals(request: pytest.FixtureRequest, tmp_path: Path) -> QueueArrivals:
    """With and without other processes."""
    made = QueueArrivals()
    if request.param:
        (tmp_path / "database").touch()
        made.share(SharedMemory(tmp_path / "notify", tmp_path / "database", 1))
    return made


def test_an_arrival_after_the_check_ends_the_wait_immediately(arrivals: QueueArrivals) -> None:
    seen = arrivals.count(1)
    arrivals.notify([1])
    assert arrivals.wait(1, seen=seen, timeout=DEADLINE)


def test_an_arrival_before_the_check_does_not_end_the_wait(arrivals: QueueArrivals) -> None:
    arrivals.notify([1])
    assert not arrivals.wait(1, seen=arrivals.count(1), timeout=0.0)


def test_an_arrival_in_another_queue_does_not_end_the_wait(arrivals: QueueArrivals) -> None:
    seen = arrivals.count(1)
    arrivals.notify([2])
    assert not arrivals.wait(1, seen=seen, timeout=0.0)


def wait(arrivals: QueueArrivals, results: list[bool]) -> None:
    with arrivals.count_waiter(1):
        results.append(arrivals.wait(1, seen=0, timeout=DEADLINE))


def test_all_waiting_threads_are_woken_and_counted(arrivals: QueueArrivals) -> None:
    results: list[bool] = []
    threads = [threading.Thread(target=wait, args=(arrivals, results)) for _ in range(4)]
    for thread in threads:
        thread.start()
    while arrivals.waiting(1) < 4:
        threads[0].join(0.001)
    arrivals.notify([1])
    for thread in threads:
        thread.join(DEADLINE)
    assert results == [True] * 4
    assert arrivals.waiting(1) == 0


def test_closing_ends_every_wait_now_and_later(arrivals: QueueArrivals) -> None:
    results: list[bool] = []
    thread = threading.Thread(target=wait, args=(arrivals, results))
    thread.start()
    while arrivals.waiting(1) < 1:
        thread.join(0.001)
    arrivals.close()
    thread.join(DEADLINE)
    assert results == [False]
    assert arrivals.is_closed
    assert not arrivals.wait(1, seen=0, timeout=DEADLINE)
