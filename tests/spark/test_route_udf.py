from __future__ import annotations

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker.schemas import CONVERSATIONS
from tests.spark.frames import Configure, decided, expected, frame, world
from tests.worlds.universe import NOW


def test_by_position(spark: SparkSession, configure: Configure) -> None:
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "9")
    catalog, table = world(5, conversations=80)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    routed = frame(spark, table).select("row", where_to(*CONVERSATIONS.names).alias("decision"))
    assert decided(routed.select("row", "decision.*")) == expected(catalog, table)


def test_by_name(spark: SparkSession) -> None:
    """What the contract lets out may be left out: here all conversations are the initiator's."""
    catalog, table = world(6, conversations=80)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW, tie_break="first")
    names = ["to_service_name", "database", "to_broker_instance"]
    routed = frame(spark, table).select("row", where_to(**{name: name for name in names}).alias("decision"))
    less = table.drop_columns(["is_initiator", "conversation_id"])
    assert decided(routed.select("row", "decision.*")) == expected(catalog, less, tie_break="first")


def test_in_sql(spark: SparkSession) -> None:
    catalog, table = world(7, conversations=80)
    spark.udf.register("where_to", ssbroker.spark.route_udf(spark, catalog, now=NOW))
    frame(spark, table).createOrReplaceTempView("queue")
    routed = spark.sql(
        f"select row, decision.* from (select row, where_to({', '.join(CONVERSATIONS.names)}) decision from queue)"
    )
    assert decided(routed) == expected(catalog, table)


def test_it_runs_once_for_all_fields(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    catalog, table = world(7, conversations=8)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    capsys.readouterr()
    frame(spark, table).select("*", where_to(*CONVERSATIONS.names).alias("d")).select("*", "d.*").explain()
    assert capsys.readouterr().out.count("EvalPython [") == 1


def test_a_missing_column_is_told_by_the_job(spark: SparkSession) -> None:
    catalog, table = world(7, conversations=8)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    with pytest.raises(PythonException, match=r"ssbroker\.exceptions\.SchemaError: to_service_name"):
        frame(spark, table).select(where_to(conversation_id="conversation_id", database="database")).collect()
