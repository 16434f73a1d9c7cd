"""SEND: checks messages, and writes them to target queues or the transmission queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ssbroker._arguments import guid_bytes
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_table, reject_misspelled_columns
from ssbroker._compat import is_binary_view, is_string_view
from ssbroker.broker.context import LocalRoute
from ssbroker.broker.dialogs.arrival import arrive
from ssbroker.broker.dialogs.contract_rules import check_sendable
from ssbroker.broker.dialogs.enqueue import queue_for_transmission, queue_of
from ssbroker.broker.dialogs.message import DialogMessage, envelope_of
from ssbroker.broker.dialogs.sender_update import update_sender
from ssbroker.broker.unit_of_work import Work, emit_conversation_event
from ssbroker.exceptions import InvalidGuidError, NullError, SchemaError
from ssbroker.protocol.arrow_columns import column_values
from ssbroker.protocol.config import BODY_MAX
from ssbroker.protocol.errors import broker_error
from ssbroker.protocol.events import ConversationEvent, ConversationStep
from ssbroker.protocol.states import DESCRIPTIONS, ConversationInput, ConversationState, next_state
from ssbroker.protocol.system_names import DEFAULT
from ssbroker.store import endpoints, queues, transmission_queue
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import Queue

SentMessages: TypeAlias = tuple[ConversationEndpoint, Sequence[DialogMessage]]
"""A sending endpoint in its new state, and its numbered messages in order."""

_ACCEPTED: Final = "bytes, bytearray or memoryview"


def body_bytes(body: object) -> bytes | None:
    """Validates a message body, and returns it as stored: None if empty."""
    if body is None:
        raise broker_error(8433)
    if not isinstance(body, bytes | bytearray | memoryview):
        actual = type(body).__name__
        raise SchemaError(f"body: expected {_ACCEPTED}, got {actual}", column="body", expected=_ACCEPTED, actual=actual)
    length = memoryview(body).nbytes
    if length > BODY_MAX:
        raise broker_error(8459, length=length, maximum=BODY_MAX)
    return bytes(body) or None


def check_may_send(
    work: Work, endpoint: ConversationEndpoint, message_types: Iterable[str], *, now: int
) -> ConversationState:
    """Checks, before anything is written, that an endpoint may send messages of these types; returns its next state."""
    state = next_state(ConversationState(endpoint.state), ConversationInput.SEND)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    for name in message_types:
        check_sendable(work.objects, endpoint, name)
    if endpoint.lifetime <= now:
        raise broker_error(8489)
    queue = queue_of(work, endpoint)
    if queue.is_retention_enabled and not queue.is_enqueue_enabled:
        raise broker_error(9618, queue=queue.name)
    return state


def check_all_may_send(
    work: Work, sends: Iterable[tuple[ConversationEndpoint, frozenset[str]]], *, now: int
) -> list[ConversationState]:
    """Runs `check_may_send` for many endpoints, each with its message types; similar ones are checked only once."""
    checked: dict[tuple[object, ...], ConversationState] = {}
    states: list[ConversationState] = []
    for endpoint, message_types in sends:
        key = (
            endpoint.state,
            endpoint.service_id,
            endpoint.service_contract_id,
            endpoint.is_initiator,
            message_types,
        )
        state = checked.get(key)
        if state is None or endpoint.lifetime <= now:
            state = checked[key] = check_may_send(work, endpoint, message_types, now=now)
        states.append(state)
    return states


def send(
    work: Work, runs: Sequence[tuple[ConversationEndpoint, ConversationState, Sequence[tuple[str, bytes | None]]]]
) -> None:
    """Sends messages on conversations that have passed `check_may_send`."""
    sends: list[SentMessages] = []
    numbers: list[tuple[int, int]] = []
    has_subscribers = work.effects.wants(ConversationEvent)
    for endpoint, state, messages in runs:
        sender, first = endpoint, endpoint.send_sequence
        numbered = [
            DialogMessage(number, message_type, body)
            for number, (message_type, body) in enumerate(messages, start=first)
        ]
        numbers.append((first + len(numbered), endpoint.endpoint_id))
        if state != endpoint.state:
            endpoints.set_state(work.connection, endpoint.endpoint_id, state)
            sender = endpoint._replace(state=state)
        queue = queue_of(work, endpoint)
        if queue.is_retention_enabled:
            _retain(work, sender, queue, numbered)
        if has_subscribers:
            _emit_send_events(work, sender, numbered)
        sends.append((sender, numbered))
        work.effects.sent += len(numbered)
    endpoints.set_send_sequences(work.connection, numbers)
    routes = work.local_routes([sender for sender, _ in sends])
    transmit(work, [(*each, route) for each, route in zip(sends, routes, strict=True)])


def transmit(work: Work, sends: Iterable[tuple[ConversationEndpoint, Sequence[DialogMessage], LocalRoute]]) -> None:
    """Delivers messages directly to target queues in this database (P33); otherwise puts them into the transmission queue."""
    waiting: list[SentMessages] = []
    for endpoint, messages, route in sends:
        if not _is_direct(work, endpoint, route):
            waiting.append((endpoint, messages))
            continue
        outcome = arrive(work, envelope_of(work.objects, endpoint), messages, park_if_disabled=False)
        left = [message for message in messages if message.message_sequence_number >= outcome.acknowledged]
        if left and outcome.error is None:
            waiting.append((endpoint, left))
        update_sender(work, endpoint, outcome, broker_instance=work.broker_instance)
    queue_for_transmission(work, waiting)


def _is_direct(work: Work, endpoint: ConversationEndpoint, route: LocalRoute) -> bool:
    if not work.objects.broker.is_delivering or route.target_database != work.database:
        return False
    return not transmission_queue.has_outgoing(work.connection, endpoint.endpoint_id)


def refused_in_state(number: int, endpoint: ConversationEndpoint) -> Exception:
    """Returns the error for a call that the endpoint's state does not allow."""
    return broker_error(
        number,
        handle=uuid.UUID(bytes=endpoint.conversation_handle),
        state=f"{endpoint.state}, {DESCRIPTIONS[ConversationState(endpoint.state)]}",
    )


def _emit_send_events(work: Work, sender: ConversationEndpoint, messages: Sequence[DialogMessage]) -> None:
    for message in messages:
        emit_conversation_event(
            work,
            sender,
            ConversationStep.SEND_MESSAGE,
            message_type_name=message.message_type_name,
            message_sequence_number=message.message_sequence_number,
        )


def _retain(work: Work, endpoint: ConversationEndpoint, queue: Queue, messages: Sequence[DialogMessage]) -> None:
    """Keeps copies of sent messages in the sender's own queue."""
    message_types = work.objects.message_types
    work.connection.statements.insert_queued(
        [
            (
                queue.queue_id,
                queues.RETAINED_SENT,
                endpoint.priority,
                endpoint.endpoint_id,
                queues.PRECEDENCE_MESSAGE,
                message.message_sequence_number,
                message_types[message.message_type_name].message_type_id,
                message.message_body,
            )
            for message in messages
        ],
        work.now(),
    )


_NAME: Final = "messages"
_HANDLE: Final = "conversation_handle"
_BODY: Final = "message_body"
_TYPE: Final = "message_type_name"
_BINARY: Final = "binary"
_STRING: Final = "string"
_GUID_BYTES: Final = 16
_GUID: Final = "a GUID: string or binary"


def as_messages(messages: ArrowArrayExportable | ArrowStreamExportable) -> pa.Table:
    """Converts and checks the input of `Transaction.send_batch`."""
    table = as_table(messages, name=_NAME)
    reject_misspelled_columns(table.column_names, expected=[_TYPE])
    return table


def send_batch(work: Work, table: pa.Table) -> None:
    """Sends the rows of a table, after checking all of them. Messages of one conversation keep their order."""
    runs = _by_conversation(table)
    found = endpoints.by_handles(work.connection, runs)
    for handle in runs:
        if handle not in found:
            raise broker_error(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    senders = [found[handle] for handle in runs]
    message_types = [frozenset([message_type for message_type, _ in run]) for run in runs.values()]
    states = check_all_may_send(work, zip(senders, message_types, strict=True), now=work.now())
    send(work, list(zip(senders, states, runs.values(), strict=True)))


def _by_conversation(table: pa.Table) -> dict[bytes, list[tuple[str, bytes | None]]]:
    """Groups messages by conversation handle; returns their types and bodies."""
    handles = _values(table, _HANDLE, expected=_GUID)
    bodies = _values(table, _BODY, expected=_BINARY)
    message_types = _values(table, _TYPE, expected=_STRING) if _TYPE in table.column_names else [DEFAULT] * len(bodies)
    known: dict[Any, list[tuple[str, bytes | None]]] = {}
    runs: dict[bytes, list[tuple[str, bytes | None]]] = {}
    for row, (handle, message_type, body) in enumerate(zip(handles, message_types, bodies, strict=True)):
        run = known.get(handle)
        if run is None:
            is_guid_bytes = type(handle) is bytes and len(handle) == _GUID_BYTES
            run = known[handle] = runs.setdefault(handle if is_guid_bytes else _guid(handle, row), [])
        if body is None:
            raise broker_error(8433)
        if message_type is None:
            raise NullError(f"{_TYPE}: row {row} is null", column=_TYPE, row=row, expected=_STRING)
        if len(body) > BODY_MAX:
            raise broker_error(8459, length=len(body), maximum=BODY_MAX)
        run.append((message_type, body or None))
    return runs


def _guid(value: object, row: int) -> bytes:
    if value is None:
        raise NullError(f"{_HANDLE}: row {row} is null", column=_HANDLE, row=row, expected=_GUID)
    try:
        return guid_bytes(value, name=_HANDLE)
    except InvalidGuidError as error:
        raise InvalidGuidError(
            f"{error}, in row {row}", column=_HANDLE, row=row, value=error.value, expected=error.expected
        ) from None


def _values(table: pa.Table, name: str, *, expected: str) -> list[Any]:
    if table.column_names.count(name) != 1:
        raise SchemaError(f"{_NAME}: expected one column {name!r} ({expected})", column=name, expected=expected)
    column: Any = table.column(name)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    data_type: Any = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or is_string_view(data_type)
    is_binary = (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or is_binary_view(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )
    fits = {_STRING: is_text, _BINARY: is_binary, _GUID: is_text or is_binary}[expected]
    if not fits and not pa.types.is_null(data_type):
        raise SchemaError(
            f"{_NAME}: column {name!r} is of type {column.type}, expected {expected}",
            column=name,
            expected=expected,
            actual=str(column.type),
        )
    values: list[Any] = column_values(column)
    return values
