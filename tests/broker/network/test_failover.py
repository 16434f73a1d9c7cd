"""Failover of a mirrored pair of real instances that receives messages (R51 to R54)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.network.mirrored_routes import MirroredRouteState
from ssbroker.protocol.events import Event, MirroredRouteStateChanged
from tests.broker.network import socket_instances
from tests.broker.network.socket_instances import (
    EventRecorder,
    InstanceGroup,
    SocketInstance,
    order,
    receive_count,
    wait_until_sent,
)
from tests.broker.sample_databases import SHOP, STOCK
from tests.internals import instance_of


@pytest.fixture
def instance_group(tmp_path: Path) -> Iterator[InstanceGroup]:
    with socket_instances.instance_group(tmp_path) as made:
        yield made


@dataclass
class Pair:
    """A shop and the two instances of a mirrored stock."""

    instance_group: InstanceGroup
    near: SocketInstance
    first: SocketInstance
    second: SocketInstance
    sales: Database
    stock: Database
    recorder: EventRecorder

    def fail_over(self, old: SocketInstance, new: SocketInstance) -> Database:
        """Fails over like a mirroring system: closes the old principal; the new one has its committed data."""
        database = old.instance.database("Stock")
        guid = database.service_broker_guid
        old.server.close()
        copy = self.instance_group.copy(database, f"{new.instance.name} {len(self.recorder.events)}.sqlite")
        if any(each.name == "Stock" for each in new.instance.databases):
            new.instance.drop_database("Stock")
        attached = new.instance.attach_database("Stock", copy)
        assert attached.service_broker_guid == guid
        attached.set_mirroring_role("mirror")
        attached.set_mirroring_role("principal")
        return attached

    def attach_mirror(self, database: Database, at: SocketInstance) -> Database:
        """Attaches a copy of the database as the mirror."""
        copy = self.instance_group.copy(database, f"{at.instance.name}.sqlite")
        attached = at.instance.attach_database("Stock", copy)
        attached.set_mirroring_role("mirror")
        return attached

    def wait_for_state(self, state: MirroredRouteState) -> None:
        """Waits until the sender reports this state of the route."""
        self.recorder.wait_for(lambda events: states(events)[-1:] == [state])


def states(events: list[Event]) -> list[str]:
    """Returns the states of a route, in order."""
    return [event.state for event in events if isinstance(event, MirroredRouteStateChanged)]


@pytest.fixture
def pair(instance_group: InstanceGroup) -> Pair:
    """A pair whose first instance is the principal and whose second is the mirror."""
    near, first, second = (instance_group.create_instance(name) for name in ("near", "first", "second"))
    sales, stock = socket_instances.shop(near), socket_instances.stock(first)
    first.add_route("Stock", SHOP, near.address)
    near.add_route("Sales", STOCK, first.address, mirror=second.address, broker=stock.service_broker_guid)
    pair = Pair(
        instance_group, near, first, second, sales, stock, EventRecorder(near, kinds=(MirroredRouteStateChanged,))
    )
    pair.attach_mirror(stock, second)
    return pair


@pytest.mark.rule("R52", "R51")
def test_all_messages_go_to_the_principal(pair: Pair) -> None:
    order(pair.sales, b"one", b"two")
    assert receive_count(pair.stock, 2) == [b"one", b"two"]
    assert states(pair.recorder.events) == [MirroredRouteState.PRINCIPAL_IS_ADDRESS]
    assert pair.second.instance.view("dbo.Orders").num_rows == 0


@pytest.mark.rule("R53", "P11")
def test_a_conversation_continues_with_the_new_principal(pair: Pair) -> None:
    dialog = order(pair.sales, b"one", b"two")
    assert receive_count(pair.stock, 2) == [b"one", b"two"]
    new = pair.fail_over(pair.first, pair.second)
    order(pair.sales, b"three", b"four", dialog=dialog)
    assert receive_count(new, 2) == [b"three", b"four"]
    assert states(pair.recorder.events)[-1] == MirroredRouteState.PRINCIPAL_IS_MIRROR


@pytest.mark.rule("R54")
def test_nothing_is_sent_without_a_claim(pair: Pair) -> None:
    """The principal is closed, and the mirror has not been promoted."""
    dialog = order(pair.sales, b"one")
    assert receive_count(pair.stock, 1) == [b"one"]
    pair.first.server.close()
    order(pair.sales, b"two", dialog=dialog)
    pair.wait_for_state(MirroredRouteState.LOST_ADDRESS)
    assert instance_of(pair.sales).view("sys.transmission_queue").num_rows >= 1
    assert pair.second.instance.view("dbo.Orders").num_rows == 0
    copy = pair.instance_group.copy(pair.stock, "late.sqlite")
    pair.second.instance.drop_database("Stock")
    mirror = pair.second.instance.attach_database("Stock", copy)
    mirror.set_mirroring_role("principal", number=1)
    assert receive_count(mirror, 1) == [b"two"]


@pytest.mark.rule("R54")
@pytest.mark.threat("T23")
def test_nothing_is_sent_while_claims_are_equal(pair: Pair) -> None:
    second = pair.second.instance.database("Stock")
    second.set_mirroring_role("principal")
    pair.stock.set_mirroring_role("principal", number=1)
    order(pair.sales, b"one")
    pair.wait_for_state(MirroredRouteState.CONTESTED)
    for served in (pair.first, pair.second):
        assert served.instance.view("dbo.Orders").num_rows == 0
    pair.stock.set_mirroring_role("principal", number=2)
    assert receive_count(pair.stock, 1) == [b"one"]
    assert pair.second.instance.view("dbo.Orders").num_rows == 0


@pytest.mark.rule("R53")
def test_a_resigned_principal_gets_nothing(pair: Pair) -> None:
    """Both instances are reachable, as in a manual failover."""
    order(pair.sales, b"one")
    assert receive_count(pair.stock, 1) == [b"one"]
    wait_until_sent(pair.sales)
    pair.stock.set_mirroring_role("mirror")
    second = pair.second.instance.database("Stock")
    second.set_mirroring_role("principal")
    order(pair.sales, b"two")
    assert receive_count(second, 1) == [b"two"]
    assert pair.first.instance.view("dbo.Orders").num_rows == 0
    assert states(pair.recorder.events)[-1] == MirroredRouteState.PRINCIPAL_IS_MIRROR


@pytest.mark.rule("R53", "R51", "R52", "R54", "R43")
def test_a_forwarder_follows_the_principal_too(instance_group: InstanceGroup) -> None:
    """The mirrored route is in the forwarder's msdb."""
    near, between, first, second = (
        instance_group.create_instance(name) for name in ("near", "between", "first", "second")
    )
    sales, stock = socket_instances.shop(near), socket_instances.stock(first)
    near.add_route("Sales", STOCK, between.address)
    between.add_route("msdb", STOCK, first.address, mirror=second.address, broker=stock.service_broker_guid)
    between.add_route("msdb", SHOP, near.address)
    first.add_route("Stock", SHOP, between.address)
    between.enable_forwarding()
    pair = Pair(
        instance_group, near, first, second, sales, stock, EventRecorder(between, kinds=(MirroredRouteStateChanged,))
    )
    pair.attach_mirror(stock, second)
    dialog = order(sales, b"one")
    assert receive_count(stock, 1) == [b"one"]
    new = pair.fail_over(first, second)
    order(sales, b"two", dialog=dialog)
    assert receive_count(new, 1) == [b"two"]
    assert states(pair.recorder.events) == [
        MirroredRouteState.PRINCIPAL_IS_ADDRESS,
        MirroredRouteState.LOST_ADDRESS,
        MirroredRouteState.PRINCIPAL_IS_MIRROR,
    ]
