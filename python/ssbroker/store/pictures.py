"""What stands in a database, as the native module has it: as far as it decides about plain messages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from ssbroker import _core
from ssbroker.store.objects import DEFAULT_SCHEMA, Objects

Picture: TypeAlias = "_core.Picture"
"""What the native statements are given with each message; other rooms name it without importing the module."""


def picture(objects: Objects, staying: Collection[str], *, is_name: Callable[[str], bool]) -> Picture:
    """The picture of objects.

    Args:
        objects: What stands in the database.
        staying: Those of its services that no route leads away from (B10).
        is_name: Whether a text, given as the name of a queue, means the one of `dbo` that is called so.

    Returns:
        The picture.
    """
    return _core.Picture(
        broker_instance=objects.broker.service_broker_guid,
        is_delivering=objects.broker.is_delivering,
        queues=[
            (
                one.queue_id,
                one.is_receive_enabled,
                one.is_enqueue_enabled,
                one.is_retention_enabled,
                one.name if one.schema_name == DEFAULT_SCHEMA and is_name(one.name) else None,
            )
            for one in objects.queues.values()
        ],
        services=[(one.service_id, one.name, one.queue_id) for one in objects.services.values()],
        contracts=[
            (
                one.service_contract_id,
                one.name,
                [(kind, rule.is_sent_by_initiator, rule.is_sent_by_target) for kind, rule in one.messages.items()],
            )
            for one in objects.contracts.values()
        ],
        message_types=[(one.message_type_id, one.name, one.validation) for one in objects.message_types.values()],
        staying=list(staying),
    )
