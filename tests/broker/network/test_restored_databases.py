"""Databases that are restored or copied during conversations with other instances (I5, I6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import copy

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.ddl.statements import BrokerOption
from tests.broker.network.memory_connections import MemoryNetwork
from tests.broker.network.secured_pair import secured
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK, received, shop, states, stock, waiting

MINUTE = 60


@pytest.fixture(params=["plain", "secured"])
def shop_and_bank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ShopAndBank]:
    yield from (shop_and_bank_pair if request.param == "plain" else secured)(tmp_path)


def reattach(
    shop_and_bank: ShopAndBank,
    side: str,
    *,
    backup_to: Path | None = None,
    restore_from: Path | None = None,
    option: BrokerOption | None = None,
) -> None:
    """Detaches the database of a side and attaches it again; saves a copy as `kept`, or restores the copy `back`."""
    instance: Instance = getattr(shop_and_bank, side)
    database: Database = shop_and_bank.sales if side == "shop" else shop_and_bank.stock
    path = database.path
    instance.detach_database(database.name)
    if backup_to is not None:
        copy(path, backup_to)
    if restore_from is not None:
        copy(restore_from, path)
    instance.attach_database(database.name, path, option=option)
    shop_and_bank.sales, shop_and_bank.stock = (
        shop_and_bank.shop.database("Sales"),
        shop_and_bank.bank.database("Stock"),
    )


@pytest.mark.rule("I6")
@pytest.mark.parametrize("side", ["shop", "bank"])
def test_both_ends_get_an_error_after_a_restore(shop_and_bank: ShopAndBank, tmp_path: Path, side: str) -> None:
    """The error is not mistaken for a message sent under its sequence number since the backup."""
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.answer(b"thanks") == [b"one"]
    shop_and_bank.network.settle(seconds=MINUTE)
    reattach(shop_and_bank, side, backup_to=tmp_path / "backup")
    shop_and_bank.send(b"two", b"three", dialog=dialog)
    shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.answer(b"many", b"thanks") == [b"two", b"three"]
    shop_and_bank.network.settle(seconds=MINUTE)
    assert received(shop_and_bank.sales, REPLIES) == [b"thanks", b"many", b"thanks"]
    reattach(shop_and_bank, side, restore_from=tmp_path / "backup", option="ERROR_BROKER_CONVERSATIONS")
    shop_and_bank.network.settle(seconds=5 * MINUTE)
    here, there = (
        (shop_and_bank.sales, shop_and_bank.stock) if side == "shop" else (shop_and_bank.stock, shop_and_bank.sales)
    )
    for database, code in ((here, b"-9719"), (there, b"-9720")):
        (error_body,) = (
            body
            for body in received(database, REPLIES if database is shop_and_bank.sales else ORDERS)
            if b"Error" in body
        )
        assert b"<Code>" + code + b"</Code>" in error_body
    assert states(shop_and_bank.sales) + states(shop_and_bank.stock) == ["ER", "ER"]
    assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []


@pytest.mark.rule("I5")
@pytest.mark.parametrize("side", ["shop", "bank"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_copy_with_a_new_id_receives_nothing_for_the_original(
    shop_and_bank: ShopAndBank, tmp_path: Path, side: str, *, is_first: bool
) -> None:
    """Both have an endpoint of the conversation; the broker id selects the original, whichever was attached first."""
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.answer(b"thanks") == [b"one"]
    shop_and_bank.network.settle(seconds=MINUTE)
    assert received(shop_and_bank.sales, REPLIES) == [b"thanks"]
    instance: Instance = getattr(shop_and_bank, side)
    reattach(shop_and_bank, side, backup_to=tmp_path / "copy")
    instance.attach_database("Copy", tmp_path / "copy", option="NEW_BROKER")
    if is_first:
        reattach(shop_and_bank, side)
    shop_and_bank.send(b"two", dialog=dialog)
    shop_and_bank.network.settle(seconds=5 * MINUTE)
    assert shop_and_bank.answer(b"more thanks") == [b"two"]
    shop_and_bank.network.settle(seconds=5 * MINUTE)
    assert received(shop_and_bank.sales, REPLIES) == [b"more thanks"]
    assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []


@pytest.mark.rule("I6")
def test_a_pending_end_is_replaced_by_the_error(shop_and_bank: ShopAndBank) -> None:
    """The application's end of conversation was not sent, so the remote endpoint gets the error."""
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.answer(b"thanks") == [b"one"]
    shop_and_bank.network.settle(seconds=MINUTE)
    shop_and_bank.network.down.add("TCP://bank:4022")
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog)
    shop_and_bank.network.settle(seconds=MINUTE)
    shop_and_bank.sales.set_broker("ERROR_BROKER_CONVERSATIONS")
    assert states(shop_and_bank.sales) == ["DO"]
    shop_and_bank.network.down.clear()
    shop_and_bank.network.settle(seconds=2 * MINUTE)
    (error_body,) = received(shop_and_bank.stock, ORDERS)
    assert b"<Code>-9720</Code>" in error_body
    assert states(shop_and_bank.sales) + states(shop_and_bank.stock) == ["CD", "ER"]
    assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []


def errors_and_waiting(shop_and_bank: ShopAndBank) -> list[tuple[bool, bool]]:
    """For the shop and the bank, whether it received error -8462, and whether messages wait."""
    found = [
        (received(shop_and_bank.sales, REPLIES), waiting(shop_and_bank.sales)),
        (received(shop_and_bank.stock, ORDERS), waiting(shop_and_bank.stock)),
    ]
    return [(any(b"<Code>-8462</Code>" in body for body in bodies), bool(left)) for bodies, left in found]


@pytest.mark.rule("I8")
@pytest.mark.parametrize("side", ["shop", "bank"])
def test_both_ends_get_an_error_if_acknowledged_messages_were_lost(
    shop_and_bank: ShopAndBank, tmp_path: Path, side: str
) -> None:
    """After a restore without an option: lost messages were already removed by their sender."""
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.answer(b"thanks") == [b"one"]
    shop_and_bank.network.settle(seconds=MINUTE)
    reattach(shop_and_bank, side, backup_to=tmp_path / "backup")
    shop_and_bank.send(b"two", dialog=dialog)
    shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.answer(b"more thanks") == [b"two"]
    shop_and_bank.send(b"three", dialog=dialog)
    shop_and_bank.network.settle(seconds=MINUTE)
    reattach(shop_and_bank, side, restore_from=tmp_path / "backup")
    if side == "bank":
        shop_and_bank.send(b"four", dialog=dialog)
    else:
        assert shop_and_bank.answer(b"still thanks") == [b"three"]
    for _ in range(2):
        shop_and_bank.network.settle(seconds=5 * MINUTE)
    assert states(shop_and_bank.sales) + states(shop_and_bank.stock) == ["ER", "ER"]
    assert errors_and_waiting(shop_and_bank) == [(True, False), (True, False)]


@pytest.mark.rule("I8")
@pytest.mark.parametrize("hours", [0, 1])
def test_both_ends_of_an_unsecured_dialog_get_an_error_if_the_target_lost_it(tmp_path: Path, *, hours: int) -> None:
    """The backup is older than the dialog, so the target waits for a first message that the initiator no longer has."""
    with contextmanager(shop_and_bank_pair)(tmp_path) as shop_and_bank:
        reattach(shop_and_bank, "bank", backup_to=tmp_path / "backup")
        dialog = shop_and_bank.send(b"one")
        shop_and_bank.network.settle(seconds=MINUTE)
        assert shop_and_bank.answer(b"thanks") == [b"one"]
        shop_and_bank.network.settle(seconds=MINUTE + 60 * hours * MINUTE)
        reattach(shop_and_bank, "bank", restore_from=tmp_path / "backup")
        shop_and_bank.send(b"two", dialog=dialog)
        for _ in range(2):
            shop_and_bank.network.settle(seconds=5 * MINUTE)
        assert states(shop_and_bank.sales) + states(shop_and_bank.stock) == ["ER", "ER"]
        assert errors_and_waiting(shop_and_bank) == [(True, False), (True, False)]


@pytest.mark.rule("I5", "R43")
@pytest.mark.parametrize("of", ["Sales", "Stock"])
def test_a_copy_on_a_forwarder_receives_nothing_for_the_original(tmp_path: Path, of: str) -> None:
    """The hub has endpoints of the same conversations under another broker id."""
    with ExitStack() as stack:
        network = MemoryNetwork(tmp_path, stack)
        near, hub, far = (network.instance(name) for name in ("near", "hub", "far"))
        shop_and_bank = ShopAndBank(network, near, far, shop(near), stock(far))
        hub.execute(
            "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)"
        )
        shop_and_bank.sales.create_route("There", service_name=STOCK, address="TCP://hub:4022")
        shop_and_bank.stock.create_route("Back", service_name=SHOP, address="TCP://hub:4022")
        hub.msdb.create_route("There", service_name=STOCK, address="TCP://far:4022")
        hub.msdb.create_route("Back", service_name=SHOP, address="TCP://near:4022")
        dialog = shop_and_bank.send(b"one")
        network.settle(seconds=MINUTE)
        assert shop_and_bank.answer(b"thanks") == [b"one"]
        network.settle(seconds=MINUTE)
        reattach(shop_and_bank, "shop" if of == "Sales" else "bank", backup_to=tmp_path / "copy")
        hub.attach_database("Copy", tmp_path / "copy", option="NEW_BROKER")
        shop_and_bank.send(b"two", dialog=dialog)
        network.settle(seconds=5 * MINUTE)
        assert shop_and_bank.answer(b"more thanks") == [b"two"]
        network.settle(seconds=5 * MINUTE)
        assert received(shop_and_bank.sales, REPLIES) == [b"thanks", b"more thanks"]
        assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []
