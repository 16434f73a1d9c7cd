"""U1, U8, U10: a stream puts together, routes once the route is there, and its state can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

import ssbroker.spark
from tests.spark import patience, stream_traffic


def check(spark: SparkSession, folder: Path) -> None:
    """Runs a stream twice, with a route that comes between, and compares what came out with what the batch functions give."""
    folder.mkdir()
    expected = stream_traffic.write(folder, files=2, conversations=20, messages=300, seed=7)
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
