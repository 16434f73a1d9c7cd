"""Queries for the catalog views of a database, and for slices of its queues for parallel reads."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ssbroker.store.codes import CLOSED, EARLY, READY, RECEIVING_STATES, RETAINED_RECEIVED, RETAINED_SENT
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
# Incomplete messages are shown in their queue if it is enabled, otherwise in the transmission queue; they are not shown
# if the conversation no longer receives.
_INCOMPLETE: Final = f"""
    SELECT endpoint_id, message_sequence_number, message_type_name, message_id, is_conversation_error, is_end_of_dialog,
        min(enqueue_time) AS enqueue_time, CASE WHEN fragment_count = 1 THEN nullif(message_body, x'') END AS message_body
    FROM ssb_fragments JOIN ssb_conversation_endpoints e USING (endpoint_id)
    WHERE e.state IN {RECEIVING_STATES} GROUP BY endpoint_id, message_sequence_number"""  # noqa: S608
_TRANSMITTED: Final = """conversation_handle,
        CASE WHEN is_inbound THEN s.name ELSE far_service END,
        CASE WHEN is_inbound THEN (SELECT service_broker_guid FROM ssb_database) ELSE far_broker_instance END,
        CASE WHEN is_inbound THEN far_service ELSE s.name END,
        c.name, enqueue_time, message_sequence_number, message_type_name, is_conversation_error, is_end_of_dialog,
        message_body, transmission_status, priority, is_initiator <> is_inbound"""
"""Columns of the transmission queue; requires the joins of `_TRANSMITTED_WITH`."""
_TRANSMITTED_WITH: Final = """
        JOIN ssb_conversation_endpoints e USING (endpoint_id)
        JOIN ssb_services s USING (service_id)
        JOIN ssb_contracts c USING (service_contract_id)"""
_INCOMPLETE_PARKED: Final = f"""
        SELECT 1 AS is_incomplete, NULL AS transmission_id, endpoint_id, 1 AS is_inbound, message_sequence_number, message_type_name,
            is_conversation_error, is_end_of_dialog, enqueue_time, message_body
        FROM ({_INCOMPLETE}) JOIN ssb_conversation_endpoints AS e USING (endpoint_id) {JOIN_QUEUE} WHERE NOT is_enqueue_enabled"""  # noqa: S608
"""Incomplete messages whose queue is disabled."""
_TRANSMISSION_QUEUE: Final = f"""
    SELECT {_TRANSMITTED}
    FROM (
        SELECT 0 AS is_incomplete, transmission_id, endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error,
            is_end_of_dialog, enqueue_time, message_body FROM ssb_transmission_queue
        UNION ALL {_INCOMPLETE_PARKED}
    ) t {_TRANSMITTED_WITH}
    ORDER BY is_incomplete, transmission_id, endpoint_id, message_sequence_number"""  # noqa: S608
_QUEUED: Final = """
    SELECT status, q.priority, queuing_order, conversation_group_id, conversation_handle, message_sequence_number,
        s.name, service_id, c.name, service_contract_id, m.name, message_type_id, m.validation, message_body, NULL
    FROM ssb_queued_messages q
        LEFT JOIN ssb_conversation_endpoints e USING (endpoint_id)
        LEFT JOIN ssb_services s USING (service_id)
        LEFT JOIN ssb_contracts c USING (service_contract_id)
        LEFT JOIN ssb_message_types m USING (message_type_id)
    WHERE q.queue_id = ?1"""
"""Messages in a queue."""
_QUEUE_INCOMPLETE: Final = f"""
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
    SELECT * FROM ({_QUEUED} UNION ALL {_QUEUE_INCOMPLETE})
    ORDER BY queuing_order IS NULL, queuing_order, conversation_handle, message_sequence_number"""  # noqa: S608
LEASE_STATE: Final = "CASE WHEN until = 0 THEN 'READY' WHEN lease_id IS NULL THEN 'WAITING' ELSE 'LEASED' END"
"""SQL expression for the state of a conversation group that has a row in `ssb_group_leases`."""
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
        SELECT conversation_group_id, queue_id, {LEASE_STATE}, process_id, since, nullif(until, 0), attempts, failures
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
    """Returns the rows of a view, with the values in the order of its columns."""
    return connection.execute(_SELECTS[view]).fetchall()


def queue_rows(connection: Connection, queue_id: int) -> list[tuple[Any, ...]]:
    """Returns the messages of a queue, with the columns in SQL Server's order."""
    return connection.execute(_QUEUE, (queue_id,)).fetchall()


class QueueSlice(NamedTuple):
    """A range of queuing orders: above `after`, up to `until`."""

    after: int
    until: int
    rows: int
    size: int
    """The total size of the bodies in bytes."""


def queue_slices(
    connection: Connection,
    queue_id: int | None,
    *,
    after: int,
    until: int | None,
    rows_max: int,
    bytes_max: int,
    include_sent: bool = True,
) -> Generator[QueueSlice]:
    """Yields slices of the messages of a queue, or of the transmission queue if `queue_id` is None, in order.

    Args:
        connection: The database.
        queue_id: The queue; None means the transmission queue.
        after: The queuing order after which the first slice starts.
        until: The last queuing order; None means the end.
        rows_max: Maximum number of rows in a slice.
        bytes_max: The number of body bytes after which a slice ends.
        include_sent: Whether the slices include the copies of sent messages that a queue retains.
    """
    rows = size = 0
    number = after
    last = _NUMBER_MAX if until is None else until
    for number, length in _lengths(connection, queue_id, after=after, until=last, include_sent=include_sent):
        rows, size = rows + 1, size + (length or 0)
        if rows == rows_max or size >= bytes_max:
            yield QueueSlice(after, number, rows, size)
            after, rows, size = number, 0, 0
    if rows:
        yield QueueSlice(after, number, rows, size)


def slice_rows(
    connection: Connection,
    queue_id: int | None,
    span: tuple[int, int] | None,
    *,
    view_columns: Sequence[str],
    columns: Sequence[str],
    include_sent: bool = True,
) -> list[tuple[Any, ...]]:
    """Reads the rows of a slice; columns that are not requested, such as the body, are not read.

    Args:
        connection: The database.
        queue_id: The queue; None means the transmission queue.
        span: The queuing order after which the slice starts, and its last queuing order; None means the incomplete
            messages, which have no queuing order.
        view_columns: Names of all columns of the view, in order.
        columns: Names of the columns to return.
        include_sent: Whether to return the copies of sent messages that a queue retains.
    """
    select, bindings = _select(queue_id, span, include_sent=include_sent)
    selected = ", ".join(f'"{name}"' for name in columns) or "NULL"
    view = ", ".join(f'"{name}"' for name in view_columns)
    return connection.execute(f"WITH v ({view}) AS ({select}) SELECT {selected} FROM v", bindings).fetchall()  # noqa: S608


def _lengths(
    connection: Connection, queue_id: int | None, *, after: int, until: int, include_sent: bool
) -> Iterator[tuple[int, int | None]]:
    """Yields the queuing order and body length of each message after the position `after`, up to `until`, in order and on demand.

    Without a queue, these are the messages of the transmission queue.
    """
    if queue_id is None:
        return iter(connection.execute(_LENGTHS_WAITING, (after, until)))
    return heapq.merge(
        *(
            connection.execute(_LENGTHS_QUEUED, (queue_id, after, until, status, priority))
            for status in _statuses(include_sent=include_sent)
            for priority in _PRIORITIES
        )
    )


def _statuses(*, include_sent: bool) -> tuple[int, ...]:
    received = (RETAINED_RECEIVED, READY, EARLY)
    return (*received, RETAINED_SENT) if include_sent else received


def _select(
    queue_id: int | None, span: tuple[int, int] | None, *, include_sent: bool
) -> tuple[str, tuple[object, ...]]:
    if queue_id is None:
        return (_SLICE_PARKED, ()) if span is None else (_SLICE_WAITING, span)
    if span is None:
        return _QUEUE_INCOMPLETE, (queue_id,)
    return _SLICE_QUEUED.format(statuses=_statuses(include_sent=include_sent)), (queue_id, *span)


_NUMBER_MAX: Final = 2**63 - 1
_PRIORITIES: Final = range(1, 11)
# The index orders the messages of a queue by status, `is_hidden` and priority before queuing order, so each combination is read
# separately, and the results are merged.
_LENGTHS_OF: Final = """
    SELECT queuing_order, length(message_body) FROM ssb_queued_messages
    WHERE queue_id = ?1 AND status = ?4 AND is_hidden = {} AND priority = ?5 AND queuing_order > ?2 AND queuing_order <= ?3"""
_LENGTHS_QUEUED: Final = f"{_LENGTHS_OF.format(0)} UNION ALL {_LENGTHS_OF.format(1)} ORDER BY queuing_order"
_LENGTHS_WAITING: Final = """
    SELECT transmission_id, length(message_body) FROM ssb_transmission_queue
    WHERE transmission_id > ?1 AND transmission_id <= ?2 ORDER BY transmission_id"""
_SLICE_QUEUED: Final = f"""{_QUEUED} AND q.status IN {{statuses}} AND q.is_hidden IN (0, 1) AND q.priority IN {tuple(_PRIORITIES)}
    AND queuing_order > ?2 AND queuing_order <= ?3 ORDER BY queuing_order"""
_SLICE_WAITING: Final = f"""
    SELECT {_TRANSMITTED} FROM ssb_transmission_queue t {_TRANSMITTED_WITH}
    WHERE transmission_id > ?1 AND transmission_id <= ?2 ORDER BY transmission_id"""  # noqa: S608
_SLICE_PARKED: Final = f"SELECT {_TRANSMITTED} FROM ({_INCOMPLETE_PARKED}) t {_TRANSMITTED_WITH}"  # noqa: S608
