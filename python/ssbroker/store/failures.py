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
    """Inserts a failure, which replaces that of the same queue."""
    forget(connection, failure.queue_id)
    connection.execute(
        "INSERT INTO ssb_failures VALUES (?, ?, ?, ?)", failure._replace(error=failure.error[:ERROR_MAX])
    )


def last_of(connection: Connection, queue_id: int) -> Failure | None:
    """Returns the last failure in a queue; None if there is none."""
    row = connection.execute("SELECT * FROM ssb_failures WHERE queue_id = ?", (queue_id,)).fetchone()
    return None if row is None else Failure._make(row)


def forget(connection: Connection, queue_id: int) -> None:
    """Deletes the failure in a queue."""
    connection.execute("DELETE FROM ssb_failures WHERE queue_id = ?", (queue_id,))


def first_handle(connection: Connection, group: bytes) -> bytes | None:
    """Returns the endpoint of the first ready message of a conversation group; None if it has none."""
    row = connection.execute(_FIRST_HANDLE, (group,)).fetchone()
    return None if row is None else row[0]


_FIRST_HANDLE: Final = """
    SELECT e.conversation_handle FROM ssb_conversation_endpoints AS e JOIN ssb_queued_messages AS m USING (endpoint_id)
    WHERE e.conversation_group_id = ? AND m.status = 1 ORDER BY m.queuing_order LIMIT 1"""
