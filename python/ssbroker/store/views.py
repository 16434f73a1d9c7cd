"""Queries of the catalog views of a database."""

from __future__ import annotations

import uuid
from typing import Any, Final

from ssbroker.store import leases
from ssbroker.store.column_values import CLOSED, EARLY, READY, RECEIVING_STATES, RETAINED_RECEIVED, RETAINED_SENT
from ssbroker.store.conversation_endpoints import JOIN_QUEUE
from ssbroker.store.sqlite import Connection

_EARLY: Final = f"""
    SELECT message_sequence_number AS number FROM ssb_queued_messages q WHERE q.endpoint_id = e.endpoint_id AND status = {EARLY}
    UNION ALL
    SELECT message_sequence_number FROM ssb_fragments f
    WHERE f.endpoint_id = e.endpoint_id AND message_sequence_number > e.receive_sequence"""  # noqa: S608
_ENDPOINTS: Final = f"""
    SELECT conversation_handle, conversation_id, is_initiator, service_contract_id, conversation_group_id, service_id,
        lifetime, state, NULL, far_service, far_broker_instance,
        (SELECT principal_id FROM ssb_services s WHERE s.service_id = e.service_id),
        (SELECT principal_id FROM ssb_certificates c WHERE c.fingerprint = e.far_certificate), NULL, NULL, security_timestamp, dialog_timer,
        send_sequence, NULL, end_dialog_sequence, receive_sequence,
        (SELECT count(*) FROM ssb_fragments f
            WHERE f.endpoint_id = e.endpoint_id AND message_sequence_number = receive_sequence), 0,
        (SELECT min(number) FROM ({_EARLY})),
        (SELECT max(number) FROM ({_EARLY})),
        (SELECT fragment_number FROM ssb_fragments f
            WHERE f.endpoint_id = e.endpoint_id AND message_sequence_number > receive_sequence
            ORDER BY message_sequence_number DESC, fragment_number DESC LIMIT 1),
        0, priority
    FROM ssb_conversation_endpoints e ORDER BY endpoint_id"""  # noqa: S608
# Incomplete messages are shown in their queue if it is on, else in the transmission queue; not if the conversation no longer receives.
_INCOMPLETE: Final = f"""
    SELECT endpoint_id, message_sequence_number, message_type_name, message_id, is_conversation_error, is_end_of_dialog,
        min(enqueue_time) AS enqueue_time, CASE WHEN fragment_count = 1 THEN nullif(message_body, x'') END AS message_body
    FROM ssb_fragments JOIN ssb_conversation_endpoints e USING (endpoint_id)
    WHERE e.state IN {RECEIVING_STATES} GROUP BY endpoint_id, message_sequence_number"""  # noqa: S608
TRANSMITTED: Final = """conversation_handle,
        CASE WHEN is_inbound THEN s.name ELSE far_service END,
        CASE WHEN is_inbound THEN (SELECT service_broker_guid FROM ssb_database) ELSE far_broker_instance END,
        CASE WHEN is_inbound THEN far_service ELSE s.name END,
        c.name, enqueue_time, message_sequence_number, message_type_name, is_conversation_error, is_end_of_dialog,
        message_body, transmission_status, priority, is_initiator <> is_inbound"""
"""Columns of the transmission queue; requires the joins of `TRANSMITTED_WITH`."""
TRANSMITTED_WITH: Final = """
        JOIN ssb_conversation_endpoints e USING (endpoint_id)
        JOIN ssb_services s USING (service_id)
        JOIN ssb_contracts c USING (service_contract_id)"""
INCOMPLETE_PARKED: Final = f"""
        SELECT 1 AS is_incomplete, NULL AS transmission_id, endpoint_id, 1 AS is_inbound, message_sequence_number, message_type_name,
            is_conversation_error, is_end_of_dialog, enqueue_time, message_body
        FROM ({_INCOMPLETE}) JOIN ssb_conversation_endpoints AS e USING (endpoint_id) {JOIN_QUEUE} WHERE NOT is_enqueue_enabled"""  # noqa: S608
"""Incomplete messages whose queue is off."""
_TRANSMISSION_QUEUE: Final = f"""
    SELECT {TRANSMITTED}
    FROM (
        SELECT 0 AS is_incomplete, transmission_id, endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error,
            is_end_of_dialog, enqueue_time, message_body FROM ssb_transmission_queue
        UNION ALL {INCOMPLETE_PARKED}
    ) t {TRANSMITTED_WITH}
    ORDER BY is_incomplete, transmission_id, endpoint_id, message_sequence_number"""  # noqa: S608
QUEUED: Final = """
    SELECT status, q.priority, queuing_order, conversation_group_id, conversation_handle, message_sequence_number,
        s.name, service_id, c.name, service_contract_id, m.name, message_type_id, m.validation, message_body, NULL
    FROM ssb_queued_messages q
        LEFT JOIN ssb_conversation_endpoints e USING (endpoint_id)
        LEFT JOIN ssb_services s USING (service_id)
        LEFT JOIN ssb_contracts c USING (service_contract_id)
        LEFT JOIN ssb_message_types m USING (message_type_id)
    WHERE q.queue_id = ?1"""
"""Messages in a queue."""
QUEUE_INCOMPLETE: Final = f"""
    SELECT {EARLY}, e.priority, NULL, conversation_group_id, conversation_handle, message_sequence_number,
        s.name, service_id, c.name, service_contract_id, message_type_name, message_type_id, m.validation, message_body, message_id
    FROM ({_INCOMPLETE}) f
        JOIN ssb_conversation_endpoints e USING (endpoint_id)
        {JOIN_QUEUE}
        JOIN ssb_contracts c USING (service_contract_id)
        LEFT JOIN ssb_message_types m ON m.name = message_type_name
    WHERE q.queue_id = ?1 AND is_enqueue_enabled"""  # noqa: S608
"""Incomplete messages of a queue, which have no queuing order yet."""
_QUEUE: Final = f"""
    SELECT * FROM ({QUEUED} UNION ALL {QUEUE_INCOMPLETE})
    ORDER BY queuing_order IS NULL, queuing_order, conversation_handle, message_sequence_number"""  # noqa: S608
_LEASE_STATE: Final = "CASE WHEN until = 0 THEN 'READY' WHEN lease_id IS NULL THEN 'WAITING' ELSE 'LEASED' END"
_SELECTS: Final = {
    "sys.routes": """
        SELECT name, route_id, 1, remote_service_name, broker_instance, lifetime, address, mirror_address
        FROM ssb_routes ORDER BY route_id""",
    "sys.services": "SELECT name, service_id, principal_id, queue_id FROM ssb_services ORDER BY service_id",
    "sys.service_queues": """
        SELECT name, queue_id, schema_name, max_readers, activation_procedure, NULL, is_activation_enabled,
            is_receive_enabled, is_enqueue_enabled, is_retention_enabled, is_poison_message_handling_enabled, poison_queue_id
        FROM ssb_queues ORDER BY queue_id""",
    "sys.service_message_types": """
        SELECT name, message_type_id, 1, validation,
            CASE validation WHEN 'N' THEN 'NONE' WHEN 'E' THEN 'EMPTY' ELSE 'XML' END, NULL
        FROM ssb_message_types ORDER BY message_type_id""",
    "sys.service_contracts": "SELECT name, service_contract_id, 1 FROM ssb_contracts ORDER BY service_contract_id",
    "sys.service_contract_message_usages": """
        SELECT service_contract_id, message_type_id, is_sent_by_initiator, is_sent_by_target
        FROM ssb_contract_messages ORDER BY 1, 2""",
    "sys.service_contract_usages": """
        SELECT service_id, service_contract_id FROM ssb_service_contracts ORDER BY 1, 2""",
    "sys.conversation_endpoints": _ENDPOINTS,
    "sys.conversation_groups": f"""
        SELECT DISTINCT conversation_group_id, service_id, 0 FROM ssb_conversation_endpoints WHERE state <> '{CLOSED}' ORDER BY 2, 1""",  # noqa: S608
    "sys.conversation_priorities": """
        SELECT priority_id, name, service_contract_id, local_service_id, remote_service_name, priority
        FROM ssb_conversation_priorities ORDER BY priority_id""",
    "sys.transmission_queue": _TRANSMISSION_QUEUE,
    "sys.dm_broker_leases": f"""
        SELECT conversation_group_id, queue_id, {_LEASE_STATE}, process_id, since, nullif(until, 0), attempts, failures
        FROM ssb_group_leases ORDER BY since, conversation_group_id""",  # noqa: S608
    "sys.dm_broker_failures": """
        SELECT queue_id, conversation_handle, failed_at, error, conversation_group_id, moved_to FROM ssb_failures
        ORDER BY failed_at, rowid""",
    "sys.database_principals": """
        SELECT name, principal_id, CASE principal_id WHEN 0 THEN 'R' ELSE 'S' END,
            CASE principal_id WHEN 0 THEN 'DATABASE_ROLE' ELSE 'SQL_USER' END
        FROM ssb_principals ORDER BY principal_id""",
    "sys.database_permissions": """
        SELECT 17, 'SERVICE', service_id, 0, p.principal_id, 1, 'SN', 'SEND', p.state,
            CASE p.state WHEN 'G' THEN 'GRANT' ELSE 'DENY' END
        FROM ssb_send_permissions p ORDER BY service_id, p.principal_id""",
    "sys.remote_service_bindings": """
        SELECT name, remote_service_binding_id, principal_id, remote_service_name, 0, remote_principal_id, is_anonymous_on
        FROM ssb_remote_service_bindings ORDER BY remote_service_binding_id""",
    # The remaining columns are read from the certificate itself.
    "sys.certificates": """
        SELECT name, certificate_id, principal_id, CASE WHEN private_key IS NULL THEN 'NA' ELSE 'MK' END,
            CASE WHEN private_key IS NULL THEN 'NO_PRIVATE_KEY' ELSE 'ENCRYPTED_BY_MASTER_KEY' END,
            is_active_for_begin_dialog, certificate
        FROM ssb_certificates ORDER BY certificate_id""",
}


def rows(connection: Connection, view: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a view, in the order of its columns."""
    return connection.execute(_SELECTS[view]).fetchall()


def queue_rows(connection: Connection, queue_id: int) -> list[tuple[Any, ...]]:
    """Returns the messages of a queue, in the order of the columns of a queue in SQL Server."""
    return connection.execute(_QUEUE, (queue_id,)).fetchall()


def queue_counts(connection: Connection, *, now: int) -> list[tuple[Any, ...]]:
    """Returns for each queue its id, schema, name and state, its numbers of messages, and when the first ready message became ready.

    The state is whether it can be received from and sent to. The numbers are those of ready, waiting, leased, incomplete (early
    messages and unfinished fragments) and retained messages. A message is ready if it can be received now, and waits if it is scheduled
    for later or for a retry.
    """
    return connection.execute(_QUEUES, (now,)).fetchall()


def lease_counts(connection: Connection, *, now: int) -> list[tuple[Any, ...]]:
    """Returns the conversation groups with leases: schema and name of the queue, state, and sums of groups, attempts and failures."""
    return connection.execute(_LEASES, (now,)).fetchall()


def moved_counts(connection: Connection) -> list[tuple[Any, ...]]:
    """Returns what was moved: queue, new queue (schema and name each), number of conversation groups, time and error of the last failure."""
    return connection.execute(_MOVED).fetchall()


def conversation_counts(connection: Connection) -> list[tuple[Any, ...]]:
    """Returns the number of endpoints in each state, and when the oldest was created: None if no time is known."""
    return connection.execute(
        "SELECT state, count(*), min(begin_time) FROM ssb_conversation_endpoints GROUP BY state ORDER BY state"
    ).fetchall()


def transmission_counts(connection: Connection) -> list[tuple[Any, ...]]:
    """Returns the content of the transmission queue: service, status, number of messages and conversations, and time of the oldest message."""
    return connection.execute(_WAITING).fetchall()


def oldest_waiting(connection: Connection, service: str) -> tuple[Any, ...] | None:
    """Returns the oldest message in the transmission queue for a service.

    The values are its conversation id and sequence number, the service and broker id it is from and for, whether the initiator sent
    it, and its status.
    """
    found = connection.execute(_OLDEST_WAITING, (service,)).fetchone()
    if found is None:
        return None
    conversation, number, from_service, broker_instance, is_initiator, status = found
    return uuid.UUID(bytes=conversation), number, from_service, broker_instance, bool(is_initiator), status


# Counts in indexes, because the rows contain the bodies. A wait that has ended may not have been freed yet.
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
    SELECT schema_name, name, CASE WHEN {_IS_HELD} THEN {_LEASE_STATE} ELSE 'READY' END AS state, count(*), sum(attempts), sum(failures)
    FROM ssb_group_leases JOIN ssb_queues USING (queue_id) GROUP BY queue_id, 3 ORDER BY schema_name, name, 3"""  # noqa: S608
# SQLite takes the error from the row that has the maximum.
_MOVED: Final = """
    SELECT q.schema_name, q.name, p.schema_name, p.name, count(*), max(failed_at), error
    FROM ssb_failures f JOIN ssb_queues q USING (queue_id) JOIN ssb_queues p ON p.queue_id = moved_to
    GROUP BY f.queue_id, moved_to ORDER BY 1, 2, 3, 4"""
# Later messages have greater numbers.
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
_OLDEST_WAITING: Final = """
    SELECT conversation_id, message_sequence_number, CASE WHEN is_inbound THEN far_service ELSE s.name END,
        CASE WHEN is_inbound THEN (SELECT service_broker_guid FROM ssb_database) ELSE far_broker_instance END,
        is_initiator <> is_inbound, transmission_status
    FROM ssb_transmission_queue JOIN ssb_conversation_endpoints e USING (endpoint_id) JOIN ssb_services s USING (service_id)
    WHERE CASE WHEN is_inbound THEN s.name ELSE far_service END = ? ORDER BY transmission_id LIMIT 1"""
