"""The batch functions through Spark Connect: the same rows, the same errors, and what is sent is sent once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import ssbroker.spark
from ssbroker.spark import worker
from tests.spark.frames import decided, expected, frame, world
from tests.spark.test_pipeline import told
from tests.spark.traffic import WAYS, came, keys_of, table_of, worlds, would_come
from tests.worlds.fragments import KEYS
from tests.worlds.numbered import hosts
from tests.worlds.universe import NOW

COLUMNS = "conversation_id, database, to_service_name, to_broker_instance, is_initiator"


def check(spark: SparkSession, folder: Path) -> None:
    """All of it."""
    assert "connect" in type(spark).__module__
    sent = watch_artifacts(spark)
    routes(spark)
    assert len(sent) == 3, sent
    before = len(sent)
    reassembles(spark)
    assert len(sent) == before + 1, sent
    assert not [path for path in sent for key in KEYS if key.hex() in path]
    catalog, messages, fragments = told(5, messages=60)
    done = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW)
    assert decided(done.messages) == expected(catalog, messages)
    refuses_a_stream(spark, folder)


def refuses_a_stream(spark: SparkSession, folder: Path) -> None:
    """U13: a streaming query has nothing of what was sent to its session, and says so."""
    folder.mkdir()
    spark.range(1).write.parquet(str(folder / "rows"))
    stream = spark.readStream.schema("id bigint").parquet(str(folder / "rows"))
    routed = stream.selectExpr("where_to(to_service_name => '//a', conversation_id => cast('' as binary)) as decision")
    query = routed.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="cannot read artifacts of its session"):
        query.trigger(availableNow=True).start().awaitTermination()


def watch_artifacts(spark: SparkSession) -> list[str]:
    """The paths of the artifacts that are sent from now on."""
    sent: list[str] = []
    kind: Any = type(spark)
    add = kind.addArtifact

    def watched(self: SparkSession, *paths: str, **kinds: bool) -> None:
        sent.append(" ".join(paths))
        add(self, *paths, **kinds)

    kind.addArtifact = watched
    return sent


def routes(spark: SparkSession) -> None:
    """`route` and `route_udf`, twice for each of two catalogs, one of many addresses, and what a user sees of wrong input."""
    for seed in (3, 4):
        catalog, table = world(seed, conversations=60)
        given = frame(spark, table, partitions=3)
        for _ in range(2):
            assert decided(ssbroker.spark.route(given, catalog, now=NOW)) == expected(catalog, table)
        where_to: Any = ssbroker.spark.route_udf(spark, catalog, now=NOW)
        spark.udf.register("where_to", where_to)
        given.createOrReplaceTempView("queue")
        by_sql = spark.sql(f"select row, d.* from (select row, where_to({COLUMNS}) d from queue)")
        assert decided(by_sql) == expected(catalog, table)

    rows = spark.range(0, 8, 1, 8).mapInArrow(compilations, "pid long, count long").collect()
    assert {row["count"] for row in rows} <= {0, 1, 2}, rows
    refuses(given, catalog)
    many = ssbroker.spark.route(
        spark.sql("select 1 as row, '//s150' as to_service_name"), hosts(200), tie_break="first"
    )
    assert decided(many, ["next_hop_address"]) == [{"next_hop_address": "TCP://host-150.example:4022"}]


def compilations(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many catalogs a worker has compiled."""
    yield pa.record_batch({"pid": [os.getpid()], "count": [worker.cached_router.cache_info().misses]})


def refuses(given: DataFrame, catalog: ssbroker.Catalog) -> None:
    """A wrong value and a missing column are told in our words."""
    wrong = given.selectExpr("'no-guid' conversation_id", "database", "to_service_name")
    with pytest.raises(PythonException, match="InvalidGuidError: conversation_id, row 0: 'no-guid'"):
        ssbroker.spark.route(wrong, catalog, now=NOW).collect()
    with pytest.raises(ssbroker.SchemaError) as caught:
        ssbroker.spark.route(given.drop("to_service_name"), catalog)
    assert caught.value.column == "to_service_name"


def reassembles(spark: SparkSession) -> None:
    """All three ways, with keys that are sent once and never in clear."""
    fragments = worlds(3, count=30, theme="honest", keys="mapping", has_extra=True)
    table = table_of(fragments, has_extra=True, text_ids=True)
    keys = keys_of(fragments, "mapping")
    would = would_come(table, session_keys=keys)
    for options in WAYS:
        given = frame(spark, table, partitions=3)
        assert came(ssbroker.spark.reassemble(given, session_keys=keys, **options)) == would
