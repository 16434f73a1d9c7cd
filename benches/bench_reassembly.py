"""Reassembly with verification: ssbroker, with each length of vectors that this processor has, and its rivals, one thread each, interleaved.

The lower bound is a copy of the bodies, because reassembly reads and writes every byte once. The system must clear new memory first, so a
copy into used memory is measured too; an allocator that keeps freed memory is in between.
A rival that is much slower than the fastest in the check runs one round, the others three.
A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches import shapes
from benches.fragments import Shape, traffic
from benches.race import ReplayClock, Times, race
from benches.reassembly_rivals import Rival
from benches.reassembly_rivals.answers import digest
from benches.reassembly_rivals.arrow_sort import ArrowSort
from benches.reassembly_rivals.duckdb_sort import DuckDbSort
from benches.reassembly_rivals.ours import Ours, OursPushed
from benches.reassembly_rivals.plain_python import PlainPython
from benches.reassembly_rivals.polars_sort import PolarsSort
from benches.settings import SIZE, report
from benches.vectors import VECTORS, with_vectors

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

ENTRIES: Final[tuple[Callable[[], Rival], ...]] = (Ours, OursPushed, ArrowSort, PolarsSort, DuckDbSort, PlainPython)
OURS: Final = tuple(f"{Ours.name}, {vectors}" for vectors in VECTORS)
COPY: Final = "plain copy"
COPY_OVER: Final = "copy to used memory"
RIVALS: Final = (ArrowSort.name, PolarsSort.name, DuckDbSort.name, PlainPython.name)
CLOSE: Final = 1.5
"""A rival that takes this many times as long as the fastest one is not the fastest, whatever the noise."""
RIVAL_ROUNDS: Final = 3
LANES: Final = (COPY, COPY_OVER, *OURS, OursPushed.name, *RIVALS)


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("shape", shapes.NAMES)
def test_reassemble(benchmark: BenchmarkFixture, shape: str, name: str) -> None:
    of = shapes.shape(shape, shrunk=SIZE.shrunk)
    benchmark.group = f"reassembly ({shape})"
    benchmark.extra_info["bytes"] = of.nbytes
    CLOCK.replay(benchmark, _race(shape)[name])


@functools.cache
def _race(name: str) -> dict[str, Times]:
    of = shapes.shape(name, shrunk=SIZE.shrunk)
    given = traffic(of)
    lanes: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    for entry in ENTRIES:
        rival = entry()
        work = functools.partial(rival.reassemble, rival.load(given.fragments))
        for lane, run in (with_vectors(Ours.name, work) if entry is Ours else {rival.name: work}).items():
            start = time.process_time()
            result = run()
            first[lane] = time.process_time() - start
            assert digest(rival.messages(result)) == given.digest, lane
            del result
            lanes[lane] = run
    bodies: Any = given.fragments["message_body"].combine_chunks()
    data = np.frombuffer(bodies.buffers()[2], np.uint8)
    lanes[COPY] = functools.partial(np.copy, data)
    lanes[COPY_OVER] = functools.partial(np.copyto, data.copy(), data)
    fastest = min(first[rival] for rival in RIVALS)
    warmed = {rival: RIVAL_ROUNDS if first[rival] <= CLOSE * fastest else 1 for rival in RIVALS}
    times = race(lanes, rounds=SIZE.rounds, warmed=warmed)
    _report(name, of, times)
    return times


def _report(name: str, of: Shape, times: dict[str, Times]) -> None:
    heading = f"Reassembly ({name}): {shapes.text(of)}; {of.nbytes / 1e6:,.0f} MB, one thread"
    fastest = min(RIVALS, key=lambda rival: times[rival].cpu_median)
    for lane in sorted(times, key=lambda lane: times[lane].median):
        ratio, by_cpu = (
            times[fastest].median / times[lane].median,
            times[fastest].cpu_median / times[lane].cpu_median,
        )
        rate, cpu_rate = (of.nbytes / seconds / 1e9 for seconds in (times[lane].median, times[lane].cpu_median))
        speed = f"{rate:6.2f} GB/s, {ratio:5.2f} x {fastest};  CPU time {cpu_rate:6.2f}, {by_cpu:5.2f} x"
        report(heading, f"{lane:<19} {speed}")
