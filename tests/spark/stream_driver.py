"""A driver of a stream that somebody else kills: files of fragments in a folder, all that comes of them in another, for ever.

Run: `python -m tests.spark.stream_driver FOLDER`, where FOLDER has `fragments` and `catalog.sql`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from tests.guards.repository import ROOT
from tests.spark.frames import session_builder

# A task that fails is tried again, as on a cluster; that of `local[2]` is not.
MASTER: Final = "local[2,8]"
SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # What the sink adds with a batch stays told batch by batch, for who checks the order.
    "spark.sql.streaming.fileSink.log.compactInterval": "100000",
}


def main(folder: Path) -> None:
    """Runs the query until it is killed."""
    import ssbroker.spark  # noqa: PLC0415 - its session's environment is set first

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
