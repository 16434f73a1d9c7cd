"""A catalog is shared with workers once, and each worker process compiles it once."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Catalog
from ssbroker.spark import routing_task, shared_values
from tests.spark.frames import decisions_of, expected_decisions, frame, world
from tests.worlds.universe import NOW


def compilations(spark: SparkSession) -> dict[int, int]:
    """Returns how many catalogs each worker process has compiled so far."""

    def count(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"pid": [os.getpid()], "count": [routing_task.cached_router.cache_info().misses]})

    rows = spark.range(0, 8, 1, 8).mapInArrow(count, "pid long, count long").collect()
    return {row["pid"]: row["count"] for row in rows}


def test_a_worker_compiles_a_catalog_once_for_all_jobs(spark: SparkSession) -> None:
    catalog, table = world(20, conversations=50)
    given = frame(spark, table, partitions=4)
    before = compilations(spark)
    for _ in range(3):
        assert decisions_of(ssbroker.spark.route(given, catalog, now=NOW, engine="arrow")) == expected_decisions(
            catalog, table
        )
    after = compilations(spark)
    more = {pid: count - before.get(pid, 0) for pid, count in after.items()}
    assert set(more.values()) <= {0, 1}
    assert 1 in more.values()


def test_equal_catalogs_are_shared_once(spark: SparkSession) -> None:
    catalog, _ = world(21, conversations=1)
    again, _ = world(21, conversations=1)
    assert shared_values.share_catalog(spark, catalog) is shared_values.share_catalog(spark, again)


def test_different_catalogs_are_not_confused(spark: SparkSession) -> None:
    for seed in (22, 23, 22):
        catalog, table = world(seed, conversations=50)
        assert decisions_of(
            ssbroker.spark.route(frame(spark, table), catalog, now=NOW, engine="arrow")
        ) == expected_decisions(catalog, table)


def test_options_are_not_confused(spark: SparkSession) -> None:
    catalog, table = world(24, conversations=200)
    given = frame(spark, table)
    assert expected_decisions(catalog, table, tie_break="first") != expected_decisions(catalog, table)
    for tie_break in ("first", "hash"):
        routed = ssbroker.spark.route(given, catalog, now=NOW, tie_break=tie_break, engine="arrow")
        assert decisions_of(routed) == expected_decisions(catalog, table, tie_break=tie_break)


def test_a_dataframe_keeps_its_catalog_after_newer_ones(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a program reloads its catalog repeatedly, only the latest catalogs are kept."""
    monkeypatch.setattr(shared_values, "_broadcasts", {})
    catalog, table = world(25, conversations=20)
    routed = ssbroker.spark.route(frame(spark, table), catalog, now=NOW, engine="arrow")
    for seed in range(30, 36):
        shared_values.share_catalog(spark, world(seed, conversations=1)[0])
    assert len(shared_values._broadcasts) == 4
    gc.collect()
    assert decisions_of(routed) == expected_decisions(catalog, table)


def test_a_shared_catalog_equals_the_original(spark: SparkSession) -> None:
    catalog, _ = world(26, conversations=1)
    shared = shared_values.share_catalog(spark, catalog)
    assert isinstance(shared.value(), Catalog)
    assert shared.value() == catalog
    assert shared.fingerprint == catalog.fingerprint


def test_references_unpickle_without_broadcasts(spark: SparkSession) -> None:
    """The driver of a stream unpickles the task; otherwise a query would fail before it starts."""
    catalog, _ = world(25, conversations=1)
    shared = shared_values.share_catalog(spark, catalog)
    found = pickle.loads(pickle.dumps(shared))
    assert found.fingerprint == shared.fingerprint
    assert found == pickle.loads(pickle.dumps(shared))


def test_streams_on_connect_send_values_inline() -> None:
    """A stream on Spark Connect cannot read artifacts. The repr does not contain the value."""
    connect: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    keys = {bytes(16): b"a key of sixteen"}
    shared = pickle.loads(pickle.dumps(shared_values.share_session_keys(connect, keys, in_stream=True)))
    assert shared.value() == keys
    assert "sixteen" not in repr(shared)
