"""A database that an application has locked does not delay the messages of the other databases of the instance."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import instance_context
from ssbroker.broker.network.dialog_keys import EXCHANGE_LOCK_TIMEOUT
from ssbroker.broker.network.inbound import LOCK_PAUSE, InboundProcessor, InboundRows
from ssbroker.broker.network.interfaces import Peer
from ssbroker.exceptions import LockTimeoutError
from ssbroker.protocol.events import EventLog
from ssbroker.store.database_file import LOCK_TIMEOUT, DatabaseFile
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair


@dataclass(eq=False)
class Dialogs:
    """The dialogs of a database, which may be locked."""

    number: int
    is_locked: bool = False
    waits: list[float] = field(default_factory=list)
    received: list[int] = field(default_factory=list)

    @property
    def database(self) -> Any:
        return SimpleNamespace(database_id=self.number, name=str(self.number))

    def receive(self, rows: pa.Table, *, lock_timeout: float, **_: object) -> Any:
        self.waits.append(lock_timeout)
        if self.is_locked:
            raise LockTimeoutError("locked", file="a.sqlite")
        self.received += cast("list[int]", rows["number"].to_pylist())
        return SimpleNamespace(acknowledged={}, too_large=())

    def without_route(self, _keys: object) -> set[Any]:
        return set()


class Exchange:
    """An `InboundProcessor` that writes the rows of odd peers to the first database, and those of even peers to the second."""

    def __init__(self) -> None:
        self.locked, self.free = Dialogs(1, is_locked=True), Dialogs(2)
        router = SimpleNamespace(route=self._route)
        check = SimpleNamespace(
            start_round=lambda: None, check=lambda _peer, part, lock_timeout: (part.rows, {lock_timeout: None})
        )
        in_transit = SimpleNamespace(acknowledged=lambda *_, **__: None)
        parts: list[Any] = [None, router, check, in_transit]
        self.processor = InboundProcessor(*parts, events=EventLog())
        self.peers = [Peer(bytes([each]), "peer", str(each), str(each), uuid.UUID(int=each), True) for each in (1, 2)]

    def process(self, *numbers: int, now: int) -> list[int]:
        """Processes one row of each number, from alternating peers; returns the deferred ones."""
        batches = [(self.peers[(each + 1) % 2], pa.table({"number": [each]})) for each in numbers]
        deferred = self.processor.process(batches, now=now)
        return [int(number or 0) for _, rows in deferred for number in rows["number"].to_pylist()]

    def _route(self, peer: Peer, rows: pa.Table) -> list[InboundRows]:
        dialogs = cast("Any", self.locked if peer is self.peers[0] else self.free)
        return [InboundRows(dialogs, rows, [(b"", True)] * rows.num_rows, set())]


def test_a_call_waits_once_for_a_locked_database() -> None:
    exchange = Exchange()
    assert exchange.process(1, 2, 3, 4, 5, now=0) == [1, 3, 5], "in order, also those that were not tried"
    assert exchange.free.received == [2, 4]
    assert exchange.locked.waits == [EXCHANGE_LOCK_TIMEOUT]


def test_a_database_that_stays_locked_is_tried_again_after_a_pause() -> None:
    exchange = Exchange()
    times = (
        0,
        LOCK_PAUSE // 2,
        LOCK_PAUSE,
        LOCK_PAUSE + 1,
        LOCK_PAUSE // 3,
    )  # the last one after the clock was set back
    for now in times:
        assert exchange.process(1, 2, 3, now=now) == [1, 3]
    assert exchange.locked.waits == [EXCHANGE_LOCK_TIMEOUT] * 3
    assert exchange.free.received == [2] * 5


def test_a_database_is_waited_for_again_once_it_was_free() -> None:
    exchange = Exchange()
    assert exchange.process(1, now=0) == [1]
    exchange.locked.is_locked = False
    assert exchange.process(1, now=LOCK_PAUSE) == []
    exchange.locked.is_locked = True
    assert exchange.process(3, now=LOCK_PAUSE + 1) == [3]
    assert exchange.locked.waits == [EXCHANGE_LOCK_TIMEOUT] * 3


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


def test_a_database_that_is_locked_when_its_dialogs_are_created_delays_no_other(
    shop_and_bank: ShopAndBank, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process locks the file before the first turn; its dialogs are created once it is free."""
    other = shop_and_bank.shop.create_database("Other")
    shop_and_bank.network.settle(seconds=1)
    registry = shop_and_bank.network.servers["shop"].exchange._dialogs
    for dialogs in registry.all():
        dialogs.storage.set_fragment_bytes(9_999)
        registry.drop(dialogs)
    shop_and_bank.send(b"waits")
    path = database_context(shop_and_bank.sales).file.path
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        caplog.clear()
        started = time.monotonic()
        shop_and_bank.network.settle()
        assert time.monotonic() - started < LOCK_TIMEOUT / 2
        assert registry.by_name(other.name) is not None
        assert registry.by_name(shop_and_bank.sales.name) is None
        assert registry.has_failed
        assert not caplog.records, "a short lock is not reported"
        holder.execute("ROLLBACK")
    shop_and_bank.network.settle(seconds=1)
    assert registry.by_name(shop_and_bank.sales.name) is not None, "not only after the usual 10 s"
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.receive_orders() == [b"waits"]


def test_idle_dialogs_of_a_locked_database_are_written_later(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange does not wait for the lock timeout of the application, 10 s."""
    shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    shop_and_bank.answer(b"on their way")
    shop_and_bank.network.settle()
    waits: list[float | None] = []
    write: Callable[..., Any] = DatabaseFile.write

    def recorded(self: DatabaseFile, *, lock_timeout: float | None = None, is_durable: bool = True) -> Any:
        waits.append(lock_timeout)
        return write(self, lock_timeout=lock_timeout, is_durable=is_durable)

    exchange = shop_and_bank.network.servers["bank"].exchange
    (dialogs,) = [each for each in exchange._dialogs.all() if each.database.name == shop_and_bank.stock.name]
    loaded = len(dialogs.engine._cache.loaded)
    assert loaded
    monkeypatch.setattr(DatabaseFile, "write", recorded)
    later = instance_context(shop_and_bank.bank).microseconds() + 3600_000_000
    with shop_and_bank.stock.transaction() as t:
        t.connection.execute("CREATE TABLE slow (id INTEGER PRIMARY KEY)")
        exchange._flush(later)
    assert EXCHANGE_LOCK_TIMEOUT in waits
    assert None not in waits
    assert len(dialogs.engine._cache.loaded) == loaded
    exchange._flush(later)
    assert len(dialogs.engine._cache.loaded) == 0
