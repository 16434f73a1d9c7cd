"""B3: the lock of a file's writer is handed on in the order of asking."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from ssbroker.store.file import Gate


class Stopped(BaseException):
    """What Ctrl-C raises, without stopping the tests."""


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_first_come_first_served() -> None:
    lock = Gate()
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


def test_nobody_overtakes_who_was_handed_the_lock() -> None:
    """Between the hand-over and the waking of the thread the lock is taken already."""
    lock = Gate()
    assert lock.acquire(timeout=0)
    waiting = threading.Thread(target=lock.acquire, kwargs={"timeout": 30})
    waiting.start()
    wait_until(lambda: lock.waiting == 1)
    lock.release()
    assert not lock.acquire(timeout=0)
    waiting.join()


def test_who_gives_up_holds_up_nobody() -> None:
    lock = Gate()
    assert lock.acquire(timeout=0)
    assert not lock.acquire(timeout=0.01)
    lock.release()
    assert lock.acquire(timeout=0)


def test_who_is_interrupted_holds_up_nobody() -> None:
    lock = Gate()
    assert lock.acquire(timeout=0)

    def stop(*_: object) -> None:
        raise Stopped

    def interrupt() -> None:
        wait_until(lambda: lock.waiting == 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(Stopped):
            lock.acquire(timeout=30)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    lock.release()
    assert lock.acquire(timeout=0)


def test_no_handler_comes_between_the_hand_over_and_the_waking() -> None:
    """It runs between two instructions of Python: of these there are none."""
    lock = Gate()
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


def test_a_handler_knows_that_the_thread_it_interrupts_waits_for_the_lock() -> None:
    lock = Gate()
    holder = threading.Thread(target=lock.acquire, kwargs={"timeout": 0})
    holder.start()
    holder.join()
    seen: list[bool] = [lock.is_asked_here]

    def ask(*_: object) -> None:
        seen.append(lock.is_asked_here)
        lock.release()
        seen.append(lock.is_asked_here)

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


def test_who_took_it_knows_that_it_would_wait_for_itself() -> None:
    lock = Gate()
    seen = [lock.is_held_here]
    lock.acquire(timeout=0.0)
    seen.append(lock.is_held_here)
    elsewhere: list[bool] = []

    def other() -> None:
        elsewhere.append(lock.is_held_here)
        lock.acquire(timeout=30.0)
        elsewhere.append(lock.is_held_here)
        lock.release()
        elsewhere.append(lock.is_held_here)

    thread = threading.Thread(target=other)
    thread.start()
    while not lock.waiting:
        thread.join(0.001)
    lock.release()
    seen.append(lock.is_held_here)
    thread.join(30.0)
    assert seen == [False, True, False]
    assert elsewhere == [False, True, False]


def test_what_is_given_back_while_its_thread_asks_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that nobody has any more ends wherever Python collects, in the middle of asking too: nobody else would wake who asks."""
    lock, turn = Gate(), threading.Lock()
    assert lock.acquire(timeout=0.0)

    def collects() -> object:
        lock.release()
        return turn

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Lock", collects)
        assert lock.acquire(timeout=0.0)
    lock.release()
    assert lock.acquire(timeout=0.0)
