"""Leases and waits of conversation groups. While either is in force, RECEIVE does not return the messages of the group.

A group is leased while a job has its messages, and waits until a scheduled time or a retry. Both are rows of `ssb_group_leases`; a wait
has no `lease_id`. The ready messages of a group that waits are hidden until the wait is freed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ssbroker.store.codes import READY
from ssbroker.store.sqlite import Connection

IS_HELD_SQL: Final = "until > {now} AND since - (until - since) <= {now}"
"""The SQL condition that a lease is in force.

A lease of 60 s that starts more than 60 s in the future is not in force: it was taken before the clock was set back.
"""


class Lease(NamedTuple):
    """A row of `ssb_group_leases`. Times are microseconds since 1970, UTC."""

    conversation_group_id: bytes
    queue_id: int
    lease_id: bytes | None
    """Identifies the holder, which may still acknowledge the messages after the end of the lease; None if the group is free or waits."""
    process_id: int | None
    """The process of the holder; None if the group is free or waits."""
    since: int
    until: int
    """The end of the lease or of the wait; 0 if the group is free."""
    attempts: int
    """Number of leases since the group was last acknowledged."""
    failures: int
    """Number of the leases in `attempts` that ended with an exception or expired."""

    def is_held(self, now: int) -> bool:
        """Returns whether the lease or wait is in force, by the same rule as `IS_HELD_SQL`."""
        return self.since - (self.until - self.since) <= now < self.until


def of_group(connection: Connection, group: bytes) -> Lease | None:
    """Returns the lease of a conversation group; None if it has neither a lease nor failures."""
    row = connection.execute("SELECT * FROM ssb_group_leases WHERE conversation_group_id = ?", (group,)).fetchone()
    return None if row is None else Lease._make(row)


def of_job(connection: Connection, group: bytes, *, now: int) -> Lease | None:
    """Returns the lease of the job that currently holds a conversation group; None if there is none."""
    lease = of_group(connection, group)
    return lease if lease is not None and lease.lease_id is not None and lease.is_held(now) else None


def store(connection: Connection, lease: Lease) -> None:
    """Inserts or replaces the lease of a conversation group; a group that starts or stops waiting needs `hide` or `show`, too."""
    connection.execute("REPLACE INTO ssb_group_leases VALUES (?, ?, ?, ?, ?, ?, ?, ?)", lease)


def hide(connection: Connection, group: bytes) -> None:
    """Hides the ready messages of a group that starts to wait."""
    connection.execute(_SET_HIDDEN, (1, None, group))


def show(connection: Connection, group: bytes, *, ready_at: int | None = None) -> None:
    """Shows the hidden messages of a group; with `ready_at`, the age of its ready messages counts from this time instead of from their arrival."""
    connection.execute(_SET_HIDDEN, (0, ready_at, group))


def free(connection: Connection, lease: Lease, *, now: int) -> None:
    """Ends a lease or wait, and makes the messages of the group available; keeps the numbers of attempts and failures."""
    group, ready_at = lease.conversation_group_id, min(lease.until, now)
    if not lease.attempts:
        remove(connection, group, ready_at=ready_at)
        return
    store(connection, lease._replace(process_id=None, until=0))
    if lease.lease_id is None:
        show(connection, group, ready_at=ready_at)


def free_ended_waits(connection: Connection, *, now: int) -> set[int]:
    """Makes available the messages of groups whose wait has ended; returns the ids of their queues."""
    ended_waits = [Lease._make(row) for row in connection.execute(_ENDED_WAITS, (now,))]
    for wait in ended_waits:
        free(connection, wait, now=now)
    return {wait.queue_id for wait in ended_waits}


def remove(connection: Connection, group: bytes, *, ready_at: int | None = None) -> None:
    """Deletes the lease or wait of a conversation group; after a wait, its messages are shown as by `show`."""
    if connection.execute(_REMOVE, (group,)).get:
        show(connection, group, ready_at=ready_at)


def ended(connection: Connection, *, now: int) -> list[Lease]:
    """Returns the leases and waits that have ended but have not been freed yet, the earliest first."""
    return sorted((Lease._make(row) for row in connection.execute(_ENDED, (now,))), key=lambda lease: lease.until)


def has_ended_wait(connection: Connection, queue_id: int, *, now: int) -> bool:
    """Returns whether a wait of a group in a queue has ended but has not been freed yet."""
    return connection.execute(_HAS_ENDED_WAIT, (now, queue_id)).fetchone() is not None


def remove_unused(connection: Connection) -> None:
    """Deletes free leases of conversation groups that no longer exist."""
    connection.execute(_REMOVE_UNUSED)


def next_end(connection: Connection, queue_id: int | None, *, now: int) -> int | None:
    """Returns the earliest time at which a lease or wait in a queue (None means any queue) ends; None if there is none."""
    end: int | None = connection.execute(_NEXT_END, (now, queue_id)).get
    return end


def group_has_messages(connection: Connection, group: bytes) -> bool:
    """Returns whether a conversation group has messages that could be received if it is not leased."""
    return connection.execute(_GROUP_HAS_READY, (group,)).fetchone() is not None


_SET_HIDDEN: Final = f"""
    UPDATE ssb_queued_messages SET is_hidden = ?1, enqueue_time = max(enqueue_time, ifnull(?2, enqueue_time))
    WHERE status = {READY} AND (is_hidden <> ?1 OR enqueue_time < ?2) AND endpoint_id IN (
        SELECT endpoint_id FROM ssb_conversation_endpoints WHERE conversation_group_id = ?3
    )"""  # noqa: S608
_REMOVE: Final = """
    DELETE FROM ssb_group_leases WHERE conversation_group_id = ? RETURNING lease_id IS NULL AND until > 0"""
# Each SELECT reads one partial index. The second condition for waits holds for waits that began before the clock was set back.
_ENDED_WAITS: Final = """
    SELECT * FROM ssb_group_leases WHERE lease_id IS NULL AND until > 0 AND until <= ?1
    UNION ALL SELECT * FROM ssb_group_leases WHERE lease_id IS NULL AND until > 0 AND 2 * since - until > ?1 AND +until > ?1"""
_ENDED: Final = f"""
    SELECT * FROM ssb_group_leases WHERE lease_id IS NOT NULL AND until > 0 AND NOT ({IS_HELD_SQL.format(now="?1")})
    UNION ALL {_ENDED_WAITS}"""  # noqa: S608
_HAS_ENDED_WAIT: Final = f"SELECT 1 FROM ({_ENDED_WAITS}) WHERE queue_id = ?2 LIMIT 1"  # noqa: S608
_REMOVE_UNUSED: Final = """
    DELETE FROM ssb_group_leases WHERE until = 0 AND NOT EXISTS (
        SELECT 1 FROM ssb_conversation_endpoints AS e WHERE e.conversation_group_id = ssb_group_leases.conversation_group_id
    )"""
_NEXT_END: Final = f"""
    SELECT min(until) FROM (
        SELECT until FROM ssb_group_leases
        WHERE lease_id IS NOT NULL AND until > 0 AND (?2 IS NULL OR queue_id = ?2) AND {IS_HELD_SQL.format(now="?1")}
        UNION ALL SELECT * FROM (
            SELECT until FROM ssb_group_leases
            WHERE lease_id IS NULL AND until > 0 AND until > ?1 AND (?2 IS NULL OR queue_id = ?2) ORDER BY until LIMIT 1
        )
    )"""  # noqa: S608
_GROUP_HAS_READY: Final = f"""
    SELECT 1 FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_queued_messages AS m USING (endpoint_id)
    WHERE e.conversation_group_id = ? AND m.status = {READY} LIMIT 1"""  # noqa: S608
