"""R14, R54: an instance that cannot send requests what it lacks, even if only acknowledgements or forwarded rows wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.configuration_service import ConfigurationService, FileDirectory
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.mirroring import ASK_AFTER_USE
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import SHOP, STOCK, waiting

LONGEST_WAIT = 80
"""The longest wait of P17 with its jitter, and the seconds in which a machine looks at what rests."""
NOBODY = "TCP://nobody:4022"


@pytest.fixture
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


def passes(both: ShopAndBank, seconds: int) -> None:
    """Lets time pass and runs due work everywhere."""
    for _ in range(seconds // 2):
        both.pipes.settle(seconds=2)
        for instance in both.pipes.instances.values():
            instance.run_due(both.pipes.clock())


def is_away_for_long(both: ShopAndBank, name: str) -> None:
    """An instance is unreachable for longer than both addresses of a mirrored route are asked by themselves."""
    both.pipes.down.add(f"TCP://{name}:4022")
    both.send(b"two chairs")
    passes(both, 2 * ASK_AFTER_USE // SECOND)
    assert len(waiting(both.sales)) == 1
    both.pipes.down.clear()
    passes(both, LONGEST_WAIT)


@pytest.mark.rule("R54", "P16")
def test_a_target_with_acknowledgements_asks_for_the_principal(both: ShopAndBank) -> None:
    """The target has nothing in its transmission queue."""
    both.stock.drop_route("Back")
    both.stock.create_route(
        "Back",
        service_name=SHOP,
        broker_instance=both.sales.service_broker_guid,
        address="TCP://shop:4022",
        mirror_address=NOBODY,
    )
    is_away_for_long(both, "shop")
    assert both.ordered() == [b"two chairs"]
    assert waiting(both.sales) == []


@pytest.mark.rule("R54", "R43")
def test_a_forwarder_asks_for_the_principal_while_rows_arrive(both: ShopAndBank) -> None:
    """Rows that it already holds still count as use."""
    between = both.pipes.instance("between")
    between.execute(
        "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)"
    )
    between.msdb.create_route(
        "There",
        service_name=STOCK,
        broker_instance=both.stock.service_broker_guid,
        address="TCP://bank:4022",
        mirror_address=NOBODY,
    )
    both.sales.drop_route("There")
    both.sales.create_route("There", service_name=STOCK, address="TCP://between:4022")
    is_away_for_long(both, "bank")
    assert both.ordered() == [b"two chairs"]
    assert both.pipes.servers["between"].forwarding.pending == (0, 0)


@pytest.mark.rule("R14", "R61", "R8")
def test_a_route_for_acknowledgements_is_requested(both: ShopAndBank, tmp_path: Path) -> None:
    """Otherwise the initiator never gets an acknowledgement, and sends no more than one message; also when the route expires."""
    both.stock.drop_route("Back")
    both.stock.drop_route("AutoCreatedLocal")
    directory = tmp_path / "services.csv"
    directory.write_text(f"service_name,address\n{SHOP},TCP://shop:4022\n")
    ConfigurationService(FileDirectory(directory), lifetime=600).install(both.bank.msdb, asked_by=[both.stock])
    dialog = both.send(b"two chairs", b"a table")
    passes(both, LONGEST_WAIT)
    assert both.ordered() == [b"two chairs", b"a table"]
    assert waiting(both.sales) == []
    passes(both, 600)
    both.send(b"a lamp", dialog=dialog)
    passes(both, LONGEST_WAIT)
    assert waiting(both.sales) == []


@pytest.mark.rule("R62")
def test_a_refused_route_for_acknowledgements_is_requested_again(both: ShopAndBank, tmp_path: Path) -> None:
    """After a minute, although nothing else needs it."""
    both.stock.drop_route("Back")
    both.stock.drop_route("AutoCreatedLocal")
    directory = tmp_path / "services.csv"
    directory.write_text("service_name,address\n//Nobody,TCP://nobody:4022\n")
    ConfigurationService(FileDirectory(directory)).install(both.bank.msdb, asked_by=[both.stock])
    both.send(b"two chairs")
    passes(both, LONGEST_WAIT)
    assert len(waiting(both.sales)) == 1
    directory.write_text(f"service_name,address\n{SHOP},TCP://shop:4022\n")
    passes(both, 2 * LONGEST_WAIT)
    assert waiting(both.sales) == []
