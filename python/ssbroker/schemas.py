"""The Arrow schemas of the contract. Column names are those of SQL Server's catalog views."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa


def _schema(*fields: pa.Field[Any]) -> pa.Schema:
    return pa.schema(list(fields))


GUID: Final = pa.binary(16)
"""A broker id or conversation id in results: 16 bytes in the order of `uuid.UUID.bytes`."""

ROUTES: Final = _schema(
    pa.field("database", pa.string(), nullable=False),
    pa.field("name", pa.string(), nullable=False),
    pa.field("route_id", pa.int32(), nullable=False),
    pa.field("remote_service_name", pa.string()),
    pa.field("broker_instance", GUID),
    pa.field("lifetime", pa.timestamp("us", tz="UTC")),
    pa.field("address", pa.string(), nullable=False),
    pa.field("mirror_address", pa.string()),
)
"""`sys.routes`; `lifetime` is the moment of expiry."""

DATABASES: Final = _schema(
    pa.field("name", pa.string(), nullable=False),
    pa.field("service_broker_guid", GUID),
    pa.field("is_broker_enabled", pa.bool_(), nullable=False),
)
"""`sys.databases`; a null `service_broker_guid` is not known."""

SERVICES: Final = _schema(
    pa.field("database", pa.string(), nullable=False), pa.field("name", pa.string(), nullable=False)
)
"""`sys.services`."""

CONVERSATIONS: Final = _schema(
    pa.field("conversation_id", GUID, nullable=False),
    pa.field("database", pa.string()),
    pa.field("to_service_name", pa.string(), nullable=False),
    pa.field("to_broker_instance", GUID),
    pa.field("is_initiator", pa.bool_(), nullable=False),
)
"""What is to be routed, a row of `sys.transmission_queue`; a null `database` came from outside the instance."""

DECISIONS: Final = _schema(
    pa.field("outcome", pa.dictionary(pa.int8(), pa.string()), nullable=False),
    pa.field("match_step", pa.int8()),
    pa.field("route_id", pa.int32()),
    pa.field("next_hop_address", pa.dictionary(pa.int32(), pa.string())),
    pa.field("mirror_address", pa.dictionary(pa.int32(), pa.string())),
    pa.field("target_database", pa.dictionary(pa.int32(), pa.string())),
    pa.field("broker_instance", GUID),
    pa.field("reason", pa.dictionary(pa.int8(), pa.string()), nullable=False),
)
"""What routing returns, one row for each conversation, in the same order."""
