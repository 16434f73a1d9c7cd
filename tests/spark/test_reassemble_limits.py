"""The memory of a task is bounded by its limits, whatever its partition contains."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import ssbroker.spark
from ssbroker.spark import arguments, reassembly_task
from ssbroker.spark.reassembly_output import INCOMPLETE, REJECTION
from tests.rules.fragments import A, B
from tests.spark.frames import Configure, frame, frame_in_order
from tests.spark.traffic import collect_all, expected_rows

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
BODY_BYTES = 100


def fragments(*, conversation: UUID = A, first: int = 0, messages: int, cut: int = 40) -> pa.Table:
    """Returns messages of one direction, three fragments each."""
    numbers = range(first, first + messages)
    bodies = [(b"%d " % number * BODY_BYTES)[:BODY_BYTES] for number in numbers]
    columns = {
        "conversation_id": pa.array([conversation.bytes] * messages),
        "is_initiator": [True] * messages,
        "message_sequence_number": list(numbers),
        "message_body": bodies,
    }
    return ssbroker.fragment(pa.table(columns), max_fragment_bytes=cut)


def reversed_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Returns the fragments in reverse order, so that everything is pending until the first one has arrived."""
    return frame_in_order(spark, table.take(list(range(table.num_rows))[::-1]))


def reasons(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(row[-1] for row in rows)


OPTIONS = [
    {"strategy": strategy, "shard_by": shard_by, "in_order": in_order}
    for strategy, shard_by, in_order in product(("hash", "sort"), ("conversation", "message"), (True, False))
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_directions_much_larger_than_the_limit_are_complete(
    spark: SparkSession, configure: Configure, options: dict[str, Any]
) -> None:
    """50 times the limit in reverse order: only one message at a time is pending."""
    configure(BATCH, "64")
    table = fragments(messages=1000)
    limit = 2000
    done = ssbroker.spark.reassemble(reversed_frame(spark, table), max_pending_bytes=limit, **options)
    assert table.nbytes > 50 * limit
    assert collect_all(done) == expected_rows(table, in_order=options["in_order"])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_incomplete_messages_of_other_conversations_do_not_count(
    spark: SparkSession, configure: Configure, options: dict[str, Any]
) -> None:
    """A sender of first fragments only, in any number of conversations, does not block others."""
    configure(BATCH, "10")
    first_fragments = [fragments(conversation=UUID(int=number), messages=1).slice(0, 1) for number in range(200)]
    table = pa.concat_tables([*first_fragments, fragments(conversation=B, messages=3)])
    done = ssbroker.spark.reassemble(frame(spark, table), max_pending_bytes=2000, **options)
    rows = collect_all(done)
    assert rows == expected_rows(table, in_order=options["in_order"])
    assert len(rows["incomplete"]) == 200


@pytest.mark.parametrize("strategy", ["hash", "sort"])
@pytest.mark.parametrize("shard_by", ["conversation", "message"])
def test_without_order_earlier_incomplete_messages_do_not_count(
    spark: SparkSession, configure: Configure, strategy: Any, shard_by: Any
) -> None:
    configure(BATCH, "10")
    table = fragments(messages=300)
    table = table.take([row for row in range(table.num_rows) if row % 5])
    done = ssbroker.spark.reassemble(
        frame(spark, table), strategy=strategy, shard_by=shard_by, in_order=False, max_pending_bytes=2000
    )
    rows = collect_all(done)
    assert rows == expected_rows(table, in_order=False)
    assert min(len(rows["messages"]), len(rows["incomplete"])) > 100


@pytest.mark.rule("P26")
@pytest.mark.parametrize("strategy", ["hash", "sort"])
def test_messages_behind_a_gap_are_limited_and_reported(
    spark: SparkSession, configure: Configure, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    """These messages could not be delivered; the job continues, and every fragment is accounted for."""
    configure(BATCH, "64")
    monkeypatch.setattr(arguments, "_PENDING_BYTES_MIN", 20_000)
    late, table = fragments(first=1, messages=300), fragments(conversation=B, messages=300)
    given = frame(spark, pa.concat_tables([late, table]))
    rows = collect_all(ssbroker.spark.reassemble(given, strategy=strategy, max_message_bytes=1000))
    assert rows["messages"] == expected_rows(table)["messages"]
    rejected_reasons = reasons(rows["rejected"])
    assert set(rejected_reasons) == {"limit_exceeded"}
    assert {row[7] for row in rows["incomplete"]} == {0}
    assert rejected_reasons["limit_exceeded"] + sum(row[4] for row in rows["incomplete"]) == late.num_rows


@pytest.mark.parametrize("strategy", ["hash", "sort"])
@pytest.mark.parametrize(
    ("option", "count"), [({"max_message_bytes": 99}, 1), ({"max_fragments_per_message": 2}, 3)], ids=["bytes", "count"]
)
def test_limits_of_a_single_message(spark: SparkSession, strategy: Any, option: dict[str, Any], count: int) -> None:
    """Only the fragment beyond the size is rejected, but all fragments of too many."""
    given = frame(spark, fragments(messages=1))
    done = ssbroker.spark.reassemble(given, strategy=strategy, **option)
    rows = collect_all(done)
    assert reasons(rows["rejected"]) == {"limit_exceeded": count}
    assert rows["messages"] == []


def test_high_sequence_numbers_are_accepted(spark: SparkSession) -> None:
    """After a shuffle, the first fragment of a direction can have any sequence number."""
    table = fragments(first=2**40, messages=2)
    rows = collect_all(ssbroker.spark.reassemble(frame(spark, table), in_order=False))
    assert [row[2] for row in rows["messages"]] == [2**40, 2**40 + 1]


def test_output_batches_are_small() -> None:
    """Even if one batch of fragments completes many messages at once; runs a worker's code without Spark."""
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
    task = reassembly_task.ReassembleTask(
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
    reversed_frame = table.take(list(range(count))[::-1]).append_column("place", pa.array([7] * count))
    batches = list(reassembly_task.reassemble_partition(task, iter(reversed_frame.combine_chunks().to_batches())))
    assert sum(batch.num_rows for batch in batches) == count
    assert all(batch.get_total_buffer_size() < 80 << 20 for batch in batches)


def test_groups_with_colliding_hashes_are_reassembled() -> None:
    """A sender who can choose ids can produce such a collision; the rows are then interleaved."""
    tables = [fragments(conversation=conversation, messages=5) for conversation in (A, B)]
    mixed = pa.concat_tables(tables).take([place + 15 * second for place in range(15) for second in (0, 1)])
    task = reassembly_task.ReassembleTask(
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
    output = pa.Table.from_batches(list(reassembly_task.reassemble_partition(task, iter(batches))))
    assert output["kind"].to_pylist() == [0] * 10


@pytest.mark.parametrize("in_order", [True, False])
def test_the_limit_does_not_depend_on_the_batches(*, in_order: bool) -> None:
    """Spark chooses the boundaries of batches, so a repeated job would have another result."""
    tables = [
        fragments(conversation=UUID(int=number), messages=1, cut=5).append_column(
            "place", pa.array([number << 32] * 20)
        )
        for number in range(1, 4)
    ]
    table = pa.concat_tables(tables).combine_chunks()
    task = reassembly_task.ReassembleTask(
        names=tuple(table.column_names[:-1]),
        extra=(),
        by_message=False,
        in_order=in_order,
        max_message_bytes=1000,
        max_fragments_per_message=None,
        max_pending_bytes=1500,
        session_keys=None,
        routing=None,
    )
    found = []
    for size in (30, 40, 60, 1000):
        batches = list(reassembly_task.reassemble_partition(task, iter(table.to_batches(max_chunksize=size))))
        found.append(sorted(pa.Table.from_batches(batches).to_pylist(), key=str))
    assert Counter(row["kind"] for row in found[0]).keys() == {REJECTION, INCOMPLETE}
    assert found == [found[0]] * 4
