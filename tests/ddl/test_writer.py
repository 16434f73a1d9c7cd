"""A catalog is written as a script that reads back the same and that SQL Server can run."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import ddl, schemas
from ssbroker.exceptions import DdlError
from tests.ddl.scripts import GUID, NOW, read

DATA = Path(__file__).resolve().parents[1] / "data"
LATER = NOW + timedelta(days=1000)
ID = uuid.UUID(GUID).bytes
MSDB = ("msdb", None, True)


def route(database: str, name: str, address: str = "LOCAL", *, route_id: int = 65536, **others: Any) -> dict[str, Any]:
    empty = dict.fromkeys(schemas.ROUTES.names)
    return empty | {"database": database, "name": name, "address": address, "route_id": route_id} | others


def catalog(
    *routes: dict[str, Any],
    databases: Sequence[tuple[str, bytes | None, bool]] = (("Sales", None, True), MSDB),
    services: Sequence[tuple[str, str]] = (),
    addresses: tuple[str, ...] = (),
    message_forwarding: bool = False,
    pending_requests: tuple[str, ...] = (),
) -> ddl.ScriptTables:
    return ddl.ScriptTables(
        routes=pa.Table.from_pylist(list(routes), schemas.ROUTES),
        databases=pa.Table.from_pylist(
            [dict(zip(schemas.DATABASES.names, row, strict=True)) for row in databases], schemas.DATABASES
        ),
        services=pa.Table.from_pylist(
            [dict(zip(schemas.SERVICES.names, row, strict=True)) for row in services], schemas.SERVICES
        ),
        addresses=addresses,
        message_forwarding=message_forwarding,
        pending_requests=pending_requests,
    )


def written(script: ddl.ScriptTables) -> str:
    """Writes a script and checks that it reads back the same."""
    text = ddl.write(script, now=NOW)
    assert ddl.read(text, now=LATER) == script
    return text


def statements(script: ddl.ScriptTables) -> list[str]:
    """Returns the written lines after the header, without GO."""
    return [line for line in written(script).partition("\n\n")[2].splitlines() if line != "GO"]


def test_complete_script() -> None:
    script = catalog(
        route("Sales", "AutoCreatedLocal"),
        route(
            "Sales",
            "Or]ders",
            "TCP://a",
            route_id=65537,
            remote_service_name="//it's",
            broker_instance=ID,
            lifetime=NOW + timedelta(seconds=90, microseconds=5),
            mirror_address="TCP://b:1",
        ),
        route("HR", "Any", "TRANSPORT", route_id=7),
        databases=[("Sales", ID, True), ("HR", ID, False), MSDB],
        services=[("HR", "//Hiring"), ("Sales", "//it's"), ("HR", "//Pay[]")],
        addresses=("TCP://host:4023",),
        message_forwarding=True,
        pending_requests=("//a, b",),
    )
    assert written(script) == (DATA / "written.sql").read_text(encoding="utf-8")


def test_empty_catalog() -> None:
    assert statements(catalog(databases=[MSDB])) == ["USE [msdb];", "DROP ROUTE [AutoCreatedLocal];"]


def test_initial_route_of_a_database_is_not_written() -> None:
    assert statements(read("CREATE DATABASE Sales", "CREATE DATABASE HR")) == [
        "CREATE DATABASE [Sales];",
        "CREATE DATABASE [HR];",
        "USE [msdb];",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"route_id": 65540},
        {"address": "TRANSPORT"},
        {"address": "local"},
        {"remote_service_name": "//A"},
        {"lifetime": NOW},
    ],
)
def test_changed_auto_created_local_is_dropped_and_created(change: dict[str, Any]) -> None:
    lines = statements(catalog(route("Sales", "AutoCreatedLocal") | change))
    assert lines[:4] == [
        "CREATE DATABASE [Sales];",
        "USE [Sales];",
        "DROP ROUTE [AutoCreatedLocal];",
        "CREATE ROUTE [AutoCreatedLocal] WITH",
    ]


def test_order_of_rows_is_kept() -> None:
    databases = [("B", None, True), ("msdb", None, True), ("A", None, True), ("Empty", None, False)]
    rows = [
        route("A", "AutoCreatedLocal", route_id=65536),
        route("msdb", "R", route_id=65536),
        route("A", "R", route_id=65537),
        route("B", "R", route_id=65536),
        route("B", "AutoCreatedLocal", route_id=65537),
        route("msdb", "AutoCreatedLocal", route_id=65537),
    ]
    services = [("A", "S"), ("B", "S"), ("A", "R"), ("msdb", "S")]
    written(catalog(*rows, databases=databases, services=services))
    written(catalog(*reversed(rows), databases=databases[::-1], services=services[::-1]))


@pytest.mark.parametrize("name", ["master", "model", "tempdb"])
@pytest.mark.parametrize("guid", [None, ID])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_system_databases_are_not_created(name: str, guid: bytes | None, enabled: bool, own: bool) -> None:  # noqa: FBT001
    rows = [route(name, "AutoCreatedLocal")] if own else []
    text = written(catalog(*rows, databases=[(name, guid, enabled), ("msdb", guid, False)]))
    assert "CREATE DATABASE" not in text


@pytest.mark.parametrize("name", ["master", "model"])
def test_unused_system_databases_need_no_statement(name: str) -> None:
    """SQL Server shows zeros as their broker id, and refuses to alter their broker."""
    sales = [route("Sales", "R")]
    rows = [("Sales", ID, True), (name, bytes(16), False), ("msdb", None, True)]
    text = written(catalog(*sales, databases=rows))
    assert f"-- ssbroker: unused={name}\nGO\n" in text
    assert f"[{name}]" not in text
    written(catalog(*sales, databases=[rows[1], *rows[::2]]))
    used = written(catalog(*sales, route(name, "AutoCreatedLocal"), databases=rows))
    assert f"ALTER DATABASE [{name}] SET DISABLE_BROKER" in used


@pytest.mark.parametrize(
    ("ends", "seconds"),
    [
        (NOW + timedelta(seconds=5), 5),
        (NOW + timedelta(seconds=5, microseconds=999_999), 5),
        (NOW + timedelta(microseconds=1), 1),
        (NOW, 1),
        (datetime(1, 1, 1, tzinfo=UTC), 1),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 2**31 - 1),
    ],
)
def test_lifetime_is_the_remaining_whole_seconds(ends: datetime, seconds: int) -> None:
    lines = statements(catalog(route("Sales", "R", lifetime=ends)))
    assert f"    LIFETIME = {seconds}," in lines


@pytest.mark.parametrize(
    ("addresses", "listener"),
    [
        (("TCP://10.0.0.5:4022",), "LISTENER_PORT = 4022, LISTENER_IP = (10.0.0.5)"),
        (("TCP://[2001:db8::1]:4022",), "LISTENER_PORT = 4022, LISTENER_IP = ('2001:db8::1')"),
        (
            ("TCP://localhost:5000", "TCP://127.0.0.1:5000", "TCP://[::1]:5000"),
            "LISTENER_PORT = 5000, LISTENER_IP = ALL",
        ),
    ],
)
@pytest.mark.parametrize("forwarding", [True, False])
def test_addresses_of_a_listener_need_no_annotation(
    addresses: tuple[str, ...],
    listener: str,
    forwarding: bool,  # noqa: FBT001
) -> None:
    text = written(catalog(addresses=addresses, message_forwarding=forwarding))
    assert f"AS TCP ({listener})" in text
    assert "addresses_only" not in text


@pytest.mark.parametrize(
    ("addresses", "port"),
    [
        ((), 4022),
        (("TCP://a:80",), 4022),
        (("TCP://a:80", "TCP://b:5000", "TCP://c:6000"), 5000),
        (("TCP://10.0.0.5:4022", "TCP://a:4022"), 4022),
        (("TCP://localhost:4022",), 4022),
        (("TCP://10.0.0.5:80",), 4022),
    ],
)
def test_other_addresses_are_annotated(addresses: tuple[str, ...], port: int) -> None:
    text = written(catalog(addresses=addresses, message_forwarding=True))
    assert f"LISTENER_PORT = {port}," in text
    assert f"-- ssbroker: addresses_only={','.join(addresses)}\n" in text


def test_batches_have_at_most_five_hundred_statements() -> None:
    rows = [route("Sales", f"R{number}", route_id=65536 + number) for number in range(1200)]
    text = written(catalog(*rows))
    assert max(batch.count("CREATE ROUTE") for batch in text.split("\nGO\n")) == 500


@pytest.mark.parametrize(
    ("change", "number", "reason"),
    [
        ({"mirror_address": "TCP://b", "address": "TCP://a"}, 9661, "MIRROR_ADDRESS requires"),
        ({"broker_instance": ID}, 9662, "BROKER_INSTANCE requires SERVICE_NAME"),
        ({"remote_service_name": "S", "address": "TRANSPORT"}, 9745, "TRANSPORT"),
        ({"remote_service_name": ""}, 9659, "SERVICE_NAME is empty; specify a value, or omit the clause"),
        ({"remote_service_name": "s" * 257}, 9660, "SERVICE_NAME has more"),
        ({"remote_service_name": "SQL/ServiceBroker/BrokerConfiguration", "broker_instance": ID}, None, "cannot have"),
        ({"name": ""}, 1038, "a name is empty"),
        ({"name": "x" * 129}, 103, "more than 128 characters"),
    ],
)
def test_error_names_the_refused_route_and_the_error_number(
    change: dict[str, Any], number: int | None, reason: str
) -> None:
    row = route("Sales", "Mine") | change
    with pytest.raises(DdlError) as caught:
        ddl.write(catalog(row), now=NOW)
    assert caught.value.number == number
    assert str(caught.value).startswith(f"CREATE ROUTE [{row['name']}] in [Sales]: ")
    assert reason in str(caught.value)


def test_lifetime_outside_the_calendar_cannot_be_written() -> None:
    table = catalog(route("Sales", "R")).routes
    column = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    script = catalog()
    beyond = ddl.ScriptTables(
        table.set_column(5, schemas.ROUTES.field("lifetime"), column), script.databases, script.services, (), False, ()
    )
    with pytest.raises(
        DdlError, match=r"CREATE ROUTE \[R\] in \[Sales\]: the lifetime ends outside the years 1 to 9999"
    ):
        ddl.write(beyond, now=NOW)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            catalog(route("Sales", "R"), route("Sales", "R", route_id=65537)),
            r"CREATE ROUTE \[R\] in \[Sales\]: .* another route",
        ),
        (
            catalog(services=[("Sales", "S"), ("Sales", "S")]),
            r"CREATE SERVICE \[S\] in \[Sales\]: .* already has this service",
        ),
        (catalog(services=[("Sales", "")]), r"CREATE SERVICE \[\] in \[Sales\]: error 1038"),
        (catalog(databases=[("MSDB", None, True), MSDB]), r"CREATE DATABASE \[MSDB\]: error 1801: .* means msdb"),
        (catalog(databases=[("Master", None, True), MSDB]), r"CREATE DATABASE \[Master\]: error 1801: .* means master"),
        (catalog(databases=[("x" * 129, None, True), MSDB]), r"CREATE DATABASE .*: error 103"),
    ],
)
def test_catalogs_that_no_script_can_create_are_refused(script: ddl.ScriptTables, reason: str) -> None:
    with pytest.raises(DdlError, match=reason):
        ddl.write(script, now=NOW)


def test_catalog_from_tables_round_trips() -> None:
    original = ssbroker.Catalog(
        pa.table(
            {
                "name": ["A", "B"],
                "address": ["TCP://a", "LOCAL"],
                "remote_service_name": ["//S", None],
                "note": ["x", "y"],
            }
        ),
        services=pa.table({"database": ["user"], "name": ["//S"]}),
        addresses=["tcp://HOST"],
    )
    script = ddl.read(original.to_ddl(now=NOW), now=LATER)
    assert script.routes.equals(original.routes.select(schemas.ROUTES.names))
    assert script.databases.equals(original.databases)
    assert script.services.equals(original.services)
    assert script.addresses == original.addresses == ("TCP://host:4022",)
