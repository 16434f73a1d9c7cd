"""Routing and reassembly from files to files: ssbroker, where each worker reads and writes files, and alternatives.

All have the same files and results, use two cores, and run interleaved. The lower bounds copy the files: one with Spark, one with pyarrow.
A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

import ssbroker.spark
from benches import shapes, workload
from benches.fragments import traffic
from benches.race import ReplayClock, Times, race
from benches.settings import SIZE, report
from benches.spark_reassembly_rivals import answer as of_messages
from benches.spark_reassembly_rivals import natively, natively_in_order
from benches.spark_rivals import answer, by_joins
from benches.spark_session import cpu_seconds, write
from ssbroker import Catalog

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

OURS: Final = "ssbroker.spark.route_files"
JOINS: Final = "broadcast joins"
FRAMES: Final = "ssbroker.spark.route, written by Spark"
SPARK_FLOOR: Final = "copied by Spark"
ARROW_FLOOR: Final = "copied by pyarrow on one core"
LANES: Final = (OURS, JOINS, FRAMES, SPARK_FLOOR, ARROW_FLOOR)
ROWS: Final = SIZE.conversations // 2
REASSEMBLY: Final = "ssbroker.spark.reassemble_files"
REASSEMBLY_FRAMES: Final = "ssbroker.spark.reassemble, written by Spark"
NATIVE: Final = "Spark's own functions"
NATIVE_IN_ORDER: Final = "Spark's own functions, deduplicated and ordered"
REASSEMBLY_LANES: Final = (REASSEMBLY, NATIVE, NATIVE_IN_ORDER, REASSEMBLY_FRAMES, SPARK_FLOOR)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark-files")


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("routes", SIZE.spark_routes)
def test_files(benchmark: BenchmarkFixture, spark: SparkSession, folder: Path, routes: int, name: str) -> None:
    benchmark.group = f"Spark, {routes:,} routes, from files to files"
    CLOCK.replay(benchmark, _race_routing(spark, folder, routes)[name])


@pytest.mark.parametrize("name", REASSEMBLY_LANES)
@pytest.mark.parametrize("shape", [shapes.SMALL, shapes.MIDDLE])
def test_fragments(benchmark: BenchmarkFixture, spark: SparkSession, folder: Path, shape: str, name: str) -> None:
    benchmark.group = f"Spark, reassembly from files to files ({shape})"
    CLOCK.replay(benchmark, _race_reassembly(spark, folder, shape)[name])


@functools.cache
def _race_routing(spark: SparkSession, folder: Path, routes: int) -> dict[str, Times]:
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
    _agree(spark, target, {name: lanes[name] for name in (JOINS, FRAMES, OURS)}, answer)
    heading = f"Spark, {routes:,} routes, {ROWS:,} conversations from files to files, two cores"
    return _race(target, [lanes], heading, JOINS, ROWS / 1e6, "million rows/s")


@functools.cache
def _race_reassembly(spark: SparkSession, folder: Path, name: str) -> dict[str, Times]:
    shape = shapes.shape(name, shrunk=SIZE.spark_shrunk)
    source, target = folder / f"fragments-{name}", folder / f"messages-{name}"
    write(traffic(shape).fragments, source)
    given = spark.read.parquet(str(source))
    frames = {
        NATIVE: natively(given),
        NATIVE_IN_ORDER: natively_in_order(given),
        REASSEMBLY_FRAMES: ssbroker.spark.reassemble(given).messages,
        SPARK_FLOOR: given,
    }
    lanes: dict[str, Callable[[], object]] = {
        REASSEMBLY: lambda: ssbroker.spark.reassemble_files(spark, source, target)
    } | {lane: functools.partial(_written, frame, target / "messages") for lane, frame in frames.items()}
    asked = (NATIVE, NATIVE_IN_ORDER, REASSEMBLY_FRAMES, REASSEMBLY)
    _agree(spark, target, {lane: lanes[lane] for lane in asked}, of_messages, "messages")
    heading = (
        f"Spark, reassembly ({name}) from files to files: {shapes.text(shape)}; {shape.nbytes / 1e6:,.0f} MB, two cores"
    )
    # The memory that a lane allocates or frees affects the next one, so the two lanes that are compared run without others.
    pair = (REASSEMBLY, NATIVE)
    heats = [{name: lanes[name] for name in lanes if (name in pair) is paired} for paired in (True, False)]
    return _race(target, heats, heading, NATIVE, shape.nbytes / 1e6, "MB/s")


def _agree(
    spark: SparkSession,
    target: Path,
    lanes: dict[str, Callable[[], object]],
    answer_of: Callable[[DataFrame], tuple[int, int]],
    within: str = ".",
) -> None:
    """Checks that the lanes write the same rows. Ours is the last one, so that Spark's workers are warm for all."""
    answers = {}
    for name, lane in lanes.items():
        _with_empty_target(target, lane)
        answers[name] = answer_of(spark.read.parquet(str(target / within)))
    assert len(set(answers.values())) == 1, answers


def _race(
    target: Path, heats: list[dict[str, Callable[[], object]]], heading: str, rival: str, amount: float, unit: str
) -> dict[str, Times]:
    times = dict[str, Times]()
    for lanes in heats:
        turns = {name: functools.partial(_with_empty_target, target, lane) for name, lane in lanes.items()}
        times |= race(turns, rounds=SIZE.rounds, cpu_seconds=_cpu_seconds)
    for name in sorted(times, key=lambda name: times[name].median):
        wall, cpu = times[rival].median / times[name].median, times[rival].cpu_median / times[name].cpu_median
        report(
            heading,
            f"{name:<52} {amount / times[name].median:7.2f} {unit}, {wall:5.2f} x the speed of {rival}; CPU time {cpu:5.2f} x",
        )
    return times


def _cpu_seconds() -> float:
    """Returns the CPU time, including that of this process, in which pyarrow writes."""
    return cpu_seconds() + time.process_time()


def _written(frame: DataFrame, target: Path) -> None:
    frame.write.parquet(str(target))


def _with_empty_target(target: Path, lane: Callable[[], object]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    lane()


def _copied(source: Path, target: Path) -> None:
    target.mkdir()
    for file in sorted(source.glob("*.parquet")):
        pq.write_table(pq.read_table(file, use_threads=False), target / file.name)
