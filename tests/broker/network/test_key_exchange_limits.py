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
from ssbroker.broker.database import database_context
from ssbroker.broker.network.dialog_keys import RSA_BURST, RSA_PER_SECOND, RSA_PER_TURN
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.events import MessageUndeliverable
from ssbroker.protocol.wire.frames import WIRE
from ssbroker.security.key_exchange import DialogCertificate, Direction, KeyOffers, parse_blob
from tests.broker.network.secured_pair import begin, secured, to_rows
from tests.broker.network.shop_and_bank import ShopAndBank
from tests.broker.sample_databases import SHOP, STOCK
from tests.security.shared_certificates import public

BANK = "TCP://bank:4022"


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With full security: only the shop may send."""
    yield from secured(tmp_path)


@pytest.fixture
def rsa_calls(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list with one item for each key decrypted with RSA."""
    calls: list[None] = []
    unwrapped = DialogCertificate.unwrap

    def counted(self: DialogCertificate, wrapped: bytes) -> bytes | None:
        calls.append(None)
        return unwrapped(self, wrapped)

    monkeypatch.setattr(DialogCertificate, "unwrap", counted)
    return calls


def first_row(shop_and_bank: ShopAndBank) -> dict[str, Any]:
    """Returns the first row of a dialog, with an anonymous key."""
    shop_and_bank.network.lossy.add(BANK)
    begin(shop_and_bank, b"lost")
    shop_and_bank.network.settle()
    shop_and_bank.network.lossy.clear()
    (row,) = to_rows(shop_and_bank.network.pipe("shop").sent[-1][1])
    of = Direction(row["conversation_id"], True, SHOP, STOCK)
    now = epoch_microseconds(database_context(shop_and_bank.stock).now())
    return {**row, "key_exchange": KeyOffers().make_blob(bytes(32), of, receiver=public("Bank"), sender=None, now=now)}


def forged_row(row: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    """Returns the first row of another dialog, with an invalid key."""
    blob = parse_blob(row["key_exchange"])
    assert blob is not None
    wrapped = bytes(1) + hashlib.shake_256(f"{name} {number}".encode()).digest(len(blob.wrapped_key) - 1)
    forged = replace(blob, wrapped_key=wrapped)
    return {**row, "conversation_id": f"{number:8}{name:8.8}".encode(), "key_exchange": forged.as_bytes}


def flood(shop_and_bank: ShopAndBank, row: dict[str, Any], principal: str, *, batches: int, rows: int) -> None:
    """Delivers the first rows of many dialogs, each with its own invalid key, alternating between two connections."""
    for batch in range(batches):
        peer = Peer(bytes(16), principal, principal, f"TCP://{principal}:{batch % 2}", uuid.UUID(int=batch % 2), True)
        delivered = [forged_row(row, principal, number) for number in range(batch * rows, (batch + 1) * rows)]
        shop_and_bank.network.pipe("bank").receiver.rows_received(peer, pa.Table.from_pylist(delivered, schema=WIRE))


def test_new_keys_of_one_peer_cost_limited_time(shop_and_bank: ShopAndBank, rsa_calls: list[None]) -> None:
    """The first dialog of another peer, later in the same turn, is accepted."""
    flood(shop_and_bank, first_row(shop_and_bank), "mallory", batches=20, rows=100)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle()
    assert b"two chairs" in shop_and_bank.receive_orders()
    assert len(rsa_calls) <= RSA_BURST + 2, "the shop's key, and the bank's own for its direction"


def test_the_allowance_of_a_peer_recovers(shop_and_bank: ShopAndBank, rsa_calls: list[None]) -> None:
    row = first_row(shop_and_bank)
    flood(shop_and_bank, row, "mallory", batches=2, rows=100)
    shop_and_bank.network.turn()
    assert len(rsa_calls) == RSA_BURST
    shop_and_bank.network.clock.advance(seconds=1)
    flood(shop_and_bank, row, "mallory", batches=2, rows=100)
    shop_and_bank.network.turn()
    assert len(rsa_calls) == RSA_BURST + RSA_PER_SECOND


def test_new_keys_of_many_peers_cost_limited_time_in_one_turn(
    shop_and_bank: ShopAndBank, rsa_calls: list[None]
) -> None:
    """Skipped keys of other peers are accepted when they are sent again."""
    row = first_row(shop_and_bank)
    for number in range(2 * RSA_PER_TURN // RSA_BURST):
        flood(shop_and_bank, row, f"mal{number}", batches=2, rows=RSA_BURST)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.servers["bank"].exchange.turn()
    assert len(rsa_calls) == RSA_PER_TURN
    shop_and_bank.network.settle(seconds=5)
    assert b"two chairs" in shop_and_bank.receive_orders()


@pytest.fixture
def mixed(shop_and_bank: ShopAndBank) -> ShopAndBank:
    """The bank has received three rows with invalid keys and a valid one in one batch."""
    anonymous = first_row(shop_and_bank)
    forged = [forged_row(anonymous, "mallory", number) for number in range(3)]
    shop_and_bank.network.lossy.add(BANK)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle()
    shop_and_bank.network.lossy.clear()
    (row,) = to_rows(shop_and_bank.network.pipe("shop").sent[-1][1])
    peer = Peer(bytes(16), "between", "between", "TCP://between:4022", uuid.UUID(int=1), True)
    shop_and_bank.network.pipe("bank").receiver.rows_received(peer, pa.Table.from_pylist([*forged, row], schema=WIRE))
    return shop_and_bank


def refused_keys(shop_and_bank: ShopAndBank) -> list[MessageUndeliverable]:
    return [event for event in shop_and_bank.network.emitted("bank", MessageUndeliverable) if "forged" in event.text]


def test_refused_rows_are_not_checked_again_while_a_database_is_locked(
    mixed: ShopAndBank, rsa_calls: list[None]
) -> None:
    with mixed.stock.transaction() as t:
        t.connection.execute("CREATE TABLE slow (id INTEGER PRIMARY KEY)")
        for _ in range(3):
            mixed.network.servers["bank"].exchange.turn()
            mixed.network.clock.advance(seconds=1)
    mixed.network.settle()
    assert mixed.receive_orders() == [b"two chairs"]
    assert len(refused_keys(mixed)) == 3
    assert len(rsa_calls) <= 3 + 2


def test_refused_rows_are_not_checked_again_when_others_fail(
    mixed: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object) -> None:
        raise ValueError("cannot validate")

    monkeypatch.setattr(SqliteDialogStorage, "validate", fails)
    mixed.network.servers["bank"].exchange.turn()
    assert len(refused_keys(mixed)) == 3
