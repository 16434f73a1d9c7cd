"""Errors for conversations without an endpoint are accepted by their receiver, with any security."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.protocol.events import CorruptedMessage
from tests.broker.network.secured_pair import begin, secured
from tests.broker.network.shop_and_bank import SALES, ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, SHOP, STOCK, received, states, waiting

MINUTE = 60
CREATE_ORDERING = "CREATE MESSAGE TYPE [Order] VALIDATION = {}; CREATE CONTRACT Ordering ({} SENT BY ANY);"
ADD_CONTRACT = f"ALTER SERVICE [{STOCK}] (ADD CONTRACT Ordering);"


@pytest.fixture(params=["plain", "anonymous", "full"])
def shop_and_bank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ShopAndBank]:
    if request.param == "plain":
        yield from shop_and_bank_pair(tmp_path)
    else:
        yield from secured(tmp_path, anonymous=request.param == "anonymous")


def is_secured(shop_and_bank: ShopAndBank) -> bool:
    return bool(database_context(shop_and_bank.sales).objects().security.bindings)


def assert_accepted(shop_and_bank: ShopAndBank) -> None:
    """Asserts that no message waits and no row was reported as corrupted."""
    assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []
    assert not [*shop_and_bank.network.emitted("shop", CorruptedMessage)]
    assert states(shop_and_bank.stock) == []


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("", b"-8408"),
        (CREATE_ORDERING.format("NONE", "[DEFAULT]") + ADD_CONTRACT, b"-8498"),
        (CREATE_ORDERING.format("WELL_FORMED_XML", "[Order]") + ADD_CONTRACT, b"-8430"),
    ],
)
def test_the_sender_of_a_refused_first_message_gets_the_reason(
    shop_and_bank: ShopAndBank, script: str, code: bytes
) -> None:
    shop_and_bank.shop.execute(CREATE_ORDERING.format("NONE", "[Order]"))
    if script:
        shop_and_bank.bank.execute(script)
    with shop_and_bank.sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, contract="Ordering", encryption=is_secured(shop_and_bank))
        t.send(dialog, b"<two chairs", message_type="Order")
    shop_and_bank.network.settle(seconds=MINUTE)
    (error_body,) = received(shop_and_bank.sales, REPLIES)
    assert b"<Code>" + code + b"</Code>" in error_body
    assert_accepted(shop_and_bank)


@pytest.mark.parametrize("is_begun_elsewhere", [False, True])
def test_a_conversation_with_the_id_of_a_refused_one_is_sent_immediately(
    shop_and_bank: ShopAndBank, *, is_begun_elsewhere: bool
) -> None:
    """A new endpoint gets the id of the removed one, possibly in another process. Nothing is polled or retried, because the clock does not advance."""
    network, sales = shop_and_bank.network, shop_and_bank.sales
    network.unsubscribe["shop"]()
    shop_and_bank.shop.execute(CREATE_ORDERING.format("NONE", "[Order]"))
    other = network.stack.enter_context(Instance.open(network.folder / "shop", clock=network.clock, background=False))
    with sales.transaction() as t:
        refused = t.begin_dialog(SHOP, STOCK, contract="Ordering", encryption=is_secured(shop_and_bank))
        t.send(refused, b"<two chairs", message_type="Order")
    network.settle()
    with sales.transaction() as t:
        t.end_conversation(refused)
    with (other.database(SALES) if is_begun_elsewhere else sales).transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, encryption=is_secured(shop_and_bank))
    with sales.transaction() as t:
        t.send(dialog, b"two chairs")
    network.settle()
    assert shop_and_bank.receive_orders() == [b"two chairs"]


@pytest.mark.parametrize("how", ["by its application", "by its broker"])
def test_an_error_for_an_unknown_conversation_is_acknowledged(shop_and_bank: ShopAndBank, how: str) -> None:
    shop_and_bank.network.down.add("TCP://bank:4022")
    dialog = begin(shop_and_bank, b"two chairs") if is_secured(shop_and_bank) else shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle(seconds=MINUTE)
    if how == "by its broker":
        shop_and_bank.sales.set_broker("ERROR_BROKER_CONVERSATIONS")
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog, error=None if how == "by its broker" else (7, "sold out"))
    shop_and_bank.network.down.clear()
    shop_and_bank.network.settle(seconds=2 * MINUTE)
    assert states(shop_and_bank.sales) == ["CD"]
    assert_accepted(shop_and_bank)
