"""A catalog that uses every feature."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

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
    options: dict[str, Any] = {
        "routes": rows(ROUTES, schemas.ROUTES),
        "databases": rows(DATABASES, schemas.DATABASES),
        "services": rows(SERVICES, schemas.SERVICES),
        "addresses": ["tcp://ME"],
        "message_forwarding": True,
        "pending_requests": ["//Contoso/Orders"],
    }
    return Catalog(**options | others)
