"""A peer that sends many new exchange keys causes a limited number of RSA operations, and does not block the thread."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.network.interfaces import Peer
from ssbroker.broker.network.key_exchange import RSA_BURST, RSA_PER_SECOND, RSA_PER_TURN
from ssbroker.protocol.wire.frames import WIRE
from ssbroker.security.key_exchange import DialogCertificate, Direction, KeyOffers, parse_blob
from tests.broker.network.secured_pair import begin, plain, secured
from tests.broker.network.shop_and_bank import ShopAndBank
from tests.broker.sample_databases import SHOP, STOCK
from tests.security.shared_certificates import public

BANK = "TCP://bank:4022"


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With full security, which lets nobody but the shop send."""
    yield from secured(tmp_path)


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each key that is opened by RSA."""
    calls: list[None] = []
    unwrapped = DialogCertificate.unwrap

    def counted(self: DialogCertificate, wrapped: bytes) -> bytes | None:
        calls.append(None)
        return unwrapped(self, wrapped)

    monkeypatch.setattr(DialogCertificate, "unwrap", counted)
    return calls


def recorded(shop_and_bank: ShopAndBank) -> dict[str, Any]:
    """A first row, with a key that comes from nobody."""
    shop_and_bank.network.swallows.add(BANK)
    begin(shop_and_bank, b"nobody hears of it")
    shop_and_bank.network.settle()
    shop_and_bank.network.swallows.clear()
    (row,) = plain(shop_and_bank.network.pipe("shop").sent[-1][1])
    of = Direction(row["conversation_id"], True, SHOP, STOCK)
    now = epoch_microseconds(database_context(shop_and_bank.stock).now())
    return {**row, "key_exchange": KeyOffers().make_blob(bytes(32), of, receiver=public("Bank"), sender=None, now=now)}


def floods(shop_and_bank: ShopAndBank, row: dict[str, Any], principal: str, *, batches: int, rows: int) -> None:
    """Brings as many dialogs, each with a key of its own that nobody can open, over two connections in turns."""
    blob = parse_blob(row["key_exchange"])
    assert blob is not None
    for batch in range(batches):
        peer = Peer(bytes(16), principal, principal, f"TCP://{principal}:{batch % 2}", uuid.UUID(int=batch % 2), True)
        brought: list[dict[str, Any]] = []
        for number in range(batch * rows, (batch + 1) * rows):
            wrapped = bytes(1) + hashlib.shake_256(f"{principal} {number}".encode()).digest(len(blob.wrapped_key) - 1)
            forged = replace(blob, wrapped_key=wrapped)
            its_own = {"conversation_id": f"{number:8}{principal:8.8}".encode(), "key_exchange": forged.as_bytes}
            brought.append({**row, **its_own})
        shop_and_bank.network.pipe("bank").receiver.rows_received(peer, pa.Table.from_pylist(brought, schema=WIRE))


def test_new_keys_of_one_peer_cost_limited_time(shop_and_bank: ShopAndBank, paid: list[None]) -> None:
    """And the first dialog of another neighbour, which comes behind all of them in the same turn, begins."""
    floods(shop_and_bank, recorded(shop_and_bank), "mallory", batches=20, rows=100)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle()
    assert b"two chairs" in shop_and_bank.ordered()
    assert len(paid) <= RSA_BURST + 2, "the shop's key, and the bank's own for the way back"


def test_the_allowance_of_a_peer_recovers(shop_and_bank: ShopAndBank, paid: list[None]) -> None:
    row = recorded(shop_and_bank)
    floods(shop_and_bank, row, "mallory", batches=2, rows=100)
    shop_and_bank.network.turn()
    assert len(paid) == RSA_BURST
    shop_and_bank.network.clock.advance(seconds=1)
    floods(shop_and_bank, row, "mallory", batches=2, rows=100)
    shop_and_bank.network.turn()
    assert len(paid) == RSA_BURST + RSA_PER_SECOND


def test_new_keys_of_many_peers_cost_limited_time_in_one_turn(shop_and_bank: ShopAndBank, paid: list[None]) -> None:
    """What was left out of an honest one comes again when their buckets are empty."""
    row = recorded(shop_and_bank)
    for number in range(2 * RSA_PER_TURN // RSA_BURST):
        floods(shop_and_bank, row, f"mal{number}", batches=2, rows=RSA_BURST)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.servers["bank"].exchange.turn()
    assert len(paid) == RSA_PER_TURN
    shop_and_bank.network.settle(seconds=5)
    assert b"two chairs" in shop_and_bank.ordered()
