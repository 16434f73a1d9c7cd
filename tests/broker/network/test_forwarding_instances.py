"""Real instances, one of which forwards messages of the others (R42, R43)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.metrics import Metrics
from ssbroker.protocol.events import ForwardedMessageDropped, ForwardedMessageSent, MessageUndeliverable
from tests.broker.network import socket_instances
from tests.broker.network.socket_instances import (
    EventRecorder,
    InstanceGroup,
    SocketInstance,
    order,
    receive_and_reply,
    receive_count,
    wait_for_status,
)
from tests.broker.sample_databases import REPLIES, SHOP, STOCK
from tests.internals import instance_of

MEGABYTE = 1 << 20


@pytest.fixture
def instance_group(tmp_path: Path) -> Iterator[InstanceGroup]:
    with socket_instances.instance_group(tmp_path) as made:
        yield made


@pytest.fixture
def chain(instance_group: InstanceGroup) -> tuple[SocketInstance, SocketInstance, SocketInstance]:
    """A shop, a forwarder, and a stock."""
    shop, between, stock_instance = (instance_group.create_instance(name) for name in ("near", "between", "far"))
    between.add_route("msdb", STOCK, stock_instance.address)
    between.add_route("msdb", SHOP, shop.address)
    return shop, between, stock_instance


@pytest.mark.rule("R43", "P2")
def test_a_conversation_passes_through_a_forwarder(
    chain: tuple[SocketInstance, SocketInstance, SocketInstance],
) -> None:
    """In both directions; the forwarder stores nothing."""
    shop, between, stock_instance = chain
    between.enable_forwarding()
    sales, stock = socket_instances.shop(shop), socket_instances.stock(stock_instance)
    shop.add_route("Sales", STOCK, between.address)
    stock_instance.add_route("Stock", SHOP, between.address)
    sent = EventRecorder(between, kinds=(ForwardedMessageSent,))
    bodies = [b"order %d" % number for number in range(20)]
    order(sales, *bodies)
    assert receive_and_reply(stock, 20, b"thanks") == bodies
    assert receive_count(sales, 1, queue=REPLIES) == [b"thanks"]
    sent.wait_for(lambda events: len(events) > 20)
    assert between.server.forwarding.counters.messages > 20
    samples = dict(line.split(" ") for line in Metrics(between.instance).text().decode().splitlines() if line[0] != "#")
    assert float(samples["ssbroker_forwarded_messages_total"]) > 20
    assert between.instance.view("sys.conversation_endpoints").num_rows == 0
    assert between.instance.view("sys.transmission_queue").num_rows == 0


@pytest.mark.rule("R43", "P13")
def test_a_message_larger_than_the_limit_passes(chain: tuple[SocketInstance, SocketInstance, SocketInstance]) -> None:
    """Fragments beyond the limit are dropped and sent again."""
    shop, between, stock_instance = chain
    between.enable_forwarding(megabytes=1)
    sales, stock = socket_instances.shop(shop), socket_instances.stock(stock_instance)
    shop.add_route("Sales", STOCK, between.address)
    stock_instance.add_route("Stock", SHOP, between.address)
    body = bytes(range(256)) * (2 * MEGABYTE // 256)
    order(sales, body)
    assert receive_count(stock, 1) == [body]
    assert between.server.forwarding.counters.discarded


@pytest.mark.rule("R25", "R43")
def test_nothing_is_forwarded_if_forwarding_is_off(
    chain: tuple[SocketInstance, SocketInstance, SocketInstance],
) -> None:
    """Messages for other instances are dropped and not acknowledged."""
    shop, between, _ = chain
    recorder = EventRecorder(between, kinds=(MessageUndeliverable,))
    sales = socket_instances.shop(shop)
    shop.add_route("Sales", STOCK, between.address)
    order(sales, b"two chairs")
    recorder.wait_for(bool)
    event = recorder.events[0]
    assert isinstance(event, MessageUndeliverable)
    assert event.error == 9792
    wait_for_status(sales, f"9792: sent to {between.address}, but that instance would have to forward")


@pytest.mark.rule("R43")
def test_a_drop_at_a_forwarder_is_in_the_status(instance_group: InstanceGroup) -> None:
    shop, between = (instance_group.create_instance(name) for name in ("near", "between"))
    sales = socket_instances.shop(shop)
    shop.add_route("Sales", STOCK, between.address)
    between.add_route("msdb", STOCK, shop.address)  # back to where messages come from
    between.enable_forwarding()
    order(sales, b"two chairs")
    wait_for_status(sales, f"9753: sent to {between.address}, but that instance could not forward it")


@pytest.mark.rule("R42")
def test_a_loop_of_two_forwarders_ends(instance_group: InstanceGroup) -> None:
    """One of them drops the message with a reason each time it is sent; the sender keeps it."""
    shop, first, second = (instance_group.create_instance(name) for name in ("near", "one", "other"))
    sales = socket_instances.shop(shop)
    shop.add_route("Sales", STOCK, first.address)
    first.add_route("msdb", STOCK, second.address)
    second.add_route("msdb", STOCK, first.address)
    sent = EventRecorder(first, second, kinds=(ForwardedMessageSent,))
    dropped = EventRecorder(first, second, kinds=(ForwardedMessageDropped,))
    for each in (first, second):
        each.enable_forwarding()
    order(sales, b"two chairs")
    dropped.wait_for(lambda events: len(events) > 1)
    assert {event.error for event in dropped.events if isinstance(event, ForwardedMessageDropped)} <= {28071, 11285}
    assert len(sent.events) <= 15 * (len(dropped.events) + 1)
    assert instance_of(sales).view("sys.transmission_queue").num_rows == 1
