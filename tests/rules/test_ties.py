"""Picking one of several equal candidates: by hash, in turns, or the first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from uuid import UUID

import pyarrow as pa
import pytest

import ssbroker
from tests.oracle.world import Conversation, Decision, World
from tests.rules.setting import MSDB, OUTSIDE, SALES, STORES, decide, decide_all, here, local, remote, route
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.universe import NOW

IDS = tuple(UUID(int=number) for number in range(1, 10))
NAMES = ("Alpha", "Beta", "Delta", "Zeta", "alpha", "Äther")


def conversations(count: int, *, name: str = "Orders", database: str | None = "Sales") -> list[Conversation]:
    random = Random(24)
    return [
        Conversation(to_service_name=name, database=database, conversation_id=UUID(int=random.getrandbits(128)))
        for _ in range(count)
    ]


def network_routes(count: int) -> World:
    """Returns equal routes; later rows have lower ids."""
    return here(*(route(100 - number, f"TCP://h{number}") for number in range(count)))


@pytest.mark.rule("R24")
def test_the_default_is_hash() -> None:
    catalog = catalog_of(network_routes(9))
    batch = batch_of(conversations(100))
    default, chosen = ssbroker.Router(catalog), ssbroker.Router(catalog, tie_break="hash")
    assert (default.tie_break, default.pending_request) == ("hash", "continue")
    assert default.route(batch, now=NOW).equals(chosen.route(batch, now=NOW))


@pytest.mark.rule("R24")
def test_first_takes_the_lowest_route_id() -> None:
    """Not the first row."""
    assert decide(network_routes(9), "Orders", tie_break="first") == remote(5, 92, "TCP://h8:4022")


@pytest.mark.rule("R24", "R13")
def test_first_takes_the_broker_id_with_the_lowest_live_route_id() -> None:
    """Not the lowest broker id, and expired routes do not count."""
    routes = (
        route(5, "TCP://h5", service="Orders", broker=IDS[0]),
        route(4, "TCP://h4", service="Orders", broker=IDS[1]),
        route(3, "TCP://h3", service="Orders", broker=IDS[2], lifetime=NOW),
        route(6, "TCP://h6", service="Orders", broker=IDS[1]),
        route(9, "TCP://h9", service="Orders", broker=IDS[2]),
    )
    assert decide(here(*routes), "Orders", tie_break="first") == remote(3, 4, "TCP://h4:4022", broker=IDS[1])


@pytest.mark.rule("R24", "R32")
def test_first_takes_the_first_database_in_byte_order() -> None:
    """Upper case before lower case, ASCII before the rest, whatever the order in the catalog."""
    hosts = tuple((name, "Orders") for name in ("Äther", "alpha", "Zeta", "Beta"))
    for order in (hosts, hosts[::-1]):
        world = World(routes=(route(1, "LOCAL", table=MSDB), *(route(1, "LOCAL", table=name) for name in NAMES)))
        world = replace(world, services=here(services=order).services)
        decision = decide(world, "Orders", started_in=OUTSIDE, tie_break="first")
        assert decision == local(5, 1, "Beta")


@pytest.mark.rule("R24", "R32")
def test_a_service_that_is_listed_twice_counts_once() -> None:
    """Its database is one candidate, by turns and by hash."""
    hosts = (("Sales", "Orders"), ("Sales", "Orders"), ("Stores", "Orders"))
    world = here(route(1, "LOCAL", table=MSDB), services=hosts)
    decisions = in_turns(world, conversations(4, database=OUTSIDE))
    assert [decision.target_database for decision in decisions] == ["Sales", "Stores"] * 2
    one_host = here(route(1, "LOCAL", table=MSDB), services=hosts[1:])
    inputs = conversations(200, database=OUTSIDE)
    assert decide_all(world, inputs) == decide_all(one_host, inputs)


PINNED = {
    UUID(int=0): -3510225485978208079,
    UUID("5fb8d92b-ed69-4c80-afbb-2aa6a7d3cb2d"): 6632661513934277334,
    UUID(int=2**128 - 1): -8690740447264083704,
}
"""`xxhash64` of three conversation ids in Spark."""


@pytest.mark.rule("R24")
@pytest.mark.threat("T21")
@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("conversation_id", PINNED)
def test_the_hash_is_stable(conversation_id: UUID, count: int) -> None:
    """Candidate `floor(h * n / 2^64)`; any change would move the conversations of a live system."""
    picked = (PINNED[conversation_id] + 2**63) * count >> 64
    ids = here(*(route(n, "TCP://h", service="Orders", broker=broker) for n, broker in enumerate(IDS[:count])))
    assert decide(ids, "Orders", conversation_id=conversation_id).broker_instance == IDS[picked]
    routes = here(*(route(n, f"TCP://h{n}") for n in range(count)))
    assert decide(routes, "Orders", conversation_id=conversation_id).route_id == picked
    names = [f"D{number}" for number in range(count)]
    world = World(
        routes=(route(1, "LOCAL", table=MSDB), *(route(1, "LOCAL", table=name) for name in names)),
        services=here(services=tuple((name, "Orders") for name in names)).services,
    )
    located = decide(world, "Orders", conversation_id=conversation_id, started_in=OUTSIDE)
    assert located.target_database == names[picked]


@pytest.mark.rule("R24", "R13")
def test_the_picks_of_one_conversation_are_independent() -> None:
    """Two broker ids with two routes each: each of the four routes gets a quarter."""
    world = here(
        *(route(n, f"TCP://h{n}", service="Orders", broker=broker) for n, broker in enumerate((*IDS[:2], *IDS[:2])))
    )
    answers = Counter(answer.route_id for answer in decide_all(world, conversations(2000)))
    assert set(answers) == {0, 1, 2, 3}
    assert min(answers.values()) > 400


@pytest.mark.rule("R24", "R41")
def test_the_second_table_uses_what_the_first_left_of_the_hash() -> None:
    """So that it does not repeat the choice of the first one."""
    own = "TCP://own.example:4022"
    world = here(
        route(1, own, service="Orders", broker=IDS[0]),
        route(2, own, service="Orders", broker=IDS[1]),
        *(route(n, f"TCP://h{n}", table=MSDB) for n in range(2)),
        own=(own,),
        forwarding=True,
    )
    inputs = conversations(400)
    directly = [replace(conversation, database=None) for conversation in inputs]
    one = [decision.route_id for decision in decide_all(world, inputs)]
    other = [decision.route_id for decision in decide_all(world, directly)]
    agreeing = sum(a == b for a, b in zip(one, other, strict=True))
    assert 150 < agreeing < 250


@pytest.mark.rule("R24")
def test_a_conversation_always_gets_the_same_decision() -> None:
    """On every retry, in every batch, from every router of the same catalog."""
    inputs = conversations(300)
    decisions = decide_all(network_routes(7), inputs)
    again = decide_all(network_routes(7), [*inputs[200:], *inputs[:200]])
    assert again == [*decisions[200:], *decisions[:200]]


@pytest.mark.rule("R24")
def test_the_hash_does_not_depend_on_the_order_of_the_routes() -> None:
    """The same table written in another order."""
    world = network_routes(7)
    turned = replace(world, routes=world.routes[::-1])
    assert decide_all(world, conversations(300)) == decide_all(turned, conversations(300))


@pytest.mark.rule("R24")
def test_turns_continue_from_batch_to_batch() -> None:
    """Seven batches of five among three routes; a new router starts over."""
    router = ssbroker.Router(catalog_of(network_routes(3)), tie_break="round_robin")
    batch = batch_of(conversations(5))
    taken = [decision.route_id for _ in range(7) for decision in decisions_of(router.route(batch, now=NOW))]
    assert taken == ([98, 99, 100] * 12)[:35]
    another_router = ssbroker.Router(router.catalog, tie_break="round_robin")
    assert [decision.route_id for decision in decisions_of(another_router.route(batch, now=NOW))] == [
        98,
        99,
        100,
        98,
        99,
    ]


@pytest.mark.rule("R24")
def test_each_service_id_and_class_has_its_own_turn() -> None:
    """Conversations with other services do not advance the turns of a service."""
    world = here(
        *(route(n, f"TCP://h{n}", service="Orders") for n in (1, 2)),
        *(route(n, f"TCP://h{n}", service="Returns") for n in (3, 4)),
        *(route(n, f"TCP://h{n}", service="Orders", broker=SALES) for n in (5, 6)),
        *(route(n, f"TCP://h{n}") for n in (7, 8)),
        *(route(n, f"TCP://h{n}", service="Orders", table="Stores") for n in (1, 2)),
    )
    kinds = [
        Conversation(to_service_name="Orders", database="Sales"),
        Conversation(to_service_name="Returns", database="Sales"),
        Conversation(to_service_name="Orders", database="Sales", to_broker_instance=SALES),
        Conversation(to_service_name="Other", database="Sales"),
        Conversation(to_service_name="Orders", database="Stores"),
    ]
    decisions = in_turns(world, kinds * 3)
    assert [decision.route_id for decision in decisions] == [1, 3, 5, 7, 1, 2, 4, 6, 8, 2, 1, 3, 5, 7, 1]


@pytest.mark.rule("R24", "R22")
def test_the_classes_of_one_search_have_their_own_turns() -> None:
    """Local deliveries do not advance the turns of network routes."""
    world = here(route(1, "LOCAL"), *(route(n, f"TCP://h{n}") for n in (2, 3)), services=(("Sales", "Orders"),))
    inputs = [
        Conversation(to_service_name=name, database="Sales") for name in ("Orders", "Other", "Orders", "Other") * 2
    ]
    assert [decision.route_id for decision in in_turns(world, inputs)] == [1, 2, 1, 3] * 2


@pytest.mark.rule("R24", "R13")
def test_the_ids_of_step_3_and_the_routes_of_each_take_turns() -> None:
    """Broker ids take turns, and within each id its routes do."""
    world = here(
        *(route(n, f"TCP://h{n}", service="Orders", broker=SALES) for n in (1, 2)),
        *(route(n, f"TCP://h{n}", service="Orders", broker=STORES) for n in (3, 4)),
    )
    decisions = in_turns(world, [Conversation(to_service_name="Orders", database="Sales")] * 8)
    assert [decision.route_id for decision in decisions] == [1, 3, 2, 4, 1, 3, 2, 4]


@pytest.mark.rule("R24", "R32")
def test_databases_take_turns_by_service() -> None:
    """For each service name separately."""
    world = here(
        route(1, "LOCAL", table=MSDB),
        services=tuple((database, name) for name in ("Orders", "Returns") for database in ("Stores", "Ops", "Sales")),
    )
    inputs = [
        Conversation(to_service_name=name) for name in ("Orders", "Returns", "Orders", "Orders", "Orders", "Returns")
    ]
    decisions = in_turns(world, inputs)
    assert [decision.target_database for decision in decisions] == ["Ops", "Ops", "Sales", "Stores", "Ops", "Sales"]


@pytest.mark.rule("R24")
def test_a_single_candidate_advances_the_turn() -> None:
    """And the turns continue when the other candidate is live again."""
    router = ssbroker.Router(
        catalog_of(here(route(1, "TCP://h1"), route(2, "TCP://h2", lifetime=NOW))), tie_break="round_robin"
    )
    one = batch_of([Conversation(to_service_name="Orders", database="Sales")])
    before = NOW.replace(year=2020)
    taken = [decisions_of(router.route(one, now=now))[0].route_id for now in (NOW, before, before, NOW, before)]
    assert taken == [1, 2, 1, 1, 1]


@pytest.mark.rule("R24")
def test_only_hash_needs_conversation_ids() -> None:
    """The column may be missing or null with `first` and `round_robin`."""
    catalog = catalog_of(network_routes(2))
    without = pa.record_batch({"to_service_name": ["Orders"], "database": ["Sales"]})
    null = pa.record_batch(
        {"conversation_id": pa.array([None], pa.string()), "to_service_name": ["Orders"], "database": ["Sales"]}
    )
    for tie_break in ("first", "round_robin"):
        for batch in (without, null):
            decisions = decisions_of(ssbroker.Router(catalog, tie_break=tie_break).route(batch, now=NOW))
            assert [decision.route_id for decision in decisions] == [99]
    router = ssbroker.Router(catalog)
    with pytest.raises(ssbroker.SchemaError, match="conversation_id"):
        router.route(without, now=NOW)
    with pytest.raises(ssbroker.NullError, match="conversation_id"):
        router.route(null, now=NOW)


@pytest.mark.rule("R24")
def test_an_id_of_zeros_is_valid() -> None:
    """Zero is not null."""
    assert decide(network_routes(1), "Orders", conversation_id=UUID(int=0)) == remote(5, 100, "TCP://h0:4022")


@pytest.mark.rule("R24")
def test_every_candidate_is_picked() -> None:
    """Routes, broker ids and databases, by hash."""
    hosts = tuple((name, "Orders") for name in ("Sales", "Stores", "Ops"))
    worlds = [
        (network_routes(9), 9),
        (here(*(route(n, "TCP://h", service="Orders", broker=broker) for n, broker in enumerate(IDS))), 9),
        (here(route(1, "LOCAL", table="Empty"), services=hosts), 3),
    ]
    for world, count in worlds:
        database = "Empty" if count == 3 else "Sales"
        decisions: Counter[Decision] = Counter(decide_all(world, conversations(900, database=database)))
        assert len(decisions) == count
        assert min(decisions.values()) > 900 / count / 2


def in_turns(world: World, inputs: list[Conversation]) -> list[Decision]:
    return decide_all(world, inputs, tie_break="round_robin")
