"""Under load, rows to send are collected for a short delay."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.broker.network import outbound
from ssbroker.broker.network.database_dialogs import DatabaseDialogs
from ssbroker.broker.network.instance_server import Server
from ssbroker.broker.network.outbound import (
    ARRIVING_SHARE_MIN,
    BATCH_BYTES,
    BATCH_ROWS,
    DELAY_FACTOR_MAX,
    DELAY_MAX,
    DELAY_MIN,
    SendDelay,
)
from tests.broker import sample_databases
from tests.broker.network.shop_and_bank import shop_and_bank_pair
from tests.broker.sample_databases import ORDERS, SHOP, STOCK

DEADLINE = 60.0


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def served(folder: Path) -> Iterator[tuple[Database, Database, Server, uuid.UUID]]:
    """Serves a shop and a bank; yields both databases, the shop's server and an established dialog."""
    with ExitStack() as stack:
        shop, bank = (stack.enter_context(Instance.create(folder / name, name=name)) for name in ("shop", "bank"))
        sales, stock = sample_databases.shop(shop), sample_databases.stock(bank)
        servers = [stack.enter_context(each.serve(port=0, allow_unencrypted=True)) for each in (shop, bank)]
        sales.create_route("There", address=servers[1].address, service_name=STOCK)
        stock.create_route("Back", address=servers[0].address, service_name=SHOP)
        with sales.transaction() as t:
            dialog = t.begin_dialog(SHOP, STOCK, encryption=False)
        for body in (b"first", b"after a batch"):
            with sales.transaction() as t:
                t.send(dialog, body)
            with stock.transaction() as t:
                assert t.receive(ORDERS, timeout=DEADLINE).num_rows == 1
        yield sales, stock, servers[0], dialog


@pytest.mark.parametrize(
    ("seconds", "rows", "size", "expected"),
    [
        (0.0, BATCH_ROWS, 0, 0.0),
        (0.9 * DELAY_MIN / 2, BATCH_ROWS, 0, 0.0),
        (0.002, BATCH_ROWS, 0, 2 * 0.002),
        (0.002, 0, BATCH_BYTES, 2 * 0.002),
        (0.002, BATCH_ROWS // 2, 100, 1.5 * 0.002),
        (0.002, BATCH_ROWS // 3, BATCH_BYTES // 3, 0.0),
        (0.002, 10 * BATCH_ROWS, 0, DELAY_FACTOR_MAX * 0.002),
        (10.0, BATCH_ROWS, 0, DELAY_MAX),
    ],
)
def test_the_more_was_sent_the_longer_is_the_delay(seconds: float, rows: int, size: int, expected: float) -> None:
    clock = Clock()
    delay = SendDelay(clock=clock)
    assert delay.remaining == 0.0
    delay.start(seconds, rows=rows, size=size)
    clock.now += seconds
    delay.start(seconds, rows=rows, size=size)
    assert delay.remaining == pytest.approx(expected)
    clock.now += expected / 2
    assert delay.remaining == pytest.approx(expected / 2)
    clock.now += expected
    assert delay.remaining == 0.0


@pytest.mark.parametrize("load", [0.25, 0.5, 0.9, 1.1, 2.0])
def test_there_is_no_delay_unless_much_arrives_while_a_batch_is_sent(load: float) -> None:
    """Whether or not earlier batches were delayed, a load that needs no delay never stays delayed."""
    clock = Clock()
    for first_delay in (0.0, DELAY_MAX):
        gathers_for = first_delay
        delay = SendDelay(clock=clock)
        rows_per_second = load * ARRIVING_SHARE_MIN * BATCH_ROWS / 0.002
        for _ in range(20):
            rows = int(rows_per_second * (0.002 + gathers_for))
            clock.now += gathers_for + 0.002
            delay.start(0.002, rows=rows, size=0)
            gathers_for = delay.remaining
        assert (delay.remaining > 0.0) == (load >= 1.0)


def test_a_batch_after_a_pause_starts_no_delay() -> None:
    clock = Clock()
    delay = SendDelay(clock=clock)
    for _ in range(2):
        delay.start(0.01, rows=BATCH_ROWS, size=0)
        assert delay.remaining == 0.0
        clock.now += 1.0


def test_a_cancelled_delay_has_ended() -> None:
    delay = SendDelay(clock=Clock())
    for _ in range(2):
        delay.start(1.0, rows=BATCH_ROWS, size=0)
    assert delay.remaining > 0.0
    delay.cancel()
    assert delay.remaining == 0.0


def test_without_a_thread_rows_are_sent_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread, nothing would send them after the delay."""
    monkeypatch.setattr(outbound, "BATCH_ROWS", 1e-9)
    monkeypatch.setattr(
        outbound, "SendDelay", lambda: SendDelay(clock=iter(float(second) for second in range(10**6)).__next__)
    )
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        for number in range(5):
            shop_and_bank.send(b"%d" % number)
            shop_and_bank.network.settle()
            assert shop_and_bank.receive_orders() == [b"%d" % number]


def test_messages_committed_during_the_delay_are_sent_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a delay of 0.1 s, many commits share a batch."""
    monkeypatch.setattr(outbound, "BATCH_ROWS", 1e-9)
    monkeypatch.setattr(outbound, "DELAY_FACTOR_MAX", 10**6)
    monkeypatch.setattr(outbound, "DELAY_MAX", 0.1)
    batches: list[int] = []
    data_to_send = DatabaseDialogs.data_to_send

    def counted(dialogs: DatabaseDialogs, *, now: int) -> Any:
        found = data_to_send(dialogs, now=now)
        if found and dialogs.database.instance.name == "shop":
            batches.append(sum(each.rows.num_rows for each in found))
        return found

    monkeypatch.setattr(DatabaseDialogs, "data_to_send", counted)
    with served(tmp_path) as (sales, stock, _, dialog):
        batches.clear()
        sent = [b"%d" % number for number in range(200)]
        for body in sent:
            with sales.transaction() as t:
                t.send(dialog, body)
        found: list[bytes | None] = []
        while len(found) < len(sent):
            with stock.transaction() as t:
                table: pa.Table = t.receive(ORDERS, timeout=DEADLINE)
            assert table.num_rows
            found += table["message_body"].to_pylist()
    assert found == sent
    assert len(batches) < len(sent) / 4


def test_a_closing_server_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collected rows are sent before GOODBYE."""
    monkeypatch.setattr(outbound, "BATCH_ROWS", 1e-9)
    monkeypatch.setattr(outbound, "DELAY_FACTOR_MAX", 10**6)
    monkeypatch.setattr(outbound, "DELAY_MAX", 3600.0)
    with served(tmp_path) as (sales, stock, server, dialog):
        with sales.transaction() as t:
            t.send(dialog, b"second")
        with stock.transaction() as t:
            assert t.receive(ORDERS, timeout=0.3).num_rows == 0
        server.close()
        with stock.transaction() as t:
            assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"second"]
