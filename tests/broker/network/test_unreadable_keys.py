"""With an unreadable instance key, operations that need it fail with a reason; others continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.instance import Instance
from ssbroker.protocol.events import MessageUndeliverable
from tests.broker.network.secured_pair import begin, secured
from tests.broker.network.shop_and_bank import ShopAndBank
from tests.broker.sample_databases import SHOP, received, statuses, waiting

DAMAGED = "service_master.key: expected a key of 32 bytes, got 2 bytes; restore the file from a backup"


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    """A secured shop and bank; the bank also has the unsecured service //Plain."""
    for made in secured(tmp_path):
        made.stock.create_queue("Plain")
        made.stock.create_service("//Plain", queue="Plain")
        made.sales.create_route("Plain", address="TCP://bank:4022", service_name="//Plain")
        yield made


def damage(instance: Instance) -> bytes:
    """Truncates the instance key to two bytes; returns the original."""
    file = instance.folder / "service_master.key"
    key = file.read_bytes()
    file.write_bytes(b"no")
    return key


def run_until_retry(shop_and_bank: ShopAndBank) -> None:
    """Runs until waiting conversations are retried."""
    shop_and_bank.shop.run_due()
    shop_and_bank.network.settle(seconds=65)


def test_the_reason_for_an_unreadable_private_key_is_reported(shop_and_bank: ShopAndBank) -> None:
    """The status is not that of a message sent without acknowledgement."""
    key = damage(shop_and_bank.shop)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle()
    assert statuses(shop_and_bank.sales) == {"28050"}
    assert DAMAGED in waiting(shop_and_bank.sales)[0].transmission_status
    (shop_and_bank.shop.folder / "service_master.key").write_bytes(key)
    run_until_retry(shop_and_bank)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


def test_an_unsecured_dialog_does_not_wait_for_the_key_of_the_instance(shop_and_bank: ShopAndBank) -> None:
    """It must not be rejected together with a secured dialog in the same batch."""
    key = damage(shop_and_bank.bank)
    with shop_and_bank.sales.transaction() as t:
        t.send(t.begin_dialog(SHOP, "//Stock"), b"two chairs")
        t.send(t.begin_dialog(SHOP, "//Plain", encryption=False), b"in clear")
    shop_and_bank.network.settle(seconds=65)
    assert received(shop_and_bank.stock, "Plain") == [b"in clear"]
    assert shop_and_bank.receive_orders() == []
    assert any(DAMAGED in event.text for event in shop_and_bank.network.emitted("bank", MessageUndeliverable))
    (shop_and_bank.bank.folder / "service_master.key").write_bytes(key)
    run_until_retry(shop_and_bank)
    assert shop_and_bank.receive_orders() == [b"two chairs"]
