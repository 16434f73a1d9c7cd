"""The background threads of an instance: deliveries, timers and readers. Each wait has a deadline and ends with a message."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from ssbroker.broker import due_work, local_delivery
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.database import Database
from ssbroker.broker.delivery import Delivery
from ssbroker.broker.instance import Instance
from ssbroker.broker.local_delivery import DeliveryResult
from ssbroker.protocol.events import ActivationEvent, ActivationStep, Event
from tests.broker import sample_databases
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK, received, send, waiting
from tests.internals import background_of

DEADLINE = 60.0


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.create(tmp_path / "instance", name="shop") as created:
        yield created


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def notified_only(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """The instance without its check every few seconds: it must be notified."""
    monkeypatch.setattr(background_of(instance)._runner, "_longest_wait", DEADLINE * 10)
    return instance


def next_body(database: Database, queue: str = ORDERS) -> bytes | None:
    """Waits for the next message of a queue."""
    with database.transaction() as t:
        table = t.receive(queue, top=1, timeout=DEADLINE)
        return table["message_body"][0].as_py() if table.num_rows else None


def test_a_new_service_gets_waiting_messages_immediately(instance: Instance, sales: Database) -> None:
    send(sales, b"one")
    assert next_body(sample_databases.stock(instance)) == b"one"


@pytest.mark.rule("P16")
def test_undelivered_messages_are_delivered_on_opening(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed between commit and delivery."""

    class Crash(BaseException):
        pass

    def crash(*_args: object, **_named: object) -> list[DeliveryResult]:
        raise Crash

    sample_databases.stock(instance)
    with monkeypatch.context() as patched:
        patched.setattr(local_delivery, "deliver_to", crash)
        with pytest.raises(Crash):
            send(sales, b"one")
    instance.close()
    with Instance.open(instance.folder) as opened:
        assert next_body(opened.database("Stock")) == b"one"


def test_a_commit_does_not_wait_for_readers_of_the_target(instance: Instance, sales: Database) -> None:
    """The reader keeps its transaction open until the sender has continued; the message arrives after the reader's commit."""
    stock = sample_databases.stock(instance)
    is_locked, has_sent = threading.Event(), threading.Event()

    def hold_transaction() -> None:
        with stock.transaction() as t:
            t.connection.execute("CREATE TABLE chairs (number INTEGER)")
            is_locked.set()
            assert has_sent.wait(DEADLINE)

    reader = threading.Thread(target=hold_transaction)
    reader.start()
    assert is_locked.wait(DEADLINE)
    send(sales, b"one")
    (row,) = waiting(sales)
    assert row.transmission_status == "", "a short wait for the lock has no status"
    has_sent.set()
    reader.join(DEADLINE)
    assert next_body(stock) == b"one"


def test_the_background_thread_delivers_after_an_unexpected_error(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is durable, so it raises no error."""

    def fail(*_args: object, **_named: object) -> bool:
        raise RuntimeError("unexpected")

    stock = sample_databases.stock(instance)
    with monkeypatch.context() as patched:
        patched.setattr(Delivery, "deliver_sent", fail)
        send(sales, b"one")
    assert "RuntimeError: unexpected" in caplog.text
    assert next_body(stock) == b"one"


def test_nothing_is_logged_about_a_database_that_is_dropped(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The background thread was about to do its due work."""
    has_begun, is_dropped, has_ended = threading.Event(), threading.Event(), threading.Event()

    def run_due_late(database: DatabaseContext, **options: Any) -> int | None:
        if database.name != "Stock":
            return due_work.run_due(database, **options)
        has_begun.set()
        assert is_dropped.wait(DEADLINE)
        try:
            return due_work.run_due(database, **options)
        finally:
            has_ended.set()

    monkeypatch.setattr("ssbroker.broker.background.run_due", run_due_late)
    sample_databases.stock(instance)
    assert has_begun.wait(DEADLINE)
    instance.drop_database("Stock")
    is_dropped.set()
    assert has_ended.wait(DEADLINE)
    instance.close()
    assert caplog.messages == []


def test_a_timer_fires_in_the_background(notified_only: Instance, sales: Database) -> None:
    with sales.transaction() as t:
        t.begin_conversation_timer(t.begin_dialog(SHOP, STOCK), 1)
    with sales.transaction() as t:
        table = t.receive(REPLIES, timeout=DEADLINE)
    assert table["message_type_name"].to_pylist() == ["http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer"]


def test_four_readers_handle_500_conversations_exactly_once(notified_only: Instance, sales: Database) -> None:
    """All four run at the same time: none continues before the others have started."""
    stock = sample_databases.stock(notified_only)
    emitted: list[Event] = []
    notified_only.subscribe(emitted.append, ActivationEvent)
    all_readers, own = threading.Barrier(4), threading.local()
    handled: SimpleQueue[bytes] = SimpleQueue()

    def read_orders(database: Database) -> None:
        while True:
            with database.transaction() as t:
                orders = sample_databases.orders(t.receive(ORDERS))
                for handle, body in orders:
                    t.send(handle, b"done: " + body)
            for _, body in orders:
                handled.put(body)
            if not orders:
                return
            if not getattr(own, "has_met", False):
                own.has_met = True
                all_readers.wait(DEADLINE)

    with sales.transaction() as t:
        for number in range(500):
            t.send(t.begin_dialog(SHOP, STOCK), b"%d" % number)
    stock.activate(ORDERS, read_orders, max_queue_readers=4)
    answers = Counter(next_body(sales, REPLIES) for _ in range(500))
    assert answers == Counter(b"done: %d" % number for number in range(500))
    # A reader records a message after its commit, so the last answer may arrive first.
    assert Counter(handled.get(timeout=DEADLINE) for _ in range(500)) == Counter(
        b"%d" % number for number in range(500)
    )
    assert handled.empty()
    assert received(sales, REPLIES) == received(stock) == []
    assert max(event.active_readers for event in emitted if isinstance(event, ActivationEvent)) == 4


def test_readers_end_when_the_queue_is_empty_and_restart(instance: Instance, sales: Database) -> None:
    stock = sample_databases.stock(instance)
    ended = threading.Semaphore(0)

    def set_ended(event: Event) -> None:
        if isinstance(event, ActivationEvent) and event.step is ActivationStep.ENDED:
            ended.release()

    def read_orders(database: Database) -> None:
        while True:
            with database.transaction() as t:
                orders = sample_databases.orders(t.receive(ORDERS))
                for handle, body in orders:
                    t.send(handle, body)
            if not orders:
                return

    instance.subscribe(set_ended, ActivationEvent)
    stock.activate(ORDERS, read_orders)
    for body in (b"one", b"two"):
        send(sales, body)
        assert next_body(sales, REPLIES) == body
        assert ended.acquire(timeout=DEADLINE)


def test_readers_of_a_replaced_function_are_not_restarted(instance: Instance, sales: Database) -> None:
    """A running reader is not interrupted."""
    stock = sample_databases.stock(instance)
    started, may_continue, ended = threading.Event(), threading.Event(), threading.Event()

    def set_ended(event: Event) -> None:
        if isinstance(event, ActivationEvent) and event.step is ActivationStep.ENDED:
            ended.set()

    def take_one(database: Database) -> None:
        with database.transaction() as t:
            t.receive(ORDERS, top=1)
        started.set()
        assert may_continue.wait(DEADLINE)

    instance.subscribe(set_ended, ActivationEvent)
    stock.activate(ORDERS, take_one)
    send(sales, b"one", b"two", b"three")
    assert started.wait(DEADLINE)
    stock.activate(ORDERS, take_one, max_queue_readers=0)
    may_continue.set()
    assert ended.wait(DEADLINE)
    instance.close()
    with Instance.open(instance.folder, background=False) as opened:
        assert received(opened.database("Stock")) == [b"two", b"three"]


def test_closing_ends_all_threads(instance: Instance, sales: Database) -> None:
    stock = sample_databases.stock(instance)
    before = set(threading.enumerate())
    is_waiting = threading.Event()

    def wait_for_more(database: Database) -> None:
        while True:
            with database.transaction() as t:
                t.receive(ORDERS)
            is_waiting.set()
            with database.transaction() as t:
                if not t.receive(ORDERS, timeout=DEADLINE * 10).num_rows:
                    return

    stock.activate(ORDERS, wait_for_more)
    send(sales, b"one")
    assert is_waiting.wait(DEADLINE)
    instance.close()
    assert [thread for thread in set(threading.enumerate()) - before if thread.is_alive()] == []


def test_several_instances_on_a_folder_deliver_each_message_once(instance: Instance, sales: Database) -> None:
    """Like several processes: each has its own connections and locks."""
    sales.set_broker("DISABLE_BROKER")
    stock = sample_databases.stock(instance)
    with sales.transaction() as t:
        for number in range(100):
            dialog = t.begin_dialog(SHOP, STOCK)
            t.send(dialog, b"%d" % number)
            t.send(dialog, b"%d" % (number + 1000))
    others = [Instance.open(instance.folder, background=False) for _ in range(3)]
    sales.set_broker("ENABLE_BROKER")
    threads = [threading.Thread(target=other.run_due) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    instance.run_due()
    assert waiting(sales) == []
    bodies = received(stock)
    assert sorted(bodies, key=int) == sorted((b"%d" % number for n in range(100) for number in (n, n + 1000)), key=int)
    for other in others:
        other.close()
