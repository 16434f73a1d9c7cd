"""What the outcome of a delivery changes at the sender."""

from __future__ import annotations

from ssbroker.broker.dialogs.endpoint_end import close, end_with_error
from ssbroker.broker.dialogs.enqueue import delete_acknowledged, delete_unacknowledged
from ssbroker.broker.dialogs.message import ConversationError, DeliveryOutcome, read_failure
from ssbroker.broker.unit_of_work import Work, emit_conversation_event
from ssbroker.protocol.events import ConversationStep
from ssbroker.protocol.states import ConversationInput, ConversationState, next_state
from ssbroker.store import endpoints
from ssbroker.store.endpoints import ConversationEndpoint


def apply_outcome(work: Work, endpoint_id: int, outcome: DeliveryOutcome, *, broker_instance: bytes) -> None:
    """Removes accepted messages from the transmission queue (P16), and updates the sender."""
    endpoint = endpoints.by_id(work.connection, endpoint_id)
    if endpoint is None:
        delete_unacknowledged(work, endpoint_id)
        return
    delete_acknowledged(work, [(endpoint_id, outcome.acknowledged)])
    update_sender(work, endpoint, outcome, broker_instance=broker_instance)


def update_sender(
    work: Work, endpoint: ConversationEndpoint, outcome: DeliveryOutcome, *, broker_instance: bytes
) -> None:
    """Ends the sender with the error of a delivery; or binds it to the broker id of the target (R8), and closes it after its last message."""
    if outcome.error is not None:
        end_with_broker_error(work, endpoint, outcome.error.body())
        return
    if not endpoint.is_bound and outcome.acknowledged:
        endpoints.bind(work.connection, endpoint.endpoint_id, far_broker_instance=broker_instance)
    if endpoint.end_dialog_sequence is not None and outcome.acknowledged > endpoint.end_dialog_sequence:
        state = next_state(ConversationState(endpoint.state), ConversationInput.ACKNOWLEDGED)
        if state != endpoint.state and not isinstance(state, int):
            emit_conversation_event(work, endpoint, ConversationStep.RECEIVED_END_CONVERSATION_ACK, state=state)
            close(work, endpoint)


def end_with_broker_error(work: Work, endpoint: ConversationEndpoint, body: bytes) -> None:
    """Ends an endpoint with an error that the broker of the remote endpoint has sent back."""
    end_with_error(work, endpoint, body, cause=ConversationInput.ERROR)
    error = read_failure(body) or ConversationError(0, "")
    emit_conversation_event(
        work, endpoint, ConversationStep.RECEIVED_BROKER_ERROR, error=error.code, text=error.description
    )
