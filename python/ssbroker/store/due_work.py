"""Queries for due work: messages to deliver, expired timers and lifetimes, removable endpoints."""

from __future__ import annotations

from typing import Final

from ssbroker.store.sqlite import Connection


def deliverable_endpoints(connection: Connection) -> list[int]:
    """Returns the ids of endpoints whose messages in the transmission queue are to be delivered, ascending."""
    return [endpoint for (endpoint,) in connection.execute(_DELIVERABLE)]


def enqueueable_endpoints(connection: Connection) -> list[int]:
    """Returns the ids of endpoints with messages that arrived while their queue was off, and whose queue is on now, ascending."""
    return [endpoint for (endpoint,) in connection.execute(_ENQUEUEABLE)]


def expired_timers(connection: Connection, *, now: int, limit: int) -> list[int]:
    """Returns the ids of endpoints whose conversation timer has expired, the longest expired first."""
    return [endpoint for endpoint, _ in connection.execute(f"{_EXPIRED_TIMERS} LIMIT ?", (now, limit))]


def expired_lifetimes(connection: Connection, *, now: int, limit: int) -> list[int]:
    """Returns the ids of endpoints that are past their lifetime but not yet in an error state, the longest expired first."""
    return [endpoint for endpoint, _ in connection.execute(f"{_EXPIRED_LIFETIMES} LIMIT ?", (now, limit))]


def has_removable(connection: Connection, *, now: int) -> bool:
    """Whether any closed endpoint can be removed."""
    return connection.execute(f"{_REMOVABLE} LIMIT 1", (now,)).fetchone() is not None


def remove_closed(connection: Connection, *, now: int, limit: int) -> int:
    """Removes up to `limit` closed endpoints whose retention has ended, the oldest first, and returns how many."""
    connection.execute(_REMOVE_CLOSED, (now, limit))
    return connection.changes()


def next_due_time(connection: Connection) -> int | None:
    """Returns when the next timer or lifetime expires or closed endpoints are to be removed; None if there are none."""
    first = [
        (connection.execute(f"{query} LIMIT 1", (_TIME_MAX,)).fetchone(), delay)
        for query, delay in ((_EXPIRED_TIMERS, 0), (_EXPIRED_LIFETIMES, 0), (_REMOVABLE, REMOVAL_DELAY))
    ]
    return min((row[1] + delay for row, delay in first if row is not None), default=None)


REMOVAL_DELAY: Final = 5_000_000
"""Microseconds by which the removal of closed endpoints is delayed, so that one transaction removes many."""
_TIME_MAX: Final = 2**63 - 1
_QUEUE: Final = "JOIN ssb_services USING (service_id) JOIN ssb_queues USING (queue_id)"
# Jumps from one endpoint to the next in the index instead of reading every message.
_ENDPOINTS: Final = """
    WITH RECURSIVE found (endpoint_id) AS (
        SELECT (SELECT endpoint_id FROM ssb_transmission_queue WHERE {0} ORDER BY endpoint_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT later.endpoint_id FROM ssb_transmission_queue AS later
            WHERE {0} AND later.endpoint_id > found.endpoint_id ORDER BY later.endpoint_id LIMIT 1
        ) FROM found WHERE found.endpoint_id IS NOT NULL
    )"""
WAITING_ENDPOINTS: Final = f"""{_ENDPOINTS.format("TRUE")}, waiting (endpoint_id) AS (
        SELECT endpoint_id FROM found
        WHERE EXISTS (SELECT 1 FROM ssb_transmission_queue AS t WHERE t.endpoint_id = found.endpoint_id AND t.is_inbound = 0)
    )"""  # noqa: S608
"""WITH clause of the table `waiting`: endpoints whose messages in the transmission queue are to be delivered."""
_DELIVERABLE: Final = f"{WAITING_ENDPOINTS} SELECT endpoint_id FROM waiting"  # noqa: S608
_ENQUEUEABLE: Final = f"""{_ENDPOINTS.format("is_inbound = 1")}
    SELECT endpoint_id FROM found JOIN ssb_conversation_endpoints USING (endpoint_id) {_QUEUE} WHERE is_enqueue_enabled"""  # noqa: S608
_EXPIRED_TIMERS: Final = f"""
    SELECT endpoint_id, dialog_timer FROM ssb_conversation_endpoints {_QUEUE}
    WHERE dialog_timer IS NOT NULL AND dialog_timer <= ? AND is_enqueue_enabled ORDER BY dialog_timer"""  # noqa: S608
_EXPIRED_LIFETIMES: Final = f"""
    SELECT endpoint_id, lifetime FROM ssb_conversation_endpoints {_QUEUE}
    WHERE state <> 'CD' AND state <> 'ER' AND lifetime <= ? AND (is_enqueue_enabled OR state = 'DO')
    ORDER BY lifetime"""  # noqa: S608
_REMOVABLE: Final = """
    SELECT endpoint_id, security_timestamp FROM ssb_conversation_endpoints
    WHERE state = 'CD' AND security_timestamp <= ? ORDER BY security_timestamp"""
_REMOVE_CLOSED: Final = """
    DELETE FROM ssb_conversation_endpoints WHERE endpoint_id IN (
        SELECT endpoint_id FROM ssb_conversation_endpoints
        WHERE state = 'CD' AND security_timestamp <= ? ORDER BY security_timestamp LIMIT ?
    )"""
