"""Delivers messages to the receiving endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from ssbroker._well_known import END_DIALOG
from ssbroker.broker.dialogs.acceptance import find_target, receivable_type, unvalidated_type
from ssbroker.broker.dialogs.body_validation import validation_error
from ssbroker.broker.dialogs.endpoint_end import end_with_error, extend_retention, remove
from ssbroker.broker.dialogs.enqueue import enqueue, queue_of, unpark_for
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader, not_accepted
from ssbroker.broker.unit_of_work import Work, emit_conversation_event, emit_group_event, emit_undeliverable_event
from ssbroker.protocol.broker_errors import (
    QUEUE_DISABLED,
    WRONG_SERVICE,
    ConversationError,
    conversation_error,
    error_text,
    parse_error_body,
)
from ssbroker.protocol.conversation_states import (
    STATE_AFTER_FIRST_FRAGMENT,
    STATE_AFTER_FIRST_MESSAGE,
    ConversationInput,
    ConversationState,
    next_state,
)
from ssbroker.protocol.events import ConversationEvent, ConversationStep, GroupStep
from ssbroker.store import conversation_endpoints, queues, transmission_queue
from ssbroker.store.codes import RECEIVING_STATES
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Contract, MessageType, Queue, Service


class EndpointArrival:
    """Delivers one run of messages to an endpoint; used once."""

    def __init__(
        self, work: Work, endpoint: ConversationEndpoint, queue: Queue, *, is_first_validated: bool = False
    ) -> None:
        self._work = work
        self._endpoint = endpoint
        self._queue = queue
        self._is_first_validated = is_first_validated
        self._state = ConversationState(endpoint.state)
        self._next_number = endpoint.receive_sequence
        self._accepted: list[DialogMessage] = []
        self._checked_types: dict[str, MessageType | ConversationError] = {}
        self._early = self._read_early()
        self._promoted: list[int] = []

    def deliver(self, messages: Sequence[DialogMessage]) -> DeliveryOutcome:
        """Accepts messages in order of their numbers, and writes the whole run."""
        if self._state is ConversationState.CD:
            extend_retention(self._work, [(self._endpoint.conversation_id, bool(self._endpoint.is_initiator))])
        dropped = 0
        for message in messages:
            number = message.message_sequence_number
            if number < self._next_number:
                continue  # a duplicate (P18)
            if message.is_conversation_error:
                return self._deliver_error(message)
            is_early = number > self._next_number
            state = next_state(self._state, _state_input(message, is_early=is_early))
            if isinstance(state, int):
                dropped = number + 1
                emit_undeliverable_event(
                    self._work, self._endpoint.conversation_id, number=number, error=state, text=error_text(state)
                )
                continue
            refused = self._check(message)
            if refused is None:
                self._accept(message, state, is_early=is_early)
            elif not is_early:
                return self.refuse(refused)
            # An early message that is rejected stays with its sender until its turn.
        self._write()
        return DeliveryOutcome(max(self._next_number, dropped))

    def _accept(self, message: DialogMessage, state: ConversationState, *, is_early: bool) -> None:
        number = message.message_sequence_number
        if is_early:
            if number not in self._early:
                self._early[number] = (None, message.message_type_name)
                self._accepted.append(message._replace(is_early=True))
            return
        self._accepted.append(message)
        self._state = state
        self._next_number += 1
        while self._next_number in self._early:
            self._promote(self._next_number)

    def _promote(self, number: int) -> None:
        """Makes an early message ready, because all earlier messages have arrived."""
        queuing_order, message_type = self._early.pop(number)
        state = next_state(
            self._state, ConversationInput.END_DIALOG if message_type == END_DIALOG else ConversationInput.MESSAGE
        )
        if isinstance(state, int):
            return  # the sender had already ended, so the message is never received
        if queuing_order is None:
            self._accepted = [
                message._replace(is_early=False) if message.message_sequence_number == number else message
                for message in self._accepted
            ]
        else:
            self._promoted.append(queuing_order)
        self._state = state
        self._next_number = number + 1

    def _check(self, message: DialogMessage) -> ConversationError | None:
        """Returns the error to send back for a message; None if it is accepted."""
        if message.is_end_of_dialog:
            return None
        message_type = self._checked_types.get(message.message_type_name)
        if message_type is None:
            objects, endpoint = self._work.objects, self._endpoint
            contract = objects.contracts_by_id[endpoint.service_contract_id]
            message_type = receivable_type(
                objects, contract, message.message_type_name, from_initiator=not endpoint.is_initiator
            )
            self._checked_types[message.message_type_name] = message_type
        if isinstance(message_type, ConversationError):
            return message_type
        if message_type.validation == "N" or (self._is_first_validated and message.message_sequence_number == 0):
            return None
        return validation_error(message_type, message.message_body)

    def refuse(self, refused: ConversationError) -> DeliveryOutcome:
        """Ends the conversation because of a rejected message; if no message was complete before, removes the endpoint instead."""
        if self._state is ConversationState.SI:
            remove(self._work, self._endpoint)
            return DeliveryOutcome(self._next_number, error=refused)
        self._write()
        end_with_error(self._work, self._current_endpoint(), refused.body())
        self._emit_event(ConversationStep.BROKER_INITIATED_ERROR, ConversationState.ER, refused)
        return DeliveryOutcome(self._next_number, error=refused)

    def _deliver_error(self, message: DialogMessage) -> DeliveryOutcome:
        """Accepts an Error message immediately, because missing earlier messages will never arrive."""
        self._write()
        end = message.message_sequence_number + 1
        end_with_error(
            self._work,
            self._current_endpoint(),
            message.message_body,
            cause=ConversationInput.ERROR,
            number=message.message_sequence_number,
        )
        conversation_endpoints.set_receive_sequence(
            self._work.connection, self._endpoint.endpoint_id, receive_sequence=end
        )
        if self._work.effects.wants(ConversationEvent):
            self._emit_error_event(message)
        return DeliveryOutcome(end)

    def _write(self) -> None:
        connection, endpoint = self._work.connection, self._endpoint
        if self._promoted:
            queues.make_ready(connection, self._promoted)
            self._work.effects.arrived.add(self._queue.queue_id)
        enqueue(self._work, endpoint, self._queue, self._accepted)
        if self._next_number != endpoint.receive_sequence:
            conversation_endpoints.set_receive_sequence(
                connection, endpoint.endpoint_id, receive_sequence=self._next_number
            )
        if self._state != endpoint.state:
            conversation_endpoints.set_state(connection, endpoint.endpoint_id, self._state)
        if self._work.effects.wants(ConversationEvent):
            self._emit_received_events()

    def _emit_received_events(self) -> None:
        for message in self._accepted:
            emit_conversation_event(
                self._work,
                self._endpoint,
                ConversationStep.RECEIVED_END_CONVERSATION
                if message.is_end_of_dialog
                else ConversationStep.RECEIVED_SEQUENCED_MESSAGE,
                state=self._state,
                message_type_name=message.message_type_name,
                message_sequence_number=message.message_sequence_number,
            )

    def _emit_error_event(self, message: DialogMessage) -> None:
        error = parse_error_body(message.message_body)
        is_of_broker = error is not None and error.code < 0
        self._emit_event(
            ConversationStep.RECEIVED_BROKER_ERROR
            if is_of_broker
            else ConversationStep.RECEIVED_END_CONVERSATION_WITH_ERROR,
            ConversationState.ER,
            error,
        )

    def _emit_event(
        self, step: ConversationStep, state: ConversationState, cause: ConversationError | None = None
    ) -> None:
        code, description = (0, "") if cause is None else (cause.code, cause.description)
        emit_conversation_event(self._work, self._endpoint, step, state=state, error=code, text=description)

    def _current_endpoint(self) -> ConversationEndpoint:
        return self._endpoint._replace(state=self._state, receive_sequence=self._next_number)

    def _read_early(self) -> dict[int, tuple[int | None, str]]:
        """Returns the queuing order and the type of early messages, by number; messages that wait for a disabled queue have no order yet."""
        connection, endpoint_id = self._work.connection, self._endpoint.endpoint_id
        if not self._queue.is_enqueue_enabled:
            waiting = transmission_queue.early_messages(connection, endpoint_id, self._next_number)
            return {number: (None, name) for number, name in waiting}
        if transmission_queue.has_parked(connection, endpoint_id):
            # The queue was just enabled; messages that waited for it come first.
            unpark_for(self._work, self._endpoint, self._queue)
        names = self._work.objects.message_types_by_id
        return {
            number: (order, names[message_type].name)
            for number, order, message_type in queues.early_messages(connection, endpoint_id)
        }


def _state_input(message: DialogMessage, *, is_early: bool) -> ConversationInput:
    if is_early:
        return ConversationInput.PART
    return ConversationInput.END_DIALOG if message.is_end_of_dialog else ConversationInput.MESSAGE


def arrive(
    work: Work, header: MessageHeader, messages: Sequence[DialogMessage], *, park_if_disabled: bool = True
) -> DeliveryOutcome:
    """Delivers messages of one direction of a conversation; creates the target's endpoint on the first messages."""
    endpoint = conversation_endpoints.by_conversation(
        work.connection, header.conversation_id, is_initiator=not header.is_initiator
    )
    if endpoint is None:
        return _deliver_first(work, header, messages, park_if_disabled=park_if_disabled)
    return _deliver_next(work, header, endpoint, messages, park_if_disabled=park_if_disabled)


def _deliver_next(
    work: Work,
    header: MessageHeader,
    endpoint: ConversationEndpoint,
    messages: Sequence[DialogMessage],
    *,
    park_if_disabled: bool,
) -> DeliveryOutcome:
    if endpoint.far_service != header.from_service_name:
        return not_accepted(endpoint.receive_sequence, WRONG_SERVICE)
    if endpoint.is_bound and endpoint.far_broker_instance != header.from_broker_instance:
        return DeliveryOutcome(messages[-1].message_sequence_number + 1, error=conversation_error(8495))
    queue = queue_of(work, endpoint)
    if not queue.is_enqueue_enabled and not park_if_disabled and endpoint.state in RECEIVING_STATES:
        return not_accepted(endpoint.receive_sequence, QUEUE_DISABLED, queue=queue.name)
    if not endpoint.is_bound:
        # A reply that overtook the acknowledgement also binds the conversation (R8).
        conversation_endpoints.bind(
            work.connection, endpoint.endpoint_id, far_broker_instance=header.from_broker_instance
        )
    return EndpointArrival(work, endpoint, queue).deliver(messages)


def _deliver_first(
    work: Work, header: MessageHeader, messages: Sequence[DialogMessage], *, park_if_disabled: bool
) -> DeliveryOutcome:
    end = messages[-1].message_sequence_number + 1
    if not header.is_initiator:
        # The initiator's endpoint no longer exists. Messages that only end the conversation get no reply.
        is_end = all(message.is_conversation_error or message.is_end_of_dialog for message in messages)
        return DeliveryOutcome(end, error=None if is_end else conversation_error(8462))
    if messages[0].is_conversation_error:
        return DeliveryOutcome(end)  # the end of an unknown conversation
    found = find_target(work.objects, header)
    if isinstance(found, DeliveryOutcome):
        return found
    service, contract = found
    queue = work.objects.queues_by_id[service.queue_id]
    if not queue.is_enqueue_enabled and not park_if_disabled:
        return not_accepted(0, QUEUE_DISABLED, queue=queue.name)
    is_first = messages[0].message_sequence_number == 0
    if is_first:
        refused = _first_message_error(work, contract, messages[0])
        if refused is not None:
            return DeliveryOutcome(0, error=refused)
    endpoint = create_target_endpoint(work, header, service, contract, has_first_message=is_first)
    return EndpointArrival(work, endpoint, queue, is_first_validated=is_first).deliver(messages)


def create_target_endpoint(
    work: Work, header: MessageHeader, service: Service, contract: Contract, *, has_first_message: bool
) -> ConversationEndpoint:
    """Creates the target's endpoint, with its first message or, if `has_first_message` is false, for a fragment or a later message."""
    endpoint = conversation_endpoints.insert(
        work.connection,
        conversation_handle=work.new_id(),
        conversation_id=header.conversation_id,
        is_initiator=False,
        conversation_group_id=work.new_id(),
        service_id=service.service_id,
        service_contract_id=contract.service_contract_id,
        far_service=header.from_service_name,
        far_broker_instance=header.from_broker_instance,
        is_bound=True,
        is_encrypted=header.is_encrypted,
        state=STATE_AFTER_FIRST_MESSAGE if has_first_message else STATE_AFTER_FIRST_FRAGMENT,
        lifetime=header.lifetime,
        priority=work.objects.priority_of_endpoint(
            service_contract_id=contract.service_contract_id,
            service_id=service.service_id,
            far_service=header.from_service_name,
        ),
        now=work.now(),
    )
    work.forget_earlier_endpoint(endpoint.endpoint_id)
    work.effects.set_due(header.lifetime)
    emit_group_event(work, endpoint.conversation_group_id, GroupStep.CREATE)
    emit_conversation_event(work, endpoint, ConversationStep.DIALOG_CREATED)
    return endpoint


def _first_message_error(work: Work, contract: Contract, message: DialogMessage) -> ConversationError | None:
    message_type = receivable_type(work.objects, contract, message.message_type_name, from_initiator=True)
    return (
        message_type
        if isinstance(message_type, ConversationError)
        else validation_error(message_type, message.message_body)
    )


class PlacedRun(NamedTuple):
    """Consecutive messages of one endpoint that are adjacent rows of a table."""

    start: int
    """The first row."""
    rows: int
    first: int
    """The sequence number of the first message."""
    message_type_name: str


def enqueue_runs(
    work: Work, messages: pa.Table, arrivals: Iterable[tuple[ConversationEndpoint, Sequence[PlacedRun]]]
) -> dict[int, int]:
    """Fast path: enqueues messages that are next in order, on open conversations, without validation or subscribers.

    The messages of an endpoint are enqueued all together or not at all; messages that are not enqueued need
    `EndpointArrival`. Returns the next receive sequence of each endpoint whose messages were enqueued; it is not stored
    yet.
    """
    enqueued: dict[int, int] = {}
    if work.effects.wants(ConversationEvent):
        return enqueued
    places: list[tuple[int, int, tuple[int, int, int, int, int]]] = []
    accepted: dict[tuple[int, int, str], int | None] = {}
    for endpoint, runs in arrivals:
        queue = queue_of(work, endpoint)
        if not queue.is_enqueue_enabled or endpoint.state != ConversationState.CO:
            continue
        endpoint_id, priority, number = endpoint.endpoint_id, endpoint.priority, endpoint.receive_sequence
        targets: list[tuple[int, int, tuple[int, int, int, int, int]]] = []
        for start, rows, first, name in runs:
            message_type_id = _unvalidated_type_id(work, endpoint, name, accepted)
            if message_type_id is None or first != number:
                break
            targets.append((start, rows, (queue.queue_id, priority, endpoint_id, message_type_id, first)))
            number += rows
        if len(targets) < len(runs):
            continue
        places += targets
        enqueued[endpoint_id] = number
        work.effects.count_enqueued(
            number - endpoint.receive_sequence, is_remote=bool(endpoint.is_remote), priority=priority
        )
        work.effects.arrived.add(queue.queue_id)
    if places:
        work.connection.statements.enqueue(messages.select(["message_body"]), places, work.now())
    return enqueued


def _unvalidated_type_id(
    work: Work, endpoint: ConversationEndpoint, name: str, accepted: dict[tuple[int, int, str], int | None]
) -> int | None:
    """Returns the id of a message type that the endpoint accepts without validation; otherwise None."""
    key = (endpoint.service_contract_id, endpoint.is_initiator, name)
    if key not in accepted:
        contract = work.objects.contracts_by_id[endpoint.service_contract_id]
        message_type = unvalidated_type(work.objects, contract, name, from_initiator=not endpoint.is_initiator)
        accepted[key] = None if message_type is None else message_type.message_type_id
    return accepted[key]
