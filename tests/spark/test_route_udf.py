from __future__ import annotations

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker.schemas import CONVERSATIONS
from tests.spark.frames import Configure, decisions_of, expected_decisions, frame, world
from tests.worlds.universe import NOW


def test_by_position(spark: SparkSession, configure: Configure) -> None:
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "9")
    catalog, table = world(5, conversations=80)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    routed = frame(spark, table).select("row", where_to(*CONVERSATIONS.names).alias("decision"))
    assert decisions_of(routed.select("row", "decision.*")) == expected_decisions(catalog, table)


def test_by_name(spark: SparkSession) -> None:
    """Optional columns may be omitted: here all conversations are the initiator's."""
    catalog, table = world(6, conversations=80)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW, tie_break="first")
    names = ["to_service_name", "database", "to_broker_instance"]
    routed = frame(spark, table).select("row", where_to(**{name: name for name in names}).alias("decision"))
    fewer_columns = table.drop_columns(["is_initiator", "conversation_id"])
    assert decisions_of(routed.select("row", "decision.*")) == expected_decisions(
        catalog, fewer_columns, tie_break="first"
    )


def test_in_sql(spark: SparkSession) -> None:
    catalog, table = world(7, conversations=80)
    spark.udf.register("where_to", ssbroker.spark.route_udf(spark, catalog, now=NOW))
    frame(spark, table).createOrReplaceTempView("queue")
    routed = spark.sql(
        f"select row, decision.* from (select row, where_to({', '.join(CONVERSATIONS.names)}) decision from queue)"
    )
    assert decisions_of(routed) == expected_decisions(catalog, table)


def test_the_function_runs_once_for_all_fields(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    catalog, table = world(7, conversations=8)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    capsys.readouterr()
    frame(spark, table).select("*", where_to(*CONVERSATIONS.names).alias("d")).select("*", "d.*").explain()
    assert capsys.readouterr().out.count("EvalPython [") == 1


def test_missing_columns_are_reported_by_the_job(spark: SparkSession) -> None:
    catalog, table = world(7, conversations=8)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    with pytest.raises(PythonException, match=r"ssbroker\.exceptions\.SchemaError: to_service_name"):
        frame(spark, table).select(where_to(conversation_id="conversation_id", database="database")).collect()


@pytest.mark.parametrize("name", ["broker_instance", "TO_BROKER_INSTANCE", "note"])
def test_unknown_arguments_are_errors(spark: SparkSession, name: str) -> None:
    """A function has no extra columns: an ignored argument would change the result."""
    catalog, table = world(7, conversations=8)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    with pytest.raises(
        PythonException, match=rf"OptionError: route_udf: expected conversation_id, .*; got an argument '{name}'"
    ):
        frame(spark, table).select(
            where_to(to_service_name="to_service_name", **{name: "to_broker_instance"})
        ).collect()


def test_surplus_arguments_are_errors(spark: SparkSession) -> None:
    catalog, table = world(7, conversations=8)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    with pytest.raises(PythonException, match=r"OptionError: route_udf: .*; got 6 arguments"):
        frame(spark, table).select(where_to(*CONVERSATIONS.names, "row")).collect()
