"""Ends endpoints: closes or removes them, or ends them with an error."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ssbroker._well_known import ERROR
from ssbroker.broker.dialogs.enqueue import delete_unacknowledged, enqueue, queue_of
from ssbroker.broker.dialogs.message import DialogMessage
from ssbroker.broker.unit_of_work import Work, emit_group_event
from ssbroker.protocol.conversation_states import ConversationInput, ConversationState, next_state
from ssbroker.protocol.events import ConversationGroupEvent, GroupStep
from ssbroker.protocol.settings import SECOND
from ssbroker.store import conversation_endpoints, failures, queues, transmission_queue
from ssbroker.store.conversation_endpoints import ConversationEndpoint

CLOSED_RETENTION: Final = 30 * 60 * SECOND
"""Microseconds for which a closed endpoint is kept to detect replayed messages."""
EXTEND_RETENTION_BELOW: Final = 25 * 60 * SECOND
"""A duplicate extends the retention of a closed endpoint only if less than this remains, so that few duplicates cause a write."""


def close(work: Work, endpoint: ConversationEndpoint) -> None:
    """Closes an endpoint, and removes its messages.

    The initiator's endpoint of a local conversation is removed. Any other endpoint stays closed for a while, to detect replayed messages.
    """
    if endpoint.is_initiator and not endpoint.is_remote:
        remove(work, endpoint)
        return
    _remove_messages(work, endpoint)
    _leave_group(work, endpoint)
    keep_until = work.now() + CLOSED_RETENTION
    conversation_endpoints.set_closed(
        work.connection, endpoint.endpoint_id, state=ConversationState.CD, until=keep_until
    )
    work.effects.set_due(keep_until + conversation_endpoints.REMOVAL_DELAY)


def extend_retention(work: Work, sides: Collection[tuple[bytes, bool]]) -> None:
    """Extends the retention of the closed ones among these endpoints (conversation, `is_initiator`): duplicates have arrived for them (P18)."""
    now = work.now()
    conversation_endpoints.extend_closed(
        work.connection, sides, until=now + CLOSED_RETENTION, below=now + EXTEND_RETENTION_BELOW
    )


def remove(work: Work, endpoint: ConversationEndpoint) -> None:
    """Removes all traces of an endpoint, as END CONVERSATION WITH CLEANUP does."""
    _remove_messages(work, endpoint)
    _leave_group(work, endpoint)
    conversation_endpoints.remove(work.connection, endpoint.endpoint_id)


def end_with_error(
    work: Work,
    endpoint: ConversationEndpoint,
    body: bytes | None,
    *,
    cause: ConversationInput = ConversationInput.FAILURE,
    number: int = 0,
) -> None:
    """Ends an endpoint. Unless this closes the endpoint, its queue gets an Error message, and the application must still end the conversation.

    If the state of the endpoint has no transition for `cause`, only deletes the messages that wait to be sent.
    """
    state = next_state(ConversationState(endpoint.state), cause)
    if isinstance(state, int):
        delete_unacknowledged(work, endpoint.endpoint_id)
        return
    if state == endpoint.state:
        return
    if state is ConversationState.CD:
        close(work, endpoint)
        return
    # Sent messages are no longer delivered, and no more messages arrive.
    delete_unacknowledged(work, endpoint.endpoint_id)
    queues.remove_early_messages(work.connection, endpoint.endpoint_id)
    conversation_endpoints.set_state(work.connection, endpoint.endpoint_id, state)
    conversation_endpoints.set_timer(work.connection, endpoint.endpoint_id, None)
    enqueue(work, endpoint, queue_of(work, endpoint), [DialogMessage(number, ERROR, body)])


def _leave_group(work: Work, endpoint: ConversationEndpoint) -> None:
    """If an endpoint was the last open one of its group, emits an event, and forgets that the group was moved."""
    if endpoint.state == ConversationState.CD:
        return
    group = endpoint.conversation_group_id
    is_moved = work.moved_queue_id(group) is not None
    if is_moved or work.effects.wants(ConversationGroupEvent):
        members = conversation_endpoints.in_group(work.connection, group, limit=2)
        if all(each.endpoint_id == endpoint.endpoint_id for each in members):
            emit_group_event(work, group, GroupStep.DROP)
            if is_moved:
                failures.forget_moved_group(work.connection, group)


def _remove_messages(work: Work, endpoint: ConversationEndpoint) -> None:
    queues.remove_messages(work.connection, endpoint.endpoint_id)
    delete_unacknowledged(work, endpoint.endpoint_id)
    transmission_queue.remove_parked(work.connection, endpoint.endpoint_id)
