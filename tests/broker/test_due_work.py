"""Timed work: conversation timers, lifetimes and the removal of closed endpoints."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from ssbroker.broker import due_work, local_delivery
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import StorageError
from ssbroker.protocol.events import ConversationEvent, ConversationStep, Event
from ssbroker.store import conversation_endpoints
from ssbroker.store.sqlite import Connection
from tests.broker import sample_databases
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK, received, received_types, send, states, waiting
from tests.broker.sqlite_steps import steps


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


def set_timer(database: Database, dialog: uuid.UUID, seconds: int) -> None:
    with database.transaction() as t:
        t.begin_conversation_timer(dialog, seconds)


def begin(database: Database, *, lifetime: int | None = None, body: bytes | None = b"one") -> uuid.UUID:
    with database.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, lifetime=lifetime)
        if body is not None:
            t.send(dialog, body)
    return dialog


def test_a_timer_adds_a_message_to_its_own_queue(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    """`run_due` returns the due time."""
    set_timer(sales, begin(sales), 10)
    assert instance.run_due() == clock() + timedelta(seconds=10)
    assert received_types(sales, REPLIES) == []
    clock.advance(seconds=10)
    instance.run_due()
    instance.run_due()
    assert received_types(sales, REPLIES) == ["DialogTimer"]
    assert received_types(stock) == ["DEFAULT"]


def test_a_timer_can_be_set_again(instance: Instance, sales: Database, clock: Clock) -> None:
    dialog = begin(sales, body=None)
    set_timer(sales, dialog, 10)
    set_timer(sales, dialog, 20)
    clock.advance(seconds=10)
    assert instance.run_due() == clock() + timedelta(seconds=10)
    assert received_types(sales, REPLIES) == []


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_an_overdue_timer_fires_before_the_end_of_the_lifetime(
    instance: Instance, sales: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """Both may be due if the process was down or had too much due work for one transaction."""
    monkeypatch.setattr(due_work, "BATCH", batch_size)
    for _ in range(3):
        set_timer(sales, begin(sales, lifetime=60, body=None), 50)
    clock.advance(seconds=100)
    instance.run_due()
    assert received_types(sales, REPLIES) == ["DialogTimer", "Error"] * 3


@pytest.mark.rule("P34")
def test_a_timer_waits_for_a_disabled_queue(instance: Instance, sales: Database, clock: Clock) -> None:
    set_timer(sales, begin(sales, body=None, lifetime=1000), 10)
    sales.alter_queue(REPLIES, status=False)
    clock.advance(seconds=11)
    assert instance.run_due() is None
    sales.alter_queue(REPLIES, status=True)
    instance.run_due()
    assert received_types(sales, REPLIES) == ["DialogTimer"]


@pytest.mark.rule("P34")
def test_messages_for_a_disabled_queue_are_not_scanned_at_each_check(
    instance: Instance, sales: Database, stock: Database
) -> None:
    """Only after the objects have changed, by any process."""
    stock.alter_queue(ORDERS, status=False)
    for _ in range(2):
        with sales.transaction() as t:
            for _ in range(100):
                t.send(t.begin_dialog(SHOP, STOCK), b"one")
        first, second = (steps(stock, partial(due_work.enter_queues, database_context(stock))) for _ in range(2))
    assert max(first, second) < 50
    stock.create_message_type("Other")
    instance.run_due()
    assert len(waiting(stock)) == 200
    with Instance.open(instance.folder, background=False) as other:
        other.database(stock.name).alter_queue(ORDERS, status=True)
    instance.run_due()
    assert len(received(stock)) == 200


@pytest.mark.threat("T22")
def test_an_expired_lifetime_is_an_error_at_both_ends(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    """Abandoned conversations end at their lifetime."""
    begin(sales, lifetime=60)
    assert received(stock) == [b"one"]
    clock.advance(seconds=59)
    instance.run_due()
    assert (states(sales), states(stock)) == (["CO"], ["CO"])
    clock.advance(seconds=1)
    instance.run_due()
    assert (states(sales), states(stock)) == (["ER"], ["ER"])
    for database, queue in ((sales, REPLIES), (stock, ORDERS)):
        (body,) = received(database, queue)
        assert b"<Code>-8489</Code>" in body


def test_an_expired_lifetime_removes_messages_from_the_transmission_queue(
    instance: Instance, sales: Database, clock: Clock
) -> None:
    """The conversation has ended, so the message cannot be received."""
    begin(sales, lifetime=60)
    clock.advance(seconds=60)
    instance.run_due()
    assert (states(sales), waiting(sales)) == (["ER"], [])


def test_an_ended_conversation_expires_without_an_error(instance: Instance, sales: Database, clock: Clock) -> None:
    """In state DO, the application has already ended the conversation and waits for the acknowledgement."""
    dialog = begin(sales, lifetime=60)
    with sales.transaction() as t:
        t.end_conversation(dialog)
    clock.advance(seconds=60)
    instance.run_due()
    assert (states(sales), waiting(sales), received(sales, REPLIES)) == ([], [], [])


def test_the_error_waits_for_a_disabled_queue(instance: Instance, sales: Database, clock: Clock) -> None:
    begin(sales, lifetime=60)
    sales.alter_queue(REPLIES, status=False)
    clock.advance(seconds=60)
    instance.run_due()
    sales.alter_queue(REPLIES, status=True)
    instance.run_due()
    assert received_types(sales, REPLIES) == ["Error"]


@pytest.mark.rule("P34")
def test_messages_that_wait_for_a_disabled_queue_outlast_the_lifetime(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    """They have been acknowledged, as if they were in the queue."""
    stock.alter_queue(ORDERS, status=False)
    begin(sales, lifetime=10)
    clock.advance(seconds=10)
    instance.run_due()
    stock.alter_queue(ORDERS, status=True)
    instance.run_due()
    assert received_types(stock) == ["Error", "DEFAULT"]


def test_all_expired_conversations_end_in_several_transactions(
    instance: Instance, sales: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssbroker.broker.due_work.BATCH", 3)
    with sales.transaction() as t:
        for _ in range(10):
            t.begin_dialog(SHOP, STOCK, lifetime=60)
    clock.advance(seconds=60)
    instance.run_due()
    assert states(sales) == ["ER"] * 10


def test_a_closed_endpoint_is_kept_for_half_an_hour(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    dialog = send(sales, b"one")
    with sales.transaction() as t:
        t.end_conversation(dialog)
    with stock.transaction() as t:
        t.end_conversation(t.receive(ORDERS)["conversation_handle"][0].as_py())
    clock.advance(seconds=30 * 60 - 1)
    instance.run_due()
    assert states(stock) == ["CD"]
    clock.advance(seconds=1)
    assert instance.run_due() is None
    assert states(stock) == []


def test_a_transaction_removes_a_limited_number_of_closed_endpoints(
    instance: Instance, sales: Database, stock: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a day without the instance there may be millions, and writers must not wait for all of them."""
    monkeypatch.setattr("ssbroker.broker.due_work.BATCH", 3)
    removed: list[int] = []
    monkeypatch.setattr(
        "ssbroker.store.conversation_endpoints.remove_closed", _recording(conversation_endpoints.remove_closed, removed)
    )
    with sales.transaction() as t:
        dialogs = [t.begin_dialog(SHOP, STOCK) for _ in range(10)]
        for dialog in dialogs:
            t.send(dialog, b"one")
            t.end_conversation(dialog)
    with stock.transaction() as t:
        for handle in {each for each, _ in sample_databases.orders(t.receive(ORDERS, groups=None))}:
            t.end_conversation(handle)
    assert states(stock) == ["CD"] * 10
    clock.advance(seconds=30 * 60)
    instance.run_due()
    assert (states(stock), max(removed), sum(removed)) == ([], 3, 10)


def test_dialogs_that_ended_in_sequence_are_removed_together(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    """Otherwise a hundred per second would cause a hundred transactions half an hour later."""
    for _ in range(20):
        dialog = send(sales, b"one")
        with sales.transaction() as t:
            t.end_conversation(dialog)
        with stock.transaction() as t:
            t.end_conversation(t.receive(ORDERS)["conversation_handle"][0].as_py())
        clock.advance(seconds=0.1)
    looks = 0
    while (next_due := instance.run_due()) is not None:
        looks += 1
        clock.advance(seconds=max(0.0, (next_due - clock()).total_seconds()))
    assert (states(stock), looks) == ([], 1)


def test_a_late_retry_after_a_restart_is_a_duplicate(
    instance: Instance, sales: Database, stock: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target received all messages and ended, but the sender has no acknowledgement and restarts half an hour later."""

    class Crash(BaseException):
        pass

    def crash(*_args: object, **_named: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(local_delivery, "acknowledge", crash)
        with pytest.raises(Crash), sales.transaction() as t:
            dialog = t.begin_dialog(SHOP, STOCK)
            t.send(dialog, b"one")
            t.end_conversation(dialog)
    with stock.transaction() as t:
        rows = t.receive(ORDERS).to_pylist()
        assert [row["message_body"] for row in rows] == [b"one", None]
        t.end_conversation(rows[0]["conversation_handle"])
    assert (states(sales), states(stock), len(waiting(sales))) == (["DO"], ["CD"], 2)
    instance.close()
    clock.advance(seconds=30 * 60 + 1)
    with Instance.open(instance.folder, clock=clock, background=False) as opened:
        opened.run_due()
        assert received(opened.database("Stock")) == []
        assert (states(opened.database("Sales")), states(opened.database("Stock"))) == ([], ["CD"])
        clock.advance(seconds=30 * 60)
        opened.run_due()
        assert states(opened.database("Stock")) == []


@pytest.mark.rule("P11", "P18")
def test_a_closed_endpoint_is_kept_while_duplicates_arrive(
    instance: Instance, sales: Database, stock: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the sender cannot be written for an hour, so the sender delivers its messages again and again."""

    def is_read_only(*_args: object, **_named: object) -> None:
        raise StorageError("the disk is full", file="Sales.sqlite")

    with monkeypatch.context() as patched:
        patched.setattr(local_delivery, "acknowledge", is_read_only)
        with sales.transaction() as t:
            dialog = t.begin_dialog(SHOP, STOCK)
            t.send(dialog, b"one")
            t.end_conversation(dialog)
        assert received_types(stock) == ["DEFAULT", "EndDialog"]
        with stock.transaction() as t:
            (endpoint,) = instance.view("sys.conversation_endpoints", database="Stock").to_pylist()
            t.end_conversation(endpoint["conversation_handle"])
        for _ in range(60):
            clock.advance(seconds=72)
            instance.run_due()
            assert (received(stock), states(stock)) == ([], ["CD"])
    clock.advance(seconds=72)
    instance.run_due()
    assert (waiting(sales), states(sales)) == ([], [])
    clock.advance(seconds=30 * 60)
    instance.run_due()
    assert states(stock) == []


@pytest.mark.rule("I2")
def test_a_disabled_database_has_no_timed_work(instance: Instance, sales: Database, clock: Clock) -> None:
    set_timer(sales, begin(sales, body=None, lifetime=60), 10)
    sales.set_broker("DISABLE_BROKER")
    clock.advance(seconds=60)
    assert instance.run_due() is None
    assert states(sales) == ["SO"]
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert states(sales) == ["ER"]


def test_run_due_accepts_another_time(instance: Instance, sales: Database, clock: Clock) -> None:
    begin(sales, lifetime=60)
    instance.run_due(clock() + timedelta(seconds=60))
    assert states(sales) == ["ER"]


def test_an_expired_lifetime_emits_an_event(instance: Instance, sales: Database, clock: Clock) -> None:
    emitted: list[Event] = []
    begin(sales, lifetime=60, body=None)
    instance.subscribe(emitted.append, ConversationEvent)
    clock.advance(seconds=60)
    instance.run_due()
    (event,) = emitted
    assert isinstance(event, ConversationEvent)
    assert (event.step, event.error) == (ConversationStep.BROKER_INITIATED_ERROR, -8489)


def _recording(remove: Callable[..., int], removed: list[int]) -> Callable[..., int]:
    def remove_and_record(connection: Connection, **named: int) -> int:
        removed.append(remove(connection, **named))
        return removed[-1]

    return remove_and_record
