"""Annotations: comments with what DDL cannot express."""

from __future__ import annotations

import uuid

import pytest

from tests.ddl.scripts import GUID, NOW, databases, read, refused, routes

ID = uuid.UUID(GUID)


ENDPOINT = "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022{ip}) FOR SERVICE_BROKER ({options})"


def test_addresses_annotation_adds_addresses() -> None:
    script = read(
        "-- ssbroker: addresses=TCP://first:1",
        ENDPOINT.format(ip=", LISTENER_IP = (10.0.0.1)", options="")
        + "; -- ssbroker: addresses=TCP://a:1,TCP://10.0.0.1:4022",
        "GO",
        "    --ssbroker:addresses=TCP://c:2",
    )
    assert script.addresses == ("TCP://10.0.0.1:4022", "TCP://first:1", "TCP://a:1", "TCP://c:2")


def test_addresses_only_annotation_replaces_the_addresses_of_an_endpoint() -> None:
    create = ENDPOINT.format(ip="", options="")
    assert read(f"{create} -- ssbroker: addresses_only=TCP://a:1,TCP://b:2").addresses == ("TCP://a:1", "TCP://b:2")
    assert read(f"{create} -- ssbroker: addresses_only=").addresses == ()
    assert read(create, "ALTER ENDPOINT Broker STATE = STOPPED -- ssbroker: addresses_only=TCP://b").addresses == (
        "TCP://b",
    )


def test_pending_requests_annotation() -> None:
    script = read(
        "-- ssbroker: pending_requests=//A/B,with%20space%2c,", "USE Sales -- ssbroker: pending_requests=naïve%0A"
    )
    assert script.pending_requests == ("//A/B", "with space,", "", "naïve\n")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=7 lifetime=2026-11-21T00:00:00.000001Z",
        "CREATE ROUTE R WITH ADDRESS = 'LOCAL', LIFETIME = 5; -- ssbroker: lifetime=2026-11-21T01:00:00.000001+01:00 route_id=7",
        "CREATE ROUTE R -- ssbroker: route_id=7\nWITH ADDRESS = 'LOCAL' -- ssbroker: lifetime=2026-11-21T00:00:00.000001Z",
        "CREATE ROUTE R WITH ADDRESS = 'LOCAL' ALTER ROUTE R WITH LIFETIME = 5; -- ssbroker: route_id=7 lifetime=2026-11-21T00:00:00.000001Z",
    ],
)
def test_annotations_of_route_id_and_exact_lifetime(statement: str) -> None:
    route = routes(read("USE Sales", statement, "DROP ROUTE AutoCreatedLocal"))["R"]
    assert (route["route_id"], route["lifetime"]) == (7, NOW.replace(hour=0, day=21, microsecond=1))


@pytest.mark.parametrize("statement", ["USE Sales", "CREATE DATABASE Sales;", "ALTER DATABASE Sales SET NEW_BROKER"])
def test_annotation_of_the_broker_id(statement: str) -> None:
    assert databases(read(f"{statement} -- ssbroker: service_broker_guid={GUID}"))["Sales"] == (ID.bytes, True)
    line = f"{statement} -- ssbroker: service_broker_guid=unknown"
    assert databases(read(line))["Sales"] == (None, True)


def test_ordinary_comments_are_not_annotations() -> None:
    script = read(
        "DROP DATABASE a", "-- see ssbroker: addresses=x", "/* ssbroker: addresses=x */", "-- SSBROKER: addresses=x"
    )
    assert script.addresses == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-- ssbroker: route=1", "unknown annotation 'route=1'"),
        ("-- ssbroker: route_id", "unknown annotation 'route_id'"),
        ("-- ssbroker: route_id=1", "does not follow a statement on the same line"),
        ("USE Sales\n-- ssbroker: service_broker_guid=unknown", "does not follow a statement on the same line"),
        ("USE Sales -- ssbroker: route_id=1", "does not apply to this statement"),
        ("DROP ROUTE AutoCreatedLocal -- ssbroker: route_id=1", "does not apply to this statement"),
        ("CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=x", "is not valid; expected a 32-bit integer"),
        (
            "CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=2147483648",
            "is not valid; expected a 32-bit integer",
        ),
        (
            "CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=1 route_id=2",
            "has two values, '1' and '2'; keep one",
        ),
        ("CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: lifetime=tomorrow", "is not a valid timestamp"),
        ("USE Sales -- ssbroker: service_broker_guid=7", "is not valid; expected a GUID, or 'unknown'"),
        ("-- ssbroker: pending_requests=%ff", "contains percent escapes that are not valid UTF-8"),
    ],
)
def test_invalid_annotation_is_refused(line: str, reason: str) -> None:
    error = refused("USE HR", line)
    assert reason in str(error)
    assert error.line == 2 + line.partition("ssbroker")[0].count("\n")
