"""The batch functions on a cluster: what is sent to executors, and tasks whose worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import ssbroker.spark
from tests.spark.frames import decisions_of, expected_decisions, frame, world
from tests.spark.test_message_pipeline import catalog_messages_and_fragments
from tests.spark.traffic import PLANS, collect_all, collect_rows, expected_rows, fragment_table, random_fragments
from tests.worlds.universe import NOW


def check(spark: SparkSession, folder: Path) -> None:
    """`route`, `reassemble` and `pipeline` give the rows of the Arrow functions, also from retried tasks."""
    folder.mkdir()
    catalog, table = world(3, conversations=60)
    for engine in ("auto", "arrow"):
        routed = ssbroker.spark.route(frame(spark, table, partitions=4), catalog, now=NOW, engine=engine)
        assert decisions_of(routed) == expected_decisions(catalog, table)
    marks = folder / "route"
    assert decisions_of(with_killed_workers(routed, marks)) == expected_decisions(catalog, table)
    assert list(marks.iterdir())

    for number, options in enumerate(PLANS):
        table = fragment_table(random_fragments(number, count=30, theme="honest"))
        done = ssbroker.spark.reassemble(frame(spark, table, partitions=3), **options)
        marks = folder / str(number)
        assert collect_rows(with_killed_workers(done.messages, marks)) == expected_rows(table)["messages"]
        assert list(marks.iterdir())

    hostile = fragment_table(random_fragments(9, count=30, theme="hostile"))
    first, second = (collect_all(ssbroker.spark.reassemble(frame(spark, hostile), strategy="sort")) for _ in range(2))
    assert first == second

    catalog, messages, fragments = catalog_messages_and_fragments(5, messages=90)
    piped = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW)
    assert decisions_of(piped.messages) == expected_decisions(catalog, messages)


def with_killed_workers(result: DataFrame, marks: Path) -> DataFrame:
    """Once for each of two partitions, kills the other Python workers of the executor, one of which feeds it, and then itself."""

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mark = Path(marks, str(context.partitionId() % 2))
        for batch in batches:
            if not mark.exists():
                mark.touch()
                for sibling in sibling_processes():
                    os.kill(sibling, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    marks.mkdir()
    return result.mapInArrow(kill_once, result.schema)


def sibling_processes() -> Iterator[int]:
    """The other processes with the same parent."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getppid() and int(stat.parent.name) != os.getpid():
            yield int(stat.parent.name)
