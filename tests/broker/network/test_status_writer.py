"""`transmission_status` of conversations whose peer connects and disconnects is correct, and costs a small part of the time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker import delivery
from ssbroker.broker.network import outbound
from ssbroker.broker.network.interfaces import Peer
from ssbroker.exceptions import StorageError
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import STOCK, statuses, waiting

BANK = "TCP://bank:4022"
PEER = Peer(bytes(16), "bank", None, BANK, uuid.UUID(int=1), False)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
    """Five conversations that the bank does not acknowledge."""
    for made in shop_and_bank_pair(tmp_path):
        made.pipes.swallows.add(BANK)
        for number in range(5):
            made.send(b"%d" % number)
        made.pipes.settle()
        yield made


@pytest.fixture
def written(both: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many conversations was written, each time; that takes 50 ms."""
    counts: list[int] = []
    note = delivery.write_statuses

    def counted(database: Any, senders: Mapping[int, Any], says: Mapping[int, str], **options: Any) -> None:
        counts.append(len(says))
        both.pipes.clock.advance(seconds=0.05)
        note(database, senders, says, **options)

    monkeypatch.setattr(delivery, "write_statuses", counted)
    return counts


def breaks(both: ShopAndBank) -> None:
    both.pipes.pipe("shop").receiver.connection_failed(BANK, "connection refused")
    both.pipes.servers["shop"].exchange.turn()


def stands(both: ShopAndBank) -> None:
    both.pipes.settle()


def test_the_loss_and_return_of_a_peer_are_written_immediately(both: ShopAndBank, written: list[int]) -> None:
    breaks(both)
    assert statuses(both.sales) == {"9754"}
    both.pipes.clock.advance(seconds=1)
    stands(both)
    assert statuses(both.sales) == {""}
    assert written == [5, 5]


def test_writes_for_an_unstable_peer_take_a_twentieth_of_the_time(both: ShopAndBank, written: list[int]) -> None:
    for _ in range(100):
        breaks(both)
        both.pipes.clock.advance(seconds=0.05)
        both.pipes.pipe("shop").receiver.connected(BANK, PEER)
        both.pipes.servers["shop"].exchange.turn()
        both.pipes.clock.advance(seconds=0.05)
    assert 5 <= len(written) <= 12
    breaks(both)
    both.pipes.clock.advance(seconds=1)
    both.pipes.servers["shop"].exchange.turn()
    assert statuses(both.sales) == {"9754"}


def test_only_some_of_many_conversations_are_written_per_turn(
    both: ShopAndBank, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "UPDATES_MAX", 2)
    breaks(both)
    assert statuses(both.sales) == {"", "9754"}
    for _ in range(2):
        due = both.pipes.servers["shop"].exchange.turn()
        assert due > 0
        both.pipes.clock.advance(seconds=1)
        both.pipes.servers["shop"].exchange.turn()
    assert statuses(both.sales) == {"9754"}
    assert written == [2, 2, 1]


def test_failed_writes_are_repeated_later(both: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object, **_options: object) -> None:
        raise StorageError("the disk is out of reach", file="Sales.sqlite")

    with monkeypatch.context() as patched:
        patched.setattr(delivery, "write_statuses", fails)
        breaks(both)
    assert statuses(both.sales) == {""}
    both.pipes.clock.advance(seconds=1)
    both.pipes.servers["shop"].exchange.turn()
    assert statuses(both.sales) == {"9754"}


@pytest.mark.rule("R53", "R54")
def test_the_status_of_a_mirrored_route_is_that_of_the_principal(tmp_path: Path) -> None:
    """Where messages were sent, and as soon as nobody is the principal that they wait for one."""
    for both in shop_and_bank_pair(tmp_path):
        guid = both.stock.service_broker_guid
        both.sales.drop_route("There")
        both.sales.create_route(
            "There", service_name=STOCK, broker_instance=guid, address="TCP://nobody:4022", mirror_address=BANK
        )
        both.pipes.swallows.add(BANK)
        both.send(b"two chairs")
        for _ in range(3):
            both.pipes.settle(seconds=5)
            both.shop.run_due(both.pipes.clock())
        (status,) = [row.transmission_status for row in waiting(both.sales)]
        assert status.startswith(f"9753: sent to {BANK}, ")
        both.pipes.down.add(BANK)
        breaks(both)
        both.pipes.settle()
        assert statuses(both.sales) == {"9787"}
        both.pipes.down.clear()
        both.pipes.settle(seconds=20)
        assert statuses(both.sales) == {""}
