"""Routing: ssbroker and its rivals with the same input and result, one thread each, interleaved.

A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches import instance_workload, workload
from benches.columns import Column
from benches.race import ReplayClock, Times, race
from benches.rivals import Entry
from benches.rivals.answers import digest
from benches.rivals.arrow_lookup import ArrowLookup
from benches.rivals.datafusion_join import DataFusionJoin
from benches.rivals.dict_router import DictRouter
from benches.rivals.duckdb_join import DuckDbJoin
from benches.rivals.ours import Ours
from benches.rivals.polars_join import PolarsJoin
from benches.rivals.table_join import TableJoin
from benches.settings import SIZE, processor, report
from ssbroker import Catalog, Router

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

REFERENCE: Final = DictRouter.name
OURS: Final = Ours.name
OURS_BY_HASH: Final = "ssbroker, by hash"
ENTRIES: Final[dict[str, Entry]] = {
    entry.name: entry for entry in (Ours, ArrowLookup, DuckDbJoin, PolarsJoin, DataFusionJoin, DictRouter)
} | {OURS_BY_HASH: functools.partial(Ours, tie_break="hash")}

LIFETIMES: Final = {"no route has a lifetime": 0.0, "10% of routes have one, half of them expired": 0.1}
PLAIN: Final = "binary ids, no database column"
FORMS: Final = (
    PLAIN,
    "ids as text",
    "with a database column",
    "10% from outside",
    "names as a dictionary array",
    "uniform services",
)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("routes", SIZE.routes)
def test_route(benchmark: BenchmarkFixture, routes: int, name: str) -> None:
    times, rows = _race(routes)[name]
    benchmark.group = f"{routes:,} routes"
    benchmark.extra_info["rows"] = rows
    CLOCK.replay(benchmark, times)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("routes", SIZE.routes[1:])
def test_form_of_the_input(benchmark: BenchmarkFixture, routes: int, form: str) -> None:
    benchmark.group = f"input formats, {routes:,} routes"
    CLOCK.replay(benchmark, _forms(routes)[form])


@pytest.mark.parametrize("lifetimes", LIFETIMES)
def test_lifetimes(benchmark: BenchmarkFixture, lifetimes: str) -> None:
    benchmark.group = f"lifetimes, {SIZE.routes[1]:,} routes"
    CLOCK.replay(benchmark, _lifetimes()[lifetimes])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("routes", SIZE.routes[1:])
def test_threads(benchmark: BenchmarkFixture, routes: int, threads: int) -> None:
    benchmark.group = f"Python threads over batches, {routes:,} routes"
    CLOCK.replay(benchmark, _threads(routes)[str(threads)])


@pytest.mark.parametrize("routes", SIZE.routes)
def test_instance(benchmark: BenchmarkFixture, routes: int) -> None:
    times = _instance(routes)
    benchmark.group = f"a whole instance, {routes:,} routes"
    CLOCK.replay(benchmark, times[OURS])


@functools.cache
def _instance(routes: int) -> dict[str, Times]:
    """All outcomes together, each alone, and a rival that joins with the decision table."""
    rows = min(SIZE.conversations, 2_000_000)
    conversations = instance_workload.conversations(rows, routes)
    router = Router(instance_workload.instance(routes).catalog, tie_break="first")
    decisions = router.route(conversations, now=workload.NOW)
    rival = TableJoin(router.decision_table(now=workload.NOW), conversations)
    assert rival.agrees(rival.route(), decisions)
    lanes: dict[str, Callable[[], object]] = {
        OURS: functools.partial(router.route, conversations, now=workload.NOW),
        rival.name: rival.route,
    }
    counts = {OURS: rows, rival.name: rows}
    join: Any = pc.binary_join_element_wise
    labels: Column = join(decisions["outcome"].cast(pa.string()), decisions["reason"].cast(pa.string()), " ")
    for label in sorted(labels.unique().to_pylist()):
        alone = conversations.filter(pc.equal(labels, label))
        if alone.num_rows < rows // 1_000:
            continue
        alone = pa.concat_tables([alone] * (rows // 4 // alone.num_rows + 1)).combine_chunks()
        lanes[label], counts[label] = functools.partial(router.route, alone, now=workload.NOW), alone.num_rows
    times = race(lanes, rounds=SIZE.rounds)
    heading = f"A whole instance, {routes:,} routes, one thread ({processor()})"
    for name in lanes:
        wall, cpu = (counts[name] / seconds / 1e6 for seconds in (times[name].median, times[name].cpu_median))
        report(heading, f"{name:<32} {wall:6.2f} million rows/s;  CPU time {cpu:6.2f}")
    return times


@functools.cache
def _race(routes: int) -> dict[str, tuple[Times, int]]:
    table = workload.routes(routes)
    conversations = workload.conversations(SIZE.conversations, routes)
    # The reference is slow: a tenth of the rows is timed, and all are checked.
    few = conversations.slice(0, SIZE.conversations // 10)
    answers = {}
    lanes: dict[str, Callable[[], object]] = {}
    for name, entry in ENTRIES.items():
        rival = entry(table, workload.NOW)
        loaded = rival.load(conversations)
        answer = rival.answer(rival.route(loaded))
        if name != OURS_BY_HASH:
            answers[name] = digest(answer)
        lanes[name] = functools.partial(rival.route, rival.load(few) if name == REFERENCE else loaded)
        del answer
    assert answers == dict.fromkeys(answers, answers[REFERENCE])
    times = race(lanes, rounds=SIZE.rounds)
    rows = {name: len(few) if name == REFERENCE else SIZE.conversations for name in ENTRIES}
    _report_race(routes, times, rows)
    return {name: (times[name], rows[name]) for name in ENTRIES}


def _report_race(routes: int, times: dict[str, Times], rows: dict[str, int]) -> None:
    heading = f"{routes:,} routes, {SIZE.conversations:,} conversations, one thread"
    rates = {name: rows[name] / times[name].median / 1e6 for name in times}
    cpu_rates = {name: rows[name] / times[name].cpu_median / 1e6 for name in times}
    for name in sorted(times, key=lambda name: -rates[name]):
        ratio, cpu_ratio = rates[OURS] / rates[name], cpu_rates[OURS] / cpu_rates[name]
        by_wall = f"{rates[name]:6.2f} million rows/s, ssbroker is {ratio:5.2f} x"
        report(heading, f"{name:<18} {by_wall};  CPU time {cpu_rates[name]:6.2f}, {cpu_ratio:5.2f} x")


@functools.cache
def _forms(routes: int) -> dict[str, Times]:
    tables = [workload.routes(routes, database=database) for database in ("Sales", "msdb")]
    router = Router(Catalog(pa.concat_tables(tables), message_forwarding=True))
    make = functools.partial(workload.conversations, SIZE.conversations, routes)
    plain = make()
    inputs = [
        plain,
        make(text_guids=True),
        make(database="Sales"),
        make(database="Sales", outside=0.1),
        plain.set_column(1, "to_service_name", plain["to_service_name"].dictionary_encode()),
        make(zipf=0.0),
    ]
    lanes = {
        form: functools.partial(router.route, table, now=workload.NOW)
        for form, table in zip(FORMS, inputs, strict=True)
    }
    times = race(lanes, rounds=SIZE.rounds)
    _report_lanes(f"Input formats, {routes:,} routes for each of two databases", times, base=PLAIN)
    return times


@functools.cache
def _lifetimes() -> dict[str, Times]:
    routes = SIZE.routes[1]
    conversations = workload.conversations(SIZE.conversations, routes)
    lanes: dict[str, Callable[[], object]] = {}
    for name, share in LIFETIMES.items():
        router = Router(Catalog(workload.routes(routes, expiring=share)))
        lanes[name] = functools.partial(router.route, conversations, now=workload.NOW)
    times = race(lanes, rounds=SIZE.rounds)
    _report_lanes(f"Lifetimes, {routes:,} routes", times, base=next(iter(LIFETIMES)))
    return times


@functools.cache
def _threads(routes: int) -> dict[str, Times]:
    router = Router(Catalog(workload.routes(routes)))
    batches = workload.conversations(SIZE.conversations, routes).to_batches()
    route = functools.partial(router.route, now=workload.NOW)
    with ThreadPoolExecutor(2) as pool:
        lanes: dict[str, Callable[[], object]] = {
            "1": lambda: list(map(route, batches)),
            "2": lambda: list(pool.map(route, batches)),
        }
        times = race(lanes, rounds=SIZE.rounds)
    _report_lanes(f"Python threads over batches, {routes:,} routes", times, base="1")
    return times


def _report_lanes(heading: str, times: dict[str, Times], *, base: str) -> None:
    for name, lane in times.items():
        rate = SIZE.conversations / lane.median / 1e6
        ratio, cpu_ratio = times[base].median / lane.median, times[base].cpu_median / lane.cpu_median
        report(
            heading,
            f"{name:<43} {rate:6.2f} million rows/s, {ratio:5.2f} x the first lane;  CPU time {cpu_ratio:5.2f} x",
        )
