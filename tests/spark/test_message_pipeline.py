"""`pipeline` reassembles like `reassemble` and routes like `Router.route`, in one pass."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, ByteType, IntegerType, StringType

import ssbroker.spark
from ssbroker import Catalog, OptionError, SchemaError
from ssbroker.schemas import CONVERSATIONS, DECISIONS, MESSAGES
from tests.spark.frames import Configure, decisions_of, expected_decisions, frame, world
from tests.spark.test_route import one_route
from tests.spark.traffic import collect_all, collect_rows
from tests.worlds.universe import NOW


def catalog_messages_and_fragments(seed: int, *, messages: int) -> tuple[Catalog, pa.Table, pa.Table]:
    """Returns a catalog, messages for it, three in each conversation, and their fragments: shuffled, with duplicates."""
    catalog, table = world(seed, conversations=messages)
    table = table.set_column(0, "conversation_id", pa.array([UUID(int=row // 3).bytes for row in range(messages)]))
    is_initiator = pa.array([row // 3 % 4 > 0 for row in range(messages)])
    table = table.set_column(table.column_names.index("is_initiator"), "is_initiator", is_initiator)
    table = table.append_column("message_sequence_number", pa.array([row % 3 for row in range(messages)]))
    fragments = ssbroker.fragment(table, max_fragment_bytes=20)
    order = [*range(fragments.num_rows), *range(0, fragments.num_rows, 2)]
    Random(seed).shuffle(order)
    return catalog, table, fragments.take(order)


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, {"tie_break": "hash"}),
        (1, {"tie_break": "first", "strategy": "sort"}),
        (2, {"tie_break": "hash", "shard_by": "message"}),
        (3, {"tie_break": "first", "shard_by": "message", "in_order": False}),
    ],
)
def test_each_message_is_emitted_once_with_its_decision(
    spark: SparkSession, configure: Configure, seed: int, options: dict[str, Any]
) -> None:
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    catalog, messages, fragments = catalog_messages_and_fragments(seed, messages=150)
    done = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW, **options)
    done.persist()
    conversations = messages.select(CONVERSATIONS.names)
    assert decisions_of(done.messages) == expected_decisions(catalog, conversations, tie_break=options["tie_break"])
    assert {row["reason"] for row in done.rejected.collect()} == {"duplicate"}
    assert done.incomplete.count() == 0
    reassembled = ssbroker.spark.reassemble(frame(spark, fragments, partitions=3))
    assert collect_rows(done.messages.select(*reassembled.messages.columns)) == collect_rows(reassembled.messages)
    done.unpersist()


@pytest.mark.rule("P14", "P21", "P23")
def test_lost_and_damaged_fragments_are_reported_and_the_rest_is_routed(spark: SparkSession) -> None:
    catalog, _, fragments = catalog_messages_and_fragments(9, messages=60)
    fragments = fragments.slice(9)
    bodies = fragments["message_body"].to_pylist()
    bodies[0] = b"damaged"
    damaged = fragments.set_column(fragments.column_names.index("message_body"), "message_body", pa.array(bodies))
    done = ssbroker.spark.pipeline(frame(spark, damaged), catalog, now=NOW)
    given = frame(spark, damaged).select(*ssbroker.schemas.FRAGMENTS.names)
    reassembled = collect_all(ssbroker.spark.reassemble(given))
    assert "corrupt_fragment" in {row[-1] for row in reassembled["rejected"]}
    assert reassembled["incomplete"]
    assert collect_rows(done.rejected) == reassembled["rejected"]
    assert collect_rows(done.incomplete) == reassembled["incomplete"]
    assert collect_rows(done.messages.select(*MESSAGES.names)) == reassembled["messages"]


def test_decision_columns_come_last_in_contract_types(spark: SparkSession) -> None:
    catalog, messages, fragments = catalog_messages_and_fragments(1, messages=3)
    done = ssbroker.spark.pipeline(frame(spark, fragments), catalog, now=NOW)
    extra = [name for name in messages.column_names if name not in MESSAGES.names]
    assert done.messages.columns == [*MESSAGES.names, *extra, *DECISIONS.names]
    types = {field.name: field.dataType for field in done.messages.schema}
    numbers = {"match_step": ByteType(), "route_id": IntegerType(), "broker_instance": BinaryType()}
    assert {name: types[name] for name in DECISIONS.names} == {
        name: numbers.get(name, StringType()) for name in DECISIONS.names
    }


def test_bodies_are_transferred_to_python_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    catalog, _, fragments = catalog_messages_and_fragments(1, messages=3)
    capsys.readouterr()
    ssbroker.spark.pipeline(frame(spark, fragments), catalog).messages.where("outcome = 'REMOTE'").explain()
    plan = capsys.readouterr().out
    assert plan.count("MapInArrow") == 1
    assert "EvalPython" not in plan


def simple(spark: SparkSession, **columns: str) -> Any:
    own = {"conversation_id": f"'{UUID(int=1)}'", "is_initiator": "true", "message_sequence_number": "0"}
    own |= {"fragment_number": "0", "fragment_count": "1", "message_body": "x'00'", **columns}
    return spark.sql("select " + ", ".join(f"{value} as {name}" for name, value in own.items()))


def test_now_is_the_time_of_the_call(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry on another day gives the same result."""
    end = datetime(2026, 11, 20, 12, tzinfo=UTC)
    times = iter([end - timedelta(seconds=1), end])
    monkeypatch.setattr(sys.modules["ssbroker.spark.message_pipeline"], "utc_datetime", lambda now: now or next(times))
    given = simple(spark, to_service_name="'//s'")
    before, after = (ssbroker.spark.pipeline(given, one_route(lifetime=end)) for _ in range(2))
    assert [row["outcome"] for done in (before, after) for row in done.messages.collect()] == ["REMOTE", "DELAYED"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "to_service_name"),
        ({"to_service_name": "1"}, "to_service_name: expected string, got int"),
        ({"to_service_name": "'//s'", "database": "date'2026-11-21'"}, "database: expected string, got date"),
        (
            {"to_service_name": "'//s'", "Outcome": "1"},
            "Outcome: routing adds a column with this name; rename or drop the existing column",
        ),
        ({"to_service_name": "'//s'", "fragment_count": "'1'"}, "fragment_count"),
    ],
)
def test_columns_are_checked_at_the_call(spark: SparkSession, columns: dict[str, str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        ssbroker.spark.pipeline(simple(spark, **columns), one_route())


def test_duplicate_conversation_columns_are_refused(spark: SparkSession) -> None:
    given = simple(spark, to_service_name="'//s'").selectExpr("*", "'//t' as to_service_name")
    with pytest.raises(SchemaError, match="to_service_name: expected one column with this name, got 2"):
        ssbroker.spark.pipeline(given, one_route())


@pytest.mark.parametrize("option", [{"tie_break": "round_robin"}, {"tie_break": "last"}, {"strategy": "merge"}])
def test_invalid_options_are_refused(spark: SparkSession, option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        ssbroker.spark.pipeline(simple(spark, to_service_name="'//s'"), one_route(), **option)


def test_values_that_cannot_be_routed_are_reported(spark: SparkSession) -> None:
    given = simple(spark, to_service_name="'//s'", database="'Nowhere'")
    with pytest.raises(PythonException, match="UnknownDatabaseError: database, row 0: 'Nowhere'"):
        ssbroker.spark.pipeline(given, one_route()).messages.collect()
