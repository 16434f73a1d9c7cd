"""Every state and input has the outcome of the table: the next state, or a refusal that changes nothing."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.dialogs.deliver import arrive, end_with_error, settle
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader, failure
from ssbroker.broker.instance import Instance
from ssbroker.broker.transaction import Transaction
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.config import DEFAULT, END_DIALOG, ERROR
from ssbroker.protocol.errors import ERROR_TEXTS
from ssbroker.protocol.states import CALLS, TABLE, ConversationInput, ConversationState, next_state
from ssbroker.store import endpoints
from ssbroker.store.endpoints import ConversationEndpoint
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


def brought_to(database: Database, state: ConversationState, side: str) -> uuid.UUID:
    """Brings an endpoint of a new conversation into a state by calls of applications; only SI needs an early message."""
    if state is ConversationState.SO:
        return dialog_calls.begin(database)
    if state is ConversationState.SI:
        return begun_early(database)
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


def begun_early(database: Database) -> uuid.UUID:
    conversation = uuid.uuid4().bytes
    with database.transaction() as t, t._call() as work:
        own = work.broker_instance
        envelope = MessageHeader(conversation, True, INITIATOR, own, TARGET, own, DEFAULT, work.now() * 2, False)
        arrive(work, envelope, [DialogMessage(1, DEFAULT, b"second")])
        found = endpoints.by_conversation(t.connection, conversation, is_initiator=False)
    assert found is not None
    return uuid.UUID(bytes=found.conversation_handle)


def called(t: Transaction, happened: ConversationInput, dialog: uuid.UUID, group: bytes) -> None:
    calls: dict[ConversationInput, Callable[[], None]] = {
        ConversationInput.SEND: lambda: t.send(dialog, b"more"),
        ConversationInput.END: lambda: t.end_conversation(dialog),
        ConversationInput.CLEANUP: lambda: t.end_conversation(dialog, cleanup=True),
        ConversationInput.TIMER: lambda: t.begin_conversation_timer(dialog, 60),
        ConversationInput.MOVE: lambda: t.move_conversation(dialog, group),
    }
    calls[happened]()


def shown(state: ConversationState | int, side: str) -> str | None:
    """What is seen of an endpoint that has come to a state: of an initiator that is closed, nothing."""
    assert isinstance(state, ConversationState)
    return None if state is ConversationState.CD and side == "initiator" else state


@pytest.mark.parametrize(("state", "side"), SIDES)
@pytest.mark.parametrize("happened", CALLS)
def test_each_call_in_each_state(
    shared: Database, happened: ConversationInput, state: ConversationState, side: str
) -> None:
    dialog = brought_to(shared, state, side)
    assert dialog_calls.state(shared, dialog) == state
    group = dialog_calls.group_of(shared, dialog)
    if happened is ConversationInput.MOVE and state is not ConversationState.CD:
        other = brought_to(shared, ConversationState.SO if side == "initiator" else ConversationState.CO, side)
        group = dialog_calls.group_of(shared, other)
    before = dialog_calls.contents(shared)
    expected = next_state(state, happened)
    if isinstance(expected, int):
        with shared.transaction() as t:
            with pytest.raises(BrokerError) as refused:
                called(t, happened, dialog, group)
            assert refused.value.number == expected
            assert dialog_calls.contents(shared, t.connection) == before
        assert dialog_calls.state(shared, dialog) == state
        return
    if expected is ConversationState.DO:
        # The far side takes it at once where it can; so that it cannot, its queue is off.
        dialog_calls.switch(shared, QUEUE if side == "initiator" else dialog_calls.REPLIES, on=False)
    with shared.transaction() as t:
        called(t, happened, dialog, group)
    if expected is ConversationState.DO:
        dialog_calls.switch(shared, QUEUE if side == "initiator" else dialog_calls.REPLIES, on=True)
    if happened is ConversationInput.CLEANUP:
        assert dialog_calls.state(shared, dialog) is None
    else:
        assert dialog_calls.state(shared, dialog) == shown(expected, side)


@pytest.mark.parametrize(("state", "side"), SIDES)
@pytest.mark.parametrize("happened", ARRIVALS)
def test_each_arrival_in_each_state(
    shared: Database, happened: ConversationInput, state: ConversationState, side: str
) -> None:
    dialog = brought_to(shared, state, side)
    near = dialog_calls.endpoint(shared, dialog)
    assert near is not None
    with shared.transaction() as t, t._call() as work:
        happens(work, near, happened)
    expected = next_state(state, happened)
    assert dialog_calls.state(shared, dialog) == (state if isinstance(expected, int) else shown(expected, side))
    rows = []
    with shared.transaction() as t:
        queue = QUEUE if side == "target" else dialog_calls.REPLIES
        if dialog_calls.endpoint(shared, dialog) is not None:
            rows = t.receive(queue, conversation_handle=dialog).to_pylist()
    comes = {
        ConversationInput.MESSAGE: b"news",
        ConversationInput.END_DIALOG: "EndDialog",
        ConversationInput.ERROR: "Error",
        ConversationInput.FAILURE: "Error",
    }
    is_new = (
        isinstance(expected, ConversationState)
        and expected is not ConversationState.CD
        and (expected != state or happened is ConversationInput.MESSAGE)
    )
    found = dialog_calls.contents_of(rows)
    assert (comes.get(happened) in found) == (happened in comes and (is_new or was_there(state, happened)))


def was_there(state: ConversationState, happened: ConversationInput) -> bool:
    """Whether such a message had brought the endpoint to its state, and still waits to be read."""
    return (state, happened) in {
        (ConversationState.DI, ConversationInput.END_DIALOG),
        (ConversationState.ER, ConversationInput.ERROR),
        (ConversationState.ER, ConversationInput.FAILURE),
    }


def happens(work: Work, near: ConversationEndpoint, happened: ConversationInput) -> None:
    if happened is ConversationInput.FAILURE:
        end_with_error(work, near, failure(8489).body())
        return
    if happened is ConversationInput.ACKNOWLEDGED:
        settle(work, near.endpoint_id, DeliveryOutcome(near.send_sequence), broker_instance=work.broker_instance)
        return
    number = near.receive_sequence
    messages = {
        ConversationInput.MESSAGE: DialogMessage(number, DEFAULT, b"news"),
        ConversationInput.PART: DialogMessage(number + 5, DEFAULT, b"early"),
        ConversationInput.END_DIALOG: DialogMessage(number, END_DIALOG, None, is_end_of_dialog=True),
        ConversationInput.ERROR: DialogMessage(number, ERROR, b"<Error/>", is_conversation_error=True),
    }
    own = work.broker_instance
    envelope = MessageHeader(
        near.conversation_id, not near.is_initiator, near.far_service, own, "", own, DEFAULT, near.lifetime, False
    )
    arrive(work, envelope, [messages[happened]])


def test_the_table_is_complete() -> None:
    assert {*TABLE} == {*ConversationInput}
    for row in TABLE.values():
        assert list(row) == list(ConversationState)
        assert {number for number in row.values() if isinstance(number, int)} <= set(ERROR_TEXTS)
