"""The fragment size of a conversation is stored in its file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.settings import ProtocolSettings
from tests.broker.network.engine_pair import senders_with_messages
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import received, waiting

BANK = "TCP://bank:4022"


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


@pytest.mark.rule("P13", "P16")
def test_an_instance_served_with_another_size_continues(shop_and_bank: ShopAndBank) -> None:
    """A half-received message is completed, and later messages arrive once."""
    shop_and_bank.send(b"first")
    shop_and_bank.network.settle()
    dialog = shop_and_bank.send(b"x" * 200_000, b"after it")
    shop_and_bank.network.settle()
    shop_and_bank.send(bytes(range(250)) * 4000, dialog=dialog)
    shop_and_bank.network.servers["shop"].exchange.turn()
    shop_peer = Peer(b"shop".ljust(16), "shop", "shop", "TCP://shop:4022", uuid.UUID(int=1), True)
    for rows in shop_and_bank.network.pipe("shop").outboxes[BANK]:
        shop_and_bank.network.pipe("bank").receiver.rows_received(shop_peer, rows.slice(0, rows.num_rows // 2))
    shop_and_bank.network.servers["bank"].exchange.turn()
    shop_and_bank.network.crash("shop")
    shop = shop_and_bank.network.instance("shop", settings=ProtocolSettings(max_fragment_bytes=9_999))
    sales = shop.database("Sales")
    with sales.transaction() as t:
        t.send(dialog, b"and more")
    shop_and_bank.network.settle(seconds=80)
    shop_and_bank.network.settle(seconds=80)
    bodies = [b"first", b"x" * 200_000, b"after it", bytes(range(250)) * 4000, b"and more"]
    assert received(shop_and_bank.stock) == bodies
    assert waiting(sales) == []


def test_waiting_messages_keep_their_fragment_size(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.network.down.add(BANK)
    storage = SqliteDialogStorage(database_context(shop_and_bank.sales))
    assert storage.set_fragment_bytes(100) == {}
    dialog = shop_and_bank.send(b"waits")
    (key,) = senders_with_messages(shop_and_bank.sales)
    assert storage.set_fragment_bytes(100) == {}
    assert SqliteDialogStorage(database_context(shop_and_bank.sales)).set_fragment_bytes(200) == {key: 100}
    assert storage.set_fragment_bytes(300) == {key: 100}
    assert storage.set_fragment_bytes(100) == {}
    assert storage.set_fragment_bytes(300) == {key: 100}
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
    assert storage.set_fragment_bytes(200) == {}
