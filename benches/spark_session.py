"""Helpers of the Spark benchmarks: a session with two cores, input files, and complete evaluation."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from ssbroker.spark.streams import bucket_state

FILES: Final = 4
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "6g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session() -> Iterator[SparkSession]:
    """Yields a session, and stops it afterwards."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.master("local[2]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    yield made
    made.stop()


def seconds(frame: DataFrame) -> float:
    """Computes all rows and columns without writing them."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def cpu_seconds() -> float:
    """Returns the CPU time of the JVM and its Python workers (Linux only)."""
    used: dict[int, float] = {}
    children = defaultdict[int, list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name of the program before it may contain spaces.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        used[int(folder.name)] = sum(map(int, fields[11:15])) / _TICKS_PER_S
        children[int(fields[1])].append(int(folder.name))
    total, to_do = 0.0, children[os.getpid()]
    while to_do:
        process = to_do.pop()
        total += used[process]
        to_do += children[process]
    return total


def state_bytes(spark: SparkSession, checkpoint: Path) -> int:
    """Returns the size of the state of an ssbroker stream in a checkpoint."""
    kept = spark.read.format("statestore").option("stateVarName", bucket_state.STATE_VARIABLE).load(str(checkpoint))
    return int(kept.selectExpr("coalesce(sum(length(user_map_value.state)), 0)").collect()[0][0])


def write(table: pa.Table, path: Path) -> None:
    """Writes the rows as Parquet files with Spark's types."""
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in table.schema]
    table = table.cast(pa.schema(fields))
    path.mkdir()
    step = -(-table.num_rows // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * step, step), path / f"{number}.parquet", compression="none")
