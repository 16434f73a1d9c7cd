"""Durable messages from one process to another over loopback: ssbroker with TLS, durable at both ends, and servers used from Python.

The receiver checks that each message is complete, unaltered and in the order of its conversation. A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
import os
import pathlib
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches.network_rivals import Rival, Setting
from benches.network_rivals.ours import Ours
from benches.network_rivals.processes import Found, Running
from benches.network_rivals.round_trips import round_trips
from benches.network_rivals.servers import Postgres, RabbitMq
from benches.queue_rivals import Missing
from benches.race import ReplayClock, Times
from benches.settings import SIZE, report

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

RIVALS: Final[dict[str, Rival]] = {rival.name: rival for rival in (Ours(), Postgres(), RabbitMq())}
OURS: Final = Ours.name
SIZES: Final = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "16 MiB": 1 << 24}
SHARE: Final = {"1 KiB": 1, "64 KiB": 20, "16 MiB": 2_000}
"""The divisors of the number of messages."""
BATCH: Final = {"1 KiB": 100, "64 KiB": 10, "16 MiB": 1}
MINIMUM: Final = 2
WIDE: Final = 10
"""The default number of conversations."""


@pytest.mark.parametrize("name", list(RIVALS))
@pytest.mark.parametrize("size", list(SIZES))
def test_throughput(benchmark: BenchmarkFixture, size: str, name: str) -> None:
    found, missing = _sizes(size)
    if name in missing:
        pytest.skip(f"{name}: {missing[name]}")
    benchmark.group = f"durable messages of {size} between two processes, {_batch(size)} per transaction"
    benchmark.extra_info["messages"] = _count(size)
    CLOCK.replay(benchmark, _times(found[name]))


@pytest.mark.parametrize("name", list(RIVALS))
def test_latency_at_half_load(benchmark: BenchmarkFixture, name: str) -> None:
    """Measures the latency of 1 KiB messages at half of the maximum rate."""
    found, missing = _latencies()
    if name in missing:
        pytest.skip(f"{name}: {missing[name]}")
    benchmark.group = "latency of 1 KiB messages at half load, from send to committed receive"
    CLOCK.replay(benchmark, Times(wall=tuple(statistics.quantiles(found[name], n=100)[at - 1] for at in (50, 99))))


@pytest.mark.parametrize("pause", [0.0, 0.01], ids=["back to back", "every 10 ms"])
def test_round_trip(benchmark: BenchmarkFixture, pause: float) -> None:
    """Measures a request of 1 KiB and its answer while nothing else is sent."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("SSBROKER_BENCH_FOLDER")) as folder:
        setting = Setting(folder=pathlib.Path(folder), conversations=1, receivers=1, batch=1)
        percentiles = statistics.quantiles(round_trips(setting, _count("1 KiB") // 40, pause=pause), n=100)
    benchmark.group = "round trip of 1 KiB, from the send to the committed receive of the answer"
    report(
        "Round trips of 1 KiB between two idle instances",
        f"{'every 10 ms' if pause else 'back to back':<12} p50 {percentiles[49] * 1e3:8.2f} ms, p99 {percentiles[98] * 1e3:8.2f} ms",
    )
    CLOCK.replay(benchmark, Times(wall=(percentiles[49], percentiles[98])))


@pytest.mark.parametrize("conversations", [1, 10, 1_000])
def test_growth_with_conversations(benchmark: BenchmarkFixture, conversations: int) -> None:
    _growth(benchmark, conversations=conversations, receivers=1)


@pytest.mark.parametrize("instances", SIZE.instances)
def test_growth_with_instances(benchmark: BenchmarkFixture, instances: int) -> None:
    """Measures one instance that sends to all others."""
    _growth(benchmark, conversations=56, receivers=instances - 1)


def _growth(benchmark: BenchmarkFixture, *, conversations: int, receivers: int) -> None:
    with running(RIVALS[OURS], conversations=conversations, receivers=receivers, batch=_batch("1 KiB")) as ours:
        rounds = _rounds(ours, "1 KiB")
    median = statistics.median(each.seconds for each in rounds)
    benchmark.group = "1 KiB messages by number of conversations and instances"
    heading = "1 KiB messages between instances: rate by number of conversations and instances"
    report(
        heading,
        f"{conversations:5,} conversations, {receivers + 1} instances {_count('1 KiB') / median:9,.0f} messages/s",
    )
    CLOCK.replay(benchmark, _times(rounds))


@functools.cache
def _sizes(size: str) -> tuple[dict[str, list[Found]], dict[str, str]]:
    """Returns the rounds of each rival, which run interleaved."""
    found: dict[str, list[Found]] = {}
    with ExitStack() as stack:
        lanes, missing = _lanes(stack, batch=_batch(size))
        for number in range(SIZE.rounds + 1):
            for lane in lanes[number % len(lanes) :] + lanes[: number % len(lanes)]:
                round_found = lane.run(_count(size), SIZES[size])
                if number:
                    found.setdefault(lane.name, []).append(round_found)
    heading = (
        f"Durable messages of {size} between two processes, {_count(size):,} messages, {_batch(size)} per transaction"
    )
    ours = statistics.median(each.seconds for each in found[OURS])
    for name in sorted(found, key=lambda name: statistics.median(each.seconds for each in found[name])):
        seconds = statistics.median(each.seconds for each in found[name])
        rate = _count(size) / seconds
        report(
            heading,
            f"{name:<12} {rate:11,.1f} messages/s {rate * SIZES[size] / 2**20:8.1f} MiB/s, ssbroker is {seconds / ours:5.2f} x",
        )
    for name, reason in missing.items():
        report(heading, f"{name:<12} skipped: {reason}")
    return found, missing


@functools.cache
def _latencies() -> tuple[dict[str, list[float]], dict[str, str]]:
    size, count = "1 KiB", _count("1 KiB")
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        lanes, missing = _lanes(stack, batch=_batch(size))
        for lane in lanes:
            lane.run(count, SIZES[size])
            rate = count / lane.run(count, SIZES[size]).seconds / 2
            found[lane.name] = lane.run(count, SIZES[size], rate=rate).delays
            percentiles = statistics.quantiles(found[lane.name], n=100)
            report(
                "Latency of 1 KiB messages between two processes, at half load",
                f"{lane.name:<12} {rate:9,.0f} messages/s: p50 {percentiles[49] * 1e3:8.2f} ms, p99 {percentiles[98] * 1e3:8.2f} ms",
            )
    return found, missing


def _lanes(stack: ExitStack, *, batch: int) -> tuple[list[Running], dict[str, str]]:
    lanes: list[Running] = []
    missing: dict[str, str] = {}
    for name, rival in RIVALS.items():
        try:
            lanes.append(stack.enter_context(running(rival, conversations=WIDE, receivers=1, batch=batch)))
        except Missing as reason:
            missing[name] = str(reason)
    return lanes, missing


def _rounds(lane: Running, size: str) -> list[Found]:
    return [lane.run(_count(size), SIZES[size]) for _ in range(SIZE.rounds + 1)][1:]


@contextmanager
def running(rival: Rival, *, conversations: int, receivers: int, batch: int) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("SSBROKER_BENCH_FOLDER")) as folder:
        setting = Setting(folder=pathlib.Path(folder), conversations=conversations, receivers=receivers, batch=batch)
        at_work = Running(rival, setting)
        try:
            yield at_work
        finally:
            at_work.close()


def _times(rounds: list[Found]) -> Times:
    return Times(wall=tuple(each.seconds for each in rounds), cpu=tuple(each.cpu for each in rounds))


def _count(size: str) -> int:
    return max(MINIMUM, SIZE.networked // SHARE[size])


def _batch(size: str) -> int:
    return BATCH[size]
