"""Filters of Spark's that the format `ssbroker` answers itself (U25)."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from ssbroker.spark.source.reader import push_filters

VALUES = pa.table(
    {
        "queuing_order": pa.array([1, 2, None, 4], pa.int64()),
        "name": pa.array(["ab", None, "b", "abc"]),
        "flag": pa.array([True, None, False, True]),
        "body": pa.array([b"ab", b"", None, b"b"], pa.binary()),
        "at": pa.array([1, 2, 3, None], pa.timestamp("us", tz="UTC")),
    }
)
OF_COLUMN = {
    "queuing_order": st.integers(-1, 5),
    "name": st.sampled_from(["", "a", "ab", "b", "abc", "c"]),
    "flag": st.booleans(),
    "body": st.sampled_from([b"", b"ab", b"b", b"c"]),
}


@st.composite
def filters(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from([*OF_COLUMN]))
    values = OF_COLUMN[name]
    kinds: list[Any] = [spark.EqualTo, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan]
    kinds += [spark.LessThanOrEqual, spark.In, spark.IsNull, spark.IsNotNull]
    if name == "name":
        kinds += [spark.StringStartsWith, spark.StringEndsWith, spark.StringContains]
    kind = draw(st.sampled_from(kinds))
    if kind in (spark.IsNull, spark.IsNotNull):
        made = kind((name,))
    elif kind is spark.In:
        made = kind((name,), tuple(draw(st.lists(values, min_size=1, max_size=3))))
    else:
        made = kind((name,), draw(values))
    return spark.Not(made) if draw(st.booleans()) else made


def truth(asked: Any, row: dict[str, Any]) -> bool | None:
    """What SQL says of a filter: true, false or unknown."""
    if isinstance(asked, spark.Not):
        inner = truth(asked.child, row)
        return None if inner is None else not inner
    value = row[asked.attribute[0]]
    if isinstance(asked, spark.IsNull | spark.IsNotNull):
        return (value is None) == isinstance(asked, spark.IsNull)
    if value is None:
        return None
    answers: dict[type[Any], Any] = {
        spark.EqualTo: lambda: value == asked.value,
        spark.GreaterThan: lambda: value > asked.value,
        spark.GreaterThanOrEqual: lambda: value >= asked.value,
        spark.LessThan: lambda: value < asked.value,
        spark.LessThanOrEqual: lambda: value <= asked.value,
        spark.In: lambda: value in asked.value,
        spark.StringStartsWith: lambda: value.startswith(asked.value),
        spark.StringEndsWith: lambda: value.endswith(asked.value),
        spark.StringContains: lambda: asked.value in value,
    }
    return bool(answers[type(asked)]())


@given(st.lists(filters(), min_size=1, max_size=3))
def test_a_filter_that_is_taken_over_is_answered_as_sql_does(asked: list[Any]) -> None:
    """A row passes where all filters are true; unknown is not true."""
    pushed, left = push_filters(asked, VALUES.schema)
    assert left == []
    kept = pickle.loads(pickle.dumps(pushed)).apply(VALUES).to_pylist()
    assert kept == [row for row in VALUES.to_pylist() if all(truth(each, row) for each in asked)]
    numbers = [row["queuing_order"] for row in kept]
    assert all(pushed.after < number <= (pushed.until or number) for number in numbers if number is not None)


@pytest.mark.parametrize("least", [-(2**63), -(2**63) + 1, 0])
def test_no_number_is_below_the_least(least: int) -> None:
    """A span of a queue is one of the numbers that its files can hold."""
    pushed, _ = push_filters([spark.LessThan(("queuing_order",), least)], VALUES.schema)
    assert (pushed.after, pushed.until) == (0, 0)


@pytest.mark.parametrize(
    "asked",
    [
        spark.EqualTo(("at",), 1),
        spark.EqualTo(("name", "inner"), "a"),
        spark.EqualTo(("elsewhere",), "a"),
        spark.EqualTo(("flag",), 1),
        spark.In(("name",), ("a", None)),
        spark.Not(spark.In(("name",), ("a", None))),
        spark.In(("queuing_order",), tuple(range(101))),
        spark.EqualNullSafe(("name",), None),
        spark.StringContains(("body",), "a"),
    ],
)
def test_a_filter_that_is_not_known_exactly_is_left_to_spark(asked: Any) -> None:
    pushed, left = push_filters([asked], VALUES.schema)
    assert pushed.expression is None
    assert left == [asked]
