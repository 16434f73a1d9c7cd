"""Errors for conversations without an endpoint are understood by their receiver, whatever the security."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import context_of as database_context
from ssbroker.protocol.events import CorruptedMessage
from tests.broker.network.secured_pair import begin, secured
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, SHOP, STOCK, received, states, waiting

MINUTE = 60
ORDERING = "CREATE MESSAGE TYPE [Order] VALIDATION = {}; CREATE CONTRACT Ordering ({} SENT BY ANY);"
TAKES = f"ALTER SERVICE [{STOCK}] (ADD CONTRACT Ordering);"


@pytest.fixture(params=["plain", "anonymous", "full"])
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ShopAndBank]:
    """A shop and a bank."""
    if request.param == "plain":
        yield from shop_and_bank_pair(tmp_path)
    else:
        yield from secured(tmp_path, anonymous=request.param == "anonymous")


def is_understood(both: ShopAndBank) -> None:
    """Nothing waits, and nothing was taken for a forgery."""
    assert waiting(both.sales) == waiting(both.stock) == []
    assert not [*both.pipes.told("shop", CorruptedMessage)]
    assert states(both.stock) == []


@pytest.mark.parametrize(
    ("at_bank", "code"),
    [
        ("", b"-8408"),
        (ORDERING.format("NONE", "[DEFAULT]") + TAKES, b"-8498"),
        (ORDERING.format("WELL_FORMED_XML", "[Order]") + TAKES, b"-8430"),
    ],
)
def test_the_sender_of_a_refused_first_message_gets_the_reason(both: ShopAndBank, at_bank: str, code: bytes) -> None:
    both.shop.execute(ORDERING.format("NONE", "[Order]"))
    both.bank.execute(at_bank)
    is_plain = not database_context(both.sales).objects().security.bindings
    with both.sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, contract="Ordering", encryption=not is_plain)
        t.send(dialog, b"<two chairs", message_type="Order")
    both.pipes.settle(seconds=MINUTE)
    (told,) = received(both.sales, REPLIES)
    assert b"<Code>" + code + b"</Code>" in told
    is_understood(both)


@pytest.mark.parametrize("how", ["by its application", "by its broker"])
def test_an_error_for_an_unknown_conversation_is_acknowledged(both: ShopAndBank, how: str) -> None:
    both.pipes.down.add("TCP://bank:4022")
    is_plain = not database_context(both.sales).objects().security.bindings
    dialog = both.send(b"two chairs") if is_plain else begin(both, b"two chairs")
    both.pipes.settle(seconds=MINUTE)
    if how == "by its broker":
        both.sales.set_broker("ERROR_BROKER_CONVERSATIONS")
    with both.sales.transaction() as t:
        t.end_conversation(dialog, error=None if how == "by its broker" else (7, "sold out"))
    both.pipes.down.clear()
    both.pipes.settle(seconds=2 * MINUTE)
    assert states(both.sales) == ["CD"]
    is_understood(both)
