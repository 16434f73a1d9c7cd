"""The write lock of a file is handed over in the order of requests."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from ssbroker.store.write_lock import WriteLock
from tests.interruption import interruptions


class Interrupted(BaseException):
    """Raised by Ctrl-C, without stopping the tests."""


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_first_come_first_served() -> None:
    lock = WriteLock()
    assert lock.acquire(timeout=0)
    came: list[int] = []

    def ask(number: int) -> None:
        assert lock.acquire(timeout=30)
        came.append(number)
        lock.release()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda number=number: lock.waiting == number + 1)  # type: ignore[misc]  # a default in a lambda
    lock.release()
    for thread in threads:
        thread.join()
    assert came == list(range(20))
    assert lock.acquire(timeout=0)


def test_no_thread_overtakes_a_handed_over_lock() -> None:
    """The lock is taken from the hand-over on, even before the thread wakes."""
    lock = WriteLock()
    assert lock.acquire(timeout=0)
    waiting = threading.Thread(target=lock.acquire, kwargs={"timeout": 30})
    waiting.start()
    wait_until(lambda: lock.waiting == 1)
    lock.release()
    assert not lock.acquire(timeout=0)
    waiting.join()


def test_a_thread_that_gives_up_blocks_no_other() -> None:
    lock = WriteLock()
    assert lock.acquire(timeout=0)
    assert not lock.acquire(timeout=0.01)
    lock.release()
    assert lock.acquire(timeout=0)


def test_an_interrupted_thread_blocks_no_other() -> None:
    lock = WriteLock()
    assert lock.acquire(timeout=0)

    def stop(*_: object) -> None:
        raise Interrupted

    def interrupt() -> None:
        wait_until(lambda: lock.waiting == 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(Interrupted):
            lock.acquire(timeout=30)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    lock.release()
    assert lock.acquire(timeout=0)


@pytest.mark.parametrize("is_released", [False, True])
def test_a_request_that_is_interrupted_anywhere_blocks_no_other(
    is_released: bool,  # noqa: FBT001  # pytest gives it by name
) -> None:
    """Whether the holder keeps the lock, or releases it just before the interrupt and so may hand it over."""
    lock, holder = WriteLock(), 1

    def ask() -> None:
        lock.try_acquire(holder)
        assert not lock.acquire(timeout=0.0)

    places = []
    for interruption in interruptions(ask, lock.release if is_released else lambda: None):
        places.append(interruption.where)
        if not is_released:
            assert lock.holder == holder
            lock.release()
        assert (lock.holder, lock.waiting) == (None, 0)
    assert any("acquire_or_enqueue" in str(each) for each in places)


def test_no_signal_handler_runs_between_hand_over_and_wake_up() -> None:
    """A handler runs between two instructions of Python, and there are none."""
    lock = WriteLock()
    assert lock.acquire(timeout=0)
    waiting = threading.Thread(target=lock.acquire, kwargs={"timeout": 30})
    waiting.start()
    wait_until(lambda: lock.waiting == 1)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    lock.release()
    sys.setprofile(None)
    waiting.join()
    assert called == []


def test_a_signal_handler_detects_that_its_thread_waits_for_the_lock() -> None:
    lock = WriteLock()
    holder = threading.Thread(target=lock.acquire, kwargs={"timeout": 0})
    holder.start()
    holder.join()
    seen: list[bool] = [lock.would_deadlock]

    def ask(*_: object) -> None:
        seen.append(lock.would_deadlock)
        lock.release()
        seen.append(lock.would_deadlock)

    def interrupt() -> None:
        wait_until(lambda: lock.waiting == 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ask)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert lock.acquire(timeout=30)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert seen == [False, True, True]


def test_the_holder_detects_that_it_would_wait_for_itself() -> None:
    lock = WriteLock()
    seen = [lock.is_held_by_this_thread]
    lock.acquire(timeout=0.0)
    seen.append(lock.is_held_by_this_thread)
    elsewhere: list[bool] = []

    def other() -> None:
        elsewhere.append(lock.is_held_by_this_thread)
        lock.acquire(timeout=30.0)
        elsewhere.append(lock.is_held_by_this_thread)
        lock.release()
        elsewhere.append(lock.is_held_by_this_thread)

    thread = threading.Thread(target=other)
    thread.start()
    while not lock.waiting:
        thread.join(0.001)
    lock.release()
    seen.append(lock.is_held_by_this_thread)
    thread.join(30.0)
    assert seen == [False, True, False]
    assert elsewhere == [False, True, False]


def test_a_lock_released_during_the_request_is_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreferenced transaction ends whenever Python collects it, even during a request; nobody else would wake the thread."""
    lock, turn = WriteLock(), threading.Lock()
    assert lock.acquire(timeout=0.0)

    def collects() -> object:
        lock.release()
        return turn

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Lock", collects)
        assert lock.acquire(timeout=0.0)
    lock.release()
    assert lock.acquire(timeout=0.0)
