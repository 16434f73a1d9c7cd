"""An overview of an instance: its queues, the serving process, waiting conversations, and current problems."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from ssbroker._arguments import EPOCH
from ssbroker._text import enable_queue_command, restore_spaces
from ssbroker.broker.database import database_context
from ssbroker.broker.dialogs.poison_message_handling import describe_failure
from ssbroker.broker.network import status_file
from ssbroker.exceptions import SsbrokerError, StorageError
from ssbroker.protocol.conversation_states import DESCRIPTIONS, ConversationState
from ssbroker.protocol.settings import SECOND
from ssbroker.store import failures, overview_counts
from ssbroker.store.overview_counts import QueueCounts
from ssbroker.store.sqlite import Connection

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance


Rows = list[dict[str, Any]]

DatabaseQueue: TypeAlias = tuple[str, str]
"""The names of a database and of a queue in it; the queue name includes the schema."""


def overview_of(instance: Instance) -> dict[str, Any]:
    """Returns the databases, queues, failed messages, leases, conversations by state, transmission queues, and serving process of an instance, ready for JSON.

    A database that cannot be read has the state SUSPECT and a `problem`, and contributes no counts. A database that this process could not write
    recently, or whose disk is almost full, also has a `problem`.
    """
    counted: dict[str, Rows] = {"queues": [], "moved": [], "leases": [], "conversations": [], "transmission_queue": []}
    listed = database_context(instance.msdb).instance.databases_list
    unread = {name: str(error) for name, error in listed.unavailable().items()}
    unwritten = {}
    for database in instance.databases:
        try:
            for name, rows in _count_rows(database).items():
                counted[name] += rows
        except StorageError as error:  # report the other databases
            unread[database.name] = str(error)
            continue
        unwritten[database.name] = database_context(database).file.write_failure
    server = instance.server  # another thread may end serving
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
                "problem": unread.get(row["name"]) or unwritten.get(row["name"]),
            }
            for row in databases.to_pylist()
        ],
        **counted,
        "serving": (server.status() if server is not None else None) or status_file.read_status(instance.folder),
    }


def forwarding_of(instance: Instance) -> dict[str, int] | None:
    """Returns the messages and bytes that this process has forwarded, has dropped, and still has to forward; None if it does not serve the instance."""
    server = instance.server  # another thread may end serving
    if server is None:
        return None
    done = server.forwarding.counters
    messages, waiting_bytes = server.forwarding.pending
    return {
        "messages": done.messages,
        "bytes": done.bytes,
        "messages_discarded": done.discarded,
        "pending_messages": messages,
        "pending_bytes": waiting_bytes,
    }


def _count_rows(database: Database) -> dict[str, Rows]:
    """Counts the rows of a database in one snapshot."""
    name, now = database.name, database_context(database).instance.microseconds()
    with database_context(database).file.read() as connection:
        return {
            "queues": [
                {
                    "database": name,
                    "queue": f"{queue.schema_name}.{queue.name}",
                    "is_receive_enabled": bool(queue.is_receive_enabled),
                    "is_enqueue_enabled": bool(queue.is_enqueue_enabled),
                    "ready": queue.ready,
                    "waiting": queue.waiting,
                    "leased": queue.leased,
                    "incomplete": queue.incomplete,
                    "retained": queue.retained,
                    "oldest_seconds": _seconds_since(queue.ready_since, now),
                    "problem": None if queue.is_receive_enabled else _why_disabled(connection, queue, name),
                }
                for queue in overview_counts.queue_counts(connection, now=now)
            ],
            "moved": [
                {
                    "database": name,
                    "queue": f"{moved.schema_name}.{moved.name}",
                    "moved_to": f"{moved.to_schema_name}.{moved.to_name}",
                    "groups": moved.groups,
                    "last_failed_at": str(EPOCH + timedelta(microseconds=moved.failed_at)),
                    "error": moved.error,
                }
                for moved in overview_counts.moved_counts(connection)
            ],
            "leases": [
                {
                    "database": name,
                    "queue": f"{leased.schema_name}.{leased.name}",
                    "state": leased.state,
                    "groups": leased.groups,
                    "attempts": leased.attempts,
                    "failures": leased.failures,
                }
                for leased in overview_counts.lease_counts(connection, now=now)
            ],
            "conversations": [
                {
                    "database": name,
                    "state": each.state,
                    "state_desc": DESCRIPTIONS[ConversationState(each.state)],
                    "count": each.conversations,
                    "oldest_seconds": _seconds_since(each.oldest, now),
                }
                for each in overview_counts.conversation_counts(connection)
            ],
            "transmission_queue": [
                {
                    "database": name,
                    "to_service_name": waiting.service_name,
                    "messages": waiting.messages,
                    "conversations": waiting.conversations,
                    "oldest_seconds": _seconds_since(waiting.oldest, now),
                    "transmission_status": waiting.transmission_status,
                }
                for waiting in overview_counts.transmission_counts(connection)
            ],
        }


def _seconds_since(time: int | None, now: int) -> int | None:
    """Returns the seconds since a time; 0 if the clock was set back, None if the time is not known."""
    return None if time is None else max(0, (now - time) // SECOND)


def _why_disabled(connection: Connection, queue: QueueCounts, database: str) -> str | None:
    """Returns why a queue was disabled, and how to enable it again; None if a statement disabled it."""
    failure = failures.failure_of_queue(connection, queue.queue_id)
    if failure is None:
        return None
    command = restore_spaces(enable_queue_command(database, queue.schema_name, queue.name))
    return f"{describe_failure(failure)}. To enable the queue again: {command}"


def health_problems(instance: Instance) -> dict[str, str]:
    """Returns the problems of an instance by subject. An unreachable peer is not a problem.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     health_problems(instance)
        {'endpoint': 'no thread of this process serves the instance'}
    """
    found: dict[str, str] = {}
    server = instance.server  # another thread may end serving
    if server is None or not server.is_alive:
        found["endpoint"] = "no thread of this process serves the instance"
    credentials = None if server is None else server.credentials
    if credentials is not None and (trouble := credentials.validity_problem()) is not None:
        found["certificate"] = trouble
    try:
        for row in instance.view("sys.databases").to_pylist():
            if row["state_desc"] != "ONLINE":
                found[f"database {row['name']}"] = "its file is missing or cannot be used"
        for database in instance.databases:
            file = database_context(database).file
            file.check_writable()
            if (read_failure := file.read_failure) is not None:
                found.setdefault(f"database {database.name}", read_failure)
            if (write_failure := file.write_failure) is not None:
                found.setdefault(f"database {database.name}", write_failure)
    except SsbrokerError as error:
        found["databases"] = str(error)
    return found
