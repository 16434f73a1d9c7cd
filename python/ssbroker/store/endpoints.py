"""The conversation endpoints of a database, and remote endpoints on the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ssbroker.store.sqlite import Connection


class ConversationEndpoint(NamedTuple):
    """A row of `ssb_conversation_endpoints`, in the order of its columns. Moments are microseconds since 1970, UTC."""

    endpoint_id: int
    conversation_handle: bytes
    conversation_id: bytes
    is_initiator: int
    conversation_group_id: bytes
    service_id: int
    service_contract_id: int
    far_service: str
    far_broker_instance: bytes | None
    """The broker id that BEGIN DIALOG named, or the one that the conversation is bound to (R8)."""
    is_bound: int
    """Whether a database has taken the first message, or the endpoint is the target's."""
    is_encrypted: int
    state: str
    lifetime: int
    """The moment at which the conversation expires."""
    priority: int
    send_sequence: int
    """The number of the next message to be sent."""
    receive_sequence: int
    """The number of the next message to be taken."""
    end_dialog_sequence: int | None
    """The number of the EndDialog or Error that END sent."""
    dialog_timer: int | None
    security_timestamp: int | None
    """The moment at which a closed endpoint goes."""
    transmission_status: str
    is_remote: int = 0
    """Whether the far side has been heard of over the network."""
    far_peer: bytes | None = None
    """Who it is there (P25, N17)."""
    session_key: bytes | None = None
    """With what this side of a secured conversation seals (N19)."""
    far_session_key: bytes | None = None
    """With what the far side does, where that is another key."""
    far_certificate: bytes | None = None
    """By which certificate the far side has proven itself, as its fingerprint."""

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
) -> ConversationEndpoint:
    """Makes an endpoint; what was made."""
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
        send_sequence=0,
        receive_sequence=0,
        end_dialog_sequence=None,
        dialog_timer=None,
        security_timestamp=None,
        transmission_status="",
    )


def by_id(connection: Connection, endpoint_id: int) -> ConversationEndpoint | None:
    """The endpoint of a number."""
    return _one(connection, "SELECT * FROM ssb_conversation_endpoints WHERE endpoint_id = ?", (endpoint_id,))


def as_now(connection: Connection, seen: ConversationEndpoint) -> ConversationEndpoint | None:
    """An endpoint that was read before, as it is now; None where it is gone, whoever has its number since."""
    found = by_id(connection, seen.endpoint_id)
    return found if found is not None and found.conversation_handle == seen.conversation_handle else None


def by_handle(connection: Connection, handle: bytes) -> ConversationEndpoint | None:
    """The endpoint that a handle names."""
    return _one(connection, "SELECT * FROM ssb_conversation_endpoints WHERE conversation_handle = ?", (handle,))


def by_conversation(
    connection: Connection, conversation_id: bytes, *, is_initiator: bool
) -> ConversationEndpoint | None:
    """The endpoint of one side of a conversation."""
    return _one(
        connection,
        "SELECT * FROM ssb_conversation_endpoints WHERE conversation_id = ? AND is_initiator = ?",
        (conversation_id, is_initiator),
    )


def in_group(connection: Connection, group: bytes, *, limit: int = -1) -> list[ConversationEndpoint]:
    """The endpoints of a conversation group that are not closed; no more than `limit` of them, -1 is all."""
    return [ConversationEndpoint._make(row) for row in connection.execute(_IN_GROUP, (group, limit))]


def with_handles(connection: Connection, handles: Iterable[bytes]) -> dict[bytes, ConversationEndpoint]:
    """The endpoints of many handles; what is not there is left out."""
    rows = connection.executemany(
        "SELECT * FROM ssb_conversation_endpoints WHERE conversation_handle = ?", ((handle,) for handle in handles)
    )
    return {row[1]: ConversationEndpoint._make(row) for row in rows}


def far_sides_ready(
    connection: Connection, senders: Iterable[ConversationEndpoint]
) -> dict[tuple[bytes, int], ConversationEndpoint]:
    """The far sides, in this file, that are in CO and have nothing waiting or out of turn; by conversation and `is_initiator`."""
    rows = connection.executemany(_FAR_READY, ((sender.conversation_id, 1 - sender.is_initiator) for sender in senders))
    return {(row[2], row[3]): ConversationEndpoint._make(row) for row in rows}


def open_endpoints(connection: Connection) -> list[ConversationEndpoint]:
    """All endpoints that are not closed."""
    return [ConversationEndpoint._make(row) for row in connection.execute(_OPEN)]


def set_state(connection: Connection, endpoint_id: int, state: str) -> None:
    """Writes the state."""
    connection.execute("UPDATE ssb_conversation_endpoints SET state = ? WHERE endpoint_id = ?", (state, endpoint_id))


def set_sent(connection: Connection, endpoint_id: int, *, send_sequence: int) -> None:
    """Writes the number of the next message to be sent."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET send_sequence = ? WHERE endpoint_id = ?", (send_sequence, endpoint_id)
    )


def set_taken(connection: Connection, endpoint_id: int, *, receive_sequence: int) -> None:
    """Writes the number of the next message to be taken."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET receive_sequence = ? WHERE endpoint_id = ?",
        (receive_sequence, endpoint_id),
    )


def set_all_sent(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """The same of many; each the number and the endpoint."""
    connection.executemany("UPDATE ssb_conversation_endpoints SET send_sequence = ? WHERE endpoint_id = ?", numbers)


def set_all_taken(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """The number of the next message to be taken, of many; each the number and the endpoint."""
    connection.executemany("UPDATE ssb_conversation_endpoints SET receive_sequence = ? WHERE endpoint_id = ?", numbers)


def set_ended(connection: Connection, endpoint_id: int, *, state: str, end_dialog_sequence: int) -> None:
    """Writes that this side has ended, with the message of that number."""
    connection.execute(_SET_ENDED, (state, end_dialog_sequence, end_dialog_sequence + 1, endpoint_id))


def set_closed(connection: Connection, endpoint_id: int, *, state: str, until: int) -> None:
    """Writes that the conversation is over, and until when its endpoint is kept."""
    connection.execute(_SET_CLOSED, (state, until, endpoint_id))


def bind(connection: Connection, endpoint_id: int, *, far_broker_instance: bytes) -> None:
    """Binds the conversation to the broker id that took its first message (R8); within an instance it needs no key any more (B22)."""
    connection.execute(_BIND, (far_broker_instance, endpoint_id))


def set_group(connection: Connection, endpoint_id: int, group: bytes) -> None:
    """Moves the endpoint to another conversation group."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET conversation_group_id = ? WHERE endpoint_id = ?", (group, endpoint_id)
    )


def set_timer(connection: Connection, endpoint_id: int, moment: int | None) -> None:
    """Sets the timer, or takes it away."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET dialog_timer = ? WHERE endpoint_id = ?", (moment, endpoint_id)
    )


def set_status(connection: Connection, endpoint_id: int, status: str) -> None:
    """Writes what `transmission_status` says of the messages that wait."""
    connection.execute(
        "UPDATE ssb_conversation_endpoints SET transmission_status = ? WHERE endpoint_id = ?", (status, endpoint_id)
    )


def remove(connection: Connection, endpoint_id: int) -> None:
    """Removes the endpoint."""
    connection.execute("DELETE FROM ssb_conversation_endpoints WHERE endpoint_id = ?", (endpoint_id,))


def _one(connection: Connection, sql: str, bindings: tuple[object, ...]) -> ConversationEndpoint | None:
    row = connection.execute(sql, bindings).fetchone()
    return None if row is None else ConversationEndpoint._make(row)


_INSERT: Final = """
    INSERT INTO ssb_conversation_endpoints (conversation_handle, conversation_id, is_initiator, conversation_group_id, service_id,
        service_contract_id, far_service, far_broker_instance, is_bound, is_encrypted, state, lifetime, priority)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_FAR_READY: Final = """
    SELECT * FROM ssb_conversation_endpoints AS e WHERE conversation_id = ? AND is_initiator = ? AND state = 'CO'
    AND NOT EXISTS (SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = e.endpoint_id AND is_inbound = 1)
    AND NOT EXISTS (SELECT 1 FROM ssb_queued_messages WHERE endpoint_id = e.endpoint_id AND status = 2)"""
_IN_GROUP: Final = """
    SELECT * FROM ssb_conversation_endpoints WHERE conversation_group_id = ? AND state <> 'CD' ORDER BY endpoint_id LIMIT ?"""
_OPEN: Final = "SELECT * FROM ssb_conversation_endpoints WHERE state <> 'CD' ORDER BY endpoint_id"
_SET_ENDED: Final = """
    UPDATE ssb_conversation_endpoints SET state = ?, end_dialog_sequence = ?, send_sequence = ?, dialog_timer = NULL
    WHERE endpoint_id = ?"""
_SET_CLOSED: Final = """
    UPDATE ssb_conversation_endpoints SET state = ?, security_timestamp = ?, dialog_timer = NULL, transmission_status = ''
    WHERE endpoint_id = ?"""
_BIND: Final = """
    UPDATE ssb_conversation_endpoints SET far_broker_instance = ?, is_bound = 1, session_key = NULL, transmission_status = ''
    WHERE endpoint_id = ?"""


def find(connection: Connection, sides: Iterable[tuple[bytes, bool]]) -> dict[tuple[bytes, bool], ConversationEndpoint]:
    """Endpoints by conversation and side; what is not there is left out.

    Args:
        connection: The database.
        sides: The conversations, and whether the initiator's side is meant.

    Returns:
        Those that are there.
    """
    rows = (ConversationEndpoint._make(row) for row in connection.executemany(_FIND, sides))
    return {(row.conversation_id, bool(row.is_initiator)): row for row in rows}


def contracts_of(
    connection: Connection, sides: Iterable[tuple[bytes, bool]]
) -> dict[tuple[bytes, bool], tuple[int, str]]:
    """Contract and state of endpoints by conversation and side; what is not there is left out.

    Args:
        connection: The database.
        sides: As `find` has them.

    Returns:
        The contract's id and the state of each.
    """
    rows = connection.executemany(_CONTRACT, sides)
    return {(conversation_id, bool(side)): (contract, state) for conversation_id, side, contract, state in rows}


def undisturbed(connection: Connection, endpoint_ids: Iterable[int]) -> set[int]:
    """Which endpoints have nothing that waits beside their queue, or has come before its turn.

    Args:
        connection: The database.
        endpoint_ids: The endpoints.

    Returns:
        Those that have nothing of the kind.
    """
    rows = connection.executemany(_UNDISTURBED, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return {endpoint_id for (endpoint_id,) in rows}


def sides_of(connection: Connection, endpoint_ids: Iterable[int]) -> dict[int, tuple[bytes, bool]]:
    """Conversation and side of endpoints; those that are gone are left out.

    Args:
        connection: The database.
        endpoint_ids: The endpoints.

    Returns:
        Both by the endpoint's id.
    """
    rows = connection.executemany(_SIDE, ((endpoint_id,) for endpoint_id in endpoint_ids))
    return {endpoint_id: (conversation_id, bool(side)) for endpoint_id, conversation_id, side in rows}


def place_of(connection: Connection, side: tuple[bytes, bool], number: int) -> int | None:
    """Where a message that an endpoint sent stands in the transmission queue (`transmission_id`); None where it is not there.

    Args:
        connection: The database.
        side: The conversation, and whether its initiator is meant.
        number: The message.

    Returns:
        The number of its row.
    """
    row = connection.execute(_PLACE, (*side, number)).fetchone()
    return None if row is None else int(row[0])


def parts_of(connection: Connection, transmission_id: int, spans: Iterable[tuple[int, int]]) -> list[bytes]:
    """Parts of the body of a message in the transmission queue. SQLite walks to each from the body's beginning, once for all of them.

    Args:
        connection: The database, within the transaction in which the message was found.
        transmission_id: Its row.
        spans: From which byte to before which; what is beyond the end is left out.

    Returns:
        The bytes of each.
    """
    found: list[bytes] = []
    with connection.blob_open("main", "ssb_transmission_queue", "message_body", transmission_id, False) as blob:
        for begin, end in spans:
            blob.seek(min(begin, blob.length()))
            found.append(blob.read(end - begin))
    return found


def ended(connection: Connection, sides: Iterable[tuple[bytes, bool]]) -> dict[tuple[bytes, bool], int]:
    """The numbers of the errors with which applications have ended conversations, as far as they wait.

    Args:
        connection: The database.
        sides: The conversations, and whether their initiator is meant.

    Returns:
        The number by conversation and side.
    """
    rows = connection.executemany(_ENDED, sides)
    return {(conversation_id, bool(side)): number for conversation_id, side, number in rows}


def note(connection: Connection, endpoint: ConversationEndpoint) -> None:
    """Writes who the far side of an endpoint is, now that it has been heard of over the network."""
    known = (endpoint.far_peer, endpoint.session_key, endpoint.far_session_key, endpoint.far_certificate)
    connection.execute(_NOTE, (*known, endpoint.endpoint_id))


def raise_taken(connection: Connection, numbers: Iterable[tuple[int, int]]) -> None:
    """Writes the number of the next message to be taken, where it is higher than what stands there; each the number and the endpoint."""
    connection.executemany(_RAISE_TAKEN, numbers)


_FIND: Final = "SELECT * FROM ssb_conversation_endpoints WHERE conversation_id = ? AND is_initiator = ?"
_CONTRACT: Final = """
    SELECT conversation_id, is_initiator, service_contract_id, state FROM ssb_conversation_endpoints
    WHERE conversation_id = ? AND is_initiator = ?"""
_UNDISTURBED: Final = """
    SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = ?1 AND is_inbound = 1)
    AND NOT EXISTS (SELECT 1 FROM ssb_queued_messages WHERE endpoint_id = ?1 AND status = 2)"""
_SIDE: Final = """
    SELECT endpoint_id, conversation_id, is_initiator FROM ssb_conversation_endpoints WHERE endpoint_id = ?"""
# CROSS JOIN: SQLite is to find the endpoint first.
_PLACE: Final = """
    SELECT t.transmission_id FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t USING (endpoint_id)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND t.is_inbound = 0 AND t.message_sequence_number = ?"""
_ENDED: Final = """
    SELECT e.conversation_id, e.is_initiator, t.message_sequence_number
    FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t ON t.transmission_id = (
        SELECT transmission_id FROM ssb_transmission_queue WHERE endpoint_id = e.endpoint_id AND is_inbound = 0
        ORDER BY message_sequence_number DESC LIMIT 1)
    WHERE e.conversation_id = ? AND e.is_initiator = ? AND t.is_conversation_error = 1"""
_NOTE: Final = """
    UPDATE ssb_conversation_endpoints SET is_remote = 1, far_peer = ?, session_key = ?, far_session_key = ?, far_certificate = ?
    WHERE endpoint_id = ?"""
_RAISE_TAKEN: Final = """
    UPDATE ssb_conversation_endpoints SET receive_sequence = ?1 WHERE endpoint_id = ?2 AND receive_sequence < ?1"""
