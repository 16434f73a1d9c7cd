"""Senders, readers and an administrator work concurrently; each message is read once (P16, P34)."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from tests.broker import sample_databases
from tests.broker.sample_databases import ORDERS, SHOP, STOCK, waiting

DEADLINE = 120.0
TRANSACTIONS = 60


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.create(tmp_path / "instance", name="shop") as made:
        yield made


class Ledger:
    """Committed sent and received messages."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: Counter[bytes] = Counter()
        self.read: Counter[bytes] = Counter()

    def record(self, counter: Counter[bytes], bodies: list[bytes]) -> None:
        with self.changed:
            counter.update(bodies)
            self.changed.notify_all()


def send_messages(database: Database, ledger: Ledger, *, seed: int) -> None:
    """Sends in new and existing conversations; some transactions are rolled back."""
    rng = random.Random(seed)
    known: list[uuid.UUID] = []
    for number in range(TRANSACTIONS):
        bodies = [b"%d %d %d" % (seed, number, count) for count in range(rng.randint(1, 5))]
        new_dialogs: list[uuid.UUID] = []
        is_rolled_back = rng.random() < 0.2
        with suppress(ZeroDivisionError), database.transaction() as t:
            for body in bodies:
                if not known or rng.random() < 0.2:
                    new_dialogs.append(t.begin_dialog(SHOP, STOCK))
                t.send(rng.choice([*known, *new_dialogs]), body)
            if is_rolled_back:
                raise ZeroDivisionError
        if not is_rolled_back:
            known += new_dialogs
            ledger.record(ledger.sent, bodies)


def reader(ledger: Ledger, *, seed: int) -> Callable[[Database], None]:
    """Reads until the queue is empty; some transactions are rolled back."""
    rng = random.Random(seed)

    def read_orders(database: Database) -> None:
        while True:
            with database.transaction() as t:
                orders = sample_databases.orders(t.receive(ORDERS, top=rng.choice([None, 1, 3])))
                if orders and rng.random() < 0.1:
                    raise ZeroDivisionError
            if not orders:
                return
            ledger.record(ledger.read, [body for _, body in orders])

    return read_orders


def switch(rng: random.Random, sales: Database, stock: Database) -> None:
    """Turns something off and on again."""
    what = rng.randrange(3)
    if what == 0:
        stock.alter_queue(ORDERS, status=False)
        stock.alter_queue(ORDERS, status=True)
    else:
        database = sales if what == 1 else stock
        database.set_broker("DISABLE_BROKER")
        database.set_broker("ENABLE_BROKER")


@pytest.mark.rule("P16")
@pytest.mark.parametrize("seed", [1, 2])
def test_every_message_is_read_once_while_objects_are_switched_off_and_on(instance: Instance, seed: int) -> None:
    sales = sample_databases.shop(instance)
    copies = [sample_databases.stock(instance, "Stock1"), sample_databases.stock(instance, "Stock2")]
    ledger, rng = Ledger(), random.Random(seed)
    for copy in copies:
        copy.alter_queue(ORDERS, poison_message_handling=False)
        copy.activate(ORDERS, reader(ledger, seed=seed), max_queue_readers=2)
    senders = [
        threading.Thread(target=send_messages, args=(sales, ledger), kwargs={"seed": seed * 10 + number})
        for number in range(2)
    ]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        switch(rng, sales, rng.choice(copies))
    for sender in senders:
        sender.join(DEADLINE)
    with ledger.changed:
        assert ledger.changed.wait_for(lambda: ledger.read.total() >= ledger.sent.total(), DEADLINE)
        assert ledger.read == ledger.sent
    deadline = time.monotonic() + DEADLINE
    while waiting(sales) and time.monotonic() < deadline:  # the last acknowledgements may still be in progress
        instance.run_due(datetime.now(UTC) + timedelta(minutes=2))
    assert waiting(sales) == []
