"""With any options, the rows are those of the Arrow function."""

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
from tests.spark.traffic import (
    collect_all,
    collect_rows,
    expected_rows,
    fragment_table,
    random_fragments,
    session_keys_for,
    sorted_like_spark,
)

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
LARGE = "spark.sql.execution.arrow.useLargeVarTypes"

OPTIONS = [
    {"strategy": strategy, "shard_by": shard_by, "in_order": in_order}
    for strategy, shard_by, in_order in product(("hash", "sort"), ("conversation", "message"), (True, False))
]
INPUTS = [
    {"keys": keys, "text_ids": text_ids, "batch_rows": batch_rows, "large": large}
    for keys, text_ids, batch_rows, large in zip(
        ("none", "column", "mapping") * 3,
        (False, True) * 4,
        ("7", "10000") * 4,
        ("false", "false", "true", "true") * 2,
        strict=False,
    )
]


def name_of(plan_options: dict[str, Any]) -> str:
    return f"{plan_options['strategy']}-{plan_options['shard_by']}-{'in' if plan_options['in_order'] else 'any'}_order"


@pytest.mark.parametrize(
    ("plan_options", "input_form"), list(zip(OPTIONS, INPUTS, strict=True)), ids=map(name_of, OPTIONS)
)
def test_contradictions_and_damage_with_all_options(
    spark: SparkSession, configure: Configure, plan_options: dict[str, Any], input_form: dict[str, Any]
) -> None:
    """One input partition, so that it is known which rows come first: the first rows of each direction, or the first in sort order."""
    configure(BATCH, input_form["batch_rows"])
    configure(LARGE, input_form["large"])
    keys = input_form["keys"]
    fragments = random_fragments(1, count=40, theme="hostile", keys=keys, has_extra=True)
    fragments += random_fragments(2, count=40, theme="damaged", keys=keys, has_extra=True)
    options = {"session_keys": session_keys_for(fragments, keys)}
    table = fragment_table(fragments, keys=keys, has_extra=True, text_ids=input_form["text_ids"])
    arrived = sorted_like_spark(fragments) if plan_options["strategy"] == "sort" else fragments
    expected = expected_rows(
        fragment_table(arrived, keys=keys, has_extra=True), in_order=plan_options["in_order"], **options
    )
    assert all(len(rows) > 20 for rows in expected.values())
    done = ssbroker.spark.reassemble(
        frame_in_order(spark, table), **plan_options, max_fragments_per_message=None, **options
    )
    assert collect_all(done) == expected


@pytest.mark.rule("P11", "P13")
@pytest.mark.parametrize("plan_options", OPTIONS, ids=map(name_of, OPTIONS))
def test_any_order_and_partitioning(spark: SparkSession, configure: Configure, plan_options: dict[str, Any]) -> None:
    """Without contradictions, the order of rows does not matter: fragments are lost, repeated and shuffled."""
    configure(BATCH, "50")
    table = fragment_table(random_fragments(3, count=60, theme="honest"))
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=5), **plan_options)
    assert collect_all(done) == expected_rows(table, in_order=plan_options["in_order"])


@pytest.mark.rule("P11", "P12")
@pytest.mark.parametrize("strategy", ["hash", "sort"])
@pytest.mark.parametrize("in_order", [True, False])
def test_directions_are_ordered_within_one_partition(spark: SparkSession, strategy: Any, *, in_order: bool) -> None:
    """Messages are ordered by number even if gaps do not matter."""
    table = fragment_table(random_fragments(4, count=60, theme="honest"))
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=3), strategy=strategy, in_order=in_order)
    numbers: dict[tuple[bytes, bool, int], list[int]] = {}
    for row in done.messages.selectExpr("*", "spark_partition_id() as at").collect():
        key = (bytes(row["conversation_id"]), row["is_initiator"], row["at"])
        numbers.setdefault(key, []).append(row["message_sequence_number"])
    assert len({key[:2] for key in numbers}) == len(numbers) > 60
    assert all(found == sorted(found) for found in numbers.values())
    assert all(found == list(range(len(found))) for found in numbers.values()) is in_order


def test_sequence_numbers_beyond_the_sort_key_are_supported(spark: SparkSession) -> None:
    """From 2**32 on, the rows of a direction are not sorted by number; numbers below 0 are out of range."""
    fragments = [part for number in (2**32 - 2, 2**32 + 5, 2**62) for part in parts(b"abcdef", number)]
    fragments += [replace(fragments[0], sequence=-1), replace(fragments[0], sequence=2**63 - 1)]
    table = fragment_table(fragments)
    for strategy, in_order in product(("hash", "sort"), (True, False)):
        plan_options: dict[str, Any] = {"strategy": strategy, "in_order": in_order}
        assert collect_all(ssbroker.spark.reassemble(frame(spark, table), **plan_options)) == expected_rows(
            table, in_order=in_order
        )


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("plan_options", [OPTIONS[0], OPTIONS[6]], ids=map(name_of, [OPTIONS[0], OPTIONS[6]]))
def test_empty_input_and_empty_partitions(
    spark: SparkSession, configure: Configure, plan_options: dict[str, Any], rows: int
) -> None:
    configure("spark.sql.adaptive.coalescePartitions.enabled", "false")
    table = fragment_table(random_fragments(5, count=1, theme="honest")).slice(0, rows)
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=4), **plan_options)
    assert collect_all(done) == expected_rows(table)


def hot_conversation(*, messages: int) -> list[Fragment]:
    """One conversation that is larger than all others together and misses a fragment near the end."""
    fragments = random_fragments(6, count=5, theme="honest")
    for sequence in range(messages):
        whole = parts(b"%d says the hot one" % sequence, sequence, size=5)
        fragments += whole[1:] if sequence == messages - 9 else whole
    return fragments


@pytest.mark.rule("P11", "P14")
@pytest.mark.parametrize("strategy", ["hash", "sort"])
def test_a_hot_conversation_is_spread_over_partitions(spark: SparkSession, configure: Configure, strategy: Any) -> None:
    """Several tasks reassemble its messages, and none behind the gap is delivered."""
    configure("spark.sql.adaptive.coalescePartitions.enabled", "false")
    configure("spark.sql.shuffle.partitions", "4")
    table = fragment_table(hot_conversation(messages=400))
    given = frame(spark, table, partitions=3)
    done = ssbroker.spark.reassemble(given, strategy=strategy, shard_by="message")
    assert collect_all(done) == expected_rows(table)
    unordered = ssbroker.spark.reassemble(given, strategy=strategy, shard_by="message", in_order=False).messages
    hot_messages = unordered.where(f"conversation_id = x'{A.hex}'")
    partitions = hot_messages.selectExpr("spark_partition_id() as at").distinct()
    assert partitions.count() == 4


@pytest.mark.parametrize(("threshold", "is_broadcast"), [("10485760b", True), ("0", True), ("-1", False)])
def test_broadcasts_can_be_disabled(
    spark: SparkSession, configure: Configure, threshold: str, *, is_broadcast: bool
) -> None:
    """If millions of directions have a gap, they do not fit in the driver; a hint alone would still make Spark broadcast them."""
    configure("spark.sql.autoBroadcastJoinThreshold", threshold)
    table = fragment_table(hot_conversation(messages=40))
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=3), shard_by="message")
    plan = done.messages._jdf.queryExecution().executedPlan().toString()
    assert ("Broadcast" in plan) == is_broadcast
    assert collect_all(done) == expected_rows(table)


def test_persisted_rows_are_computed_once(spark: SparkSession, tmp_path: object) -> None:
    """The input files are removed before the second read."""
    table = fragment_table(random_fragments(7, count=10, theme="honest"))
    frame(spark, table).write.parquet(f"{tmp_path}/fragments")
    done = ssbroker.spark.reassemble(spark.read.parquet(f"{tmp_path}/fragments")).persist()
    expected = expected_rows(table)
    assert collect_rows(done.messages) == expected["messages"]
    shutil.rmtree(f"{tmp_path}/fragments")
    assert collect_rows(done.rejected) == expected["rejected"]
    assert collect_rows(done.incomplete) == expected["incomplete"]
    done.unpersist()
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
        done.messages.collect()


def test_partitions_of_persisted_rows_are_coalesced(spark: SparkSession, configure: Configure) -> None:
    """Otherwise Spark runs a task for each shuffle partition, even if it is empty, at each read."""
    configure("spark.sql.shuffle.partitions", "40")
    setting = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
    before = spark.conf.get(setting)
    done = ssbroker.spark.reassemble(
        frame(spark, fragment_table(random_fragments(8, count=20, theme="honest")))
    ).persist()
    assert spark.conf.get(setting) == before
    assert done.messages.selectExpr("spark_partition_id() as at").distinct().count() == 1
    done.unpersist()
