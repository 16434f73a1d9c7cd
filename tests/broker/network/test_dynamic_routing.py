"""Requests for missing routes of conversations between instances (R14, R61, R62)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ssbroker._well_known import CONFIGURATION_SERVICE, SYSTEM_SERVICE
from ssbroker.broker import dynamic_routing
from ssbroker.broker.configuration_service import ConfigurationService, FileDirectory
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.dynamic_routing import REQUESTS_BURST, REQUESTS_PER_SECOND
from ssbroker.broker.instance import Instance
from ssbroker.broker.network.interfaces import Peer
from ssbroker.store import route_requests
from tests.broker import sample_databases
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK
from tests.internals import background_of
from tests.system.controlled_peer import row, table_of

DEADLINE = 60.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as exit_stack:
        yield exit_stack


def served(stack: ExitStack, folder: Path) -> Instance:
    instance = stack.enter_context(Instance.create(folder, name=folder.name))
    stack.enter_context(instance.serve(port=0, allow_unencrypted=True))
    return instance


def address(instance: Instance) -> str:
    assert instance.server is not None
    return instance.server.address


def install_configuration_service(instance: Instance, database: Database, file: Path, **services: str) -> None:
    """Installs a configuration service with these services for a database."""
    rows = "".join(f"//{name},{service_address}\n" for name, service_address in services.items())
    file.write_text(f"service_name,address\n{rows}")
    database.drop_route("AutoCreatedLocal")
    ConfigurationService(FileDirectory(file)).install(instance.msdb, asked_by=[database])


@pytest.mark.rule("R62")
def test_a_missing_route_to_another_instance_is_requested(tmp_path: Path, stack: ExitStack) -> None:
    near, far = served(stack, tmp_path / "near"), served(stack, tmp_path / "far")
    sales, stock = sample_databases.shop(near), sample_databases.stock(far)
    stock.create_route("back", service_name=SHOP, address=address(near))
    install_configuration_service(near, sales, tmp_path / "near.csv", Stock=address(far))
    with sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, encryption=False)
        t.send(dialog, b"two chairs")
    with stock.transaction() as t:
        (row,) = t.receive(ORDERS, timeout=DEADLINE).to_pylist()
        t.send(row["conversation_handle"], b"done")
    with sales.transaction() as t:
        assert t.receive(REPLIES, timeout=DEADLINE)["message_body"].to_pylist() == [b"done"]


@pytest.mark.rule("R14", "R26")
def test_incoming_messages_cause_requests_by_msdb(tmp_path: Path, stack: ExitStack) -> None:
    """The first message is dropped (R26); the message that is sent again uses the new route."""
    near, far = served(stack, tmp_path / "near"), served(stack, tmp_path / "far")
    sales, stock = sample_databases.shop(near), sample_databases.stock(far)
    stock.create_route("back", service_name=SHOP, address=address(near))
    sales.create_route("there", service_name=STOCK, address=address(far))
    install_configuration_service(far, far.msdb, tmp_path / "far.csv", Stock="LOCAL")
    with sales.transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
    with stock.transaction() as t:
        assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"two chairs"]


@pytest.mark.threat("T6")
def test_the_requests_caused_by_peers_are_limited(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_routing, "OPEN_REQUESTS_MAX", 3)
    instance = stack.enter_context(Instance.create(tmp_path / "shop", name="shop", background=False))
    instance.msdb.create_route("Configuration", service_name="SQL/ServiceBroker/BrokerConfiguration", address="LOCAL")
    for number in range(5):
        background_of(instance).dynamic_routing.request([dynamic_routing.RouteRequest("msdb", f"//{number}", None)])
    assert database_context(instance.msdb).file.query(route_requests.pending_services) == ("//0", "//1", "//2")


def deliver_rows_to(shop_and_bank: ShopAndBank, principal: str, *services: str) -> None:
    """Delivers one row for each service to the bank, from the peer `principal`."""
    peer = Peer(bytes(16), principal, principal, f"TCP://{principal}:4022", uuid.UUID(int=1), is_accept=True)
    rows = [
        row(0, conversation_id=number.to_bytes(16), to_service_name=service) for number, service in enumerate(services)
    ]
    shop_and_bank.network.pipe("bank").receiver.rows_received(peer, table_of(rows))


def test_the_rate_of_requests_caused_by_a_peer_is_limited(tmp_path: Path) -> None:
    """The requests caused by other peers are not limited by it."""
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        msdb = shop_and_bank.bank.msdb
        msdb.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        deliver_rows_to(shop_and_bank, "mallory", *(f"//{number}" for number in range(500)))
        deliver_rows_to(shop_and_bank, "mill", "//Wheat")
        shop_and_bank.network.turn()
        pending = database_context(msdb).file.query(route_requests.pending_services)
        assert len(pending) == REQUESTS_BURST + 1
        assert "//Wheat" in pending
        shop_and_bank.network.clock.advance(seconds=1)
        deliver_rows_to(shop_and_bank, "mallory", *(f"//{number}" for number in range(500)))
        shop_and_bank.network.turn()
        assert (
            len(database_context(msdb).file.query(route_requests.pending_services))
            == REQUESTS_BURST + 1 + REQUESTS_PER_SECOND
        )


def test_a_service_with_many_broker_ids_is_requested_once(tmp_path: Path) -> None:
    """It takes only one token of the peer's rate limit."""
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        shop_and_bank.bank.msdb.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        requests = [dynamic_routing.RouteRequest("msdb", "//Copied", bytes([number]) * 16) for number in range(5)]
        tokens = iter([True])
        background_of(shop_and_bank.bank).dynamic_routing.request(requests, may_begin=tokens.__next__)
        assert database_context(shop_and_bank.bank.msdb).file.query(route_requests.pending_services) == ("//Copied",)


@pytest.mark.rule("R1", "R26")
def test_msdb_sends_its_own_request_if_another_database_has_sent_one(tmp_path: Path) -> None:
    """Otherwise incoming messages would be dropped while the other request is unanswered."""
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        other = shop_and_bank.bank.create_database("Other")
        for database in (shop_and_bank.bank.msdb, other):
            database.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        background_of(shop_and_bank.bank).dynamic_routing.request(
            [dynamic_routing.RouteRequest("Other", "//Wheat", None)]
        )
        deliver_rows_to(shop_and_bank, "mill", "//Wheat", SYSTEM_SERVICE)
        shop_and_bank.network.turn()
        assert database_context(shop_and_bank.bank.msdb).file.query(route_requests.pending_services) == ("//Wheat",)


@pytest.mark.rule("R14")
def test_a_database_without_a_route_to_a_configuration_service_sends_no_request(tmp_path: Path) -> None:
    """Not even if another database has sent the same request."""
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        other = shop_and_bank.bank.create_database("Other")
        other.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        background_of(shop_and_bank.bank).dynamic_routing.request(
            [dynamic_routing.RouteRequest("Other", "//Wheat", None)]
        )
        deliver_rows_to(shop_and_bank, "mill", "//Wheat")
        shop_and_bank.network.turn()
        assert database_context(shop_and_bank.bank.msdb).file.query(route_requests.pending_services) == ()
