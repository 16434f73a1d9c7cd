"""Spark's watermark ends at the state, where messages wait longer than it allows, and can be set again after it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from ssbroker import Catalog
from ssbroker.spark.streams.options import PROVIDER, ROCKSDB
from tests.rules.fragments import single
from tests.spark.frames import Configure, frame_in_order
from tests.spark.streams.test_delayed_messages import ROUTED, catalog
from tests.worlds.fragment_tables import fragment_batch

COUNTS = "count(*) as messages"


@pytest.fixture(autouse=True)
def _rocksdb(configure: Configure) -> None:
    configure(PROVIDER, ROCKSDB)
    configure("spark.sql.streaming.noDataMicroBatches.enabled", "false")


def fragments(spark: SparkSession, folder: Path) -> DataFrame:
    """One message for each of several hours, each in its own file."""
    for hour in range(8):
        table = pa.Table.from_batches([fragment_batch([single(hour)])])
        table = table.append_column(
            "at", pa.array([datetime(2026, 11, 20, hour, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
        )
        table = table.append_column("to_service_name", pa.array([ROUTED]))
        frame_in_order(spark, table).write.mode("append").parquet(str(folder / "in"))
    schema = spark.read.parquet(str(folder / "in")).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    return stream.withWatermark("at", "1 hour")


def routed_by(fragments_df: DataFrame, routes: Catalog) -> list[DataFrame]:
    """Returns all DataFrames of messages or conversations that a stream returns."""
    return [
        ssbroker.spark.reassemble_stream(fragments_df).messages,
        ssbroker.spark.stream(fragments_df, routes).messages,
        ssbroker.spark.route_stream(fragments_df, routes),
    ]


def test_rows_from_the_state_have_no_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise a windowed count would never emit anything; without the watermark, Spark requires one."""
    arriving = fragments(spark, tmp_path)
    assert [field.metadata for field in arriving.schema if field.name == "at"] == [{"spark.watermarkDelayMs": 3600000}]
    for number, messages in enumerate(routed_by(arriving, catalog(ROUTED))):
        assert [field.metadata for field in messages.schema if field.name == "at"] == [{}]
        counted = messages.groupBy(sf.window("at", "1 hour")).agg(sf.expr(COUNTS))
        with pytest.raises(AnalysisException, match="without watermark"):
            counted.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(number))).start()
    landed = ssbroker.spark.reassemble_stream(arriving)
    assert not [field.metadata for field in landed.rows.schema if field.metadata]


def test_a_watermark_after_the_state_works(spark: SparkSession, tmp_path: Path) -> None:
    messages = ssbroker.spark.reassemble_stream(fragments(spark, tmp_path), buckets=1).messages
    counted = messages.withWatermark("at", "1 hour").groupBy(sf.window("at", "1 hour")).agg(sf.expr(COUNTS))
    writer = counted.writeStream.format("memory").queryName("counted").trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(600)
    emitted = spark.table("counted").orderBy("window.start").collect()
    assert [row.messages for row in emitted] == [1] * len(emitted)
    assert emitted


def test_other_column_metadata_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    arriving = fragments(spark, tmp_path)
    with_metadata = arriving.withColumn("note", sf.lit("a").alias("note", metadata={"comment": "kept"}))
    for messages in routed_by(with_metadata, catalog(ROUTED)):
        assert [field.metadata for field in messages.schema if field.name == "note"] == [{"comment": "kept"}]
