"""Routing in Spark: ssbroker and alternatives with the same files and results, two cores, interleaved.

Both engines of `route` take part. The lower bound of `arrow` is `mapInArrow` with a function that returns its input: nothing that passes
rows through Python is faster.
A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

import ssbroker.spark
from benches import workload
from benches.columns import column
from benches.race import ReplayClock, Times, race
from benches.settings import SIZE, report
from benches.spark_rivals import answer, by_joins, by_pandas, untouched
from benches.spark_session import FILES, cpu_seconds, seconds, write
from ssbroker import Catalog

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

FLOOR: Final = "identity mapInArrow"
FLOOR_OF_RESULT: Final = "identity mapInArrow with the result columns"
ARROW: Final = "ssbroker.spark.route, arrow"
NATIVE: Final = "ssbroker.spark.route, native"
BY_HASH: Final = "ssbroker.spark.route, native, by hash"
JOINS: Final = "broadcast joins"
PANDAS: Final = "mapInPandas with dicts"
ALONE: Final = ", outcome alone"
NARROW: Final = (
    *(FLOOR, ARROW, NATIVE, BY_HASH, FLOOR_OF_RESULT, JOINS, PANDAS),
    *(ARROW + ALONE, NATIVE + ALONE, JOINS + ALONE),
)
WIDE: Final = (FLOOR, ARROW, NATIVE, NATIVE + ALONE)

ROWS: Final = SIZE.conversations // 2
WIDE_ROWS: Final = SIZE.conversations // 50
BODY_BYTES: Final = 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("routes", SIZE.spark_routes)
def test_narrow_rows(benchmark: BenchmarkFixture, spark: SparkSession, folder: Path, routes: int, name: str) -> None:
    benchmark.group = f"Spark, {routes:,} routes, narrow rows"
    CLOCK.replay(benchmark, _narrow(spark, folder, routes)[name])


@pytest.mark.parametrize("name", WIDE)
def test_wide_rows(benchmark: BenchmarkFixture, spark: SparkSession, folder: Path, name: str) -> None:
    benchmark.group = f"Spark, {SIZE.routes[1]:,} routes, rows with {BODY_BYTES} bytes of message_body"
    CLOCK.replay(benchmark, _wide(spark, folder, SIZE.routes[1])[name])


@functools.cache
def _narrow(spark: SparkSession, folder: Path, routes: int) -> dict[str, Times]:
    table = workload.routes(routes, database="Sales")
    path = folder / f"narrow-{routes}"
    write(workload.conversations(ROWS, routes, database="Sales"), path)
    given = spark.read.parquet(str(path))
    warm_up = spark.read.parquet(str(path / "0.parquet"))
    catalog = Catalog(table)
    routed = ssbroker.spark.route(given, catalog, now=workload.NOW, tie_break="first", engine="arrow")
    native = ssbroker.spark.route(given, catalog, now=workload.NOW, tie_break="first", engine="native")
    seconds(untouched(warm_up))  # warms up the workers
    first, second = (
        seconds(ssbroker.spark.route(warm_up, catalog, now=workload.NOW, engine="arrow")) for _ in range(2)
    )
    result = folder / f"routed-{routes}"
    routed.write.parquet(str(result))
    joined = by_joins(given, table, workload.NOW, folder=_new_folder(folder / f"rivals-{routes}"))
    by_dicts = by_pandas(warm_up, table, workload.NOW)
    expected = answer(routed)
    assert answer(joined) == expected
    assert answer(native) == expected
    by_hash = ssbroker.spark.route(given, catalog, now=workload.NOW, engine="native")
    assert answer(by_hash) == answer(ssbroker.spark.route(given, catalog, now=workload.NOW, engine="arrow"))
    assert answer(by_dicts) == answer(ssbroker.spark.route(warm_up, catalog, now=workload.NOW, tie_break="first"))
    frames = {
        FLOOR: untouched(given),
        ARROW: routed,
        NATIVE: native,
        BY_HASH: by_hash,
        FLOOR_OF_RESULT: untouched(spark.read.parquet(str(result))),
        JOINS: joined,
        PANDAS: by_dicts,
        **{name + ALONE: each.select("outcome") for name, each in ((ARROW, routed), (NATIVE, native), (JOINS, joined))},
    }
    times = _race(frames)
    rows = dict.fromkeys(frames, ROWS) | {PANDAS: ROWS // FILES}
    heading = f"Spark, {routes:,} routes, {ROWS:,} narrow rows, two cores"
    _report(heading, times, rows)
    for name, rival in (
        (ARROW, JOINS),
        (NATIVE, JOINS),
        (ARROW + ALONE, JOINS + ALONE),
        (NATIVE + ALONE, JOINS + ALONE),
    ):
        ratio = times[rival].cpu_median / times[name].cpu_median
        report(heading, f"{name}: {ratio:.2f} x the rows per CPU second of {rival}")
    chosen = ssbroker.spark.route_engine(given, catalog, now=workload.NOW, tie_break="first")
    report(heading, f"auto uses {chosen}")
    report(
        heading,
        f"the first job with arrow takes {first - second:.2f} s longer than the second: sending and compiling the catalog, warm-up",
    )
    return times


@functools.cache
def _wide(spark: SparkSession, folder: Path, routes: int) -> dict[str, Times]:
    path = folder / "wide"
    write(_with_bodies(workload.conversations(WIDE_ROWS, routes, database="Sales")), path)
    given = spark.read.parquet(str(path))
    catalog = Catalog(workload.routes(routes, database="Sales"))
    arrow, native = (
        ssbroker.spark.route(given, catalog, now=workload.NOW, engine=engine) for engine in ("arrow", "native")
    )
    assert answer(native) == answer(arrow)
    times = _race({FLOOR: untouched(given), ARROW: arrow, NATIVE: native, NATIVE + ALONE: native.select("outcome")})
    heading = f"Spark, {routes:,} routes, {WIDE_ROWS:,} rows with {BODY_BYTES} bytes of message_body, two cores"
    _report(heading, times, dict.fromkeys(times, WIDE_ROWS))
    return times


def _race(frames: dict[str, DataFrame]) -> dict[str, Times]:
    lanes = {name: functools.partial(seconds, frame) for name, frame in frames.items()}
    return race(lanes, rounds=SIZE.rounds, cpu_seconds=cpu_seconds)


def _report(heading: str, times: dict[str, Times], rows: dict[str, int]) -> None:
    rates = {name: rows[name] / times[name].median / 1e6 for name in times}
    for name in sorted(times, key=lambda name: -rates[name]):
        ratio = rates[FLOOR] / rates[name]
        cpu = rows[name] / times[name].cpu_median / 1e6
        line = f"{name:<46} {rates[name]:6.2f} million rows/s, {cpu:6.2f} per CPU second"
        report(heading, f"{line}, {ratio:5.2f} x the time of {FLOOR}")


def _with_bodies(table: pa.Table) -> pa.Table:
    data = np.random.default_rng(1).bytes(BODY_BYTES * 64)
    bodies = pa.array([data[BODY_BYTES * place :][:BODY_BYTES] for place in range(64)])
    return table.append_column("message_body", bodies.take(column(np.arange(table.num_rows) % 64)))


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder
