"""The conversation endpoints of a database, and the work that is due for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ssbroker.store.codes import CLOSED, EARLY, READY
from ssbroker.store.sqlite import Connection


class ConversationEndpoint(NamedTuple):
    """A row of `ssb_conversation_endpoints`, in the order of its columns. Times are microseconds since 1970, UTC."""

    endpoint_id: int
    conversation_handle: bytes
    conversation_id: bytes
    is_initiator: int
    conversation_group_id: bytes
    service_id: int
    service_contract_id: int
    far_service: str
    far_broker_instance: bytes | None
    """The broker id that BEGIN DIALOG named or that the conversation is bound to."""
    is_bound: int
    """Whether the conversation is bound to the broker id of the target; always true for the target's endpoint."""
    is_encrypted: int
    state: str
    lifetime: int
    """When the conversation expires."""
    priority: int
    send_sequence: int
    """Sequence number of the next message to send."""
    receive_sequence: int
    """Sequence number of the next message to receive."""
    end_dialog_sequence: int | None
    """Sequence number of the EndDialog or Error message that END CONVERSATION sent."""
    dialog_timer: int | None
    security_timestamp: int | None
    """When a closed endpoint is removed."""
    transmission_status: str
    is_remote: int = 0
    """Whether the remote endpoint has been reached over the network."""
    far_peer: bytes | None = None
    """Identity of the peer that delivered the first data of the remote endpoint, if the conversation is not secured."""
    session_key: bytes | None = None
    """Key with which this endpoint of a secured conversation encrypts its messages."""
    far_session_key: bytes | None = None
    """Key of the remote endpoint, if it differs from `session_key`."""
    far_certificate: bytes | None = None
    """Fingerprint of the certificate of the remote endpoint."""
    begin_time: int | None = None
    """When the endpoint was created, if known."""

    def __repr__(self) -> str:
        return f"Endpoint({self.endpoint_id}, conversation {self.conversation_id.hex()}, state {self.state})"


def insert(
    connection: Connection,
    *,
    conversation_handle: bytes,
    conversation_id: bytes,
    is_initiator: bool,
    conversation_group_id: bytes,
    service_id: int,
    service_contract_id: int,
    far_service: str,
    far_broker_instance: bytes | None,
    is_bound: bool,
    is_encrypted: bool,
    state: str,
    lifetime: int,
    priority: int,
    now: int,
    send_sequence: int = 0,
    receive_sequence: int = 0,
) -> ConversationEndpoint:
    """Inserts an endpoint and returns it."""
    connection.execute(
        _INSERT,
        (
            conversation_handle,
            conversation_id,
            is_initiator,
            conversation_group_id,
            service_id,
            service_contract_id,
            far_service,
            far_broker_instance,
            is_bound,
            is_encrypted,
            state,
            lifetime,
            priority,
            now,
            send_sequence,
            receive_sequence,
        ),
    )
    return ConversationEndpoint(
        connection.last_insert_rowid(),
        conversation_handle,
        conversation_id,
        int(is_initiator),
        conversation_group_id,
        service_id,
        service_contract_id,
        far_service,
        far_broker_instance,
        int(is_bound),
        int(is_encrypted),
        state,
        lifetime,
        priority,
        send_sequence=send_sequence,
        receive_sequence=receive_sequence,
        end_dialog_sequence=None,
        dialog_timer=None,
        security_timestamp=None,
        transmission_status="",
        begin_time=now,
    )


def by_id(connection: Connection, endpoint_id: int) -> ConversationEndpoint | None:
    """Returns the endpoint with an id; None if there is none."""
    return _single_endpoint(connection, _BY_ID, (endpoint_id,))


def reload(connection: Connection, endpoint: ConversationEndpoint) -> ConversationEndpoint | None:
    """Reads an endpoint again; returns None if it was deleted, even if its id has been reused."""
    found = by_id(connection, endpoint.endpoint_id)
    return found if found is not None and found.conversation_handle == endpoint.conversation_handle else None


def by_handle(connection: Connection, handle: bytes) -> ConversationEndpoint | None:
    """Returns the endpoint with a conversation handle; None if there is none."""
    return _single_endpoint(
        connection, "SELECT * FROM ssb_conversation_endpoints WHERE conversation_handle = ?", (handle,)
    )


def by_conversation(
    connection: Connection, conversation_id: bytes, *, is_initiator: bool
) -> ConversationEndpoint | None:
    """Returns the endpoint of the initiator or the target of a conversation; None if this database does not contain it."""
    return _single_endpoint(
        connection,
        "SELECT * FROM ssb_conversation_endpoints WHERE conversation_id = ? AND is_initiator = ?",
        (conversation_id, is_initiator),
    )


def of_conversation(connection: Connection, conversation_id: bytes) -> list[ConversationEndpoint]:
    """Returns the endpoints of a conversation that are in this database: two, one or none."""
    sql = "SELECT * FROM ssb_conversation_endpoints WHERE conversation_id = ?"
    return [ConversationEndpoint._make(row) for row in connection.execute(sql, (conversation_id,))]


def in_group(connection: Connection, group: bytes, *, limit: int = -1) -> list[ConversationEndpoint]:
    """Returns up to `limit` endpoints of a conversation group that are not closed; -1 means all."""
    return [ConversationEndpoint._make(row) for row in connection.execute(_IN_GROUP, (group, limit))]


def by_handles(connection: Connection, handles: Iterable[bytes]) -> dict[bytes, ConversationEndpoint]:
    """Returns endpoints by their handles; omits missing endpoints."""
    rows = connection.executemany(
        "SELECT * FROM ssb_conversation_endpoints WHERE conversation_handle = ?", ((handle,) for handle in handles)
    )
    return {row[1]: ConversationEndpoint._make(row) for row in rows}


def by_ids(connection: Connection, endpoint_ids: Iterable[int]) -> list[ConversationEndpoint]:
    """Returns endpoints by their ids; omits missing endpoints."""
    rows = connection.executemany(_BY_ID, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return [ConversationEndpoint._make(row) for row in rows]


def open_endpoints(connection: Connection) -> list[ConversationEndpoint]:
    """Returns all endpoints that are not closed."""
    return [ConversationEndpoint._make(row) for row in connection.execute(_OPEN)]


def of_service(connection: Connection, service_id: int) -> list[ConversationEndpoint]:
    """Returns all endpoints of a service."""
    return [ConversationEndpoint._make(row) for row in connection.execute(_OF_SERVICE, (service_id,))]


def set_state(connection: Connection, endpoint_id: int, state: str) -> None:
    """Updates the state of an endpoint."""
    connection.execute("UPDATE ssb_conversation_endpoints SET state = ? WHERE endpoint_id = ?", (state, endpoint_id))


def set_receive_sequence(connection: Connection, endpoint_id: int, *, receive_sequence: int) -> None:
    """Updates the sequence number of the next message that an endpoint receives."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET receive_sequence = ? WHERE endpoint_id = ?",
        (receive_sequence, endpoint_id),
    )


def set_send_sequences(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Updates send sequence numbers; `numbers` are rows of number and endpoint id."""
    connection.executemany("UPDATE ssb_conversation_endpoints SET send_sequence = ? WHERE endpoint_id = ?", numbers)


def set_ended(connection: Connection, endpoint_id: int, *, state: str, end_dialog_sequence: int) -> None:
    """Records that this endpoint has ended the conversation with the message that has the sequence number `end_dialog_sequence`."""
    connection.execute(_SET_ENDED, (state, end_dialog_sequence, end_dialog_sequence + 1, endpoint_id))


def set_closed(connection: Connection, endpoint_id: int, *, state: str, until: int) -> None:
    """Records that the conversation has ended, and until when its endpoint is kept."""
    connection.execute(_SET_CLOSED, (state, until, endpoint_id))


def extend_closed(connection: Connection, sides: Iterable[tuple[bytes, bool]], *, until: int, below: int) -> None:
    """Keeps closed endpoints until a later time if their retention ends before `below`; ignores other endpoints."""
    connection.executemany(_EXTEND_CLOSED, ((until, *side, below) for side in sides))


def has_closed_to_extend(connection: Connection, sides: Iterable[tuple[bytes, bool]], *, below: int) -> bool:
    """Returns whether any of the given endpoints is closed and its retention ends before `below`."""
    return bool(list(connection.executemany(_CLOSED_TO_EXTEND, ((*side, below) for side in sides))))


def bind(connection: Connection, endpoint_id: int, *, far_broker_instance: bytes) -> None:
    """Binds the conversation to the broker id of the database that received its first message, and deletes its session key.

    Within an instance, no session key is needed; for a conversation over the network, `set_peer` stores the keys again.
    """
    connection.execute(_BIND, (far_broker_instance, endpoint_id))


def set_group(connection: Connection, endpoint_id: int, group: bytes) -> None:
    """Moves the endpoint to another conversation group."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET conversation_group_id = ? WHERE endpoint_id = ?", (group, endpoint_id)
    )
    connection.execute(_HIDE_LIKE_GROUP, (endpoint_id, group))


def set_timer(connection: Connection, endpoint_id: int, expiry: int | None) -> None:
    """Sets the conversation timer; None clears it."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET dialog_timer = ? WHERE endpoint_id = ?", (expiry, endpoint_id)
    )


def set_transmission_status(connection: Connection, endpoint_id: int, status: str) -> None:
    """Sets the `transmission_status` that `sys.transmission_queue` shows for the waiting messages of an endpoint."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET transmission_status = ? WHERE endpoint_id = ?", (status, endpoint_id)
    )


def remove(connection: Connection, endpoint_id: int) -> None:
    """Deletes the endpoint."""
    connection.execute("DELETE FROM ssb_conversation_endpoints WHERE endpoint_id = ?", (endpoint_id,))


def _single_endpoint(connection: Connection, sql: str, bindings: tuple[object, ...]) -> ConversationEndpoint | None:
    row = connection.execute(sql, bindings).fetchone()
    return None if row is None else ConversationEndpoint._make(row)


_INSERT: Final = """
    INSERT INTO ssb_conversation_endpoints (conversation_handle, conversation_id, is_initiator, conversation_group_id, service_id,
        service_contract_id, far_service, far_broker_instance, is_bound, is_encrypted, state, lifetime, priority,
        begin_time, send_sequence, receive_sequence)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_IN_GROUP: Final = f"""
    SELECT * FROM ssb_conversation_endpoints WHERE conversation_group_id = ? AND state <> '{CLOSED}' ORDER BY endpoint_id LIMIT ?"""  # noqa: S608
_BY_ID: Final = "SELECT * FROM ssb_conversation_endpoints WHERE endpoint_id = ?"
_OF_SERVICE: Final = "SELECT * FROM ssb_conversation_endpoints WHERE service_id = ? ORDER BY endpoint_id"
_OPEN: Final = f"SELECT * FROM ssb_conversation_endpoints WHERE state <> '{CLOSED}' ORDER BY endpoint_id"  # noqa: S608
_SET_ENDED: Final = """
    UPDATE ssb_conversation_endpoints SET state = ?, end_dialog_sequence = ?, send_sequence = ?, dialog_timer = NULL
    WHERE endpoint_id = ?"""
_HIDE_LIKE_GROUP: Final = f"""
    UPDATE ssb_queued_messages AS m SET is_hidden = waits
    FROM (SELECT EXISTS (
        SELECT 1 FROM ssb_group_leases WHERE conversation_group_id = ?2 AND lease_id IS NULL AND until > 0
    ) AS waits)
    WHERE endpoint_id = ?1 AND status = {READY} AND is_hidden <> waits"""  # noqa: S608
_SET_CLOSED: Final = """
    UPDATE ssb_conversation_endpoints SET state = ?, security_timestamp = ?, dialog_timer = NULL, transmission_status = ''
    WHERE endpoint_id = ?"""
# The `security_timestamp` of a closed endpoint is the end of its retention.
_EXTEND_CLOSED: Final = f"""
    UPDATE ssb_conversation_endpoints SET security_timestamp = ?
    WHERE conversation_id = ? AND is_initiator = ? AND state = '{CLOSED}' AND security_timestamp < ?"""  # noqa: S608
_CLOSED_TO_EXTEND: Final = f"""
    SELECT 1 FROM ssb_conversation_endpoints
    WHERE conversation_id = ? AND is_initiator = ? AND state = '{CLOSED}' AND security_timestamp < ?"""  # noqa: S608
_BIND: Final = """
    UPDATE ssb_conversation_endpoints SET far_broker_instance = ?, is_bound = 1, session_key = NULL, transmission_status = ''
    WHERE endpoint_id = ?"""


def by_sides(
    connection: Connection, sides: Iterable[tuple[bytes, bool]]
) -> dict[tuple[bytes, bool], ConversationEndpoint]:
    """Returns endpoints by conversation and `is_initiator`; omits missing endpoints."""
    rows = (ConversationEndpoint._make(row) for row in connection.executemany(_BY_SIDE, sides))
    return {(row.conversation_id, bool(row.is_initiator)): row for row in rows}


def existing_sides(connection: Connection, keys: Iterable[tuple[bytes, bool]]) -> list[tuple[bytes, bool]]:
    """Returns those of the given pairs of conversation and `is_initiator` that have an endpoint in the database."""
    return [(conversation, bool(side)) for conversation, side in connection.executemany(_EXISTING, keys)]


def contracts_of(
    connection: Connection, sides: Iterable[tuple[bytes, bool]]
) -> dict[tuple[bytes, bool], tuple[int, str]]:
    """Returns the contract id and state of endpoints by conversation and `is_initiator`; omits missing endpoints."""
    rows = connection.executemany(_CONTRACT, sides)
    return {(conversation_id, bool(side)): (contract, state) for conversation_id, side, contract, state in rows}


def without_early_messages(connection: Connection, endpoint_ids: Iterable[int]) -> set[int]:
    """Returns the ids of the endpoints that have neither early messages nor messages that arrived while their queue was disabled."""
    rows = connection.executemany(_WITHOUT_EARLY, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return {endpoint_id for (endpoint_id,) in rows}


def set_session_key_if_missing(connection: Connection, endpoint: ConversationEndpoint, key: bytes) -> bytes | None:
    """Sets the session key of an endpoint unless it has a key; returns the endpoint's key, or None if the endpoint was deleted."""
    current = reload(connection, endpoint)
    if current is None:
        return None
    if current.session_key is not None:
        return current.session_key
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET session_key = ? WHERE endpoint_id = ?", (key, endpoint.endpoint_id)
    )
    return key


def set_remote_certificate(connection: Connection, side: tuple[bytes, bool], fingerprint: bytes) -> None:
    """Records the certificate of the remote endpoint by its fingerprint."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET far_certificate = ? WHERE conversation_id = ? AND is_initiator = ?",
        (fingerprint, *side),
    )


def set_peer(connection: Connection, endpoint: ConversationEndpoint) -> None:
    """Records that the remote endpoint was reached over the network: its peer and certificate, and the keys of both directions."""
    peer = (endpoint.far_peer, endpoint.session_key, endpoint.far_session_key, endpoint.far_certificate)
    connection.execute(_SET_PEER, (*peer, endpoint.endpoint_id))


def raise_receive_sequences(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Raises receive sequence numbers to the given values if they are lower; `numbers` are rows of number and endpoint id."""
    connection.executemany(_RAISE_RECEIVE_SEQUENCE, numbers)


_BY_SIDE: Final = "SELECT * FROM ssb_conversation_endpoints WHERE conversation_id = ? AND is_initiator = ?"
_EXISTING: Final = """
    SELECT conversation_id, is_initiator FROM ssb_conversation_endpoints WHERE conversation_id = ? AND is_initiator = ?"""
_CONTRACT: Final = """
    SELECT conversation_id, is_initiator, service_contract_id, state FROM ssb_conversation_endpoints
    WHERE conversation_id = ? AND is_initiator = ?"""
_WITHOUT_EARLY: Final = f"""
    SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = ?1 AND is_inbound = 1)
    AND NOT EXISTS (SELECT 1 FROM ssb_queued_messages WHERE endpoint_id = ?1 AND status = {EARLY})"""  # noqa: S608
_SET_PEER: Final = """
    UPDATE ssb_conversation_endpoints SET is_remote = 1, far_peer = ?, session_key = ?, far_session_key = ?, far_certificate = ?
    WHERE endpoint_id = ?"""
_RAISE_RECEIVE_SEQUENCE: Final = """
    UPDATE ssb_conversation_endpoints SET receive_sequence = ?1 WHERE endpoint_id = ?2 AND receive_sequence < ?1"""


def deliverable_endpoints(connection: Connection) -> list[int]:
    """Returns the ids of endpoints with messages to deliver in the transmission queue, in ascending order."""
    return [endpoint for (endpoint,) in connection.execute(_DELIVERABLE)]


def enqueueable_endpoints(connection: Connection) -> list[int]:
    """Returns the ids of endpoints whose queue is enabled again and for which messages arrived while it was disabled, in ascending order."""
    return [endpoint for (endpoint,) in connection.execute(_ENQUEUEABLE)]


def expired_timers(connection: Connection, *, now: int, limit: int) -> list[int]:
    """Returns the ids of endpoints whose conversation timer has expired, the longest expired first."""
    return [endpoint for endpoint, _ in connection.execute(f"{_EXPIRED_TIMERS} LIMIT ?", (now, limit))]


def expired_lifetimes(connection: Connection, *, now: int, limit: int) -> list[int]:
    """Returns the ids of endpoints that are past their lifetime but not yet in an error state, the longest expired first."""
    return [endpoint for endpoint, _ in connection.execute(f"{_EXPIRED_LIFETIMES} LIMIT ?", (now, limit))]


def has_removable(connection: Connection, *, now: int) -> bool:
    """Returns whether any closed endpoint can be removed."""
    return connection.execute(f"{_REMOVABLE} LIMIT 1", (now,)).fetchone() is not None


def remove_closed(connection: Connection, *, now: int, limit: int) -> int:
    """Removes up to `limit` closed endpoints whose retention has ended, the oldest first; returns the number removed."""
    connection.execute(_REMOVE_CLOSED, (now, limit))
    return connection.changes()


def next_due_time(connection: Connection) -> int | None:
    """Returns the next time at which a timer or lifetime expires or closed endpoints must be removed; None if there is none."""
    first = [
        (connection.execute(f"{query} LIMIT 1", (_TIME_MAX,)).fetchone(), delay)
        for query, delay in ((_EXPIRED_TIMERS, 0), (_EXPIRED_LIFETIMES, 0), (_REMOVABLE, REMOVAL_DELAY))
    ]
    return min((row[1] + delay for row, delay in first if row is not None), default=None)


REMOVAL_DELAY: Final = 5_000_000
"""Microseconds by which the removal of closed endpoints is delayed, so that one transaction removes many."""
_TIME_MAX: Final = 2**63 - 1
QUEUE_OF: Final = """ifnull((
        SELECT moved_to FROM ssb_failures AS f WHERE f.conversation_group_id = e.conversation_group_id AND moved_to IS NOT NULL
    ), s.queue_id)"""
"""The queue of an endpoint `e` with the service `s`: that of the service, or that to which poison message handling has moved the group."""
JOIN_QUEUE: Final = f"JOIN ssb_services AS s USING (service_id) JOIN ssb_queues AS q ON q.queue_id = {QUEUE_OF}"
"""Joins endpoints `e` with their service `s` and queue `q`."""
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
"""WITH clause for the table `waiting`: endpoints with messages to deliver in the transmission queue."""
_DELIVERABLE: Final = f"{WAITING_ENDPOINTS} SELECT endpoint_id FROM waiting"  # noqa: S608
_ENQUEUEABLE: Final = f"""{_ENDPOINTS.format("is_inbound = 1")}
    SELECT endpoint_id FROM found JOIN ssb_conversation_endpoints AS e USING (endpoint_id) {JOIN_QUEUE} WHERE is_enqueue_enabled"""  # noqa: S608
_EXPIRED_TIMERS: Final = f"""
    SELECT endpoint_id, dialog_timer FROM ssb_conversation_endpoints AS e {JOIN_QUEUE}
    WHERE dialog_timer IS NOT NULL AND dialog_timer <= ? AND is_enqueue_enabled ORDER BY dialog_timer"""  # noqa: S608
_EXPIRED_LIFETIMES: Final = f"""
    SELECT endpoint_id, lifetime FROM ssb_conversation_endpoints AS e {JOIN_QUEUE}
    WHERE state <> '{CLOSED}' AND state <> 'ER' AND lifetime <= ? AND (is_enqueue_enabled OR state = 'DO')
    ORDER BY lifetime"""  # noqa: S608
_REMOVABLE: Final = f"""
    SELECT endpoint_id, security_timestamp FROM ssb_conversation_endpoints
    WHERE state = '{CLOSED}' AND security_timestamp <= ? ORDER BY security_timestamp"""  # noqa: S608
_REMOVE_CLOSED: Final = f"""
    DELETE FROM ssb_conversation_endpoints WHERE endpoint_id IN (
        SELECT endpoint_id FROM ssb_conversation_endpoints
        WHERE state = '{CLOSED}' AND security_timestamp <= ? ORDER BY security_timestamp LIMIT ?
    )"""  # noqa: S608
