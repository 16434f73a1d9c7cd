"""Files of conversations routed into files: by ssbroker, each worker by itself, and by what one would take otherwise.

The same files, the same answer, two cores, in turns. The floors read the files and write them again without routing: once by Spark,
once in the way of ours. Nothing here fails for being slow, since the machine may be busy. A wrong answer fails.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

import ssbroker.spark
from benches import workload
from benches.race import ReplayClock, Times, race
from benches.settings import SIZE, report
from benches.spark_rivals import answer, by_joins
from benches.spark_session import write
from ssbroker import Catalog

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

OURS: Final = "ssbroker.spark.route_files"
JOINS: Final = "broadcast joins, read and written by Spark"
FRAMES: Final = "ssbroker.spark.route, read and written by Spark"
SPARK_FLOOR: Final = "read and written by Spark, not routed"
ARROW_FLOOR: Final = "read and written by pyarrow on one core, not routed"
LANES: Final = (OURS, JOINS, FRAMES, SPARK_FLOOR, ARROW_FLOOR)
ROWS: Final = SIZE.conversations // 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark-files")


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("routes", SIZE.spark_routes)
def test_files(benchmark: BenchmarkFixture, spark: SparkSession, folder: Path, routes: int, name: str) -> None:
    benchmark.group = f"Spark, {routes:,} routes, from files to files"
    CLOCK.replay(benchmark, _raced(spark, folder, routes)[name])


@functools.cache
def _raced(spark: SparkSession, folder: Path, routes: int) -> dict[str, Times]:
    table = workload.routes(routes, database="Sales")
    source = folder / f"source-{routes}"
    write(workload.conversations(ROWS, routes, database="Sales"), source)
    given = spark.read.parquet(str(source))
    catalog = Catalog(table)
    rivals = folder / f"rivals-{routes}"
    rivals.mkdir()
    joined = by_joins(given, table, workload.NOW, folder=rivals)
    target = folder / f"target-{routes}"
    lanes: dict[str, Callable[[], object]] = {
        OURS: lambda: ssbroker.spark.route_files(spark, source, target, catalog, now=workload.NOW, tie_break="first"),
        JOINS: lambda: joined.write.parquet(str(target)),
        FRAMES: lambda: ssbroker.spark.route(given, catalog, now=workload.NOW, tie_break="first").write.parquet(
            str(target)
        ),
        SPARK_FLOOR: lambda: given.write.parquet(str(target)),
        ARROW_FLOOR: lambda: _copied(source, target),
    }
    answers = {}
    for name in (JOINS, FRAMES, OURS):  # ours last, when Spark's workers are warm for all
        _anew(target, lanes[name])
        answers[name] = answer(spark.read.parquet(str(target)))
    assert len(set(answers.values())) == 1, answers
    times = race({name: functools.partial(_anew, target, lane) for name, lane in lanes.items()}, rounds=SIZE.rounds)
    heading = f"Spark, {routes:,} routes, {ROWS:,} conversations from files to files, two cores"
    for name in sorted(times, key=lambda name: times[name].median):
        rate, ratio = ROWS / times[name].median / 1e6, times[JOINS].median / times[name].median
        report(heading, f"{name:<52} {rate:6.2f} million rows/s, {ratio:5.2f} x the speed of the joins")
    return times


def _anew(target: Path, lane: Callable[[], object]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    lane()


def _copied(source: Path, target: Path) -> None:
    target.mkdir()
    for file in sorted(source.glob("*.parquet")):
        pq.write_table(pq.read_table(file, use_threads=False), target / file.name)
