"""Concurrent readers, each in its own thread. The clock does not advance, so nothing is delayed."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.protocol.events import ActivationEvent, ActivationStep, Event
from tests.broker import sample_databases
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, send

TIMEOUT = 30.0


class Counter:
    """Counts the messages of readers, each of which takes one message and then waits."""

    def __init__(self, expected: int) -> None:
        self.gate = threading.Event()
        self.all_received = threading.Event()
        self._received = threading.Semaphore(0)
        self._left = iter(range(expected - 1, -1, -1))

    def read(self, database: Database) -> None:
        with database.transaction() as t:
            bodies = t.receive(ORDERS, top=1)["message_body"].to_pylist()
        for _ in bodies:
            self._received.release()
            if next(self._left, 0) == 0:
                self.all_received.set()
        self.gate.wait(TIMEOUT)

    def wait_for(self, messages: int) -> None:
        for _ in range(messages):
            assert self._received.acquire(timeout=TIMEOUT)


@pytest.fixture
def instance(tmp_path: Path, clock: Clock) -> Iterator[Instance]:
    """An instance with threads."""
    with Instance.create(tmp_path / "shop", name="shop", clock=clock) as made:
        yield made


def running() -> int:
    """Returns the number of readers with a thread; it is started before the commit that needs it returns."""
    return sum(thread.name.startswith("ssbroker reader") for thread in threading.enumerate())


def test_readers_that_take_one_message_run_concurrently(instance: Instance) -> None:
    """The first reader ends while the second starts; this is not reported as 28087 and delays no further reader."""
    stock, sales = sample_databases.stock(instance), sample_databases.shop(instance)
    numbers, second_runs, first_ended = itertools.count(), threading.Event(), threading.Event()
    counter = Counter(expected=6)
    counter.gate.set()
    texts: list[str] = []

    def read(database: Database) -> None:
        if (number := next(numbers)) == 1:
            second_runs.set()
            assert first_ended.wait(TIMEOUT)
        counter.read(database)
        if number == 0:
            assert second_runs.wait(TIMEOUT)

    def record(event: Event) -> None:
        if isinstance(event, ActivationEvent) and event.step is not ActivationStep.STARTED:
            texts.append(event.text)
            first_ended.set()

    instance.subscribe(record, ActivationEvent)
    for number in range(6):
        send(sales, b"%d" % number)
    stock.activate(ORDERS, read, max_queue_readers=2)
    assert counter.all_received.wait(TIMEOUT)
    assert set(texts) == {""}


def test_a_reader_that_calls_sys_exit_is_restarted_immediately(instance: Instance) -> None:
    """It is not delayed until the next check, five seconds later."""
    stock, sales = sample_databases.stock(instance), sample_databases.shop(instance)
    counter = Counter(expected=12)
    counter.gate.set()

    def read(database: Database) -> None:
        counter.read(database)
        sys.exit(1)

    for number in range(12):
        send(sales, b"%d" % number)
    stock.activate(ORDERS, read)
    assert counter.all_received.wait(TIMEOUT)


def lower_limit(instance: Instance, _stock: Database, _counter: Counter) -> None:
    instance.execute("USE Stock; ALTER QUEUE Orders WITH ACTIVATION (MAX_QUEUE_READERS = 1);")


def turn_off_and_on(instance: Instance, _stock: Database, _counter: Counter) -> None:
    instance.execute("USE Stock; ALTER QUEUE Orders WITH ACTIVATION (STATUS = OFF);")
    instance.execute("USE Stock; ALTER QUEUE Orders WITH ACTIVATION (STATUS = ON);")


def register_again(instance: Instance, _stock: Database, counter: Counter) -> None:
    def read(database: Database) -> None:
        counter.read(database)

    instance.register_procedure("dbo.read", read)


def activate(_instance: Instance, stock: Database, counter: Counter) -> None:
    stock.activate(ORDERS, counter.read, max_queue_readers=2)


def activate_twice(_instance: Instance, stock: Database, counter: Counter) -> None:
    stock.activate(ORDERS, counter.read, max_queue_readers=2)
    stock.deactivate(ORDERS)
    stock.activate(ORDERS, counter.read, max_queue_readers=2)


@pytest.mark.parametrize("change", [lower_limit, turn_off_and_on, register_again, activate, activate_twice])
def test_no_more_readers_run_than_allowed(
    instance: Instance, change: Callable[[Instance, Database, Counter], None]
) -> None:
    """Running readers count until they end; MAX_QUEUE_READERS = 1 guarantees a single reader."""
    stock, sales = sample_databases.stock(instance), sample_databases.shop(instance)
    counter = Counter(expected=8)
    instance.register_procedure("dbo.read", counter.read)
    stock.alter_queue(ORDERS, activation=True, procedure="dbo.read", max_queue_readers=2)
    for number in range(4):
        send(sales, b"%d" % number)
    counter.wait_for(2)
    change(instance, stock, counter)
    for number in range(4):
        send(sales, b"%d" % number)
    assert running() == 2
    counter.gate.set()
    assert counter.all_received.wait(TIMEOUT)
