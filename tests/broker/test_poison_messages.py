"""Messages that cannot be processed turn their queue off."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.overview import overview_of
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.events import Event, QueueDisabled
from tests.broker import sample_databases
from tests.broker.conftest import START, Clock
from tests.broker.sample_databases import ORDERS, STOCK, received, send


@pytest.fixture
def stock(instance: Instance) -> Database:
    """A database with one message in its queue."""
    sales, database = sample_databases.shop(instance), sample_databases.stock(instance)
    send(sales, b"poison")
    return database


@pytest.fixture
def disabled(instance: Instance) -> list[Event]:
    """The QueueDisabled events."""
    events: list[Event] = []
    instance.subscribe(events.append, QueueDisabled)
    return events


def fail(database: Database, *, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ZeroDivisionError), database.transaction() as t:
            assert t.receive(ORDERS).num_rows
            raise ZeroDivisionError


def is_on(database: Database) -> bool:
    return database_context(database).objects().queues["dbo", ORDERS].is_receive_enabled


def test_five_rollbacks_in_a_row_turn_the_queue_off(stock: Database, disabled: list[Event]) -> None:
    fail(stock, times=4)
    assert (is_on(stock), disabled) == (True, [])
    fail(stock, times=1)
    (event,) = disabled
    assert isinstance(event, QueueDisabled)
    assert (event.database, event.queue) == ("Stock", "dbo.Orders")
    with pytest.raises(BrokerError, match=r"9617: .*Database\.alter_queue\('dbo\.Orders', status=True\)"):
        received(stock)


def test_a_commit_resets_the_count(stock: Database) -> None:
    fail(stock, times=4)
    with stock.transaction() as t:
        dialog = t.receive(ORDERS)["conversation_handle"][0].as_py()
        t.send(dialog, b"not mine")
    with stock.transaction() as t:
        t.begin_dialog(STOCK, STOCK)
        t.send(t.begin_dialog(STOCK, STOCK), b"poison")
    fail(stock, times=4)
    assert is_on(stock)
    fail(stock, times=1)
    assert not is_on(stock)


def test_a_rollback_without_a_receive_does_not_count(stock: Database) -> None:
    assert received(stock) == [b"poison"]
    for _ in range(9):
        with pytest.raises(ZeroDivisionError), stock.transaction() as t:
            t.receive(ORDERS)
            raise ZeroDivisionError
    for _ in range(9):
        with pytest.raises(ZeroDivisionError), stock.transaction() as t:
            t.begin_dialog(STOCK, STOCK)
            raise ZeroDivisionError
    assert is_on(stock)


def test_a_rollback_after_get_conversation_group_does_not_count(stock: Database) -> None:
    for _ in range(9):
        with pytest.raises(ZeroDivisionError), stock.transaction() as t:
            assert t.get_conversation_group(ORDERS) is not None
            raise ZeroDivisionError
    assert received(stock) == [b"poison"]


def test_poison_message_handling_can_be_disabled(stock: Database) -> None:
    stock.alter_queue(ORDERS, poison_message_handling=False)
    fail(stock, times=9)
    assert received(stock) == [b"poison"]


def test_the_count_is_stored_in_the_file(instance: Instance, stock: Database, clock: Clock) -> None:
    fail(stock, times=4)
    instance.close()
    with Instance.open(instance.folder, clock=clock, background=False) as opened:
        fail(opened.database("Stock"), times=1)
        assert not is_on(opened.database("Stock"))


def test_the_queue_says_why_it_was_turned_off(instance: Instance, stock: Database, disabled: list[Event]) -> None:
    handle = stock_messages(instance)[0]["conversation_handle"]
    fail(stock, times=4)
    with pytest.raises(KeyError), stock.transaction() as t:
        assert t.receive_one(ORDERS)
        raise KeyError("price")
    (row,) = instance.view("sys.dm_broker_failures", database="Stock").to_pylist()
    assert (row["conversation_handle"], row["failed_at"], row["error"]) == (handle, START, "KeyError: 'price'")
    (event,) = disabled
    assert isinstance(event, QueueDisabled)
    assert (event.conversation_handle, event.error) == (uuid.UUID(bytes=handle), "KeyError: 'price'")
    reason = (
        "Poison message handling disabled the queue at 2026-11-21 00:00:00 UTC. The last failure, with a message of the conversation "
        f"{event.conversation_handle}: KeyError: 'price'"
    )
    with pytest.raises(BrokerError, match="9617") as refused:
        received(stock)
    assert str(refused.value).endswith(reason)
    (queue,) = (row for row in overview_of(instance)["queues"] if row["database"] == "Stock")
    assert (
        queue["problem"]
        == f"{reason}. To enable the queue again: USE [Stock]; ALTER QUEUE [dbo].[Orders] WITH STATUS = ON;"
    )
    instance.execute(queue["problem"].partition("To enable the queue again: ")[2])
    assert is_on(stock)
    assert instance.view("sys.dm_broker_failures", database="Stock").num_rows == 0


def test_the_statement_that_enables_a_queue_again_runs_for_every_name(instance: Instance) -> None:
    name = "[a schema].[In ]]Box]"
    odd = instance.create_database("Odd Stock")
    odd.create_queue(name)
    odd.create_service(STOCK, queue=name)
    send(sample_databases.shop(instance), b"poison")
    for _ in range(5):
        with pytest.raises(KeyError), odd.transaction() as t:
            assert t.receive_one(name)
            raise KeyError
    (queue,) = (row for row in overview_of(instance)["queues"] if row["database"] == "Odd Stock")
    statement = queue["problem"].partition("To enable the queue again: ")[2]
    assert statement == "USE [Odd Stock]; ALTER QUEUE [a schema].[In ]]Box] WITH STATUS = ON;"
    instance.execute(statement)
    assert database_context(odd).objects().queues["a schema", "In ]Box"].is_receive_enabled


@pytest.mark.parametrize("name", ["conversation_handle", "conversation_group_id"])
def test_the_reason_names_the_conversation_that_was_received(
    instance: Instance, stock: Database, disabled: list[Event], name: str
) -> None:
    send(instance.database("Sales"), b"behind it")
    first, named = stock_messages(instance)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), stock.transaction() as t:
            options: dict[str, Any] = {name: named[name]}
            assert t.receive(ORDERS, **options).num_rows == 1
            raise ZeroDivisionError
    (event,) = disabled
    assert isinstance(event, QueueDisabled)
    assert event.conversation_handle == uuid.UUID(bytes=named["conversation_handle"])
    assert first["conversation_handle"] != named["conversation_handle"]


def test_the_statement_that_turns_a_queue_on_escapes_its_name(instance: Instance, stock: Database) -> None:
    queue = stock.queue("[Odd]]Name]", retry_after=0)
    queue.put(b"poison")
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), queue.take():
            raise ZeroDivisionError
    (row,) = (row for row in overview_of(instance)["queues"] if row["problem"])
    instance.execute(f"USE Stock; {row['problem'].partition('To enable the queue again: ')[2]}")
    with queue.take() as job:
        assert job.value == b"poison"


def test_a_queue_that_a_statement_turned_off_has_no_reason(instance: Instance, stock: Database) -> None:
    stock.alter_queue(ORDERS, status=False)
    (queue,) = (row for row in overview_of(instance)["queues"] if row["database"] == "Stock")
    assert queue["problem"] is None
    with pytest.raises(BrokerError, match=r"status=True\)$"):
        received(stock)


def test_a_queue_keeps_its_reason_without_the_conversation(instance: Instance, stock: Database) -> None:
    for name in ("Jobs", "Others"):
        queue = stock.queue(name, retry_after=0)
        queue.put(b"poison")
        for _ in range(5):
            with pytest.raises(ZeroDivisionError), queue.take():
                raise ZeroDivisionError
        end_conversations(instance, stock, name)
    problems = {row["queue"]: row["problem"] for row in overview_of(instance)["queues"]}
    assert problems["dbo.Jobs"]
    assert problems["dbo.Others"]


def test_a_new_queue_does_not_have_the_reason_of_a_dropped_one(instance: Instance, stock: Database) -> None:
    """Although it gets the number of the dropped queue."""
    queue = stock.queue("Jobs", retry_after=0)
    queue.put(b"poison")
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), queue.take():
            raise ZeroDivisionError
    end_conversations(instance, stock, "Jobs")
    stock.drop_service("Jobs")
    stock.drop_queue("Jobs")
    stock.create_queue("Off", status=False)
    (problem,) = (row["problem"] for row in overview_of(instance)["queues"] if row["queue"] == "dbo.Off")
    assert problem is None


def end_conversations(instance: Instance, stock: Database, service: str) -> None:
    with stock.transaction() as t:
        for row in instance.view("sys.conversation_endpoints", database="Stock").to_pylist():
            if row["far_service"] == service:
                t.end_conversation(row["conversation_handle"], cleanup=True)


def stock_messages(instance: Instance) -> list[dict[str, Any]]:
    return instance.view(ORDERS, database="Stock").to_pylist()


def test_enabling_the_queue_resets_the_count(stock: Database) -> None:
    fail(stock, times=5)
    stock.alter_queue(ORDERS, status=True)
    fail(stock, times=4)
    assert received(stock) == [b"poison"]
