"""The counts in the overview of a database: messages, leases, conversations, and messages in the transmission queue."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from ssbroker.store import leases
from ssbroker.store.codes import EARLY, READY, RECEIVING_STATES, RETAINED_RECEIVED, RETAINED_SENT
from ssbroker.store.conversation_endpoints import JOIN_QUEUE
from ssbroker.store.sqlite import Connection
from ssbroker.store.views import LEASE_STATE


class QueueCounts(NamedTuple):
    """The numbers of messages in a queue."""

    queue_id: int
    schema_name: str
    name: str
    is_receive_enabled: int
    is_enqueue_enabled: int
    ready: int
    """The number of messages that can be received now."""
    waiting: int
    """The number of messages that are scheduled for later or for a retry."""
    leased: int
    incomplete: int
    """The number of early messages and incomplete messages."""
    retained: int
    ready_since: int | None
    """When the first ready message became ready."""


class LeaseCounts(NamedTuple):
    """The conversation groups of a queue whose leases are in the same state: their number, attempts and failures."""

    schema_name: str
    name: str
    state: str
    groups: int
    attempts: int
    """The sum of the attempts of the conversation groups."""
    failures: int
    """The sum of the failures of the conversation groups."""


class MovedCounts(NamedTuple):
    """The conversation groups that poison message handling has moved from one queue to another."""

    schema_name: str
    name: str
    to_schema_name: str
    to_name: str
    groups: int
    failed_at: int
    """The time of the last failure."""
    error: str
    """The text of the last failure."""


class ConversationCounts(NamedTuple):
    """The number of endpoints in a state, and when the oldest was created."""

    state: str
    conversations: int
    oldest: int | None
    """When the oldest endpoint was created; None if no time is known."""


class TransmissionCounts(NamedTuple):
    """The messages in the transmission queue for the same service and with the same status."""

    service_name: str
    transmission_status: str
    messages: int
    conversations: int
    oldest: int
    """When the oldest message was enqueued."""


class OldestMessage(NamedTuple):
    """The oldest message in the transmission queue for a service."""

    conversation_id: uuid.UUID
    message_sequence_number: int
    from_service_name: str
    to_broker_instance: bytes | None
    is_initiator: bool
    """Whether the initiator sent the message."""
    transmission_status: str


def queue_counts(connection: Connection, *, now: int) -> list[QueueCounts]:
    """Counts the messages of each queue."""
    return [QueueCounts._make(row) for row in connection.execute(_QUEUES, (now,))]


def lease_counts(connection: Connection, *, now: int) -> list[LeaseCounts]:
    """Counts the conversation groups with leases, for each queue and state."""
    return [LeaseCounts._make(row) for row in connection.execute(_LEASES, (now,))]


def moved_counts(connection: Connection) -> list[MovedCounts]:
    """Counts the conversation groups that have been moved, for each pair of queues."""
    return [MovedCounts._make(row) for row in connection.execute(_MOVED)]


def conversation_counts(connection: Connection) -> list[ConversationCounts]:
    """Counts the endpoints in each state."""
    return [ConversationCounts._make(row) for row in connection.execute(_CONVERSATIONS)]


def transmission_counts(connection: Connection) -> list[TransmissionCounts]:
    """Counts the messages in the transmission queue, for each service and status, the oldest first."""
    return [TransmissionCounts._make(row) for row in connection.execute(_WAITING)]


def oldest_message(connection: Connection, service: str, *, status: str | None = None) -> OldestMessage | None:
    """Returns the oldest message in the transmission queue for a service, with a status if given; None if there is none.

    Only the first `STATUS_MAX` characters of the statuses are compared.
    """
    wanted = None if status is None else status[:STATUS_MAX]
    found = connection.execute(_OLDEST_MESSAGE, (service, wanted)).fetchone()
    if found is None:
        return None
    conversation, number, from_service, broker_instance, is_initiator, status = found
    return OldestMessage(
        uuid.UUID(bytes=conversation), number, from_service, broker_instance, bool(is_initiator), status
    )


STATUS_MAX: Final = 1000
"""The number of characters of a status that are compared. The live page sends no more, to keep the URL short."""

# Counts with indexes only, because the rows contain the bodies. A wait that has ended may not have been freed yet.
_IS_HELD: Final = leases.IS_HELD_SQL.format(now="?1")
_QUEUES: Final = f"""
    WITH held AS MATERIALIZED (
        SELECT m.queue_id, m.queuing_order, lease_id IS NULL AS waits
        FROM ssb_group_leases CROSS JOIN ssb_conversation_endpoints AS e USING (conversation_group_id)
            CROSS JOIN ssb_queued_messages AS m USING (endpoint_id)
        WHERE {_IS_HELD} AND m.status = {READY}
    ), hidden AS (
        SELECT queue_id, count(*) FILTER (WHERE waits) AS waiting, count(*) FILTER (WHERE NOT waits) AS leased FROM held GROUP BY queue_id
    ), queued AS (
        SELECT queue_id, count(*) FILTER (WHERE status = {READY}) AS complete, count(*) FILTER (WHERE status = {EARLY}) AS early,
            count(*) FILTER (WHERE status IN ({RETAINED_RECEIVED}, {RETAINED_SENT})) AS retained,
            min(queuing_order) FILTER (WHERE status = {READY} AND queuing_order NOT IN (SELECT queuing_order FROM held)) AS first
        FROM ssb_queued_messages GROUP BY queue_id
    ), incomplete AS (
        SELECT q.queue_id, count(*) AS messages
        FROM (SELECT DISTINCT endpoint_id, message_sequence_number FROM ssb_fragments)
            JOIN ssb_conversation_endpoints AS e USING (endpoint_id) {JOIN_QUEUE}
        WHERE state IN {RECEIVING_STATES} GROUP BY q.queue_id
    )
    SELECT queue_id, schema_name, name, is_receive_enabled, is_enqueue_enabled,
        ifnull(complete, 0) - ifnull(waiting, 0) - ifnull(leased, 0), ifnull(waiting, 0), ifnull(leased, 0),
        ifnull(early, 0) + ifnull(messages, 0), ifnull(retained, 0),
        (SELECT max(enqueue_time, ifnull((
            SELECT min(until, ?1) FROM ssb_conversation_endpoints AS e JOIN ssb_group_leases USING (conversation_group_id)
            WHERE e.endpoint_id = m.endpoint_id AND lease_id IS NULL), 0))
        FROM ssb_queued_messages AS m WHERE queuing_order = first)
    FROM ssb_queues LEFT JOIN queued USING (queue_id) LEFT JOIN hidden USING (queue_id) LEFT JOIN incomplete USING (queue_id)
    ORDER BY schema_name, name"""  # noqa: S608
_LEASES: Final = f"""
    SELECT schema_name, name, CASE WHEN {_IS_HELD} THEN {LEASE_STATE} ELSE 'READY' END AS state, count(*), sum(attempts), sum(failures)
    FROM ssb_group_leases JOIN ssb_queues USING (queue_id) GROUP BY queue_id, 3 ORDER BY schema_name, name, 3"""  # noqa: S608
_CONVERSATIONS: Final = """
    SELECT state, count(*), min(begin_time) FROM ssb_conversation_endpoints GROUP BY state ORDER BY state"""
# SQLite reads the error from the row with the maximum.
_MOVED: Final = """
    SELECT q.schema_name, q.name, p.schema_name, p.name, count(*), max(failed_at), error
    FROM ssb_failures f JOIN ssb_queues q USING (queue_id) JOIN ssb_queues p ON p.queue_id = moved_to
    GROUP BY f.queue_id, moved_to ORDER BY 1, 2, 3, 4"""
# Later messages have greater transmission ids.
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
_OLDEST_MESSAGE: Final = f"""
    SELECT conversation_id, message_sequence_number, CASE WHEN is_inbound THEN far_service ELSE s.name END,
        CASE WHEN is_inbound THEN (SELECT service_broker_guid FROM ssb_database) ELSE far_broker_instance END,
        is_initiator <> is_inbound, transmission_status
    FROM ssb_transmission_queue JOIN ssb_conversation_endpoints e USING (endpoint_id) JOIN ssb_services s USING (service_id)
    WHERE CASE WHEN is_inbound THEN s.name ELSE far_service END = ?1
        AND (?2 IS NULL OR substr(transmission_status, 1, {STATUS_MAX}) = ?2)
    ORDER BY transmission_id LIMIT 1"""  # noqa: S608
