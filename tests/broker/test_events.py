"""Events that subscribers get, after the commit that makes them true."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.protocol.events import (
    ConversationEvent,
    ConversationGroupEvent,
    ConversationStep,
    Event,
    GroupStep,
    JobFailed,
    MessageUndeliverable,
    QueueDisabled,
)
from tests.broker import sample_databases
from tests.broker.sample_databases import ORDERS, SHOP, STOCK, received, send


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


def record_events(instance: Instance, *kinds: type[Event]) -> list[Event]:
    events: list[Event] = []
    instance.subscribe(events.append, *kinds)
    return events


def steps(events: list[Event]) -> list[tuple[str | None, str]]:
    return [(event.database, event.step) for event in events if isinstance(event, ConversationEvent)]


def test_the_life_of_a_conversation_between_two_databases(instance: Instance, sales: Database, stock: Database) -> None:
    events = record_events(instance, ConversationEvent)
    dialog = send(sales, b"two chairs")
    with sales.transaction() as t:
        t.end_conversation(dialog)
    with stock.transaction() as t:
        t.end_conversation(t.receive(ORDERS)["conversation_handle"][0].as_py())
    assert steps(events) == [
        ("Sales", ConversationStep.BEGIN_DIALOG),
        ("Sales", ConversationStep.SEND_MESSAGE),
        ("Stock", ConversationStep.DIALOG_CREATED),
        ("Stock", ConversationStep.RECEIVED_SEQUENCED_MESSAGE),
        ("Sales", ConversationStep.END_CONVERSATION),
        ("Stock", ConversationStep.RECEIVED_END_CONVERSATION),
        ("Sales", ConversationStep.RECEIVED_END_CONVERSATION_ACK),
        ("Stock", ConversationStep.END_CONVERSATION),
    ]


def test_an_application_error_emits_events_at_both_ends(instance: Instance, sales: Database, stock: Database) -> None:
    dialog = send(sales, b"two chairs")
    events = record_events(instance, ConversationEvent)
    with sales.transaction() as t:
        t.end_conversation(dialog, error=(7, "no chairs"))
    assert [(each.step, each.error, each.text) for each in events if isinstance(each, ConversationEvent)][:2] == [
        (ConversationStep.END_CONVERSATION_WITH_ERROR, 7, "no chairs"),
        (ConversationStep.RECEIVED_END_CONVERSATION_WITH_ERROR, 7, "no chairs"),
    ]


def test_a_broker_error_emits_an_event(instance: Instance, sales: Database, stock: Database) -> None:
    stock.alter_service(STOCK, drop_contracts=["DEFAULT"])
    events = record_events(instance, ConversationEvent)
    send(sales, b"two chairs")
    assert steps(events)[-1] == ("Sales", ConversationStep.RECEIVED_BROKER_ERROR)


def test_an_undeliverable_message_emits_an_event_with_the_reason(instance: Instance, sales: Database) -> None:
    sales.create_queue(ORDERS, status=False)
    sales.create_service(STOCK, queue=ORDERS)
    events = record_events(instance, MessageUndeliverable)
    send(sales, b"two chairs")
    assert [
        (each.error, each.message_sequence_number) for each in events if isinstance(each, MessageUndeliverable)
    ] == [(11219, 0)]


def test_cleanup_emits_an_event(instance: Instance, sales: Database) -> None:
    dialog = send(sales, b"two chairs")
    events = record_events(instance, ConversationEvent)
    with sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
    assert steps(events) == [("Sales", ConversationStep.END_CONVERSATION_WITH_CLEANUP)]


def test_groups_emit_events_with_their_first_and_last_conversation(instance: Instance, sales: Database) -> None:
    events = record_events(instance, ConversationGroupEvent)
    with sales.transaction() as t:
        first = t.begin_dialog(SHOP, STOCK)
        second = t.begin_dialog(SHOP, STOCK, related_conversation=first)
    with sales.transaction() as t:
        t.end_conversation(first)
    assert [event.step for event in events if isinstance(event, ConversationGroupEvent)] == [GroupStep.CREATE]
    with sales.transaction() as t:
        t.end_conversation(second)
    assert [event.step for event in events if isinstance(event, ConversationGroupEvent)] == [
        GroupStep.CREATE,
        GroupStep.DROP,
    ]


def test_a_rollback_emits_nothing(instance: Instance, sales: Database, stock: Database) -> None:
    events = record_events(instance)
    with pytest.raises(ZeroDivisionError), sales.transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK), b"two chairs")
        raise ZeroDivisionError
    assert events == []


def test_events_are_emitted_after_the_commit(instance: Instance, sales: Database) -> None:
    """A subscriber finds the conversation of an event in the file."""
    found: list[int] = []

    def look(_event: Event) -> None:
        with database_context(sales).file.read() as connection:
            found.append(connection.execute("SELECT count(*) FROM ssb_conversation_endpoints").get)

    instance.subscribe(look, ConversationEvent)
    with sales.transaction() as t:
        t.begin_dialog(SHOP, STOCK)
        assert found == []
    assert found == [1]


def test_a_failing_subscriber_does_not_affect_others(instance: Instance, sales: Database, stock: Database) -> None:
    def fails(_event: Event) -> None:
        raise ZeroDivisionError

    instance.subscribe(fails)
    send(sales, b"two chairs")
    assert received(stock) == [b"two chairs"]


def test_a_subscriber_may_use_the_instance(instance: Instance, sales: Database, stock: Database) -> None:
    """It is called outside of every transaction and lock."""

    def answers(event: Event) -> None:
        if isinstance(event, ConversationEvent) and event.step is ConversationStep.RECEIVED_SEQUENCED_MESSAGE:
            with stock.transaction() as t:
                t.send(t.receive(ORDERS)["conversation_handle"][0].as_py(), b"done")

    end = instance.subscribe(answers, ConversationEvent)
    send(sales, b"two chairs")
    end()
    instance.run_due()
    assert received(sales, sample_databases.REPLIES) == [b"done"]


def test_a_subscriber_may_send_from_the_database_in_delivery(
    instance: Instance, sales: Database, stock: Database
) -> None:
    """Otherwise it would deadlock."""
    more = [b"three", b"two"]

    def send_another(event: Event) -> None:
        if isinstance(event, ConversationEvent) and event.step is ConversationStep.RECEIVED_SEQUENCED_MESSAGE and more:
            send(sales, more.pop())
            instance.run_due()

    instance.subscribe(send_another, ConversationEvent)
    send(sales, b"one")
    assert received(stock) == [b"one", b"two", b"three"]


def test_events_are_logged(instance: Instance, sales: Database, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="ssbroker.events"):
        send(sales, b"two chairs")
    assert "Broker:Message Classify: database=Sales" in caplog.text
    assert "SEND Message" in caplog.text


def test_committed_messages_are_delivered_despite_an_interrupted_subscriber(
    instance: Instance, sales: Database, stock: Database
) -> None:
    def interrupt(_event: Event) -> None:
        stop()
        raise KeyboardInterrupt

    stop = instance.subscribe(interrupt)
    with pytest.raises(KeyboardInterrupt):
        send(sales, b"two chairs")
    assert received(stock) == [b"two chairs"]


def test_a_failing_log_handler_does_not_affect_a_commit(
    instance: Instance, sales: Database, stock: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the log is full")

    def fails(_event: Event) -> None:
        raise ValueError

    logger, handler = logging.getLogger("ssbroker.events"), Full()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    instance.subscribe(fails)
    try:
        send(sales, b"two chairs")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert received(stock) == [b"two chairs"]
    assert "the log is full" in capsys.readouterr().err


def test_a_function_may_take_only_the_kinds_that_it_subscribes_to(instance: Instance) -> None:
    """Without errors of the type checker; pyright accepts the same calls as mypy."""
    seen: list[str | None] = []

    def note_queue(event: QueueDisabled) -> None:
        seen.append(event.queue)

    def note_one(event: QueueDisabled | MessageUndeliverable) -> None:
        seen.append(event.database)

    def note_failure(event: QueueDisabled | MessageUndeliverable | JobFailed) -> None:
        seen.append(event.database)

    def note_any(event: Event) -> None:
        seen.append(event.NAME)

    instance.subscribe(note_queue, QueueDisabled)
    instance.subscribe(lambda event: seen.append(event.queue), QueueDisabled)
    instance.subscribe(note_one, QueueDisabled, MessageUndeliverable)
    instance.subscribe(note_failure, QueueDisabled, MessageUndeliverable, JobFailed)
    instance.subscribe(note_any)
    kinds: tuple[type[Event], ...] = (QueueDisabled, MessageUndeliverable, JobFailed, ConversationEvent)
    instance.subscribe(note_any, *kinds)
    instance.subscribe(note_queue)  # type: ignore[arg-type]  # it gets all kinds
    instance.subscribe(note_queue, JobFailed)  # type: ignore[arg-type]  # it gets another kind
    instance.subscribe(note_one, QueueDisabled, JobFailed)  # type: ignore[arg-type]  # it gets another kind
    database_context(instance.create_database("Sales")).instance.events.emit(QueueDisabled(at=0, queue="Orders"))
    name = "Broker:Queue Disabled"
    assert seen == ["Orders", "Orders", None, None, name, name, "Orders", None]


WITHOUT_LOGGING = """
import sys
from ssbroker import Instance

with Instance.create(sys.argv[1], name="shop", background=False) as instance:
    instance.subscribe(lambda event: 1 / 0)
    queue = instance.queue("Jobs", retry_after=0)
    queue.put(b"poison")
    for _ in range(5):
        try:
            with queue.take():
                raise KeyError
        except KeyError:
            pass
"""


def test_errors_are_printed_without_any_setup_of_logging(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOGGING, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert "Broker:Queue Disabled: database=Queues, queue=dbo.Jobs" in done.stderr
    assert "Broker:Queue Disabled: a subscriber failed" in done.stderr
    assert "ZeroDivisionError" in done.stderr
