"""Held rows of other instances follow changed routes (R43)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker import schemas
from tests.broker.network.forwarded_rows import (
    TARGET_BROKER,
    Forwarder,
    Outboxes,
    decisions,
    forward_to,
    peer,
    row,
    wire,
)
from tests.broker.network.memory_connections import MemoryNetwork
from tests.broker.sample_databases import SHOP, STOCK, received, shop, stock, waiting

OLD = "TCP://old.example:4022"
NEW = "TCP://new.example:4022"
OTHER = "TCP://other.example:4022"
MIRROR = "TCP://mirror.example:4022"


@pytest.fixture
def forwarder() -> Forwarder:
    return Forwarder()


def route_all_to(address: str) -> Callable[[pa.Table], pa.Table]:
    """Routing that forwards all rows to one address."""
    return lambda rows: forward_to(address, rows.num_rows)


def drop_all(rows: pa.Table) -> pa.Table:
    """Routing that finds no route."""
    dropped = {"outcome": "DROPPED", "match_step": 7, "reason": "no_route"}
    return pa.Table.from_pylist([dropped] * rows.num_rows, schema=schemas.DECISIONS)


def make_unreachable(forwarder: Forwarder, address: str) -> None:
    """Makes an address unreachable: a dial has failed and its wait has started."""
    forwarder.outboxes.box(address).block()
    forwarder.forwarding.connection_failed(address, "connection refused")


def numbers(rows: list[dict[str, int]]) -> list[int]:
    return [each["message_sequence_number"] for each in rows]


@pytest.mark.rule("R54")
def test_rows_held_for_a_mirrored_route_follow_the_changed_route(tmp_path: Path) -> None:
    """Otherwise rows for partners that no longer exist would be held, and those sent again would be duplicates."""
    with ExitStack() as stack:
        network = MemoryNetwork(tmp_path, stack)
        near, between, far = (network.instance(name) for name in ("near", "between", "far"))
        sales, orders = shop(near), stock(far)
        sales.create_route("There", service_name=STOCK, address="TCP://between:4022")
        orders.create_route("Back", service_name=SHOP, address="TCP://near:4022")
        between.execute(
            "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)"
        )
        between.msdb.create_route("Back", service_name=SHOP, address="TCP://near:4022")
        guid = orders.service_broker_guid
        between.msdb.create_route(
            "On", service_name=STOCK, broker_instance=str(guid), address=OLD, mirror_address=MIRROR
        )
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False, broker_instance=guid), b"two chairs")
        network.settle()
        assert between.view("sys.dm_broker_forwarded_messages").num_rows == 1
        between.msdb.drop_route("On")
        between.msdb.create_route("On", service_name=STOCK, address="TCP://far:4022")
        network.settle(seconds=2)
        assert received(orders) == [b"two chairs"]
        assert waiting(sales) == []
        assert between.view("sys.dm_broker_forwarded_messages").num_rows == 0


@pytest.mark.rule("R43")
def test_rows_for_an_unreachable_address_follow_the_changed_route(forwarder: Forwarder) -> None:
    """None is sent to the old address."""
    make_unreachable(forwarder, OLD)
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), forward_to(OLD, 2))
    forwarder.forwarding.reroute(route_all_to(NEW))
    assert numbers(forwarder.outboxes.write(NEW)) == [0, 1]
    forwarder.outboxes.box(OLD).unblock()
    forwarder.forwarding.outbox_drained(OLD)
    assert forwarder.outboxes.write(OLD) == []
    assert forwarder.forwarding.pending == (0, 0)
    assert forwarder.drop_errors == []


@pytest.mark.rule("R43")
def test_rows_of_one_batch_may_get_different_routes(forwarder: Forwarder) -> None:
    make_unreachable(forwarder, OLD)
    forwarder.forwarding.forward(peer(), wire([row(number) for number in range(4)]), forward_to(OLD, 4))
    next_hops = [NEW, OTHER, OLD, NEW]
    forwarder.forwarding.reroute(lambda _: decisions([(next_hop, None, None) for next_hop in next_hops]))
    assert numbers(forwarder.outboxes.write(NEW)) == [0, 3]
    assert numbers(forwarder.outboxes.write(OTHER)) == [1]
    forwarder.outboxes.box(OLD).unblock()
    forwarder.forwarding.outbox_drained(OLD)
    assert numbers(forwarder.outboxes.write(OLD)) == [2]


@pytest.mark.rule("R42", "R43")
def test_rows_without_a_route_are_dropped(forwarder: Forwarder) -> None:
    """11294, as after forwarding was disabled or a local service was created."""
    make_unreachable(forwarder, OLD)
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(OLD))
    forwarder.forwarding.forward(peer(), wire([row(1)]), forward_to(OLD, mirror=MIRROR, broker_instance=TARGET_BROKER))
    forwarder.forwarding.reroute(drop_all)
    assert forwarder.drop_errors == [11294, 11294]
    assert {each.next_hop_address for each in forwarder.dropped} == {OLD}
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R43")
def test_rows_with_an_unchanged_route_keep_their_position(forwarder: Forwarder) -> None:
    """A changed catalog does not send rows again."""
    forwarder = Forwarder(outboxes=Outboxes(max_bytes=1))
    for number in range(4):
        forwarder.forwarding.forward(peer(), wire([row(number)]), forward_to(OLD))
    forwarder.forwarding.reroute(route_all_to(OLD))
    forwarder.forwarding.forward(peer(), wire([row(0), row(3)]), forward_to(OLD, 2))
    assert forwarder.drop_errors == [11288, 11288]
    sequence_numbers = []
    while written := forwarder.outboxes.write(OLD):
        sequence_numbers += numbers(written)
        forwarder.forwarding.outbox_drained(OLD)
    assert sequence_numbers == [0, 1, 2, 3]


@pytest.mark.rule("R43")
def test_rows_in_the_outbox_of_a_stalled_peer_may_be_duplicated(forwarder: Forwarder) -> None:
    """A stalled next hop may be the reason for the changed route."""
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(OLD))
    forwarder.forwarding.reroute(route_all_to(NEW))
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEW))
    assert numbers(forwarder.outboxes.write(NEW)) == [0]
    assert forwarder.drop_errors == []


def test_nothing_is_routed_if_no_rows_are_held(forwarder: Forwarder) -> None:
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(OLD))
    forwarder.outboxes.write(OLD)

    def refuse(rows: pa.Table) -> pa.Table:
        raise AssertionError(rows)

    forwarder.forwarding.reroute(refuse)
