"""How an instance is doing, in counts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from ssbroker import moment
from ssbroker.broker.network.service import bulletin
from ssbroker.exceptions import StorageError
from ssbroker.protocol.retry import SECOND
from ssbroker.protocol.states import DESCRIPTIONS, State
from ssbroker.store import overview

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance

Rows = list[dict[str, Any]]


def overview_of(instance: Instance) -> dict[str, Any]:
    """Databases, queues, conversations by state, what waits in the transmission queues and why, and who serves with which connections.

    Args:
        instance: The instance.

    Returns:
        Names, lists and numbers, as JSON has them. A database that cannot be read is SUSPECT, with its problem, and nothing is counted of it.

    Raises:
        StorageError: The file of msdb cannot be read.
    """
    counted: dict[str, Rows] = {"queues": [], "conversations": [], "transmission_queue": []}
    unread: dict[str, str] = {}
    for database in instance.databases:
        try:
            for name, rows in _counted(database).items():
                counted[name] += rows
        except StorageError as error:  # of the others there is something to tell (B42)
            unread[database.name] = str(error)
    databases = instance.view("sys.databases").select(
        ["name", "state_desc", "service_broker_guid", "is_broker_enabled"]
    )
    return {
        "instance": instance.name,
        "databases": [
            {
                **row,
                "state_desc": "SUSPECT" if row["name"] in unread else row["state_desc"],
                "service_broker_guid": str(uuid.UUID(bytes=row["service_broker_guid"])),
                "problem": unread.get(row["name"]),
            }
            for row in databases.to_pylist()
        ],
        **counted,
        "serving": bulletin.read(instance.folder),
    }


def _counted(database: Database) -> dict[str, Rows]:
    """What stands in a file, all of it or nothing."""
    name, now = database.name, moment.microseconds(database.instance.clock())
    with database.file.read() as connection:
        return {
            "queues": [
                {
                    "database": name,
                    "queue": f"{schema}.{queue}",
                    "is_receive_enabled": bool(receives),
                    "is_enqueue_enabled": bool(enqueues),
                    "ready": ready,
                    "incomplete": incomplete,
                    "retained": retained,
                }
                for schema, queue, receives, enqueues, ready, incomplete, retained in overview.queues(connection)
            ],
            "conversations": [
                {"database": name, "state": state, "state_desc": DESCRIPTIONS[State(state)], "count": count}
                for state, count in overview.conversations(connection)
            ],
            "transmission_queue": [
                {
                    "database": name,
                    "to_service_name": service,
                    "messages": messages,
                    "conversations": dialogs,
                    "oldest_seconds": max(0, (now - oldest) // SECOND),
                    "transmission_status": status,
                }
                for service, status, messages, dialogs, oldest in overview.waiting(connection)
            ],
        }
