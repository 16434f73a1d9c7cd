"""A catalog and conversations to route with it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ssbroker import Catalog, schemas

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)
ORDERS_ID = uuid.UUID("22222222-2222-2222-2222-222222222222")
HAS_STREAMS_OF_COLUMNS = hasattr(pa.ChunkedArray, "__arrow_c_stream__")
"""Whether pyarrow exports a chunked array; 16 is the first version that does."""
IDS = [uuid.UUID(int=number).bytes for number in range(100)]


def routes(*rows: dict[str, Any]) -> pa.Table:
    empty = dict.fromkeys(schemas.ROUTES.names)
    nullable = pa.schema([field.with_nullable(nullable=True) for field in schemas.ROUTES])
    return pa.Table.from_pylist([empty | {"database": "Sales"} | row for row in rows], schema=nullable)


COPIES = [
    {"name": f"Copy{number}", "address": f"TCP://copy{number}:4022", "remote_service_name": "//Orders"}
    for number in range(3)
]
CATALOG = Catalog(
    routes(
        *COPIES,
        {"name": "Late", "address": "TCP://late:4022", "remote_service_name": "//Late", "lifetime": NOW},
        {"name": "Mirrored", "address": "TCP://a", "mirror_address": "TCP://b", "remote_service_name": "//Mirrored"},
    ),
    pa.table({"name": ["Sales"], "service_broker_guid": [ORDERS_ID.bytes], "is_broker_enabled": [True]}),
    pa.table({"database": ["Sales"], "name": ["//Sales"]}),
)


def conversations(names: list[str], database: str | None = "Sales") -> pa.RecordBatch:
    return pa.record_batch(
        {
            "conversation_id": pa.array(IDS[: len(names)], pa.binary(16)),
            "database": pa.array([database] * len(names), pa.string()),
            "to_service_name": pa.array(names, pa.string()),
            "to_broker_instance": pa.nulls(len(names), pa.binary(16)),
        }
    )


class Capsule:
    """An Arrow object of an unknown library."""

    def __init__(self, value: Any) -> None:
        self._value = value


class ForeignArray(Capsule):
    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._value.__arrow_c_array__(requested_schema)


class ForeignStream(Capsule):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self._value.__arrow_c_stream__(requested_schema)
