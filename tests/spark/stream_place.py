"""A stream on another kind of session: `python -m tests.spark.stream_place PLACE FOLDER`, where PLACE is `cluster` (two executors of one core) or `connect`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.guards.repository import ROOT
from tests.spark import patience, stream_traffic
from tests.spark.frames import QUIET, session_builder

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def session(place: str) -> SparkSession:
    """The session of a place."""
    if place == "connect":
        builder = SparkSession.builder.remote("local[2]")
        for name, value in QUIET.items():
            builder = builder.config(name, value)
    else:
        builder = session_builder().master("local-cluster[2,1,1024]").config("spark.executor.memory", "1g")
        builder = builder.config("spark.executorEnv.PYTHONPATH", str(ROOT))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(place: str, folder: Path) -> None:
    """Runs a stream twice, with a route that comes between, and compares what came out with what the batch functions give."""
    import ssbroker.spark  # noqa: PLC0415 - its session's environment is set first

    expected = stream_traffic.write(folder, files=2, conversations=20, messages=300, seed=7)
    spark = session(place)
    source = str(folder / "fragments")
    given = spark.readStream.schema(spark.read.parquet(source).schema).option("maxFilesPerTrigger", 1).parquet(source)
    done = ssbroker.spark.stream(given, folder / "catalog.sql", buckets=2)
    query = done.messages.writeStream.format("parquet").option("path", str(folder / "out"))
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    patience.run(query)
    state = ssbroker.spark.stream_state(spark, folder / "checkpoint")
    assert state.where("waits_for = 'route'").count() == expected.waiting
    # What was sent comes once more, so that each bucket looks at the catalog that has changed.
    stream_traffic.set_catalog(folder, has_late_route=True)
    shutil.copy(folder / "fragments" / "00000.parquet", folder / "fragments" / "again.parquet")
    patience.run(query)
    columns = ("conversation_id", "is_initiator", "message_sequence_number", "message_body", "next_hop_address")
    rows = spark.read.parquet(str(folder / "out")).select(*columns).collect()
    found = {(bytes(row[0]), row[1], row[2]): (bytes(row[3]), row[4]) for row in rows}
    assert len(rows) == len(expected.messages)
    assert found == expected.messages
    print("all is well")
    spark.stop()


if __name__ == "__main__":
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    main(sys.argv[1], Path(sys.argv[2]))
