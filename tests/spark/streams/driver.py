"""A driver of a stream from files of fragments to files of all output rows, for tests that kill it.

Run: `python -m tests.spark.streams.driver FOLDER`, where FOLDER contains `fragments` and `catalog.sql`. The stream is endless; with
`--available`, it ends when it has read all files. With `--state`, nothing runs; the driver prints what the messages in the checkpoint wait for.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

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

    spark = _session(has_empty_batches=not only_available)
    fragments = str(folder / "fragments")
    given = spark.readStream.schema(spark.read.parquet(fragments).schema).option("maxFilesPerTrigger", 1)
    done = ssbroker.spark.stream(
        given.parquet(fragments), folder / "catalog.sql", buckets=4, spark_4_0_checkpoint=spark_4_0_checkpoint
    )
    writer = done.rows.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True) if only_available else writer.trigger(processingTime="100 milliseconds")
    writer.start().awaitTermination()


def print_state(folder: Path) -> None:
    """Prints what the messages in the checkpoint wait for, sorted, each once."""
    import ssbroker.spark  # noqa: PLC0415 - the environment is set first

    rows = ssbroker.spark.stream_state(_session(), folder / "checkpoint").select("waits_for").distinct().collect()
    print(*sorted(row.waits_for for row in rows))


def _session(*, has_empty_batches: bool = True) -> SparkSession:
    builder = session_builder().master(MASTER)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if not has_empty_batches:
        builder = builder.config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    return builder.getOrCreate()


if __name__ == "__main__":
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--available", action="store_true")
    parser.add_argument("--spark-4-0-checkpoint", action="store_true")
    parser.add_argument("--state", action="store_true")
    chosen = parser.parse_args()
    if chosen.state:
        print_state(chosen.folder)
        sys.exit()
    main(chosen.folder, only_available=chosen.available, spark_4_0_checkpoint=chosen.spark_4_0_checkpoint)
