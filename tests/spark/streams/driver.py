"""A driver of an endless stream from files of fragments to files of all output rows, for tests that kill it.

Run: `python -m tests.spark.streams.driver FOLDER`, where FOLDER contains `fragments` and `catalog.sql`.
"""

from __future__ import annotations

import os
import sys
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


def main(folder: Path) -> None:
    """Runs the query until it is killed."""
    import ssbroker.spark  # noqa: PLC0415 - the environment is set first

    builder = session_builder().master(MASTER)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    fragments = str(folder / "fragments")
    given = spark.readStream.schema(spark.read.parquet(fragments).schema).option("maxFilesPerTrigger", 1)
    done = ssbroker.spark.stream(given.parquet(fragments), folder / "catalog.sql", buckets=4)
    writer = done.rows.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="100 milliseconds")
    query.start().awaitTermination()


if __name__ == "__main__":
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    main(Path(sys.argv[1]))
