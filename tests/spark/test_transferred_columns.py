"""Columns that are encoded for the transfer to Python: databases, initiator flags, unused ids, and invalid values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from ssbroker import Catalog, Router, SsbrokerError
from ssbroker.spark.arguments import SparkTieBreak
from ssbroker.spark.transferred_columns import TransferredColumns
from tests.spark.frames import Configure, decisions_of, expected_decisions, frame, frame_in_order, world
from tests.worlds.universe import NOW

CODED_DATABASES = 14
"""The maximum number of databases with a code, `msdb` among them."""


def catalog_of_databases(databases: int) -> tuple[Catalog, pa.Table]:
    """Returns a catalog with this many databases, `msdb` included, each with its own route; conversations from each, from initiators and targets."""
    names = [f"Sales {number}" for number in range(databases - 1)]
    nothing = pa.nulls(len(names), pa.string())
    routes = pa.table(
        {
            "database": names,
            "name": names,
            "remote_service_name": ["//s"] * len(names),
            "broker_instance": pa.nulls(len(names), pa.binary(16)),
            "lifetime": pa.nulls(len(names), pa.timestamp("us")),
            "address": [f"TCP://host-{number}" for number in range(len(names))],
            "mirror_address": nothing,
        }
    )
    rows = [(name, is_initiator) for name in [*names, "msdb", None] for is_initiator in (True, False)]
    conversations = pa.table(
        {
            "row": pa.array(range(len(rows)), pa.int32()),
            "conversation_id": pa.array([number.to_bytes(16, "big") for number in range(len(rows))], pa.binary(16)),
            "database": [name for name, _ in rows],
            "to_service_name": ["//s"] * len(rows),
            "to_broker_instance": pa.nulls(len(rows), pa.binary(16)),
            "is_initiator": [is_initiator for _, is_initiator in rows],
        }
    )
    return Catalog(routes), conversations


@pytest.mark.parametrize("databases", [CODED_DATABASES, CODED_DATABASES + 1])
@pytest.mark.parametrize("tie_break", ["first", "hash"])
def test_databases_and_initiator_flags(spark: SparkSession, databases: int, tie_break: SparkTieBreak) -> None:
    catalog, table = catalog_of_databases(databases)
    given = frame(spark, table)
    types = {field.name: field.type for field in table.schema if field.name != "row"}
    types["conversation_id"] = pa.binary()
    encoded = TransferredColumns.of(types, given, catalog, tie_break).encoded
    assert ("database" in encoded, "conversation_id" in encoded) == (databases == CODED_DATABASES, tie_break == "first")
    routed = ssbroker.spark.route(given, catalog, now=NOW, tie_break=tie_break, engine="arrow")
    assert decisions_of(routed) == expected_decisions(catalog, table, tie_break=tie_break)


@pytest.mark.parametrize("name", ["conversation_id", "conversation_handle"])
def test_ids_that_break_no_tie(spark: SparkSession, name: str) -> None:
    catalog, table = world(11, conversations=60)
    given = frame(spark, table).withColumnRenamed("conversation_id", name)
    routed = ssbroker.spark.route(given, catalog, now=NOW, tie_break="first", engine="arrow")
    assert decisions_of(routed) == expected_decisions(catalog, table, tie_break="first")


@pytest.mark.parametrize("tie_break", ["first", "hash"])
@pytest.mark.parametrize(
    "broken",
    [
        {4: {"database": "sales 1"}},
        {4: {"database": ""}},
        {4: {"is_initiator": None}},
        {4: {"conversation_id": b"fifteen bytes ."}},
        {4: {"conversation_id": b""}},
        {4: {"conversation_id": b"seventeen bytes .", "database": "Nowhere"}},
        {3: {"database": "Nowhere"}, 5: {"database": "Nowhere else"}},
    ],
)
def test_invalid_values_raise_the_errors_of_the_arrow_function(
    spark: SparkSession, broken: dict[int, dict[str, Any]], tie_break: SparkTieBreak
) -> None:
    catalog, table = catalog_of_databases(5)
    rows = [{**row, **broken.get(number, {})} for number, row in enumerate(table.to_pylist())]
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in table.schema]
    wrong = pa.Table.from_pylist(rows, schema=pa.schema(fields))
    with pytest.raises(SsbrokerError) as by_arrow:
        Router(catalog, tie_break=tie_break).route(wrong, now=NOW)
    with pytest.raises(PythonException) as by_spark:
        ssbroker.spark.route(
            frame_in_order(spark, wrong), catalog, now=NOW, tie_break=tie_break, engine="arrow"
        ).collect()
    kind = type(by_arrow.value)
    assert f"{kind.__module__}.{kind.__name__}: {by_arrow.value}" in str(by_spark.value).splitlines()


@pytest.mark.parametrize("tie_break", ["first", "hash"])
def test_invalid_utf8_is_an_unknown_database(spark: SparkSession, tie_break: SparkTieBreak) -> None:
    """Spark strings may hold any bytes."""
    catalog, table = catalog_of_databases(3)
    given = frame(spark, table).withColumn("database", sf.expr("cast(X'53FF' as string)"))
    with pytest.raises(PythonException, match="UnknownDatabaseError: database, row 0: 'S\ufffd' is not a database"):
        ssbroker.spark.route(given, catalog, now=NOW, tie_break=tie_break, engine="arrow").collect()


def test_database_names_ignore_the_collation(spark: SparkSession) -> None:
    catalog, table = catalog_of_databases(3)
    given = frame(spark, table).where("database is not null")
    collated = given.withColumn("database", sf.upper("database").cast("string collate UTF8_LCASE"))
    with pytest.raises(PythonException, match=r"UnknownDatabaseError: database, row 0: '(SALES 0|SALES 1|MSDB)'"):
        ssbroker.spark.route(collated, catalog, now=NOW, engine="arrow").collect()


@pytest.mark.parametrize("tie_break", ["hash", "first"])
def test_char_and_varchar_are_read_as_strings(
    spark: SparkSession, configure: Configure, tie_break: SparkTieBreak
) -> None:
    """If a session preserves char and varchar, names and ids arrive in these types."""
    configure("spark.sql.preserveCharVarcharTypeInfo", "true")
    catalog, table = world(3, conversations=40, text_guids=True)
    given = frame(spark, table)
    for name in ("conversation_id", "database", "to_service_name", "to_broker_instance"):
        given = given.withColumn(name, sf.expr(f"cast({name} as varchar(256))"))
    assert given.schema["to_service_name"].dataType.simpleString() == "varchar(256)"
    routed = ssbroker.spark.route(given, catalog, now=NOW, tie_break=tie_break)
    assert decisions_of(routed) == expected_decisions(catalog, table, tie_break=tie_break)
