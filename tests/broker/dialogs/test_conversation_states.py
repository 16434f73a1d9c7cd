"""Each input in each state has the outcome of the state table: the next state, or an error that changes nothing."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from ssbroker._well_known import DEFAULT, END_DIALOG, ERROR
from ssbroker.broker.database import Database
from ssbroker.broker.dialogs.arrival import arrive
from ssbroker.broker.dialogs.endpoint_end import end_with_error
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader
from ssbroker.broker.dialogs.send import apply_outcome
from ssbroker.broker.instance import Instance
from ssbroker.broker.transaction import Transaction
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.broker_errors import ERROR_TEXTS, conversation_error
from ssbroker.protocol.conversation_states import TRANSITIONS, ConversationInput, ConversationState, next_state
from ssbroker.store import conversation_endpoints
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR, QUEUE, TARGET, Clock

# The sides that can be in a state.
SIDES = [
    *((ConversationState.SO, "initiator"), (ConversationState.SI, "target"), (ConversationState.CD, "target")),
    *product(
        (ConversationState.CO, ConversationState.DI, ConversationState.DO, ConversationState.ER),
        ("initiator", "target"),
    ),
]
CALLS = (
    ConversationInput.SEND,
    ConversationInput.END,
    ConversationInput.CLEANUP,
    ConversationInput.TIMER,
    ConversationInput.MOVE,
)
ARRIVALS = [one for one in ConversationInput if one not in CALLS]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One database for all cases; each begins its own conversations."""
    folder = tmp_path_factory.mktemp("states") / "instance"
    with Instance.create(folder, name="shop", clock=Clock(), random=random.Random(7), background=False) as instance:
        database = instance.create_database("Sales")
        for queue, service in ((QUEUE, TARGET), (dialog_calls.REPLIES, INITIATOR)):
            database.create_queue(queue)
            database.create_service(service, queue=queue)
        yield database


def endpoint_in_state(database: Database, state: ConversationState, side: str) -> uuid.UUID:
    """Begins a conversation and brings an endpoint into a state with application calls; SI needs an early message."""
    if state is ConversationState.SO:
        return dialog_calls.begin(database)
    if state is ConversationState.SI:
        return begin_with_early_message(database)
    initiator, target = dialog_calls.pair(database)
    near, far = (initiator, target) if side == "initiator" else (target, initiator)
    far_queue = QUEUE if side == "initiator" else dialog_calls.REPLIES
    if state in (ConversationState.DI, ConversationState.CD):
        dialog_calls.end(database, far)
    if state is ConversationState.CD:
        dialog_calls.end(database, near)
    if state is ConversationState.ER:
        dialog_calls.end(database, far, error=(7, "broken"))
    if state is ConversationState.DO:
        dialog_calls.switch(database, far_queue, on=False)
        dialog_calls.end(database, near)
        dialog_calls.switch(database, far_queue, on=True)
    return near


def begin_with_early_message(database: Database) -> uuid.UUID:
    conversation = uuid.uuid4().bytes
    with database.transaction() as t, t._call() as work:
        own = work.broker_instance
        header = MessageHeader(conversation, True, INITIATOR, own, TARGET, own, DEFAULT, work.now() * 2, False)
        arrive(work, header, [DialogMessage(1, DEFAULT, b"second")])
        found = conversation_endpoints.by_conversation(t.connection, conversation, is_initiator=False)
    assert found is not None
    return uuid.UUID(bytes=found.conversation_handle)


def call(t: Transaction, state_input: ConversationInput, dialog: uuid.UUID, group: bytes) -> None:
    calls: dict[ConversationInput, Callable[[], None]] = {
        ConversationInput.SEND: lambda: t.send(dialog, b"more"),
        ConversationInput.END: lambda: t.end_conversation(dialog),
        ConversationInput.CLEANUP: lambda: t.end_conversation(dialog, cleanup=True),
        ConversationInput.TIMER: lambda: t.begin_conversation_timer(dialog, 60),
        ConversationInput.MOVE: lambda: t.move_conversation(dialog, group),
    }
    calls[state_input]()


def visible_state(state: ConversationState | int, side: str) -> str | None:
    """Returns the visible state of an endpoint; a closed initiator does not exist."""
    assert isinstance(state, ConversationState)
    return None if state is ConversationState.CD and side == "initiator" else state


@pytest.mark.parametrize(("state", "side"), SIDES)
@pytest.mark.parametrize("state_input", CALLS)
def test_each_call_in_each_state(
    shared: Database, state_input: ConversationInput, state: ConversationState, side: str
) -> None:
    dialog = endpoint_in_state(shared, state, side)
    assert dialog_calls.state(shared, dialog) == state
    group = dialog_calls.group_of(shared, dialog)
    if state_input is ConversationInput.MOVE and state is not ConversationState.CD:
        other = endpoint_in_state(shared, ConversationState.SO if side == "initiator" else ConversationState.CO, side)
        group = dialog_calls.group_of(shared, other)
    before = dialog_calls.contents(shared)
    expected = next_state(state, state_input)
    if isinstance(expected, int):
        with shared.transaction() as t:
            with pytest.raises(BrokerError) as refused:
                call(t, state_input, dialog, group)
            assert refused.value.number == expected
            assert dialog_calls.contents(shared, t.connection) == before
        assert dialog_calls.state(shared, dialog) == state
        return
    if expected is ConversationState.DO:
        # With an enabled queue, the remote endpoint would receive the message immediately.
        dialog_calls.switch(shared, QUEUE if side == "initiator" else dialog_calls.REPLIES, on=False)
    with shared.transaction() as t:
        call(t, state_input, dialog, group)
    if expected is ConversationState.DO:
        dialog_calls.switch(shared, QUEUE if side == "initiator" else dialog_calls.REPLIES, on=True)
    if state_input is ConversationInput.CLEANUP:
        assert dialog_calls.state(shared, dialog) is None
    else:
        assert dialog_calls.state(shared, dialog) == visible_state(expected, side)


@pytest.mark.parametrize(("state", "side"), SIDES)
@pytest.mark.parametrize("state_input", ARRIVALS)
def test_each_arrival_in_each_state(
    shared: Database, state_input: ConversationInput, state: ConversationState, side: str
) -> None:
    dialog = endpoint_in_state(shared, state, side)
    near = dialog_calls.endpoint(shared, dialog)
    assert near is not None
    with shared.transaction() as t, t._call() as work:
        process_arrival(work, near, state_input)
    expected = next_state(state, state_input)
    assert dialog_calls.state(shared, dialog) == (state if isinstance(expected, int) else visible_state(expected, side))
    rows = []
    with shared.transaction() as t:
        queue = QUEUE if side == "target" else dialog_calls.REPLIES
        if dialog_calls.endpoint(shared, dialog) is not None:
            rows = t.receive(queue, conversation_handle=dialog).to_pylist()
    received_contents = {
        ConversationInput.MESSAGE: b"news",
        ConversationInput.END_DIALOG: "EndDialog",
        ConversationInput.ERROR: "Error",
        ConversationInput.FAILURE: "Error",
    }
    is_new = (
        isinstance(expected, ConversationState)
        and expected is not ConversationState.CD
        and (expected != state or state_input is ConversationInput.MESSAGE)
    )
    found = dialog_calls.contents_of(rows)
    assert (received_contents.get(state_input) in found) == (
        state_input in received_contents and (is_new or is_already_queued(state, state_input))
    )


def is_already_queued(state: ConversationState, state_input: ConversationInput) -> bool:
    """Returns whether such a message caused the state and is still in the queue."""
    return (state, state_input) in {
        (ConversationState.DI, ConversationInput.END_DIALOG),
        (ConversationState.ER, ConversationInput.ERROR),
        (ConversationState.ER, ConversationInput.FAILURE),
    }


def process_arrival(work: Work, near: ConversationEndpoint, state_input: ConversationInput) -> None:
    if state_input is ConversationInput.FAILURE:
        end_with_error(work, near, conversation_error(8489).body())
        return
    if state_input is ConversationInput.ACKNOWLEDGED:
        apply_outcome(work, near.endpoint_id, DeliveryOutcome(near.send_sequence), broker_instance=work.broker_instance)
        return
    number = near.receive_sequence
    messages = {
        ConversationInput.MESSAGE: DialogMessage(number, DEFAULT, b"news"),
        ConversationInput.PART: DialogMessage(number + 5, DEFAULT, b"early"),
        ConversationInput.END_DIALOG: DialogMessage(number, END_DIALOG, None),
        ConversationInput.ERROR: DialogMessage(number, ERROR, b"<Error/>"),
    }
    own = work.broker_instance
    header = MessageHeader(
        near.conversation_id, not near.is_initiator, near.far_service, own, "", own, DEFAULT, near.lifetime, False
    )
    arrive(work, header, [messages[state_input]])


def test_the_table_is_complete() -> None:
    assert {*TRANSITIONS} == {*ConversationInput}
    for row in TRANSITIONS.values():
        assert list(row) == list(ConversationState)
        assert {number for number in row.values() if isinstance(number, int)} <= set(ERROR_TEXTS)
