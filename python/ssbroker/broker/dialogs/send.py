"""SEND: checks messages, writes them to target queues or the transmission queue, and applies the outcome of their delivery."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from ssbroker.broker.dialogs.arrival import arrive
from ssbroker.broker.dialogs.endpoint_end import close, end_with_error
from ssbroker.broker.dialogs.enqueue import delete_acknowledged, delete_unacknowledged, queue_for_transmission, queue_of
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, header_of
from ssbroker.broker.object_names import plain_queue_name
from ssbroker.broker.unit_of_work import Work, emit_conversation_event
from ssbroker.exceptions import SchemaError
from ssbroker.protocol.broker_errors import ConversationError, broker_error, parse_error_body, refusal
from ssbroker.protocol.conversation_states import DESCRIPTIONS, ConversationInput, ConversationState, next_state
from ssbroker.protocol.events import ConversationEvent, ConversationStep
from ssbroker.protocol.settings import BODY_MAX
from ssbroker.store import conversation_endpoints, queues, transmission_queue
from ssbroker.store.codes import PRECEDENCE_MESSAGE, RETAINED_SENT
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Objects, Queue

SentMessages: TypeAlias = tuple[ConversationEndpoint, Sequence[DialogMessage]]
"""A sending endpoint in its new state, and its numbered messages in order."""

_ACCEPTED: Final = "bytes, bytearray or memoryview"

_HINTS: Final = {
    ConversationState.SI: "its first message has not arrived completely",
    ConversationState.DO: "this side has ended it",
    ConversationState.DI: "the other side has ended it; end it here too",
    ConversationState.ER: "it has failed; end it here too",
    ConversationState.CD: "both sides have ended it",
}
"""Why a conversation does not allow a call."""


def body_bytes(body: object) -> bytes | None:
    """Validates a message body, and returns it as stored: None if empty."""
    if body is None:
        raise broker_error(8433, name="body")
    if not isinstance(body, bytes | bytearray | memoryview):
        actual = type(body).__name__
        raise SchemaError(f"body: expected {_ACCEPTED}, got {actual}", column="body", expected=_ACCEPTED, actual=actual)
    length = memoryview(body).nbytes
    if length > BODY_MAX:
        raise broker_error(8459, name="body", length=length, maximum=BODY_MAX)
    return bytes(body) or None


def send_one(work: Work, endpoint: ConversationEndpoint, message_type: str, body: bytes | None) -> None:
    """Checks that an endpoint may send a message, and sends it."""
    state = check_may_send(work, endpoint, (message_type,), now=work.now())
    send(work, [(endpoint, state, [(message_type, body)])])


def check_may_send(
    work: Work, endpoint: ConversationEndpoint, message_types: Iterable[str], *, now: int
) -> ConversationState:
    """Checks, before anything is written, that an endpoint may send messages of these types; returns its next state."""
    state = next_state(ConversationState(endpoint.state), ConversationInput.SEND)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    for name in message_types:
        check_sendable_type(work.objects, endpoint, name)
    if endpoint.lifetime <= now:
        handle = uuid.UUID(bytes=endpoint.conversation_handle)
        raise refusal(
            f"cannot send on the conversation {handle}: its lifetime has ended; begin another conversation", 8489
        )
    queue = queue_of(work, endpoint)
    if queue.is_retention_enabled and not queue.is_enqueue_enabled:
        raise broker_error(9618, queue=plain_queue_name(queue))
    return state


def check_all_may_send(
    work: Work, sends: Iterable[tuple[ConversationEndpoint, frozenset[str]]], *, now: int
) -> list[ConversationState]:
    """Runs `check_may_send` for many endpoints, each with its message types; checks similar endpoints only once."""
    checked: dict[tuple[object, ...], ConversationState] = {}
    states: list[ConversationState] = []
    for endpoint, message_types in sends:
        key = (
            endpoint.state,
            endpoint.service_id,
            endpoint.service_contract_id,
            endpoint.is_initiator,
            queue_of(work, endpoint).queue_id,
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
            conversation_endpoints.set_state(work.connection, endpoint.endpoint_id, state)
            sender = endpoint._replace(state=state)
        queue = queue_of(work, endpoint)
        if queue.is_retention_enabled:
            _retain(work, sender, queue, numbered)
        if has_subscribers:
            _emit_send_events(work, sender, numbered)
        sends.append((sender, numbered))
        work.effects.sent += len(numbered)
    conversation_endpoints.set_send_sequences(work.connection, numbers)
    deliver_or_queue(work, sends)


def deliver_or_queue(work: Work, sends: Sequence[SentMessages]) -> None:
    """Delivers messages directly to target queues in this database (P33); otherwise puts them into the transmission queue."""
    waiting: list[SentMessages] = []
    stays = _stay_in_database(work, [sender for sender, _ in sends])
    for (endpoint, messages), is_local in zip(sends, stays, strict=True):
        if not (is_local and _is_direct(work, endpoint)):
            waiting.append((endpoint, messages))
            continue
        outcome = arrive(work, header_of(work.objects, endpoint), messages, park_if_disabled=False)
        left = [message for message in messages if message.message_sequence_number >= outcome.acknowledged]
        if left and outcome.error is None:
            waiting.append((endpoint, left))
        update_sender(work, endpoint, outcome, broker_instance=work.broker_instance)
    queue_for_transmission(work, waiting)


def _stay_in_database(work: Work, endpoints: Sequence[ConversationEndpoint]) -> list[bool]:
    """Returns for each endpoint whether its messages stay in this database."""
    own, local_services = work.broker_instance, work.objects.services_routed_locally
    if all(each.far_broker_instance == own and each.far_service in local_services for each in endpoints):
        return [True] * len(endpoints)
    return work.are_routed_here(endpoints)


def _is_direct(work: Work, endpoint: ConversationEndpoint) -> bool:
    return work.objects.broker.is_delivering and not transmission_queue.has_outgoing(
        work.connection, endpoint.endpoint_id
    )


def apply_outcome(work: Work, endpoint_id: int, outcome: DeliveryOutcome, *, broker_instance: bytes) -> None:
    """Removes accepted messages from the transmission queue (P16), and updates the sender."""
    endpoint = conversation_endpoints.by_id(work.connection, endpoint_id)
    if endpoint is None:
        delete_unacknowledged(work, endpoint_id)
        return
    delete_acknowledged(work, [(endpoint_id, outcome.acknowledged)])
    update_sender(work, endpoint, outcome, broker_instance=broker_instance)


def update_sender(
    work: Work, endpoint: ConversationEndpoint, outcome: DeliveryOutcome, *, broker_instance: bytes
) -> None:
    """Ends the sender if delivery returned an error; otherwise binds it to the target's broker id (R8), and closes it after its last message."""
    if outcome.error is not None:
        end_with_broker_error(work, endpoint, outcome.error.body())
        return
    if not endpoint.is_bound and outcome.acknowledged:
        conversation_endpoints.bind(work.connection, endpoint.endpoint_id, far_broker_instance=broker_instance)
    if endpoint.end_dialog_sequence is not None and outcome.acknowledged > endpoint.end_dialog_sequence:
        state = next_state(ConversationState(endpoint.state), ConversationInput.ACKNOWLEDGED)
        if state != endpoint.state and not isinstance(state, int):
            emit_conversation_event(work, endpoint, ConversationStep.RECEIVED_END_CONVERSATION_ACK, state=state)
            close(work, endpoint)


def end_with_broker_error(work: Work, endpoint: ConversationEndpoint, body: bytes) -> None:
    """Ends an endpoint with an error that the broker of the remote endpoint has sent back."""
    end_with_error(work, endpoint, body, cause=ConversationInput.ERROR)
    error = parse_error_body(body) or ConversationError(0, "")
    emit_conversation_event(
        work, endpoint, ConversationStep.RECEIVED_BROKER_ERROR, error=error.code, text=error.description
    )


def refused_in_state(number: int, endpoint: ConversationEndpoint) -> Exception:
    """Returns the error for a call that the endpoint's state does not allow."""
    state = ConversationState(endpoint.state)
    hint = f" ({_HINTS[state]})" if state in _HINTS else ""
    return broker_error(
        number, handle=uuid.UUID(bytes=endpoint.conversation_handle), state=f"{state}, {DESCRIPTIONS[state]}{hint}"
    )


def check_sendable_type(objects: Objects, endpoint: ConversationEndpoint, name: object) -> None:
    """Raises an error unless an endpoint may send messages of this type. `rust/store/src/send.rs` applies the same rules on its fast path."""
    message_type = objects.message_types.get(name) if isinstance(name, str) else None
    if message_type is None:
        raise broker_error(8428, message_type=name)
    contract = objects.contracts_by_id[endpoint.service_contract_id]
    rule = contract.messages.get(message_type.message_type_id)
    if rule is None:
        raise broker_error(8431, contract=contract.name, message_type=name)
    if endpoint.is_initiator and not rule.is_sent_by_initiator:
        raise broker_error(8432, message_type=name)
    if not endpoint.is_initiator and not rule.is_sent_by_target:
        raise broker_error(8434, message_type=name)


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
            queues.NewQueueRow(
                queue.queue_id,
                RETAINED_SENT,
                endpoint.priority,
                endpoint.endpoint_id,
                PRECEDENCE_MESSAGE,
                message.message_sequence_number,
                message_types[message.message_type_name].message_type_id,
                message.message_body,
            )
            for message in messages
        ],
        work.now(),
    )
