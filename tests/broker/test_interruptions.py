"""An exception that a signal handler raises, such as Ctrl-C, leaves no lock, connection or lease behind, whatever it interrupts."""

from __future__ import annotations

import gc
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw
import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.work_queue import WorkQueue
from tests.broker import sample_databases
from tests.broker.conftest import INITIATOR, QUEUE, TARGET, Clock
from tests.broker.sample_databases import received, send, waiting
from tests.interruption import fast_collections, interruptions

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deleted before it ended:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of a generator that ends early
]
CONNECTIONS_MAX: Final = 4
DEADLINE: Final = 60.0


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in a RAM disk, if there is one: thousands of commits follow."""
    ram_disk = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=ram_disk if ram_disk.is_dir() else None) as folder:
        yield Path(folder)


class Shop:
    """A database with a dialog, a work queue and a table of the application."""

    def __init__(self, sales: Database, dialog: uuid.UUID, other: apsw.Connection) -> None:
        self.sales: Final = sales
        self.jobs: Final[WorkQueue] = sales.queue("Jobs")
        self._dialog: Final = dialog
        self._context: Final = database_context(sales)
        self._other: Final = other
        self.kept: apsw.Connection | None = None
        self._insert("CREATE TABLE invoices (number)")

    def send(self) -> None:
        with self.sales.transaction() as t:
            t.send(self._dialog, b"two chairs")

    def receive(self) -> None:
        with self.sales.transaction() as t:
            t.receive(QUEUE)

    def wait_and_receive(self) -> None:
        with self.sales.transaction() as t:
            t.receive("Replies", timeout=0.001)

    def insert(self) -> None:
        with self.sales.transaction() as t:
            self.kept = t.connection
            self.kept.execute("INSERT INTO invoices VALUES (1)")
            t.send(t.begin_dialog(INITIATOR, TARGET), b"an invoice")

    def fail(self) -> None:
        with pytest.raises(KeyError), self.sales.transaction() as t:
            t.connection.execute("INSERT INTO invoices VALUES (1)")
            raise KeyError

    def read(self) -> None:
        with self.sales.read() as connection:
            connection.execute("SELECT number FROM invoices").fetchall()
            self.kept = connection

    def put(self) -> None:
        self.jobs.put(b"two chairs")

    def count(self) -> None:
        self.jobs.count()

    def take(self) -> None:
        with self.jobs.take(timeout=0):
            pass

    def take_in_transaction(self) -> None:
        with self.jobs.take(timeout=0) as job, job.transaction() as t:
            t.connection.execute("INSERT INTO invoices VALUES (1)")

    def check(self) -> None:
        """Checks that everything was released, and can be used."""
        gc.collect()
        file = self._context.file
        lock = file.write_lock
        assert (lock.holder, lock.waiting, lock.connection_in_use()) == (None, 0, None)
        assert file.connections.users == set()
        assert self._context.holders_in_transactions == {}
        assert not self._context.instance.waiting_jobs
        self._other.execute("BEGIN IMMEDIATE; ROLLBACK")
        self.put()
        with self.sales.transaction() as t:
            t.send(self._dialog, b"a table")
            t.receive(QUEUE)
        self._insert("INSERT INTO invoices VALUES (2)")
        self.read()
        assert len(file.connections._connections()) <= CONNECTIONS_MAX

    def leased(self) -> int:
        """Returns the number of leases that hide messages."""
        return int(self._other.execute("SELECT count(*) FROM ssb_group_leases WHERE until > 0").get)

    def _insert(self, sql: str) -> None:
        with self.sales.transaction() as t:
            t.connection.execute(sql)


@pytest.fixture
def shop(established_dialog: tuple[Database, uuid.UUID]) -> Iterator[Shop]:
    sales, dialog = established_dialog
    with fast_collections(), closing(apsw.Connection(str(sales.path))) as other:
        yield Shop(sales, dialog, other)


@pytest.mark.parametrize(
    "call",
    [
        Shop.send,
        Shop.receive,
        Shop.wait_and_receive,
        Shop.insert,
        Shop.fail,
        Shop.read,
        Shop.put,
        Shop.count,
    ],
)
def test_an_interrupted_call_leaves_nothing_behind(shop: Shop, call: Callable[[Shop], None]) -> None:
    places = []
    for interruption in interruptions(lambda: call(shop)):
        places.append(interruption.where)
        shop.check()
    assert len(places) > 10


def test_another_thread_continues_an_interrupted_delivery(shop: Shop, instance: Instance, clock: Clock) -> None:
    """The interrupted commit delivers to another database."""

    def run_due() -> None:
        for _ in range(2):  # a scan leaves a running process time to deliver
            clock.advance(seconds=5)
            instance.run_due()

    stock = sample_databases.stock(instance)
    dialog = send(shop.sales, b"first")
    places = []
    for interruption in interruptions(lambda: send(shop.sales, b"two chairs", dialog=dialog)):
        places.append(interruption.where)
        thread = threading.Thread(target=run_due, daemon=True)
        thread.start()
        thread.join(DEADLINE)
        assert not thread.is_alive(), interruption.where
        assert waiting(shop.sales) == [], interruption.where
        shop.check()
    assert len(places) > 100
    assert set(received(stock)) == {b"first", b"two chairs"}


@pytest.mark.parametrize(("call", "exceptions"), [(Shop.take, ["Job.__exit__"]), (Shop.take_in_transaction, [])])
def test_an_interrupted_job_is_given_back(shop: Shop, call: Callable[[Shop], None], exceptions: list[str]) -> None:
    """Unless the interrupt comes as `__exit__` begins: then nothing gives the job back before its lease ends."""
    shop.put()
    leased = []
    for interruption in interruptions(lambda: call(shop)):
        shop.check()
        if shop.leased():
            leased.append(interruption.where)
        shop.jobs.clear()
        shop.put()
    assert [where[0] for where in leased if where is not None] == exceptions
