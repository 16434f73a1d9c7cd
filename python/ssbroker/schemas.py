"""Arrow schemas of the inputs and results. Column names are those of SQL Server's catalog views."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa


def _schema(*fields: pa.Field[Any]) -> pa.Schema:
    return pa.schema(list(fields))


GUID: Final = pa.binary(16)
"""Type of broker ids and conversation ids in results: 16 bytes in the order of `uuid.UUID.bytes`."""

DIGEST: Final = pa.binary(16)
"""Type of signatures: an MD5 digest, possibly encrypted with a session key."""

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
"""Routes, as in `sys.routes`; `lifetime` is the time when the route expires."""

DATABASES: Final = _schema(
    pa.field("name", pa.string(), nullable=False),
    pa.field("service_broker_guid", GUID),
    pa.field("is_broker_enabled", pa.bool_(), nullable=False),
)
"""Databases, as in `sys.databases`; a null `service_broker_guid` means that the broker id is unknown."""

SERVICES: Final = _schema(
    pa.field("database", pa.string(), nullable=False), pa.field("name", pa.string(), nullable=False)
)
"""Services, as in `sys.services`."""

CONVERSATIONS: Final = _schema(
    pa.field("conversation_id", GUID, nullable=False),
    pa.field("database", pa.string()),
    pa.field("to_service_name", pa.string(), nullable=False),
    pa.field("to_broker_instance", GUID),
    pa.field("is_initiator", pa.bool_(), nullable=False),
)
"""Conversations to route. `to_service_name` and `to_broker_instance` are as in `sys.transmission_queue`; a null `database` means that the
message arrived from another instance."""

DECISION_TABLE: Final = _schema(
    pa.field("database", pa.string()),
    pa.field("is_reply", pa.bool_(), nullable=False),
    pa.field("to_service_name", pa.string()),
    pa.field("has_broker_instance", pa.bool_(), nullable=False),
    pa.field("to_broker_instance", GUID),
    pa.field("hash_from", pa.int64(), nullable=False),
    pa.field("hash_to", pa.int64(), nullable=False),
    pa.field("only_from_initiator", pa.bool_(), nullable=False),
    pa.field("valid_until", pa.timestamp("us", tz="UTC")),
    pa.field("outcome", pa.string()),
    pa.field("match_step", pa.int8()),
    pa.field("route_id", pa.int32()),
    pa.field("next_hop_address", pa.string()),
    pa.field("mirror_address", pa.string()),
    pa.field("target_database", pa.string()),
    pa.field("broker_instance", GUID),
    pa.field("reason", pa.string()),
)
"""The decision for every kind of conversation, from `Router.decision_table`. The columns up to `only_from_initiator`
select conversations; the remaining columns are those of `DECISIONS`. A null `to_service_name` represents every
name that has no row in the same database, and a null `to_broker_instance` every broker id that has no row. A null
`outcome` means that the decision depends on the service name itself."""

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
"""Routing decisions: one row for each conversation, in the order of the input."""

REJECTED_CONVERSATIONS: Final = _schema(
    pa.field("row", pa.int64(), nullable=False),
    pa.field("column", pa.string(), nullable=False),
    pa.field("value", pa.string()),
    pa.field("reason", pa.string(), nullable=False),
)
"""Conversations that cannot be routed, from `Router.route` with `errors="reject"`: the row in the input, counted from 0, its first invalid
column, the value (shortened) and the reason: `null`, `invalid_guid`, `unknown_database` or `out_of_range`. In files, `out_of_range` is also
the reason for text that is not a number, a Boolean or hexadecimal digits."""

INVALID_FRAGMENTS: Final = _schema(*REJECTED_CONVERSATIONS)
"""Fragments with an invalid value, from `reassemble` and `Reassembler.push` with `errors="reject"`: the row in the input, counted from 0, its
first invalid column, the value (shortened) and the reason: `null`, `invalid_guid` or `out_of_range`. In files, `out_of_range` is also the reason
for text that is not a number, a Boolean or hexadecimal digits."""

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
"""Fragments of messages; each row contains the signature of the fragment and that of its message."""

MESSAGES: Final = _schema(
    *_MESSAGE, pa.field("message_body", pa.binary(), nullable=False), pa.field("message_signature", DIGEST)
)
"""Complete messages. In results, the extra columns of the fragments follow these columns."""

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
"""Messages that RECEIVE returns. `message_body` is null for message types without a body (EndDialog, DialogTimer);
`message_signature` is always null, because messages are verified before they enter a queue."""

REJECTED: Final = _schema(*_FRAGMENT, pa.field("reason", pa.dictionary(pa.int8(), pa.string()), nullable=False))
"""Rejected fragments, with the reason: `duplicate`, `corrupt_fragment`, `corrupt_message`, `conflict`, `out_of_range` or
`limit_exceeded`."""

ACKNOWLEDGEMENTS: Final = _schema(
    *_DIRECTION,
    pa.field("acked_sequence_number", pa.int64()),
    pa.field("partial_sequence_number", pa.int64()),
    pa.field("partial_fragments", pa.list_(pa.int32())),
)
"""Acknowledgements for the sender of each direction.

`acked_sequence_number` acknowledges all messages up to this number. `partial_fragments` are the received fragments of
the incomplete message `partial_sequence_number`.
"""

PENDING: Final = _schema(
    *_MESSAGE,
    pa.field("fragment_count", pa.int32(), nullable=False),
    pa.field("received_fragments", pa.int32(), nullable=False),
    pa.field("received_bytes", pa.int64(), nullable=False),
    pa.field("first_missing_fragment", pa.int32()),
    pa.field("waits_for_sequence_number", pa.int64()),
)
"""Messages that are incomplete, or complete and waiting for earlier messages of their direction."""
