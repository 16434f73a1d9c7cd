"""A driver of a stream from files of fragments to files of all output rows, for tests that kill it.

Run: `python -m tests.spark.streams.driver FOLDER`, where FOLDER contains `fragments` and `catalog.sql`. The stream is endless; with
`--available`, it ends when it has read all files.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from tests.guards.repository import ROOT
from tests.spark.frames import session_builder

# Failed tasks are retried, as on a cluster; `local[2]` does not retry them.
MASTER: Final = "local[2,8]"
SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # The sink's log keeps one file per batch, so that the test can check the order.
    "spark.sql.streaming.fileSink.log.compactInterval": "100000",
}


def main(folder: Path, *, only_available: bool = False, spark_4_0_checkpoint: bool = False) -> None:
    """Runs the query until it is killed or, if it reads only what is available, until it has read it."""
    import ssbroker.spark  # noqa: PLC0415 - the environment is set first

    builder = session_builder().master(MASTER)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if only_available:
        builder = builder.config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    spark = builder.getOrCreate()
    fragments = str(folder / "fragments")
    given = spark.readStream.schema(spark.read.parquet(fragments).schema).option("maxFilesPerTrigger", 1)
    done = ssbroker.spark.stream(
        given.parquet(fragments), folder / "catalog.sql", buckets=4, spark_4_0_checkpoint=spark_4_0_checkpoint
    )
    writer = done.rows.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True) if only_available else writer.trigger(processingTime="100 milliseconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--available", action="store_true")
    parser.add_argument("--spark-4-0-checkpoint", action="store_true")
    chosen = parser.parse_args()
    main(chosen.folder, only_available=chosen.available, spark_4_0_checkpoint=chosen.spark_4_0_checkpoint)
