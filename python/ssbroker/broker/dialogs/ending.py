"""END CONVERSATION (facts 125 to 128), and what else an application does to one conversation."""

from __future__ import annotations

import uuid

from ssbroker import options
from ssbroker.broker.dialogs.arriving import Message
from ssbroker.broker.dialogs.beginning import seconds
from ssbroker.broker.dialogs.closing import close, remove
from ssbroker.broker.dialogs.error_body import Failure
from ssbroker.broker.dialogs.outbound import transmit
from ssbroker.broker.dialogs.queueing import queue_of
from ssbroker.broker.dialogs.sending import refused_in_state
from ssbroker.broker.dialogs.taking_off import take_all_off
from ssbroker.broker.work.telling import told_conversation
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import OptionError
from ssbroker.protocol.event_steps import ConversationStep
from ssbroker.protocol.names import DESCRIPTION_MAX, END_DIALOG, ERROR, LIFETIME_MAX, refused
from ssbroker.protocol.retry import SECOND
from ssbroker.protocol.states import Input, State, after
from ssbroker.store import endpoints, queues, transmission
from ssbroker.store.endpoints import Endpoint


def failure_of(error: object) -> Failure | None:
    """The application's error, as END CONVERSATION WITH ERROR takes it: a code above 0 and a description.

    Raises:
        OptionError: It is neither that nor None.

    Examples:
        >>> failure_of((12, "out of stock"))
        Failure(code=12, description='out of stock')
    """
    if error is None:
        return None
    if not isinstance(error, tuple) or len(error) != len(("code", "description")) or not isinstance(error[1], str):
        raise OptionError(f"error: expected a code and a description, such as (12, 'out of stock'); got {error!r:.80}")
    code = options.whole(error[0], name="error: the code", least=1, most=LIFETIME_MAX)
    if len(error[1]) > DESCRIPTION_MAX:
        raise OptionError(f"error: expected a description of up to {DESCRIPTION_MAX} characters; got {len(error[1])}")
    return Failure(code, error[1])


def end(work: Work, endpoint: Endpoint, failure: Failure | None) -> None:
    """Ends this side, and tells the other where it does not know (B13)."""
    state = after(State(endpoint.state), Input.END)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    is_owed = endpoint.state == State.ER and transmission.is_waiting(work.connection, endpoint.endpoint_id)
    if is_owed:  # the far side has still to hear of ERROR_BROKER_CONVERSATIONS (B28)
        state = State.DO
    code, description = (0, "") if failure is None else (failure.code, failure.description)
    step = ConversationStep.END_CONVERSATION if failure is None else ConversationStep.END_CONVERSATION_WITH_ERROR
    told_conversation(work, endpoint, step, state=state, error=code, text=description)
    if state is State.CD:
        close(work, endpoint)
        return
    connection, endpoint_id, number = work.connection, endpoint.endpoint_id, endpoint.send_sequence
    queues.remove_all(connection, endpoint_id)
    transmission.remove_arrived(connection, endpoint_id)
    if is_owed:
        endpoints.set_ended(connection, endpoint_id, state=state, end_dialog_sequence=number - 1)
        return
    if failure is None:
        message = Message(number, END_DIALOG, None, is_end_of_dialog=True)
    else:
        take_all_off(work, endpoint_id)
        message = Message(number, ERROR, failure.body(), is_conversation_error=True)
    endpoints.set_ended(connection, endpoint_id, state=state, end_dialog_sequence=number)
    ended = endpoint._replace(state=state, end_dialog_sequence=number, send_sequence=number + 1)
    (way,) = work.ways_of([ended])
    transmit(work, [(ended, [message], way)])


def clean_up(work: Work, endpoint: Endpoint) -> None:
    """Removes every trace of this side, and tells nobody (fact 127)."""
    remove(work, endpoint)
    told_conversation(work, endpoint, ConversationStep.END_CONVERSATION_WITH_CLEANUP, state=State.CD)


def set_timer(work: Work, endpoint: Endpoint, timeout: object) -> None:
    """BEGIN CONVERSATION TIMER (fact 137)."""
    state = after(State(endpoint.state), Input.TIMER)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    moment = work.now() + seconds(timeout, name="timeout") * SECOND
    if moment > endpoint.lifetime:
        raise refused(8410, timeout=timeout)
    endpoints.set_timer(work.connection, endpoint.endpoint_id, moment)
    work.effects.is_due_at(moment)


def move(work: Work, endpoint: Endpoint, group: bytes) -> None:
    """MOVE CONVERSATION (fact 123)."""
    state = after(State(endpoint.state), Input.MOVE)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    members = endpoints.in_group(work.connection, group, limit=1)
    if not members:
        raise refused(8426, kind="conversation group", handle=uuid.UUID(bytes=group))
    if queue_of(work, members[0]) != queue_of(work, endpoint):
        service, other = (work.objects.services_by_id[one.service_id].name for one in (endpoint, members[0]))
        raise refused(9610, service=service, other=other)
    endpoints.set_group(work.connection, endpoint.endpoint_id, group)
