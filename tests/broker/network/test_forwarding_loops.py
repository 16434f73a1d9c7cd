"""Routing loops over many instances: a row is dropped once, with a reason, after at most 15 forwards (R41, R42)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker import Catalog, Router, schemas
from ssbroker.broker.network.forwarding import MessageForwarder
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.events import Event, EventLog, ForwardedMessageDropped, ForwardedMessageSent
from ssbroker.protocol.wire.frames import HOPS_MAX, WIRE
from tests.broker.network.forwarded_rows import TARGET_SERVICE, Outboxes, peer, row, wire

OUTSIDE = 0
NO_LIMIT = 1 << 40


def address(number: int) -> str:
    return f"TCP://i{number}.example:4022"


@dataclass
class Node:
    """A forwarding instance: its routing table, its outboxes and its events."""

    number: int
    next_number: int | None
    knows_peers: bool = True
    outboxes: Outboxes = field(default_factory=Outboxes)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        log = EventLog()
        log.subscribe(self.events.append)
        self.forwarding = MessageForwarder(
            self.outboxes, resolve_mirror=lambda *_: None, max_bytes=lambda: NO_LIMIT, events=log, clock=lambda: 0
        )
        self.router = Router(self.catalog())
        if self.next_number is not None:
            answer = partial(self.forwarding.connected, address(self.next_number), peer_of(self.next_number))
            self.outboxes.on_dial = lambda _: answer()
            if self.knows_peers:
                answer()

    def catalog(self) -> Catalog:
        """Returns a catalog with one route in msdb, to the next instance or to a local service."""
        route = {
            "database": "msdb",
            "name": "on",
            "remote_service_name": TARGET_SERVICE,
            "address": "LOCAL" if self.next_number is None else address(self.next_number),
        }
        services = [] if self.next_number is not None else [{"database": "msdb", "name": TARGET_SERVICE}]
        return Catalog(
            pa.Table.from_pylist([route]),
            services=pa.Table.from_pylist(services, schema=schemas.SERVICES),
            addresses=[address(self.number)],
            message_forwarding=True,
        )

    def take(self, sender: int, rows: pa.Table) -> list[str]:
        """Routes rows and forwards those for other instances; returns the outcomes of the other rows."""
        conversations = pa.Table.from_arrays(
            [
                rows["conversation_id"],
                pa.nulls(rows.num_rows, pa.string()),
                rows["to_service_name"],
                pa.nulls(rows.num_rows, schemas.GUID),
                rows["is_initiator"],
            ],
            schema=schemas.CONVERSATIONS,
        )
        decisions = self.router.route(conversations)
        outcomes: list[str] = [str(each) for each in decisions["outcome"].to_pylist()]
        forwarded = pa.array([index for index, outcome in enumerate(outcomes) if outcome == "FORWARD"], pa.int64())
        self.forwarding.forward(peer_of(sender), rows.take(forwarded), decisions.take(forwarded))
        return [outcome for outcome in outcomes if outcome != "FORWARD"]

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


def peer_of(number: int) -> Peer:
    """Returns the peer of an instance number."""
    return peer(number, address=address(number))


@dataclass
class Outcome:
    """The outcomes of the rows."""

    delivered: int = 0
    dropped: int = 0
    forwards: int = 0
    errors: set[int] = field(default_factory=set)


def pass_through(nodes: dict[int, Node], first: int, *, rows: int = 1) -> Outcome:
    """Gives rows to one instance and forwards them until none is in transit."""
    result = Outcome()
    in_transit = deque([(OUTSIDE, first, wire([row(number) for number in range(rows)]))])
    while in_transit:
        sender, number, table = in_transit.popleft()
        node = nodes[number]
        outcomes = node.take(sender, table)
        result.delivered += outcomes.count("LOCAL")
        result.dropped += outcomes.count("DROPPED")
        if node.next_number is not None and (written := node.outboxes.write(address(node.next_number))):
            in_transit.append((number, node.next_number, pa.Table.from_pylist(written, schema=WIRE)))
    for node in nodes.values():
        node.forwarding.run_due(now=0)
        result.forwards += node.count(ForwardedMessageSent)
        result.dropped += node.count(ForwardedMessageDropped)
        result.errors |= {event.error for event in node.events if isinstance(event, ForwardedMessageDropped)}
        assert node.forwarding.pending == (0, 0)
    return result


def ring(length: int, *, knows_peers: bool = True) -> dict[int, Node]:
    """Instances that each route to the next one, and the last one to the first."""
    return {number: Node(number, number % length + 1, knows_peers=knows_peers) for number in range(1, length + 1)}


@pytest.mark.rule("R42")
@pytest.mark.threat("T16")
@pytest.mark.parametrize("length", [3, 4, 15, 16, 17, 300])
def test_a_ring_ends_at_the_hop_limit(length: int) -> None:
    """11285, at the sixteenth instance."""
    result = pass_through(ring(length), 1)
    assert (result.delivered, result.dropped, result.forwards, result.errors) == (0, 1, HOPS_MAX - 1, {11285})


@pytest.mark.rule("R42")
@pytest.mark.parametrize("knows_peers", [True, False])
def test_two_instances_that_route_to_each_other_stop_immediately(*, knows_peers: bool) -> None:
    """Rows are not sent back to their sender, even if the instance at the address is unknown until it has answered."""
    result = pass_through(ring(2, knows_peers=knows_peers), 1)
    assert (result.dropped, result.forwards, result.errors) == (1, 1, {28071})


@pytest.mark.rule("R42", "R41")
def test_an_instance_that_routes_to_itself_forwards_nothing() -> None:
    """The routing decision is a routing loop."""
    result = pass_through(ring(1), 1)
    assert (result.dropped, result.forwards) == (1, 0)


@pytest.mark.rule("R42")
@pytest.mark.threat("T16")
@pytest.mark.parametrize(("length", "arrives"), [(2, True), (15, True), (16, True), (17, False)])
def test_messages_pass_a_chain_of_at_most_sixteen_instances(length: int, arrives: bool) -> None:  # noqa: FBT001
    """Sixteen instances need fifteen forwards; the message is not dropped as a loop."""
    nodes = {number: Node(number, number + 1 if number < length else None) for number in range(1, length + 1)}
    result = pass_through(nodes, 1, rows=3)
    assert (result.delivered, result.dropped) == ((3, 0) if arrives else (0, 3))


@pytest.mark.rule("R42", "R41")
@given(
    next_indexes=st.lists(st.integers(-1, 19), min_size=1, max_size=20),
    first=st.integers(0, 19),
    knows_peers=st.booleans(),
)
def test_with_any_routes_every_row_ends_once(next_indexes: list[int], first: int, *, knows_peers: bool) -> None:
    """Each row is delivered or dropped, and never forwarded more often than its hops allow."""
    count = len(next_indexes)
    nodes = {
        number: Node(number, None if next_index < 0 else next_index % count + 1, knows_peers=knows_peers)
        for number, next_index in enumerate(next_indexes, start=1)
    }
    path, at = [first % count + 1], first % count + 1
    while (after := nodes[at].next_number) is not None and len(path) <= HOPS_MAX:
        path.append(after)
        at = after
    result = pass_through(nodes, first % count + 1, rows=2)
    assert result.delivered + result.dropped == 2
    assert result.forwards <= 2 * (HOPS_MAX - 1)
    arrives = nodes[path[-1]].next_number is None and len(path) <= HOPS_MAX
    assert result.delivered == (2 if arrives else 0)
