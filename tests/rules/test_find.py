"""The seven steps that find routes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random
from uuid import UUID

import pytest

from tests.oracle.world import Conversation, Route
from tests.rules.setting import (
    BCN,
    ELSEWHERE,
    MSDB,
    NOWHERE,
    OPS,
    OUTSIDE,
    SALES,
    STORES,
    decide,
    decide_all,
    delayed,
    dropped,
    here,
    local,
    remote,
    route,
)
from tests.worlds.universe import NOW

A = "TCP://a.example:4022"
B = "TCP://b.example:4022"
C = "TCP://c.example:4022"
D = "TCP://d.example:4022"

EXACT = route(1, A, service="Orders", broker=SALES)
NAMED = route(2, B, service="Orders")
OTHER = route(3, C, service="Orders", broker=STORES)
ANY = route(4, D)
BY_ID = route(5, C, broker=SALES)
DYNAMIC = route(6, "LOCAL", service=BCN)


@pytest.mark.rule("R11")
def test_the_exact_route_comes_first() -> None:
    """Service name and broker id match, before every other route, in any order of the rows."""
    for routes in permutations((EXACT, NAMED, OTHER, ANY)):
        assert decide(here(*routes, BY_ID, DYNAMIC), "Orders", broker=SALES) == remote(1, 1, A, broker=SALES)


@pytest.mark.rule("R11")
def test_an_exact_route_needs_both_name_and_id() -> None:
    """Another broker id or another name does not match."""
    world = here(EXACT)
    assert decide(world, "Orders", broker=STORES) == delayed("no_route", 7, broker=STORES)
    assert decide(world, "Returns", broker=SALES) == delayed("no_route", 7, broker=SALES)


@pytest.mark.rule("R11", "R22")
def test_all_routes_with_the_id_are_found() -> None:
    """All exact routes are candidates."""
    world = here(EXACT, route(7, "LOCAL", service="Orders", broker=SALES), services=(("Sales", "Orders"),))
    assert decide(world, "Orders", broker=SALES) == local(1, 7, "Sales", broker=SALES)


@pytest.mark.rule("R12")
def test_a_route_by_name_matches_with_and_without_a_broker_id() -> None:
    """This service name and no broker id."""
    world = here(NAMED, OTHER, ANY)
    assert decide(world, "Orders") == remote(2, 2, B)
    assert decide(world, "Orders", broker=SALES) == remote(2, 2, B, broker=SALES)
    assert decide(world, "Orders", broker=NOWHERE) == remote(2, 2, B, broker=NOWHERE)


@pytest.mark.rule("R12")
def test_a_route_by_name_comes_before_routes_with_ids() -> None:
    """If the conversation names no broker id."""
    assert decide(here(EXACT, OTHER, NAMED), "Orders") == remote(2, 2, B)


@pytest.mark.rule("R13")
def test_a_conversation_without_an_id_matches_a_route_with_one() -> None:
    """And is bound to that broker id."""
    assert decide(here(EXACT, ANY, DYNAMIC), "Orders") == remote(3, 1, A, broker=SALES)


@pytest.mark.rule("R13")
def test_a_conversation_with_another_id_does_not_match_by_name() -> None:
    """Step 3 is only for conversations without a broker id."""
    assert decide(here(EXACT, ANY), "Orders", broker=STORES) == remote(5, 4, D, broker=STORES)


@pytest.mark.rule("R13")
def test_one_of_several_ids_is_picked_and_only_its_routes_remain() -> None:
    """The mirrored route of one id is never taken for a conversation with the other id."""
    world = here(
        route(1, A, service="Orders", broker=SALES),
        route(2, "LOCAL", service="Orders", broker=STORES),
        route(3, B, service="Orders", broker=STORES),
        services=(("Stores", "Orders"),),
    )
    answers = set(decide_all(world, conversations_in_sales("Orders", 200)))
    # LOCAL comes before a network address, but only if its broker id was picked.
    assert answers == {remote(3, 1, A, broker=SALES), local(3, 2, "Stores", broker=STORES)}


@pytest.mark.rule("R13", "R24")
def test_every_id_is_picked_by_some_conversation() -> None:
    """The copies of a service share the load."""
    ids = [UUID(int=number) for number in range(1, 8)]
    world = here(*(route(n, f"TCP://h{n}", service="Orders", broker=broker) for n, broker in enumerate(ids)))
    answers = decide_all(world, conversations_in_sales("Orders", 700))
    assert {answer.broker_instance for answer in answers} == set(ids)


@pytest.mark.rule("R13", "R3")
def test_an_id_whose_routes_are_expired_is_not_picked() -> None:
    world = here(
        route(1, A, service="Orders", broker=SALES, lifetime=NOW), route(2, B, service="Orders", broker=STORES)
    )
    assert set(decide_all(world, conversations_in_sales("Orders", 50))) == {remote(3, 2, B, broker=STORES)}


@pytest.mark.rule("R13")
def test_the_picked_id_remains_even_if_its_routes_are_unusable() -> None:
    """The id is picked before routes are chosen."""
    world = here(route(1, "LOCAL", service="Orders", broker=SALES), route(2, B, service="Orders", broker=STORES))
    answers = set(decide_all(world, conversations_in_sales("Orders", 50)))
    assert answers == {delayed("service_not_found", 3), remote(3, 2, B, broker=STORES)}


@pytest.mark.rule("R14")
def test_a_route_to_the_dynamic_routing_service_delays() -> None:
    """Routing information is requested before routes without a service are used."""
    assert decide(here(ANY, DYNAMIC), "Orders") == delayed("route_requested", 4)
    assert decide(here(ANY, DYNAMIC), "Orders", broker=SALES) == delayed("route_requested", 4, broker=SALES)
    outside = here(route(1, A, table=MSDB), route(2, B, service=BCN, table=MSDB), forwarding=True)
    assert decide(outside, "Orders", started_in=OUTSIDE) == delayed("route_requested", 4)


@pytest.mark.rule("R14")
def test_no_route_is_requested_if_steps_1_to_3_match() -> None:
    assert decide(here(EXACT, DYNAMIC), "Orders", broker=SALES).match_step == 1
    assert decide(here(NAMED, DYNAMIC), "Orders").match_step == 2
    assert decide(here(EXACT, DYNAMIC), "Orders").match_step == 3


@pytest.mark.rule("R14")
def test_the_dynamic_routing_service_itself_is_reached_by_its_route() -> None:
    """A conversation with it matches by name."""
    world = here(DYNAMIC, services=(("Sales", BCN),))
    assert decide(world, BCN) == local(2, 6, "Sales", broker=SALES)


@pytest.mark.rule("R14", "R1")
def test_a_route_to_it_in_another_table_does_not_count() -> None:
    """The table of the conversation must have the route."""
    world = here(ANY, route(1, "LOCAL", service=BCN, table="Stores"), route(1, "LOCAL", service=BCN, table=MSDB))
    assert decide(world, "Orders") == remote(5, 4, D)


@pytest.mark.rule("R14")
def test_an_expired_route_to_it_does_not_count() -> None:
    assert decide(here(ANY, route(6, "LOCAL", service=BCN, lifetime=NOW)), "Orders") == remote(5, 4, D)


@pytest.mark.rule("R14")
@pytest.mark.parametrize(
    "dynamic",
    [
        route(6, "LOCAL", service=BCN, broker=NOWHERE),
        route(6, A, service=BCN),
        route(6, "TRANSPORT", service=BCN),
        route(6, A, service=BCN, mirror=B),
    ],
)
def test_other_columns_of_the_route_to_it_are_ignored(dynamic: Route) -> None:
    """Broker id, address and mirror."""
    assert decide(here(ANY, dynamic), "Orders") == delayed("route_requested", 4)


@pytest.mark.rule("R14", "R5")
def test_its_name_is_compared_byte_by_byte() -> None:
    """Another case is another service."""
    assert decide(here(ANY, route(6, "LOCAL", service=BCN.upper())), "Orders") == remote(5, 4, D)


@pytest.mark.rule("R14")
def test_while_a_request_is_pending_the_search_continues() -> None:
    """For this service; others are still delayed."""
    world = here(ANY, DYNAMIC, pending=("Orders", "Returns"))
    assert decide(world, "Orders") == remote(5, 4, D)
    assert decide(world, "Returns") == remote(5, 4, D)
    assert decide(world, "orders") == delayed("route_requested", 4)
    assert decide(here(DYNAMIC, pending=("Orders",)), "Orders") == delayed("no_route", 7)


@pytest.mark.rule("R14")
def test_pending_request_delay_keeps_the_conversation_delayed() -> None:
    """Without a route to the service, nothing was requested."""
    world = here(ANY, DYNAMIC, pending=("Orders",))
    assert decide(world, "Orders", pending_request="delay") == delayed("route_requested", 4)
    assert decide(here(ANY, pending=("Orders",)), "Orders", pending_request="delay") == remote(5, 4, D)
    known = here(NAMED, DYNAMIC, pending=("Orders",))
    assert decide(known, "Orders", pending_request="delay") == remote(2, 2, B)


@pytest.mark.rule("R15")
def test_a_route_without_service_and_id_matches_every_conversation() -> None:
    world = here(EXACT, BY_ID, ANY)
    for name, broker in (("Returns", None), ("Returns", SALES), ("", None), ("Orders", STORES), ("orders", SALES)):
        assert decide(world, name, broker=broker) == remote(5, 4, D, broker=broker)


@pytest.mark.rule("R15")
def test_a_route_without_service_comes_last() -> None:
    assert decide(here(ANY, NAMED), "Orders") == remote(2, 2, B)
    assert decide(here(ANY, OTHER), "Orders") == remote(3, 3, C, broker=STORES)


@pytest.mark.rule("R15", "R5")
def test_an_empty_name_is_a_name() -> None:
    """A route to the service with the empty name is not a route to all services."""
    assert decide(here(route(1, A, service="")), "Orders") == delayed("no_route", 7)


@pytest.mark.rule("R16")
def test_a_local_service_is_reached_without_a_route() -> None:
    """With a broker id, as if the table had a LOCAL route with this name; the decision has no route id."""
    world = here(services=(("Stores", "Orders"),))
    assert decide(world, "Orders", broker=STORES) == local(6, None, "Stores", broker=STORES)
    assert decide(world, "Orders", broker=STORES, started_in=OUTSIDE) == local(6, None, "Stores", broker=STORES)


@pytest.mark.rule("R16")
def test_step_6_requires_a_broker_id() -> None:
    """Otherwise the search ends at step 7."""
    world = here(services=(("Stores", "Orders"),))
    assert decide(world, "Orders") == delayed("no_route", 7)


@pytest.mark.rule("R16", "R31", "R26")
def test_step_6_compares_only_the_name() -> None:
    """If another database has the service the step matches, and Locate then fails by the broker id."""
    world = here(services=(("Stores", "Orders"),))
    assert decide(world, "Orders", broker=SALES) == delayed("service_not_found", 6, broker=SALES)
    assert decide(world, "Orders", broker=ELSEWHERE, started_in=OUTSIDE) == dropped(
        "service_not_found", 6, broker=ELSEWHERE
    )


@pytest.mark.rule("R16")
def test_step_6_comes_after_step_5() -> None:
    assert decide(here(ANY, services=(("Stores", "Orders"),)), "Orders", broker=STORES) == remote(
        5, 4, D, broker=STORES
    )


@pytest.mark.rule("R16")
def test_disabled_databases_do_not_count_for_step_6() -> None:
    """If only disabled databases have the service, the search ends at step 7."""
    world = here(services=(("Stores", "Orders"),), disabled=("Stores",))
    assert decide(world, "Orders", broker=STORES) == delayed("no_route", 7, broker=STORES)


@pytest.mark.rule("R17")
def test_without_a_route_the_conversation_is_delayed() -> None:
    """With an empty table, and with one that has only other routes."""
    assert decide(here(), "Orders") == delayed("no_route", 7)
    assert decide(here(EXACT, BY_ID), "Returns", broker=OPS) == delayed("no_route", 7, broker=OPS)


@pytest.mark.rule("R17")
def test_without_a_route_messages_from_outside_are_delayed_too() -> None:
    assert decide(here(forwarding=True), "Orders", started_in=OUTSIDE) == delayed("no_route", 7)
    assert decide(here(), "Orders", broker=NOWHERE, started_in=OUTSIDE, is_initiator=False) == delayed(
        "no_route", 7, broker=NOWHERE
    )


@pytest.mark.rule("R18")
def test_no_route_is_not_an_error_and_can_match_later() -> None:
    """After a route appears the conversation is routed; other rows of the batch are unaffected."""
    batch = [*conversations_in_sales("Returns", 1), *conversations_in_sales("Orders", 1)]
    assert decide_all(here(NAMED), batch) == [delayed("no_route", 7), remote(2, 2, B)]
    assert decide_all(here(NAMED, ANY), batch) == [remote(5, 4, D), remote(2, 2, B)]


@pytest.mark.rule("R19")
def test_mirror_addresses_do_not_affect_the_steps() -> None:
    """With and without a mirror, a route is found at the same step, by the same conversations."""
    for each, broker, step in ((EXACT, SALES, 1), (NAMED, None, 2), (EXACT, None, 3), (ANY, None, 5)):
        plain = here(each, OTHER if step == 1 else BY_ID)
        mirrored = here(replace(each, mirror_address="TCP://m.example:4022"), OTHER if step == 1 else BY_ID)
        one, other = (decide(world, "Orders", broker=broker) for world in (plain, mirrored))
        assert one.match_step == other.match_step == step
        assert one.route_id == other.route_id == each.route_id
        assert (one.mirror_address, other.mirror_address) == (None, "TCP://m.example:4022")


@pytest.mark.rule("R19")
def test_a_mirrored_route_of_a_later_step_does_not_come_first() -> None:
    """Classes apply only within the routes of one step."""
    world = here(NAMED, route(7, A, mirror=C))
    assert decide(world, "Orders") == remote(2, 2, B)


@pytest.mark.rule("R20")
def test_a_route_with_an_id_and_no_name_never_matches() -> None:
    """Not even for a conversation with this broker id; loading it is not an error."""
    world = here(BY_ID, route(7, "LOCAL", broker=OPS), services=(("Sales", "Orders"),))
    assert decide(world, "Returns", broker=SALES) == delayed("no_route", 7, broker=SALES)
    assert decide(world, "Returns") == delayed("no_route", 7)
    assert decide(world, "") == delayed("no_route", 7)
    assert decide(world, "Orders", broker=SALES) == local(6, None, "Sales", broker=SALES)


def conversations_in_sales(name: str, count: int) -> list[Conversation]:
    random = Random(13)
    return [
        Conversation(to_service_name=name, database="Sales", conversation_id=UUID(int=random.getrandbits(128)))
        for _ in range(count)
    ]
