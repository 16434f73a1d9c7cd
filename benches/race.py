"""Timing in turns: every round lets each lane run once, so that a noisy moment of the machine hits all of them alike."""

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
    """Seconds of each round of one lane, by the wall and, where measured, by the CPU (of all threads)."""

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
    """Run all lanes `rounds` times after one round that does not count.

    Those that are `warmed` have run before: they are left out of that round, and take part in as many of the others as is said. The next round begins one lane later, so that no lane always follows the same other one. Results are dropped before the next
    lane starts, outside the timing. `cpu_seconds` is the clock of the CPU: that of this process, unless others do the work.
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
    """The timer of benchmarks whose rounds were measured before, in a race: it moves only when they are replayed."""

    __name__ = "replay"

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def replay(self, benchmark: BenchmarkFixture, times: Times) -> None:
        """Enter a lane's rounds into the tables and files of pytest-benchmark."""
        laps: Iterator[float] = iter(times.wall)

        def lap() -> None:
            self._now += next(laps)

        pedantic: Callable[..., object] = benchmark.pedantic
        pedantic(lap, rounds=len(times.wall))
        if times.cpu:
            benchmark.extra_info["cpu_median_s"] = times.cpu_median
