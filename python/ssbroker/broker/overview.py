"""How an instance is doing, in counts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from ssbroker import moment
from ssbroker.broker.network.service import bulletin
from ssbroker.protocol.retry import SECOND
from ssbroker.protocol.states import DESCRIPTIONS, State
from ssbroker.store import overview

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

Rows = list[dict[str, Any]]


def overview_of(instance: Instance) -> dict[str, Any]:
    """Databases, queues, conversations by state, what waits in the transmission queues and why, and who serves with which connections.

    Args:
        instance: The instance.

    Returns:
        Names, lists and numbers, as JSON has them.

    Raises:
        StorageError: A file cannot be read.
    """
    queues: Rows = []
    conversations: Rows = []
    waiting: Rows = []
    now = moment.microseconds(instance.clock())
    for database in instance.databases:
        name = database.name
        with database.file.read() as connection:
            for schema, queue, receives, enqueues, ready, incomplete, retained in overview.queues(connection):
                queues.append(
                    {
                        "database": name,
                        "queue": f"{schema}.{queue}",
                        "is_receive_enabled": bool(receives),
                        "is_enqueue_enabled": bool(enqueues),
                        "ready": ready,
                        "incomplete": incomplete,
                        "retained": retained,
                    }
                )
            for state, count in overview.conversations(connection):
                row = {"database": name, "state": state, "state_desc": DESCRIPTIONS[State(state)], "count": count}
                conversations.append(row)
            for service, status, messages, dialogs, oldest in overview.waiting(connection):
                waiting.append(
                    {
                        "database": name,
                        "to_service_name": service,
                        "messages": messages,
                        "conversations": dialogs,
                        "oldest_seconds": max(0, (now - oldest) // SECOND),
                        "transmission_status": status,
                    }
                )
    databases = instance.view("sys.databases").select(
        ["name", "state_desc", "service_broker_guid", "is_broker_enabled"]
    )
    return {
        "instance": instance.name,
        "databases": [
            {**row, "service_broker_guid": str(uuid.UUID(bytes=row["service_broker_guid"]))}
            for row in databases.to_pylist()
        ],
        "queues": queues,
        "conversations": conversations,
        "transmission_queue": waiting,
        "serving": bulletin.read(instance.folder),
    }
