"""A task has what memory its limits give it, whatever its partition (P26, M15 to M18)."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import ssbroker.spark
from ssbroker.spark import assembling, reassembly
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


@pytest.mark.parametrize("shard_by", ["conversation", "message"])
def test_sorted_a_group_that_is_larger_than_the_limit_comes_whole(
    spark: SparkSession, configure: Configure, shard_by: Any
) -> None:
    """50 times the limit, in any order: only one message at a time is pending."""
    configure(BATCH, "64")
    table = fragments(messages=1000)
    limit = 2000
    done = ssbroker.spark.reassemble(
        frame(spark, table, partitions=3), strategy="sort", shard_by=shard_by, max_pending_bytes=limit
    )
    assert table.nbytes > 50 * limit
    assert came(done) == would_come(table)


def test_sorted_what_is_incomplete_elsewhere_takes_no_room(spark: SparkSession, configure: Configure) -> None:
    """M20: who sends only beginnings, in however many conversations, does not keep out a message that comes after them."""
    configure(BATCH, "10")
    beginnings = [fragments(conversation=UUID(int=number), messages=1).slice(0, 1) for number in range(200)]
    table = pa.concat_tables([*beginnings, fragments(conversation=B, messages=3)])
    done = ssbroker.spark.reassemble(frame(spark, table), strategy="sort", max_pending_bytes=8000)
    rows = came(done)
    assert rows == would_come(table)
    assert len(rows["incomplete"]) == 200


@pytest.mark.parametrize("in_order", [True, False])
def test_what_there_is_no_room_for_is_rejected_and_told(spark: SparkSession, *, in_order: bool) -> None:
    """P26, M10, M18: nothing that the limit leaves out is lost from sight."""
    table = fragments(messages=300)
    rows = came(ssbroker.spark.reassemble(backwards(spark, table), in_order=in_order, max_pending_bytes=20_000))
    left_out = reasons(rows["rejected"])
    assert set(left_out) == {"limit_exceeded"}
    waiting = sum(row[4] for row in rows["incomplete"])
    assert left_out["limit_exceeded"] + waiting + 3 * len(rows["messages"]) == table.num_rows
    assert min(left_out["limit_exceeded"], len(rows["incomplete"])) > 0


def test_without_a_limit_a_direction_that_needs_too_much_says_so(
    spark: SparkSession, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than leave out what nobody said may be left out; and what it says helps."""
    configure(BATCH, "64")
    monkeypatch.setattr(reassembly, "_ROOM", 10_000)
    table = fragments(messages=300)
    given = backwards(spark, table)
    with pytest.raises(PythonException, match=r"OutOfRoomError: more than 10000 bytes.*'sort'.*'message'"):
        ssbroker.spark.reassemble(given, max_message_bytes=1000).messages.collect()
    ways: list[Any] = [{"strategy": "sort"}, {"shard_by": "message"}, {"max_pending_bytes": 1 << 20}]
    for way in ways:
        rows = came(ssbroker.spark.reassemble(given, max_message_bytes=1000, **way))
        assert rows == would_come(table), way


@pytest.mark.parametrize("shard_by", ["conversation", "message"])
def test_however_many_conversations_there_are_each_has_its_room(
    spark: SparkSession, configure: Configure, monkeypatch: pytest.MonkeyPatch, shard_by: Any
) -> None:
    """M20: a partition may be larger than memory, as long as no direction is, or no message."""
    configure(BATCH, "10")
    monkeypatch.setattr(reassembly, "_ROOM", 10_000)
    parts = [fragments(conversation=UUID(int=number), messages=3) for number in range(100)]
    table = pa.concat_tables([*parts, *(part.slice(0, 1) for part in parts)])
    done = ssbroker.spark.reassemble(backwards(spark, table), shard_by=shard_by, max_message_bytes=1000)
    assert came(done) == would_come(table)


def test_sorted_what_waits_behind_a_gap_is_limited_too(
    spark: SparkSession, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be delivered; what there is no room for is rejected, and the job goes on."""
    configure(BATCH, "64")
    monkeypatch.setattr(reassembly, "_ROOM", 20_000)
    table = pa.concat_tables([fragments(first=1, messages=300), fragments(conversation=B, messages=300)])
    done = ssbroker.spark.reassemble(frame(spark, table), strategy="sort", max_message_bytes=1000)
    rows = came(done)
    assert [row[2] for row in sorted(rows["messages"], key=lambda row: int(row[2]))] == list(range(300))
    assert {row[0] for row in rows["messages"]} == {B.bytes}
    assert set(reasons(rows["rejected"])) == {"limit_exceeded"}
    assert {row[7] for row in rows["incomplete"]} == {0}


@pytest.mark.parametrize("strategy", ["hash", "sort"])
@pytest.mark.parametrize(
    ("option", "count"), [({"max_message_bytes": 99}, 1), ({"max_fragments_per_message": 2}, 3)], ids=["bytes", "count"]
)
def test_the_limits_of_one_message(spark: SparkSession, strategy: Any, option: dict[str, Any], count: int) -> None:
    """M15, M16: the fragment that is too much, or each of too many."""
    given = frame(spark, fragments(messages=1))
    done = ssbroker.spark.reassemble(given, strategy=strategy, **option)
    rows = came(done)
    assert reasons(rows["rejected"]) == {"limit_exceeded": count}
    assert rows["messages"] == []


def test_far_numbers_are_no_reason_to_refuse(spark: SparkSession) -> None:
    """M17: after a shuffle the first fragment of a direction says nothing of how far the others have come."""
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
    task = assembling.Task(
        names=tuple(table.column_names),
        further=(),
        by_message=False,
        in_order=True,
        max_message_bytes=size,
        max_fragments_per_message=None,
        max_pending_bytes=None,
        room=None,
        session_keys=None,
        routing=None,
    )
    backwards = table.take(list(range(count))[::-1]).append_column("group", pa.array([7] * count))
    batches = list(assembling.assembled(task, iter(backwards.combine_chunks().to_batches())))
    assert sum(batch.num_rows for batch in batches) == count
    assert all(batch.get_total_buffer_size() < 80 << 20 for batch in batches)


def test_groups_that_have_the_same_hash_by_chance_are_put_together_as_well() -> None:
    """Whoever can choose ids can make two that do; their rows stand mixed."""
    tables = [fragments(conversation=conversation, messages=5) for conversation in (A, B)]
    mixed = pa.concat_tables(tables).take([place + 15 * second for place in range(15) for second in (0, 1)])
    task = assembling.Task(
        names=tuple(mixed.column_names),
        further=(),
        by_message=False,
        in_order=True,
        max_message_bytes=1000,
        max_fragments_per_message=None,
        max_pending_bytes=None,
        room=None,
        session_keys=None,
        routing=None,
    )
    batches = mixed.append_column("group", pa.array([7] * 30)).combine_chunks().to_batches(max_chunksize=4)
    told = pa.Table.from_batches(list(assembling.assembled(task, iter(batches))))
    assert told["kind"].to_pylist() == [0] * 10
