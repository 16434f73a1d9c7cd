"""Conversations as DataFrames, and their decisions as rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import ssbroker
from ssbroker.router import TieBreak
from ssbroker.schemas import DECISIONS
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

Configure: TypeAlias = Callable[[str, str], None]

QUIET = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session_builder() -> SparkSession.Builder:
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.master("local[2]").appName("ssbroker tests")
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    return builder


def world(seed: int, *, conversations: int, text_guids: bool = False) -> tuple[ssbroker.Catalog, pa.Table]:
    """Returns a small but difficult catalog, and conversations with a row number and a payload."""
    sources, conversations_ = seeded_world(seed, conversations=conversations)
    table = pa.Table.from_batches([batch_of(conversations_, text_guids=text_guids)])
    table = table.append_column("row", pa.array(range(conversations), pa.int32()))
    table = table.append_column("message_body", pa.array([bytes([row % 256]) * 50 for row in range(conversations)]))
    return catalog_of(sources, text_guids=text_guids), table


def frame(spark: SparkSession, table: pa.Table, *, partitions: int = 2) -> DataFrame:
    """Returns the table as a DataFrame, its rows in any order."""
    return frame_in_order(spark, table).repartition(partitions)


def frame_in_order(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Returns the table as a DataFrame with one partition, which keeps its order in a shuffle; Spark has no fixed-size binary."""
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in table.schema]
    return spark.createDataFrame(table.cast(pa.schema(fields))).coalesce(1)


def expected_decisions(
    catalog: ssbroker.Catalog, table: pa.Table, *, tie_break: TieBreak = "hash"
) -> list[dict[str, Any]]:
    """Returns the decisions of the Arrow function."""
    return ssbroker.Router(catalog, tie_break=tie_break).route(table, now=NOW).to_pylist()


def decisions_of(routed: DataFrame, columns: Sequence[str] = DECISIONS.names) -> list[dict[str, Any]]:
    """Returns the decisions in a DataFrame, ordered by the column `row`."""
    rows = sorted(routed.collect(), key=lambda row: int(row["row"]))
    return [{name: _value(row[name]) for name in columns} for row in rows]


def _value(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value
