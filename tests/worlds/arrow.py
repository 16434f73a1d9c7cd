"""Conversion of worlds and conversations to Arrow, and of decisions back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

import ssbroker
from tests.oracle.world import Conversation, Decision, World


def guid_text(guid: UUID | None, number: int = 0) -> str | None:
    """Returns a GUID as text; the number selects the spelling."""
    if guid is None:
        return None
    usual = str(guid)
    return (usual, f"{{{usual.upper()}}}", usual.upper(), f"{{{usual}}}")[number % 4]


def guid_array(guids: Iterable[UUID | None], *, text: bool) -> pa.Array[Any]:
    """Returns a column of GUIDs, as text in several spellings or as 16 bytes."""
    if text:
        return pa.array([guid_text(guid, number) for number, guid in enumerate(guids)], pa.string())
    return pa.array([None if guid is None else guid.bytes for guid in guids], pa.binary(16))


def _strings(values: Iterable[str | None]) -> pa.Array[Any]:
    return pa.array(list(values), pa.string())


def catalog_of(world: World, *, text_guids: bool = False) -> ssbroker.Catalog:
    """Returns the catalog of a world."""
    routes = pa.table(
        {
            "database": _strings(route.database for route in world.routes),
            "name": _strings(route.name for route in world.routes),
            "route_id": pa.array([route.route_id for route in world.routes], pa.int32()),
            "remote_service_name": _strings(route.remote_service_name for route in world.routes),
            "broker_instance": guid_array((route.broker_instance for route in world.routes), text=text_guids),
            "lifetime": pa.array([route.lifetime for route in world.routes], pa.timestamp("us", tz="UTC")),
            "address": _strings(route.address for route in world.routes),
            "mirror_address": _strings(route.mirror_address for route in world.routes),
        }
    )
    ids = guid_array((database.service_broker_guid for database in world.databases), text=text_guids)
    databases = pa.table(
        {
            "name": _strings(database.name for database in world.databases),
            "service_broker_guid": ids,
            "is_broker_enabled": pa.array([database.is_broker_enabled for database in world.databases], pa.bool_()),
        }
    )
    services = pa.table(
        {
            "database": _strings(service.database for service in world.services),
            "name": _strings(service.name for service in world.services),
        }
    )
    return ssbroker.Catalog(
        routes,
        databases,
        services,
        addresses=world.addresses,
        message_forwarding=world.message_forwarding,
        pending_requests=world.pending_requests,
    )


def batch_of(conversations: Sequence[Conversation], *, text_guids: bool = False) -> pa.RecordBatch:
    """Returns a batch of conversations."""
    own = guid_array((conversation.conversation_id for conversation in conversations), text=text_guids)
    broker = guid_array((conversation.to_broker_instance for conversation in conversations), text=text_guids)
    return pa.record_batch(
        {
            "conversation_id": own,
            "database": _strings(conversation.database for conversation in conversations),
            "to_service_name": _strings(conversation.to_service_name for conversation in conversations),
            "to_broker_instance": broker,
            "is_initiator": pa.array([conversation.is_initiator for conversation in conversations], pa.bool_()),
        }
    )


def decisions_of(result: pa.RecordBatch | pa.Table) -> list[Decision]:
    """Returns the rows of a result."""
    columns = {name: result.column(name).to_pylist() for name in result.schema.names}
    columns["broker_instance"] = [None if guid is None else UUID(bytes=guid) for guid in columns["broker_instance"]]
    return [Decision(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
