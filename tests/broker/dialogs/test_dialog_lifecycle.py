"""A conversation from start to end, as seen by an application."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError, InputError, OptionError, SchemaError
from ssbroker.protocol.events import ConversationGroupEvent
from tests.broker import dialog_calls, sqlite_steps
from tests.broker.conftest import INITIATOR, QUEUE, TARGET, Clock
from tests.broker.dialog_calls import begin, contents_of, end, handle_of, receive, send
from tests.internals import instance_of


@pytest.mark.rule("P11", "P33")
def test_messages_are_received_once_and_in_order(sales: Database) -> None:
    """They are delivered directly into the queue, in the same transaction."""
    begin(sales, b"first", b"second")
    assert dialog_calls.waiting(sales) == 0
    table = receive(sales)
    assert contents_of(table) == [b"first", b"second"]
    assert receive(sales).num_rows == 0


@pytest.mark.rule("P12")
def test_each_direction_counts_from_0(sales: Database) -> None:
    initiator = begin(sales, b"a", b"b")
    received_at_target = receive(sales)
    target = handle_of(received_at_target)
    send(sales, target, b"c", b"d", b"e")
    send(sales, initiator, b"f")
    received_at_initiator = receive(sales, dialog_calls.REPLIES)
    assert received_at_target["message_sequence_number"].to_pylist() == [0, 1]
    assert received_at_initiator["message_sequence_number"].to_pylist() == [0, 1, 2]
    assert received_at_target["is_initiator"].to_pylist() == [True] * 2
    assert received_at_initiator["is_initiator"].to_pylist() == [False] * 3
    assert receive(sales)["message_sequence_number"].to_pylist() == [2]


def test_each_side_has_its_own_handle_and_the_same_conversation_id(sales: Database) -> None:
    initiator = begin(sales, b"a")
    received_at_target = receive(sales).to_pylist()[0]
    assert received_at_target["conversation_handle"] != initiator.bytes
    for side in (initiator, uuid.UUID(bytes=received_at_target["conversation_handle"])):
        found = dialog_calls.endpoint(sales, side)
        assert found is not None
        assert found.conversation_id == received_at_target["conversation_id"]
        assert uuid.UUID(bytes=found.conversation_group_id).version == 4
        assert side.version == 4


def test_begin_dialog_sends_nothing(sales: Database) -> None:
    dialog = begin(sales)
    assert dialog_calls.state(sales, dialog) == "SO"
    assert receive(sales).num_rows == 0
    send(sales, dialog, b"now")
    assert dialog_calls.state(sales, dialog) == "CO"


@pytest.mark.parametrize("error", [None, (1, "never mind")])
def test_an_end_before_any_send_leaves_nothing(sales: Database, error: tuple[int, str] | None) -> None:
    before = dialog_calls.contents(sales)
    end(sales, begin(sales), error=error)
    assert dialog_calls.contents(sales) == before


def test_both_sides_end(sales: Database) -> None:
    initiator = begin(sales, b"order")
    target = handle_of(receive(sales))
    send(sales, target, b"done")
    end(sales, target)
    assert dialog_calls.state(sales, initiator) == "DI"
    assert contents_of(receive(sales, dialog_calls.REPLIES)) == [b"done", "EndDialog"]
    end(sales, initiator)
    assert dialog_calls.state(sales, initiator) is None
    assert dialog_calls.state(sales, target) == "CD"


def test_the_initiator_ends_first(sales: Database) -> None:
    initiator = begin(sales, b"order")
    end(sales, initiator)
    assert dialog_calls.state(sales, initiator) is None  # the remote endpoint has received EndDialog
    table = receive(sales)
    assert contents_of(table) == [b"order", "EndDialog"]
    assert table["message_body"].to_pylist() == [b"order", None]
    target = handle_of(table)
    with pytest.raises(BrokerError, match="8429"):
        send(sales, target, b"too late")
    end(sales, target)
    assert dialog_calls.state(sales, target) == "CD"


def test_end_removes_the_dialogs_messages_from_its_own_queue(sales: Database) -> None:
    initiator, target = dialog_calls.pair(sales)
    other, other_target = dialog_calls.pair(sales)
    send(sales, target, b"not read any more")
    send(sales, other_target, b"still read")
    end(sales, initiator)
    assert contents_of(dialog_calls.drain(sales, dialog_calls.REPLIES)) == [b"still read"]
    assert dialog_calls.state(sales, other) == "CO"


def test_an_error_is_received_first_and_ends_the_dialog(sales: Database) -> None:
    """Error is received before other messages, EndDialog in order."""
    initiator = begin(sales, b"one", b"two")
    end(sales, initiator, error=(1234, "no stock"))
    table = receive(sales)
    assert contents_of(table) == ["Error", b"one", b"two"]
    target = handle_of(table)
    assert dialog_calls.state(sales, target) == "ER"
    assert table["message_body"][0].as_py() == (
        b'<Error xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/Error"><Code>1234</Code>'
        b"<Description>no stock</Description></Error>"
    )
    end(sales, target)
    assert dialog_calls.state(sales, target) == "CD"


def test_an_error_drops_undelivered_messages(sales: Database) -> None:
    dialog_calls.switch(sales, on=False)
    initiator = begin(sales, b"one", b"two")
    assert dialog_calls.waiting(sales) == 2
    end(sales, initiator, error=(1, "forget it"))
    # The target endpoint was never created and is not needed.
    dialog_calls.switch(sales, on=True)
    instance_of(sales).run_due()
    assert dialog_calls.waiting(sales) == 0
    assert receive(sales).num_rows == 0
    assert dialog_calls.state(sales, initiator) is None


def test_an_error_overtakes_dropped_messages(sales: Database) -> None:
    """The sequence numbers of dropped messages are not reused, and nothing waits for them."""
    initiator, target = dialog_calls.pair(sales)
    dialog_calls.switch(sales, on=False)
    send(sales, initiator, b"dropped", b"too")
    end(sales, initiator, error=(1, "stop"))
    dialog_calls.switch(sales, on=True)
    instance_of(sales).run_due()
    assert contents_of(receive(sales)) == ["Error"]
    assert dialog_calls.state(sales, target) == "ER"
    assert dialog_calls.state(sales, initiator) is None


def test_cleanup_does_not_notify_the_remote_endpoint(sales: Database) -> None:
    initiator, target = dialog_calls.pair(sales)
    send(sales, target, b"unread")
    end(sales, initiator, cleanup=True)
    assert dialog_calls.state(sales, initiator) is None
    assert dialog_calls.drain(sales, dialog_calls.REPLIES) == []
    assert dialog_calls.state(sales, target) == "CO"
    send(sales, target, b"anybody there?")
    assert dialog_calls.state(sales, target) == "ER"
    assert b"<Code>-8462</Code>" in receive(sales)["message_body"][0].as_py()


def test_a_closed_target_is_removed_after_30_minutes(instance: Instance, sales: Database, clock: Clock) -> None:
    initiator, target = dialog_calls.pair(sales)
    end(sales, initiator)
    end(sales, target)
    clock.advance(seconds=30 * 60 - 1)
    instance.run_due()
    assert dialog_calls.state(sales, target) == "CD"
    clock.advance(seconds=1)
    instance.run_due()
    assert dialog_calls.state(sales, target) is None


def test_an_expired_lifetime_is_an_error_for_both_sides(instance: Instance, sales: Database, clock: Clock) -> None:
    initiator = begin(sales, b"hurry", lifetime=60)
    target = handle_of(receive(sales))
    clock.advance(seconds=60)
    with pytest.raises(BrokerError, match="8489"):
        send(sales, initiator, b"too late")
    instance.run_due()
    for side, queue in ((initiator, dialog_calls.REPLIES), (target, QUEUE)):
        assert dialog_calls.state(sales, side) == "ER"
        rows = dialog_calls.drain(sales, queue)
        assert contents_of(rows) == ["Error"]
        assert b"<Code>-8489</Code>" in rows[0]["message_body"]
        end(sales, side)


def test_an_empty_body_arrives_empty(sales: Database) -> None:
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog)
        t.send(dialog, b"")
        t.send(dialog, bytearray(b"array"))
        t.send(dialog, memoryview(b"xviewx")[1:5])
        with pytest.raises(BrokerError, match="8433"):
            t.send(dialog, None)  # type: ignore[arg-type]  # the error under test
        with pytest.raises(SchemaError, match="expected bytes"):
            t.send(dialog, "text")  # type: ignore[arg-type]  # the error under test
    assert receive(sales)["message_body"].to_pylist() == [b"", b"", b"array", b"view"]


@pytest.mark.rule("I3")
def test_current_database_is_the_own_broker_id(sales: Database) -> None:
    named = begin(sales, b"a", broker_instance="CURRENT DATABASE")
    by_id = begin(sales, b"b", broker_instance=sales.service_broker_guid)
    by_text = begin(sales, b"c", broker_instance=str(sales.service_broker_guid).upper())
    for dialog in (named, by_id, by_text):
        found = dialog_calls.endpoint(sales, dialog)
        assert found is not None
        assert found.far_broker_instance == sales.service_broker_guid.bytes
    assert contents_of(dialog_calls.drain(sales)) == [b"a", b"b", b"c"]


@pytest.mark.rule("R8")
def test_the_first_received_message_binds_the_conversation(sales: Database) -> None:
    """Later messages go to that database, even if others have the service."""
    dialog = begin(sales)
    before = dialog_calls.endpoint(sales, dialog)
    assert before is not None
    assert before.far_broker_instance is None
    assert not before.is_bound
    send(sales, dialog, b"x")
    bound = dialog_calls.endpoint(sales, dialog)
    assert bound is not None
    assert bound.is_bound
    assert bound.far_broker_instance == sales.service_broker_guid.bytes


def test_encryption_is_stored_at_both_ends(sales: Database) -> None:
    for encryption in (True, False):
        dialog = begin(sales, b"x", encryption=encryption)
        for side in (dialog, dialog_calls.far_handle(sales, dialog)):
            found = dialog_calls.endpoint(sales, side)
            assert found is not None
            assert bool(found.is_encrypted) == encryption


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"from_service": 5}, "^service: expected str, got int$"),
        ({"from_service": ["//Orders"]}, "^service: expected str, got list$"),
        ({"to_service": 5}, "^to_service: expected str, got int$"),
        ({"contract": 5}, "^contract: expected str, got int$"),
    ],
)
def test_names_of_another_type_are_rejected(sales: Database, wrong: dict[str, Any], error: str) -> None:
    arguments: dict[str, Any] = {"from_service": INITIATOR, "to_service": TARGET, **wrong}
    with sales.transaction() as t, pytest.raises(SchemaError, match=error):
        t.begin_dialog(**arguments)


REFUSED_AT_BEGIN = [
    ({"from_service": "//Nobody"}, 15151),
    ({"contract": "//NoContract"}, 15151),
    ({"to_service": ""}, 8412),
    ({"to_service": "x" * 257}, 8412),
    ({"to_service": "n\0l"}, 8412),
    ({"lifetime": 0}, 8411),
    ({"lifetime": 2**31}, 8411),
    ({"lifetime": True}, 8411),
    ({"related_conversation": uuid.UUID(int=1)}, 8426),
]


@pytest.mark.parametrize(("changed", "number"), REFUSED_AT_BEGIN, ids=str)
def test_begin_dialog_errors(sales: Database, changed: dict[str, object], number: int) -> None:
    before = dialog_calls.contents(sales)
    arguments: dict[str, Any] = {"from_service": INITIATOR, "to_service": TARGET, **changed}
    with sales.transaction() as t, pytest.raises(BrokerError) as refused:
        t.begin_dialog(**arguments)
    assert refused.value.number == number
    assert str(refused.value).startswith(f"{number}: ")
    assert dialog_calls.contents(sales) == before


def test_invalid_arguments_are_input_errors(sales: Database) -> None:
    dialog = begin(sales)
    with sales.transaction() as t:
        with pytest.raises(InputError, match="broker_instance"):
            t.begin_dialog(INITIATOR, TARGET, broker_instance="somewhere")
        with pytest.raises(InputError, match="dialog"):
            t.send("no handle", b"")
        for error in (
            (0, "zero"),
            (-1, "the broker's"),
            (1, "x" * 3001),
            (1, "😀" * 1501),
            ("1", "text"),
            "text",
            (1,),
        ):
            with pytest.raises(OptionError, match="error"):
                t.end_conversation(dialog, error=error)  # type: ignore[arg-type]  # the error under test
        with pytest.raises(OptionError, match="cannot be used together: specify one of them"):
            t.end_conversation(dialog, error=(1, "x"), cleanup=True)
        with pytest.raises(OptionError, match="cannot be used together: specify one of them"):
            t.begin_dialog(INITIATOR, TARGET, related_conversation=dialog, related_conversation_group=uuid.uuid4())
    assert dialog_calls.state(sales, dialog) == "SO"


@pytest.mark.parametrize("what", ["send", "end_conversation", "begin_conversation_timer", "transmission_status"])
def test_an_unknown_handle_is_8426(sales: Database, what: str) -> None:
    arguments = {"send": (b"x",), "begin_conversation_timer": (5,)}.get(what, ())
    with sales.transaction() as t, pytest.raises(BrokerError) as refused:
        getattr(t, what)(uuid.UUID(int=5), *arguments)
    assert refused.value.number == 8426


def test_handles_are_accepted_in_every_form(sales: Database) -> None:
    dialog = begin(sales)
    with sales.transaction() as t:
        t.send(dialog, b"uuid")
        t.send(str(dialog), b"text")
        t.send(f"{{{dialog}}}".upper(), b"braces")
        t.send(dialog.bytes, b"bytes")
    assert contents_of(receive(sales)) == [b"uuid", b"text", b"braces", b"bytes"]


def test_an_arriving_error_drops_unsent_messages(sales: Database) -> None:
    """The conversation has ended, so they cannot be received."""
    initiator, target = dialog_calls.pair(sales)
    dialog_calls.switch(sales, on=False)
    send(sales, initiator, b"waits", b"too")
    assert dialog_calls.waiting(sales) == 2
    end(sales, target, error=(1, "no more"))
    assert dialog_calls.state(sales, initiator) == "ER"
    assert dialog_calls.waiting(sales) == 0


def test_end_removes_the_messages_even_if_it_cannot_be_delivered(sales: Database) -> None:
    initiator, target = dialog_calls.pair(sales)
    send(sales, target, b"unread")
    dialog_calls.switch(sales, on=False)
    end(sales, initiator)
    assert dialog_calls.state(sales, initiator) == "DO"
    assert dialog_calls.drain(sales, dialog_calls.REPLIES) == []
    send(sales, target, b"too late")
    assert dialog_calls.drain(sales, dialog_calls.REPLIES) == []
    assert dialog_calls.state(sales, target) == "CO"


def test_the_cost_of_joining_a_group_is_independent_of_its_size(instance: Instance, sales: Database) -> None:
    """A group may have thousands of conversations."""
    instance.subscribe(lambda _event: None, ConversationGroupEvent)
    group = uuid.uuid4()
    joined, moved, left = [], [], []
    for members in (5, 100):
        with sales.transaction() as t:
            for _ in range(members):
                t.begin_dialog(INITIATOR, TARGET, related_conversation_group=group)
            other = t.begin_dialog(INITIATOR, TARGET)

        def join() -> None:
            with sales.transaction() as t:
                t.begin_dialog(INITIATOR, TARGET, related_conversation_group=group)

        def move(dialog: uuid.UUID = other) -> None:
            with sales.transaction() as t:
                t.move_conversation(dialog, group)

        def leave(dialog: uuid.UUID = other) -> None:
            with sales.transaction() as t:
                t.end_conversation(dialog, cleanup=True)

        joined.append(sqlite_steps.steps(sales, join))
        moved.append(sqlite_steps.steps(sales, move))
        left.append(sqlite_steps.steps(sales, leave))
    for work in (joined, moved, left):
        assert work[1] < work[0] * 1.5, (joined, moved, left)
