"""An invalid catalog raises one error with table, column, row, value and expectation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, schemas
from tests.boundary.layouts import Array, DataType
from tests.routing.conversations import IDS

NULLABLE = {
    name: pa.schema([field.with_nullable(nullable=True) for field in schema])
    for name, schema in (("routes", schemas.ROUTES), ("databases", schemas.DATABASES), ("services", schemas.SERVICES))
}
ROUTE = {"database": "Sales", "name": "A", "address": "LOCAL"}
DATABASE = {"name": "Sales", "is_broker_enabled": True}
SERVICE = {"database": "Sales", "name": "//Orders"}
VALID: dict[str, dict[str, Any]] = {"routes": ROUTE, "databases": DATABASE, "services": SERVICE}
ADDRESS = "TCP://host[:port], LOCAL or TRANSPORT"
NO_GUID = "a GUID: 36 characters (braces allowed) or 16 bytes"
WRONG_ADDRESSES = ("", "TCP://", "TCP://a:0", "TCP://a:65536", "http://a", "TCP://a b", "TCP://a/b", "LOCAL ", "TCP//a")


def table(name: str, *rows: dict[str, Any]) -> Any:
    return pa.Table.from_pylist([dict.fromkeys(NULLABLE[name].names) | row for row in rows], NULLABLE[name])


def catalog(**tables: Any) -> Catalog:
    given: dict[str, Any] = {"routes": table("routes", ROUTE), "databases": table("databases", DATABASE)}
    return Catalog(**(given | tables))


@dataclass(frozen=True)
class InvalidValue:
    """Rows of a table of which the last is invalid, after any number of valid ones."""

    table: str
    rows: list[dict[str, Any]]
    column: str
    error: type[ssbroker.InputError]
    value: str | None
    expected: str


def invalid(name: str, column: str, value: Any, error: type[ssbroker.InputError], expected: str) -> InvalidValue:
    rows = [VALID[name] | {"name": "B", column: value}]
    return InvalidValue(name, rows, column, error, None if value is None else str(value), expected)


INVALID = {
    **{
        f"{column} {text!r}": invalid("routes", column, text, ssbroker.InvalidAddressError, ADDRESS)
        for column in ("address", "mirror_address")
        for text in WRONG_ADDRESSES
    },
    **{
        f"null {name}.{column}": invalid(name, column, None, ssbroker.NullError, expected)
        for name, column, expected in (
            ("routes", "name", "text"),
            ("routes", "address", "text"),
            ("databases", "name", "text"),
            ("databases", "is_broker_enabled", "true or false"),
            ("services", "database", "text"),
            ("services", "name", "text"),
        )
    },
    "unknown database": invalid(
        "services", "database", "Nowhere", ssbroker.UnknownDatabaseError, "one of Sales, Stores, msdb"
    ),
    "route id": InvalidValue(
        "routes",
        [ROUTE | {"route_id": 7}, ROUTE | {"database": "Stores", "route_id": 7}, ROUTE | {"route_id": 7}],
        "route_id",
        ssbroker.DuplicateError,
        "7",
        "unique route ids within a database; row {first}, also in Sales, has this route id",
    ),
    "database name": InvalidValue(
        "databases",
        [DATABASE | {"name": "Twice"}, DATABASE | {"name": "twice"}, DATABASE | {"name": "Twice"}],
        "name",
        ssbroker.DuplicateError,
        "Twice",
        "unique database names",
    ),
    "enabled broker id": InvalidValue(
        "databases",
        [
            {"name": "First", "service_broker_guid": IDS[1], "is_broker_enabled": True},
            {"name": "Disabled", "service_broker_guid": IDS[1], "is_broker_enabled": False},
            {"name": "Other", "service_broker_guid": IDS[2], "is_broker_enabled": True},
            {"name": "Unknown", "service_broker_guid": None, "is_broker_enabled": True},
            {"name": "Unknown too", "service_broker_guid": None, "is_broker_enabled": True},
            {"name": "Second", "service_broker_guid": IDS[1], "is_broker_enabled": True},
        ],
        "service_broker_guid",
        ssbroker.DuplicateError,
        "00000000-0000-0000-0000-000000000001",
        "a unique broker id for each enabled database; the database First has it too",
    ),
}


def tables_with(case: InvalidValue, before: int) -> dict[str, Any]:
    """Returns the tables of a catalog; one of them has valid rows, then those of the case."""
    rows = [VALID[case.table] | {"name": f"filler {number}"} for number in range(before)]
    given = {case.table: table(case.table, *rows, *case.rows)}
    if case.table == "services":
        given |= {"databases": table("databases", DATABASE, {"name": "Stores", "is_broker_enabled": True})}
    return given


def cut(given: pa.Table, rows: int) -> pa.Table:
    return pa.Table.from_batches(given.to_batches(max_chunksize=rows))


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("before", [0, 1, 100])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_error_names_the_invalid_row(case: InvalidValue, before: int, rows: int) -> None:
    given = {name: cut(value, rows) for name, value in tables_with(case, before).items()}
    with pytest.raises(ssbroker.InputError) as caught:
        catalog(**given)
    error, row = caught.value, before + len(case.rows) - 1
    expected = case.expected.replace("{first}", str(before))
    column = f"{case.table}.{case.column}"
    assert type(error) is case.error
    assert (error.column, error.row, error.value, error.expected) == (column, row, case.value, expected)
    assert isinstance(error, ValueError)
    assert str(error).startswith(f"{column}, row {row}: ")
    assert str(error).endswith(f"expected {expected}")
    assert case.value is None or f"'{case.value}'" in str(error)


def test_the_rows_before_the_invalid_ones_are_valid() -> None:
    for case in INVALID.values():
        given = tables_with(case, 100)
        given[case.table] = given[case.table].slice(0, 100 + len(case.rows) - 1)
        assert catalog(**given).routes.num_rows > 0


@pytest.mark.parametrize(("name", "column"), [("routes", "broker_instance"), ("databases", "service_broker_guid")])
@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (pa.array([None, IDS[1].hex()]), IDS[1].hex()),
        (pa.array([None, ""]), ""),
        (pa.array([None, bytes(15)]), "0x" + "00" * 15),
        (pa.array(["{00000000-0000-0000-0000-000000000001}", "x" * 500]), "x" * 80 + "…"),
    ],
    ids=["32 digits", "empty", "15 bytes", "long"],
)
def test_the_error_names_the_invalid_guid(name: str, column: str, values: Array, shown: str) -> None:
    rows = table(name, VALID[name], VALID[name] | {"name": "B"})
    given = rows.set_column(rows.schema.get_field_index(column), column, values)
    with pytest.raises(ssbroker.InvalidGuidError) as caught:
        catalog(**{name: given})
    error = caught.value
    assert (error.column, error.row, error.value, error.expected) == (f"{name}.{column}", 1, shown, NO_GUID)


def test_several_databases_require_the_database_column() -> None:
    two = table("databases", DATABASE, {"name": "Stores", "is_broker_enabled": True})
    expected = "the name of a database, because the catalog has several: Sales, Stores"
    with pytest.raises(ssbroker.SchemaError) as missing:
        catalog(routes=table("routes", ROUTE).drop_columns(["database"]), databases=two)
    assert (missing.value.column, missing.value.expected) == ("routes.database", expected)
    with pytest.raises(ssbroker.NullError) as null:
        catalog(routes=table("routes", ROUTE, ROUTE | {"database": None}), databases=two)
    assert (null.value.column, null.value.row, null.value.expected) == ("routes.database", 1, expected)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63 - 1])
def test_the_error_names_a_route_id_beyond_32_bits(number: int) -> None:
    given = pa.table({"name": ["A", "B"], "address": ["LOCAL"] * 2, "route_id": [1, number]})
    with pytest.raises(ssbroker.InputError) as caught:
        Catalog(given)
    error = caught.value
    assert (error.column, error.row, error.value) == ("routes.route_id", 1, str(number))
    assert error.expected == "a 32-bit integer"


@pytest.mark.parametrize("address", ["LOCAL", "TRANSPORT", "here", "", "TCP://a b"])
def test_own_addresses_must_be_network_addresses(address: str) -> None:
    with pytest.raises(ssbroker.InvalidAddressError) as caught:
        Catalog(table("routes", ROUTE), addresses=["TCP://me", address])
    error = caught.value
    assert (error.column, error.row, error.value) == ("addresses", 1, address)
    assert error.expected == "TCP://host[:port]"


def with_nulls(name: str, column: str, kind: DataType) -> Any:
    """Returns a valid row except for one column, which is null and of another type."""
    valid = table(name, VALID[name])
    return valid.set_column(valid.schema.get_field_index(column), column, pa.nulls(1, kind))


REQUIRED = [
    ("routes", "name"),
    ("routes", "address"),
    ("databases", "name"),
    ("services", "database"),
    ("services", "name"),
]
TYPED = [(name, column) for name, schema in NULLABLE.items() for column in schema.names]
WRONG_TYPED = (pa.float64(), pa.list_(pa.string()), pa.date32(), pa.binary(15), pa.duration("s"))


@pytest.mark.parametrize(("name", "column"), REQUIRED)
def test_the_error_names_the_missing_column(name: str, column: str) -> None:
    with pytest.raises(ssbroker.SchemaError, match="the column is missing") as caught:
        catalog(**{name: table(name, VALID[name]).drop_columns([column])})
    assert (caught.value.column, caught.value.expected, caught.value.actual) == (f"{name}.{column}", "text", None)
    assert isinstance(caught.value, TypeError)


CONVERTED = (("routes", "route_id", pa.float64()), ("routes", "lifetime", pa.date32()))
"""Columns and the other types that they may have."""


@pytest.mark.parametrize(
    ("name", "column", "kind"),
    [(*column, kind) for column in TYPED for kind in WRONG_TYPED if (*column, kind) not in CONVERTED],
    ids=str,
)
def test_the_error_names_the_column_of_the_wrong_type(name: str, column: str, kind: DataType) -> None:
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}.{column}: expected .*, got ") as caught:
        catalog(**{name: with_nulls(name, column, kind)})
    error = caught.value
    assert (error.column, bool(error.expected), bool(error.actual)) == (f"{name}.{column}", True, True)


@pytest.mark.parametrize(("name", "column"), [(name, column) for name in NULLABLE for column in NULLABLE[name].names])
def test_the_error_names_the_duplicate_column(name: str, column: str) -> None:
    """A join can produce it, and it is unclear which one is meant."""
    valid = table(name, VALID[name])
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}.{column}: expected unique column names, got two"):
        catalog(**{name: valid.append_column(column, valid[column])})


@pytest.mark.parametrize("name", NULLABLE)
def test_columns_are_checked_even_without_rows(name: str) -> None:
    """A mistake should not wait for the first row; conversations are checked in the same way."""
    for column in [column for table_name, column in REQUIRED if table_name == name]:
        with pytest.raises(ssbroker.SchemaError, match="the column is missing"):
            catalog(**{name: table(name).drop_columns([column])})
    for column in NULLABLE[name].names:
        with pytest.raises(ssbroker.SchemaError, match=f"^{name}.{column}: expected "):
            catalog(**{name: with_nulls(name, column, pa.float16()).slice(0, 0)})
