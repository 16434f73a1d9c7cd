"""Finds due work in a database: waiting messages, timers, lifetimes, closed endpoints."""

from __future__ import annotations

from typing import Final

from ssbroker.store.sqlite import Connection


def outbound(connection: Connection) -> list[int]:
    """The endpoints with messages in the transmission queue that are to be delivered.

    Args:
        connection: The database.

    Returns:
        Their ids, ascending.
    """
    return [endpoint for (endpoint,) in connection.execute(_OUTBOUND)]


def inbound(connection: Connection) -> list[int]:
    """The endpoints with messages that arrived while their queue was off, and that it would take now (P34).

    Args:
        connection: The database.

    Returns:
        Their ids, ascending.
    """
    return [endpoint for (endpoint,) in connection.execute(_INBOUND)]


def timers(connection: Connection, *, now: int, limit: int) -> list[int]:
    """The endpoints whose conversation timer is over (fact 137), the longest first.

    Args:
        connection: The database.
        now: The moment.
        limit: How many at most.

    Returns:
        Their ids.
    """
    return [endpoint for endpoint, _ in connection.execute(f"{_TIMERS} LIMIT ?", (now, limit))]


def lifetimes(connection: Connection, *, now: int, limit: int) -> list[int]:
    """The endpoints whose lifetime has passed and that do not know it yet (B16), the longest first.

    Args:
        connection: The database.
        now: The moment.
        limit: How many at most.

    Returns:
        Their ids.
    """
    return [endpoint for endpoint, _ in connection.execute(f"{_LIFETIMES} LIMIT ?", (now, limit))]


def has_closed(connection: Connection, *, now: int) -> bool:
    """Whether closed endpoints have been kept long enough (B14).

    Args:
        connection: The database.
        now: The moment.
    """
    return connection.execute(f"{_CLOSED} LIMIT 1", (now,)).fetchone() is not None


def remove_closed(connection: Connection, *, now: int, limit: int) -> int:
    """Removes the closed endpoints that have been kept long enough (B14), the longest first.

    Args:
        connection: The database, with its write lock.
        now: The moment.
        limit: How many at most.

    Returns:
        How many.
    """
    connection.execute(_REMOVE_CLOSED, (now, limit))
    return connection.changes()


def next_moment(connection: Connection) -> int | None:
    """When the next timer or lifetime is due, or the closed endpoints of `GATHERED` are.

    Args:
        connection: The database.

    Returns:
        The moment, past or future; None where there is none.
    """
    first = [
        (connection.execute(f"{query} LIMIT 1", (_LAST_MOMENT,)).fetchone(), gathered)
        for query, gathered in ((_TIMERS, 0), (_LIFETIMES, 0), (_CLOSED, GATHERED))
    ]
    return min((row[1] + gathered for row, gathered in first if row is not None), default=None)


GATHERED: Final = 5_000_000
"""For so many microseconds closed endpoints whose time has come may stay, so that one transaction removes those of all of it (B14)."""
_LAST_MOMENT: Final = 2**63 - 1
_QUEUE: Final = "JOIN ssb_services USING (service_id) JOIN ssb_queues USING (queue_id)"
# A jump from one endpoint to the next, however many messages each has and of whichever kind.
_HELD: Final = """
    WITH RECURSIVE held (endpoint_id) AS (
        SELECT (SELECT endpoint_id FROM ssb_transmission_queue WHERE {0} ORDER BY endpoint_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT later.endpoint_id FROM ssb_transmission_queue AS later
            WHERE {0} AND later.endpoint_id > held.endpoint_id ORDER BY later.endpoint_id LIMIT 1
        ) FROM held WHERE held.endpoint_id IS NOT NULL
    )"""
WAITING: Final = f"""{_HELD.format("TRUE")}, waiting (endpoint_id) AS (
        SELECT endpoint_id FROM held
        WHERE EXISTS (SELECT 1 FROM ssb_transmission_queue AS t WHERE t.endpoint_id = held.endpoint_id AND t.is_inbound = 0)
    )"""  # noqa: S608
"""The table `waiting` of the endpoints with messages in the transmission queue that are to be delivered."""
_OUTBOUND: Final = f"{WAITING} SELECT endpoint_id FROM waiting"  # noqa: S608
_INBOUND: Final = f"""{_HELD.format("is_inbound = 1")}
    SELECT endpoint_id FROM held JOIN ssb_conversation_endpoints USING (endpoint_id) {_QUEUE} WHERE is_enqueue_enabled"""  # noqa: S608
_TIMERS: Final = f"""
    SELECT endpoint_id, dialog_timer FROM ssb_conversation_endpoints {_QUEUE}
    WHERE dialog_timer IS NOT NULL AND dialog_timer <= ? AND is_enqueue_enabled ORDER BY dialog_timer"""  # noqa: S608
_LIFETIMES: Final = f"""
    SELECT endpoint_id, lifetime FROM ssb_conversation_endpoints {_QUEUE}
    WHERE state <> 'CD' AND state <> 'ER' AND lifetime <= ? AND (is_enqueue_enabled OR state = 'DO')
    ORDER BY lifetime"""  # noqa: S608
_CLOSED: Final = """
    SELECT endpoint_id, security_timestamp FROM ssb_conversation_endpoints
    WHERE state = 'CD' AND security_timestamp <= ? ORDER BY security_timestamp"""
_REMOVE_CLOSED: Final = """
    DELETE FROM ssb_conversation_endpoints WHERE endpoint_id IN (
        SELECT endpoint_id FROM ssb_conversation_endpoints
        WHERE state = 'CD' AND security_timestamp <= ? ORDER BY security_timestamp LIMIT ?
    )"""
