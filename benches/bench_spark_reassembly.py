"""Reassembly in Spark: ssbroker and Spark's own functions with the same files and messages, two cores, interleaved.

The lower bounds are a shuffle by direction, alone and followed by `mapInArrow` with a function that returns its input.
A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

import ssbroker.spark
from benches import shapes
from benches.fragments import traffic
from benches.race import ReplayClock, Times, race
from benches.settings import SIZE, report
from benches.spark_reassembly_rivals import answer, natively, natively_in_order, shuffled, shuffled_untouched
from benches.spark_session import cpu_seconds, seconds, write

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

SHUFFLE: Final = "shuffle"
FLOOR: Final = "shuffle, identity mapInArrow"
OURS: Final = "ssbroker.spark.reassemble"
OURS_SORTED: Final = 'ssbroker, strategy="sort"'
NATIVE: Final = "Spark's own functions"
NATIVE_IN_ORDER: Final = "Spark's own functions, deduplicated and ordered"
LANES: Final = (SHUFFLE, FLOOR, OURS, OURS_SORTED, NATIVE, NATIVE_IN_ORDER)
SHAPES: Final = (shapes.SMALL, shapes.MIDDLE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fragments")


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("shape", SHAPES)
def test_reassemble(benchmark: BenchmarkFixture, spark: SparkSession, folder: Path, shape: str, name: str) -> None:
    benchmark.group = f"Spark, reassembly ({shape})"
    CLOCK.replay(benchmark, _race(spark, folder, shape)[name])


@functools.cache
def _race(spark: SparkSession, folder: Path, name: str) -> dict[str, Times]:
    shape = shapes.shape(name, shrunk=SIZE.spark_shrunk)
    write(traffic(shape).fragments, folder / name)
    given = spark.read.parquet(str(folder / name))
    frames = {
        SHUFFLE: shuffled(given),
        FLOOR: shuffled_untouched(given),
        OURS: ssbroker.spark.reassemble(given).messages,
        OURS_SORTED: ssbroker.spark.reassemble(given, strategy="sort").messages,
        NATIVE: natively(given),
        NATIVE_IN_ORDER: natively_in_order(given),
    }
    answers = {lane: answer(frame) for lane, frame in frames.items() if lane not in (SHUFFLE, FLOOR)}
    assert answers == dict.fromkeys(answers, answers[OURS])
    assert answers[OURS][0] == shape.messages
    lanes = {lane: functools.partial(seconds, frame) for lane, frame in frames.items()}
    times = race(lanes, rounds=SIZE.rounds, cpu_seconds=cpu_seconds)
    heading = f"Spark, reassembly ({name}): {shapes.text(shape)}; {shape.nbytes / 1e6:,.0f} MB, two cores"
    for lane in sorted(times, key=lambda lane: times[lane].median):
        rate = shape.nbytes / times[lane].median / 1e6
        ratio, by_cpu = times[lane].median / times[OURS].median, times[lane].cpu_median / times[OURS].cpu_median
        report(
            heading,
            f"{lane:<28} {rate:6.1f} MB/s, ssbroker is {ratio:5.2f} x;  CPU time of all processes {by_cpu:5.2f} x",
        )
    return times
