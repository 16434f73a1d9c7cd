"""The failures of poison messages: why queues are disabled, and which conversation groups have been moved to another queue."""

from __future__ import annotations

from typing import Final, NamedTuple

from ssbroker.store.codes import CLOSED, READY
from ssbroker.store.sqlite import Connection

ERROR_MAX: Final = 2_000
"""The maximum length of a stored error, in characters."""


class Failure(NamedTuple):
    """A row of `ssb_failures`: a queue that is disabled, or a conversation group that has been moved."""

    queue_id: int
    """The queue in which the messages failed."""
    conversation_handle: bytes | None
    """The handle of the endpoint whose message failed; None if another receiver has taken the message in the meantime."""
    failed_at: int
    """The time of the last failure, in microseconds since 1970, UTC."""
    error: str
    conversation_group_id: bytes | None = None
    """The group that has been moved; None if the queue is disabled."""
    moved_to: int | None = None
    """The queue to which the messages of the group were moved; None if the queue is disabled."""


def shortened_error(error: str) -> str:
    """Returns the text of an error as it is stored and logged; a long text is cut and ends with ` ...`.

    Examples:
        >>> shortened_error("no such planet"), shortened_error("x" * 200_000)[-6:], len(shortened_error("x" * 200_000))
        ('no such planet', 'xx ...', 2000)
    """
    return error if len(error) <= ERROR_MAX else f"{error[: ERROR_MAX - 4]} ..."


def record_failure(connection: Connection, failure: Failure) -> None:
    """Inserts a failure, which replaces an earlier failure of the same queue or group."""
    if failure.conversation_group_id is None:
        forget_failure_of_queue(connection, failure.queue_id)
    else:
        forget_moved_group(connection, failure.conversation_group_id)
    connection.execute("INSERT INTO ssb_failures VALUES (?, ?, ?, ?, ?, ?)", failure)


def failure_of_queue(connection: Connection, queue_id: int) -> Failure | None:
    """Returns why a queue is disabled; None if there is no failure."""
    row = connection.execute(
        "SELECT * FROM ssb_failures WHERE queue_id = ? AND moved_to IS NULL", (queue_id,)
    ).fetchone()
    return None if row is None else Failure._make(row)


def forget_failure_of_queue(connection: Connection, queue_id: int) -> None:
    """Deletes the failure that disabled a queue."""
    connection.execute("DELETE FROM ssb_failures WHERE queue_id = ? AND moved_to IS NULL", (queue_id,))


def first_ready_handle(connection: Connection, group: bytes) -> bytes | None:
    """Returns the conversation handle of the first ready message of a conversation group; None if there is no ready message."""
    row = connection.execute(_FIRST_READY_HANDLE, (group,)).fetchone()
    return None if row is None else row[0]


def has_moved_groups(connection: Connection) -> bool:
    """Returns whether any conversation group has been moved."""
    return connection.execute("SELECT 1 FROM ssb_failures WHERE moved_to IS NOT NULL LIMIT 1").fetchone() is not None


def queue_of_moved_group(connection: Connection, group: bytes) -> int | None:
    """Returns the id of the queue to which a conversation group has been moved; None if it has not been moved."""
    row = connection.execute(
        "SELECT moved_to FROM ssb_failures WHERE conversation_group_id = ? AND moved_to IS NOT NULL", (group,)
    ).fetchone()
    return None if row is None else row[0]


def forget_moved_group(connection: Connection, group: bytes) -> None:
    """Removes the record that a conversation group has been moved."""
    connection.execute("DELETE FROM ssb_failures WHERE conversation_group_id = ? AND moved_to IS NOT NULL", (group,))


def groups_moved_from(connection: Connection, queue_id: int) -> list[bytes]:
    """Returns the moved conversation groups of the services of a queue, the earliest moved first."""
    return [group for (group,) in connection.execute(_GROUPS_MOVED_FROM, (queue_id,))]


def move_messages(connection: Connection, endpoint_id: int, queue_id: int) -> int:
    """Moves the messages of an endpoint to another queue, where they keep their order; returns how many can be received."""
    connection.execute("UPDATE ssb_queued_messages SET queue_id = ? WHERE endpoint_id = ?", (queue_id, endpoint_id))
    ready: int = connection.execute(
        "SELECT count(*) FROM ssb_queued_messages WHERE endpoint_id = ? AND status = ?", (endpoint_id, READY)
    ).get
    return ready


def has_groups_moved_to(connection: Connection, queue_id: int) -> bool:
    """Returns whether conversation groups have been moved to a queue."""
    return (
        connection.execute("SELECT 1 FROM ssb_failures WHERE moved_to = ? LIMIT 1", (queue_id,)).fetchone() is not None
    )


_FIRST_READY_HANDLE: Final = f"""
    SELECT e.conversation_handle FROM ssb_conversation_endpoints AS e JOIN ssb_queued_messages AS m USING (endpoint_id)
    WHERE e.conversation_group_id = ? AND m.status = {READY} ORDER BY m.queuing_order LIMIT 1"""  # noqa: S608
_GROUPS_MOVED_FROM: Final = f"""
    SELECT conversation_group_id FROM ssb_failures AS f WHERE moved_to IS NOT NULL AND EXISTS (
        SELECT 1 FROM ssb_conversation_endpoints AS e JOIN ssb_services AS s USING (service_id)
        WHERE e.conversation_group_id = f.conversation_group_id AND e.state <> '{CLOSED}' AND s.queue_id = ?
    ) ORDER BY failed_at, rowid"""  # noqa: S608
