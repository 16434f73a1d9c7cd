"""Activation of readers for waiting messages, in the calling thread and without timing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.queue_monitor import MonitorState
from ssbroker.exceptions import BrokerError, OptionError
from ssbroker.protocol.events import ActivationEvent, ActivationStep, Event, QueueDisabled
from tests.broker import sample_databases, sqlite_steps
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, REPLIES, received, send
from tests.internals import background_of, instance_of

STARTED, ENDED, ABORTED = ActivationStep.STARTED, ActivationStep.ENDED, ActivationStep.ABORTED


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


@pytest.fixture
def reader_events(instance: Instance) -> list[Event]:
    """The events of readers."""
    events: list[Event] = []
    instance.subscribe(events.append, ActivationEvent, QueueDisabled)
    return events


def steps(reader_events: list[Event]) -> list[ActivationStep]:
    return [event.step for event in reader_events if isinstance(event, ActivationEvent)]


def answer_all(database: Database) -> None:
    """Receives until the queue is empty, and answers each message."""
    while True:
        with database.transaction() as t:
            orders = sample_databases.orders(t.receive(ORDERS))
            for handle, body in orders:
                t.send(handle, b"done: " + body)
        if not orders:
            return


def fails(_database: Database) -> None:
    raise ZeroDivisionError("no order today")


def rolls_back(database: Database) -> None:
    with database.transaction() as t:
        assert t.receive(ORDERS).num_rows
        raise ZeroDivisionError("no order today")


def test_a_message_starts_a_reader_and_its_answer_comes_back(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event]
) -> None:
    stock.activate(ORDERS, answer_all)
    instance.run_due()
    assert steps(reader_events) == [], "an empty queue needs no reader"
    send(sales, b"one")
    instance.run_due()
    assert received(sales, REPLIES) == [b"done: one"]
    assert steps(reader_events) == [STARTED, ENDED]


def test_messages_from_before_the_activation_start_a_reader(
    instance: Instance, sales: Database, stock: Database
) -> None:
    send(sales, b"one")
    stock.activate(ORDERS, answer_all)
    instance.run_due()
    assert received(sales, REPLIES) == [b"done: one"]


def test_a_reader_that_takes_one_message_at_a_time_is_called_until_none_is_left(
    instance: Instance, sales: Database, stock: Database
) -> None:
    bodies: list[bytes | None] = []

    def take_one(database: Database) -> None:
        with database.transaction() as t:
            bodies.extend(t.receive(ORDERS, top=1)["message_body"].to_pylist())

    stock.activate(ORDERS, take_one)
    send(sales, *(b"%d" % number for number in range(20)))
    instance.run_due()
    assert bodies == [b"%d" % number for number in range(20)]


def test_a_failing_reader_is_reported_and_others_continue(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """It received nothing, so it is restarted only at the next check."""
    stock.activate(ORDERS, fails)
    send(sales, b"one")
    with caplog.at_level(logging.ERROR, logger="ssbroker.broker"):
        instance.run_due()
    assert steps(reader_events) == [STARTED, ABORTED]
    assert isinstance(reader_events[-1], ActivationEvent)
    assert reader_events[-1].text == "ZeroDivisionError: no order today"
    assert "no order today" in caplog.text


def test_a_reader_that_never_receives_is_restarted_at_the_next_check(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event], clock: Clock
) -> None:
    """28087."""
    stock.activate(ORDERS, lambda _database: None)
    send(sales, b"one")
    assert instance.run_due() == clock() + timedelta(seconds=5)
    instance.run_due()
    assert steps(reader_events) == [STARTED, ENDED]
    assert isinstance(reader_events[-1], ActivationEvent)
    assert reader_events[-1].text.startswith("28087:")
    clock.advance(seconds=5)
    instance.run_due()
    assert steps(reader_events) == [STARTED, ENDED] * 2


def test_a_reader_whose_receive_times_out_has_received(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event]
) -> None:
    """Another reader was faster, so it must not be held as one that never receives."""

    def reader(database: Database) -> None:
        received(database)
        with database.transaction() as t:
            assert t.receive(ORDERS, timeout=0.01).num_rows == 0

    def take_first(database: Database) -> None:
        thread = threading.Thread(target=received, args=(database,))
        thread.start()
        thread.join()
        with database.transaction() as t:
            assert t.receive(ORDERS, timeout=0.01).num_rows == 0

    for procedure in (reader, take_first):
        reader_events.clear()
        stock.activate(ORDERS, procedure)
        send(sales, b"one")
        instance.run_due()
        (ended,) = (event for event in reader_events if isinstance(event, ActivationEvent) and event.step is ENDED)
        assert ended.text == ""
        stock.deactivate(ORDERS)


def test_a_receive_that_waits_counts_once(sales: Database, stock: Database) -> None:
    """It counts once whether or not it then returns messages."""
    counts = instance_context(instance_of(stock)).counters.counts

    def wait(timeout: float) -> int:
        with stock.transaction() as t:
            return t.receive(ORDERS, timeout=timeout).num_rows

    before = counts()["sql_receives"]
    assert wait(0.01) == 0
    assert counts()["sql_receives"] == before + 1
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait, 60)
        while not database_context(stock).commit_signals.waiting(
            database_context(stock).objects().queues["dbo", ORDERS].queue_id
        ):
            time.sleep(0.001)
        send(sales, b"one")
        assert waiting.result() == 1
    assert counts()["sql_receives"] == before + 2


def test_a_reader_that_rolls_back_five_times_turns_the_queue_off(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event]
) -> None:
    stock.activate(ORDERS, rolls_back)
    send(sales, b"one")
    instance.run_due()
    instance.run_due()
    assert steps(reader_events) == [STARTED, ABORTED] * 5
    assert [type(event) for event in reader_events].count(QueueDisabled) == 1
    with pytest.raises(BrokerError, match="9617"):
        received(stock)


def test_a_reader_does_not_spin_without_poison_message_handling(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event], clock: Clock
) -> None:
    stock.alter_queue(ORDERS, poison_message_handling=False)
    stock.activate(ORDERS, rolls_back)
    send(sales, b"one")
    instance.run_due()
    assert len(steps(reader_events)) == 10
    clock.advance(seconds=5)
    instance.run_due()
    assert len(steps(reader_events)) == 12


def test_the_activation_clause_of_a_queue_starts_a_registered_procedure(
    instance: Instance, sales: Database, stock: Database
) -> None:
    instance.register_procedure("dbo.answer_orders", answer_all)
    send(sales, b"one")
    instance.run_due()
    assert received(sales, REPLIES) == []
    stock.alter_queue(ORDERS, activation=True, procedure="[answer_orders]", max_queue_readers=2)
    instance.run_due()
    assert received(sales, REPLIES) == [b"done: one"]


@pytest.mark.parametrize(
    ("written", "registered"),
    [
        ("Stock.dbo.handle", "handle"),
        ("Stock..handle", "dbo.handle"),
        ("[dbo].[handle.orders]", "[handle.orders]"),
        ("[handle]]orders]", "[dbo].[handle]]orders]"),
        ('dbo."handle orders"', "handle orders"),
    ],
)
def test_a_procedure_is_found_however_its_name_is_written(
    instance: Instance, sales: Database, stock: Database, written: str, registered: str
) -> None:
    """T-SQL allows a database in PROCEDURE_NAME. A procedure that is not found is not started, without an error."""
    instance.register_procedure(registered, answer_all)
    instance.execute(
        "USE Stock; ALTER QUEUE Orders WITH ACTIVATION "
        f"(STATUS = ON, PROCEDURE_NAME = {written}, MAX_QUEUE_READERS = 1, EXECUTE AS SELF);"
    )
    send(sales, b"one")
    instance.run_due()
    assert received(sales, REPLIES) == [b"done: one"]


@pytest.mark.parametrize("name", ["Stock.dbo.handle", "a..b", "[handle", "handle]", "."])
def test_an_invalid_procedure_is_rejected(instance: Instance, stock: Database, name: str) -> None:
    with pytest.raises(BrokerError, match=r"208: .* is not a valid procedure name; expected a name such as handle"):
        stock.alter_queue(ORDERS, activation=True, procedure=name, max_queue_readers=1)
    with pytest.raises(BrokerError, match=r"208: .* is not a valid procedure name; expected a name such as handle"):
        instance.register_procedure(name, answer_all)


ENDS: dict[str, Callable[[Database], None]] = {
    "STATUS = OFF": lambda stock: stock.alter_queue(ORDERS, activation=False),
    "no readers": lambda stock: stock.alter_queue(ORDERS, max_queue_readers=0),
    "another procedure": lambda stock: stock.alter_queue(ORDERS, procedure="somebody_else"),
    "the queue is off": lambda stock: stock.alter_queue(ORDERS, status=False),
    "the broker is disabled": lambda stock: stock.set_broker("DISABLE_BROKER"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_the_activation_clause_can_end_activation(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event], end: Callable[[Database], None]
) -> None:
    instance.register_procedure("answer_orders", answer_all)
    stock.alter_queue(ORDERS, activation=True, procedure="answer_orders", max_queue_readers=1)
    send(sales, b"one")
    end(stock)
    instance.run_due()
    assert steps(reader_events) == []


def test_run_due_considers_timers_set_by_readers(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    """`run_due` returns the due time of a timer that the reader has just set."""

    def set_timer(database: Database) -> None:
        with database.transaction() as t:
            for handle, _ in sample_databases.orders(t.receive(ORDERS)):
                t.begin_conversation_timer(handle, 3)

    stock.activate(ORDERS, set_timer)
    send(sales, b"one")
    assert instance.run_due() == clock() + timedelta(seconds=3)


def test_deactivate_ends_activation(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event]
) -> None:
    stock.activate(ORDERS, answer_all)
    stock.deactivate(ORDERS)
    send(sales, b"one")
    instance.run_due()
    assert steps(reader_events) == []


def test_activating_again_replaces_the_function(instance: Instance, sales: Database, stock: Database) -> None:
    stock.activate(ORDERS, fails)
    stock.activate(ORDERS, answer_all)
    send(sales, b"one")
    instance.run_due()
    assert received(sales, REPLIES) == [b"done: one"]


def test_dropping_a_queue_ends_its_activation(instance: Instance, stock: Database) -> None:
    stock.create_queue("Other")
    stock.activate("Other", answer_all)
    stock.drop_queue("Other")
    instance.run_due()
    assert background_of(instance).activation.monitor_rows() == []


def test_monitors_and_running_readers_are_in_the_views(instance: Instance, sales: Database, stock: Database) -> None:
    """sys.dm_broker_queue_monitors, sys.dm_broker_activated_tasks."""
    activation = background_of(instance).activation
    seen: list[object] = []

    def look(database: Database) -> None:
        seen.extend(row.procedure_name.rsplit(".", maxsplit=1)[-1] for row in activation.task_rows())
        seen.extend(row.state for row in activation.monitor_rows())
        answer_all(database)
        seen.extend(row.state for row in activation.monitor_rows())

    stock.activate(ORDERS, look)
    send(sales, b"one")
    instance.run_due()
    assert seen == ["look", MonitorState.NOTIFIED, MonitorState.RECEIVES_OCCURRING]
    (row,) = activation.monitor_rows()
    assert (row.state, row.last_activated_time is None, row.last_empty_rowset_time is None) == (
        MonitorState.INACTIVE,
        False,
        False,
    )
    assert activation.task_rows() == []


@pytest.mark.parametrize(
    ("function", "readers"), [("answers", 1), (answer_all, -1), (answer_all, 32768), (answer_all, True)]
)
def test_invalid_activations_are_rejected(stock: Database, function: Callable[[Database], None], readers: int) -> None:
    with pytest.raises(OptionError):
        stock.activate(ORDERS, function, max_queue_readers=readers)


def test_an_unknown_queue_is_rejected(stock: Database) -> None:
    with pytest.raises(BrokerError, match="15151"):
        stock.activate("Nothing", answer_all)


def test_a_reader_whose_queue_is_turned_off_ends_without_an_error(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    def reader(database: Database) -> None:
        database.alter_queue(ORDERS, status=False)
        with database.transaction() as t:
            t.receive(ORDERS)

    stock.activate(ORDERS, reader)
    send(sales, b"one")
    with caplog.at_level(logging.WARNING, logger="ssbroker.broker"):
        instance.run_due()
    assert caplog.text == ""
    assert any(isinstance(event, ActivationEvent) and "9617" in event.text for event in reader_events)


def test_a_commit_succeeds_if_no_thread_can_be_started(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = threading.Event()

    def read_orders(database: Database) -> None:
        if received(database):
            read.set()

    def fail_to_start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Instance.create(tmp_path / "shop", name="shop", clock=clock) as instance:
        stock, sales = sample_databases.stock(instance), sample_databases.shop(instance)
        stock.activate(ORDERS, read_orders)
        with monkeypatch.context() as system:
            system.setattr(threading.Thread, "start", fail_to_start)
            send(sales, b"chair")
        assert not read.is_set()
        clock.advance(seconds=5)
        send(sales, b"table")
        assert read.wait(30.0)


def test_a_queue_with_a_reused_id_has_no_old_readers(
    instance: Instance, stock: Database, sales: Database, reader_events: list[Event]
) -> None:
    stock.create_queue("Old")
    stock.activate("Old", fails)
    instance.execute("USE Stock; DROP QUEUE Old; CREATE QUEUE New; ALTER SERVICE [//Stock] ON QUEUE New;")
    send(sales, b"chair")
    instance.run_due()
    assert steps(reader_events) == []
    assert received(stock, "New") == [b"chair"]


def test_empty_queues_are_not_checked_one_by_one(instance: Instance, stock: Database) -> None:
    """This check runs every few seconds, and whenever a timer or a closed endpoint is due."""
    work = []
    for first, last in ((0, 10), (10, 100)):
        for number in range(first, last):
            stock.create_queue(f"Q{number}")
            stock.activate(f"Q{number}", answer_all)
        instance.run_due()
        work.append(sqlite_steps.steps(stock, instance.run_due))
    assert work[1] < work[0] * 1.5, work


def test_a_queue_filled_by_a_reader_is_read_in_the_same_run(
    instance: Instance, sales: Database, stock: Database, reader_events: list[Event]
) -> None:
    def take(database: Database) -> None:
        received(database, REPLIES)

    stock.activate(ORDERS, answer_all)
    sales.activate(REPLIES, take)
    send(sales, b"one")
    instance.run_due()
    assert [event.queue for event in reader_events if isinstance(event, ActivationEvent) and event.step is STARTED] == [
        "dbo.Orders",
        "dbo.Replies",
    ]
