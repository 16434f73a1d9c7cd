"""Throughput of honest traffic, alone and if every second fragment is hostile: one `Reassembler` with a limit of 64 MiB, batch by batch.

The honest messages are always the same, and all must be reassembled. A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches import hostile
from benches.fragments import Shape
from benches.race import ReplayClock, Times, race
from benches.reassembly_rivals.answers import digest
from benches.settings import SIZE, report
from ssbroker import Reassembler

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

ALONE: Final = "honest alone"
LANES: Final = (ALONE, *hostile.KINDS)
PENDING_BYTES: Final = 64 << 20
PUSHED_ROWS: Final = 4096
DIRECTIONS: Final = 200
SHAPE: Final = Shape(
    messages=DIRECTIONS * max(2, 100 // SIZE.shrunk),
    parts=8,
    part_bytes=4096,
    conversations=DIRECTIONS // 2,
    is_shuffled=False,
    has_fragment_signatures=True,
)


@pytest.mark.parametrize("name", LANES)
def test_honest_throughput(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark.group = "honest traffic mixed with hostile traffic"
    benchmark.extra_info["bytes"] = SHAPE.nbytes
    CLOCK.replay(benchmark, _race()[name])


@functools.cache
def _race() -> dict[str, Times]:
    made = hostile.honest(SHAPE)
    rng = np.random.default_rng(1)
    inputs = {ALONE: made.fragments} | {
        kind: hostile.mixed(made.fragments, make(rng, made.fragments.num_rows), rng)
        for kind, make in hostile.KINDS.items()
    }
    lanes: dict[str, Callable[[], object]] = {}
    for name, table in inputs.items():
        batches = [*made.greetings.to_batches(), *table.combine_chunks().to_batches(PUSHED_ROWS)]
        messages, pending = _push(batches)
        assert digest(hostile.without_greetings(messages)) == made.digest, name
        assert pending <= PENDING_BYTES
        lanes[name] = functools.partial(_push, batches)
    times = race(lanes, rounds=SIZE.rounds)
    heading = f"{SHAPE.messages:,} honest messages, as many hostile fragments as honest ones, at most {PENDING_BYTES >> 20} MiB pending"
    for name, lane in times.items():
        ratio, by_cpu = times[ALONE].median / lane.median, times[ALONE].cpu_median / lane.cpu_median
        report(
            heading,
            f"{name:<22} {SHAPE.nbytes / lane.median / 1e9:6.2f} GB/s honest, {ratio:5.2f} x alone;  CPU time {by_cpu:5.2f} x",
        )
    return times


def _push(batches: list[pa.RecordBatch]) -> tuple[pa.Table, int]:
    """Returns the reassembled messages, and the bytes that are charged for pending ones at the end."""
    reassembler = Reassembler(max_pending_bytes=PENDING_BYTES)
    messages = pa.concat_tables([reassembler.push(batch).messages for batch in batches])
    return messages, reassembler.pending_bytes
