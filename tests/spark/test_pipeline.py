"""Put together as by `reassemble`, routed as by `Router.route`, in one go."""

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
from tests.spark.frames import Configure, decided, expected, frame, world
from tests.spark.test_route import lone_route
from tests.spark.traffic import came, rows_of
from tests.worlds.universe import NOW


def told(seed: int, *, messages: int) -> tuple[Catalog, pa.Table, pa.Table]:
    """A catalog, messages of it, three in each conversation, and their fragments: shuffled, two of each message's twice, one damaged."""
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
def test_every_message_comes_once_with_the_decision_of_its_conversation(
    spark: SparkSession, configure: Configure, seed: int, options: dict[str, Any]
) -> None:
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    catalog, messages, fragments = told(seed, messages=150)
    done = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW, **options)
    done.persist()
    conversations = messages.select(CONVERSATIONS.names)
    assert decided(done.messages) == expected(catalog, conversations, tie_break=options["tie_break"])
    assert {row["reason"] for row in done.rejected.collect()} == {"duplicate"}
    assert done.incomplete.count() == 0
    plain = ssbroker.spark.reassemble(frame(spark, fragments, partitions=3))
    assert rows_of(done.messages.select(*plain.messages.columns)) == rows_of(plain.messages)
    done.unpersist()


@pytest.mark.rule("P14", "P21", "P23")
def test_what_is_lost_or_damaged_is_told_and_the_rest_is_routed(spark: SparkSession) -> None:
    """P14, P21, P23."""
    catalog, _, fragments = told(9, messages=60)
    fragments = fragments.slice(9)
    bodies = fragments["message_body"].to_pylist()
    bodies[0] = b"damaged"
    damaged = fragments.set_column(fragments.column_names.index("message_body"), "message_body", pa.array(bodies))
    done = ssbroker.spark.pipeline(frame(spark, damaged), catalog, now=NOW)
    given = frame(spark, damaged).select(*ssbroker.schemas.FRAGMENTS.names)
    plain = came(ssbroker.spark.reassemble(given))
    assert "corrupt_fragment" in {row[-1] for row in plain["rejected"]}
    assert plain["incomplete"]
    assert rows_of(done.rejected) == plain["rejected"]
    assert rows_of(done.incomplete) == plain["incomplete"]
    assert rows_of(done.messages.select(*MESSAGES.names)) == plain["messages"]


def test_the_columns_of_the_decision_come_last_and_are_those_of_the_contract(spark: SparkSession) -> None:
    catalog, messages, fragments = told(1, messages=3)
    done = ssbroker.spark.pipeline(frame(spark, fragments), catalog, now=NOW)
    further = [name for name in messages.column_names if name not in MESSAGES.names]
    assert done.messages.columns == [*MESSAGES.names, *further, *DECISIONS.names]
    types = {field.name: field.dataType for field in done.messages.schema}
    numbers = {"match_step": ByteType(), "route_id": IntegerType(), "broker_instance": BinaryType()}
    assert {name: types[name] for name in DECISIONS.names} == {
        name: numbers.get(name, StringType()) for name in DECISIONS.names
    }


def test_bodies_cross_into_python_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    catalog, _, fragments = told(1, messages=3)
    capsys.readouterr()
    ssbroker.spark.pipeline(frame(spark, fragments), catalog).messages.where("outcome = 'REMOTE'").explain()
    plan = capsys.readouterr().out
    assert plan.count("MapInArrow") == 1
    assert "EvalPython" not in plan


def simple(spark: SparkSession, **columns: str) -> Any:
    own = {"conversation_id": f"'{UUID(int=1)}'", "is_initiator": "true", "message_sequence_number": "0"}
    own |= {"fragment_number": "0", "fragment_count": "1", "message_body": "x'00'", **columns}
    return spark.sql("select " + ", ".join(f"{value} as {name}" for name, value in own.items()))


def test_now_is_that_of_the_call(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry on another day gives the same answer."""
    end = datetime(2026, 11, 20, 12, tzinfo=UTC)
    times = iter([end - timedelta(seconds=1), end])
    monkeypatch.setattr(sys.modules["ssbroker.spark.pipeline"], "utc_datetime", lambda now: now or next(times))
    given = simple(spark, to_service_name="'//s'")
    before, after = (ssbroker.spark.pipeline(given, lone_route(lifetime=end)) for _ in range(2))
    assert [row["outcome"] for done in (before, after) for row in done.messages.collect()] == ["REMOTE", "DELAYED"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "to_service_name"),
        ({"to_service_name": "1"}, "to_service_name: expected string, got int"),
        ({"to_service_name": "'//s'", "database": "date'2026-11-21'"}, "database: expected string, got date"),
        (
            {"to_service_name": "'//s'", "Outcome": "1"},
            "Outcome: routing adds a column of this name",
        ),
        ({"to_service_name": "'//s'", "fragment_count": "'1'"}, "fragment_count"),
    ],
)
def test_columns_are_checked_at_the_call(spark: SparkSession, columns: dict[str, str], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        ssbroker.spark.pipeline(simple(spark, **columns), lone_route())


def test_a_column_of_the_conversation_that_occurs_twice(spark: SparkSession) -> None:
    given = simple(spark, to_service_name="'//s'").selectExpr("*", "'//t' as to_service_name")
    with pytest.raises(SchemaError, match="to_service_name: expected one column of this name, found 2"):
        ssbroker.spark.pipeline(given, lone_route())


@pytest.mark.parametrize("option", [{"tie_break": "round_robin"}, {"tie_break": "last"}, {"strategy": "merge"}])
def test_options_that_there_are_not(spark: SparkSession, option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        ssbroker.spark.pipeline(simple(spark, to_service_name="'//s'"), lone_route(), **option)


def test_a_value_that_cannot_be_routed_is_told_in_our_words(spark: SparkSession) -> None:
    given = simple(spark, to_service_name="'//s'", database="'Nowhere'")
    with pytest.raises(PythonException, match="UnknownDatabaseError: database, row 0: 'Nowhere'"):
        ssbroker.spark.pipeline(given, lone_route()).messages.collect()
