"""One side of a conversation that takes what arrives for it, message by message (P11, P12, P14)."""

from __future__ import annotations

from collections.abc import Sequence

from ssbroker.broker.dialogs import contract_rules
from ssbroker.broker.dialogs.arriving import Arrival, Message
from ssbroker.broker.dialogs.closing import break_off, remove
from ssbroker.broker.dialogs.error_body import Failure, read_failure
from ssbroker.broker.dialogs.queueing import Entry, enqueue, release_for
from ssbroker.broker.work.telling import told_conversation, told_undeliverable
from ssbroker.broker.work.work import Work
from ssbroker.protocol.event_steps import ConversationStep
from ssbroker.protocol.events import Conversation as ConversationEvent
from ssbroker.protocol.names import END_DIALOG, text
from ssbroker.protocol.states import Input, State, after
from ssbroker.store import endpoints, queues, transmission
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import MessageType, Queue


class Conversation:
    """An endpoint while messages arrive for it; used once."""

    def __init__(self, work: Work, endpoint: Endpoint, queue: Queue, *, is_first_fit: bool = False) -> None:
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
        self._state = State(endpoint.state)
        self._next = endpoint.receive_sequence
        self._entries: list[Entry] = []
        self._kinds: dict[str, MessageType | Failure] = {}
        self._early = self._known_early()
        self._promoted: list[int] = []

    def take(self, messages: Sequence[Message]) -> Arrival:
        """Takes what it may, in order of the numbers, and writes the whole run at once."""
        dropped = 0
        for message in messages:
            number = message.message_sequence_number
            if number < self._next:
                continue  # a duplicate (P18)
            if message.is_conversation_error:
                return self._broken_by(message)
            is_early = number > self._next
            state = after(self._state, _happened(message, is_early=is_early))
            if isinstance(state, int):
                dropped = number + 1
                told_undeliverable(
                    self._work, self._endpoint.conversation_id, number=number, error=state, text=text(state)
                )
                continue
            refused = self._judge(message)
            if refused is None:
                self._keep(message, state, is_early=is_early)
            elif not is_early:
                return self.refuse(refused)
            # What is early and unfit is left to its sender, until its turn comes.
        self._write()
        return Arrival(max(self._next, dropped))

    def _keep(self, message: Message, state: State, *, is_early: bool) -> None:
        number, kind, body = message[:3]
        if is_early:
            if number not in self._early:
                self._early[number] = (None, kind)
                self._entries.append(Entry(number, kind, body, queues.EARLY))
            return
        self._entries.append(Entry(number, kind, body))
        self._state = state
        self._next += 1
        while self._next in self._early:
            self._promote(self._next)

    def _promote(self, number: int) -> None:
        """The turn of a message that came before it."""
        queuing_order, kind = self._early.pop(number)
        state = after(self._state, Input.END_DIALOG if kind == END_DIALOG else Input.MESSAGE)
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

    def _judge(self, message: Message) -> Failure | None:
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
        if isinstance(kind, Failure):
            return kind
        if kind.validation == "N" or (self._is_first_fit and message.message_sequence_number == 0):
            return None
        return contract_rules.unfit(kind, message.message_body)

    def refuse(self, refused: Failure) -> Arrival:
        """Ends the conversation for a message that cannot be taken (B11); an application that has not seen any of it is not told."""
        if self._state is State.SI:
            remove(self._work, self._endpoint)
            return Arrival(self._next, error=refused)
        self._write()
        break_off(self._work, self._now(), refused.body())
        self._tell(ConversationStep.BROKER_INITIATED_ERROR, State.ER, refused)
        return Arrival(self._next, error=refused)

    def _broken_by(self, message: Message) -> Arrival:
        """An Error is taken at once: what should have come before it never will (B13)."""
        self._write()
        above = message.message_sequence_number + 1
        break_off(
            self._work,
            self._now(),
            message.message_body,
            happened=Input.ERROR,
            number=message.message_sequence_number,
        )
        endpoints.set_taken(self._work.connection, self._endpoint.endpoint_id, receive_sequence=above)
        if self._work.effects.wants(ConversationEvent):
            self._tell_broken(message)
        return Arrival(above)

    def _write(self) -> None:
        connection, endpoint = self._work.connection, self._endpoint
        if self._promoted:
            queues.make_ready(connection, self._promoted)
            self._work.effects.arrived.add(self._queue.queue_id)
        enqueue(self._work, endpoint, self._queue, self._entries)
        if self._next != endpoint.receive_sequence:
            endpoints.set_taken(connection, endpoint.endpoint_id, receive_sequence=self._next)
        if self._state != endpoint.state:
            endpoints.set_state(connection, endpoint.endpoint_id, self._state)
        if self._work.effects.wants(ConversationEvent):
            self._tell_taken()

    def _tell_taken(self) -> None:
        for entry in self._entries:
            is_end = entry.message_type_name == END_DIALOG
            told_conversation(
                self._work,
                self._endpoint,
                ConversationStep.RECEIVED_END_CONVERSATION if is_end else ConversationStep.RECEIVED_SEQUENCED_MESSAGE,
                state=self._state,
                message_type_name=entry.message_type_name,
                message_sequence_number=entry.message_sequence_number,
            )

    def _tell_broken(self, message: Message) -> None:
        said = read_failure(message.message_body)
        is_of_broker = said is not None and said.code < 0
        self._tell(
            ConversationStep.RECEIVED_BROKER_ERROR
            if is_of_broker
            else ConversationStep.RECEIVED_END_CONVERSATION_WITH_ERROR,
            State.ER,
            said,
        )

    def _tell(self, step: ConversationStep, state: State, why: Failure | None = None) -> None:
        code, description = (0, "") if why is None else (why.code, why.description)
        told_conversation(self._work, self._endpoint, step, state=state, error=code, text=description)

    def _now(self) -> Endpoint:
        return self._endpoint._replace(state=self._state, receive_sequence=self._next)

    def _known_early(self) -> dict[int, tuple[int | None, str]]:
        """Queuing order and type of what came before its turn; what waits beside a queue that is off has no order."""
        connection, endpoint_id = self._work.connection, self._endpoint.endpoint_id
        if not self._queue.is_enqueue_enabled:
            waiting = transmission.early_for(connection, endpoint_id, self._next)
            return {number: (None, name) for number, name in waiting}
        if transmission.has_arrived(connection, endpoint_id):
            # It was turned on just now; what waited for that comes first.
            release_for(self._work, self._endpoint, self._queue)
        names = self._work.objects.message_types_by_id
        return {number: (order, names[kind].name) for number, order, kind in queues.early(connection, endpoint_id)}


def _happened(message: Message, *, is_early: bool) -> Input:
    if is_early:
        return Input.PART
    return Input.END_DIALOG if message.is_end_of_dialog else Input.MESSAGE
