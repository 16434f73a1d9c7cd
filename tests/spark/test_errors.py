"""What is wrong with the columns is told when `route` is called; what is wrong with a value, by the job, in our words."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import ssbroker
import ssbroker.spark
from ssbroker import Catalog, OptionError, SchemaError, schemas
from tests.spark.frames import Configure

ROUTES = {"name": ["r"], "remote_service_name": ["//s"], "broker_instance": [None], "address": ["TCP://a"]}
ROUTES |= {"lifetime": [None], "mirror_address": [None]}
LONE = Catalog(pa.table(ROUTES))
SEVERAL = Catalog(
    schemas.ROUTES.empty_table(),
    pa.table(
        {"name": ["A", "B"], "service_broker_guid": pa.nulls(2, pa.binary(16)), "is_broker_enabled": [True, True]}
    ),
)
KEYS = "conversation_id binary, to_service_name string"


@pytest.mark.parametrize(
    ("columns", "catalog", "words"),
    [
        ("conversation_id binary", LONE, ["to_service_name"]),
        ("to_service_name string", LONE, ["conversation_id", "tie_break"]),
        (KEYS, SEVERAL, ["database", "several user databases"]),
        ("conversation_id int, to_service_name string", LONE, ["conversation_id", "string or binary", "got int"]),
        ("conversation_id binary, to_service_name binary", LONE, ["to_service_name", "text"]),
        ("conversation_id binary, to_service_name date", LONE, ["to_service_name", "expected string, got date"]),
        (f"{KEYS}, database array<string>", LONE, ["database", "expected string", "got array<string>"]),
        (f"{KEYS}, to_broker_instance bigint", LONE, ["to_broker_instance", "string or binary", "got bigint"]),
        (f"{KEYS}, is_initiator string", LONE, ["is_initiator", "bool"]),
        (f"{KEYS}, is_initiator int", LONE, ["is_initiator", "expected boolean, got int"]),
        (f"{KEYS}, reason string", LONE, ["reason", "rename or drop"]),
        (f"{KEYS}, Outcome int", LONE, ["Outcome", "rename or drop"]),
        (f"{KEYS}, To_Service_Name int", LONE, ["to_service_name", "'To_Service_Name'", "ignores case"]),
        (f"{KEYS}, `ssbroker text` string", LONE, ["ssbroker text", "rename or drop"]),
        (f"{KEYS}, Is_Initiator boolean", LONE, ["is_initiator", 'this very name, found "Is_Initiator"']),
    ],
)
def test_columns_are_checked_at_the_call(spark: SparkSession, columns: str, catalog: Catalog, words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        ssbroker.spark.route(spark.createDataFrame([], columns), catalog)
    assert caught.value.column == words[0]
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("given", [None, LONE, "conversations.parquet", pa.table({"to_service_name": ["//s"]})])
def test_what_is_no_data_frame_of_spark_is_named(spark: SparkSession, given: Any) -> None:
    """A frame of pandas was told that its `Index` has no attribute `count`."""
    says = f"expected a Spark DataFrame, .*; got .*{type(given).__qualname__}$"
    for call in (
        lambda: ssbroker.spark.route(given, LONE),
        lambda: ssbroker.spark.compare(given, LONE, LONE),
        lambda: ssbroker.spark.reassemble(given),
        lambda: ssbroker.spark.pipeline(given, LONE),
        lambda: ssbroker.spark.stream(given),
        lambda: ssbroker.spark.route_stream(given, LONE),
    ):
        with pytest.raises(SchemaError, match=says):
            call()


def test_what_is_no_catalog_is_named(spark: SparkSession) -> None:
    path: Any = "routes.sql"
    for call in (
        lambda: ssbroker.spark.route(spark.createDataFrame([], KEYS), path),
        lambda: ssbroker.spark.route_udf(spark, path),
    ):
        with pytest.raises(
            SchemaError, match=r"catalog: expected an ssbroker.Catalog, as Catalog.load returns; got str"
        ):
            call()


def test_a_column_that_occurs_twice(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match=r"to_service_name: expected one column of this name, found 2"):
        ssbroker.spark.route(spark.sql("select '//a' to_service_name, '//b' to_service_name"), LONE)


def test_a_name_in_another_case_is_another_name_where_spark_says_so(spark: SparkSession, configure: Configure) -> None:
    configure("spark.sql.caseSensitive", "true")
    routed = ssbroker.spark.route(spark.sql("select '//s' to_service_name, 1 Outcome"), LONE, tie_break="first")
    assert routed.select("Outcome", "outcome").first() == (1, "REMOTE")


@pytest.mark.parametrize("tie_break", ["round_robin", "last"])
def test_tie_breaks_that_there_are_not(spark: SparkSession, tie_break: Any) -> None:
    given = spark.createDataFrame([], KEYS)
    with pytest.raises(OptionError, match="tie_break"):
        ssbroker.spark.route(given, LONE, tie_break=tie_break)
    with pytest.raises(OptionError, match="tie_break"):
        ssbroker.spark.route_udf(spark, LONE, tie_break=tie_break)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"conversation_id": "no-guid"}, "InvalidGuidError: conversation_id, row 4: 'no-guid'"),
        ({"to_service_name": None}, "NullError: to_service_name, row 4"),
        ({"database": "Nowhere"}, "UnknownDatabaseError: database, row 4: 'Nowhere'"),
        ({"conversation_id": None}, "NullError: conversation_id, row 4"),
    ],
)
def test_a_wrong_value_is_told_in_our_words(
    spark: SparkSession, configure: Configure, broken: dict[str, str | None], sentence: str
) -> None:
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    guid = "00000000-0000-0000-0000-000000000001"
    good: dict[str, str | None] = {"conversation_id": guid, "to_service_name": "//s", "database": "user"}
    table = pa.Table.from_pylist([good] * 14 + [{**good, **broken}] + [good])
    routed = ssbroker.spark.route(spark.createDataFrame(table).coalesce(1), LONE)
    with pytest.raises(PythonException) as caught:
        routed.collect()
    told = str(caught.value).splitlines()
    assert [line for line in told if line.startswith(f"ssbroker.exceptions.{sentence}")]
    assert "Row 0 of this batch of 6 rows is row 10 of partition 0 of the Spark job." in told


def test_an_id_that_is_none_is_told_where_no_id_is_needed(spark: SparkSession) -> None:
    """With `first` no conversation is picked for by its id; what cannot be one is refused all the same, and null is not."""
    rows = [(bytes(16), "//s"), (None, "//s"), (b"fifteen bytes .", "//s")]

    def routed(given: list[tuple[bytes | None, str]]) -> DataFrame:
        return ssbroker.spark.route(spark.createDataFrame(given, KEYS).coalesce(1), LONE, tie_break="first")

    assert [row["outcome"] for row in routed(rows[:2]).collect()] == ["REMOTE", "REMOTE"]
    with pytest.raises(PythonException, match=r"InvalidGuidError: conversation_id, row 2: '0x66696674"):
        routed(rows).collect()


def test_without_pyspark_the_package_imports_and_its_spark_room_says_what_is_missing() -> None:
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
    assert done.stdout == "ssbroker.spark needs PySpark 4.1 or newer: pip install 'ssbroker[spark]'\n"
