"""`route` with `errors="reject"`: both engines route the valid rows, and reject what `Router.route` rejects."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Router
from ssbroker.router import Routed
from ssbroker.spark.arguments import SparkTieBreak
from ssbroker.spark.engine_choice import Engine
from tests.spark.frames import decisions_of, frame
from tests.spark.test_route import one_route

ID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
GOOD: dict[str, list[Any]] = {
    "to_service_name": ["//s", "//other", ""],
    "to_broker_instance": [ID, f"{{{ID.upper()}}}", None],
    "conversation_id": [ID, ID[::-1].replace("-", "0")[:8] + ID[8:]],
    "database": ["user", "msdb", None],
    "is_initiator": [True, False],
}
BAD: dict[str, list[Any]] = {
    "to_service_name": [None],
    "to_broker_instance": [
        "x",
        "",
        f"{{{ID}",
        f"{ID}}}",
        f"{ID}\n",
        "é" + ID[1:],
        "g" + ID[1:],
        ID.replace("-", "0"),
        "x" * 81,
    ],
    "conversation_id": ["no guid", None, "y" * 80],
    "database": ["Nowhere", "", "USER", "z" * 200],
    "is_initiator": [None],
}
KINDS: dict[str, Any] = dict.fromkeys(GOOD, pa.string()) | {"is_initiator": pa.bool_()}
ENGINES: tuple[Engine, ...] = ("native", "arrow")


def mixed(seed: int, *, rows: int) -> pa.Table:
    """Returns rows of which some are invalid in one or more columns."""
    chance = random.Random(seed)
    columns = {
        name: [chance.choice(BAD[name] if chance.random() < 0.15 else GOOD[name]) for _ in range(rows)] for name in GOOD
    }
    return pa.table({name: pa.array(values, KINDS[name]) for name, values in columns.items()} | {"row": range(rows)})


def rejected_rows(routed: Routed[Any]) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in routed.rejected.collect()), key=lambda row: int(row["row"]))


@pytest.mark.parametrize("tie_break", ["hash", "first"])
def test_both_engines_reject_what_the_router_rejects(spark: SparkSession, tie_break: SparkTieBreak) -> None:
    table = mixed(3, rows=600)
    expected = Router(one_route(), tie_break=tie_break).route(table, errors="reject")
    wanted = [table.slice(row["row"], 1).to_pylist()[0] | row for row in expected.rejected.to_pylist()]
    for row in wanted:  # in Spark, the value is not made safe for a terminal
        row["value"] = row["value"] and row["value"].replace("\\n", "\n")
    assert {(row["column"], row["value"]) for row in wanted} >= {
        ("to_service_name", None),
        ("to_broker_instance", f"{ID}\n"),
        ("database", "z" * 80 + "…"),
    }
    assert 0 < len(wanted) < 600
    for engine in ENGINES:
        found = ssbroker.spark.route(
            frame(spark, table), one_route(), tie_break=tie_break, engine=engine, errors="reject"
        )
        assert rejected_rows(found) == wanted
        assert found.rejected.columns == [*table.column_names, "column", "value", "reason"]
        assert found.decisions.columns == [*table.column_names, *ssbroker.schemas.DECISIONS.names]
        assert decisions_of(found.decisions.orderBy("row")) == expected.decisions.to_pylist()


def test_ids_as_bytes_and_handles(spark: SparkSession) -> None:
    rows = [(bytearray(16), "//s"), (bytearray(b"\x01\xab"), "//s"), (None, "//s")]
    given = spark.createDataFrame(rows, "conversation_handle binary, to_service_name string")
    catalog = one_route()
    for engine in ENGINES:
        routed, rejected = ssbroker.spark.route(given, catalog, engine=engine, errors="reject")
        assert routed.count() == 1
        found = rejected.select("column", "value", "reason").collect()
        assert sorted(map(tuple, found), key=str) == [
            ("conversation_handle", "0x01ab", "invalid_guid"),
            ("conversation_handle", None, "null"),
        ]


def test_nothing_is_rejected_of_valid_rows(spark: SparkSession) -> None:
    table = pa.table({name: pa.array([GOOD[name][0]], KINDS[name]) for name in GOOD} | {"row": [0]})
    for engine in ENGINES:
        routed, rejected = ssbroker.spark.route(frame(spark, table), one_route(), engine=engine, errors="reject")
        assert (routed.count(), rejected.count()) == (1, 0)


def test_rejected_rows_need_no_python(spark: SparkSession) -> None:
    given = frame(spark, mixed(1, rows=5))
    _, rejected = ssbroker.spark.route(given, one_route(), engine="arrow", errors="reject")
    plan = rejected._jdf.queryExecution().executedPlan().toString()
    assert "Arrow" not in plan.replace("ArrowRDD", "")
    assert "Python" not in plan


def test_wrong_calls(spark: SparkSession) -> None:
    given = spark.createDataFrame(
        [(bytearray(16), "//s", 1)], "conversation_id binary, to_service_name string, Value int"
    )
    with pytest.raises(ssbroker.SchemaError, match=r'^Value: errors="reject" adds a column with this name'):
        ssbroker.spark.route(given, one_route(), errors="reject")
    assert ssbroker.spark.route(given, one_route()).count() == 1
    with pytest.raises(ssbroker.OptionError, match=r"^errors: expected one of raise, reject, got 'ignore'"):
        ssbroker.spark.route(given, one_route(), errors="ignore")  # type: ignore[call-overload]
