"""What could not be routed or secured when it was due is sent when that works again, not after the waits of P17."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.live_routes import LiveRoutes
from ssbroker.broker.network.dialog_keys import PendingKeyExchanges
from ssbroker.exceptions import StorageError
from tests.broker.network.secured_pair import begin, secured
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, STOCK, received_types, waiting


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


@contextmanager
def failing(owner: type, method: str, *, when: Callable[..., bool] = lambda *_: True) -> Iterator[list[None]]:
    """Makes calls of a method fail if their arguments meet a condition; yields a list with one item for each of them."""
    original: Callable[..., Any] = getattr(owner, method)
    failures: list[None] = []

    def fails(*given: Any, **options: Any) -> Any:
        if not when(*given):
            return original(*given, **options)
        failures.append(None)
        raise StorageError("the disk is out of reach", file="a file")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, fails)
        yield failures


def without_routes(database: str) -> Any:
    """Makes routing fail for what a database sends."""
    return failing(LiveRoutes, "decisions", when=lambda _, name, *__: name == database)


@pytest.mark.rule("P16")
def test_an_acknowledgement_is_sent_once_it_can_be_routed(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.send(b"two chairs")
    with without_routes("Stock") as failures:
        shop_and_bank.network.settle()
    assert failures
    assert len(waiting(shop_and_bank.sales)) == 1
    shop_and_bank.network.settle(seconds=1)
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("P11")
def test_an_error_of_the_broker_is_sent_once_it_can_be_routed(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.shop.execute("CREATE MESSAGE TYPE [Order]; CREATE CONTRACT Ordering ([Order] SENT BY ANY);")
    with shop_and_bank.sales.transaction() as t:
        dialog = t.begin_dialog("//Shop", STOCK, contract="Ordering", encryption=False)
        t.send(dialog, b"two chairs", message_type="Order")
    with without_routes("Stock") as failures:
        shop_and_bank.network.settle()
    assert failures
    shop_and_bank.network.settle(seconds=1)
    assert received_types(shop_and_bank.sales, REPLIES) == ["Error"]


@pytest.mark.rule("P17")
def test_a_message_is_sent_once_its_keys_can_be_read(tmp_path: Path) -> None:
    for shop_and_bank in secured(tmp_path):
        with failing(PendingKeyExchanges, "key_exchange_column") as failures:
            begin(shop_and_bank, b"two chairs")
            shop_and_bank.network.settle()
        assert failures
        shop_and_bank.network.settle(seconds=1)
        assert shop_and_bank.receive_orders() == [b"two chairs"]
