"""The batch functions on Spark Connect: the same rows and errors, and values are sent once."""

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
from ssbroker.spark import routing_task
from ssbroker.spark.engine_choice import Engine
from tests.spark.frames import decisions_of, expected_decisions, frame, world
from tests.spark.test_message_pipeline import catalog_messages_and_fragments
from tests.spark.traffic import PLANS, collect_all, expected_rows, fragment_table, random_fragments, session_keys_for
from tests.worlds.fragments import KEYS
from tests.worlds.numbered import hosts
from tests.worlds.universe import NOW

COLUMNS = "conversation_id, database, to_service_name, to_broker_instance, is_initiator"


def check(spark: SparkSession, folder: Path) -> None:
    """Runs all checks."""
    assert "connect" in type(spark).__module__
    sent = watch_artifacts(spark)
    check_routing(spark)
    assert len(sent) == 3, sent
    before = len(sent)
    check_reassembly(spark)
    assert len(sent) == before + 1, sent
    assert not [path for path in sent for key in KEYS if key.hex() in path]
    catalog, messages, fragments = catalog_messages_and_fragments(5, messages=60)
    done = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW)
    assert decisions_of(done.messages) == expected_decisions(catalog, messages)
    check_stream_refused(spark, folder)


def check_stream_refused(spark: SparkSession, folder: Path) -> None:
    """A streaming query cannot read artifacts of its session, and reports it."""
    folder.mkdir()
    spark.range(1).write.parquet(str(folder / "rows"))
    stream = spark.readStream.schema("id bigint").parquet(str(folder / "rows"))
    routed = stream.selectExpr("where_to(to_service_name => '//a', conversation_id => cast('' as binary)) as decision")
    query = routed.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="cannot read artifacts of its session"):
        query.trigger(availableNow=True).start().awaitTermination()


def watch_artifacts(spark: SparkSession) -> list[str]:
    """Returns the paths of the artifacts that are sent from now on."""
    sent: list[str] = []
    kind: Any = type(spark)
    add = kind.addArtifact

    def watched(self: SparkSession, *paths: str, **kinds: bool) -> None:
        sent.append(" ".join(paths))
        add(self, *paths, **kinds)

    kind.addArtifact = watched
    return sent


def check_routing(spark: SparkSession) -> None:
    """`route` and `route_udf`, twice for two catalogs, one catalog with many addresses, and errors of invalid input."""
    for seed in (3, 4):
        catalog, table = world(seed, conversations=60)
        given = frame(spark, table, partitions=3)
        for _ in range(2):
            for engine in ("auto", "arrow"):
                routed = ssbroker.spark.route(given, catalog, now=NOW, engine=engine)
                assert decisions_of(routed) == expected_decisions(catalog, table)
        where_to: Any = ssbroker.spark.route_udf(spark, catalog, now=NOW)
        spark.udf.register("where_to", where_to)
        given.createOrReplaceTempView("queue")
        by_sql = spark.sql(f"select row, d.* from (select row, where_to({COLUMNS}) d from queue)")
        assert decisions_of(by_sql) == expected_decisions(catalog, table)

    rows = spark.range(0, 8, 1, 8).mapInArrow(compilations, "pid long, count long").collect()
    assert {row["count"] for row in rows} <= {0, 1, 2}, rows
    check_errors(given, catalog)
    engines: tuple[Engine, ...] = ("native", "arrow")
    for engine in engines:
        given = spark.sql("select 1 as row, '//s150' as to_service_name")
        many = ssbroker.spark.route(given, hosts(200), tie_break="first", engine=engine)
        assert decisions_of(many, ["next_hop_address"]) == [{"next_hop_address": "TCP://host-150.example:4022"}]


def compilations(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields how many catalogs a worker has compiled."""
    yield pa.record_batch({"pid": [os.getpid()], "count": [routing_task.cached_router.cache_info().misses]})


def check_errors(given: DataFrame, catalog: ssbroker.Catalog) -> None:
    """An invalid value and a missing column are reported with ssbroker's messages."""
    wrong = given.selectExpr("'no-guid' conversation_id", "database", "to_service_name")
    with pytest.raises(PythonException, match="InvalidGuidError: conversation_id, row 0: 'no-guid'"):
        ssbroker.spark.route(wrong, catalog, now=NOW, engine="arrow").collect()
    with pytest.raises(ssbroker.SchemaError) as caught:
        ssbroker.spark.route(given.drop("to_service_name"), catalog)
    assert caught.value.column == "to_service_name"


def check_reassembly(spark: SparkSession) -> None:
    """All query plans, with keys that are sent once and never in clear."""
    fragments = random_fragments(3, count=30, theme="honest", keys="mapping", has_extra=True)
    table = fragment_table(fragments, has_extra=True, text_ids=True)
    keys = session_keys_for(fragments, "mapping")
    expected = expected_rows(table, session_keys=keys)
    for options in PLANS:
        given = frame(spark, table, partitions=3)
        assert collect_all(ssbroker.spark.reassemble(given, session_keys=keys, **options)) == expected
