"""`stream_state` reports invalid checkpoints when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker.exceptions import InputError, OptionError, SchemaError
from ssbroker.spark.streams.options import PROVIDER, ROCKSDB
from ssbroker.spark.streams.stream_state import STATE_SCHEMA
from tests.rules.fragments import first_of_two
from tests.spark.frames import Configure, frame_in_order
from tests.worlds.fragment_tables import fragment_batch

STREAM = "expected the checkpointLocation of a query on stream, reassemble_stream or route_stream"


@pytest.fixture(autouse=True)
def _rocksdb(configure: Configure) -> None:
    configure(PROVIDER, ROCKSDB)
    configure("spark.sql.streaming.noDataMicroBatches.enabled", "false")


@pytest.mark.parametrize("given", [None, "session", SparkSession.builder])
def test_invalid_sessions_are_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(SchemaError, match=r"^spark: expected a SparkSession, got (NoneType|str|SparkSession.Builder)$"):
        ssbroker.spark.stream_state(given, tmp_path)


@pytest.mark.parametrize("given", [None, 7, b"checkpoint", ["checkpoint"]])
def test_arguments_that_are_not_paths_are_refused(spark: SparkSession, given: Any) -> None:
    with pytest.raises(SchemaError, match=rf"^checkpoint: expected a path, got {type(given).__name__}$"):
        ssbroker.spark.stream_state(spark, given)


@pytest.mark.parametrize("given", ["", " ", "checkpoint\udcff"])
def test_invalid_paths_are_refused(spark: SparkSession, given: str) -> None:
    with pytest.raises(InputError, match=r"^checkpoint: expected a path, got '"):
        ssbroker.spark.stream_state(spark, given)


@pytest.mark.parametrize("given", [True, "0", 1.0, -1, 2**31])
def test_invalid_operator_ids_are_refused(spark: SparkSession, tmp_path: Path, given: Any) -> None:
    with pytest.raises(OptionError, match=r"^operator_id: expected an integer from 0 to 2147483647, got "):
        ssbroker.spark.stream_state(spark, tmp_path, operator_id=given)


def test_folders_without_a_checkpoint_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", f"file:{tmp_path}"):
        with pytest.raises(InputError, match=f"{path}: no micro-batch has been committed; {STREAM} that has run$"):
            ssbroker.spark.stream_state(spark, path)


def test_unreachable_paths_are_reported(spark: SparkSession) -> None:
    for path in ("nothing-of-hadoop://bucket/checkpoint", "a:b"):
        with pytest.raises(InputError, match=rf"^checkpoint: {path}: cannot be read: .+$"):
            ssbroker.spark.stream_state(spark, path)


def test_timestamps_do_not_depend_on_the_meaning_of_the_type_in_sql(spark: SparkSession, configure: Configure) -> None:
    configure("spark.sql.timestampType", "TIMESTAMP_NTZ")
    types = dict(spark.createDataFrame([], STATE_SCHEMA).dtypes)
    assert (types["since"], types["until"]) == ("timestamp", "timestamp")


def test_checkpoints_of_other_queries_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    """A query without state, one with other state, and a missing operator."""
    fragments = frame_in_order(spark, pa.Table.from_batches([fragment_batch([first_of_two(0)])]))
    fragments.write.parquet(str(tmp_path / "in"))
    arriving = spark.readStream.schema(fragments.schema).parquet(str(tmp_path / "in"))
    ours = ssbroker.spark.reassemble_stream(arriving, buckets=1).rows
    queries = {
        "none": (arriving, "append"),
        "other": (arriving.groupBy("is_initiator").count(), "complete"),
        "ours": (ours, "append"),
    }
    for name, (rows, mode) in queries.items():
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        assert writer.outputMode(mode).trigger(availableNow=True).start().awaitTermination(600)
    for name, number in (("none", 0), ("other", 0), ("ours", 1)):
        with pytest.raises(
            InputError,
            match=f"{name}: stateful operator {number} of the query has no state of ssbroker; {STREAM}; operator_id must be the index",
        ):
            ssbroker.spark.stream_state(spark, tmp_path / name, operator_id=number)
    assert ssbroker.spark.stream_state(spark, str(tmp_path / "ours")).count() == 1
