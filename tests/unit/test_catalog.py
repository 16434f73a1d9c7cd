from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, schemas

SALES_ID = uuid.UUID("11111111-1111-1111-1111-111111111111")
ORDERS_ID = uuid.UUID("22222222-2222-2222-2222-222222222222")
NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)


def route(database: str, name: str, address: str = "LOCAL", **others: Any) -> dict[str, Any]:
    empty = dict.fromkeys(schemas.ROUTES.names)
    return empty | {"database": database, "name": name, "address": address} | others


ROUTES: list[dict[str, Any]] = [
    route("Sales", "AutoCreatedLocal", route_id=65536),
    route(
        "Sales",
        "Orders",
        "tcp://Orders/",
        route_id=65537,
        remote_service_name="//Contoso/Orders",
        broker_instance=ORDERS_ID.bytes,
        lifetime=datetime(2026, 11, 21, tzinfo=UTC),
        mirror_address="TCP://mirror:4023",
    ),
    route("Archive", "Hub", "TCP://hub:4022", route_id=65536),
    route("msdb", "AutoCreatedLocal", route_id=65536),
]
DATABASES: list[dict[str, Any]] = [
    {"name": "Sales", "service_broker_guid": SALES_ID.bytes, "is_broker_enabled": True},
    {"name": "Old", "service_broker_guid": SALES_ID.bytes, "is_broker_enabled": False},
]
SERVICES: list[dict[str, Any]] = [
    {"database": "Sales", "name": "//Contoso/Sales"},
    {"database": "Old", "name": "//Contoso/Sales"},
]


def rows(values: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    nullable = pa.schema([field.with_nullable(nullable=True) for field in schema])
    return pa.Table.from_pylist(values, schema=nullable)


def full(**others: Any) -> Catalog:
    given: dict[str, Any] = {
        "routes": rows(ROUTES, schemas.ROUTES),
        "databases": rows(DATABASES, schemas.DATABASES),
        "services": rows(SERVICES, schemas.SERVICES),
        "addresses": ["tcp://ME"],
        "message_forwarding": True,
        "pending_requests": ["//Contoso/Orders"],
    }
    return Catalog(**given | others)


def test_a_catalog_shows_what_it_was_given() -> None:
    catalog = full()
    assert catalog.routes.schema == schemas.ROUTES
    assert catalog.routes.to_pylist() == ROUTES
    assert catalog.databases.schema == schemas.DATABASES
    assert catalog.services.schema == schemas.SERVICES
    assert catalog.services.to_pylist() == SERVICES
    assert catalog.addresses == ("TCP://me:4022",)
    assert catalog.message_forwarding is True
    assert catalog.pending_requests == ("//Contoso/Orders",)
    assert catalog.user_database is None


def test_databases_that_only_routes_name_are_there_and_msdb() -> None:
    assert [row["name"] for row in full().databases.to_pylist()] == ["Sales", "Old", "Archive", "msdb"]
    added = full().databases.to_pylist()[2]
    assert added == {"name": "Archive", "service_broker_guid": None, "is_broker_enabled": True}


def test_a_lone_routing_table_belongs_to_the_one_user_database() -> None:
    """K23."""
    lone = rows([route("", "Orders"), route("", "Hub")], schemas.ROUTES).drop_columns(["database", "route_id"])
    catalog = Catalog(lone)
    assert catalog.user_database == "user"
    assert catalog.routes["database"].to_pylist() == ["user", "user"]
    assert catalog.routes["route_id"].to_pylist() == [65536, 65537]


@pytest.mark.parametrize("load_sharing", [0, 7])
def test_further_columns_are_carried_after_the_schema_s_own(load_sharing: int) -> None:
    routes = rows(ROUTES, schemas.ROUTES).append_column("principal_id", pa.array([1, 2, 3, 4 + load_sharing]))
    databases = rows(DATABASES, schemas.DATABASES).add_column(0, "state_desc", pa.array(["ONLINE", "OFFLINE"]))
    catalog = full(routes=routes, databases=databases)
    assert catalog.routes.column_names == [*schemas.ROUTES.names, "principal_id"]
    assert catalog.routes["principal_id"].to_pylist() == [1, 2, 3, 4 + load_sharing]
    assert catalog.databases.column_names == [*schemas.DATABASES.names, "state_desc"]
    assert catalog.databases["state_desc"].to_pylist() == ["ONLINE", "OFFLINE", None, None]


def test_a_further_column_without_nulls_has_them_where_databases_were_added() -> None:
    databases = pa.table(
        [pa.array(["Sales"]), pa.array([True]), pa.array([None], pa.binary(16)), pa.array([5])],
        schema=pa.schema(
            [
                pa.field("name", pa.string()),
                pa.field("is_broker_enabled", pa.bool_()),
                pa.field("service_broker_guid", pa.binary(16)),
                pa.field("database_id", pa.int64(), nullable=False),
            ]
        ),
    )
    shown = full(databases=databases, services=None).databases
    shown.validate(full=True)
    assert shown["database_id"].to_pylist() == [5, None, None]


def test_equal_catalogs_say_the_same() -> None:
    catalog = full()
    assert catalog == full()
    assert catalog == full(
        routes=rows(ROUTES[::-1], schemas.ROUTES), services=rows([*SERVICES[::-1], SERVICES[0]], schemas.SERVICES)
    )
    assert catalog == full(routes=rows(ROUTES, schemas.ROUTES).append_column("further", pa.nulls(4)))
    assert catalog == full(addresses=["TCP://me:4022", "TCP://me:4022"])
    assert catalog != "a catalog"


@pytest.mark.parametrize(
    "change",
    [
        {"routes": rows(ROUTES[:-1], schemas.ROUTES)},
        {"routes": rows([*ROUTES[:-1], ROUTES[-1] | {"name": "AutoCreatedlocal"}], schemas.ROUTES)},
        {"routes": rows([*ROUTES[:-1], ROUTES[-1] | {"remote_service_name": ""}], schemas.ROUTES)},
        {"routes": rows([ROUTES[0], ROUTES[1] | {"broker_instance": None}, *ROUTES[2:]], schemas.ROUTES)},
        {"routes": rows([ROUTES[0], ROUTES[1] | {"broker_instance": bytes(16)}, *ROUTES[2:]], schemas.ROUTES)},
        {"routes": rows([ROUTES[0], ROUTES[1] | {"lifetime": NOW}, *ROUTES[2:]], schemas.ROUTES)},
        {"databases": None, "services": None},
        {"databases": rows([DATABASES[0] | {"is_broker_enabled": False}, DATABASES[1]], schemas.DATABASES)},
        {"services": None},
        {"addresses": []},
        {"message_forwarding": False},
        {"pending_requests": []},
    ],
)
def test_catalogs_that_differ_are_not_equal(change: dict[str, Any]) -> None:
    assert full() != full(**change)
    assert full().fingerprint != full(**change).fingerprint


def test_every_fact_of_a_route_counts() -> None:
    seen = {
        full(routes=rows([*ROUTES[:3], ROUTES[3] | change], schemas.ROUTES)).fingerprint
        for change in [
            {},
            {"remote_service_name": "a"},
            {"remote_service_name": "b"},
            {"mirror_address": "TCP://a:1"},
            {"address": "TRANSPORT"},
            {"route_id": 1},
            {"lifetime": datetime(1970, 1, 1, tzinfo=UTC)},
        ]
    }
    assert len(seen) == 7


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).fingerprint)"
    environment = os.environ | {"PYTHONHASHSEED": "4"}
    child = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(full()), capture_output=True, check=True, env=environment
    )
    assert child.stdout.decode().strip() == full().fingerprint
    assert len(full().fingerprint) == 64


def test_a_catalog_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(full())


def test_a_catalog_shows_its_counts() -> None:
    assert (
        repr(full())
        == "Catalog(routes=4, databases=4, services=2, addresses=1, message_forwarding=True, pending_requests=1)"
    )


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("protocol", [2, 5])
def test_a_catalog_pickles_with_all_its_columns(dumps: Any, protocol: int) -> None:
    routes = rows(ROUTES, schemas.ROUTES).append_column("principal_id", pa.array([1, 2, 3, 4]))
    catalog = full(routes=routes)
    copied = pickle.loads(dumps(catalog, protocol=protocol))
    assert copied == catalog
    assert copied.routes.equals(catalog.routes)
    assert copied.databases.equals(catalog.databases)
    assert copied.addresses == catalog.addresses


def test_a_catalog_of_one_user_database_pickles() -> None:
    catalog = Catalog(rows([route("", "Orders")], schemas.ROUTES).drop_columns(["database"]))
    assert pickle.loads(pickle.dumps(catalog)).user_database == "user"
    assert copy.deepcopy(catalog) == catalog


def test_a_pickle_of_another_version_is_refused_with_a_clear_error() -> None:
    restore, (version, *state) = full().__reduce__()
    with pytest.raises(ssbroker.MalformedDataError, match=f"another version of ssbroker: its format is {version + 1}"):
        restore(version + 1, *state, "something new")


@pytest.mark.parametrize("name", ["routes", "databases", "services"])
@pytest.mark.parametrize("value", [5, "routes.parquet", [1], {"name": ["a"]}, object()])
def test_what_is_no_arrow_object_is_refused(name: str, value: object) -> None:
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: expected an Arrow object.*; got ") as caught:
        full(**{name: value})
    assert isinstance(caught.value, TypeError)
    assert type(value).__name__ in str(caught.value)


def test_routes_are_needed() -> None:
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
        ("message_forwarding", 1),
        ("message_forwarding", None),
    ],
)
def test_an_option_of_another_type_is_refused(option: str, value: object) -> None:
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
def test_a_bad_value_is_refused(given: dict[str, Any], error: type[ssbroker.InputError], column: str | None) -> None:
    with pytest.raises(error) as caught:
        full(**given)
    assert isinstance(caught.value, ValueError)
    assert column is None or caught.value.column == column
    if column is not None:
        assert caught.value.row is not None
        assert str(caught.value.row) in str(caught.value)


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(ssbroker.SchemaError, match="address") as caught:
        Catalog(pa.table({"name": ["a"]}))
    assert caught.value.column is not None


@pytest.mark.parametrize("suffix", ["", ".sql"])
def test_a_round_trip_changes_nothing(tmp_path: Path, suffix: str) -> None:
    catalog = full()
    catalog.save(tmp_path / f"net{suffix}", now=NOW)
    loaded = Catalog.load(tmp_path / f"net{suffix}", now=NOW)
    assert loaded == catalog
    assert sorted(loaded.routes.to_pylist(), key=str) == sorted(catalog.routes.to_pylist(), key=str)


def test_a_folder_keeps_further_columns(tmp_path: Path) -> None:
    routes = rows(ROUTES, schemas.ROUTES).append_column("principal_id", pa.array([1, 2, 3, 4]))
    catalog = full(routes=routes)
    catalog.save(str(tmp_path / "net"))
    assert Catalog.load(str(tmp_path / "net")).routes.equals(catalog.routes)


def test_a_catalog_that_ddl_cannot_say_leaves_the_old_script(tmp_path: Path) -> None:
    (tmp_path / "net.sql").write_text("USE Sales;")
    unsayable = Catalog(rows([route("Sales", "A", "TRANSPORT", remote_service_name="//Orders")], schemas.ROUTES))
    with pytest.raises(ssbroker.DdlError, match="9745"):
        unsayable.save(tmp_path / "net.sql")
    assert (tmp_path / "net.sql").read_text() == "USE Sales;"


def test_a_bad_value_in_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "routes.csv").write_text(
        "database,name,remote_service_name,broker_instance,lifetime,address,mirror_address\nSales,A,,,,TCP://a,\nSales,B,,,,b,\n"
    )
    with pytest.raises(ssbroker.InvalidAddressError) as caught:
        Catalog.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'routes.csv'}: ")
    assert (caught.value.column, caught.value.row) == ("routes.address", 1)


def test_several_scripts_are_run_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "2_routes.sql").write_text("CREATE ROUTE Orders WITH ADDRESS = N'TCP://orders:4022'")
    (tmp_path / "1_databases.sql").write_text("CREATE DATABASE Sales;\nUSE Sales")
    routes = Catalog.load(tmp_path, now=NOW).routes
    assert [(row["database"], row["name"]) for row in routes.to_pylist() if row["name"] == "Orders"] == [
        ("Sales", "Orders")
    ]


def test_an_error_in_one_of_several_scripts_names_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "1.sql").write_text("CREATE DATABASE Sales;\nUSE Sales;\n")
    (tmp_path / "2.sql").write_text("\n\nCREATE ROUTE Orders WITH ADDRESS = N'nowhere';\n")
    with pytest.raises(ssbroker.DdlError) as caught:
        Catalog.load(tmp_path)
    assert (caught.value.file, caught.value.line, caught.value.number) == (str(tmp_path / "2.sql"), 3, 9744)
    assert str(caught.value).startswith(f"{tmp_path / '2.sql'}:3: ")


def test_a_warning_in_one_of_several_scripts_names_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "1.sql").write_text("CREATE DATABASE Sales;\n")
    (tmp_path / "2.sql").write_text("\nCREATE TABLE t (a int);\n")
    with pytest.warns(ssbroker.DdlWarning, match=r"2\.sql:2: "):
        Catalog.load(tmp_path)
