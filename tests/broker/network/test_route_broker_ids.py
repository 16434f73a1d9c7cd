"""The first message of a conversation names the broker id of the route that it takes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import Database
from ssbroker.protocol.events import CorruptedMessage, MessageUndeliverable
from tests.broker.network import socket_instances
from tests.broker.network.shop_and_bank import shop_and_bank_pair
from tests.broker.network.socket_instances import (
    EventRecorder,
    InstanceGroup,
    SocketInstance,
    order,
    receive_count,
    wait_until_sent,
)
from tests.broker.sample_databases import ORDERS, SHOP, STOCK, waiting
from tests.internals import instance_of


@pytest.fixture
def instance_group(tmp_path: Path) -> Iterator[InstanceGroup]:
    with socket_instances.instance_group(tmp_path) as made:
        yield made


def copies(far: SocketInstance) -> list[Database]:
    """Two databases of an instance with the same service."""
    found = [socket_instances.stock(far), far.instance.create_database("Copy")]
    found[1].create_queue(ORDERS)
    found[1].create_service(STOCK, queue=ORDERS)
    return found


@pytest.mark.rule("R13", "R31", "I3")
def test_route_with_a_broker_id_leads_to_that_copy_of_the_service(instance_group: InstanceGroup) -> None:
    near, far = (instance_group.create_instance(name) for name in ("near", "far"))
    sales = socket_instances.shop(near)
    far.add_route("msdb", SHOP, near.address)
    for copy in copies(far):
        far.add_route(copy.name, SHOP, near.address)
        near.instance.execute(
            f"USE Sales; CREATE ROUTE [{copy.name}] WITH SERVICE_NAME = '{STOCK}', "
            f"BROKER_INSTANCE = '{copy.service_broker_guid}', ADDRESS = '{far.address}'"
        )
        for number in range(4):  # each conversation has its own tie break
            order(sales, b"%d" % number)
        assert len(receive_count(copy, 4)) == 4
        near.instance.execute(f"USE Sales; DROP ROUTE [{copy.name}]")


@pytest.mark.rule("R24", "R13")
def test_routes_with_one_broker_id_are_chosen_once(instance_group: InstanceGroup) -> None:
    """The status names the address that the messages take; of two equal routes, one leads nowhere."""
    near, far = (instance_group.create_instance(name) for name in ("near", "far"))
    sales, stock = socket_instances.shop(near), socket_instances.stock(far)
    broker, nowhere = uuid.UUID(str(stock.service_broker_guid)), "TCP://127.0.0.1:1"
    far.add_route("Stock", SHOP, near.address)
    near.add_route("Sales", STOCK, far.address, broker=broker)
    near.instance.execute(
        f"USE Sales; CREATE ROUTE twin WITH SERVICE_NAME = '{STOCK}', BROKER_INSTANCE = '{broker}', ADDRESS = '{nowhere}'"
    )
    for number in range(6):
        order(sales, b"%d" % number)
    assert len(receive_count(stock, 3)) == 3
    statuses = instance_of(sales).view("sys.transmission_queue", "Sales")["transmission_status"].to_pylist()
    assert not any(far.address in str(status) for status in statuses)


@pytest.mark.rule("R26", "R31")
def test_route_with_a_stale_broker_id_delivers_nothing_until_it_is_corrected(instance_group: InstanceGroup) -> None:
    near, far = (instance_group.create_instance(name) for name in ("near", "far"))
    sales, stock = socket_instances.shop(near), socket_instances.stock(far)
    far.add_route("Stock", SHOP, near.address)
    near.add_route("Sales", STOCK, far.address, broker=uuid.UUID(int=7))
    dropped = EventRecorder(far, kinds=(MessageUndeliverable,))
    order(sales, b"two chairs")
    dropped.wait_for(bool)
    assert (
        f'service_not_found: the service "{STOCK}": no enabled database with the service has the broker id {uuid.UUID(int=7)}, '
        "which the message or its route names; received from "
    ) in dropped.events[0].text  # type: ignore[attr-defined]
    near.instance.execute(f"USE Sales; ALTER ROUTE [to {STOCK}] WITH BROKER_INSTANCE = '{stock.service_broker_guid}'")
    assert receive_count(stock, 1) == [b"two chairs"]
    wait_until_sent(sales)


@pytest.mark.rule("R13", "P16", "R8")
def test_an_acknowledgement_counts_after_the_route_with_its_broker_id_is_dropped(tmp_path: Path) -> None:
    for both in shop_and_bank_pair(tmp_path):
        network = both.network
        both.sales.drop_route("There")
        both.sales.create_route(
            "There", address="TCP://bank:4022", service_name=STOCK, broker_instance=both.stock.service_broker_guid
        )
        both.send(b"two chairs", b"a table")  # only the first is sent before the answer
        for name in ("shop", "bank"):  # the shop gets the acknowledgement, and processes it after the change
            network.servers[name].exchange.turn()
            network.clock.advance(seconds=2)
            network.servers[name].exchange.turn()
            assert network.pipe(name).deliver() == 1
        both.sales.drop_route("There")
        network.settle(seconds=5)
        assert [each.message_sequence_number for each in waiting(both.sales)] == [1]
        assert not [each for each in network.events["shop"] if isinstance(each, CorruptedMessage)]
        both.sales.create_route("There", address="TCP://bank:4022", service_name=STOCK)
        network.settle(seconds=5)
        assert both.receive_orders() == [b"two chairs", b"a table"]
        assert waiting(both.sales) == []
