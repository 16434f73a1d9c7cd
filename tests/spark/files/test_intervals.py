"""Intervals in Parquet files keep their types through `route_files` and `reassemble_files`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from ssbroker import Catalog, schemas
from ssbroker.exceptions import SchemaError
from ssbroker.spark.files.parquet import list_files, plan_splits

INTERVALS = {
    "took": "make_dt_interval(cast(id as int), 2, 3, 4.567)",
    "kept for": "make_ym_interval(1, cast(id as int))",
    "nested": "named_struct('of', id, 'each', array(map('took', make_dt_interval(1), 'none', null)))",
    "day": "date'2026-11-23'",
    "at": "timestamp_ntz'2026-11-23 01:02:03'",
}
CONVERSATION = ("unhex(lpad(hex(id), 32, '0')) as conversation_id", "'//a' as to_service_name")
FRAGMENT = (
    "true as is_initiator",
    "0L as message_sequence_number",
    "0 as fragment_number",
    "1 as fragment_count",
    "cast('a body' as binary) as message_body",
)


@pytest.fixture
def catalog() -> Catalog:
    of_one_database = [name for name in schemas.ROUTES.names if name not in ("database", "route_id")]
    return Catalog(schemas.ROUTES.empty_table().select(of_one_database))


def texts(rows: DataFrame) -> list[str]:
    """Returns the types and values of the interval columns, in the order of the rows' ids."""
    chosen = rows.orderBy("conversation_id").select(*(f"`{name}`" for name in INTERVALS))
    values = chosen.select(sf.struct("*").cast("string")).collect()
    return [chosen.schema.simpleString(), *(row[0] for row in values)]


@pytest.mark.parametrize("rows", [5, 0])
def test_intervals_of_spark_keep_their_types(spark: SparkSession, tmp_path: Path, catalog: Catalog, rows: int) -> None:
    given = spark.range(rows).selectExpr(*CONVERSATION, *(f"{sql} as `{name}`" for name, sql in INTERVALS.items()))
    given.write.parquet(str(tmp_path / "conversations"))
    given.selectExpr("*", *FRAGMENT).write.parquet(str(tmp_path / "fragments"))
    expected = texts(given)
    assert "interval day to second" in expected[0]
    ssbroker.spark.route_files(spark, tmp_path / "conversations", tmp_path / "routed", catalog)
    ssbroker.spark.route_files(spark, tmp_path / "conversations", tmp_path / "parted", catalog, partition_by="outcome")
    ssbroker.spark.reassemble_files(spark, tmp_path / "fragments", tmp_path / "whole", catalog=catalog)
    for folder in ("routed", "parted", "whole/messages"):
        found = spark.read.parquet(str(tmp_path / folder))
        assert texts(found) == expected, folder
        assert found.where("outcome = 'DELAYED' and reason = 'no_route'").count() == rows


def test_durations_of_arrow_keep_their_types(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    took: list[Any] = [timedelta(seconds=1), None]
    table = pa.table(
        {
            "conversation_id": [bytes(16), bytes([1] * 16)],
            "to_service_name": ["//a", "//a"],
            "took": pa.array(took, pa.duration("us")),
            "each": pa.array([took, None], pa.list_(pa.duration("us"))),
        }
    )
    pq.write_table(table, tmp_path / "day.parquet")
    ssbroker.spark.route_files(spark, tmp_path / "day.parquet", tmp_path / "routed", catalog)
    found = pq.read_table(tmp_path / "routed").select(["took", "each"])
    assert found.to_pylist() == table.select(["took", "each"]).to_pylist()


def test_intervals_and_numbers_are_different_types(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "conversations"
    spark.range(1).selectExpr(*CONVERSATION, "make_dt_interval(1) as took").coalesce(1).write.parquet(str(folder))
    (written,) = folder.glob("*.parquet")
    pq.write_table(pq.read_table(written).replace_schema_metadata(), folder / "z.parquet")
    written.rename(folder / "a.parquet")
    with pytest.raises(
        SchemaError,
        match=r"z\.parquet: column 'took' has type int64 not null, but interval day to second not null in .*a\.parq",
    ):
        plan_splits(list_files(folder), split_bytes=1)


def test_parquet_intervals_are_refused(tmp_path: Path) -> None:
    """Arrow reads them as twelve bytes."""
    path = tmp_path / "day.parquet"
    duckdb.sql(f"copy (select struct_pack(took := interval 1 day) as nested) to '{path}' (format parquet)")
    with pytest.raises(SchemaError, match=r"day\.parquet: column 'nested\.took' has Parquet's type INTERVAL"):
        plan_splits([path], split_bytes=1)
