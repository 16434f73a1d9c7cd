"""`transmission_status` stays correct, at a limited cost, while a peer connects and disconnects."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker import delivery
from ssbroker.broker.network import conversations_in_transit
from ssbroker.broker.network.interfaces import Peer
from ssbroker.exceptions import StorageError
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import STOCK, statuses, waiting

BANK = "TCP://bank:4022"
PEER = Peer(bytes(16), "bank", None, BANK, uuid.UUID(int=1), False)


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    """Five conversations that the bank does not acknowledge."""
    for made in shop_and_bank_pair(tmp_path):
        made.network.lossy.add(BANK)
        for number in range(5):
            made.send(b"%d" % number)
        made.network.settle()
        yield made


@pytest.fixture
def written(shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of conversations in each write; a write takes 50 ms."""
    counts: list[int] = []
    write_statuses = delivery.write_statuses

    def counted(database: Any, senders: Mapping[int, Any], texts: Mapping[int, str], **options: Any) -> bool:
        counts.append(len(texts))
        shop_and_bank.network.clock.advance(seconds=0.05)
        return write_statuses(database, senders, texts, **options)

    monkeypatch.setattr(conversations_in_transit, "write_statuses", counted)
    return counts


def fail_connection(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.network.pipe("shop").receiver.connection_failed(BANK, "connection refused")
    shop_and_bank.network.servers["shop"].exchange.turn()


def settle_all(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.network.settle()


def test_the_loss_and_return_of_a_peer_are_written_immediately(shop_and_bank: ShopAndBank, written: list[int]) -> None:
    fail_connection(shop_and_bank)
    assert statuses(shop_and_bank.sales) == {"9754"}
    shop_and_bank.network.clock.advance(seconds=1)
    settle_all(shop_and_bank)
    assert statuses(shop_and_bank.sales) == {""}
    assert written == [5, 5]


def test_writes_for_an_unstable_peer_take_a_twentieth_of_the_time(
    shop_and_bank: ShopAndBank, written: list[int]
) -> None:
    for _ in range(100):
        fail_connection(shop_and_bank)
        shop_and_bank.network.clock.advance(seconds=0.05)
        shop_and_bank.network.pipe("shop").receiver.connected(BANK, PEER)
        shop_and_bank.network.servers["shop"].exchange.turn()
        shop_and_bank.network.clock.advance(seconds=0.05)
    assert 5 <= len(written) <= 12
    fail_connection(shop_and_bank)
    shop_and_bank.network.clock.advance(seconds=1)
    shop_and_bank.network.servers["shop"].exchange.turn()
    assert statuses(shop_and_bank.sales) == {"9754"}


def test_a_clock_that_is_set_forward_during_a_write_stops_no_later_writes(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write appears to take an hour."""
    write_statuses = delivery.write_statuses

    def sets_the_clock(*given: Any, **options: Any) -> bool:
        shop_and_bank.network.clock.advance(seconds=3600)
        return write_statuses(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(conversations_in_transit, "write_statuses", sets_the_clock)
        fail_connection(shop_and_bank)
    assert statuses(shop_and_bank.sales) == {"9754"}
    shop_and_bank.network.pipe("shop").receiver.connected(BANK, PEER)
    shop_and_bank.network.clock.advance(seconds=60)
    shop_and_bank.network.servers["shop"].exchange.turn()
    assert statuses(shop_and_bank.sales) != {"9754"}


def test_only_some_of_many_conversations_are_written_per_turn(
    shop_and_bank: ShopAndBank, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations_in_transit, "UPDATES_MAX", 2)
    fail_connection(shop_and_bank)
    assert statuses(shop_and_bank.sales) == {"", "9754"}
    for _ in range(2):
        due = shop_and_bank.network.servers["shop"].exchange.turn()
        assert due > 0
        shop_and_bank.network.clock.advance(seconds=1)
        shop_and_bank.network.servers["shop"].exchange.turn()
    assert statuses(shop_and_bank.sales) == {"9754"}
    assert written == [2, 2, 1]


def test_failed_writes_are_repeated_later(shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object, **_options: object) -> None:
        raise StorageError("the disk is out of reach", file="Sales.sqlite")

    with monkeypatch.context() as patched:
        patched.setattr(conversations_in_transit, "write_statuses", fails)
        fail_connection(shop_and_bank)
    assert statuses(shop_and_bank.sales) == {""}
    shop_and_bank.network.clock.advance(seconds=1)
    shop_and_bank.network.servers["shop"].exchange.turn()
    assert statuses(shop_and_bank.sales) == {"9754"}


@pytest.mark.rule("R53", "R54")
def test_the_status_of_a_mirrored_route_is_that_of_the_principal(tmp_path: Path) -> None:
    """The address of the principal; without a principal, the status is that the messages wait for one."""
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        guid = shop_and_bank.stock.service_broker_guid
        shop_and_bank.sales.drop_route("There")
        shop_and_bank.sales.create_route(
            "There", service_name=STOCK, broker_instance=guid, address="TCP://nobody:4022", mirror_address=BANK
        )
        shop_and_bank.network.lossy.add(BANK)
        shop_and_bank.send(b"two chairs")
        for _ in range(3):
            shop_and_bank.network.settle(seconds=5)
            shop_and_bank.shop.run_due(shop_and_bank.network.clock())
        (status,) = [row.transmission_status for row in waiting(shop_and_bank.sales)]
        assert status.startswith(f"9753: sent to {BANK}, ")
        shop_and_bank.network.down.add(BANK)
        fail_connection(shop_and_bank)
        shop_and_bank.network.settle()
        assert statuses(shop_and_bank.sales) == {"9787"}
        shop_and_bank.network.down.clear()
        shop_and_bank.network.settle(seconds=20)
        assert statuses(shop_and_bank.sales) == {""}
