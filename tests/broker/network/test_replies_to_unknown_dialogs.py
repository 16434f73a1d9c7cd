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
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


def answered(both: ShopAndBank, asking: Sequence[str]) -> None:
    """Has mallory send an answer in a conversation of each service's own, which the bank has never heard of."""
    rows: list[EnvelopeRow] = []
    for number, service in enumerate(asking):
        conversation = hashlib.md5(f"{number} {service}".encode(), usedforsecurity=False).digest()
        names = (service, b"broker of malice", "//Stock", both.stock.service_broker_guid.bytes, "DEFAULT", "DEFAULT")
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
    exchange = both.pipes.servers["bank"].exchange
    both.pipes.pipe("bank").receiver.rows_received(
        MALLORY, to_wire_rows(rows_to_table(rows), now=0, key_exchanges=pa.nulls(len(rows), pa.binary()))
    )
    exchange.turn()


def test_replies_are_dropped_if_no_more_addresses_can_be_learned(
    both: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = both.pipes.pipe("bank")
    both.stock.create_route("Any", address="TRANSPORT")
    answered(both, ["tcp://one:4022/x"])
    assert "TCP://one:4022" in pipe.outboxes
    monkeypatch.setattr(
        pipe,
        "refusal_reason",
        lambda _: "limit of 1000 addresses that no route names is reached; raise limits.max_unrouted_addresses",
    )
    answered(both, ["tcp://two:4022/x"])
    assert "TCP://two:4022" not in pipe.outboxes
    both.send(b"one")
    both.pipes.settle()
    both.answer(b"two")
    both.pipes.settle(seconds=1)
    assert received(both.sales, REPLIES) == [b"two"]


def test_replies_leave_nothing_in_memory(both: ShopAndBank) -> None:
    answered(both, ["//Shop"] * 100)
    both.pipes.clock.advance(seconds=60)
    both.pipes.settle(seconds=1)
    machines = both.pipes.servers["bank"].exchange._dialogs.all()
    assert sum(len(machine._decisions) for machine in machines) == 0
