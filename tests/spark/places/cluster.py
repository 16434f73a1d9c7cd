"""T21: the batch functions on a cluster: what is sent to the executors, and tasks whose worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import ssbroker.spark
from tests.spark.frames import decided, expected, frame, world
from tests.spark.test_pipeline import told
from tests.spark.traffic import WAYS, came, rows_of, table_of, worlds, would_come
from tests.worlds.universe import NOW


def check(spark: SparkSession, folder: Path) -> None:
    """`route`, `reassemble` and `pipeline` give the rows of the Arrow functions, also from a task that was tried again."""
    folder.mkdir()
    catalog, table = world(3, conversations=60)
    routed = ssbroker.spark.route(frame(spark, table, partitions=4), catalog, now=NOW)
    assert decided(routed) == expected(catalog, table)
    marks = folder / "route"
    assert decided(with_killed_workers(routed, marks)) == expected(catalog, table)
    assert list(marks.iterdir())

    for number, options in enumerate(WAYS):
        table = table_of(worlds(number, count=30, theme="honest"))
        done = ssbroker.spark.reassemble(frame(spark, table, partitions=3), **options)
        marks = folder / str(number)
        assert rows_of(with_killed_workers(done.messages, marks)) == would_come(table)["messages"]
        assert list(marks.iterdir())

    hostile = table_of(worlds(9, count=30, theme="hostile"))
    first, second = (came(ssbroker.spark.reassemble(frame(spark, hostile), strategy="sort")) for _ in range(2))
    assert first == second

    catalog, messages, fragments = told(5, messages=90)
    piped = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW)
    assert decided(piped.messages) == expected(catalog, messages)


def with_killed_workers(result: DataFrame, marks: Path) -> DataFrame:
    """Kills, once for each of two partitions, the other Python workers of its executor, of which one feeds it, and then itself."""

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mark = Path(marks, str(context.partitionId() % 2))
        for batch in batches:
            if not mark.exists():
                mark.touch()
                for other in others():
                    os.kill(other, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    marks.mkdir()
    return result.mapInArrow(kill_once, result.schema)


def others() -> Iterator[int]:
    """The processes that have the parent that this one has."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getppid() and int(stat.parent.name) != os.getpid():
            yield int(stat.parent.name)
