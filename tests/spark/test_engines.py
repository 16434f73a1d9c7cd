"""The two engines of `route`: the same decisions and errors, and the choice between them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from ssbroker import Catalog, OptionError, schemas
from ssbroker.spark import decision_codes, decision_join, decision_join_table, engine_choice
from ssbroker.spark.engine_choice import Engine
from tests.spark import engine_worlds, query_runs
from tests.spark.frames import Configure, decisions_of, expected_decisions, frame, world
from tests.spark.test_route import one_route, plan_of
from tests.worlds.numbered import hosts, numbered
from tests.worlds.universe import NOW, TICK

DATABASES = pa.table(
    {"name": ["user"], "service_broker_guid": pa.array([b"x" * 16], pa.binary(16)), "is_broker_enabled": [True]}
)
ID = "00000000-0000-0000-0000-000000000001"
GOOD: dict[str, Any] = {
    "conversation_id": ID,
    "to_service_name": "//s",
    "database": "user",
    "to_broker_instance": ID,
    "is_initiator": True,
}
COLUMNS = (
    "conversation_id string, to_service_name string, database string, to_broker_instance string, is_initiator boolean"
)
NO_GUID = "is not a valid GUID; expected a GUID: 36 characters (braces allowed) or 16 bytes"


@pytest.mark.rule("R41", "R24", "R7")
def test_both_engines_route_random_worlds_as_the_router_and_the_oracle_do(spark: SparkSession) -> None:
    """All options, ids as text and bytes, missing columns, expiry; `python -m tests.spark.engine_worlds` checks many more."""
    seen = engine_worlds.check(spark, (5, 12, 27, 30, 33, 35))
    assert set(seen) == {"LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED"}


def row_with(changed: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((GOOD | changed).values())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            {"conversation_id": None},
            "NullError: conversation_id: null is not allowed here; expected a conversation id for each row, to break ties",
        ),
        ({"conversation_id": "no-guid"}, f"InvalidGuidError: conversation_id: 'no-guid' {NO_GUID}"),
        ({"conversation_id": "é" + ID[1:]}, f"InvalidGuidError: conversation_id: 'é{ID[1:]}' {NO_GUID}"),
        ({"to_broker_instance": ID.replace("-", "0")}, "InvalidGuidError: to_broker_instance: '00000000000000000"),
        ({"to_broker_instance": f"{{{ID}"}, f"InvalidGuidError: to_broker_instance: '{{{ID}' {NO_GUID}"),
        (
            {"to_broker_instance": f"{ID[:32]}-{ID[33:]}"},
            f"InvalidGuidError: to_broker_instance: '{ID[:32]}-{ID[33:]}' {NO_GUID}",
        ),
        ({"to_broker_instance": "g" + ID[1:]}, f"InvalidGuidError: to_broker_instance: 'g{ID[1:]}' {NO_GUID}"),
        ({"to_broker_instance": "x" * 300}, f"InvalidGuidError: to_broker_instance: '{'x' * 80}…' {NO_GUID}"),
        (
            {"database": "Nowhere"},
            "UnknownDatabaseError: database: 'Nowhere' is not a database of the catalog; expected one of user, msdb",
        ),
        (
            {"to_service_name": None},
            "NullError: to_service_name: null is not allowed here; expected the name of the target service",
        ),
        ({"is_initiator": None}, "NullError: is_initiator: null is not allowed here; expected true or false"),
    ],
)
def test_an_invalid_value_fails_the_job_with_the_words_of_the_router(
    spark: SparkSession, broken: dict[str, Any], message: str
) -> None:
    """The words are those of `Router.route`, without the number of the row; labels check only what they depend on."""
    given = spark.createDataFrame([row_with({}), row_with(broken)], COLUMNS).coalesce(1)
    routed = ssbroker.spark.route(given, one_route(), engine="native")
    does_not_matter = broken.keys() & {"conversation_id", "is_initiator"}
    assert not does_not_matter or routed.groupBy("outcome", "reason", "match_step").count().collect()[0]["count"] == 2
    for name in ("route_id", "broker_instance") if does_not_matter else ("match_step", "broker_instance"):
        with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as caught:
            routed.select(name).collect()
        assert f"ssbroker.exceptions.{message}" in str(caught.value)
    row = pa.table({name: pa.array([value]) for name, value in (GOOD | broken).items()})
    if broken != {"is_initiator": None}:  # without a value, its Arrow type would be another
        with pytest.raises(ssbroker.InputError) as ours:
            ssbroker.Router(one_route()).route(row)
        assert f"{type(ours.value).__name__}: {str(ours.value).replace(', row 0', '')}".startswith(message)


@pytest.mark.parametrize("name", ["conversation_id", "to_broker_instance"])
def test_bytes_that_are_no_guid_are_shown_in_hexadecimal(spark: SparkSession, name: str) -> None:
    given = spark.createDataFrame([row_with({})], COLUMNS).withColumn(name, sf.lit(b"\x01\xab"))
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as caught:
        ssbroker.spark.route(given, one_route(), tie_break="first", engine="native").collect()
    assert f"ssbroker.exceptions.InvalidGuidError: {name}: '0x01ab' {NO_GUID}" in str(caught.value)


def test_values_are_checked_even_if_the_catalog_has_no_routes(spark: SparkSession) -> None:
    """Spark then knows that the join finds nothing, and drops it."""
    catalog = Catalog(schemas.ROUTES.empty_table())
    good = row_with({"database": None, "to_broker_instance": None})
    given = spark.createDataFrame([good, row_with({"database": "Nowhere"})], COLUMNS).coalesce(1)
    for name in ("outcome", "broker_instance"):
        with pytest.raises(Exception, match="UnknownDatabaseError: database: 'Nowhere'"):
            ssbroker.spark.route(given, catalog, engine="native").select(name).collect()
    routed = ssbroker.spark.route(given.limit(1), catalog, engine="native")
    assert [row["reason"] for row in routed.collect()] == ["no_route"]


def test_ids_are_checked_even_if_they_change_no_decision(spark: SparkSession) -> None:
    """All columns on which an id could have an effect are null for this catalog."""
    catalog = Catalog([{"database": "Sales", "name": "A", "address": "LOCAL"}])
    given = spark.sql("select 'no-guid' conversation_id, 'Sales' database, '//a' to_service_name")
    routed = ssbroker.spark.route(given, catalog, engine="native")
    for selected in (routed, routed.select("next_hop_address"), routed.select("route_id", "broker_instance")):
        with pytest.raises(Exception, match="InvalidGuidError: conversation_id: 'no-guid'"):
            selected.collect()
    valid = given.withColumns({"conversation_id": sf.lit(ID), "row": sf.lit(0)})
    asked = pa.table({"conversation_id": [ID], "database": ["Sales"], "to_service_name": ["//a"]})
    assert decisions_of(ssbroker.spark.route(valid, catalog, engine="native")) == expected_decisions(catalog, asked)


def test_null_ids_are_allowed_if_they_break_no_tie(spark: SparkSession) -> None:
    given = spark.createDataFrame([row_with({"conversation_id": None})], COLUMNS)
    routed = ssbroker.spark.route(given, one_route(), tie_break="first", engine="native")
    assert [row["outcome"] for row in routed.collect()] == ["REMOTE"]


def test_the_columns_and_types_are_those_of_the_other_engine(spark: SparkSession) -> None:
    catalog, table = world(1, conversations=20)
    given = frame(spark, table).withColumn("a.b", sf.lit(1)).withColumn("ssbroker_x", sf.lit(2))
    native, arrow = (ssbroker.spark.route(given, numbered(catalog), now=NOW, engine=each) for each in BOTH)
    assert native.schema == arrow.schema
    assert native.columns == [*given.columns, *schemas.DECISIONS.names]


BOTH: tuple[Engine, ...] = ("native", "arrow")


def test_a_native_plan_has_no_python_and_reads_only_what_is_selected(
    spark: SparkSession, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog, table = world(1, conversations=20)
    frame(spark, table).write.parquet(f"{tmp_path}/conversations")
    given = spark.read.parquet(f"{tmp_path}/conversations")
    routed = ssbroker.spark.route(given, numbered(catalog), now=NOW, engine="native")
    plan = plan_of(routed.select("outcome"), capsys)
    assert "Python" not in plan
    assert "Arrow" not in plan
    assert "BroadcastHashJoin" in plan
    assert "message_body" not in plan
    assert "next_hop_address" not in plan
    assert "next_hop_address" in plan_of(routed, capsys)


def test_labels_alone_read_only_the_columns_that_they_depend_on(
    spark: SparkSession, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ties between routes of one class change the next hop, but no label."""
    catalog, table = listed_ids(3)
    frame(spark, table).write.parquet(f"{tmp_path}/conversations")
    routed = ssbroker.spark.route(spark.read.parquet(f"{tmp_path}/conversations"), catalog, now=NOW, engine="native")
    assert "conversation_id" not in plan_of(routed.select("outcome", "reason", "match_step"), capsys)
    assert "conversation_id" in plan_of(routed.select("next_hop_address"), capsys)


def test_auto_avoids_code_that_the_jvm_does_not_compile(spark: SparkSession) -> None:
    def chosen(columns: str, address: str = "LOCAL") -> str:
        catalog = Catalog(one_route(remote_service_name=None, address=address).routes, DATABASES)
        return ssbroker.spark.route_engine(spark.createDataFrame([], columns), catalog, tie_break="first").name

    narrow = "to_service_name string, database string, is_initiator boolean"
    assert chosen(f"{narrow}, to_broker_instance binary") == "native"
    with_text_ids = f"{narrow}, to_broker_instance string, conversation_id string"
    assert chosen(with_text_ids) == "native"
    assert chosen(", ".join([with_text_ids, *(f"extra_{number} int" for number in range(10))])) == "arrow"
    assert chosen(narrow, "TRANSPORT") == "arrow"
    assert chosen(", ".join([narrow, *(f"extra_{number} int" for number in range(80))])) == "arrow"


def databases(count: int) -> tuple[Catalog, pa.Table]:
    """Returns a catalog with this many databases besides `msdb`, and two conversations from each."""
    names = [f"db {number}" for number in range(count)]
    routes = pa.table(
        {
            "database": names,
            "name": ["r"] * count,
            "remote_service_name": [f"//s{number % 3}" for number in range(count)],
            "broker_instance": pa.nulls(count, pa.binary(16)),
            "lifetime": pa.nulls(count, pa.timestamp("us")),
            "address": [f"TCP://host-{number}" for number in range(count)],
            "mirror_address": pa.nulls(count, pa.string()),
        }
    )
    table = pa.table(
        {
            "conversation_id": pa.array([bytes(16)] * (2 * count + 1), pa.binary()),
            "database": [*names, *names, None],
            "to_service_name": [f"//s{number % 2}" for number in range(2 * count + 1)],
            "row": pa.array(range(2 * count + 1), pa.int32()),
        }
    )
    return Catalog(routes), table


@pytest.mark.parametrize("count", [15, 16, 40])
def test_many_databases_are_joined(spark: SparkSession, capsys: pytest.CaptureFixture[str], count: int) -> None:
    catalog, table = databases(count)
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW, engine="native")
    assert plan_of(routed, capsys).count("BroadcastHashJoin") == (2 if count > 15 else 1)
    assert decisions_of(routed) == expected_decisions(catalog, table)
    unknown = frame(spark, table).withColumn("database", sf.lit("none"))
    with pytest.raises(Exception, match="UnknownDatabaseError: database: 'none' is not a database of the catalog"):
        ssbroker.spark.route(unknown, catalog, now=NOW, engine="native").collect()


def listed_ids(count: int) -> tuple[Catalog, pa.Table]:
    """Returns a service with this many broker ids, each with two equal routes, and conversations with each id, another one and none."""
    ids = [bytes(14) + number.to_bytes(2, "big") for number in range(count)]
    routes = pa.table(
        {
            "name": [f"r{number}" for number in range(2 * count)],
            "remote_service_name": ["//s"] * (2 * count),
            "broker_instance": pa.array([*ids, *ids], pa.binary(16)),
            "lifetime": pa.nulls(2 * count, pa.timestamp("us")),
            "address": [f"TCP://host-{number}" for number in range(2 * count)],
            "mirror_address": pa.nulls(2 * count, pa.string()),
        }
    )
    asked = [*ids, b"\xff" * 16, *[None] * 50]
    table = pa.table(
        {
            "conversation_id": pa.array([number.to_bytes(16, "little") for number in range(len(asked))], pa.binary()),
            "to_service_name": ["//s"] * len(asked),
            "to_broker_instance": pa.array(asked, pa.binary()),
            "row": pa.array(range(len(asked)), pa.int32()),
        }
    )
    return Catalog(routes), table


@pytest.mark.rule("R24")
def test_a_candidate_with_a_larger_share_of_the_hashes_is_listed_several_times() -> None:
    """Half of the hashes pick the first of two brokers; the other half is shared by the three routes to the second."""
    lowest, third = -(2**63), 2**63 / 3
    assert decision_join_table.shares_of((lowest,)) == (1,)
    assert decision_join_table.shares_of((lowest, 0, -(-(2**63) // 3), -(-(2**64) // 3))) == (3, 1, 1, 1)
    assert decision_join_table.shares_of((lowest, 0, round(third))) is None, "the limit is off by one"
    assert decision_join_table.shares_of((lowest, lowest + -(-(2**64) // 4096))) is None, "more than 4,095 shares"


def test_one_of_many_equal_candidates_is_picked_by_the_hash(spark: SparkSession) -> None:
    catalog, table = listed_ids(100)
    expected = expected_decisions(catalog, table)
    assert len({row["next_hop_address"] for row in expected[-50:]}) > 20
    given = frame(spark, table)
    assert decisions_of(ssbroker.spark.route(given, catalog, now=NOW, engine="native")) == expected
    chosen = ssbroker.spark.route_engine(given, catalog, now=NOW)
    assert str(chosen) == "arrow: a service has 100 broker ids, more than the 64 for which a join is used"


NAMES = (
    *(
        "tcp://Rushi.Desai.name:4256/MyService",
        "host:1",
        "host:00065535/",
        "h_1-2.x:5\n",
        "h:5/\nx",
        "tcp:80",
        "[::1]:7/x",
    ),
    *(
        "host/x",
        "",
        "host:1x",
        "h:0",
        "h:65536",
        "a..b:1",
        ".a:1",
        "a.:1",
        "tcp://tcp://h:1",
        "h:1\n",
        "höst:1",
        "x[::1]:1",
    ),
    *(
        "[::]:1",
        "[1::]:1",
        "[::FFFF:1.2.3.4]:1/x",
        "[::1.2.3.4]:1",
        "[1:2:3:4:5:6:1.2.3.4]:1",
        "[0:0:0:0:0:ffff:102:304]:1",
    ),
    *("[0:0:1:0:0:0:1:0]:1", "[0:0:0:1:0:0:0:1]:1", "[1:0:0:2:0:0:3:4]:1", "[10:0:0:1:0:0:0:1]:1", "[00a0:0001::0]:1"),
    *(
        "[1.2.3.4]:1",
        "[1:2:3:4:5:6:7:1.2.3.4]:1",
        "[::01.2.3.4]:1",
        "[::256.2.3.4]:1",
        "[1:2:3:4:5:6:7:8::]:1",
        "[::1]:",
    ),
    *(
        "[1:2:3:4:5:6:7::]:1",
        "[::2:3:4:5:6:7:8]:1",
        "[1::2::3]:1",
        "[:::1]:1",
        "[00001::]:1",
        "[FE80::1%eth0]:1",
        "[g]:1",
    ),
)


@pytest.mark.rule("R23", "R6")
def test_the_next_hop_in_a_name_is_read_as_the_router_reads_it(spark: SparkSession) -> None:
    catalog = one_route(remote_service_name=None, address="TRANSPORT")
    table = pa.table({"to_service_name": NAMES, "row": pa.array(range(len(NAMES)), pa.int32())})
    expected = expected_decisions(catalog, table, tie_break="first")
    assert 15 < sum(row["next_hop_address"] is not None for row in expected) < len(NAMES) - 15
    routed = ssbroker.spark.route(frame(spark, table), catalog, tie_break="first", engine="native")
    assert decisions_of(routed) == expected


@pytest.mark.rule("R23", "R41")
@pytest.mark.parametrize("address", ["TRANSPORT", "LOCAL", "TCP://other:1"])
def test_a_name_with_an_own_address_is_routed_again_as_a_message_from_outside(
    spark: SparkSession, address: str
) -> None:
    """Names that only the other routing table lists, too; three candidates there."""
    own, listed, gone = "tcp://me:7/Own", "tcp://Me:7/Listed", "//Listed"
    names = [None, own.replace("Own", "Elsewhere"), listed, listed, listed, gone]
    routes = pa.table(
        {
            "database": ["Sales", "msdb", "msdb", "msdb", "msdb", "msdb"],
            "name": [f"r{number}" for number in range(6)],
            "remote_service_name": names,
            "broker_instance": pa.nulls(6, pa.binary(16)),
            "lifetime": pa.nulls(6, pa.timestamp("us")),
            "address": ["TRANSPORT", address, "TCP://a:1", "TCP://b:1", "TCP://c:1", "TCP://d:1"],
            "mirror_address": pa.nulls(6, pa.string()),
        }
    )
    catalog = Catalog(routes, addresses=["tcp://me:7", "tcp://me-too:7"], message_forwarding=True)
    asked = [own, listed, gone, "me-too:7", "other:9/x", "//nothing", "tcp://me:7/Elsewhere"] * 20
    table = pa.table(
        {
            "conversation_id": pa.array([number.to_bytes(16, "little") for number in range(len(asked))], pa.binary()),
            "database": ["Sales"] * len(asked),
            "to_service_name": asked,
            "row": pa.array(range(len(asked)), pa.int32()),
        }
    )
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW, engine="native")
    assert decisions_of(routed) == expected_decisions(catalog, table)


@pytest.mark.rule("R23")
def test_listed_names_that_hold_the_next_hop_are_in_the_table(spark: SparkSession) -> None:
    given = spark.createDataFrame([("tcp://[0::1]:1/x",)], "to_service_name string")
    catalog = one_route(remote_service_name="tcp://[0::1]:1/x", address="TRANSPORT")
    routed = ssbroker.spark.route(given, catalog, tie_break="first", engine="native")
    assert [row["next_hop_address"] for row in routed.collect()] == ["TCP://[::1]:1"]


def test_auto_follows_the_catalog_and_the_session(
    spark: SparkSession, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = spark.createDataFrame([("//s",)], "to_service_name string")

    def chosen(engine: Engine = "auto") -> str:
        return str(ssbroker.spark.route_engine(given, hosts(3), tie_break="first", engine=engine))

    assert chosen() == "native: a broadcast join with the decisions for each service name"
    assert [chosen(engine) for engine in BOTH] == [f"{engine}: engine='{engine}' was given" for engine in BOTH]
    with monkeypatch.context() as patch:
        patch.setattr(engine_choice, "_ROUTES_MAX", 2)
        assert chosen() == "arrow: the catalog has 3 routes, more than the 2 for which a join is used"
    configure("spark.sql.autoBroadcastJoinThreshold", "-1")
    assert chosen() == "arrow: spark.sql.autoBroadcastJoinThreshold switches broadcasts off"
    with pytest.raises(OptionError, match="engine: expected 'auto', 'native' or 'arrow', got 'udf'"):
        chosen("udf")  # type: ignore[arg-type] # what the error is about


def test_the_decisions_are_made_again_only_if_a_route_has_expired(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "_join_tables", {})
    made: list[object] = []
    original = decision_join_table.DecisionJoinTable.of

    def counted(
        router: ssbroker.Router, labels: decision_codes.Labels, *, now: datetime
    ) -> decision_join_table.DecisionJoinTable:
        made.append(now)
        return original(router, labels, now=now)

    monkeypatch.setattr(decision_join_table.DecisionJoinTable, "of", counted)
    given = spark.createDataFrame([("//s",)], "to_service_name string")
    expires = NOW + timedelta(days=1)
    catalog = one_route(lifetime=expires)
    for now in (NOW, NOW, expires - TICK, expires, expires + timedelta(days=1)):
        ssbroker.spark.route(given, catalog, now=now, tie_break="first")
    assert made == [NOW, expires]
    routed = [ssbroker.spark.route(given, catalog, now=now, tie_break="first") for now in (expires - TICK, expires)]
    assert [row["outcome"] for each in routed for row in each.collect()] == ["REMOTE", "DELAYED"]
    assert made == [NOW, expires, expires - TICK, expires]
    for _ in range(2):
        ssbroker.spark.route(given, hosts(3), tie_break="first")
    assert len(made) == 5


def test_names_compare_by_bytes_whatever_the_collation(spark: SparkSession) -> None:
    given = spark.createDataFrame([("//S0",), ("//s0",)], "name string")
    collated = given.select(sf.col("name").cast("string collate UTF8_LCASE").alias("to_service_name"), "name")
    routed = ssbroker.spark.route(collated, hosts(1), tie_break="first", engine="native")
    assert {row["name"]: row["outcome"] for row in routed.collect()} == {"//S0": "DELAYED", "//s0": "REMOTE"}


def test_names_that_are_not_utf8_match_no_service(spark: SparkSession) -> None:
    given = spark.sql("select cast(X'2F2F7330FF' as string) as to_service_name")
    routed = ssbroker.spark.route(given, hosts(1), tie_break="first", engine="native")
    assert [row["reason"] for row in routed.select("reason").collect()] == ["no_route"]


def test_two_names_with_the_same_hash_are_distinguished(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The join compares the names too."""
    monkeypatch.setattr(decision_join, "_name_hash", lambda source, name: sf.length(name).cast("bigint"))
    given = spark.sql("select id, concat('//s', id) as to_service_name from range(9)")
    routed = ssbroker.spark.route(given, hosts(5), tie_break="first", engine="native")
    hops = {row["id"]: row["next_hop_address"] for row in routed.collect()}
    assert hops == {number: f"TCP://host-{number:03}.example:4022" if number < 5 else None for number in range(9)}


def test_a_stream_is_joined_too(spark: SparkSession, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    catalog, table = world(3, conversations=40)
    catalog = numbered(catalog)
    frame(spark, table).write.parquet(f"{tmp_path}/given")
    arriving = spark.readStream.schema(spark.read.parquet(f"{tmp_path}/given").schema).parquet(f"{tmp_path}/given")
    routed: DataFrame = ssbroker.spark.route(arriving, catalog, now=NOW)
    assert "Python" not in plan_of(routed, capsys)
    writer = routed.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    query_runs.run_to_end(writer.option("path", f"{tmp_path}/routed"))
    assert decisions_of(spark.read.parquet(f"{tmp_path}/routed")) == expected_decisions(catalog, table)
