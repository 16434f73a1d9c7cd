"""R41, R42: routes in a loop over many instances: a row ends once, with a reason, after at most 15 forwards."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker import Catalog, Router, schemas
from ssbroker.broker.network.forwarding import MessageForwarder
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.events import Event, EventLog, ForwardedMessageDropped, ForwardedMessageSent
from ssbroker.protocol.wire.frames import HOPS_MAX, WIRE
from tests.broker.network.forwarded_rows import TO, Outboxes, peer, row, wire

OUTSIDE = 0
NO_LIMIT = 1 << 40


def address(number: int) -> str:
    return f"TCP://i{number}.example:4022"


@dataclass
class Node:
    """An instance that only passes on: its routing table, its outboxes, and what it said."""

    number: int
    leads_to: int | None
    knows_neighbours: bool = True
    outboxes: Outboxes = field(default_factory=Outboxes)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        log = EventLog()
        log.subscribe(self.events.append)
        self.forwarding = MessageForwarder(
            self.outboxes, resolve_mirror=lambda *_: None, max_bytes=lambda: NO_LIMIT, events=log, clock=lambda: 0
        )
        self.router = Router(self.catalog())
        if self.knows_neighbours and self.leads_to is not None:
            self.forwarding.connected(address(self.leads_to), neighbor_peer(self.leads_to))

    def catalog(self) -> Catalog:
        """Its msdb's routes: one that leads on, or to a service of its own."""
        route = {
            "database": "msdb",
            "name": "on",
            "remote_service_name": TO,
            "address": "LOCAL" if self.leads_to is None else address(self.leads_to),
        }
        services = [] if self.leads_to is not None else [{"database": "msdb", "name": TO}]
        return Catalog(
            pa.Table.from_pylist([route]),
            services=pa.Table.from_pylist(services, schema=schemas.SERVICES),
            addresses=[address(self.number)],
            message_forwarding=True,
        )

    def take(self, came_from: int, rows: pa.Table) -> list[str]:
        """Routes what has come, and passes on what is for others; the outcome of each row."""
        asked = pa.Table.from_arrays(
            [
                rows["conversation_id"],
                pa.nulls(rows.num_rows, pa.string()),
                rows["to_service_name"],
                pa.nulls(rows.num_rows, schemas.GUID),
                rows["is_initiator"],
            ],
            schema=schemas.CONVERSATIONS,
        )
        decisions = self.router.route(asked)
        outcomes: list[str] = [str(each) for each in decisions["outcome"].to_pylist()]
        onward = pa.array([place for place, outcome in enumerate(outcomes) if outcome == "FORWARD"], pa.int64())
        self.forwarding.forward(neighbor_peer(came_from), rows.take(onward), decisions.take(onward))
        return [outcome for outcome in outcomes if outcome != "FORWARD"]

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


def neighbor_peer(number: int) -> Peer:
    """An instance, as its neighbours know it."""
    return peer(number, address=address(number))


@dataclass
class Ended:
    """What became of a row."""

    delivered: int = 0
    dropped: int = 0
    forwards: int = 0
    why: set[int] = field(default_factory=set)


def pass_through(nodes: dict[int, Node], first: int, *, rows: int = 1) -> Ended:
    """Hands rows to one of the instances, and lets them go on until none is under way."""
    ended = Ended()
    under_way = deque([(OUTSIDE, first, wire([row(number) for number in range(rows)]))])
    while under_way:
        came_from, number, table = under_way.popleft()
        node = nodes[number]
        outcomes = node.take(came_from, table)
        ended.delivered += outcomes.count("LOCAL")
        ended.dropped += outcomes.count("DROPPED")
        if node.leads_to is not None and (written := node.outboxes.write(address(node.leads_to))):
            under_way.append((number, node.leads_to, pa.Table.from_pylist(written, schema=WIRE)))
    for node in nodes.values():
        node.forwarding.run_due(now=0)
        ended.forwards += node.count(ForwardedMessageSent)
        ended.dropped += node.count(ForwardedMessageDropped)
        ended.why |= {event.error for event in node.events if isinstance(event, ForwardedMessageDropped)}
        assert node.forwarding.pending == (0, 0)
    return ended


def ring(length: int, *, knows_neighbours: bool = True) -> dict[int, Node]:
    """Instances each of which leads to the next, and the last one to the first."""
    return {
        number: Node(number, number % length + 1, knows_neighbours=knows_neighbours) for number in range(1, length + 1)
    }


@pytest.mark.rule("R42")
@pytest.mark.threat("T16")
@pytest.mark.parametrize("length", [3, 4, 15, 16, 17, 300])
def test_a_ring_ends_at_the_hop_limit(length: int) -> None:
    """11285, by the sixteenth instance."""
    ended = pass_through(ring(length), 1)
    assert (ended.delivered, ended.dropped, ended.forwards, ended.why) == (0, 1, HOPS_MAX - 1, {11285})


@pytest.mark.rule("R42")
def test_two_instances_that_route_to_each_other_stop_immediately() -> None:
    """Nothing goes back to who brought it."""
    ended = pass_through(ring(2), 1)
    assert (ended.dropped, ended.forwards, ended.why) == (1, 1, {28071})


@pytest.mark.rule("R42")
def test_two_unknown_instances_end_at_the_hop_limit() -> None:
    """Whom an address leads to is known once it has answered."""
    ended = pass_through(ring(2, knows_neighbours=False), 1)
    assert (ended.dropped, ended.forwards, ended.why) == (1, HOPS_MAX - 1, {11285})


@pytest.mark.rule("R42", "R41")
def test_an_instance_that_routes_to_itself_forwards_nothing() -> None:
    """The decision is a routing loop."""
    ended = pass_through(ring(1), 1)
    assert (ended.dropped, ended.forwards) == (1, 0)


@pytest.mark.rule("R42")
@pytest.mark.threat("T16")
@pytest.mark.parametrize(("length", "arrives"), [(2, True), (15, True), (16, True), (17, False)])
def test_a_chain_of_sixteen_is_not_too_long(length: int, arrives: bool) -> None:  # noqa: FBT001
    """Fifteen forwards between sixteen instances; a legitimate message is not dropped as a loop."""
    nodes = {number: Node(number, number + 1 if number < length else None) for number in range(1, length + 1)}
    ended = pass_through(nodes, 1, rows=3)
    assert (ended.delivered, ended.dropped) == ((3, 0) if arrives else (0, 3))


@pytest.mark.rule("R42", "R41")
@given(
    leads=st.lists(st.integers(-1, 19), min_size=1, max_size=20),
    first=st.integers(0, 19),
    knows_neighbours=st.booleans(),
)
def test_with_any_routes_every_row_ends_once(leads: list[int], first: int, *, knows_neighbours: bool) -> None:
    """R41, R42, G14: delivered or dropped with a reason, and never forwarded more often than its hops allow."""
    count = len(leads)
    nodes = {
        number: Node(number, None if lead < 0 else lead % count + 1, knows_neighbours=knows_neighbours)
        for number, lead in enumerate(leads, start=1)
    }
    path, at = [first % count + 1], first % count + 1
    while (after := nodes[at].leads_to) is not None and len(path) <= HOPS_MAX:
        path.append(after)
        at = after
    ended = pass_through(nodes, first % count + 1, rows=2)
    assert ended.delivered + ended.dropped == 2
    assert ended.forwards <= 2 * (HOPS_MAX - 1)
    arrives = nodes[path[-1]].leads_to is None and len(path) <= HOPS_MAX
    assert ended.delivered == (2 if arrives else 0)
