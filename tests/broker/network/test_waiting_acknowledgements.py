"""Missing routes and principals are requested even if only acknowledgements or forwarded rows wait (R14, R54)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.configuration_service import ConfigurationService, FileDirectory
from ssbroker.broker.network.mirrored_routes import ASK_AFTER_USE
from ssbroker.protocol.settings import SECOND
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import SHOP, STOCK, waiting

LONGEST_WAIT = 80
"""The longest wait of P17 with its jitter, plus the interval at which engines check waiting dialogs."""
NOBODY = "TCP://nobody:4022"


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


def pass_time(shop_and_bank: ShopAndBank, seconds: int) -> None:
    """Advances the clock and runs due work at all instances."""
    for _ in range(seconds // 2):
        shop_and_bank.network.settle(seconds=2)
        for instance in shop_and_bank.network.instances.values():
            instance.run_due(shop_and_bank.network.clock())


def make_unreachable_for_long(shop_and_bank: ShopAndBank, name: str) -> None:
    """Makes an instance unreachable for longer than the addresses of a mirrored route are queried after use."""
    shop_and_bank.network.down.add(f"TCP://{name}:4022")
    shop_and_bank.send(b"two chairs")
    pass_time(shop_and_bank, 2 * ASK_AFTER_USE // SECOND)
    assert len(waiting(shop_and_bank.sales)) == 1
    shop_and_bank.network.down.clear()
    pass_time(shop_and_bank, LONGEST_WAIT)


@pytest.mark.rule("P32")
def test_dialogs_without_a_return_route_leave_memory(shop_and_bank: ShopAndBank) -> None:
    """Within six minutes after the last duplicate, although each dialog owes an acknowledgement."""
    shop_and_bank.stock.drop_route("Back")
    dialog = shop_and_bank.send(b"two chairs")
    pass_time(shop_and_bank, 30)
    assert shop_and_bank.receive_orders() == [b"two chairs"]
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
    dialogs = shop_and_bank.network.servers["bank"].exchange._dialogs.by_name("Stock")
    assert dialogs is not None
    assert len(dialogs.engine._cache.loaded) == 1
    pass_time(shop_and_bank, 320)
    assert len(dialogs.engine._cache.loaded) == len(dialogs.engine._cache.ready.keys()) == 0


@pytest.mark.rule("R54", "P16")
def test_a_target_with_acknowledgements_queries_the_principal(shop_and_bank: ShopAndBank) -> None:
    """The target has nothing in its transmission queue."""
    shop_and_bank.stock.drop_route("Back")
    shop_and_bank.stock.create_route(
        "Back",
        service_name=SHOP,
        broker_instance=shop_and_bank.sales.service_broker_guid,
        address="TCP://shop:4022",
        mirror_address=NOBODY,
    )
    make_unreachable_for_long(shop_and_bank, "shop")
    assert shop_and_bank.receive_orders() == [b"two chairs"]
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("R54", "R43")
def test_a_forwarder_queries_the_principal_while_rows_arrive(shop_and_bank: ShopAndBank) -> None:
    """Rows that it already holds still count as use."""
    between = shop_and_bank.network.instance("between")
    between.execute(
        "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)"
    )
    between.msdb.create_route(
        "There",
        service_name=STOCK,
        broker_instance=shop_and_bank.stock.service_broker_guid,
        address="TCP://bank:4022",
        mirror_address=NOBODY,
    )
    shop_and_bank.sales.drop_route("There")
    shop_and_bank.sales.create_route("There", service_name=STOCK, address="TCP://between:4022")
    make_unreachable_for_long(shop_and_bank, "bank")
    assert shop_and_bank.receive_orders() == [b"two chairs"]
    assert shop_and_bank.network.servers["between"].forwarding.pending == (0, 0)


@pytest.mark.rule("R14", "R61", "R8")
def test_a_route_for_acknowledgements_is_requested(shop_and_bank: ShopAndBank, tmp_path: Path) -> None:
    """Otherwise the initiator never gets an acknowledgement; the route is requested again when it expires."""
    shop_and_bank.stock.drop_route("Back")
    shop_and_bank.stock.drop_route("AutoCreatedLocal")
    directory = tmp_path / "services.csv"
    directory.write_text(f"service_name,address\n{SHOP},TCP://shop:4022\n")
    ConfigurationService(FileDirectory(directory), lifetime=600).install(
        shop_and_bank.bank.msdb, asked_by=[shop_and_bank.stock]
    )
    dialog = shop_and_bank.send(b"two chairs", b"a table")
    pass_time(shop_and_bank, LONGEST_WAIT)
    assert shop_and_bank.receive_orders() == [b"two chairs", b"a table"]
    assert waiting(shop_and_bank.sales) == []
    pass_time(shop_and_bank, 600)
    shop_and_bank.send(b"a lamp", dialog=dialog)
    pass_time(shop_and_bank, LONGEST_WAIT)
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("R62")
def test_a_refused_route_for_acknowledgements_is_requested_again(shop_and_bank: ShopAndBank, tmp_path: Path) -> None:
    """After a minute, even if only acknowledgements need it."""
    shop_and_bank.stock.drop_route("Back")
    shop_and_bank.stock.drop_route("AutoCreatedLocal")
    directory = tmp_path / "services.csv"
    directory.write_text("service_name,address\n//Nobody,TCP://nobody:4022\n")
    ConfigurationService(FileDirectory(directory)).install(shop_and_bank.bank.msdb, asked_by=[shop_and_bank.stock])
    shop_and_bank.send(b"two chairs")
    pass_time(shop_and_bank, LONGEST_WAIT)
    assert len(waiting(shop_and_bank.sales)) == 1
    directory.write_text(f"service_name,address\n{SHOP},TCP://shop:4022\n")
    pass_time(shop_and_bank, 2 * LONGEST_WAIT)
    assert waiting(shop_and_bank.sales) == []
