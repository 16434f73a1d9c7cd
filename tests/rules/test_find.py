"""R11 to R20: the seven steps, and what plays no part in them."""

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
    """This service name and this broker id, before every other route, in whatever order they stand."""
    for routes in permutations((EXACT, NAMED, OTHER, ANY)):
        assert decide(here(*routes, BY_ID, DYNAMIC), "Orders", broker=SALES) == remote(1, 1, A, broker=SALES)


@pytest.mark.rule("R11")
def test_needs_both_name_and_id() -> None:
    """Another id or another name is no match."""
    world = here(EXACT)
    assert decide(world, "Orders", broker=STORES) == delayed("no_route", 7, broker=STORES)
    assert decide(world, "Returns", broker=SALES) == delayed("no_route", 7, broker=SALES)


@pytest.mark.rule("R11", "R22")
def test_all_routes_with_the_id_are_found() -> None:
    """Among several exact routes the choice follows."""
    world = here(EXACT, route(7, "LOCAL", service="Orders", broker=SALES), services=(("Sales", "Orders"),))
    assert decide(world, "Orders", broker=SALES) == local(1, 7, "Sales", broker=SALES)


@pytest.mark.rule("R12")
def test_a_route_by_name_serves_conversations_with_and_without_an_id() -> None:
    """This service name and no broker id."""
    world = here(NAMED, OTHER, ANY)
    assert decide(world, "Orders") == remote(2, 2, B)
    assert decide(world, "Orders", broker=SALES) == remote(2, 2, B, broker=SALES)
    assert decide(world, "Orders", broker=NOWHERE) == remote(2, 2, B, broker=NOWHERE)


@pytest.mark.rule("R12")
def test_comes_before_routes_with_ids() -> None:
    """Without an id in the conversation, the name alone goes before name and id."""
    assert decide(here(EXACT, OTHER, NAMED), "Orders") == remote(2, 2, B)


@pytest.mark.rule("R13")
def test_a_conversation_without_an_id_takes_a_route_that_names_one() -> None:
    """And is bound to that id."""
    assert decide(here(EXACT, ANY, DYNAMIC), "Orders") == remote(3, 1, A, broker=SALES)


@pytest.mark.rule("R13")
def test_a_conversation_with_another_id_does_not() -> None:
    """It is for conversations that name none."""
    assert decide(here(EXACT, ANY), "Orders", broker=STORES) == remote(5, 4, D, broker=STORES)


@pytest.mark.rule("R13")
def test_of_several_ids_one_is_picked_and_only_its_routes_stay() -> None:
    """The mirrored route of one id is never taken for a conversation that got the other id."""
    world = here(
        route(1, A, service="Orders", broker=SALES),
        route(2, "LOCAL", service="Orders", broker=STORES),
        route(3, B, service="Orders", broker=STORES),
        services=(("Stores", "Orders"),),
    )
    answers = set(decide_all(world, begun_in_sales("Orders", 200)))
    # LOCAL goes before a network address, but only where its id was picked.
    assert answers == {remote(3, 1, A, broker=SALES), local(3, 2, "Stores", broker=STORES)}


@pytest.mark.rule("R13", "R24")
def test_every_id_is_picked_by_some_conversation() -> None:
    """The copies of a service share the load."""
    ids = [UUID(int=number) for number in range(1, 8)]
    world = here(*(route(n, f"TCP://h{n}", service="Orders", broker=broker) for n, broker in enumerate(ids)))
    answers = decide_all(world, begun_in_sales("Orders", 700))
    assert {answer.broker_instance for answer in answers} == set(ids)


@pytest.mark.rule("R13", "R3")
def test_an_id_whose_routes_are_expired_is_not_picked() -> None:
    """Only live routes bring their ids."""
    world = here(
        route(1, A, service="Orders", broker=SALES, lifetime=NOW), route(2, B, service="Orders", broker=STORES)
    )
    assert set(decide_all(world, begun_in_sales("Orders", 50))) == {remote(3, 2, B, broker=STORES)}


@pytest.mark.rule("R13")
def test_the_picked_id_stays_though_its_routes_cannot_be_used() -> None:
    """The id is picked before anything is chosen, so an unusable copy is not passed by."""
    world = here(route(1, "LOCAL", service="Orders", broker=SALES), route(2, B, service="Orders", broker=STORES))
    answers = set(decide_all(world, begun_in_sales("Orders", 50)))
    assert answers == {delayed("service_not_found", 3), remote(3, 2, B, broker=STORES)}


@pytest.mark.rule("R14")
def test_a_route_to_the_dynamic_routing_service_delays() -> None:
    """Routing information is requested before the last resort is taken."""
    assert decide(here(ANY, DYNAMIC), "Orders") == delayed("route_requested", 4)
    assert decide(here(ANY, DYNAMIC), "Orders", broker=SALES) == delayed("route_requested", 4, broker=SALES)
    outside = here(route(1, A, table=MSDB), route(2, B, service=BCN, table=MSDB), forwarding=True)
    assert decide(outside, "Orders", begun_in=OUTSIDE) == delayed("route_requested", 4)


@pytest.mark.rule("R14")
def test_is_not_asked_for_what_is_known() -> None:
    """Steps 1 to 3 come before."""
    assert decide(here(EXACT, DYNAMIC), "Orders", broker=SALES).match_step == 1
    assert decide(here(NAMED, DYNAMIC), "Orders").match_step == 2
    assert decide(here(EXACT, DYNAMIC), "Orders").match_step == 3


@pytest.mark.rule("R14")
def test_the_dynamic_routing_service_itself_is_reached_by_its_route() -> None:
    """A conversation to it matches by name."""
    world = here(DYNAMIC, services=(("Sales", BCN),))
    assert decide(world, BCN) == local(2, 6, "Sales", broker=SALES)


@pytest.mark.rule("R14", "R1")
def test_in_another_table_does_not_count() -> None:
    """The table that is read must have the route."""
    world = here(ANY, route(1, "LOCAL", service=BCN, table="Stores"), route(1, "LOCAL", service=BCN, table=MSDB))
    assert decide(world, "Orders") == remote(5, 4, D)


@pytest.mark.rule("R14")
def test_an_expired_route_to_it_does_not_count() -> None:
    """A live route."""
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
def test_whatever_else_the_route_says(dynamic: Route) -> None:
    """Its broker id, address and mirror play no part."""
    assert decide(here(ANY, dynamic), "Orders") == delayed("route_requested", 4)


@pytest.mark.rule("R14", "R5")
def test_its_name_is_compared_byte_by_byte() -> None:
    """Another case is another service."""
    assert decide(here(ANY, route(6, "LOCAL", service=BCN.upper())), "Orders") == remote(5, 4, D)


@pytest.mark.rule("R14")
def test_while_a_request_is_pending_the_search_goes_on() -> None:
    """Step 4 yields nothing for this service, still delays others."""
    world = here(ANY, DYNAMIC, pending=("Orders", "Returns"))
    assert decide(world, "Orders") == remote(5, 4, D)
    assert decide(world, "Returns") == remote(5, 4, D)
    assert decide(world, "orders") == delayed("route_requested", 4)
    assert decide(here(DYNAMIC, pending=("Orders",)), "Orders") == delayed("no_route", 7)


@pytest.mark.rule("R14")
def test_the_option_keeps_it_delayed() -> None:
    """`pending_request="delay"` waits for the answer; without a route to the service nothing was asked."""
    world = here(ANY, DYNAMIC, pending=("Orders",))
    assert decide(world, "Orders", pending_request="delay") == delayed("route_requested", 4)
    assert decide(here(ANY, pending=("Orders",)), "Orders", pending_request="delay") == remote(5, 4, D)
    known = here(NAMED, DYNAMIC, pending=("Orders",))
    assert decide(known, "Orders", pending_request="delay") == remote(2, 2, B)


@pytest.mark.rule("R15")
def test_the_last_resort_matches_every_conversation() -> None:
    """Routes that name neither service nor broker id."""
    world = here(EXACT, BY_ID, ANY)
    for name, broker in (("Returns", None), ("Returns", SALES), ("", None), ("Orders", STORES), ("orders", SALES)):
        assert decide(world, name, broker=broker) == remote(5, 4, D, broker=broker)


@pytest.mark.rule("R15")
def test_comes_after_every_route_by_name() -> None:
    """Last of all routes."""
    assert decide(here(ANY, NAMED), "Orders") == remote(2, 2, B)
    assert decide(here(ANY, OTHER), "Orders") == remote(3, 3, C, broker=STORES)


@pytest.mark.rule("R15", "R5")
def test_an_empty_name_is_a_name() -> None:
    """A route to the service with the empty name is not a route to all services."""
    assert decide(here(route(1, A, service="")), "Orders") == delayed("no_route", 7)


@pytest.mark.rule("R16")
def test_a_service_here_is_reached_without_a_route() -> None:
    """With a broker id, as if the table held a route with this name and address LOCAL; it has no id of its own."""
    world = here(services=(("Stores", "Orders"),))
    assert decide(world, "Orders", broker=STORES) == local(6, None, "Stores", broker=STORES)
    assert decide(world, "Orders", broker=STORES, begun_in=OUTSIDE) == local(6, None, "Stores", broker=STORES)


@pytest.mark.rule("R16")
def test_is_for_conversations_with_an_id() -> None:
    """Without one the search ends at step 7."""
    world = here(services=(("Stores", "Orders"),))
    assert decide(world, "Orders") == delayed("no_route", 7)


@pytest.mark.rule("R16", "R31", "R26")
def test_asks_for_the_name_only() -> None:
    """Where another database has the service the step holds, and *Locate* then fails by the id (R31, R26)."""
    world = here(services=(("Stores", "Orders"),))
    assert decide(world, "Orders", broker=SALES) == delayed("service_not_found", 6, broker=SALES)
    assert decide(world, "Orders", broker=ELSEWHERE, begun_in=OUTSIDE) == dropped(
        "service_not_found", 6, broker=ELSEWHERE
    )


@pytest.mark.rule("R16")
def test_comes_after_the_last_resort() -> None:
    """Step 5 is looked at first."""
    assert decide(here(ANY, services=(("Stores", "Orders"),)), "Orders", broker=STORES) == remote(
        5, 4, D, broker=STORES
    )


@pytest.mark.rule("R16")
def test_disabled_databases_do_not_count_for_step_6() -> None:
    """With none but disabled hosts the search ends at step 7."""
    world = here(services=(("Stores", "Orders"),), disabled=("Stores",))
    assert decide(world, "Orders", broker=STORES) == delayed("no_route", 7, broker=STORES)


@pytest.mark.rule("R17")
def test_without_a_route_it_is_delayed() -> None:
    """With an empty table, and with one that has only other routes."""
    assert decide(here(), "Orders") == delayed("no_route", 7)
    assert decide(here(EXACT, BY_ID), "Returns", broker=OPS) == delayed("no_route", 7, broker=OPS)


@pytest.mark.rule("R17")
def test_wherever_it_came_from() -> None:
    """What arrived from outside is DELAYED too."""
    assert decide(here(forwarding=True), "Orders", begun_in=OUTSIDE) == delayed("no_route", 7)
    assert decide(here(), "Orders", broker=NOWHERE, begun_in=OUTSIDE, is_initiator=False) == delayed(
        "no_route", 7, broker=NOWHERE
    )


@pytest.mark.rule("R18")
def test_no_route_is_no_error_and_matches_later() -> None:
    """Routed again after a route appears, it goes; the rest of the batch is not held up."""
    batch = [*begun_in_sales("Returns", 1), *begun_in_sales("Orders", 1)]
    assert decide_all(here(NAMED), batch) == [delayed("no_route", 7), remote(2, 2, B)]
    assert decide_all(here(NAMED, ANY), batch) == [remote(5, 4, D), remote(2, 2, B)]


@pytest.mark.rule("R19")
def test_mirror_addresses_play_no_part_in_finding() -> None:
    """With and without a mirror a route is found at the same step, and by the same conversations."""
    for each, broker, step in ((EXACT, SALES, 1), (NAMED, None, 2), (EXACT, None, 3), (ANY, None, 5)):
        plain = here(each, OTHER if step == 1 else BY_ID)
        mirrored = here(replace(each, mirror_address="TCP://m.example:4022"), OTHER if step == 1 else BY_ID)
        one, other = (decide(world, "Orders", broker=broker) for world in (plain, mirrored))
        assert one.match_step == other.match_step == step
        assert one.route_id == other.route_id == each.route_id
        assert (one.mirror_address, other.mirror_address) == (None, "TCP://m.example:4022")


@pytest.mark.rule("R19")
def test_a_later_step_with_a_mirror_does_not_go_before_an_earlier_one() -> None:
    """Class 1 of choosing holds within what one step found."""
    world = here(NAMED, route(7, A, mirror=C))
    assert decide(world, "Orders") == remote(2, 2, B)


@pytest.mark.rule("R20")
def test_a_route_with_an_id_and_no_name_never_matches() -> None:
    """Not even the conversation with this very id; loading it is no error."""
    world = here(BY_ID, route(7, "LOCAL", broker=OPS), services=(("Sales", "Orders"),))
    assert decide(world, "Returns", broker=SALES) == delayed("no_route", 7, broker=SALES)
    assert decide(world, "Returns") == delayed("no_route", 7)
    assert decide(world, "") == delayed("no_route", 7)
    assert decide(world, "Orders", broker=SALES) == local(6, None, "Sales", broker=SALES)


def begun_in_sales(name: str, count: int) -> list[Conversation]:
    random = Random(13)
    return [
        Conversation(to_service_name=name, database="Sales", conversation_id=UUID(int=random.getrandbits(128)))
        for _ in range(count)
    ]
