"""Hands on what an endpoint sends, and does at the sender what became of it (P16, P33, B8, B11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssbroker.broker.dialogs.arriving import Arrival, Message, envelope_of
from ssbroker.broker.dialogs.closing import break_off, close
from ssbroker.broker.dialogs.error_body import Failure, read_failure
from ssbroker.broker.dialogs.inbound import arrive
from ssbroker.broker.dialogs.taking_off import take_all_off, take_off
from ssbroker.broker.work.telling import told_conversation
from ssbroker.broker.work.work import Way, Work
from ssbroker.protocol.event_steps import ConversationStep
from ssbroker.protocol.states import Input, State, after
from ssbroker.store import endpoints, transmission
from ssbroker.store.endpoints import Endpoint


def transmit(work: Work, sends: Iterable[tuple[Endpoint, Sequence[Message], Way]]) -> None:
    """Puts what endpoints send straight into the targets' queues in this database (P33), else into the transmission queue.

    Args:
        work: The transaction of the senders' database.
        sends: The senders, in the state that the send has brought them to; what each sends, numbered, in order; and where that goes.
    """
    waiting: list[tuple[Endpoint, Sequence[Message]]] = []
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


def settle(work: Work, endpoint_id: int, arrival: Arrival, *, broker_instance: bytes) -> None:
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


def broken_by_broker(work: Work, endpoint: Endpoint, body: bytes) -> None:
    """Ends an endpoint with an error that the far broker has sent back (B11).

    Args:
        work: The transaction.
        endpoint: The endpoint, as it is now.
        body: The body of the error.
    """
    break_off(work, endpoint, body, happened=Input.ERROR)
    said = read_failure(body) or Failure(0, "")
    told_conversation(work, endpoint, ConversationStep.RECEIVED_BROKER_ERROR, error=said.code, text=said.description)


def _settle(work: Work, endpoint: Endpoint, arrival: Arrival, *, broker_instance: bytes) -> None:
    if arrival.error is not None:
        broken_by_broker(work, endpoint, arrival.error.body())
        return
    if not endpoint.is_bound and arrival.acknowledged:
        endpoints.bind(work.connection, endpoint.endpoint_id, far_broker_instance=broker_instance)
    if endpoint.end_dialog_sequence is not None and arrival.acknowledged > endpoint.end_dialog_sequence:
        state = after(State(endpoint.state), Input.ACKNOWLEDGED)
        if state != endpoint.state and not isinstance(state, int):
            told_conversation(work, endpoint, ConversationStep.RECEIVED_END_CONVERSATION_ACK, state=state)
            close(work, endpoint)


def _goes_straight(work: Work, endpoint: Endpoint, way: Way) -> bool:
    if not work.objects.broker.is_delivering or way.target_database != work.database:
        return False
    return not transmission.is_waiting(work.connection, endpoint.endpoint_id)


def put_off(work: Work, sends: Sequence[tuple[Endpoint, Sequence[Message]]]) -> None:
    """Puts what endpoints send into the transmission queue, from where it is delivered after the commit."""
    if not sends:
        return
    now = work.now()
    rows = [
        (sender.endpoint_id, False, number, name, is_error, is_end, now, body)
        for sender, messages in sends
        for number, name, body, is_error, is_end in messages
    ]
    transmission.add(work.connection, rows)
    work.effects.outbound.update(sender.endpoint_id for sender, _ in sends)
    work.effects.put_off += len(rows)
