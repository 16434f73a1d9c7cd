"""Rows to send are collected while much is sent, and sent by themselves afterwards."""

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
from ssbroker.broker.network.outbound import DELAY_FACTOR, DELAY_MAX, DELAY_MIN, SendDelay
from ssbroker.broker.network.server import Server
from tests.broker import sample_databases
from tests.broker.network.shop_and_bank import shop_and_bank_pair
from tests.broker.sample_databases import ORDERS, SHOP, STOCK

DEADLINE = 60.0


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def served(folder: Path) -> Iterator[tuple[Database, Database, Server, uuid.UUID]]:
    """A shop that is served, a stock that is too, the shop's server, and a dialog between them that goes on."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(Instance.create(folder / name, name=name)) for name in ("shop", "bank"))
        sales, stock = sample_databases.shop(here), sample_databases.stock(there)
        servers = [stack.enter_context(each.serve(port=0, allow_unencrypted=True)) for each in (here, there)]
        sales.create_route("There", address=servers[1].address, service_name=STOCK)
        stock.create_route("Back", address=servers[0].address, service_name=SHOP)
        with sales.transaction() as t:
            dialog = t.begin_dialog(SHOP, STOCK, encryption=False)
            t.send(dialog, b"first")
        with stock.transaction() as t:
            assert t.receive(ORDERS, timeout=DEADLINE).num_rows == 1
        yield sales, stock, servers[0], dialog


@pytest.mark.parametrize(
    ("took", "left"),
    [
        (0.0, 0.0),
        (0.9 * DELAY_MIN / DELAY_FACTOR, 0.0),
        (0.002, DELAY_FACTOR * 0.002),
        (DELAY_MAX, DELAY_MAX),
        (10.0, DELAY_MAX),
    ],
)
def test_the_delay_is_three_times_the_duration_and_limited(took: float, left: float) -> None:
    clock = Clock()
    rest = SendDelay(clock=clock)
    assert rest.remaining == 0.0
    with rest.measure():
        clock.now += took
    assert rest.remaining == pytest.approx(left)
    clock.now += left / 2
    assert rest.remaining == pytest.approx(left / 2)
    clock.now += left
    assert rest.remaining == 0.0


def test_an_ended_delay_is_over() -> None:
    clock = Clock()
    rest = SendDelay(clock=clock)
    with rest.measure():
        clock.now += 1.0
    rest.cancel()
    assert rest.remaining == 0.0


def test_without_a_thread_rows_are_sent_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would call it when the wait is over."""
    monkeypatch.setattr(outbound, "DELAY_ROWS_MIN", 0)
    monkeypatch.setattr(
        outbound, "SendDelay", lambda: SendDelay(clock=iter(float(second) for second in range(10**6)).__next__)
    )
    for both in shop_and_bank_pair(tmp_path):
        for number in range(5):
            both.send(b"%d" % number)
            both.network.settle()
            assert both.ordered() == [b"%d" % number]


def test_messages_committed_during_the_delay_are_sent_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of each commit, and no more; with waits of a tenth of a second, more commits go together."""
    monkeypatch.setattr(outbound, "DELAY_ROWS_MIN", 1)
    monkeypatch.setattr("ssbroker.broker.network.outbound.DELAY_FACTOR", 10**6)
    monkeypatch.setattr("ssbroker.broker.network.outbound.DELAY_MAX", 0.1)
    batches: list[int] = []
    departures = DatabaseDialogs.data_to_send

    def counted(machine: DatabaseDialogs, *, now: int) -> Any:
        found = departures(machine, now=now)
        if found and machine.database.instance.name == "shop":
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
    """What gathers goes before the goodbye."""
    monkeypatch.setattr(outbound, "DELAY_ROWS_MIN", 1)
    monkeypatch.setattr("ssbroker.broker.network.outbound.DELAY_FACTOR", 10**6)
    monkeypatch.setattr("ssbroker.broker.network.outbound.DELAY_MAX", 3600.0)
    with served(tmp_path) as (sales, stock, server, dialog):
        with sales.transaction() as t:
            t.send(dialog, b"second")
        with stock.transaction() as t:
            assert t.receive(ORDERS, timeout=0.3).num_rows == 0
        server.close()
        with stock.transaction() as t:
            assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"second"]
