"""The thread for due work. Each wait has a deadline and ends with an event."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from ssbroker.broker.background_thread import WorkerThread
from ssbroker.exceptions import StorageError

DEADLINE = 30.0
NEVER = 10_000.0


class Work:
    """Records each call, and returns what the test sets."""

    def __init__(self) -> None:
        self.calls: queue.Queue[str] = queue.Queue()
        self.returns: list[datetime | None] = []
        self.raises = 0
        self.error: BaseException = RuntimeError("the disk is on fire")

    def __call__(self) -> datetime | None:
        self.calls.put(threading.current_thread().name)
        if self.raises:
            self.raises -= 1
            raise self.error
        return self.returns.pop(0) if self.returns else None

    def was_called(self) -> str:
        return self.calls.get(timeout=DEADLINE)


def clock() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def runner(work: Work) -> Iterator[WorkerThread]:
    worker = WorkerThread(work, clock=clock, name="due", longest_wait=NEVER)
    yield worker
    worker.close(timeout=DEADLINE)


def test_the_thread_starts_at_the_first_wake_up(runner: WorkerThread, work: Work) -> None:
    before = runner.is_alive
    runner.wake()
    assert work.was_called() == "due"
    assert (before, runner.is_alive) == (False, True)


def test_the_work_is_called_again_at_the_time_it_returned(runner: WorkerThread, work: Work) -> None:
    work.returns = [clock() + timedelta(milliseconds=5), clock()]
    runner.wake()
    for _ in range(3):
        work.was_called()
    assert work.calls.empty()


def test_an_earlier_time_shortens_the_wait(runner: WorkerThread, work: Work) -> None:
    runner.wake(clock() + timedelta(hours=1))
    runner.wake()
    work.was_called()


def test_a_later_time_does_not_prolong_the_wait(runner: WorkerThread, work: Work) -> None:
    runner.wake(clock() + timedelta(milliseconds=5))
    runner.wake(clock() + timedelta(hours=1))
    work.was_called()


def test_the_work_is_called_after_the_longest_wait(work: Work) -> None:
    runner = WorkerThread(work, clock=clock, name="due", longest_wait=0.005)
    runner.wake()
    for _ in range(3):
        work.was_called()
    runner.close()


def test_an_exception_is_logged_and_the_work_retried(
    runner: WorkerThread, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    work.raises = 1
    with caplog.at_level(logging.ERROR, logger="ssbroker.broker"):
        runner.wake()
        work.was_called()
        work.was_called()
    assert "the disk is on fire" in caplog.text


def test_an_error_that_explains_itself_is_logged_without_a_traceback(
    runner: WorkerThread, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    work.raises, work.error = 1, StorageError("shop/msdb.sqlite: was moved or deleted")
    runner.wake()
    assert [work.was_called() for _ in range(2)]
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage().endswith(": background work failed; retrying: shop/msdb.sqlite: was moved or deleted")


def test_the_thread_survives_a_failing_log_handler(
    runner: WorkerThread, work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the log is full")

    logger, handler = logging.getLogger("ssbroker.broker"), Full()
    logger.addHandler(handler)
    work.raises = 1
    try:
        runner.wake()
        work.was_called()
        work.was_called()
    finally:
        logger.removeHandler(handler)
    assert "the log is full" in capsys.readouterr().err


def test_nothing_is_called_after_closing(work: Work) -> None:
    runner = WorkerThread(work, clock=clock, name="due", longest_wait=0.001)
    runner.wake()
    work.was_called()
    runner.close(timeout=DEADLINE)
    while not work.calls.empty():
        work.calls.get()
    runner.wake()
    assert not runner.is_alive
    assert work.calls.empty()


def test_the_work_may_close_the_thread() -> None:
    done = threading.Event()

    def close() -> None:
        itself.close(timeout=DEADLINE)
        done.set()

    itself = WorkerThread(close, clock=clock, name="due")
    itself.wake()
    assert done.wait(DEADLINE)
    assert not itself.is_alive


def test_closing_does_not_wait_for_a_backoff(work: Work) -> None:
    work.raises = 1000
    runner = WorkerThread(work, clock=clock, name="due", longest_wait=NEVER)
    runner.wake()
    for _ in range(2):  # the next one would come after 2 s
        work.was_called()
    started = clock()
    runner.close(timeout=DEADLINE)
    assert clock() - started < timedelta(seconds=1)


def test_starting_a_thread_is_retried_if_none_can_be_started(
    work: Work, runner: WorkerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", fail_to_start)
        runner.wake()
    assert not runner.is_alive
    runner.wake()
    assert work.was_called()


def test_a_signal_handler_may_wake_the_thread_during_a_wake(runner: WorkerThread, work: Work) -> None:
    """It runs after `wake` has compared the times, and asks for an earlier call."""

    class Interrupting(datetime):
        def __lt__(self, other: datetime, /) -> bool:  # type: ignore[override]
            is_earlier = super().__lt__(other)
            if threading.current_thread() is threading.main_thread():
                runner.wake()
            return is_earlier

    work.returns = [clock() + timedelta(hours=2)]
    runner.wake()
    work.was_called()
    while runner._next is None:  # until the thread waits for the time that the call has returned
        threading.Event().wait(0.01)
    runner.wake(Interrupting.fromtimestamp((clock() + timedelta(hours=1)).timestamp(), UTC))
    work.was_called()


def test_sys_exit_in_a_subscriber_does_not_end_the_thread(runner: WorkerThread, work: Work) -> None:
    work.raises, work.error = 1, SystemExit(1)
    runner.wake()
    work.was_called()
    work.was_called()
