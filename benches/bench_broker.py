"""Durable sending and receiving of 1 KiB messages: ssbroker and its rivals, interleaved. Results are checked before anything is timed.

Each message must be received once, unaltered, and in the order of its conversation. A message counts only once its commit is on disk.
A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
import pathlib
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches.queue_rivals import Entry, Message, Missing, QueueRival
from benches.queue_rivals.embedded import DiskCache, LiteQueue, PersistQueue, PlainTable
from benches.queue_rivals.ours import Ours, OursByTable
from benches.queue_rivals.servers import Postgres, RabbitMq
from benches.race import ReplayClock, Times, race
from benches.settings import SIZE, report

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

BODY_BYTES: Final = 1024
ENTRIES: Final[dict[str, Entry]] = {
    entry.name: entry
    for entry in (Ours, OursByTable, PlainTable, LiteQueue, PersistQueue, DiskCache, Postgres, RabbitMq)
}
OURS: Final = Ours.name


@pytest.mark.parametrize("name", list(ENTRIES))
@pytest.mark.parametrize("conversations", [1, 1000])
@pytest.mark.parametrize("batch", [1, 100])
def test_send_and_receive(benchmark: BenchmarkFixture, batch: int, conversations: int, name: str) -> None:
    times, missing = _race(batch, conversations)
    if name in missing:
        pytest.skip(f"{name}: {missing[name]}")
    benchmark.group = f"durable messages, {batch} per transaction, {conversations} conversations"
    benchmark.extra_info["messages"] = _count(batch)
    CLOCK.replay(benchmark, times[name])


def _count(batch: int) -> int:
    return SIZE.queued * (10 if batch > 1 else 1)


@functools.cache
def _race(batch: int, conversations: int) -> tuple[dict[str, Times], dict[str, str]]:
    messages = traffic(_count(batch), conversations)
    lanes: dict[str, Callable[[], object]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for name, entry in ENTRIES.items():
            try:
                rival = stack.enter_context(opened(entry, conversations))
            except Missing as reason:
                missing[name] = str(reason)
                continue
            check(rival, messages[: 20 * batch], batch)
            lanes[name] = functools.partial(send_and_receive, rival, messages, batch)
        times = race(lanes, rounds=SIZE.rounds)
    _report(batch, conversations, times, missing)
    return times, missing


@contextmanager
def opened(entry: Entry, conversations: int) -> Iterator[QueueRival]:
    with tempfile.TemporaryDirectory() as folder:
        rival = entry(pathlib.Path(folder), conversations=conversations)
        try:
            yield rival
        finally:
            rival.close()


def traffic(count: int, conversations: int) -> list[Message]:
    """Returns messages of all conversations, round robin. A body starts with the conversation and the message number; the rest is random."""
    source = random.Random(1)
    return [
        (
            number % conversations,
            (number % conversations).to_bytes(8) + number.to_bytes(8) + source.randbytes(BODY_BYTES - 16),
        )
        for number in range(count)
    ]


def send_and_receive(rival: QueueRival, messages: Sequence[Message], batch: int) -> list[bytes]:
    rival.send(messages, batch=batch)
    return rival.receive(len(messages), batch=batch)


def check(rival: QueueRival, messages: Sequence[Message], batch: int) -> None:
    """Checks that each body is received once, in the order of its conversation."""
    found = defaultdict(list)
    for body in send_and_receive(rival, messages, batch):
        found[int.from_bytes(body[:8])].append(body)
    expected = defaultdict(list)
    for conversation, body in messages:
        expected[conversation].append(body)
    assert found == expected, rival.name


def _report(batch: int, conversations: int, times: dict[str, Times], missing: dict[str, str]) -> None:
    count = _count(batch)
    heading = f"Durable messages of 1 KiB, {count:,} sent and received, {batch} per transaction, {conversations:,} conversations"
    for lane in sorted(times, key=lambda lane: times[lane].median):
        ratio = times[lane].median / times[OURS].median
        by_cpu = times[lane].cpu_median / times[OURS].cpu_median
        rate = count / times[lane].median
        report(heading, f"{lane:<19} {rate:9,.0f} messages/s, ssbroker is {ratio:5.2f} x;  CPU time {by_cpu:5.2f} x")
    for lane, reason in missing.items():
        report(heading, f"{lane:<19} skipped: {reason}")
