"""Content, equality and pickling of catalogs."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, schemas
from tests.catalog.catalogs import DATABASES, NOW, ROUTES, SERVICES, full, route, rows


def test_a_catalog_returns_its_input() -> None:
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


def test_msdb_and_databases_that_only_routes_name_are_added() -> None:
    assert [row["name"] for row in full().databases.to_pylist()] == ["Sales", "Old", "Archive", "msdb"]
    added = full().databases.to_pylist()[2]
    assert added == {"name": "Archive", "service_broker_guid": None, "is_broker_enabled": True}


def test_routes_without_a_database_belong_to_the_only_user_database() -> None:
    lone = rows([route("", "Orders"), route("", "Hub")], schemas.ROUTES).drop_columns(["database", "route_id"])
    catalog = Catalog(lone)
    assert catalog.user_database == "user"
    assert catalog.routes["database"].to_pylist() == ["user", "user"]
    assert catalog.routes["route_id"].to_pylist() == [65536, 65537]


def test_a_catalog_knows_whether_it_has_mirrors_and_services() -> None:
    with_mirror = route("Sales", "Orders", mirror_address="TCP://b:1")
    without = rows([route("Sales", "Orders")], schemas.ROUTES)
    catalogs = [
        full(),
        Catalog(rows([route("Sales", "Hub"), with_mirror], schemas.ROUTES)),
        Catalog(without),
        Catalog(without.drop_columns(["mirror_address"]), services=schemas.SERVICES.empty_table()),
    ]
    assert [catalog.has_mirrors for catalog in catalogs[1:]] == [True, False, False]
    assert [catalog.has_services for catalog in catalogs] == [True, False, False, False]


def test_extra_columns_follow_those_of_the_schema() -> None:
    routes = rows(ROUTES, schemas.ROUTES).append_column("principal_id", pa.array([1, 2, 3, 4]))
    databases = rows(DATABASES, schemas.DATABASES).add_column(0, "state_desc", pa.array(["ONLINE", "OFFLINE"]))
    catalog = full(routes=routes, databases=databases)
    assert catalog.routes.column_names == [*schemas.ROUTES.names, "principal_id"]
    assert catalog.routes["principal_id"].to_pylist() == [1, 2, 3, 4]
    assert catalog.databases.column_names == [*schemas.DATABASES.names, "state_desc"]
    assert catalog.databases["state_desc"].to_pylist() == ["ONLINE", "OFFLINE", None, None]


def test_extra_columns_are_null_for_added_databases() -> None:
    columns = {"name": ["Sales"], "is_broker_enabled": [True], "service_broker_guid": pa.nulls(1, pa.binary(16))}
    never_null = pa.field("database_id", pa.int64(), nullable=False)
    databases = pa.table(columns).append_column(never_null, pa.array([5]))
    shown = full(databases=databases, services=None).databases
    shown.validate(full=True)
    assert shown["database_id"].to_pylist() == [5, None, None]


def test_catalogs_with_equal_content_are_equal() -> None:
    catalog = full()
    assert catalog == full()
    assert catalog == full(
        routes=rows(ROUTES[::-1], schemas.ROUTES), services=rows([*SERVICES[::-1], SERVICES[0]], schemas.SERVICES)
    )
    assert catalog == full(routes=rows(ROUTES, schemas.ROUTES).append_column("extra", pa.nulls(4)))
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
def test_catalogs_with_different_content_are_not_equal(change: dict[str, Any]) -> None:
    assert full() != full(**change)
    assert full().fingerprint != full(**change).fingerprint


def test_every_column_of_a_route_affects_equality() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"remote_service_name": "a"},
        {"remote_service_name": "b"},
        {"mirror_address": "TCP://a:1"},
        {"address": "TRANSPORT"},
        {"route_id": 1},
        {"lifetime": datetime(1970, 1, 1, tzinfo=UTC)},
    ]
    last = [rows([*ROUTES[:3], ROUTES[3] | change], schemas.ROUTES) for change in changes]
    assert len({full(routes=routes).fingerprint for routes in last}) == len(changes)


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).fingerprint)"
    environment = os.environ | {"PYTHONHASHSEED": "4"}
    child = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(full()), capture_output=True, check=True, env=environment
    )
    assert child.stdout.decode().strip() == full().fingerprint
    assert len(full().fingerprint) == 64


def test_a_catalog_is_not_hashable() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(full())


def test_repr_shows_counts() -> None:
    assert (
        repr(full())
        == "Catalog(routes=4, databases=4, services=2, addresses=1, message_forwarding=True, pending_requests=1)"
    )


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickling_keeps_extra_columns(dumps: Any, protocol: int) -> None:
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


def test_a_pickle_of_another_version_is_rejected() -> None:
    restore, (version, *state) = full().__reduce__()
    with pytest.raises(
        ssbroker.MalformedDataError, match=f"an incompatible version of ssbroker: its format is {version + 1}"
    ):
        restore(version + 1, *state, "something new")


def test_replaced_addresses_count_as_specified() -> None:
    catalog = Catalog(schemas.ROUTES.empty_table(), addresses=["TCP://old"])
    assert catalog.replace(routes=ROUTES).details.specified_addresses == {"TCP://old:4022"}
    assert catalog.replace(addresses=["TCP://new"]).details.specified_addresses == {"TCP://new:4022"}


def test_a_copy_with_more_addresses_keeps_the_details_of_its_script(tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text("CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER;")
    catalog = Catalog.load(script)
    assert catalog.details.endpoint is not None
    assert catalog.with_addresses(["TCP://shop"]).details.endpoint == catalog.details.endpoint
