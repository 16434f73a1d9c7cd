"""R41, R42: routes that lead back to this instance."""

from __future__ import annotations

import pytest

from tests.rules.setting import (
    BCN,
    ELSEWHERE,
    MSDB,
    OPS,
    OUTSIDE,
    SALES,
    STORES,
    decide,
    delayed,
    dropped,
    forward,
    here,
    local,
    remote,
    route,
)

OWN = ("TCP://own.example:4022", "tcp://ALIAS.example")
BACK = route(1, "tcp://Own.Example/")
A = "TCP://a.example:4022"
M = "TCP://mirror.example:4022"


@pytest.mark.parametrize("address", ["TCP://own.example:4022", "tcp://OWN.example/", "TCP://alias.example:04022"])
def test_r41_an_own_address_leads_to_msdbs_table(address: str) -> None:
    """R41: the conversation is treated as if it came from outside; step and route are those of the last table."""
    world = here(
        route(1, address, service="Orders", broker=SALES),
        route(7, "LOCAL", table=MSDB),
        services=(("Stores", "Orders"),),
        own=OWN,
    )
    assert decide(world, "Orders") == local(5, 7, "Stores", broker=STORES)


def test_r41_another_port_or_host_is_not_this_instance() -> None:
    """R41, R6: compared after normalisation, whole."""
    for address in ("TCP://own.example:4023", "TCP://own", "TCP://own.example.com:4022"):
        world = here(route(1, address), route(7, "LOCAL", table=MSDB), services=(("Stores", "Orders"),), own=OWN)
        hop = decide(world, "Orders")
        assert (hop.outcome, hop.route_id) == ("REMOTE", 1)


def test_r41_without_own_addresses_nothing_leads_back() -> None:
    """R41: the instance has no endpoint."""
    assert decide(here(BACK), "Orders") == remote(5, 1, OWN[0])


def test_r41_forwarding_must_then_be_active() -> None:
    """R41, R25: for any address that is not LOCAL."""
    routes = (BACK, route(7, A, service="Orders", table=MSDB))
    assert decide(here(*routes, own=OWN), "Orders") == dropped("forwarding_disabled", 2, 7)
    assert decide(here(*routes, own=OWN, forwarding=True), "Orders") == forward(2, 7, A)


def test_r41_a_second_time_it_is_a_loop() -> None:
    """R41, T16, R42, K14: it re-enters at most once."""
    routes = (BACK, route(7, OWN[1], table=MSDB, mirror=M))
    assert decide(here(*routes, own=OWN, forwarding=True), "Orders") == dropped("routing_loop", 5, 7, mirror=M)
    assert decide(here(*routes, own=OWN), "Orders") == dropped("forwarding_disabled", 5, 7, mirror=M)


def test_r41_with_nothing_in_msdb_it_waits() -> None:
    """R41, R17: step 7 of the second table."""
    assert decide(here(BACK, own=OWN), "Orders", broker=SALES) == delayed("no_route", 7, broker=SALES)


def test_r41_r26_counts_it_as_from_outside() -> None:
    """R41, R26: with nothing usable it is DROPPED, not DELAYED."""
    world = here(BACK, route(7, "LOCAL", table=MSDB), own=OWN)
    assert decide(world, "Orders") == dropped("service_not_found", 5)
    world = here(BACK, route(7, "TRANSPORT", table=MSDB), own=OWN)
    assert decide(world, "Orders") == dropped("address_unusable", 5)


def test_r41_r7_counts_it_as_from_outside() -> None:
    """R41, R7: a target's message for a database here is delivered without msdb's table."""
    world = here(BACK, route(7, A, table=MSDB), services=(("Stores", "Orders"),), own=OWN, forwarding=True)
    reply = decide(world, "Orders", broker=STORES, is_initiator=False)
    assert reply == local(0, None, "Stores", broker=STORES, reason="reply")
    assert decide(world, "Orders", broker=OPS, is_initiator=False) == dropped("service_not_found", 0, broker=OPS)
    assert decide(world, "Orders", broker=STORES) == forward(5, 7, A, broker=STORES)
    assert decide(world, "Orders", broker=ELSEWHERE, is_initiator=False) == forward(5, 7, A, broker=ELSEWHERE)


def test_r41_the_second_table_may_ask_for_a_route() -> None:
    """R41, R14: with msdb's route to the dynamic routing service."""
    world = here(BACK, route(7, A, table=MSDB), route(8, "LOCAL", service=BCN, table=MSDB), own=OWN)
    assert decide(world, "Orders") == delayed("route_requested", 4)


def test_k15_the_first_routes_id_is_forgotten() -> None:
    """R41, K15: the conversation goes on without an id, so msdb's route with that id is only found by step 3."""
    world = here(
        route(1, OWN[0], service="Orders", broker=SALES),
        route(7, "TCP://wrong", service="Orders", broker=SALES, table=MSDB),
        route(8, A, service="Orders", table=MSDB),
        own=OWN,
        forwarding=True,
    )
    assert decide(world, "Orders") == forward(2, 8, A)
    assert decide(world, "Orders", broker=SALES) == forward(1, 7, "TCP://wrong:4022", broker=SALES)


def test_r41_of_a_mirrored_route_its_address_counts() -> None:
    """R41: an own address as the mirror leads nowhere back; the mirror of the first pass is forgotten."""
    answer = decide(here(route(1, A, mirror=OWN[0]), own=OWN), "Orders")
    assert answer == remote(5, 1, A, mirror=OWN[0])
    world = here(route(1, OWN[0], mirror=A), route(7, "LOCAL", table=MSDB), services=(("Ops", "Orders"),), own=OWN)
    assert decide(world, "Orders") == local(5, 7, "Ops", broker=OPS)


def test_r41_transport_may_lead_back_too() -> None:
    """R41, R23, K14: the address in the service name is this instance's."""
    name = "tcp://ALIAS.example:4022/Orders"
    world = here(route(1, "TRANSPORT"), route(7, "LOCAL", table=MSDB), services=(("Ops", name),), own=OWN)
    assert decide(world, name) == local(5, 7, "Ops", broker=OPS)


def test_r41_a_conversation_begun_in_msdb_reads_its_table_twice() -> None:
    """R41, R42: begun here it re-enters, and finds the same route again."""
    world = here(route(7, OWN[0], table=MSDB), own=OWN, forwarding=True)
    assert decide(world, "Orders", begun_in=MSDB) == dropped("routing_loop", 5, 7)


def test_r42_a_message_from_outside_is_not_sent_back_here() -> None:
    """R42, K17: DROPPED as a loop; the route is named, and its id binds."""
    world = here(route(7, OWN[1], service="Orders", broker=ELSEWHERE, table=MSDB), own=OWN, forwarding=True)
    assert decide(world, "Orders", begun_in=OUTSIDE) == dropped("routing_loop", 3, 7, broker=ELSEWHERE)


def test_r42_by_transport_too() -> None:
    """R42, R23: the service name holds this instance's address."""
    world = here(route(7, "TRANSPORT", table=MSDB), own=OWN, forwarding=True)
    assert decide(world, "own.example:4022/Orders", begun_in=OUTSIDE) == dropped("routing_loop", 5, 7)


def test_k14_forwarding_is_looked_at_before_the_loop() -> None:
    """R25, R42, K14: with forwarding off it is dropped for that."""
    world = here(route(7, OWN[0], table=MSDB), own=OWN)
    assert decide(world, "Orders", begun_in=OUTSIDE) == dropped("forwarding_disabled", 5, 7)


def test_r42_local_is_no_loop() -> None:
    """R42: delivery in this instance."""
    world = here(route(7, "LOCAL", table=MSDB), services=(("Ops", "Orders"),), own=OWN, forwarding=True)
    assert decide(world, "Orders", begun_in=OUTSIDE) == local(5, 7, "Ops", broker=OPS)
