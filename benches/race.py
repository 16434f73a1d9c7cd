"""Interleaved timing: each round runs every lane once, so that noise affects all of them alike."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """The wall time in seconds of each round of a lane, and the CPU time of all threads if measured."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu)


def race(
    lanes: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    cpu_seconds: Callable[[], float] = time.process_time,
    warmed: Mapping[str, int] | None = None,
) -> dict[str, Times]:
    """Runs all lanes `rounds` times after a warm-up round that does not count.

    Lanes in `warmed` have run before; they skip the warm-up and run for the given number of rounds. Each round starts with a different lane, so
    that no lane always follows the same one. Results are freed before the next lane starts, which is not timed. `cpu_seconds` returns the CPU
    time; the default is that of this process.
    """
    names = list(lanes)
    laps: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if warmed and name in warmed and not 0 < number <= warmed[name]:
                continue
            lap = _lap(lanes[name], cpu_seconds)
            if number:
                laps[name].append(lap)
    return {
        name: Times(wall=tuple(wall for wall, _ in times), cpu=tuple(cpu for _, cpu in times))
        for name, times in laps.items()
    }


def _lap(lane: Callable[[], object], cpu_seconds: Callable[[], float]) -> tuple[float, float]:
    gc.collect()
    gc.disable()
    cpu, wall = cpu_seconds(), time.perf_counter()
    result = lane()
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    gc.enable()
    del result
    return wall, cpu


class ReplayClock:
    """A timer for benchmarks that were measured before: it advances only by the replayed rounds."""

    __name__ = "replay"

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def replay(self, benchmark: BenchmarkFixture, times: Times) -> None:
        """Reports the rounds of a lane to pytest-benchmark."""
        laps: Iterator[float] = iter(times.wall)

        def lap() -> None:
            self._now += next(laps)

        pedantic: Callable[..., object] = benchmark.pedantic
        pedantic(lap, rounds=len(times.wall))
        if times.cpu:
            benchmark.extra_info["cpu_median_s"] = times.cpu_median
