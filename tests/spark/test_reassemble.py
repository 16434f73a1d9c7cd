"""Whatever the options: the rows are those of the Arrow function (P11 to P14, P18, P21, P23; M1 to M14, M22)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from tests.oracle.traffic import Fragment
from tests.rules.fragments import A, parts
from tests.spark.frames import Configure, frame, frame_in_order
from tests.spark.traffic import as_sorted, came, keys_of, rows_of, table_of, worlds, would_come

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"

WAYS = [
    {"strategy": strategy, "shard_by": shard_by, "in_order": in_order}
    for strategy, shard_by, in_order in product(("hash", "sort"), ("conversation", "message"), (True, False))
]
FORMS = [
    {"keys": keys, "text_ids": text_ids, "batch_rows": batch_rows, "large": large}
    for keys, text_ids, batch_rows, large in zip(
        ("none", "column", "mapping") * 3,
        (False, True) * 4,
        ("7", "10000") * 4,
        ("false", "false", "true", "true") * 2,
        strict=False,
    )
]


def name_of(way: dict[str, Any]) -> str:
    return f"{way['strategy']}-{way['shard_by']}-{'in' if way['in_order'] else 'any'}_order"


@pytest.mark.parametrize(("way", "form"), list(zip(WAYS, FORMS, strict=True)), ids=map(name_of, WAYS))
def test_contradictions_and_damage_by_every_way(
    spark: SparkSession, configure: Configure, way: dict[str, Any], form: dict[str, Any]
) -> None:
    """One partition of input, so that what comes first is known: of each direction the first rows, or the first by the sort."""
    configure(BATCH, form["batch_rows"])
    configure(LARGE, form["large"])
    keys = form["keys"]
    fragments = worlds(1, count=40, theme="hostile", keys=keys, has_extra=True)
    fragments += worlds(2, count=40, theme="damaged", keys=keys, has_extra=True)
    options = {"session_keys": keys_of(fragments, keys)}
    table = table_of(fragments, keys=keys, has_extra=True, text_ids=form["text_ids"])
    arrived = as_sorted(fragments) if way["strategy"] == "sort" else fragments
    expected = would_come(table_of(arrived, keys=keys, has_extra=True), in_order=way["in_order"], **options)
    assert all(len(rows) > 20 for rows in expected.values())
    done = ssbroker.spark.reassemble(frame_in_order(spark, table), **way, max_fragments_per_message=None, **options)
    assert came(done) == expected


@pytest.mark.rule("P11", "P13")
@pytest.mark.parametrize("way", WAYS, ids=map(name_of, WAYS))
def test_any_order_and_any_partitions(spark: SparkSession, configure: Configure, way: dict[str, Any]) -> None:
    """Where nothing contradicts, the order of the rows does not matter (P11, P13): fragments lost, repeated, in any order."""
    configure(BATCH, "50")
    table = table_of(worlds(3, count=60, theme="honest"))
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=5), **way)
    assert came(done) == would_come(table, in_order=way["in_order"])


@pytest.mark.rule("P11", "P12")
@pytest.mark.parametrize("strategy", ["hash", "sort"])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_direction_comes_out_by_number_in_one_partition(
    spark: SparkSession, strategy: Any, *, in_order: bool
) -> None:
    """By number also where gaps do not matter."""
    table = table_of(worlds(4, count=60, theme="honest"))
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=3), strategy=strategy, in_order=in_order)
    numbers: dict[tuple[bytes, bool, int], list[int]] = {}
    for row in done.messages.selectExpr("*", "spark_partition_id() as at").collect():
        key = (bytes(row["conversation_id"]), row["is_initiator"], row["at"])
        numbers.setdefault(key, []).append(row["message_sequence_number"])
    assert len({key[:2] for key in numbers}) == len(numbers) > 60
    assert all(found == sorted(found) for found in numbers.values())
    assert all(found == list(range(len(found))) for found in numbers.values()) is in_order


def test_numbers_that_do_not_fit_the_place_are_put_together_too(spark: SparkSession) -> None:
    """From 2**32 on, rows of a direction stand in any order; below 0 they are out of range."""
    fragments = [part for number in (2**32 - 2, 2**32 + 5, 2**62) for part in parts(b"abcdef", number)]
    fragments += [replace(fragments[0], sequence=-1), replace(fragments[0], sequence=2**63 - 1)]
    table = table_of(fragments)
    for strategy, in_order in product(("hash", "sort"), (True, False)):
        way: dict[str, Any] = {"strategy": strategy, "in_order": in_order}
        assert came(ssbroker.spark.reassemble(frame(spark, table), **way)) == would_come(table, in_order=in_order)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("way", [WAYS[0], WAYS[6]], ids=map(name_of, [WAYS[0], WAYS[6]]))
def test_empty_input_and_empty_partitions(
    spark: SparkSession, configure: Configure, way: dict[str, Any], rows: int
) -> None:
    configure("spark.sql.adaptive.coalescePartitions.enabled", "false")
    table = table_of(worlds(5, count=1, theme="honest")).slice(0, rows)
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=4), **way)
    assert came(done) == would_come(table)


def hot(*, messages: int) -> list[Fragment]:
    """One conversation that is larger than all others together, and has lost a fragment far behind."""
    fragments = worlds(6, count=5, theme="honest")
    for sequence in range(messages):
        whole = parts(b"%d says the hot one" % sequence, sequence, size=5)
        fragments += whole[1:] if sequence == messages - 9 else whole
    return fragments


@pytest.mark.rule("P11", "P14")
@pytest.mark.parametrize("strategy", ["hash", "sort"])
def test_a_hot_conversation_is_spread_over_partitions(spark: SparkSession, configure: Configure, strategy: Any) -> None:
    """Its messages are put together in several tasks, and nothing behind the gap is delivered."""
    configure("spark.sql.adaptive.coalescePartitions.enabled", "false")
    configure("spark.sql.shuffle.partitions", "4")
    table = table_of(hot(messages=400))
    given = frame(spark, table, partitions=3)
    done = ssbroker.spark.reassemble(given, strategy=strategy, shard_by="message")
    assert came(done) == would_come(table)
    spread = ssbroker.spark.reassemble(given, strategy=strategy, shard_by="message", in_order=False).messages
    its_own = spread.where(f"conversation_id = x'{A.hex}'")
    partitions = its_own.selectExpr("spark_partition_id() as at").distinct()
    assert partitions.count() == 4


@pytest.mark.parametrize(("threshold", "is_broadcast"), [("10485760b", True), ("0", True), ("-1", False)])
def test_who_switches_broadcasts_off_gets_none(
    spark: SparkSession, configure: Configure, threshold: str, *, is_broadcast: bool
) -> None:
    """Where millions of directions have a gap, no driver has room for them; a hint made Spark broadcast them all the same."""
    configure("spark.sql.autoBroadcastJoinThreshold", threshold)
    table = table_of(hot(messages=40))
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=3), shard_by="message")
    plan = done.messages._jdf.queryExecution().executedPlan().toString()
    assert ("Broadcast" in plan) == is_broadcast
    assert came(done) == would_come(table)


def test_nothing_is_computed_twice_once_it_is_persisted(spark: SparkSession, tmp_path: object) -> None:
    """The files are gone before the second reading."""
    table = table_of(worlds(7, count=10, theme="honest"))
    frame(spark, table).write.parquet(f"{tmp_path}/fragments")
    done = ssbroker.spark.reassemble(spark.read.parquet(f"{tmp_path}/fragments")).persist()
    expected = would_come(table)
    assert rows_of(done.messages) == expected["messages"]
    shutil.rmtree(f"{tmp_path}/fragments")
    assert rows_of(done.rejected) == expected["rejected"]
    assert rows_of(done.incomplete) == expected["incomplete"]
    done.unpersist()
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
        done.messages.collect()


def test_what_is_persisted_is_not_in_more_pieces_than_it_is_worth(spark: SparkSession, configure: Configure) -> None:
    """Spark would run a task for each of its shuffle partitions, however empty, at each reading."""
    configure("spark.sql.shuffle.partitions", "40")
    setting = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
    before = spark.conf.get(setting)
    done = ssbroker.spark.reassemble(frame(spark, table_of(worlds(8, count=20, theme="honest")))).persist()
    assert spark.conf.get(setting) == before
    assert done.messages.selectExpr("spark_partition_id() as at").distinct().count() == 1
    done.unpersist()
