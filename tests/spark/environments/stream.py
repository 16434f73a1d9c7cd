"""A stream reassembles, routes once the route exists, and its state can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

import ssbroker.spark
from tests.spark import query_runs
from tests.spark.streams import traffic


def check(spark: SparkSession, folder: Path) -> None:
    """Runs a stream twice, adds a route in between, and compares the output with that of the batch functions."""
    folder.mkdir()
    expected = traffic.write(folder, files=2, conversations=20, messages=300, seed=7)
    source = str(folder / "fragments")
    given = spark.readStream.schema(spark.read.parquet(source).schema).option("maxFilesPerTrigger", 1).parquet(source)
    done = ssbroker.spark.stream(given, folder / "catalog.sql", buckets=2)
    query = done.messages.writeStream.format("parquet").option("path", str(folder / "out"))
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    query_runs.run_to_end(query)
    state = ssbroker.spark.stream_state(spark, folder / "checkpoint")
    assert state.where("waits_for = 'route'").count() == expected.waiting
    # A file is repeated, so that each bucket runs a step and notices the new catalog.
    traffic.set_catalog(folder, has_late_route=True)
    shutil.copy(folder / "fragments" / "00000.parquet", folder / "fragments" / "again.parquet")
    query_runs.run_to_end(query)
    columns = ("conversation_id", "is_initiator", "message_sequence_number", "message_body", "next_hop_address")
    rows = spark.read.parquet(str(folder / "out")).select(*columns).collect()
    found = {(bytes(row[0]), row[1], row[2]): (bytes(row[3]), row[4]) for row in rows}
    assert len(rows) == len(expected.messages)
    assert found == expected.messages
