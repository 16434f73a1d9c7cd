"""Why poison message handling disabled queues: the conversation of the last failure, and its error."""

from __future__ import annotations

from typing import Final, NamedTuple

from ssbroker.store.sqlite import Connection

ERROR_MAX: Final = 2_000


class Failure(NamedTuple):
    """A row of `ssb_failures`."""

    queue_id: int
    """The queue that contains the message."""
    conversation_handle: bytes | None
    """The endpoint that received the message; None if others took it meanwhile."""
    failed_at: int
    """The time of the last failure, in microseconds since 1970, UTC."""
    error: str


def record(connection: Connection, failure: Failure) -> None:
    """Inserts a failure; replaces that of the same message, and removes those whose conversation is gone."""
    connection.execute(_REMOVE_OLD, (failure.queue_id, failure.conversation_handle))
    connection.execute(
        "INSERT INTO ssb_failures VALUES (?, ?, ?, ?)", failure._replace(error=failure.error[:ERROR_MAX])
    )


def last_of(connection: Connection, queue_id: int) -> Failure | None:
    """Returns the last failure in a queue; None if there is none."""
    row = connection.execute(_LAST, (queue_id,)).fetchone()
    return None if row is None else Failure._make(row)


def forget(connection: Connection, queue_id: int) -> None:
    """Deletes the failures in a queue."""
    connection.execute("DELETE FROM ssb_failures WHERE queue_id = ?", (queue_id,))


def first_handle(connection: Connection, group: bytes) -> bytes | None:
    """Returns the endpoint of the first ready message of a conversation group; None if it has none."""
    row = connection.execute(_FIRST_HANDLE, (group,)).fetchone()
    return None if row is None else row[0]


_REMOVE_OLD: Final = """
    DELETE FROM ssb_failures WHERE (queue_id = ?1 AND conversation_handle IS ?2)
        OR (conversation_handle NOT NULL AND conversation_handle NOT IN (SELECT conversation_handle FROM ssb_conversation_endpoints))"""
_LAST: Final = "SELECT * FROM ssb_failures WHERE queue_id = ? ORDER BY failed_at DESC, rowid DESC LIMIT 1"
_FIRST_HANDLE: Final = """
    SELECT e.conversation_handle FROM ssb_conversation_endpoints AS e JOIN ssb_queued_messages AS m USING (endpoint_id)
    WHERE e.conversation_group_id = ? AND m.status = 1 ORDER BY m.queuing_order LIMIT 1"""
