from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import product

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, ByteType, IntegerType, StringType

import ssbroker.spark
from ssbroker import Catalog, schemas
from ssbroker.exceptions import OptionError
from ssbroker.router import PendingRequest
from ssbroker.spark import decision_codes
from ssbroker.spark.arguments import SparkTieBreak
from tests.spark.frames import Configure, decisions_of, expected_decisions, frame, world
from tests.worlds.numbered import hosts, numbered
from tests.worlds.universe import NOW

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


def one_route(**columns: object) -> Catalog:
    row = {"name": "r", "remote_service_name": "//s", "broker_instance": None, "address": "TCP://a", "lifetime": None}
    rows = [{**row, "mirror_address": None, **columns}]
    fields = [field for field in schemas.ROUTES if field.name in rows[0]]
    return Catalog(pa.Table.from_pylist(rows, schema=pa.schema(fields)))


def plan_of(frame_: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    frame_.explain()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("seed", "large", "batch_rows", "partitions"),
    [
        (seed, large, batch_rows, partitions)
        for seed, ((large, batch_rows), partitions) in enumerate(
            zip(product(("false", "true"), ("7", "10000")), (1, 3, 4, 2), strict=True)
        )
    ],
)
def test_decisions_equal_the_arrow_function(
    spark: SparkSession, configure: Configure, seed: int, large: str, batch_rows: str, partitions: int
) -> None:
    configure(LARGE, large)
    configure(BATCH, batch_rows)
    catalog, table = world(seed, conversations=120, text_guids=seed % 2 == 1)
    routed = ssbroker.spark.route(frame(spark, table, partitions=partitions), catalog, now=NOW, engine="arrow")
    assert decisions_of(routed) == expected_decisions(catalog, table)


@pytest.mark.parametrize("seed", range(10, 16))
def test_decisions_of_more_worlds(spark: SparkSession, seed: int) -> None:
    catalog, table = world(seed, conversations=60)
    tie_break: SparkTieBreak = "first" if seed % 2 else "hash"
    routed = ssbroker.spark.route(
        frame(spark, table, partitions=1), catalog, now=NOW, tie_break=tie_break, engine="arrow"
    )
    assert decisions_of(routed) == expected_decisions(catalog, table, tie_break=tie_break)


def test_the_test_worlds_have_every_outcome(spark: SparkSession) -> None:
    """So that each label is decoded at least once; no single seed has them all."""
    seen = set()
    for seed in range(4):
        catalog, table = world(seed, conversations=120)
        seen |= {row["outcome"] for row in expected_decisions(catalog, table)}
    assert seen == {"LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED"}


@pytest.mark.parametrize(("seed", "text_guids"), [(20, False), (21, True), (22, False), (23, True)])
def test_decisions_returned_as_numbers(spark: SparkSession, seed: int, *, text_guids: bool) -> None:
    catalog, table = world(seed, conversations=120, text_guids=text_guids)
    catalog = numbered(catalog)
    tie_break: SparkTieBreak = "first" if seed > 21 else "hash"
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW, tie_break=tie_break, engine="arrow")
    assert catalog.native.destinations() is not None
    assert decisions_of(routed) == expected_decisions(catalog, table, tie_break=tie_break)


def test_many_addresses_are_not_in_the_plan(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """People read plans: short lists are literals in the plan, long ones come from a subquery."""
    given = spark.createDataFrame([(row, f"//s{row}") for row in range(200)], "row int, to_service_name string")
    for count, (is_in_plan, is_beside) in ((3, (True, False)), (200, (False, True))):
        routed = ssbroker.spark.route(given, hosts(count), tie_break="first", engine="arrow")
        plan = plan_of(routed, capsys)
        assert ("host-002" in plan, "Subquery" in plan) == (is_in_plan, is_beside)
        addresses = [f"TCP://host-{row:03}.example:4022" if row < count else None for row in range(200)]
        assert [row["next_hop_address"] for row in decisions_of(routed)] == addresses


def test_input_columns_come_first_and_unchanged(spark: SparkSession) -> None:
    catalog, table = world(1, conversations=20)
    given = frame(spark, table).withColumn("a.b", sf.lit(1)).withColumn("quo`te", sf.array(sf.lit("x")))
    routed = ssbroker.spark.route(given, catalog, now=NOW)
    assert routed.columns == [*given.columns, *schemas.DECISIONS.names]
    assert routed.select("`a.b`", "`quo``te`", "message_body", "row").orderBy("row").collect() == (
        given.select("`a.b`", "`quo``te`", "message_body", "row").orderBy("row").collect()
    )


def test_types_follow_the_contract(spark: SparkSession) -> None:
    catalog, table = world(1, conversations=1)
    types = {field.name: field.dataType for field in ssbroker.spark.route(frame(spark, table), catalog).schema}
    numbers = {"match_step": ByteType(), "route_id": IntegerType(), "broker_instance": BinaryType()}
    assert {name: types[name] for name in schemas.DECISIONS.names} == {
        name: numbers.get(name, StringType()) for name in schemas.DECISIONS.names
    }


@pytest.mark.parametrize(("mirrors", "services"), [(False, True), (True, False), (False, False)])
def test_fields_that_no_decision_has_are_null_and_not_transferred(
    spark: SparkSession, *, mirrors: bool, services: bool
) -> None:
    catalog_of_world, table = world(4, conversations=60)
    routes = catalog_of_world.routes
    if not mirrors:
        place = routes.schema.get_field_index("mirror_address")
        routes = routes.set_column(place, "mirror_address", pa.nulls(routes.num_rows, pa.string()))
    catalog = Catalog(
        routes,
        catalog_of_world.databases,
        catalog_of_world.services if services else None,
        addresses=catalog_of_world.addresses,
    )
    assert (catalog.has_mirrors, catalog.has_services) == (mirrors, services)
    assert (
        "mirror_address" in decision_codes.possible_fields(catalog),
        "target_database" in decision_codes.possible_fields(catalog),
    ) == (
        mirrors,
        services,
    )
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW, engine="arrow")
    assert decisions_of(routed) == expected_decisions(catalog, table)
    assert [routed.schema[name].dataType for name in ("mirror_address", "target_database")] == [StringType()] * 2


@pytest.mark.parametrize("rows", [0, 1])
def test_empty_partitions(spark: SparkSession, rows: int) -> None:
    catalog, table = world(2, conversations=1)
    routed = ssbroker.spark.route(frame(spark, table.slice(0, rows), partitions=4), catalog, now=NOW)
    assert decisions_of(routed) == expected_decisions(catalog, table)[:rows]


def test_only_key_columns_are_transferred_and_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Even if a filter on the decision follows, below which Spark would run a deterministic function again."""
    catalog, table = world(1, conversations=20)
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW, engine="arrow")
    plan = plan_of(routed.where("outcome = 'REMOTE' and reason = 'matched'").select("*", "outcome"), capsys)
    calls = [line for line in plan.splitlines() if "EvalPython" in line]
    assert len(calls) == 1
    assert "to_service_name" in calls[0]
    assert "message_body" not in calls[0]


def test_columnar_scans_are_transferred_as_rows(
    spark: SparkSession, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog, table = world(1, conversations=20)
    frame(spark, table).write.parquet(f"{tmp_path}/conversations")
    routed = ssbroker.spark.route(spark.read.parquet(f"{tmp_path}/conversations"), catalog, now=NOW, engine="arrow")
    plan = plan_of(routed, capsys)
    assert plan.index("ArrowEvalPython") < plan.index("ColumnarToRow") < plan.index("FileScan")
    assert decisions_of(routed) == expected_decisions(catalog, table)


def test_conversation_handle_is_read_as_the_id(spark: SparkSession) -> None:
    catalog, table = world(3, conversations=60)
    given = frame(spark, table).withColumnRenamed("conversation_id", "conversation_handle")
    routed = ssbroker.spark.route(given, catalog, now=NOW)
    assert decisions_of(routed) == expected_decisions(catalog, table)


def test_without_a_database_column_the_only_user_database_is_used(spark: SparkSession) -> None:
    given = spark.createDataFrame([(0, "//s"), (1, "//t")], "row int, to_service_name string")
    routed = ssbroker.spark.route(given, one_route(), tie_break="first")
    assert decisions_of(routed, ["outcome", "reason"]) == [
        {"outcome": "REMOTE", "reason": "matched"},
        {"outcome": "DELAYED", "reason": "no_route"},
    ]


@pytest.mark.rule("R2")
@pytest.mark.parametrize("nothing", ["cast(null as string)", "null"])
def test_a_null_database_is_routed_by_msdb(spark: SparkSession, nothing: str) -> None:
    """The conversation is routed by `msdb`, which has no route here."""
    given = spark.sql(
        f"select 0 as row, '//s' as to_service_name, {nothing} as database, {nothing} as to_broker_instance"
    )
    routed = ssbroker.spark.route(given, one_route(), tie_break="first")
    assert decisions_of(routed, ["outcome", "match_step"]) == [{"outcome": "DELAYED", "match_step": 7}]


@pytest.mark.rule("R14")
@pytest.mark.parametrize(("option", "outcome"), [("continue", "REMOTE"), ("delay", "DELAYED")])
def test_a_pending_request(spark: SparkSession, option: PendingRequest, outcome: str) -> None:
    names = ["SQL/ServiceBroker/BrokerConfiguration", None]
    routes = pa.table(
        {
            "name": ["configuration", "rest"],
            "remote_service_name": names,
            "broker_instance": pa.nulls(2, pa.binary(16)),
            "lifetime": pa.nulls(2, pa.timestamp("us")),
            "address": ["TCP://c", "TCP://rest"],
            "mirror_address": pa.nulls(2, pa.string()),
        }
    )
    given = spark.createDataFrame([("//s",)], "to_service_name string")
    catalog = Catalog(routes, pending_requests=["//s"])
    routed = ssbroker.spark.route(given, catalog, tie_break="first", pending_request=option)
    assert [row["outcome"] for row in routed.collect()] == [outcome]


def test_now_is_the_time_of_the_call(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry on another day gives the same result: the clock is read when `route` is called, not when rows are computed."""
    end = datetime(2026, 11, 20, 12, tzinfo=UTC)
    given = spark.createDataFrame([("//s",)], "to_service_name string")
    times = iter([end - timedelta(seconds=1), end])
    monkeypatch.setattr(sys.modules["ssbroker.spark.routing"], "utc_datetime", lambda now: now or next(times))
    before, after = (ssbroker.spark.route(given, one_route(lifetime=end), tie_break="first") for _ in range(2))
    assert [row["outcome"] for frame_ in (before, after) for row in frame_.collect()] == ["REMOTE", "DELAYED"]


def test_now_needs_a_time_zone(spark: SparkSession) -> None:
    given = spark.createDataFrame([("//s",)], "to_service_name string")
    naive = datetime(2026, 11, 20, 12)  # noqa: DTZ001 - the naive time under test
    with pytest.raises(OptionError, match=r"^now: expected a datetime with a time zone"):
        ssbroker.spark.route(given, one_route(lifetime=naive.replace(tzinfo=UTC)), now=naive)


def test_a_stream(spark: SparkSession, tmp_path: object) -> None:
    catalog, table = world(2, conversations=40)
    source = frame(spark, table, partitions=3)
    source.write.parquet(f"{tmp_path}/in")
    stream = spark.readStream.schema(source.schema).option("maxFilesPerTrigger", 1).parquet(f"{tmp_path}/in")
    routed = ssbroker.spark.route(stream, catalog, now=NOW)
    writer = routed.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = writer.option("path", f"{tmp_path}/out").trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert decisions_of(spark.read.parquet(f"{tmp_path}/out")) == expected_decisions(catalog, table)
