"""A task has what memory its limits give it, whatever its partition (P26, M15 to M18)."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import ssbroker.spark
from ssbroker.spark import broadcast, reassembly
from tests.rules.fragments import A, B
from tests.spark.frames import Configure, frame, frame_in_order
from tests.spark.traffic import came, would_come

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
BODY_BYTES = 100


def fragments(*, conversation: UUID = A, first: int = 0, messages: int, cut: int = 40) -> pa.Table:
    """Messages of one direction, three fragments each."""
    numbers = range(first, first + messages)
    bodies = [(b"%d " % number * BODY_BYTES)[:BODY_BYTES] for number in numbers]
    columns = {
        "conversation_id": pa.array([conversation.bytes] * messages),
        "is_initiator": [True] * messages,
        "message_sequence_number": list(numbers),
        "message_body": bodies,
    }
    return ssbroker.fragment(pa.table(columns), max_fragment_bytes=cut)


def backwards(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The last first, so that all is pending until the first has come."""
    return frame_in_order(spark, table.take(list(range(table.num_rows))[::-1]))


def reasons(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(row[-1] for row in rows)


WAYS = [
    {"strategy": strategy, "shard_by": shard_by, "in_order": in_order}
    for strategy, shard_by, in_order in product(("hash", "sort"), ("conversation", "message"), (True, False))
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_direction_that_is_much_larger_than_the_limit_comes_whole(
    spark: SparkSession, configure: Configure, way: dict[str, Any]
) -> None:
    """50 times the limit, the last first: only one message at a time is pending."""
    configure(BATCH, "64")
    table = fragments(messages=1000)
    limit = 2000
    done = ssbroker.spark.reassemble(backwards(spark, table), max_pending_bytes=limit, **way)
    assert table.nbytes > 50 * limit
    assert came(done) == would_come(table, in_order=way["in_order"])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_incomplete_elsewhere_takes_no_room(
    spark: SparkSession, configure: Configure, way: dict[str, Any]
) -> None:
    """Who sends only beginnings, in however many conversations, keeps out nobody."""
    configure(BATCH, "10")
    beginnings = [fragments(conversation=UUID(int=number), messages=1).slice(0, 1) for number in range(200)]
    table = pa.concat_tables([*beginnings, fragments(conversation=B, messages=3)])
    done = ssbroker.spark.reassemble(frame(spark, table), max_pending_bytes=2000, **way)
    rows = came(done)
    assert rows == would_come(table, in_order=way["in_order"])
    assert len(rows["incomplete"]) == 200


@pytest.mark.parametrize("strategy", ["hash", "sort"])
@pytest.mark.parametrize("shard_by", ["conversation", "message"])
def test_where_order_does_not_matter_what_is_incomplete_before_a_message_takes_no_room(
    spark: SparkSession, configure: Configure, strategy: Any, shard_by: Any
) -> None:
    """M13, M20."""
    configure(BATCH, "10")
    table = fragments(messages=300)
    table = table.take([row for row in range(table.num_rows) if row % 5])
    done = ssbroker.spark.reassemble(
        frame(spark, table), strategy=strategy, shard_by=shard_by, in_order=False, max_pending_bytes=2000
    )
    rows = came(done)
    assert rows == would_come(table, in_order=False)
    assert min(len(rows["messages"]), len(rows["incomplete"])) > 100


@pytest.mark.rule("P26")
@pytest.mark.parametrize("strategy", ["hash", "sort"])
def test_what_waits_behind_a_gap_has_a_limit_and_is_told_when_it_is_refused(
    spark: SparkSession, configure: Configure, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    """It could not be delivered; the job goes on, and every fragment is accounted for."""
    configure(BATCH, "64")
    monkeypatch.setattr(broadcast, "_PENDING_BYTES_MIN", 20_000)
    late, table = fragments(first=1, messages=300), fragments(conversation=B, messages=300)
    given = frame(spark, pa.concat_tables([late, table]))
    rows = came(ssbroker.spark.reassemble(given, strategy=strategy, max_message_bytes=1000))
    assert rows["messages"] == would_come(table)["messages"]
    left_out = reasons(rows["rejected"])
    assert set(left_out) == {"limit_exceeded"}
    assert {row[7] for row in rows["incomplete"]} == {0}
    assert left_out["limit_exceeded"] + sum(row[4] for row in rows["incomplete"]) == late.num_rows


@pytest.mark.parametrize("strategy", ["hash", "sort"])
@pytest.mark.parametrize(
    ("option", "count"), [({"max_message_bytes": 99}, 1), ({"max_fragments_per_message": 2}, 3)], ids=["bytes", "count"]
)
def test_the_limits_of_one_message(spark: SparkSession, strategy: Any, option: dict[str, Any], count: int) -> None:
    """The fragment that is too much, or each of too many."""
    given = frame(spark, fragments(messages=1))
    done = ssbroker.spark.reassemble(given, strategy=strategy, **option)
    rows = came(done)
    assert reasons(rows["rejected"]) == {"limit_exceeded": count}
    assert rows["messages"] == []


def test_far_numbers_are_no_reason_to_refuse(spark: SparkSession) -> None:
    """After a shuffle the first fragment of a direction says nothing of how far the others have come."""
    table = fragments(first=2**40, messages=2)
    rows = came(ssbroker.spark.reassemble(frame(spark, table), in_order=False))
    assert [row[2] for row in rows["messages"]] == [2**40, 2**40 + 1]


def test_batches_to_the_jvm_are_small() -> None:
    """Also where one batch of fragments releases many messages at once; what a worker does, without Spark."""
    count, size = 100, 1 << 20
    table = ssbroker.fragment(
        pa.table(
            {
                "conversation_id": pa.array([A.bytes] * count),
                "is_initiator": [True] * count,
                "message_sequence_number": list(range(count)),
                "message_body": [bytes([number]) * size for number in range(count)],
            }
        ),
        max_fragment_bytes=size,
    )
    task = reassembly.ReassembleTask(
        names=tuple(table.column_names),
        extra=(),
        by_message=False,
        in_order=True,
        max_message_bytes=size,
        max_fragments_per_message=None,
        max_pending_bytes=1 << 40,
        session_keys=None,
        routing=None,
    )
    backwards = table.take(list(range(count))[::-1]).append_column("place", pa.array([7] * count))
    batches = list(reassembly.reassemble_partition(task, iter(backwards.combine_chunks().to_batches())))
    assert sum(batch.num_rows for batch in batches) == count
    assert all(batch.get_total_buffer_size() < 80 << 20 for batch in batches)


def test_groups_that_have_the_same_hash_by_chance_are_put_together_as_well() -> None:
    """Whoever can choose ids can make two that do; their rows stand mixed."""
    tables = [fragments(conversation=conversation, messages=5) for conversation in (A, B)]
    mixed = pa.concat_tables(tables).take([place + 15 * second for place in range(15) for second in (0, 1)])
    task = reassembly.ReassembleTask(
        names=tuple(mixed.column_names),
        extra=(),
        by_message=False,
        in_order=True,
        max_message_bytes=1000,
        max_fragments_per_message=None,
        max_pending_bytes=1 << 40,
        session_keys=None,
        routing=None,
    )
    batches = mixed.append_column("place", pa.array([7] * 30)).combine_chunks().to_batches(max_chunksize=4)
    told = pa.Table.from_batches(list(reassembly.reassemble_partition(task, iter(batches))))
    assert told["kind"].to_pylist() == [0] * 10
