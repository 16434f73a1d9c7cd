"""Errors for invalid catalogs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, schemas
from tests.catalog.catalogs import DATABASES, ROUTES, SERVICES, full, route, rows


@pytest.mark.parametrize("name", ["routes", "databases", "services"])
@pytest.mark.parametrize("value", [5, "routes.parquet", {"name": ["a"]}, object()])
def test_tables_must_be_arrow_objects(name: str, value: object) -> None:
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: expected an Arrow object.*, got ") as caught:
        full(**{name: value})
    assert isinstance(caught.value, TypeError)
    assert type(value).__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("name", "similar"), [("SALES", "Sales"), (" Sales", "Sales"), ("Sales\t", "Sales"), ("MSDB", "msdb")]
)
def test_routes_of_a_database_that_is_listed_with_other_case_or_space_are_refused(name: str, similar: str) -> None:
    routes = rows([route("Sales", "a"), route(name, "b")], schemas.ROUTES)
    databases = pa.table({"name": ["Sales"]})
    with pytest.raises(ssbroker.UnknownDatabaseError) as refused:
        Catalog(routes, databases)
    shown = name.replace("\t", "\\t")
    message = f"routes.database, row 1: '{shown}' is not a database of the catalog; expected '{similar}'"
    assert str(refused.value) == message
    assert (refused.value.column, refused.value.row, refused.value.value) == ("routes.database", 1, name)
    listed = Catalog(routes, pa.table({"name": ["Sales", name]}))
    assert listed.databases["name"].to_pylist()[:2] == ["Sales", name]


def test_routes_are_required() -> None:
    with pytest.raises(ssbroker.SchemaError, match="got NoneType"):
        Catalog(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("addresses", "TCP://me:4022"),
        ("addresses", [b"TCP://me:4022"]),
        ("addresses", 5),
        ("addresses", None),
        ("pending_requests", "//Orders"),
        ("pending_requests", [None]),
        ("pending_requests", ["\udcff"]),
        ("addresses", ["\udcff"]),
        ("message_forwarding", 1),
        ("message_forwarding", None),
    ],
)
def test_options_of_wrong_types_are_rejected(option: str, value: object) -> None:
    with pytest.raises(ssbroker.OptionError, match=f"^{option}: expected"):
        full(**{option: value})


BAD_ROWS: list[tuple[str, dict[str, Any], type[ssbroker.SsbrokerError], str | None]] = [
    (
        "address",
        {"routes": rows([route("Sales", "A", "TCP//x")], schemas.ROUTES)},
        ssbroker.InvalidAddressError,
        "routes.address",
    ),
    (
        "null",
        {"routes": rows([route("Sales", "A") | {"name": None}], schemas.ROUTES)},
        ssbroker.NullError,
        "routes.name",
    ),
    ("id", {"routes": rows([ROUTES[0], ROUTES[0]], schemas.ROUTES)}, ssbroker.DuplicateError, "routes.route_id"),
    (
        "name",
        {"databases": rows([DATABASES[0], DATABASES[0]], schemas.DATABASES)},
        ssbroker.DuplicateError,
        "databases.name",
    ),
    (
        "enabled id",
        {"databases": rows([DATABASES[0], DATABASES[1] | {"is_broker_enabled": True}], schemas.DATABASES)},
        ssbroker.DuplicateError,
        "databases.service_broker_guid",
    ),
    (
        "database",
        {"services": rows([SERVICES[0] | {"database": "Nowhere"}], schemas.SERVICES)},
        ssbroker.UnknownDatabaseError,
        "services.database",
    ),
    ("own address", {"addresses": ["LOCAL"]}, ssbroker.InvalidAddressError, None),
    (
        "guid",
        {
            "routes": rows(ROUTES, schemas.ROUTES).set_column(
                4, "broker_instance", pa.array([None, "no guid", None, None])
            )
        },
        ssbroker.InvalidGuidError,
        "routes.broker_instance",
    ),
]


@pytest.mark.parametrize(("given", "error", "column"), [bad[1:] for bad in BAD_ROWS], ids=[bad[0] for bad in BAD_ROWS])
def test_invalid_values_are_rejected(
    given: dict[str, Any], error: type[ssbroker.InputError], column: str | None
) -> None:
    with pytest.raises(error) as caught:
        full(**given)
    assert isinstance(caught.value, ValueError)
    assert column is None or caught.value.column == column
    if column is not None:
        assert caught.value.row is not None
        assert str(caught.value.row) in str(caught.value)


def test_the_error_names_the_missing_column() -> None:
    with pytest.raises(ssbroker.SchemaError, match="address") as caught:
        Catalog(pa.table({"name": ["a"]}))
    assert caught.value.column is not None
