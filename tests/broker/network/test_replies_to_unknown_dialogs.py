"""Replies to rows of unknown conversations cost no more than sending them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.envelope import EnvelopeRow, Protection, rows_to_table
from ssbroker.protocol.wire.frames import to_wire_rows
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, received

MALLORY = Peer(bytes(16), "mallory", "mallory", "TCP://mallory:4022", uuid.UUID(int=9), is_accept=True)


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


def deliver_unknown(shop_and_bank: ShopAndBank, services: Sequence[str]) -> None:
    """Delivers one row from Mallory for each service, each in an unknown conversation."""
    rows: list[EnvelopeRow] = []
    for number, service in enumerate(services):
        conversation = hashlib.md5(f"{number} {service}".encode(), usedforsecurity=False).digest()
        names = (
            service,
            b"broker of malice",
            "//Stock",
            shop_and_bank.stock.service_broker_guid.bytes,
            "DEFAULT",
            "DEFAULT",
        )
        row = EnvelopeRow(
            conversation,
            False,
            0,
            0,
            1,
            b"?",
            None,
            None,
            True,
            *names,
            None,
            5,
            False,
            False,
            None,
            Protection.PLAIN,
            None,
            None,
            b"",
        )
        row.header_signature = hashlib.md5(row.signature_input(row.header), usedforsecurity=False).digest()
        rows.append(row)
    exchange = shop_and_bank.network.servers["bank"].exchange
    shop_and_bank.network.pipe("bank").receiver.rows_received(
        MALLORY, to_wire_rows(rows_to_table(rows), now=0, key_exchanges=pa.nulls(len(rows), pa.binary()))
    )
    exchange.turn()


def test_replies_are_dropped_if_no_more_addresses_can_be_learned(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = shop_and_bank.network.pipe("bank")
    shop_and_bank.stock.create_route("Any", address="TRANSPORT")
    deliver_unknown(shop_and_bank, ["tcp://one:4022/x"])
    assert "TCP://one:4022" in pipe.outboxes
    monkeypatch.setattr(
        pipe,
        "refusal_reason",
        lambda _: "limit of 1000 addresses that no route names is reached; raise limits.max_unrouted_addresses",
    )
    deliver_unknown(shop_and_bank, ["tcp://two:4022/x"])
    assert "TCP://two:4022" not in pipe.outboxes
    shop_and_bank.send(b"one")
    shop_and_bank.network.settle()
    shop_and_bank.answer(b"two")
    shop_and_bank.network.settle(seconds=1)
    assert received(shop_and_bank.sales, REPLIES) == [b"two"]


def test_replies_use_no_memory_afterwards(shop_and_bank: ShopAndBank) -> None:
    deliver_unknown(shop_and_bank, ["//Shop"] * 100)
    shop_and_bank.network.clock.advance(seconds=60)
    shop_and_bank.network.settle(seconds=1)
    all_dialogs = shop_and_bank.network.servers["bank"].exchange._dialogs.all()
    assert sum(len(dialogs._decisions) for dialogs in all_dialogs) == 0
