"""BEGIN DIALOG, MOVE CONVERSATION, END CONVERSATION, conversation timers, and ending dialogs because of errors."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Final

from ssbroker._arguments import guid_bytes, integer_argument, is_service_name
from ssbroker._text import utf16_length
from ssbroker._well_known import END_DIALOG, ERROR
from ssbroker.broker.dialogs.endpoint_end import close, end_with_error, remove
from ssbroker.broker.dialogs.enqueue import delete_unacknowledged, queue_for_transmission, queue_of
from ssbroker.broker.dialogs.message import DialogMessage
from ssbroker.broker.dialogs.send import deliver_or_queue, refused_in_state
from ssbroker.broker.object_names import existing
from ssbroker.broker.unit_of_work import Work, emit_conversation_event, emit_group_event
from ssbroker.ddl import refusal_texts
from ssbroker.exceptions import BrokerError, OptionError, SchemaError
from ssbroker.protocol.broker_errors import (
    ENDPOINT_GONE,
    ConversationError,
    broker_error,
    conversation_error,
    refusal,
)
from ssbroker.protocol.conversation_states import INITIAL_STATE, ConversationInput, ConversationState, next_state
from ssbroker.protocol.events import ConversationStep, GroupStep
from ssbroker.protocol.settings import DESCRIPTION_MAX, LIFETIME_MAX, SECOND
from ssbroker.security import keys
from ssbroker.store import conversation_endpoints, failures, queues, transmission_queue
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.objects import Service

CURRENT_DATABASE: Final = "CURRENT DATABASE"
"""As `broker_instance`, means the broker id of the sending database."""


def begin(
    work: Work,
    from_service: str,
    to_service: str,
    *,
    broker_instance: object,
    contract: str,
    lifetime: int | None,
    encryption: bool,
    related_conversation: object,
    related_conversation_group: object,
) -> ConversationEndpoint:
    """Creates the initiator's endpoint; sends nothing."""
    objects = work.objects
    service = existing(objects.services, from_service, kind="service", database=work.database)
    contract_row = existing(objects.contracts, contract, kind="contract", database=work.database)
    if not isinstance(to_service, str):
        raise SchemaError(f"to_service: expected str, got {type(to_service).__name__}", column="to_service")
    if not is_service_name(to_service):
        raise refusal(refusal_texts.invalid_service_name(to_service), 8412)
    now = work.now()
    expires = now + seconds(LIFETIME_MAX if lifetime is None else lifetime, name="lifetime") * SECOND
    group = _group_of_new_dialog(work, service, related_conversation, related_conversation_group)
    endpoint = conversation_endpoints.insert(
        work.connection,
        conversation_handle=work.new_id(),
        conversation_id=work.new_id(),
        is_initiator=True,
        conversation_group_id=group,
        service_id=service.service_id,
        service_contract_id=contract_row.service_contract_id,
        far_service=to_service,
        far_broker_instance=_parse_broker_instance(work, broker_instance),
        is_bound=False,
        is_encrypted=encryption,
        state=INITIAL_STATE,
        lifetime=expires,
        priority=objects.priority_of_endpoint(
            service_contract_id=contract_row.service_contract_id,
            service_id=service.service_id,
            far_service=to_service,
        ),
        now=now,
    )
    if to_service in objects.security.by_service:  # a binding secures dialogs started while it exists
        key = conversation_endpoints.set_session_key_if_missing(work.connection, endpoint, keys.new_master_key())
        endpoint = endpoint._replace(session_key=key)
    work.forget_earlier_endpoint(endpoint.endpoint_id)
    work.effects.set_due(expires)
    if related_conversation is None and related_conversation_group is None:
        emit_group_event(work, group, GroupStep.CREATE)
    emit_conversation_event(work, endpoint, ConversationStep.BEGIN_DIALOG)
    return endpoint


def seconds(value: object, *, name: str) -> int:
    """Validates a lifetime or timer in seconds."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LIFETIME_MAX:
        raise broker_error(8411, name=name, value=value)
    return value


def _parse_broker_instance(work: Work, value: object) -> bytes | None:
    if value is None:
        return None
    if value == CURRENT_DATABASE:
        return work.broker_instance
    return guid_bytes(value, name="broker_instance")


def _group_of_new_dialog(work: Work, service: Service, conversation: object, group: object) -> bytes:
    """Returns the conversation group of a new dialog."""
    if conversation is not None and group is not None:
        raise OptionError(
            "related_conversation and related_conversation_group cannot be used together: specify one of them"
        )
    if conversation is not None:
        handle = guid_bytes(conversation, name="related_conversation")
        related = conversation_endpoints.by_handle(work.connection, handle)
        if related is None:
            raise broker_error(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
        return _check_same_service(work, [related], service, related.conversation_group_id)
    if group is not None:
        wanted = guid_bytes(group, name="related_conversation_group")
        return _check_same_service(
            work, conversation_endpoints.in_group(work.connection, wanted, limit=1), service, wanted
        )
    return work.new_id()


def _check_same_service(work: Work, members: list[ConversationEndpoint], service: Service, group: bytes) -> bytes:
    for member in members:
        if member.service_id != service.service_id:
            other = work.objects.services_by_id[member.service_id].name
            raise broker_error(9610, service=service.name, other=other)
    return group


def parse_application_error(error: object) -> ConversationError | None:
    """Validates the application's error for END CONVERSATION WITH ERROR: a code above 0 and a description; returns None if it is None."""
    if error is None:
        return None
    if not isinstance(error, tuple) or len(error) != len(("code", "description")) or not isinstance(error[1], str):
        raise OptionError(f"error: expected a code and a description, such as (12, 'out of stock'), got {error!r:.80}")
    code = integer_argument(error[0], name="error: the code", minimum=1, maximum=LIFETIME_MAX)
    length = utf16_length(error[1])
    if length > DESCRIPTION_MAX:
        raise OptionError(
            f"error: expected a description of up to {DESCRIPTION_MAX} characters in UTF-16, got {length}"
        )
    return ConversationError(code, error[1])


def end(work: Work, endpoint: ConversationEndpoint, failure: ConversationError | None) -> None:
    """Ends an endpoint, and notifies the remote endpoint if needed."""
    state = next_state(ConversationState(endpoint.state), ConversationInput.END)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    has_pending_error = endpoint.state == ConversationState.ER and transmission_queue.has_outgoing(
        work.connection, endpoint.endpoint_id
    )
    if has_pending_error:  # the remote endpoint must still receive the error
        state = ConversationState.DO
    code, description = (0, "") if failure is None else (failure.code, failure.description)
    step = ConversationStep.END_CONVERSATION if failure is None else ConversationStep.END_CONVERSATION_WITH_ERROR
    emit_conversation_event(work, endpoint, step, state=state, error=code, text=description)
    if state is ConversationState.CD:
        close(work, endpoint)
        return
    connection, endpoint_id, number = work.connection, endpoint.endpoint_id, endpoint.send_sequence
    queues.remove_messages(connection, endpoint_id)
    transmission_queue.remove_parked(connection, endpoint_id)
    if has_pending_error:
        conversation_endpoints.set_ended(connection, endpoint_id, state=state, end_dialog_sequence=number - 1)
        return
    if failure is None:
        message = DialogMessage(number, END_DIALOG, None)
    else:
        delete_unacknowledged(work, endpoint_id)
        message = DialogMessage(number, ERROR, failure.body())
    conversation_endpoints.set_ended(connection, endpoint_id, state=state, end_dialog_sequence=number)
    ended = endpoint._replace(state=state, end_dialog_sequence=number, send_sequence=number + 1)
    deliver_or_queue(work, [(ended, [message])])


def clean_up(work: Work, endpoint: ConversationEndpoint) -> None:
    """Removes all traces of an endpoint without notifying the remote endpoint."""
    remove(work, endpoint)
    emit_conversation_event(work, endpoint, ConversationStep.END_CONVERSATION_WITH_CLEANUP, state=ConversationState.CD)


def set_timer(work: Work, endpoint: ConversationEndpoint, timeout: object) -> None:
    """Starts the conversation timer of an endpoint."""
    state = next_state(ConversationState(endpoint.state), ConversationInput.TIMER)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    fires_at = work.now() + seconds(timeout, name="timeout") * SECOND
    if fires_at > endpoint.lifetime:
        raise broker_error(8410, timeout=timeout, handle=uuid.UUID(bytes=endpoint.conversation_handle))
    conversation_endpoints.set_timer(work.connection, endpoint.endpoint_id, fires_at)
    work.effects.set_due(fires_at)


def move_to_group(work: Work, endpoint: ConversationEndpoint, group: bytes) -> None:
    """Moves an endpoint to another conversation group."""
    state = next_state(ConversationState(endpoint.state), ConversationInput.MOVE)
    if isinstance(state, int):
        raise refused_in_state(state, endpoint)
    members = conversation_endpoints.in_group(work.connection, group, limit=1)
    if not members:
        raise broker_error(8426, kind="conversation group", handle=uuid.UUID(bytes=group))
    service, other = (work.objects.services_by_id[one.service_id] for one in (endpoint, members[0]))
    if service.queue_id != other.queue_id:
        raise broker_error(9610, service=service.name, other=other.name)
    here, there = queue_of(work, endpoint), queue_of(work, members[0])
    if here != there:
        raise BrokerError(
            f"the conversation is in the queue {here.name!r} and the conversation group in the queue {there.name!r}, because messages of "
            "one of the two failed and were moved; put these messages back with requeue first"
        )
    conversation_endpoints.set_group(work.connection, endpoint.endpoint_id, group)
    if not conversation_endpoints.in_group(work.connection, endpoint.conversation_group_id, limit=1):
        failures.forget_moved_group(work.connection, endpoint.conversation_group_id)


_LOCAL_END: Final = 9719
_REMOTE_END: Final = 9720
_REMOTE_NEEDS_NO_ERROR: Final = (ConversationState.SO, ConversationState.ER)
"""States in which nothing was sent, or the remote endpoint already has the error."""
_SEQUENCE_GAP: Final = 1 << 40
"""Added to the sequence number of an error for the remote endpoint. A database that was restored from an old backup
continues with old numbers; without the gap, remote endpoints could take the error for a duplicate."""


def end_all_conversations(work: Work, *, notify_remote: bool) -> None:
    """Ends all conversations of a database with an error, except those of jobs; optionally sends an error to the remote endpoints."""
    found = conversation_endpoints.open_endpoints(work.connection)
    jobs = _jobs(work, found)
    found = [endpoint for endpoint in found if endpoint.conversation_id not in jobs]
    notified = {
        endpoint.endpoint_id: endpoint for endpoint in found if notify_remote and _needs_remote_error(work, endpoint)
    }
    for endpoint in found:
        if endpoint.state != ConversationState.DO or endpoint.endpoint_id not in notified:
            end_with_error(work, endpoint, conversation_error(_LOCAL_END).body())
    for endpoint in notified.values():
        _send_error(work, endpoint, conversation_error(_REMOTE_END))


def _jobs(work: Work, found: Iterable[ConversationEndpoint]) -> set[bytes]:
    """Returns the ids of work queue conversations whose message has been delivered: they no longer need a broker id."""
    sides = Counter(
        endpoint.conversation_id
        for endpoint in found
        if endpoint.state == ConversationState.CO and work.objects.is_of_work_queue(endpoint)
    )
    return {conversation_id for conversation_id, count in sides.items() if count == 2}  # noqa: PLR2004 - both endpoints


def end_after_data_loss(work: Work, endpoint: ConversationEndpoint) -> None:
    """Ends both endpoints of a conversation whose remote endpoint has lost acknowledged messages."""
    if endpoint.state in (*_REMOTE_NEEDS_NO_ERROR, ConversationState.CD):
        return
    if endpoint.state != ConversationState.DO:
        end_with_error(work, endpoint, conversation_error(ENDPOINT_GONE).body())
    _send_error(work, endpoint, conversation_error(ENDPOINT_GONE))


def _needs_remote_error(work: Work, endpoint: ConversationEndpoint) -> bool:
    """Returns whether the remote endpoint needs the error; an endpoint in this database is ended separately."""
    if endpoint.state in _REMOTE_NEEDS_NO_ERROR:
        return False
    remote = conversation_endpoints.by_conversation(
        work.connection, endpoint.conversation_id, is_initiator=not endpoint.is_initiator
    )
    return remote is None


def _send_error(work: Work, endpoint: ConversationEndpoint, error: ConversationError) -> None:
    """Sends an error to the remote endpoint. If this side has ended, the error replaces its unacknowledged messages."""
    connection, endpoint_id = work.connection, endpoint.endpoint_id
    number = endpoint.send_sequence + _SEQUENCE_GAP
    state = ConversationState.DO if endpoint.state == ConversationState.DO else ConversationState.ER
    if state == ConversationState.DO:
        delete_unacknowledged(work, endpoint_id)
        conversation_endpoints.set_ended(connection, endpoint_id, state=state, end_dialog_sequence=number)
    conversation_endpoints.set_send_sequences(connection, [(number + 1, endpoint_id)])
    broken = endpoint._replace(state=state, send_sequence=number + 1)
    queue_for_transmission(work, [(broken, [DialogMessage(number, ERROR, error.body())])])
