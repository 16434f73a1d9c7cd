"""The Arrow schemas of the contract. Column names are those of SQL Server's catalog views."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa


def _schema(*fields: pa.Field[Any]) -> pa.Schema:
    return pa.schema(list(fields))


GUID: Final = pa.binary(16)
"""A broker id or conversation id in results: 16 bytes in the order of `uuid.UUID.bytes`."""

DIGEST: Final = pa.binary(16)
"""An MD5, in clear or encrypted with a session key."""

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

_DIRECTION: Final = (
    pa.field("conversation_id", GUID, nullable=False),
    pa.field("is_initiator", pa.bool_(), nullable=False),
)
_MESSAGE: Final = (*_DIRECTION, pa.field("message_sequence_number", pa.int64(), nullable=False))
_FRAGMENT: Final = (
    *_MESSAGE,
    pa.field("fragment_number", pa.int32(), nullable=False),
    pa.field("fragment_count", pa.int32(), nullable=False),
)

FRAGMENTS: Final = _schema(
    *_FRAGMENT,
    pa.field("message_body", pa.binary(), nullable=False),
    pa.field("message_signature", DIGEST),
    pa.field("fragment_signature", DIGEST),
)
"""Parts of messages, each with the signature of the whole and its own."""

MESSAGES: Final = _schema(
    *_MESSAGE, pa.field("message_body", pa.binary(), nullable=False), pa.field("message_signature", DIGEST)
)
"""Whole messages; further columns of the fragments follow."""

RECEIVED: Final = _schema(
    *_MESSAGE,
    pa.field("message_body", pa.binary()),
    pa.field("message_signature", DIGEST),
    pa.field("conversation_handle", GUID, nullable=False),
    pa.field("conversation_group_id", GUID, nullable=False),
    pa.field("message_type_name", pa.string(), nullable=False),
    pa.field("service_name", pa.string(), nullable=False),
    pa.field("service_contract_name", pa.string(), nullable=False),
    pa.field("priority", pa.int32(), nullable=False),
    pa.field("queuing_order", pa.int64(), nullable=False),
    pa.field("status", pa.int32(), nullable=False),
    pa.field("validation", pa.string(), nullable=False),
)
"""What RECEIVE returns: whole messages with their conversation; an empty body is null, and so is a signature that was not needed."""

REJECTED: Final = _schema(*_FRAGMENT, pa.field("reason", pa.dictionary(pa.int8(), pa.string()), nullable=False))
"""Fragments that were refused, and why."""

ACKNOWLEDGEMENTS: Final = _schema(
    *_DIRECTION,
    pa.field("acked_sequence_number", pa.int64()),
    pa.field("partial_sequence_number", pa.int64()),
    pa.field("partial_fragments", pa.list_(pa.int32())),
)
"""What the sender of each direction is told: all messages up to a number, and fragments of the first that is incomplete."""

PENDING: Final = _schema(
    *_MESSAGE,
    pa.field("fragment_count", pa.int32(), nullable=False),
    pa.field("received_fragments", pa.int32(), nullable=False),
    pa.field("received_bytes", pa.int64(), nullable=False),
    pa.field("first_missing_fragment", pa.int32()),
    pa.field("waits_for_sequence_number", pa.int64()),
)
"""Messages that are incomplete, or whole and waiting for others."""
