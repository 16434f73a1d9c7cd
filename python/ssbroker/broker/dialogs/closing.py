"""How one side of a conversation comes to its end."""

from __future__ import annotations

from typing import Final

from ssbroker.broker.dialogs.queueing import Entry, enqueue, queue_of
from ssbroker.broker.dialogs.taking_off import take_all_off
from ssbroker.broker.work.telling import told_group
from ssbroker.broker.work.work import Work
from ssbroker.protocol.event_steps import GroupStep
from ssbroker.protocol.events import ConversationGroup
from ssbroker.protocol.names import ERROR
from ssbroker.protocol.retry import SECOND
from ssbroker.protocol.states import Input, State, after
from ssbroker.store import due, endpoints, queues, transmission
from ssbroker.store.endpoints import Endpoint

CLOSED_FOR: Final = 30 * 60 * SECOND
"""For how long a closed endpoint is kept against replays (B14, B40), in microseconds."""


def close(work: Work, endpoint: Endpoint) -> None:
    """Ends this side for good, with its messages (B15): an initiator's endpoint goes, unless it was heard of over the network (B40).

    That and a target's stay closed for a while (B14).
    """
    if endpoint.is_initiator and not endpoint.is_remote:
        remove(work, endpoint)
        return
    _forget(work, endpoint)
    _leave_group(work, endpoint)
    until = work.now() + CLOSED_FOR
    endpoints.set_closed(work.connection, endpoint.endpoint_id, state=State.CD, until=until)
    work.effects.is_due_at(until + due.GATHERED)


def remove(work: Work, endpoint: Endpoint) -> None:
    """Removes every trace of this side, as END CONVERSATION WITH CLEANUP does (fact 127)."""
    _forget(work, endpoint)
    _leave_group(work, endpoint)
    endpoints.remove(work.connection, endpoint.endpoint_id)


def break_off(
    work: Work, endpoint: Endpoint, body: bytes | None, *, happened: Input = Input.FAILURE, number: int = 0
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
    state = after(State(endpoint.state), happened)
    if isinstance(state, int):
        take_all_off(work, endpoint.endpoint_id)
        return state
    if state == endpoint.state:
        return None
    if state is State.CD:
        close(work, endpoint)
        return None
    # Nobody takes what was sent, and nothing more comes (fact 126).
    take_all_off(work, endpoint.endpoint_id)
    queues.remove_early(work.connection, endpoint.endpoint_id)
    endpoints.set_state(work.connection, endpoint.endpoint_id, state)
    endpoints.set_timer(work.connection, endpoint.endpoint_id, None)
    enqueue(work, endpoint, queue_of(work, endpoint), [Entry(number, ERROR, body)])
    return None


def _leave_group(work: Work, endpoint: Endpoint) -> None:
    """A group goes with the last of its conversations that is not over."""
    if endpoint.state != State.CD and work.effects.wants(ConversationGroup):
        members = endpoints.in_group(work.connection, endpoint.conversation_group_id, limit=2)
        if all(each.endpoint_id == endpoint.endpoint_id for each in members):
            told_group(work, endpoint.conversation_group_id, GroupStep.DROP)


def _forget(work: Work, endpoint: Endpoint) -> None:
    queues.remove_all(work.connection, endpoint.endpoint_id)
    take_all_off(work, endpoint.endpoint_id)
    transmission.remove_arrived(work.connection, endpoint.endpoint_id)
