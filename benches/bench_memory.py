"""Time and memory of building a router, and memory of routing and reassembly."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches import memory, shapes
from benches.race import ReplayClock, Times
from benches.settings import SIZE, report

CLOCK = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]


def test_build(benchmark: BenchmarkFixture) -> None:
    """Builds in a new process in each round. The peak covers catalog and index, without the routing table."""
    rounds = [memory.build(SIZE.built_routes) for _ in range(SIZE.rounds)]
    times = Times(
        wall=tuple(found.catalog_s + found.router_s for found in rounds), cpu=tuple(found.cpu_s for found in rounds)
    )
    benchmark.group = f"build, {SIZE.built_routes:,} routes"
    CLOCK.replay(benchmark, times)
    middle = sorted(rounds, key=lambda found: found.catalog_s + found.router_s)[len(rounds) // 2]
    heading = f"Building a router of {SIZE.built_routes:,} routes (median of {SIZE.rounds} rounds)"
    report(
        heading,
        f"catalog {middle.catalog_s:.2f} s, index {middle.router_s:.2f} s, total {times.median:.2f} s; CPU time {times.cpu_median:.2f} s",
    )
    grown = f"catalog {middle.catalog_mb:.0f} MB, index {middle.router_mb:.0f} MB (`Router.nbytes`: {middle.index_mb:.0f} MB)"
    report(heading, f"{grown}, peak {middle.peak_mb:.0f} MB")


def test_extra_memory() -> None:
    """Measures the peak memory of one call of `route` in a new process; not timed."""
    found = memory.route(SIZE.built_routes, SIZE.conversations)
    assert found.rows == SIZE.conversations
    heading = f"Memory of routing {SIZE.conversations:,} conversations"
    report(
        heading, f"input {found.input_mb:.0f} MB, output {found.output_mb:.0f} MB, in addition {found.extra_mb:.1f} MB"
    )
    report(heading, f"{found.share:.1%} of the input")


@pytest.mark.parametrize("name", [shapes.MIDDLE, shapes.LARGE])
def test_memory_of_reassembly(name: str) -> None:
    """Checks that the peak memory of one call of `reassemble` in a new process, input included, is below 2.2 times its input; not timed."""
    # A fixed 20 MB or so would distort the result for the short sizes.
    shape = shapes.shape(name, shrunk=min(SIZE.shrunk, 5))
    found = memory.reassemble(shape)
    assert found.messages == shape.messages
    heading = "Memory of reassembly"
    grown = f"input {found.input_mb:.0f} MB, output {found.output_mb:.0f} MB, peak {found.peak_mb:.0f} MB"
    report(heading, f"({name}) {shapes.text(shape)}: {grown}, {found.share:.2f} times the input")
    assert found.share < 2.2
