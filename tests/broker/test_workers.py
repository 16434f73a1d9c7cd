"""Workers: `WorkQueue.run_worker`, `WorkQueue.arun_worker` and `Instance.stop_workers`."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from ssbroker import BrokerError, Instance, Job, LockTimeoutError, OptionError, StorageError, WorkQueue
from ssbroker.broker import async_calls
from ssbroker.broker.lease_heartbeat import LeaseHeartbeat
from ssbroker.protocol.events import JobFailed

Work = Callable[[Job], object]
Run = Callable[..., None]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.open(tmp_path / "shop", create=True) as opened:
        yield opened


@pytest.fixture
def queue(instance: Instance) -> WorkQueue:
    return instance.queue("Jobs", retry_after=0, on_poison="move")


@pytest.fixture(params=["thread", "asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a worker, in this thread or in an event loop."""

    def run_worker(queue: WorkQueue, function: Work, **options: Any) -> None:
        if request.param == "thread":
            queue.run_worker(function, **options)
            return

        async def work(job: Job) -> None:
            function(job)

        anyio.run(functools.partial(queue.arun_worker, work, **options), backend=request.param)

    return run_worker


def leases(instance: Instance) -> list[str]:
    return instance.view("sys.dm_broker_leases")["state"].to_pylist()  # type: ignore[return-value]  # they are texts


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_worker_survives_failing_jobs(
    instance: Instance, queue: WorkQueue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[JobFailed] = []
    instance.subscribe(told.append, JobFailed)
    done: list[bytes] = []

    def work(job: Job) -> None:
        if job.value == b"bad":
            raise OSError("the carrier is closed")
        done.append(job.value)

    for body in (b"one", b"bad", b"two"):
        queue.put(body)
    run(queue, work, timeout=0)
    assert (sorted(done), queue.count(), instance.queue("Jobs_failed").count()) == ([b"one", b"two"], 0, 1)
    assert [event.attempt for event in told] == [1, 2, 3, 4]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4 + ["ERROR"]
    assert all("the carrier is closed" in record.getMessage() for record in caplog.records)


def test_a_worker_returns_when_workers_are_stopped(instance: Instance, queue: WorkQueue, run: Run) -> None:
    """The current job is finished, and the next one stays."""
    done: list[bytes] = []

    def work(job: Job) -> None:
        instance.stop_workers()
        job.extend(60)
        done.append(job.value)

    queue.put(b"one")
    queue.put(b"two")
    run(queue, work)
    run(queue, work)
    assert (done, queue.count(), leases(instance)) == ([b"one"], 1, [])
    with queue.take() as job:
        assert not job


def test_stopping_ends_every_wait(instance: Instance, queue: WorkQueue) -> None:
    """Of all queues, in threads and in coroutines, without polling."""
    other = instance.create_database("Shop").queue("Other")

    async def waiting() -> None:
        async with asyncio.TaskGroup() as group:
            for each in (queue, other, queue):
                group.create_task(each.arun_worker(fail))

    async def fail(_: Job) -> None:
        raise AssertionError

    with ThreadPoolExecutor() as threads:
        ended = [threads.submit(each.run_worker, print) for each in (queue, other, queue)]
        ended.append(threads.submit(asyncio.run, waiting()))
        wait_until(lambda: len(instance._context.waiting_jobs) == 6)
        instance.stop_workers()
        for each in ended:
            each.result(30)
    assert not instance._context.waiting_jobs


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM ends a process there")
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_signal_stops_a_worker(tmp_path: Path, *, is_shared: bool) -> None:
    """While it waits, and while it works."""
    program = """
import signal, sys, time
from ssbroker import Instance
from ssbroker.store.database_file import DatabaseFile

if sys.argv[2] != "True":
    DatabaseFile.share_memory = lambda _: None

def work(job):
    print("began", flush=True)
    time.sleep(0.5)
    print("done", flush=True)

with Instance.open(sys.argv[1], create=True) as instance:
    queue = instance.queue("Jobs")
    signal.signal(signal.SIGTERM, lambda *_: instance.stop_workers())
    print("ready", flush=True)
    queue.run_worker(work)
    print("stopped", queue.count(), instance.view("sys.dm_broker_leases").num_rows, flush=True)
"""
    for bodies, shown in (([], ["ready"]), ([b"one", b"two"], ["ready", "began"])):
        with Instance.open(tmp_path / "shop", create=True) as instance:
            queue = instance.queue("Jobs")
            for body in bodies:
                queue.put(body)
        command = [sys.executable, "-c", program, str(tmp_path / "shop"), str(is_shared)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert [worker.stdout.readline().strip() for _ in shown] == shown
            if not bodies:
                time.sleep(0.2)  # it waits now
            worker.send_signal(signal.SIGTERM)
            rest, _ = worker.communicate(timeout=30)
        assert (rest, worker.returncode) == (("done\n" if bodies else "") + f"stopped {bool(bodies):d} 0\n", 0)


def test_a_worker_returns_when_the_instance_is_closed(instance: Instance, queue: WorkQueue, run: Run) -> None:
    threading.Timer(0.1, instance.close).start()
    run(queue, print)
    run(queue, print)


def test_a_worker_continues_when_its_queue_is_enabled_again(
    instance: Instance,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And when the database can be used again."""
    queue, attempts = instance.queue("Jobs", retry_after=0), []
    pauses: list[float] = []

    def enable(pause: float) -> None:
        pauses.append(pause)
        if pause == 2:
            instance.database("Queues").alter_queue("Jobs", status=True)

    async def enable_in_task(pause: float) -> None:
        enable(pause)

    monkeypatch.setattr(time, "sleep", enable)
    monkeypatch.setattr(async_calls, "sleep", enable_in_task)

    def work(job: Job) -> None:
        attempts.append(job.attempt)
        if len(attempts) <= 5:
            raise OSError("no disk")
        instance.stop_workers()

    queue.put(b"one")
    run(queue, work)
    assert (len(attempts), pauses) == (6, [0, 0, 0, 0, 0, 1, 2])
    assert "a worker cannot take jobs; trying again in 2 s: 9617: " in caplog.text


def test_the_pauses_of_a_worker_begin_again_after_a_job(
    instance: Instance, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the job has failed."""
    queue, database = instance.queue("Jobs", retry_after=0), instance.database("Queues")
    pauses: list[float] = []

    def enable(pause: float) -> None:
        if pause:
            pauses.append(pause)
        if pause == 2:
            database.alter_queue("Jobs", status=True)

    async def enable_in_task(pause: float) -> None:
        enable(pause)

    monkeypatch.setattr(time, "sleep", enable)
    monkeypatch.setattr(async_calls, "sleep", enable_in_task)

    def work(job: Job) -> None:
        if job.attempt <= 2:
            database.alter_queue("Jobs", status=False)
            raise OSError("no disk")
        instance.stop_workers()

    queue.put(b"one")
    run(queue, work)
    assert (pauses, queue.count()) == ([1, 2, 1, 2], 0)


def test_a_worker_that_cannot_take_jobs_ends_after_its_timeout(
    instance: Instance, queue: WorkQueue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """With the last error: a worker that only found no job returns."""
    instance.database("Queues").alter_queue("Jobs", status=False)
    for timeout, attempts in ((0, 1), (0.1, 2)):
        caplog.clear()
        with pytest.raises(BrokerError, match=r"^9617: "):
            run(queue, print, timeout=timeout)
        assert caplog.text.count("a worker cannot take jobs; trying again in 0.1 s: 9617: ") == attempts - 1


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be moved there")
def test_a_worker_ends_if_its_file_was_moved(instance: Instance, queue: WorkQueue, run: Run) -> None:
    path = instance.database("Queues").path
    moved = path.rename(path.with_suffix(".moved"))
    with pytest.raises(StorageError, match="was moved or deleted while it was open"):
        run(queue, print)
    moved.rename(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_worker_ends_in_a_forked_process(tmp_path: Path) -> None:
    program = """
import asyncio, os, signal, sys
from ssbroker import Instance, StorageError

async def work(job): pass

queue = Instance.open(sys.argv[1], create=True).queue("Jobs")
child = os.fork()
if not child:
    signal.alarm(30)
    for run in (lambda: queue.run_worker(print), lambda: asyncio.run(queue.arun_worker(work))):
        try:
            run()
        except StorageError as error:
            print(str(error).partition(": ")[2], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "shop")]
    worker = subprocess.run(command, capture_output=True, text=True, check=True)
    error = "was opened before this process was forked; open the instance again in this process\n"
    assert (worker.stdout, worker.stderr) == (2 * error, "")


def test_a_worker_ends_if_its_queue_is_dropped(queue: WorkQueue, run: Run) -> None:
    queue.drop()
    with pytest.raises(BrokerError, match="15151"):
        run(queue, print)


def test_a_worker_logs_a_lost_job(
    instance: Instance, queue: WorkQueue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def work(job: Job) -> None:
        del job
        queue.clear()

    queue.put(b"one")
    run(queue, work, timeout=0)
    assert "a job could not be completed: the lease of the conversation group" in caplog.text
    assert leases(instance) == []


def test_an_interrupt_ends_a_worker_and_gives_its_job_back(queue: WorkQueue) -> None:
    def work(_: Job) -> None:
        raise KeyboardInterrupt

    queue.put(b"one")
    with pytest.raises(KeyboardInterrupt):
        queue.run_worker(work)
    with queue.take(timeout=0) as job:
        assert job.attempt == 2


async def coroutine(_: Job) -> None: ...


@pytest.mark.parametrize("wrong", [None, "work", coroutine, functools.partial(coroutine)])
def test_a_worker_takes_a_regular_function(queue: WorkQueue, wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"^function: expected a regular function .* use `await queue\.arun_worker"):
        queue.run_worker(wrong, timeout=0)


@pytest.mark.parametrize("wrong", [None, "work", print, lambda _: asyncio.sleep(0)])
def test_a_worker_in_a_coroutine_takes_a_coroutine_function(queue: WorkQueue, wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"^function: expected a coroutine function .* use `queue\.run_worker"):
        asyncio.run(queue.arun_worker(wrong, timeout=0))


def test_a_coroutine_function_may_be_an_object_or_a_partial(queue: WorkQueue) -> None:
    done: list[bytes] = []

    class Worker:
        async def __call__(self, job: Job) -> None:
            done.append(job.value)

    async def work(_: str, job: Job) -> None:
        done.append(job.value)

    functions: list[Callable[[Job], Awaitable[None]]] = [Worker(), Worker().__call__, functools.partial(work, "name")]
    for function in functions:
        queue.put(b"one")
        asyncio.run(queue.arun_worker(function, timeout=0))
    assert done == [b"one"] * 3


def test_a_cancelled_worker_gives_its_job_back(instance: Instance, queue: WorkQueue) -> None:
    has_begun = asyncio.Event()

    async def work(_: Job) -> None:
        has_begun.set()
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(queue.arun_worker(work))
        await has_begun.wait()
        assert leases(instance) == ["LEASED"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    queue.put(b"one")
    asyncio.run(main())
    assert leases(instance) == ["READY"]


def test_a_job_that_cannot_be_acknowledged_is_given_back(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, instead of at the end of its lease."""
    with Instance.open(tmp_path / "impatient", create=True, lock_timeout=0.2) as instance:
        queue = instance.queue("Jobs", retry_after=0)
        held, attempts = threading.Event(), []

        def hold_lock() -> None:
            with instance.database("Queues").transaction() as t:
                t.connection.execute("SELECT 1")
                held.set()
                time.sleep(0.3)

        def work(job: Job) -> None:
            attempts.append(job.attempt)
            if job.attempt == 1:
                threading.Thread(target=hold_lock).start()
                held.wait(30)

        queue.put(b"one")
        run(queue, work, timeout=0, lease=3600)
        assert (attempts, queue.count()) == ([1, 2], 0)
    (record,) = caplog.records
    assert (record.levelno, "error=LockTimeoutError" in record.getMessage()) == (logging.WARNING, True)


def test_a_heartbeat_keeps_the_lease(instance: Instance, queue: WorkQueue, run: Run) -> None:
    attempts: list[int] = []

    def work(job: Job) -> None:
        attempts.append(job.attempt)
        time.sleep(0.6)
        with queue.take(timeout=0) as other:
            assert not other

    queue.put(b"one")
    run(queue, work, lease=0.2, heartbeat=True, timeout=0)
    assert (attempts, queue.count(), leases(instance)) == ([1], 0, [])
    wait_until(lambda: not heartbeats())


def heartbeats() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ssbroker lease heartbeat"]


def test_a_heartbeat_survives_lock_timeouts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Instance.open(tmp_path / "impatient", create=True, lock_timeout=0.01) as instance:
        queue = instance.queue("Jobs")
        queue.put(b"one")
        with queue.take(lease=1, heartbeat=True) as job:
            with instance.database("Queues").transaction() as t:
                t.connection.execute("SELECT 1")
                time.sleep(0.6)
            assert "the lease of a job could not be extended; trying again" in caplog.text
            time.sleep(0.8)
            with queue.take(timeout=0) as other:
                assert not other
            assert job.attempt == 1
        assert queue.count() == 0


@pytest.mark.parametrize(
    "end", [lambda job: job.retry(), lambda job: job.fail(), lambda job: job.retry(after=9), lambda _: 1 / 0]
)
def test_a_heartbeat_ends_with_the_job(instance: Instance, end: Callable[[Job], object]) -> None:
    instance.queue("Jobs", retry_after=0)
    instance.database("Queues").alter_queue("Jobs", poison_message_handling=False)
    queue = instance.queue("Jobs", retry_after=0)
    queue.put(b"one")
    try:
        with queue.take(lease=0.03, heartbeat=True) as job:
            end(job)
    except ZeroDivisionError:
        pass
    wait_until(lambda: not heartbeats())
    assert leases(instance) in (["READY"], ["WAITING"])


def test_a_heartbeat_ends_if_the_job_is_deleted_before_its_end(queue: WorkQueue) -> None:
    """As after an interrupt of its `__exit__`; otherwise the lease would not end before the process."""
    queue.put(b"one")
    job = queue.take(lease=0.05, heartbeat=True).__enter__()
    assert job
    assert heartbeats()
    del job
    wait_until(lambda: not heartbeats())


def test_a_heartbeat_does_not_extend_a_lost_lease(instance: Instance, queue: WorkQueue) -> None:
    queue.put(b"one")
    with pytest.raises(BrokerError, match="is lost"), queue.take(lease=0.05, heartbeat=True):
        queue.clear()
        wait_until(lambda: not heartbeats())
    assert leases(instance) == []


def test_a_heartbeat_ends_with_its_process(tmp_path: Path) -> None:
    program = """
import os, sys
from ssbroker import Instance

with Instance.open(sys.argv[1], create=True) as instance:
    queue = instance.queue("Jobs", retry_after=0)
    queue.put(b"one")
    with queue.take(lease=0.5, heartbeat=True):
        os._exit(1)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "shop")], check=False)
    with Instance.open(tmp_path / "shop") as instance, instance.queue("Jobs").take(timeout=30) as job:
        assert job.attempt == 2


@pytest.mark.parametrize("wrong", ["no", 1, None])
def test_a_heartbeat_is_a_boolean(instance: Instance, queue: WorkQueue, wrong: Any) -> None:
    for take in (queue.take, functools.partial(instance.database("Queues").take, "Jobs")):
        with pytest.raises(OptionError, match=r"^heartbeat: expected True or False"):
            take(heartbeat=wrong)


def test_a_heartbeat_that_cannot_start_gives_the_messages_back(
    instance: Instance, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(b"one")
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no threads")))
    with pytest.raises(RuntimeError, match="no threads"), queue.take(heartbeat=True):
        pass
    assert leases(instance) == ["READY"]


def test_a_worker_ends_if_heartbeats_cannot_start(queue: WorkQueue, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: LeaseHeartbeat) -> None:
        raise RuntimeError("can't start new thread")

    queue.put(b"one")
    monkeypatch.setattr(LeaseHeartbeat, "start", fail)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(queue, print, heartbeat=True, timeout=0)


def test_an_interrupt_of_the_acknowledgement_gives_the_messages_back(
    instance: Instance, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    queue.put(b"one")
    with pytest.raises(KeyboardInterrupt), queue.take(heartbeat=True):
        monkeypatch.setattr(Job, "_acknowledge", interrupt)
    assert leases(instance) == ["READY"]
    wait_until(lambda: not heartbeats())


def test_a_lock_timeout_at_the_end_of_a_block_is_raised_and_the_job_given_back(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "impatient", create=True, lock_timeout=0.2) as instance:
        queue, held = instance.queue("Jobs", retry_after=0), threading.Event()

        def hold_lock() -> None:
            with instance.database("Queues").transaction() as t:
                t.connection.execute("SELECT 1")
                held.set()
                time.sleep(0.3)

        queue.put(b"one")
        with pytest.raises(LockTimeoutError), queue.take(lease=3600):
            threading.Thread(target=hold_lock).start()
            held.wait(30)
        assert leases(instance) == ["READY"]
