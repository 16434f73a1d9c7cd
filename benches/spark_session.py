"""What the benches of Spark share: a session of two cores, files to read, and a way to compute everything."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

FILES: Final = 4
_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "6g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session() -> Iterator[SparkSession]:
    """A session that ends with the generator."""
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
    """Compute all rows and columns, and write them nowhere."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def write(table: pa.Table, path: Path) -> None:
    """Write the rows as files of Parquet, in the types of Spark."""
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in table.schema]
    table = table.cast(pa.schema(fields))
    path.mkdir()
    step = -(-table.num_rows // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * step, step), path / f"{number}.parquet", compression="none")
