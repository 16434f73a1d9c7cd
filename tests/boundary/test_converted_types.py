"""Values of other types that have the same meaning are converted: 1 and 0, whole floating-point numbers, dates."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router, diagnose
from tests.boundary.test_errors import VALID
from tests.boundary.test_fragment_errors import VALID as FRAGMENTS
from tests.boundary.test_misspelt_columns import DATABASES, ROUTES
from tests.routing.conversations import CATALOG, NOW

INTEGERS = [pa.int8(), pa.uint8(), pa.int32(), pa.int64()]


def replaced(table: Any, column: str, values: Any) -> Any:
    return table.set_column(table.schema.get_field_index(column), column, values)


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_booleans_may_be_1_and_0(kind: Any) -> None:
    flags = VALID["is_initiator"].cast(kind)
    expected = Router(CATALOG).route(VALID, now=NOW)
    assert Router(CATALOG).route(replaced(VALID, "is_initiator", flags), now=NOW).equals(expected)
    disabled = [replaced(DATABASES, "is_broker_enabled", each) for each in (pa.array([0], kind), pa.array([False]))]
    assert Catalog(ROUTES, disabled[0]) == Catalog(ROUTES, disabled[1]) != Catalog(ROUTES, DATABASES)


@pytest.mark.parametrize("value", [2, -1])
def test_other_integers_are_no_booleans(value: int) -> None:
    flags = pa.array([1] * (VALID.num_rows - 1) + [value], pa.int32())
    with pytest.raises(ssbroker.InputError) as refused:
        Router(CATALOG).route(replaced(VALID, "is_initiator", flags), now=NOW)
    row = VALID.num_rows - 1
    assert str(refused.value) == f"is_initiator, row {row}: '{value}' is out of range; expected a bool, 1 or 0"


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_integers_may_be_whole_floating_point_numbers(kind: Any) -> None:
    """A column of integers with missing values is such a column in pandas."""
    assert Catalog(replaced(ROUTES, "route_id", pa.array([65536], kind))) == Catalog(ROUTES)
    missing = [replaced(ROUTES, "route_id", pa.nulls(1, each)) for each in (kind, pa.int32())]
    assert Catalog(missing[0]) == Catalog(missing[1])
    numbers = FRAGMENTS["message_sequence_number"].cast(kind)
    given = replaced(FRAGMENTS, "message_sequence_number", numbers)
    assert ssbroker.reassemble(given).messages.equals(ssbroker.reassemble(FRAGMENTS).messages)


@pytest.mark.parametrize("value", [1.5, math.nan, math.inf, 1e300])
def test_other_floating_point_numbers_are_no_integers(value: float) -> None:
    with pytest.raises(ssbroker.InputError, match=r"^routes\.route_id, row 0: '.*' is out of range; expected int32$"):
        Catalog(replaced(ROUTES, "route_id", pa.array([value])))


def test_a_dictionary_of_floating_point_numbers_is_not_converted() -> None:
    """An error would name the position in the dictionary instead of the row."""
    numbers = pa.array([65536.0]).dictionary_encode()
    with pytest.raises(ssbroker.SchemaError, match=r"^routes\.route_id: expected int32, got "):
        Catalog(replaced(ROUTES, "route_id", numbers))


def test_a_date_is_midnight() -> None:
    dates, times = ([20_000], pa.date32()), ([20_000 * 86_400_000_000], pa.timestamp("us"))
    found = [Catalog(replaced(ROUTES, "lifetime", pa.array(*each))) for each in (dates, times)]
    assert found[0] == found[1] != Catalog(ROUTES)


def test_a_date_beyond_the_range_of_timestamps_is_its_end() -> None:
    """In the year 412,000 a product of 64 bits overflows to a date in the past."""
    routes = replaced(ROUTES, "lifetime", pa.array([150_000_000], pa.date32()))
    decided = [Router(Catalog(table)).route(VALID.slice(0, 1), now=NOW) for table in (routes, ROUTES)]
    assert decided[0].equals(decided[1])


def test_dates_may_be_milliseconds() -> None:
    found = [
        Catalog(replaced(ROUTES, "lifetime", pa.array([days], pa.date32()).cast(kind)))
        for days in (-20_000, 20_000)
        for kind in (pa.date32(), pa.date64())
    ]
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize(
    ("seconds", "is_routed"),
    [(568_983_528_000, True), (2**62, True), (-(2**62), False), (-62_200_000_000, False)],
    ids=["year 20000", "infinity", "minus infinity", "year 0"],
)
def test_lifetimes_that_python_cannot_represent_are_moved_to_its_limits(seconds: int, *, is_routed: bool) -> None:
    unit = pa.timestamp("s")
    catalog = Catalog(replaced(ROUTES, "lifetime", pa.array([seconds], unit).cast(unit)))
    router = Router(catalog)
    (decision,) = router.route(VALID.slice(0, 1), now=NOW).to_pylist()
    assert (decision["route_id"] is not None) == is_routed
    name = VALID["to_service_name"][0].as_py()
    assert router.explain(name, database=None, now=NOW) is not None
    assert str(router.explain(f"{name}x", database=None, now=NOW))
    lifetime: Any = catalog.routes["lifetime"][0].as_py()
    assert lifetime.year == (9999 if is_routed else 1)
    assert diagnose.lint(catalog, at=NOW) is not None
    assert catalog._repr_html_()
    assert catalog.to_ddl()
