"""Delivers messages to an endpoint and applies acknowledgements at the sender."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from ssbroker.broker.context import LocalRoute
from ssbroker.broker.dialogs import contract_rules
from ssbroker.broker.dialogs.enqueue import QueueEntry, enqueue, queue_of, release_for, take_all_off, take_off
from ssbroker.broker.dialogs.errors import ConversationError, failure, read_failure
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader, envelope_of
from ssbroker.broker.unit_of_work import Work, emit_conversation_event, emit_group_event, emit_undeliverable_event
from ssbroker.protocol.config import END_DIALOG, ERROR, SECOND
from ssbroker.protocol.errors import error_text
from ssbroker.protocol.events import ConversationEvent, ConversationGroupEvent, ConversationStep, GroupStep
from ssbroker.protocol.states import (
    STATE_AFTER_FIRST_FRAGMENT,
    STATE_AFTER_FIRST_MESSAGE,
    ConversationInput,
    ConversationState,
    next_state,
)
from ssbroker.protocol.storage import MessageRun
from ssbroker.store import endpoints, queues, transmission_queue
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import Contract, MessageType, Objects, Queue, Service

CLOSED_FOR: Final = 30 * 60 * SECOND
"""For how long a closed endpoint is kept against replays (B14, B40), in microseconds."""


def close(work: Work, endpoint: ConversationEndpoint) -> None:
    """Ends this side for good, with its messages (B15): an initiator's endpoint goes, unless it was heard of over the network (B40).

    That and a target's stay closed for a while (B14).
    """
    if endpoint.is_initiator and not endpoint.is_remote:
        remove(work, endpoint)
        return
    _forget(work, endpoint)
    _leave_group(work, endpoint)
    until = work.now() + CLOSED_FOR
    endpoints.set_closed(work.connection, endpoint.endpoint_id, state=ConversationState.CD, until=until)
    work.effects.is_due_at(until + endpoints.REMOVAL_DELAY)


def remove(work: Work, endpoint: ConversationEndpoint) -> None:
    """Removes every trace of this side, as END CONVERSATION WITH CLEANUP does (fact 127)."""
    _forget(work, endpoint)
    _leave_group(work, endpoint)
    endpoints.remove(work.connection, endpoint.endpoint_id)


def end_with_error(
    work: Work,
    endpoint: ConversationEndpoint,
    body: bytes | None,
    *,
    happened: ConversationInput = ConversationInput.FAILURE,
    number: int = 0,
) -> int | None:
    """Ends this side with an error: its application finds an Error message in its queue, and has to END (fact 129).

    Args:
        work: The transaction.
        endpoint: The side, as it is now.
        body: The body of the Error message.
        happened: ERROR where the message arrived, FAILURE where the broker here found the reason.
        number: The message's sequence number.

    Returns:
        None, or the number of the reason why the message is dropped: this side is over or broken already.
    """
    state = next_state(ConversationState(endpoint.state), happened)
    if isinstance(state, int):
        take_all_off(work, endpoint.endpoint_id)
        return state
    if state == endpoint.state:
        return None
    if state is ConversationState.CD:
        close(work, endpoint)
        return None
    # Nobody takes what was sent, and nothing more comes (fact 126).
    take_all_off(work, endpoint.endpoint_id)
    queues.remove_early_messages(work.connection, endpoint.endpoint_id)
    endpoints.set_state(work.connection, endpoint.endpoint_id, state)
    endpoints.set_timer(work.connection, endpoint.endpoint_id, None)
    enqueue(work, endpoint, queue_of(work, endpoint), [QueueEntry(number, ERROR, body)])
    return None


def _leave_group(work: Work, endpoint: ConversationEndpoint) -> None:
    """A group goes with the last of its conversations that is not over."""
    if endpoint.state != ConversationState.CD and work.effects.wants(ConversationGroupEvent):
        members = endpoints.in_group(work.connection, endpoint.conversation_group_id, limit=2)
        if all(each.endpoint_id == endpoint.endpoint_id for each in members):
            emit_group_event(work, endpoint.conversation_group_id, GroupStep.DROP)


def _forget(work: Work, endpoint: ConversationEndpoint) -> None:
    queues.remove_messages(work.connection, endpoint.endpoint_id)
    take_all_off(work, endpoint.endpoint_id)
    transmission_queue.remove_arrived(work.connection, endpoint.endpoint_id)


class InboundDialog:
    """An endpoint while messages arrive for it; used once."""

    def __init__(self, work: Work, endpoint: ConversationEndpoint, queue: Queue, *, is_first_fit: bool = False) -> None:
        """Begins.

        Args:
            work: The transaction.
            endpoint: The side that they arrive for, as it is now.
            queue: Its queue.
            is_first_fit: Whether the first message was judged already.
        """
        self._work = work
        self._endpoint = endpoint
        self._queue = queue
        self._is_first_fit = is_first_fit
        self._state = ConversationState(endpoint.state)
        self._next = endpoint.receive_sequence
        self._entries: list[QueueEntry] = []
        self._kinds: dict[str, MessageType | ConversationError] = {}
        self._early = self._known_early()
        self._promoted: list[int] = []

    def take(self, messages: Sequence[DialogMessage]) -> DeliveryOutcome:
        """Takes what it may, in order of the numbers, and writes the whole run at once."""
        dropped = 0
        for message in messages:
            number = message.message_sequence_number
            if number < self._next:
                continue  # a duplicate (P18)
            if message.is_conversation_error:
                return self._broken_by(message)
            is_early = number > self._next
            state = next_state(self._state, _happened(message, is_early=is_early))
            if isinstance(state, int):
                dropped = number + 1
                emit_undeliverable_event(
                    self._work, self._endpoint.conversation_id, number=number, error=state, text=error_text(state)
                )
                continue
            refused = self._judge(message)
            if refused is None:
                self._keep(message, state, is_early=is_early)
            elif not is_early:
                return self.refuse(refused)
            # What is early and unfit is left to its sender, until its turn comes.
        self._write()
        return DeliveryOutcome(max(self._next, dropped))

    def _keep(self, message: DialogMessage, state: ConversationState, *, is_early: bool) -> None:
        number, kind, body = message[:3]
        if is_early:
            if number not in self._early:
                self._early[number] = (None, kind)
                self._entries.append(QueueEntry(number, kind, body, queues.EARLY))
            return
        self._entries.append(QueueEntry(number, kind, body))
        self._state = state
        self._next += 1
        while self._next in self._early:
            self._promote(self._next)

    def _promote(self, number: int) -> None:
        """The turn of a message that came before it."""
        queuing_order, kind = self._early.pop(number)
        state = next_state(
            self._state, ConversationInput.END_DIALOG if kind == END_DIALOG else ConversationInput.MESSAGE
        )
        if isinstance(state, int):
            return  # its sender had ended before it; it is never received
        if queuing_order is None:
            self._entries = [
                entry._replace(status=queues.READY) if entry.message_sequence_number == number else entry
                for entry in self._entries
            ]
        else:
            self._promoted.append(queuing_order)
        self._state = state
        self._next = number + 1

    def _judge(self, message: DialogMessage) -> ConversationError | None:
        """What goes back for a message; None if it may be taken."""
        if message.is_end_of_dialog:
            return None
        kind = self._kinds.get(message.message_type_name)
        if kind is None:
            objects, endpoint = self._work.objects, self._endpoint
            contract = objects.contracts_by_id[endpoint.service_contract_id]
            kind = contract_rules.takeable(
                objects, contract, message.message_type_name, from_initiator=not endpoint.is_initiator
            )
            self._kinds[message.message_type_name] = kind
        if isinstance(kind, ConversationError):
            return kind
        if kind.validation == "N" or (self._is_first_fit and message.message_sequence_number == 0):
            return None
        return contract_rules.unfit(kind, message.message_body)

    def refuse(self, refused: ConversationError) -> DeliveryOutcome:
        """Ends the conversation for a message that cannot be taken (B11); an application that has not seen any of it is not told."""
        if self._state is ConversationState.SI:
            remove(self._work, self._endpoint)
            return DeliveryOutcome(self._next, error=refused)
        self._write()
        end_with_error(self._work, self._now(), refused.body())
        self._tell(ConversationStep.BROKER_INITIATED_ERROR, ConversationState.ER, refused)
        return DeliveryOutcome(self._next, error=refused)

    def _broken_by(self, message: DialogMessage) -> DeliveryOutcome:
        """An Error is taken at once: what should have come before it never will (B13)."""
        self._write()
        above = message.message_sequence_number + 1
        end_with_error(
            self._work,
            self._now(),
            message.message_body,
            happened=ConversationInput.ERROR,
            number=message.message_sequence_number,
        )
        endpoints.set_receive_sequence(self._work.connection, self._endpoint.endpoint_id, receive_sequence=above)
        if self._work.effects.wants(ConversationEvent):
            self._tell_broken(message)
        return DeliveryOutcome(above)

    def _write(self) -> None:
        connection, endpoint = self._work.connection, self._endpoint
        if self._promoted:
            queues.make_ready(connection, self._promoted)
            self._work.effects.arrived.add(self._queue.queue_id)
        enqueue(self._work, endpoint, self._queue, self._entries)
        if self._next != endpoint.receive_sequence:
            endpoints.set_receive_sequence(connection, endpoint.endpoint_id, receive_sequence=self._next)
        if self._state != endpoint.state:
            endpoints.set_state(connection, endpoint.endpoint_id, self._state)
        if self._work.effects.wants(ConversationEvent):
            self._tell_taken()

    def _tell_taken(self) -> None:
        for entry in self._entries:
            is_end = entry.message_type_name == END_DIALOG
            emit_conversation_event(
                self._work,
                self._endpoint,
                ConversationStep.RECEIVED_END_CONVERSATION if is_end else ConversationStep.RECEIVED_SEQUENCED_MESSAGE,
                state=self._state,
                message_type_name=entry.message_type_name,
                message_sequence_number=entry.message_sequence_number,
            )

    def _tell_broken(self, message: DialogMessage) -> None:
        said = read_failure(message.message_body)
        is_of_broker = said is not None and said.code < 0
        self._tell(
            ConversationStep.RECEIVED_BROKER_ERROR
            if is_of_broker
            else ConversationStep.RECEIVED_END_CONVERSATION_WITH_ERROR,
            ConversationState.ER,
            said,
        )

    def _tell(self, step: ConversationStep, state: ConversationState, why: ConversationError | None = None) -> None:
        code, description = (0, "") if why is None else (why.code, why.description)
        emit_conversation_event(self._work, self._endpoint, step, state=state, error=code, text=description)

    def _now(self) -> ConversationEndpoint:
        return self._endpoint._replace(state=self._state, receive_sequence=self._next)

    def _known_early(self) -> dict[int, tuple[int | None, str]]:
        """Queuing order and type of what came before its turn; what waits beside a queue that is off has no order."""
        connection, endpoint_id = self._work.connection, self._endpoint.endpoint_id
        if not self._queue.is_enqueue_enabled:
            waiting = transmission_queue.early_messages(connection, endpoint_id, self._next)
            return {number: (None, name) for number, name in waiting}
        if transmission_queue.has_arrived(connection, endpoint_id):
            # It was turned on just now; what waited for that comes first.
            release_for(self._work, self._endpoint, self._queue)
        names = self._work.objects.message_types_by_id
        return {
            number: (order, names[kind].name) for number, order, kind in queues.early_messages(connection, endpoint_id)
        }


def _happened(message: DialogMessage, *, is_early: bool) -> ConversationInput:
    if is_early:
        return ConversationInput.PART
    return ConversationInput.END_DIALOG if message.is_end_of_dialog else ConversationInput.MESSAGE


_TAKING: Final = (ConversationState.SI, ConversationState.CO)
"""Where something may come into the queue; for a conversation that is over nothing has to wait until the queue is on."""


def arrive(
    work: Work, envelope: MessageHeader, messages: Sequence[DialogMessage], *, waits_here: bool = True
) -> DeliveryOutcome:
    """Takes messages of one conversation and one direction; makes the target's endpoint where they are its first.

    Args:
        work: The transaction of the database that they are for.
        envelope: What they have in common.
        messages: The messages, in order of their numbers; at least one.
        waits_here: Whether they may wait in this database's transmission queue while the queue is off (P34). False where they
            stand in it already.

    Returns:
        What became of them. Nothing is durable before the transaction commits.
    """
    endpoint = endpoints.by_conversation(
        work.connection, envelope.conversation_id, is_initiator=not envelope.is_initiator
    )
    if endpoint is None:
        return _first(work, envelope, messages, waits_here=waits_here)
    return _further(work, envelope, endpoint, messages, waits_here=waits_here)


def _further(
    work: Work,
    envelope: MessageHeader,
    endpoint: ConversationEndpoint,
    messages: Sequence[DialogMessage],
    *,
    waits_here: bool,
) -> DeliveryOutcome:
    if endpoint.far_service != envelope.from_service_name:
        return _undelivered(endpoint.receive_sequence, 11222)
    if endpoint.is_bound and endpoint.far_broker_instance != envelope.from_broker_instance:
        return DeliveryOutcome(messages[-1].message_sequence_number + 1, error=failure(8495))
    queue = queue_of(work, endpoint)
    if not queue.is_enqueue_enabled and not waits_here and endpoint.state in _TAKING:
        return _undelivered(endpoint.receive_sequence, 11219, queue=queue.name)
    if not endpoint.is_bound:
        # A reply that overtook the acknowledgement says the same (R8).
        endpoints.bind(work.connection, endpoint.endpoint_id, far_broker_instance=envelope.from_broker_instance)
    return InboundDialog(work, endpoint, queue).take(messages)


def _first(
    work: Work, envelope: MessageHeader, messages: Sequence[DialogMessage], *, waits_here: bool
) -> DeliveryOutcome:
    above = messages[-1].message_sequence_number + 1
    if not envelope.is_initiator:
        # The initiator's endpoint is gone. Who only says that it is over as well gets no answer.
        is_over = all(message.is_conversation_error or message.is_end_of_dialog for message in messages)
        return DeliveryOutcome(above, error=None if is_over else failure(8462))
    if messages[0].is_conversation_error:
        return DeliveryOutcome(above)  # the end of a conversation that nobody here has heard of
    found = target_of(work.objects, envelope)
    if isinstance(found, DeliveryOutcome):
        return found
    service, contract = found
    queue = work.objects.queues_by_id[service.queue_id]
    if not queue.is_enqueue_enabled and not waits_here:
        return _undelivered(0, 11219, queue=queue.name)
    is_first = messages[0].message_sequence_number == 0
    if is_first:
        refused = _refusal(work, contract, messages[0])
        if refused is not None:
            return DeliveryOutcome(0, error=refused)
    endpoint = begin_here(work, envelope, service, contract, is_whole=is_first)
    return InboundDialog(work, endpoint, queue, is_first_fit=is_first).take(messages)


def target_of(objects: Objects, envelope: MessageHeader) -> tuple[Service, Contract] | DeliveryOutcome:
    """The service and the contract of a conversation that begins, or what keeps it from beginning."""
    if not objects.broker.is_delivering:
        return _undelivered(0, 28013)
    service = objects.services.get(envelope.to_service_name)
    if service is None:
        if envelope.to_broker_instance == objects.broker.service_broker_guid:
            return DeliveryOutcome(0, error=failure(8490, service=envelope.to_service_name))
        return _undelivered(0, 11210, service=envelope.to_service_name)
    contract = objects.contracts.get(envelope.service_contract_name)
    if contract is None or contract.service_contract_id not in service.contracts:
        return DeliveryOutcome(0, error=failure(8408, service=service.name, contract=envelope.service_contract_name))
    return service, contract


def begin_here(
    work: Work, envelope: MessageHeader, service: Service, contract: Contract, *, is_whole: bool
) -> ConversationEndpoint:
    """Makes the target's endpoint.

    Args:
        work: The transaction.
        envelope: What the initiator says of the conversation.
        service: The service that it is for.
        contract: Its contract.
        is_whole: Whether the whole first message is there.

    Returns:
        The endpoint.
    """
    endpoint = endpoints.insert(
        work.connection,
        conversation_handle=work.new_id(),
        conversation_id=envelope.conversation_id,
        is_initiator=False,
        conversation_group_id=work.new_id(),
        service_id=service.service_id,
        service_contract_id=contract.service_contract_id,
        far_service=envelope.from_service_name,
        far_broker_instance=envelope.from_broker_instance,
        is_bound=True,
        is_encrypted=envelope.is_encrypted,
        state=STATE_AFTER_FIRST_MESSAGE if is_whole else STATE_AFTER_FIRST_FRAGMENT,
        lifetime=envelope.lifetime,
        priority=contract_rules.priority(
            work.objects,
            service_contract_id=contract.service_contract_id,
            service_id=service.service_id,
            far_service=envelope.from_service_name,
        ),
    )
    work.begins(endpoint.endpoint_id)
    work.effects.is_due_at(envelope.lifetime)
    emit_group_event(work, endpoint.conversation_group_id, GroupStep.CREATE)
    emit_conversation_event(work, endpoint, ConversationStep.DIALOG_CREATED)
    return endpoint


def _refusal(work: Work, contract: Contract, message: DialogMessage) -> ConversationError | None:
    kind = contract_rules.takeable(work.objects, contract, message.message_type_name, from_initiator=True)
    return kind if isinstance(kind, ConversationError) else contract_rules.unfit(kind, message.message_body)


def _undelivered(acknowledged: int, number: int, **values: object) -> DeliveryOutcome:
    return DeliveryOutcome(acknowledged, undelivered=number, reason=error_text(number, **values))


def transmit(work: Work, sends: Iterable[tuple[ConversationEndpoint, Sequence[DialogMessage], LocalRoute]]) -> None:
    """Puts what endpoints send straight into the targets' queues in this database (P33), else into the transmission queue.

    Args:
        work: The transaction of the senders' database.
        sends: The senders, in the state that the send has brought them to; what each sends, numbered, in order; and where that goes.
    """
    waiting: list[tuple[ConversationEndpoint, Sequence[DialogMessage]]] = []
    for endpoint, messages, way in sends:
        if not _goes_straight(work, endpoint, way):
            waiting.append((endpoint, messages))
            continue
        arrival = arrive(work, envelope_of(work.objects, endpoint), messages, waits_here=False)
        left = [message for message in messages if message.message_sequence_number >= arrival.acknowledged]
        if left and arrival.error is None:
            waiting.append((endpoint, left))
        _settle(work, endpoint, arrival, broker_instance=work.broker_instance)
    put_off(work, waiting)


def settle(work: Work, endpoint_id: int, arrival: DeliveryOutcome, *, broker_instance: bytes) -> None:
    """Does at the sender what became of its messages: what was taken leaves the transmission queue (P16).

    Args:
        work: A transaction of the sender's database, later than the commit that took them.
        endpoint_id: The sender; it may be gone by now.
        arrival: What became of them.
        broker_instance: The broker id of the database that took them, which binds the conversation (R8).
    """
    endpoint = endpoints.by_id(work.connection, endpoint_id)
    if endpoint is None:
        take_all_off(work, endpoint_id)
        return
    take_off(work, [(endpoint_id, arrival.acknowledged)])
    _settle(work, endpoint, arrival, broker_instance=broker_instance)


def broken_by_broker(work: Work, endpoint: ConversationEndpoint, body: bytes) -> None:
    """Ends an endpoint with an error that the far broker has sent back (B11).

    Args:
        work: The transaction.
        endpoint: The endpoint, as it is now.
        body: The body of the error.
    """
    end_with_error(work, endpoint, body, happened=ConversationInput.ERROR)
    said = read_failure(body) or ConversationError(0, "")
    emit_conversation_event(
        work, endpoint, ConversationStep.RECEIVED_BROKER_ERROR, error=said.code, text=said.description
    )


def _settle(work: Work, endpoint: ConversationEndpoint, arrival: DeliveryOutcome, *, broker_instance: bytes) -> None:
    if arrival.error is not None:
        broken_by_broker(work, endpoint, arrival.error.body())
        return
    if not endpoint.is_bound and arrival.acknowledged:
        endpoints.bind(work.connection, endpoint.endpoint_id, far_broker_instance=broker_instance)
    if endpoint.end_dialog_sequence is not None and arrival.acknowledged > endpoint.end_dialog_sequence:
        state = next_state(ConversationState(endpoint.state), ConversationInput.ACKNOWLEDGED)
        if state != endpoint.state and not isinstance(state, int):
            emit_conversation_event(work, endpoint, ConversationStep.RECEIVED_END_CONVERSATION_ACK, state=state)
            close(work, endpoint)


def _goes_straight(work: Work, endpoint: ConversationEndpoint, way: LocalRoute) -> bool:
    if not work.objects.broker.is_delivering or way.target_database != work.database:
        return False
    return not transmission_queue.has_waiting(work.connection, endpoint.endpoint_id)


def put_off(work: Work, sends: Sequence[tuple[ConversationEndpoint, Sequence[DialogMessage]]]) -> None:
    """Puts what endpoints send into the transmission queue, from where it is delivered after the commit."""
    if not sends:
        return
    now = work.now()
    rows = [
        (sender.endpoint_id, False, number, name, is_error, is_end, now, body)
        for sender, messages in sends
        for number, name, body, is_error, is_end in messages
    ]
    transmission_queue.add(work.connection, rows)
    work.effects.outbound.update(sender.endpoint_id for sender, _ in sends)
    work.effects.put_off += len(rows)


class PlacedRun(NamedTuple):
    """A run, and where it begins among the messages."""

    run: MessageRun
    start: int


def put_plain(work: Work, arrivals: Iterable[tuple[ConversationEndpoint, Sequence[DialogMessage]]]) -> dict[int, int]:
    """Puts into their queues what is plain: user messages of conversations that go on, in their turn, to a queue that is on, unvalidated.

    Args:
        work: The transaction.
        arrivals: The endpoints, each at most once and with nothing that waits beside its queue or out of turn, and what comes for each,
            in order of the numbers.

    Returns:
        For each endpoint that has taken its messages, all of them, the number of its next one, which is still to be written.
    """
    taken: dict[int, int] = {}
    if work.effects.wants(ConversationEvent):
        return taken
    rows: list[tuple[int, int, int, int, int, int, int, bytes | None]] = []
    judged: dict[tuple[int, int, str], int | None] = {}
    for endpoint, messages in arrivals:
        queue = queue_of(work, endpoint)
        if not (queue.is_enqueue_enabled and _is_in_turn(endpoint, messages)):
            continue
        kinds = [_kind(work, endpoint, message.message_type_name, judged) for message in messages]
        endpoint_id, priority = endpoint.endpoint_id, endpoint.priority
        run = [
            (queue.queue_id, queues.READY, priority, endpoint_id, queues.PRECEDENCE_MESSAGE, number, kind, body)
            for (number, _, body, _, _), kind in zip(messages, kinds, strict=True)
            if kind is not None
        ]
        if len(run) < len(messages):
            continue
        rows += run
        work.effects.are_enqueued(len(run), is_remote=bool(endpoint.is_remote), priority=priority)
        taken[endpoint_id] = endpoint.receive_sequence + len(messages)
        work.effects.arrived.add(queue.queue_id)
    queues.add(work.connection, rows)
    return taken


def put_runs(work: Work, messages: pa.Table, runs: Iterable[tuple[ConversationEndpoint, PlacedRun]]) -> dict[int, int]:
    """Puts runs into their queues, where that is plain, natively.

    Args:
        work: The transaction.
        messages: The messages (`protocol.ledger.MESSAGES`).
        runs: The endpoints, as `put_plain` takes them, and what comes for each.

    Returns:
        As `put_plain`.
    """
    taken: dict[int, int] = {}
    if work.effects.wants(ConversationEvent):
        return taken
    places: list[tuple[int, int, tuple[int, int, int, int, int]]] = []
    judged: dict[tuple[int, int, str], int | None] = {}
    for endpoint, (run, start) in runs:
        queue = queue_of(work, endpoint)
        kind = _kind(work, endpoint, run.message_type_name, judged)
        if (
            not queue.is_enqueue_enabled
            or kind is None
            or endpoint.state != ConversationState.CO
            or run.first != endpoint.receive_sequence
        ):
            continue
        endpoint_id, priority = endpoint.endpoint_id, endpoint.priority
        places.append((start, run.rows, (queue.queue_id, priority, endpoint_id, kind, run.first)))
        work.effects.are_enqueued(run.rows, is_remote=bool(endpoint.is_remote), priority=priority)
        taken[endpoint_id] = run.first + run.rows
        work.effects.arrived.add(queue.queue_id)
    if places:
        work.connection.statements.enqueue(messages.select(["message_body"]), places)
    return taken


def _is_in_turn(endpoint: ConversationEndpoint, messages: Sequence[DialogMessage]) -> bool:
    """Whether these are the messages that come next, and none of them ends the conversation."""
    number = endpoint.receive_sequence
    for message in messages:
        if message.message_sequence_number != number or message.is_conversation_error or message.is_end_of_dialog:
            return False
        number += 1
    return endpoint.state == ConversationState.CO


def _kind(
    work: Work, endpoint: ConversationEndpoint, name: str, judged: dict[tuple[int, int, str], int | None]
) -> int | None:
    """The id of a message type that may come, without validation; None where it is anything else."""
    key = (endpoint.service_contract_id, endpoint.is_initiator, name)
    if key not in judged:
        contract = work.objects.contracts_by_id[endpoint.service_contract_id]
        kind = contract_rules.takeable(work.objects, contract, name, from_initiator=not endpoint.is_initiator)
        judged[key] = kind.message_type_id if isinstance(kind, MessageType) and kind.validation == "N" else None
    return judged[key]
