"""What the JVM tells Python by a number is read as it was: databases, who began, ids that are not needed, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from ssbroker import Catalog, Router, SsbrokerError
from ssbroker.router import TieBreak
from ssbroker.spark.transfer import TransferredColumns
from tests.spark.frames import Configure, decided, expected, frame, frame_in_order, world
from tests.worlds.universe import NOW

NUMBERED = 14
"""Of how many databases the number tells at most, `msdb` among them."""


def several(databases: int) -> tuple[Catalog, pa.Table]:
    """A catalog of so many databases, `msdb` included, each with a route of its own; conversations from each, begun by either side."""
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
    rows = [(name, began) for name in [*names, "msdb", None] for began in (True, False)]
    conversations = pa.table(
        {
            "row": pa.array(range(len(rows)), pa.int32()),
            "conversation_id": pa.array([number.to_bytes(16, "big") for number in range(len(rows))], pa.binary(16)),
            "database": [name for name, _ in rows],
            "to_service_name": ["//s"] * len(rows),
            "to_broker_instance": pa.nulls(len(rows), pa.binary(16)),
            "is_initiator": [began for _, began in rows],
        }
    )
    return Catalog(routes), conversations


@pytest.mark.parametrize("databases", [NUMBERED, NUMBERED + 1])
@pytest.mark.parametrize("tie_break", ["first", "hash"])
def test_databases_and_who_began(spark: SparkSession, databases: int, tie_break: TieBreak) -> None:
    catalog, table = several(databases)
    given = frame(spark, table)
    types = {field.name: field.type for field in table.schema if field.name != "row"}
    types["conversation_id"] = pa.binary()
    encoded = TransferredColumns.of(types, given, catalog, tie_break).encoded
    assert ("database" in encoded, "conversation_id" in encoded) == (databases == NUMBERED, tie_break == "first")
    routed = ssbroker.spark.route(given, catalog, now=NOW, tie_break=tie_break)
    assert decided(routed) == expected(catalog, table, tie_break=tie_break)


@pytest.mark.parametrize("name", ["conversation_id", "conversation_handle"])
def test_ids_by_which_nothing_is_picked(spark: SparkSession, name: str) -> None:
    catalog, table = world(11, conversations=60)
    given = frame(spark, table).withColumnRenamed("conversation_id", name)
    routed = ssbroker.spark.route(given, catalog, now=NOW, tie_break="first")
    assert decided(routed) == expected(catalog, table, tie_break="first")


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
def test_what_is_wrong_is_told_as_the_arrow_functions_tell_it(
    spark: SparkSession, broken: dict[int, dict[str, Any]], tie_break: TieBreak
) -> None:
    catalog, table = several(5)
    rows = [{**row, **broken.get(number, {})} for number, row in enumerate(table.to_pylist())]
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in table.schema]
    wrong = pa.Table.from_pylist(rows, schema=pa.schema(fields))
    with pytest.raises(SsbrokerError) as by_arrow:
        Router(catalog, tie_break=tie_break).route(wrong, now=NOW)
    with pytest.raises(PythonException) as by_spark:
        ssbroker.spark.route(frame_in_order(spark, wrong), catalog, now=NOW, tie_break=tie_break).collect()
    kind = type(by_arrow.value)
    assert f"{kind.__module__}.{kind.__name__}: {by_arrow.value}" in str(by_spark.value).splitlines()


@pytest.mark.parametrize("tie_break", ["first", "hash"])
def test_text_that_is_none_names_no_database(spark: SparkSession, tie_break: TieBreak) -> None:
    """Spark makes text of any bytes."""
    catalog, table = several(3)
    given = frame(spark, table).withColumn("database", sf.expr("cast(X'53FF' as string)"))
    with pytest.raises(PythonException, match="UnknownDatabaseError: database, row 0: 'S\ufffd' is not a database"):
        ssbroker.spark.route(given, catalog, now=NOW, tie_break=tie_break).collect()


def test_a_collation_makes_no_databases_equal(spark: SparkSession) -> None:
    catalog, table = several(3)
    given = frame(spark, table).where("database is not null")
    collated = given.withColumn("database", sf.upper("database").cast("string collate UTF8_LCASE"))
    with pytest.raises(PythonException, match=r"UnknownDatabaseError: database, row 0: '(SALES 0|SALES 1|MSDB)'"):
        ssbroker.spark.route(collated, catalog, now=NOW).collect()


@pytest.mark.parametrize("tie_break", ["hash", "first"])
def test_text_of_a_length_is_text(spark: SparkSession, configure: Configure, tie_break: TieBreak) -> None:
    """Where a session keeps char and varchar, names and ids come as these."""
    configure("spark.sql.preserveCharVarcharTypeInfo", "true")
    catalog, table = world(3, conversations=40, text_guids=True)
    given = frame(spark, table)
    for name in ("conversation_id", "database", "to_service_name", "to_broker_instance"):
        given = given.withColumn(name, sf.expr(f"cast({name} as varchar(256))"))
    assert given.schema["to_service_name"].dataType.simpleString() == "varchar(256)"
    routed = ssbroker.spark.route(given, catalog, now=NOW, tie_break=tie_break)
    assert decided(routed) == expected(catalog, table, tie_break=tie_break)
