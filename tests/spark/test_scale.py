"""The behaviour that [the page on scale](../../docs/concepts/scale.md) describes, at small sizes; `python -m tests.spark.scale` runs large ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from benches.fragments import Shape, traffic
from ssbroker.spark.reassembly import ShardBy
from ssbroker.spark.streams.bucket_step import StepOutput, run_step
from ssbroker.spark.streams.task import AssemblySettings, StreamTask
from tests.spark import scale
from tests.spark.frames import Configure


@pytest.fixture
def streaming(configure: Configure) -> None:
    for name, value in scale.STREAMING.items():
        configure(name, value)


@pytest.mark.usefixtures("streaming")
def test_one_conversation_with_nine_tenths_of_the_fragments(spark: SparkSession, tmp_path: Path) -> None:
    """The messages are the same by conversation, by message, from files and as a stream."""
    scale.skew(spark, tmp_path, 4000)


def test_a_hot_conversation_is_spread_by_message(spark: SparkSession, configure: Configure, tmp_path: Path) -> None:
    """By conversation, one task reassembles its messages; by message, all tasks do."""
    configure("spark.sql.adaptive.coalescePartitions.enabled", "false")
    scale._write(scale.skewed(4000), tmp_path / "skew")
    given = spark.read.parquet(str(tmp_path / "skew"))
    tasks_by_option: dict[ShardBy, int] = {"conversation": 1, "message": 2}
    for shard_by, tasks in tasks_by_option.items():
        messages = ssbroker.spark.reassemble(given, shard_by=shard_by, in_order=False).messages
        by_task = messages.groupBy("conversation_id", sf.spark_partition_id()).count()
        hot = max(
            by_task.groupBy("conversation_id").agg(sf.sum("count").alias("all"), sf.count("*")).collect(),
            key=lambda row: row["all"],
        )
        assert hot[2] == tasks


def test_the_state_per_conversation_is_bounded() -> None:
    """A bucket keeps less than 300 bytes per conversation with a pending fragment of 96 bytes, and less than 80 if all messages are complete."""
    assert state_size(scale.shallow(3000)) / 3000 < 300
    assert state_size(traffic(Shape(messages=8000, parts=2, part_bytes=96, conversations=2000)).fragments) / 2000 < 80


def state_size(fragments: pa.Table) -> int:
    """Returns the state size of a bucket after fragments that arrived in one batch."""
    return len(run_one_step(fragments, max_message_bytes=1 << 20).state or b"")


def run_one_step(fragments: pa.Table, *, max_message_bytes: int) -> StepOutput:
    """Runs one step of a bucket with fragments."""
    assembly = AssemblySettings(
        in_order=True,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=None,
        max_pending_bytes=1 << 30,
        max_pending_age_us=None,
        session_keys=None,
        acknowledgements=False,
    )
    task = StreamTask(fixed={}, assembly=assembly, routing=None, has_metrics=False, extra_names=())
    return run_step(task, None, fragments.combine_chunks().to_batches(), now_us=1)


def test_a_million_routes(spark: SparkSession, tmp_path: Path) -> None:
    scale.routes(spark, tmp_path, 1_000_000)


@pytest.mark.usefixtures("streaming")
def test_a_large_message_through_files_dataframes_and_streams(spark: SparkSession, tmp_path: Path) -> None:
    figures = scale.large(spark, tmp_path, 12 << 20)
    assert figures["DataFrame, s"] > 0
    assert figures["stream, s"] > 0


def test_messages_beyond_the_limit_are_rejected() -> None:
    """A stream rejects its fragments as `limit_exceeded` and continues."""
    output = run_one_step(scale.skewed(400), max_message_bytes=500)
    reasons = {reason for kind, rows in output.rows if kind == "rejected" for reason in rows["reason"].to_pylist()}
    assert reasons == {"limit_exceeded"}
