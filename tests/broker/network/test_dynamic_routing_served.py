"""Missing routes of conversations that go to other instances, and of those that come from them (R14, R61, R62)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ssbroker.broker.asking import dynamic_routing
from ssbroker.broker.configuration import ConfigurationService, FileDirectory
from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.store import route_requests
from tests.broker import shops
from tests.broker.shops import ORDERS, REPLIES, SHOP, STOCK

DEADLINE = 60.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def served(stack: ExitStack, folder: Path) -> Instance:
    instance = stack.enter_context(Instance.create(folder, name=folder.name))
    stack.enter_context(instance.serve(port=0, allow_unencrypted=True))
    return instance


def address(instance: Instance) -> str:
    assert instance.server is not None
    return instance.server.address


def configured(instance: Instance, database: Database, file: Path, **services: str) -> None:
    """Has a database ask a configuration service that knows these services."""
    rows = "".join(f"//{name},{where}\n" for name, where in services.items())
    file.write_text(f"service_name,address\n{rows}")
    database.drop_route("AutoCreatedLocal")
    ConfigurationService(FileDirectory(file)).install(instance.msdb, asked_by=[database])


def test_r62_the_route_to_another_instance_is_asked_for(tmp_path: Path, stack: ExitStack) -> None:
    near, far = served(stack, tmp_path / "near"), served(stack, tmp_path / "far")
    sales, stock = shops.shop(near), shops.stock(far)
    stock.create_route("back", service_name=SHOP, address=address(near))
    configured(near, sales, tmp_path / "near.csv", Stock=address(far))
    with sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, encryption=False)
        t.send(dialog, b"two chairs")
    with stock.transaction() as t:
        (row,) = t.receive(ORDERS, timeout=DEADLINE).to_pylist()
        t.send(row["conversation_handle"], b"done")
    with sales.transaction() as t:
        assert t.receive(REPLIES, timeout=DEADLINE)["message_body"].to_pylist() == [b"done"]


def test_r14_what_comes_from_outside_has_msdb_ask(tmp_path: Path, stack: ExitStack) -> None:
    """What came first is dropped; its sender sends it again (R26), and finds the route."""
    near, far = served(stack, tmp_path / "near"), served(stack, tmp_path / "far")
    sales, stock = shops.shop(near), shops.stock(far)
    stock.create_route("back", service_name=SHOP, address=address(near))
    sales.create_route("there", service_name=STOCK, address=address(far))
    configured(far, far.msdb, tmp_path / "far.csv", Stock="LOCAL")
    with sales.transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
    with stock.transaction() as t:
        assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"two chairs"]


def test_t6_neighbours_that_name_services_that_nobody_has_open_only_so_many_requests(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_routing, "OPEN_MAX", 3)
    instance = stack.enter_context(Instance.create(tmp_path / "shop", name="shop", background=False))
    instance.msdb.create_route("Configuration", service_name="SQL/ServiceBroker/BrokerConfiguration", address="LOCAL")
    for number in range(5):
        instance.worker.dynamic_routing.ask([dynamic_routing.Ask("msdb", f"//{number}", None)])
    assert instance.msdb.file.ask(route_requests.pending) == ("//0", "//1", "//2")
