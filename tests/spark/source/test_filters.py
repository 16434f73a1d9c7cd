"""Filters that the data source `ssbroker` pushes down."""

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
VALUES_BY_COLUMN = {
    "queuing_order": st.integers(-1, 5),
    "name": st.sampled_from(["", "a", "ab", "b", "abc", "c"]),
    "flag": st.booleans(),
    "body": st.sampled_from([b"", b"ab", b"b", b"c"]),
}


@st.composite
def filters(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from([*VALUES_BY_COLUMN]))
    values = VALUES_BY_COLUMN[name]
    kinds: list[Any] = [spark.EqualTo, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan]
    kinds += [spark.LessThanOrEqual, spark.In, spark.IsNull, spark.IsNotNull]
    if name == "name":
        kinds += [spark.StringStartsWith, spark.StringEndsWith, spark.StringContains]
    kind = draw(st.sampled_from(kinds))
    if kind in (spark.IsNull, spark.IsNotNull):
        spark_filter = kind((name,))
    elif kind is spark.In:
        spark_filter = kind((name,), tuple(draw(st.lists(values, min_size=1, max_size=3))))
    else:
        spark_filter = kind((name,), draw(values))
    return spark.Not(spark_filter) if draw(st.booleans()) else spark_filter


def truth(spark_filter: Any, row: dict[str, Any]) -> bool | None:
    """Returns the value of a filter in SQL: true, false or unknown."""
    if isinstance(spark_filter, spark.Not):
        inner = truth(spark_filter.child, row)
        return None if inner is None else not inner
    value = row[spark_filter.attribute[0]]
    if isinstance(spark_filter, spark.IsNull | spark.IsNotNull):
        return (value is None) == isinstance(spark_filter, spark.IsNull)
    if value is None:
        return None
    answers: dict[type[Any], Any] = {
        spark.EqualTo: lambda: value == spark_filter.value,
        spark.GreaterThan: lambda: value > spark_filter.value,
        spark.GreaterThanOrEqual: lambda: value >= spark_filter.value,
        spark.LessThan: lambda: value < spark_filter.value,
        spark.LessThanOrEqual: lambda: value <= spark_filter.value,
        spark.In: lambda: value in spark_filter.value,
        spark.StringStartsWith: lambda: value.startswith(spark_filter.value),
        spark.StringEndsWith: lambda: value.endswith(spark_filter.value),
        spark.StringContains: lambda: spark_filter.value in value,
    }
    return bool(answers[type(spark_filter)]())


@given(st.lists(filters(), min_size=1, max_size=3))
def test_pushed_filters_follow_sql_semantics(spark_filter: list[Any]) -> None:
    """A row passes if all filters are true; unknown is not true."""
    pushed, unsupported = push_filters(spark_filter, VALUES.schema)
    assert unsupported == []
    kept = pickle.loads(pickle.dumps(pushed)).apply(VALUES).to_pylist()
    assert kept == [row for row in VALUES.to_pylist() if all(truth(each, row) for each in spark_filter)]
    numbers = [row["queuing_order"] for row in kept]
    assert all(pushed.after < number <= (pushed.until or number) for number in numbers if number is not None)


@pytest.mark.parametrize("minimum", [-(2**63), -(2**63) + 1, 0])
def test_bounds_stay_within_64_bits(minimum: int) -> None:
    """The range of a queue must be within the numbers that its file can store."""
    pushed, _ = push_filters([spark.LessThan(("queuing_order",), minimum)], VALUES.schema)
    assert (pushed.after, pushed.until) == (0, 0)


@pytest.mark.parametrize(
    "spark_filter",
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
def test_unsupported_filters_are_left_to_spark(spark_filter: Any) -> None:
    pushed, unsupported = push_filters([spark_filter], VALUES.schema)
    assert pushed.expression is None
    assert unsupported == [spark_filter]
