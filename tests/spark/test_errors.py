"""Invalid columns are reported when `route` is called, invalid values by the job; both with ssbroker's own messages."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import ssbroker
import ssbroker.spark
from ssbroker import Catalog, OptionError, SchemaError, schemas
from ssbroker._compat import is_older
from tests.spark.frames import Configure

ROUTES = {"name": ["r"], "remote_service_name": ["//s"], "broker_instance": [None], "address": ["TCP://a"]}
ROUTES |= {"lifetime": [None], "mirror_address": [None]}
ONE_DATABASE = Catalog(pa.table(ROUTES))
TWO_DATABASES = Catalog(
    schemas.ROUTES.empty_table(),
    pa.table(
        {"name": ["A", "B"], "service_broker_guid": pa.nulls(2, pa.binary(16)), "is_broker_enabled": [True, True]}
    ),
)
EQUAL_ROUTES = Catalog([{"name": name, "remote_service_name": "//s", "address": f"TCP://{name}"} for name in "ab"])
KEYS = "conversation_id binary, to_service_name string"


@pytest.mark.parametrize(
    ("columns", "catalog", "words"),
    [
        (
            "other int, conversation_id binary, service string, other int",
            ONE_DATABASE,
            [
                "to_service_name",
                'columns "other", "conversation_id", "service"; if "service" is meant, rename it to "to_service_name"',
            ],
        ),
        (
            "to_service_name string",
            EQUAL_ROUTES,
            ["conversation_id", "the column is missing", 'the service "//s" has several equal candidates', "tie_break"],
        ),
        (KEYS, TWO_DATABASES, ["database", "exactly one user database"]),
        (
            "conversation_id int, to_service_name string",
            ONE_DATABASE,
            ["conversation_id", "string or binary", "got int"],
        ),
        ("conversation_id binary, to_service_name binary", ONE_DATABASE, ["to_service_name", "text"]),
        (
            "conversation_id binary, to_service_name date",
            ONE_DATABASE,
            ["to_service_name", "expected string, got date"],
        ),
        (f"{KEYS}, database array<string>", ONE_DATABASE, ["database", "expected string", "got array<string>"]),
        (f"{KEYS}, to_broker_instance bigint", ONE_DATABASE, ["to_broker_instance", "string or binary", "got bigint"]),
        (
            f"{KEYS}, is_initiator string",
            ONE_DATABASE,
            ["is_initiator", 'got string; convert it with col("is_initiator").cast("boolean")'],
        ),
        (f"{KEYS}, is_initiator int", ONE_DATABASE, ["is_initiator", "expected boolean, got int"]),
        (f"{KEYS}, reason string", ONE_DATABASE, ["reason", "rename or drop"]),
        (f"{KEYS}, Outcome int", ONE_DATABASE, ["Outcome", "rename or drop"]),
        (
            f"{KEYS}, To_Service_Name int",
            ONE_DATABASE,
            ["to_service_name", "'To_Service_Name'", "which this Spark session ignores"],
        ),
        (f"{KEYS}, `ssbroker text` string", ONE_DATABASE, ["ssbroker text", "rename or drop"]),
        (f"{KEYS}, Is_Initiator boolean", ONE_DATABASE, ["is_initiator", 'exactly this name, got "Is_Initiator"']),
    ],
)
def test_columns_are_checked_at_the_call(spark: SparkSession, columns: str, catalog: Catalog, words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        ssbroker.spark.route(spark.createDataFrame([], columns), catalog)
    assert caught.value.column == words[0]
    assert [word for word in words if word not in str(caught.value)] == []


def test_missing_column_of_fragments_is_reported_with_all_columns(spark: SparkSession) -> None:
    columns = (
        "other int, conversation_id binary, is_initiator boolean, message_sequence_number bigint, number int, other int"
    )
    with pytest.raises(SchemaError) as caught:
        ssbroker.spark.reassemble(spark.createDataFrame([], f"{columns}, fragment_count int, message_body binary"))
    assert caught.value.column == "fragment_number"
    assert '"other", "conversation_id", "is_initiator", "message_sequence_number", "number", ' in str(caught.value)
    assert str(caught.value).endswith('if "number" is meant, rename it to "fragment_number"')


def test_ties_that_appear_when_a_route_expires_are_found_at_the_call(spark: SparkSession) -> None:
    expires = datetime(2026, 1, 1, tzinfo=UTC)
    mirrored = {"name": "c", "remote_service_name": "//s", "address": "TCP://c", "mirror_address": "TCP://d"}
    catalog = Catalog([*EQUAL_ROUTES.routes.to_pylist(), {**mirrored, "lifetime": expires}])
    rows = spark.createDataFrame([("//s",)], "to_service_name string")
    routed = ssbroker.spark.route(rows, catalog, now=expires - timedelta(days=1))
    assert [row["next_hop_address"] for row in routed.collect()] == ["TCP://c:4022"]
    with pytest.raises(SchemaError, match="several equal candidates"):
        ssbroker.spark.route(rows, catalog, now=expires + timedelta(days=1))


@pytest.mark.parametrize("given", [None, ONE_DATABASE, "conversations.parquet", pa.table({"to_service_name": ["//s"]})])
def test_arguments_that_are_not_spark_dataframes_are_refused(spark: SparkSession, given: Any) -> None:
    """A pandas DataFrame used to fail with an `AttributeError`."""
    message = f"expected a Spark DataFrame, .*, got .*{type(given).__qualname__}$"
    for call in (
        lambda: ssbroker.spark.route(given, ONE_DATABASE),
        lambda: ssbroker.spark.compare(given, ONE_DATABASE, ONE_DATABASE),
        lambda: ssbroker.spark.reassemble(given),
        lambda: ssbroker.spark.pipeline(given, ONE_DATABASE),
        lambda: ssbroker.spark.stream(given),
        lambda: ssbroker.spark.route_stream(given, ONE_DATABASE),
    ):
        with pytest.raises(SchemaError, match=message):
            call()


def test_spark_dataframes_are_not_collected_by_functions_for_one_process(spark: SparkSession) -> None:
    connect = object.__new__(import_module("pyspark.sql.connect.dataframe").DataFrame)
    router = ssbroker.Router(ONE_DATABASE)
    for frame in (spark.createDataFrame([], KEYS), connect):
        for call in (router.route, router.with_decisions):
            with pytest.raises(SchemaError, match=r"conversations: .* ssbroker.spark.route .* pass df.toArrow\(\)"):
                call(frame)
        for reassemble in (ssbroker.reassemble, ssbroker.Reassembler().push):
            with pytest.raises(SchemaError, match=r"fragments: .* ssbroker.spark.reassemble, .* pass df.toArrow\(\)"):
                reassemble(frame)


@pytest.mark.skipif(is_older(pyspark.__version__, "4.0"), reason="needs PySpark 4.0, which has toArrow")
def test_catalog_tables_may_be_spark_dataframes(spark: SparkSession) -> None:
    """With timestamps too, which Spark's Arrow capsules do not support."""
    lifetime = datetime(2030, 1, 1, tzinfo=UTC)
    columns = "name string, remote_service_name string, lifetime timestamp, address string"
    routes = spark.createDataFrame([("r", "//s", lifetime, "TCP://a")], columns)
    assert Catalog(routes).routes["lifetime"].to_pylist() == [lifetime]


def test_arguments_that_are_not_catalogs_are_refused(spark: SparkSession) -> None:
    number: Any = 7
    rows = spark.createDataFrame([], KEYS)
    for call, argument in (
        (lambda: ssbroker.spark.route(rows, number), "catalog"),
        (lambda: ssbroker.spark.route_udf(spark, number), "catalog"),
        (lambda: ssbroker.spark.compare(rows, ONE_DATABASE, number), "after"),
    ):
        with pytest.raises(SchemaError, match=rf"{argument}: expected an ssbroker.Catalog or a path, got int"):
            call()


def test_catalogs_may_be_paths(spark: SparkSession, tmp_path: Path) -> None:
    """LIFETIME counts from `now`."""
    script = tmp_path / "routes.sql"
    route = "CREATE ROUTE r WITH SERVICE_NAME = '//s', LIFETIME = 60, ADDRESS = 'TCP://a'"
    script.write_text(f"CREATE DATABASE A\nGO\nUSE A\nGO\n{route}", encoding="utf-8")
    now = datetime(2020, 1, 1, tzinfo=UTC)
    rows = spark.createDataFrame([(bytes(16), "//s", "A")], f"{KEYS}, database string")
    fragment = [(bytes(16), True, 0, 0, 1, b"body", "//s", "A")]
    columns = "conversation_id binary, is_initiator boolean, message_sequence_number long, fragment_number int"
    columns += ", fragment_count int, message_body binary, to_service_name string, database string"
    for path in (script, str(script)):
        routed = ssbroker.spark.route(rows, path, now=now)
        assert ssbroker.spark.route_engine(rows, path, now=now).name in ("native", "arrow")
        messages = ssbroker.spark.pipeline(spark.createDataFrame(fragment, columns), path, now=now).messages
        where_to = ssbroker.spark.route_udf(spark, path, now=now)
        by_function = rows.select(where_to("conversation_id", "database", "to_service_name").alias("d")).select("d.*")
        for decided in (routed, messages, by_function):
            assert [row["next_hop_address"] for row in decided.collect()] == ["TCP://a:4022"]
        later = now + timedelta(seconds=90)
        assert not ssbroker.spark.compare(rows, path, path, at=now).comparison()
        assert ssbroker.spark.compare(rows, path, Catalog.load(path, now=now), at=later, before_at=now).comparison()


def test_catalogs_of_file_jobs_may_be_paths(spark: SparkSession, tmp_path: Path) -> None:
    script = tmp_path / "routes.sql"
    script.write_text("CREATE ROUTE r WITH SERVICE_NAME = '//s', ADDRESS = 'TCP://a'", encoding="utf-8")
    conversation = {"conversation_id": [bytes(16)], "is_initiator": [True], "to_service_name": ["//s"]}
    message = {**conversation, "message_sequence_number": [0], "message_body": [b"body"]}
    pq.write_table(pa.table(conversation), tmp_path / "conversations.parquet")
    pq.write_table(ssbroker.fragment(pa.table(message), max_fragment_bytes=4), tmp_path / "fragments.parquet")
    ssbroker.spark.route_files(spark, tmp_path / "conversations.parquet", tmp_path / "routed", script)
    ssbroker.spark.reassemble_files(spark, tmp_path / "fragments.parquet", tmp_path / "whole", catalog=str(script))
    for folder in (tmp_path / "routed", tmp_path / "whole" / "messages"):
        assert pq.read_table(folder)["next_hop_address"].to_pylist() == ["TCP://a:4022"]


def test_duplicate_columns_are_refused(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match=r"to_service_name: expected one column with this name, got 2"):
        ssbroker.spark.route(spark.sql("select '//a' to_service_name, '//b' to_service_name"), ONE_DATABASE)


def test_case_sensitive_sessions_distinguish_names_by_case(spark: SparkSession, configure: Configure) -> None:
    configure("spark.sql.caseSensitive", "true")
    routed = ssbroker.spark.route(spark.sql("select '//s' to_service_name, 1 Outcome"), ONE_DATABASE, tie_break="first")
    assert routed.select("Outcome", "outcome").first() == (1, "REMOTE")


@pytest.mark.parametrize("tie_break", ["round_robin", "last"])
def test_invalid_tie_breaks_are_refused(spark: SparkSession, tie_break: Any) -> None:
    given = spark.createDataFrame([], KEYS)
    with pytest.raises(OptionError, match="tie_break"):
        ssbroker.spark.route(given, ONE_DATABASE, tie_break=tie_break)
    with pytest.raises(OptionError, match="tie_break"):
        ssbroker.spark.route_udf(spark, ONE_DATABASE, tie_break=tie_break)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"conversation_id": "no-guid"}, "InvalidGuidError: conversation_id, row 4: 'no-guid'"),
        ({"to_service_name": None}, "NullError: to_service_name, row 4"),
        ({"database": "Nowhere"}, "UnknownDatabaseError: database, row 4: 'Nowhere'"),
        ({"conversation_id": None}, "NullError: conversation_id, row 4"),
    ],
)
def test_invalid_values_are_reported_with_their_row(
    spark: SparkSession, configure: Configure, broken: dict[str, str | None], message: str
) -> None:
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    guid = "00000000-0000-0000-0000-000000000001"
    good: dict[str, str | None] = {"conversation_id": guid, "to_service_name": "//s", "database": "user"}
    table = pa.Table.from_pylist([good] * 14 + [{**good, **broken}] + [good])
    routed = ssbroker.spark.route(spark.createDataFrame(table).coalesce(1), ONE_DATABASE, engine="arrow")
    with pytest.raises(PythonException) as caught:
        routed.collect()
    lines = str(caught.value).splitlines()
    assert [line for line in lines if line.startswith(f"ssbroker.exceptions.{message}")]
    assert "Row 0 of this batch of 6 rows is row 10 of partition 0 of the Spark job." in lines


def test_invalid_ids_are_refused_even_if_no_id_is_needed(spark: SparkSession) -> None:
    """With `first`, ids break no tie; invalid ids are still refused, but null ids are not."""
    rows = [(bytes(16), "//s"), (None, "//s"), (b"fifteen bytes .", "//s")]

    def routed(given: list[tuple[bytes | None, str]]) -> DataFrame:
        frame_ = spark.createDataFrame(given, KEYS).coalesce(1)
        return ssbroker.spark.route(frame_, ONE_DATABASE, tie_break="first", engine="arrow")

    assert [row["outcome"] for row in routed(rows[:2]).collect()] == ["REMOTE", "REMOTE"]
    with pytest.raises(PythonException, match=r"InvalidGuidError: conversation_id, row 2: '0x66696674"):
        routed(rows).collect()


def test_without_pyspark_only_the_spark_package_fails_to_import() -> None:
    source = """
import sys
sys.modules["pyspark"] = None
import ssbroker
assert not [name for name in sys.modules if name.startswith("ssbroker.spark")]
try:
    import ssbroker.spark
except ImportError as error:
    assert isinstance(error, ssbroker.MissingDependencyError)
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "ssbroker.spark needs PySpark 3.5 or newer: pip install 'ssbroker[local-spark]'\n"


def test_without_pyspark_help_and_inspect_skip_the_spark_package() -> None:
    source = """
import inspect, pydoc, sys
import ssbroker
assert "spark" in dir(ssbroker)
assert "pyspark" not in sys.modules
sys.modules["pyspark"] = None
assert dir(ssbroker) == sorted(ssbroker.__all__)
assert [name for name, value in inspect.getmembers(ssbroker)] == dir(ssbroker)
assert "class Router" in pydoc.plain(pydoc.render_doc(ssbroker))
try:
    ssbroker.spark
except ssbroker.MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ssbroker.spark needs PySpark 3.5 or newer: pip install 'ssbroker[local-spark]'\n"
