"""Counts of what a database file holds, for people who look after it."""

from __future__ import annotations

from typing import Any

from ssbroker.store.sqlite import Connection


def queues(connection: Connection) -> list[tuple[Any, ...]]:
    """Each queue: schema, name, whether it takes and gives messages, and its messages by status 1, 2, 0 and 3."""
    return connection.execute(
        """
        SELECT schema_name, name, is_receive_enabled, is_enqueue_enabled, count(*) FILTER (WHERE status = 1),
            count(*) FILTER (WHERE status = 2) + (
                SELECT count(DISTINCT endpoint_id || ' ' || message_sequence_number) FROM ssb_fragments
                JOIN ssb_conversation_endpoints USING (endpoint_id) JOIN ssb_services s USING (service_id)
                WHERE s.queue_id = ssb_queues.queue_id AND state IN ('SI', 'CO')
            ), count(*) FILTER (WHERE status IN (0, 3))
        FROM ssb_queues LEFT JOIN ssb_queue_messages USING (queue_id)
        GROUP BY queue_id ORDER BY schema_name, name"""
    ).fetchall()


def conversations(connection: Connection) -> list[tuple[Any, ...]]:
    """How many endpoints are in each state."""
    return connection.execute(
        "SELECT state, count(*) FROM ssb_conversation_endpoints GROUP BY state ORDER BY state"
    ).fetchall()


def waiting(connection: Connection) -> list[tuple[Any, ...]]:
    """What waits in the transmission queue: the service it is for, why, messages, conversations, the oldest's moment."""
    return connection.execute(
        """
        SELECT CASE WHEN is_inbound THEN s.name ELSE far_service END, transmission_status, count(*),
            count(DISTINCT endpoint_id), min(enqueue_time)
        FROM ssb_transmission_queue JOIN ssb_conversation_endpoints USING (endpoint_id) JOIN ssb_services s USING (service_id)
        GROUP BY 1, 2 ORDER BY 5"""
    ).fetchall()
