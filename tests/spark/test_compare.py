"""Comparing two catalogs over DataFrames gives the result of the Arrow function."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Catalog, SchemaError, diagnose
from tests.spark.frames import frame, world
from tests.worlds.numbered import rerouted
from tests.worlds.universe import NOW


def without(catalog: Catalog, *, address: str) -> Catalog:
    """Returns the catalog without its routes to an address."""
    kept = pa.Table.from_pylist(
        [row for row in catalog.routes.to_pylist() if row["address"] != address], schema=catalog.routes.schema
    )
    return rerouted(catalog, kept)


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_comparison_equals_the_arrow_function(spark: SparkSession, seed: int) -> None:
    catalog, table = world(seed, conversations=150)
    other = without(catalog, address="LOCAL")
    compared = ssbroker.spark.compare(frame(spark, table, partitions=3), catalog, other, at=NOW).comparison()
    expected = diagnose.compare(catalog, other, table, at=NOW)
    assert expected.changes
    assert Counter(compared.changes) == Counter(expected.changes)
    assert compared.load == expected.load
    assert compared.conversations == 150


def test_rows_have_both_decisions_after_the_input(spark: SparkSession) -> None:
    catalog, table = world(2, conversations=40)
    compared = ssbroker.spark.compare(frame(spark, table, partitions=1), catalog, catalog, at=NOW)
    routed = ssbroker.spark.route(frame(spark, table, partitions=1), catalog, now=NOW)
    assert compared.rows.columns[: len(table.schema.names)] == table.schema.names
    rows = compared.rows.toArrow().to_pylist()
    for which in ("before", "after"):
        names = [name for name in routed.columns if name not in table.schema.names]
        assert [{name: row[f"{which}_{name}"] for name in names} for row in rows] == routed.select(
            *names
        ).toArrow().to_pylist()
    assert not compared.comparison()


def test_one_catalog_at_two_times(spark: SparkSession) -> None:
    catalog, table = world(2, conversations=150)
    later = NOW + timedelta(days=40000)
    compared = ssbroker.spark.compare(frame(spark, table, partitions=1), catalog, catalog, at=later, before_at=NOW)
    expected = diagnose.compare(catalog, catalog, table, at=later, before_at=NOW)
    assert Counter(compared.comparison().changes) == Counter(expected.changes)


@pytest.mark.parametrize("name", ["after_outcome", "Before_Outcome"])
def test_a_column_with_a_reserved_name_is_refused(spark: SparkSession, name: str) -> None:
    catalog, table = world(2, conversations=4)
    taken = table.append_column(name, pa.array(["x"] * 4))
    with pytest.raises(SchemaError, match=name):
        ssbroker.spark.compare(frame(spark, taken, partitions=1), catalog, catalog, at=NOW)


def test_a_stream_is_refused(spark: SparkSession) -> None:
    catalog, _ = world(2, conversations=4)
    rows = spark.readStream.format("rate").load()
    with pytest.raises(SchemaError, match=r"ssbroker\.spark\.compare does not accept a streaming DataFrame"):
        ssbroker.spark.compare(rows, catalog, catalog)
