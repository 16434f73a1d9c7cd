"""Work queues with a worker in another process: latency, throughput, ten workers, and what a user has to write.

Each message must be processed once; a wrong result fails. Each round measures every contender once, so that noise of the disk affects all of
them alike; the results are medians of the rounds. Contenders whose library or server is missing are left out, and the report says why.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import pytest

from benches.queue_rivals import Missing
from benches.settings import SIZE, report
from benches.work_queue_rivals import RIVALS, WorkQueue

pytestmark = pytest.mark.timeout(3600)

IS_SHORT: Final = SIZE.queued < 1000
SPACED: Final = 5 if IS_SHORT else 40
PACED: Final = 20 if IS_SHORT else 200
COUNT: Final = 20 if IS_SHORT else 200
JOBS: Final = 20 if IS_SHORT else 300
ROUNDS: Final = 1 if IS_SHORT else 3
WORKERS: Final = 10
JOB_SECONDS: Final = 0.010
RATE: Final = 100
"""Messages per second of the loaded lane."""
_STOP: Final = b"stop"
_DEADLINE: Final = 300.0
_BODY_BYTES: Final = 1024


class Figures(NamedTuple):
    """What one round has measured: numbers, and the text that shows their medians."""

    text: str
    numbers: tuple[float, ...]


Measure = Callable[[type[WorkQueue], pathlib.Path], Figures]


def available(heading: str) -> list[type[WorkQueue]]:
    """Returns the contenders whose libraries and servers are available; reports the others."""
    found: list[type[WorkQueue]] = []
    for name, rival in RIVALS.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                rival(pathlib.Path(folder)).close()
        except Missing as reason:
            report(heading, f"{name:<14} {reason}")
        else:
            found.append(rival)
    return found


def body_of(number: int) -> bytes:
    """Returns a body with the time at which it is put."""
    return f"{number} {time.monotonic_ns()} ".encode().ljust(_BODY_BYTES, b"x")


class Done(NamedTuple):
    """A processed message: its number, the seconds from put to the worker, and when it was processed."""

    number: int
    delay: float
    ended_at: float


def _open_and_work(name: str, folder: pathlib.Path, job_seconds: float, pipe: Connection) -> None:
    """The process of a worker."""
    rival = RIVALS[name](folder)
    _work(rival, job_seconds, pipe)
    rival.close()


def _work(rival: WorkQueue, job_seconds: float, pipe: Connection) -> None:
    """Runs a worker, which replies with what it has processed."""
    done: list[Done] = []

    def handle(body: bytes) -> bool:
        now = time.monotonic_ns()
        if body == _STOP:
            return False
        number, put_at, _ = body.split(b" ", 2)
        time.sleep(job_seconds)
        done.append(Done(int(number), (now - int(put_at)) / 1e9, time.monotonic()))
        if not job_seconds:
            pipe.send(int(number))
        return True

    pipe.send("ready")
    rival.work(handle)
    pipe.send(done)


class Workers:
    """Workers of a rival: processes, or threads of this one that share the queue if the library needs that."""

    def __init__(self, queue: WorkQueue, folder: pathlib.Path, number: int, *, job_seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Connection] = []
        self._running: list[Any] = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            started: Any
            if queue.is_shared_by_processes:
                arguments = (queue.name, folder, job_seconds, theirs)
                started = context.Process(target=_open_and_work, args=arguments, daemon=True)
            else:
                started = threading.Thread(target=_work, args=(queue, job_seconds, theirs), daemon=True)
            started.start()
            self.pipes.append(ours)
            self._running.append(started)
        for pipe in self.pipes:
            assert receive(pipe) == "ready"

    def stop(self, queue: WorkQueue) -> list[Done]:
        """Stops the workers; returns what they have processed."""
        for _ in self.pipes:
            queue.put([_STOP])
        done = [each for pipe in self.pipes for each in receive(pipe, wants=list)]
        for each in self._running:
            each.join(_DEADLINE)
        return done


def receive(pipe: Connection, wants: type | None = None) -> Any:
    """Receives a reply; with `wants`, the next of this type."""
    while pipe.poll(_DEADLINE):
        found = pipe.recv()
        if wants is None or isinstance(found, wants):
            return found
    raise AssertionError("a worker does not reply")


def _latencies(delays: list[float]) -> Figures:
    ordered = sorted(delays)
    numbers = (statistics.median(ordered) * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3)
    return Figures("p50 {:8.2f} ms, p99 {:8.2f} ms", numbers)


def idle(rival: type[WorkQueue], folder: pathlib.Path) -> Figures:
    """from put to the worker in another process, when nothing else happens"""
    queue = rival(folder)
    workers = Workers(queue, folder, 1, job_seconds=0)
    for number in range(SPACED):
        queue.put([body_of(number)])
        assert receive(workers.pipes[0]) == number
        time.sleep(0.02)
    done = workers.stop(queue)
    queue.close()
    assert [each.number for each in done] == [*range(SPACED)]
    return _latencies([each.delay for each in done])


def loaded(rival: type[WorkQueue], folder: pathlib.Path) -> Figures:
    """from put to the worker in another process, at 100 messages/s"""
    queue = rival(folder)
    workers = Workers(queue, folder, 1, job_seconds=0)
    start = time.monotonic()
    for number in range(PACED):
        time.sleep(max(0.0, start + number / RATE - time.monotonic()))
        queue.put([body_of(number)])
    done = workers.stop(queue)
    queue.close()
    assert [each.number for each in done] == [*range(PACED)]
    return _latencies([each.delay for each in done])


def put_and_take(rival: type[WorkQueue], folder: pathlib.Path, batch: int, *, is_durable: bool = True) -> Figures:
    queue = rival(folder, is_durable=is_durable)
    bodies = [body_of(number) for number in range(COUNT)]
    found: list[bytes] = []

    def handle(body: bytes) -> bool:
        found.append(body)
        return len(found) < COUNT

    start = time.perf_counter()
    for first in range(0, COUNT, batch):
        queue.put(bodies[first : first + batch])
    put = time.perf_counter() - start
    start = time.perf_counter()
    queue.work(handle)
    taken = time.perf_counter() - start
    queue.close()
    assert found == bodies
    return Figures(f"put {{:7,.0f}}/s, take {{:7,.0f}}/s ({queue.durability})", (COUNT / put, COUNT / taken))


def one_by_one(rival: type[WorkQueue], folder: pathlib.Path) -> Figures:
    """put one by one, and take one by one"""
    return put_and_take(rival, folder, 1)


def one_by_one_not_durable(rival: type[WorkQueue], folder: pathlib.Path) -> Figures:
    """put one by one, and take one by one, without waiting for the disk, if the library has an option for that"""
    return put_and_take(rival, folder, 1, is_durable=False)


def in_batches(rival: type[WorkQueue], folder: pathlib.Path) -> Figures:
    """put 20 in one transaction, if the library can, and take one by one"""
    return put_and_take(rival, folder, 20)


def ten_workers(rival: type[WorkQueue], folder: pathlib.Path) -> Figures:
    """ten workers with jobs of 10 ms"""
    queue = rival(folder)
    workers = Workers(queue, folder, WORKERS, job_seconds=JOB_SECONDS)
    start = time.monotonic()
    queue.put([body_of(number) for number in range(JOBS)])
    done = workers.stop(queue)
    queue.close()
    seconds = max(each.ended_at for each in done) - start
    assert sorted(each.number for each in done) == [*range(JOBS)]
    alone = JOBS * JOB_SECONDS / WORKERS
    return Figures("{:7,.0f} jobs/s, {:5.2f} times the time of the jobs alone", (JOBS / seconds, seconds / alone))


def ceremony(rival: type[WorkQueue], folder: pathlib.Path) -> Figures:
    """lines of the programs that put a message and take it in another process"""
    if rival.name in ("procrastinate", "RabbitMQ"):
        rival(folder).close()  # makes tables and an empty queue
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    for program in (rival.put_program, rival.take_program):
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    assert "one" in ended.stdout
    put, take = (len(each.strip().splitlines()) for each in (rival.put_program, rival.take_program))
    return Figures("{:.0f} + {:.0f}", (put, take))


MEASURES: Final[dict[str, Measure]] = {
    each.__name__: each
    for each in (idle, loaded, one_by_one, one_by_one_not_durable, in_batches, ten_workers, ceremony)
}


@pytest.mark.parametrize("name", list(MEASURES))
def test_work_queues(name: str) -> None:
    measure = MEASURES[name]
    heading = f"Work queues: {measure.__doc__}"
    rivals = available(heading)
    if measure is one_by_one_not_durable:
        rivals = [each for each in rivals if each.may_be_lossy]
    found: dict[str, list[Figures]] = {each.name: [] for each in rivals}
    for number in range(1 if measure is ceremony else ROUNDS):
        turn = number % len(rivals)
        for rival in rivals[turn:] + rivals[:turn]:
            with tempfile.TemporaryDirectory() as folder:
                found[rival.name].append(measure(rival, pathlib.Path(folder)))
    for rival in rivals:
        rounds = found[rival.name]
        medians = [statistics.median(each) for each in zip(*(one.numbers for one in rounds), strict=True)]
        report(heading, f"{rival.name:<14} {rounds[0].text.format(*medians)}")
