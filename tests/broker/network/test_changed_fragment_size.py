"""The fragment size of a conversation is stored in its file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.config import ProtocolSettings
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import received, waiting

BANK = "TCP://bank:4022"


@pytest.fixture
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


@pytest.mark.rule("P13", "P16")
def test_an_instance_served_with_another_size_continues(both: ShopAndBank) -> None:
    """Half of a message is there; so is the rest of it, and what follows, once."""
    both.send(b"first")
    both.pipes.settle()
    dialog = both.send(b"x" * 200_000, b"after it")
    both.pipes.settle()
    both.send(bytes(range(250)) * 4000, dialog=dialog)
    both.pipes.servers["shop"].exchange.turn()
    here = Peer(b"shop".ljust(16), "shop", "shop", "TCP://shop:4022", uuid.UUID(int=1), True)
    for rows in both.pipes.pipe("shop").outboxes[BANK]:
        both.pipes.pipe("bank").receiver.rows_received(here, rows.slice(0, rows.num_rows // 2))
    both.pipes.servers["bank"].exchange.turn()
    both.pipes.crash("shop")
    shop = both.pipes.instance("shop", settings=ProtocolSettings(max_fragment_bytes=9_999))
    sales = shop.database("Sales")
    with sales.transaction() as t:
        t.send(dialog, b"and more")
    both.pipes.settle(seconds=80)
    both.pipes.settle(seconds=80)
    bodies = [b"first", b"x" * 200_000, b"after it", bytes(range(250)) * 4000, b"and more"]
    assert received(both.stock) == bodies
    assert waiting(sales) == []


def test_waiting_messages_keep_their_fragment_size(both: ShopAndBank) -> None:
    both.pipes.down.add(BANK)
    storage = SqliteDialogStorage(database_context(both.sales))
    assert storage.set_fragment_bytes(100) == {}
    dialog = both.send(b"waits")
    ((key,),) = [storage.waiting()]
    assert storage.set_fragment_bytes(100) == {}
    assert SqliteDialogStorage(database_context(both.sales)).set_fragment_bytes(200) == {key: 100}
    assert storage.set_fragment_bytes(300) == {key: 100}
    assert storage.set_fragment_bytes(100) == {}
    assert storage.set_fragment_bytes(300) == {key: 100}
    with both.sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
    assert storage.set_fragment_bytes(200) == {}
