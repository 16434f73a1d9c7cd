"""Counts of what a database file holds, for people who look after it."""

from __future__ import annotations

from typing import Any, Final

from ssbroker.store.sqlite import Connection


def queues(connection: Connection) -> list[tuple[Any, ...]]:
    """Each queue: schema, name, whether it takes and gives messages, and its messages by status 1, 2, 0 and 3."""
    return connection.execute(_QUEUES).fetchall()


def conversations(connection: Connection) -> list[tuple[Any, ...]]:
    """How many endpoints are in each state."""
    return connection.execute(
        "SELECT state, count(*) FROM ssb_conversation_endpoints GROUP BY state ORDER BY state"
    ).fetchall()


def waiting(connection: Connection) -> list[tuple[Any, ...]]:
    """What waits in the transmission queue: the service it is for, why, messages, conversations, the oldest's moment."""
    return connection.execute(_WAITING).fetchall()


# Both count in indexes: the rows hold the bodies.
_QUEUES: Final = """
    WITH queued AS (
        SELECT queue_id, count(*) FILTER (WHERE status = 1) AS ready, count(*) FILTER (WHERE status = 2) AS early,
            count(*) FILTER (WHERE status IN (0, 3)) AS retained
        FROM ssb_queued_messages GROUP BY queue_id
    ), incomplete AS (
        SELECT queue_id, count(*) AS messages
        FROM (SELECT DISTINCT endpoint_id, message_sequence_number FROM ssb_fragments)
            JOIN ssb_conversation_endpoints USING (endpoint_id) JOIN ssb_services USING (service_id)
        WHERE state IN ('SI', 'CO') GROUP BY queue_id
    )
    SELECT schema_name, name, is_receive_enabled, is_enqueue_enabled, ifnull(ready, 0), ifnull(early, 0) + ifnull(messages, 0),
        ifnull(retained, 0)
    FROM ssb_queues LEFT JOIN queued USING (queue_id) LEFT JOIN incomplete USING (queue_id) ORDER BY schema_name, name"""
# What came later has a greater number.
_WAITING: Final = """
    WITH each AS (
        SELECT endpoint_id, is_inbound, count(*) AS messages, min(transmission_id) AS first
        FROM ssb_transmission_queue GROUP BY endpoint_id, is_inbound
    ), alike AS (
        SELECT CASE WHEN is_inbound THEN s.name ELSE far_service END AS service, transmission_status, sum(messages) AS messages,
            count(DISTINCT endpoint_id) AS conversations, min(first) AS first
        FROM each JOIN ssb_conversation_endpoints USING (endpoint_id) JOIN ssb_services s USING (service_id) GROUP BY 1, 2
    )
    SELECT service, transmission_status, messages, conversations, enqueue_time
    FROM alike JOIN ssb_transmission_queue ON transmission_id = first ORDER BY enqueue_time"""
