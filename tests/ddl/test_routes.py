"""CREATE, ALTER and DROP ROUTE."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone

import pytest

from ssbroker import ddl, schemas
from tests.ddl.scripts import GUID, NOW, databases, names, read, routes

ID = uuid.UUID(GUID)


def test_route_with_every_clause() -> None:
    script = read(
        "USE Sales",
        "CREATE ROUTE R AUTHORIZATION dbo WITH",
        f"SERVICE_NAME = '//Orders', BROKER_INSTANCE = '{GUID}', LIFETIME = 60,",
        "ADDRESS = 'tcp://A:4022/', MIRROR_ADDRESS = N'TCP://b';",
    )
    assert routes(script)["R"] == {
        "database": "Sales",
        "name": "R",
        "route_id": 65537,
        "remote_service_name": "//Orders",
        "broker_instance": ID.bytes,
        "lifetime": NOW + timedelta(seconds=60),
        "address": "tcp://A:4022/",
        "mirror_address": "TCP://b",
    }


def test_clauses_in_any_order() -> None:
    script = read(
        "use Sales",
        f"create route R authorization [a b] with mirror_address='TCP://b',address='TCP://a',lifetime=+5,"
        f"broker_instance='{{{GUID.lower()}}}',service_name='//Orders'",
    )
    route = routes(script)["R"]
    assert (route["remote_service_name"], route["broker_instance"]) == ("//Orders", ID.bytes)
    assert (route["address"], route["mirror_address"]) == ("TCP://a", "TCP://b")
    assert route["lifetime"] == NOW + timedelta(seconds=5)


def test_every_database_is_created_with_auto_created_local() -> None:
    script = read("USE HR", "CREATE DATABASE Sales", "ALTER DATABASE Web SET ENABLE_BROKER")
    for database in ("Sales", "HR", "Web", "msdb"):
        route = routes(script, database)["AutoCreatedLocal"]
        assert route == dict.fromkeys(schemas.ROUTES.names) | {
            "database": database,
            "name": "AutoCreatedLocal",
            "route_id": 65536,
            "address": "LOCAL",
        }


def test_route_ids_continue_from_the_highest_of_their_database() -> None:
    script = read(
        "USE Sales",
        "CREATE ROUTE A WITH ADDRESS = 'LOCAL'",
        "CREATE ROUTE B WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=70000",
        "CREATE ROUTE C WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=7",
        "USE HR CREATE ROUTE A WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=-2147483648",
        "USE Web DROP ROUTE AutoCreatedLocal CREATE ROUTE A WITH ADDRESS = 'LOCAL'",
    )
    assert {name: row["route_id"] for name, row in routes(script).items()} == {
        "AutoCreatedLocal": 70001,
        "A": 70002,
        "B": 70000,
        "C": 7,
    }
    assert {name: row["route_id"] for name, row in routes(script, "HR").items()} == {
        "AutoCreatedLocal": 65536,
        "A": -(2**31),
    }
    assert {name: row["route_id"] for name, row in routes(script, "Web").items()} == {"A": 65536}


@pytest.mark.parametrize(
    ("clause", "column", "value"),
    [
        ("SERVICE_NAME = '//New'", "remote_service_name", "//New"),
        (
            "BROKER_INSTANCE = '11111111-2222-3333-4444-555555555555'",
            "broker_instance",
            uuid.UUID("11111111-2222-3333-4444-555555555555").bytes,
        ),
        ("LIFETIME = 7", "lifetime", NOW + timedelta(seconds=7)),
        ("ADDRESS = 'TCP://new'", "address", "TCP://new"),
        ("MIRROR_ADDRESS = 'TCP://new'", "mirror_address", "TCP://new"),
    ],
)
def test_alter_route_keeps_unspecified_clauses(clause: str, column: str, value: object) -> None:
    create = (
        "USE Sales",
        f"CREATE ROUTE R WITH SERVICE_NAME = 'S', BROKER_INSTANCE = '{GUID}', LIFETIME = 3, ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://b'",
        "CREATE ROUTE Last WITH ADDRESS = 'LOCAL'",
    )
    before, after = routes(read(*create)), routes(read(*create, f"ALTER ROUTE R WITH {clause}"))
    assert list(after) == ["AutoCreatedLocal", "R", "Last"]
    assert after == before | {"R": before["R"] | {column: value}}


def test_alter_route_keeps_the_id() -> None:
    line = "CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=7"
    assert routes(read("USE Sales", line, "ALTER ROUTE R WITH ADDRESS = 'TRANSPORT'"))["R"]["route_id"] == 7


def test_name_of_128_characters_is_accepted() -> None:
    for name in ("x" * 128, "😀" * 64):
        assert name in names(read("USE Sales", f"CREATE ROUTE [{name}] WITH ADDRESS = 'LOCAL'"))


def test_alter_route_renews_an_expired_route() -> None:
    line = "CREATE ROUTE R WITH ADDRESS = 'LOCAL', LIFETIME = 1 -- ssbroker: lifetime=2020-01-01T00:00:00Z"
    assert routes(read("USE Sales", line))["R"]["lifetime"] < NOW
    assert routes(read("USE Sales", line, "ALTER ROUTE R WITH LIFETIME = 1"))["R"]["lifetime"] == NOW + timedelta(
        seconds=1
    )


def test_lifetime_counts_from_now_in_utc() -> None:
    now = datetime(2026, 11, 20, 22, 0, 0, 1, tzinfo=timezone(timedelta(hours=1)))
    script = ddl.read("USE Sales CREATE ROUTE R WITH LIFETIME = 2147483647, ADDRESS = 'LOCAL'", now=now)
    assert routes(script)["R"]["lifetime"] == NOW + timedelta(seconds=2**31 - 1, microseconds=1)


def test_drop_route() -> None:
    script = read("USE Sales", "DROP ROUTE AutoCreatedLocal", "USE msdb DROP ROUTE AutoCreatedLocal;")
    assert script.routes.num_rows == 0
    assert list(databases(script)) == ["Sales", "msdb"]


def test_dropped_route_can_be_recreated() -> None:
    script = read(
        "USE Sales",
        "CREATE ROUTE A WITH ADDRESS = 'LOCAL' DROP ROUTE AutoCreatedLocal",
        "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'TRANSPORT'",
    )
    assert [(name, row["address"]) for name, row in routes(script).items()] == [
        ("A", "LOCAL"),
        ("AutoCreatedLocal", "TRANSPORT"),
    ]


def test_route_names_are_case_sensitive() -> None:
    script = read(
        "USE Sales",
        "CREATE ROUTE r WITH ADDRESS = 'LOCAL'",
        "CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'",
        "DROP ROUTE r",
    )
    assert names(script) == ["AutoCreatedLocal", "R"]


def test_databases_may_have_routes_of_the_same_name() -> None:
    script = read(
        "USE A CREATE ROUTE R WITH ADDRESS = 'LOCAL'",
        "USE B CREATE ROUTE R WITH ADDRESS = 'TRANSPORT' USE A DROP ROUTE R",
    )
    assert names(script, "A") == ["AutoCreatedLocal"]
    assert names(script, "B") == ["AutoCreatedLocal", "R"]
