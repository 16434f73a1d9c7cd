"""The background thread while other transactions lock a database. Each wait has a deadline and ends with a message."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker._well_known import CONFIGURATION_SERVICE, DIALOG_TIMER
from ssbroker.broker.database import Database, database_context
from tests.broker import sample_databases
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK, send, statuses, waiting

DEADLINE = 60.0


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Another thread holds the write lock of the database during the block."""
    is_locked, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with database.transaction() as t:
            t.connection.execute("CREATE TABLE IF NOT EXISTS slow (id INTEGER PRIMARY KEY)")
            is_locked.set()
            may_end.wait(DEADLINE * 2)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert is_locked.wait(DEADLINE)
        yield
    finally:
        may_end.set()
        holder.join()


def begin_timer(database: Database) -> None:
    with database.transaction() as t:
        t.begin_conversation_timer(t.begin_dialog(SHOP, "//Nowhere"), 1)


def test_a_locked_database_does_not_delay_the_others(tmp_path: Path) -> None:
    """Neither its messages nor its timers; the lock timeout is longer than the test waits."""
    with Instance.create(tmp_path / "instance", name="shop", lock_timeout=DEADLINE * 10) as instance:
        sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
        dialog = send(sales, b"one")
        with stock.transaction() as t:
            t.begin_conversation_timer(t.receive(ORDERS)["conversation_handle"][0].as_py(), 1)
        with locked(stock):
            send(sales, b"two", dialog=dialog)
            begin_timer(sales)
            with sales.transaction() as t:
                assert t.receive(REPLIES, timeout=DEADLINE)["message_type_name"].to_pylist() == [DIALOG_TIMER]
            assert statuses(sales) == {""}
        assert sorted(body or b"" for body in wait_for_orders(stock, 2)) == [b"", b"two"]


def test_a_long_lock_never_delays_the_others_by_much(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Even after many failed attempts, when the messages have a status and the log contains the reason for the late timer."""
    with Instance.create(tmp_path / "instance", name="shop", lock_timeout=4.0) as instance:
        sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
        dialog = send(sales, b"one")
        with stock.transaction() as t:
            t.begin_conversation_timer(t.receive(ORDERS)["conversation_handle"][0].as_py(), 1)
        with locked(stock), caplog.at_level(logging.WARNING, "ssbroker"):
            send(sales, b"two", dialog=dialog)
            deadline = time.monotonic() + DEADLINE
            while statuses(sales) != {"9749"} or "Stock: timers and lifetimes" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            late = []
            for _ in range(2):
                begin_timer(sales)
                due = time.monotonic() + 1
                with sales.transaction() as t:
                    assert t.receive(REPLIES, timeout=DEADLINE).num_rows
                late.append(time.monotonic() - due)
        assert max(late) < 3.0, late  # with a wait of `lock_timeout` for each attempt, it is more than 4 s
        assert sorted(body or b"" for body in wait_for_orders(stock, 2)) == [b"", b"two"]


def test_a_commit_that_waits_does_not_delay_the_other_databases(tmp_path: Path) -> None:
    """The committing thread has delivered its message, and waits to remove it from its own transmission queue."""
    with Instance.create(tmp_path / "instance", name="shop", lock_timeout=DEADLINE * 10) as instance:
        sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
        other = sample_databases.shop(instance, "Other")
        write_lock = database_context(sales).file.write_lock
        is_sent = threading.Event()

        def send_before_another() -> None:
            with sales.transaction() as t:
                t.send(t.begin_dialog(SHOP, STOCK), b"one")
                is_sent.set()
                while not write_lock.waiting:
                    time.sleep(0.01)

        sender = threading.Thread(target=send_before_another)
        sender.start()
        assert is_sent.wait(DEADLINE)
        with locked(sales):
            assert wait_for_orders(stock, 1) == [b"one"]
            for _ in range(2):  # the thread delivers after it has fired timers
                begin_timer(other)
                with other.transaction() as t:
                    assert t.receive(REPLIES, timeout=DEADLINE).num_rows
            assert sender.is_alive()
        sender.join()
        assert waiting(sales) == []


@contextmanager
def opened_while_sales_is_locked(folder: Path, *, to: str) -> Iterator[Instance]:
    """An instance whose background thread finds a message that the locked database `Sales` has to send."""
    with Instance.create(folder, name="shop", background=False) as creator:
        sales, _ = sample_databases.shop(creator), sample_databases.stock(creator)
        other = sample_databases.shop(creator, "Other")
        sales.create_route("Stock", service_name=STOCK, address="LOCAL")
        sales.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        with other.transaction() as t:  # a thread that is in a transaction delivers nothing
            t.connection.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY)")
            send(sales, b"one", to=to)
        with locked(sales), Instance.open(folder, lock_timeout=DEADLINE * 10) as instance:
            yield instance


def check_that_timers_fire(database: Database) -> None:
    """Two timers, because the thread delivers after it has fired timers."""
    for _ in range(2):
        begin_timer(database)
        with database.transaction() as t:
            assert t.receive(REPLIES, timeout=DEADLINE).num_rows


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_acknowledgement_for_a_locked_database_does_not_delay_the_others(tmp_path: Path) -> None:
    """The background thread has delivered the message, and waits to remove it from the transmission queue of its sender."""
    with opened_while_sales_is_locked(tmp_path / "instance", to=STOCK) as instance:
        assert wait_for_orders(instance.database("Stock"), 1) == [b"one"]
        check_that_timers_fire(instance.database("Other"))
        send(instance.database("Other"), b"two")
        assert wait_for_orders(instance.database("Stock"), 1) == [b"two"]
        assert len(waiting(instance.database("Sales"))) == 1
    with Instance.open(tmp_path / "instance") as instance:
        wait_until(lambda: not waiting(instance.database("Sales")))


def test_the_status_of_a_message_in_a_locked_database_does_not_delay_the_others(tmp_path: Path) -> None:
    with opened_while_sales_is_locked(tmp_path / "instance", to="//Nowhere") as instance:
        check_that_timers_fire(instance.database("Other"))
        send(instance.database("Other"), b"two")
        assert wait_for_orders(instance.database("Stock"), 1) == [b"two"]
        assert statuses(instance.database("Sales")) == {""}


def test_a_status_and_a_route_request_are_written_after_the_lock(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "instance", name="shop", lock_timeout=DEADLINE * 10) as instance:
        sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
        sales.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        with ExitStack() as stack:
            with stock.transaction() as t:  # a thread that is in a transaction delivers nothing
                t.connection.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY)")
                send(sales, b"one", to="//Nowhere")
                stack.enter_context(locked(sales))
            check_that_timers_fire(sample_databases.shop(instance, "Other"))
            assert statuses(sales) == {""}
        wait_until(lambda: "9770" in statuses(sales))


def test_a_contended_database_gets_its_messages(tmp_path: Path) -> None:
    """The writers of a process take turns, so a thread that always gave up early would never get the lock."""
    with Instance.create(tmp_path / "instance", name="shop") as instance:
        sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
        is_over = threading.Event()

        def write() -> None:
            while not is_over.is_set():
                with stock.transaction() as t:
                    t.connection.execute("CREATE TABLE IF NOT EXISTS chairs (id INTEGER PRIMARY KEY)")
                    time.sleep(0.1)

        writers = [
            threading.Thread(target=write) for _ in range(6)
        ]  # each waits longer for its turn than the background thread does at first
        for each in writers:
            each.start()
        try:
            for body in (b"one", b"two"):
                send(sales, body)
                assert wait_for_orders(stock, 1) == [body]
            assert waiting(sales) == []
        finally:
            is_over.set()
            for each in writers:
                each.join()


def wait_for_orders(stock: Database, count: int) -> list[bytes | None]:
    """Receives this number of messages."""
    bodies: list[bytes | None] = []
    while len(bodies) < count:
        with stock.transaction() as t:
            table = t.receive(ORDERS, timeout=DEADLINE)
        assert table.num_rows
        bodies += table["message_body"].to_pylist()
    return bodies
