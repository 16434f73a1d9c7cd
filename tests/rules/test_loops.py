"""Routes that lead back to this instance."""

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
ROUTE_TO_SELF = route(1, "tcp://Own.Example/")
A = "TCP://a.example:4022"
M = "TCP://mirror.example:4022"


@pytest.mark.rule("R41")
@pytest.mark.parametrize("address", ["TCP://own.example:4022", "tcp://OWN.example/", "TCP://alias.example:04022"])
def test_an_own_address_leads_to_the_table_of_msdb(address: str) -> None:
    """The conversation is treated as if it came from outside; step and route are those of the last table."""
    world = here(
        route(1, address, service="Orders", broker=SALES),
        route(7, "LOCAL", table=MSDB),
        services=(("Stores", "Orders"),),
        own=OWN,
    )
    assert decide(world, "Orders") == local(5, 7, "Stores", broker=STORES)


@pytest.mark.rule("R41", "R6")
def test_another_port_or_host_is_not_this_instance() -> None:
    """Addresses are compared in normal form."""
    for address in ("TCP://own.example:4023", "TCP://own", "TCP://own.example.com:4022"):
        world = here(route(1, address), route(7, "LOCAL", table=MSDB), services=(("Stores", "Orders"),), own=OWN)
        hop = decide(world, "Orders")
        assert (hop.outcome, hop.route_id) == ("REMOTE", 1)


@pytest.mark.rule("R41")
def test_without_own_addresses_nothing_leads_back() -> None:
    """The instance has no endpoint."""
    assert decide(here(ROUTE_TO_SELF), "Orders") == remote(5, 1, OWN[0])


@pytest.mark.rule("R41", "R25")
def test_reentering_requires_forwarding() -> None:
    """For any address that is not LOCAL."""
    routes = (ROUTE_TO_SELF, route(7, A, service="Orders", table=MSDB))
    assert decide(here(*routes, own=OWN), "Orders") == dropped("forwarding_disabled", 2, 7)
    assert decide(here(*routes, own=OWN, forwarding=True), "Orders") == forward(2, 7, A)


@pytest.mark.rule("R41", "R42")
@pytest.mark.threat("T16")
def test_reentering_twice_is_a_loop() -> None:
    routes = (ROUTE_TO_SELF, route(7, OWN[1], table=MSDB, mirror=M))
    assert decide(here(*routes, own=OWN, forwarding=True), "Orders") == dropped("routing_loop", 5, 7, mirror=M)
    assert decide(here(*routes, own=OWN), "Orders") == dropped("forwarding_disabled", 5, 7, mirror=M)


@pytest.mark.rule("R41", "R17")
def test_reentering_without_a_route_in_msdb_delays() -> None:
    """Step 7 of the second table."""
    assert decide(here(ROUTE_TO_SELF, own=OWN), "Orders", broker=SALES) == delayed("no_route", 7, broker=SALES)


@pytest.mark.rule("R41", "R26")
def test_a_reentered_conversation_counts_as_from_outside() -> None:
    """Without a usable route it is DROPPED, not DELAYED."""
    world = here(ROUTE_TO_SELF, route(7, "LOCAL", table=MSDB), own=OWN)
    assert decide(world, "Orders") == dropped("service_not_found", 5)
    world = here(ROUTE_TO_SELF, route(7, "TRANSPORT", table=MSDB), own=OWN)
    assert decide(world, "Orders") == dropped("address_unusable", 5)


@pytest.mark.rule("R41", "R7")
def test_a_reentered_reply_counts_as_from_outside() -> None:
    """It is delivered to a database here without reading the table of msdb."""
    world = here(ROUTE_TO_SELF, route(7, A, table=MSDB), services=(("Stores", "Orders"),), own=OWN, forwarding=True)
    reply = decide(world, "Orders", broker=STORES, is_initiator=False)
    assert reply == local(0, None, "Stores", broker=STORES, reason="reply")
    assert decide(world, "Orders", broker=OPS, is_initiator=False) == dropped("service_not_found", 0, broker=OPS)
    assert decide(world, "Orders", broker=STORES) == forward(5, 7, A, broker=STORES)
    assert decide(world, "Orders", broker=ELSEWHERE, is_initiator=False) == forward(5, 7, A, broker=ELSEWHERE)


@pytest.mark.rule("R41", "R14")
def test_the_second_table_may_request_a_route() -> None:
    """If msdb has a route to the configuration service."""
    world = here(ROUTE_TO_SELF, route(7, A, table=MSDB), route(8, "LOCAL", service=BCN, table=MSDB), own=OWN)
    assert decide(world, "Orders") == delayed("route_requested", 4)


@pytest.mark.rule("R41")
def test_the_broker_id_of_the_first_route_is_dropped() -> None:
    """The conversation continues without an id, so that only step 3 finds the route of msdb with that id."""
    world = here(
        route(1, OWN[0], service="Orders", broker=SALES),
        route(7, "TCP://wrong", service="Orders", broker=SALES, table=MSDB),
        route(8, A, service="Orders", table=MSDB),
        own=OWN,
        forwarding=True,
    )
    assert decide(world, "Orders") == forward(2, 8, A)
    assert decide(world, "Orders", broker=SALES) == forward(1, 7, "TCP://wrong:4022", broker=SALES)


@pytest.mark.rule("R41")
def test_only_the_principal_address_leads_back() -> None:
    """An own address as the mirror does not lead back; the mirror of the first pass is dropped."""
    answer = decide(here(route(1, A, mirror=OWN[0]), own=OWN), "Orders")
    assert answer == remote(5, 1, A, mirror=OWN[0])
    world = here(route(1, OWN[0], mirror=A), route(7, "LOCAL", table=MSDB), services=(("Ops", "Orders"),), own=OWN)
    assert decide(world, "Orders") == local(5, 7, "Ops", broker=OPS)


@pytest.mark.rule("R41", "R23")
def test_transport_may_lead_back() -> None:
    """The service name contains an address of this instance."""
    name = "tcp://ALIAS.example:4022/Orders"
    world = here(route(1, "TRANSPORT"), route(7, "LOCAL", table=MSDB), services=(("Ops", name),), own=OWN)
    assert decide(world, name) == local(5, 7, "Ops", broker=OPS)


@pytest.mark.rule("R41", "R42")
def test_a_conversation_of_msdb_reads_its_table_twice() -> None:
    """It re-enters, and finds the same route again."""
    world = here(route(7, OWN[0], table=MSDB), own=OWN, forwarding=True)
    assert decide(world, "Orders", started_in=MSDB) == dropped("routing_loop", 5, 7)


@pytest.mark.rule("R42")
def test_a_message_from_outside_that_leads_back_is_a_loop() -> None:
    """DROPPED; the decision has the route, and its broker id binds."""
    world = here(route(7, OWN[1], service="Orders", broker=ELSEWHERE, table=MSDB), own=OWN, forwarding=True)
    assert decide(world, "Orders", started_in=OUTSIDE) == dropped("routing_loop", 3, 7, broker=ELSEWHERE)


@pytest.mark.rule("R42", "R23")
def test_transport_that_leads_back_is_a_loop() -> None:
    """The service name contains an address of this instance."""
    world = here(route(7, "TRANSPORT", table=MSDB), own=OWN, forwarding=True)
    assert decide(world, "own.example:4022/Orders", started_in=OUTSIDE) == dropped("routing_loop", 5, 7)


@pytest.mark.rule("R25", "R42")
def test_forwarding_is_checked_before_loops() -> None:
    """With forwarding off, that is the reason."""
    world = here(route(7, OWN[0], table=MSDB), own=OWN)
    assert decide(world, "Orders", started_in=OUTSIDE) == dropped("forwarding_disabled", 5, 7)


@pytest.mark.rule("R42")
def test_local_is_not_a_loop() -> None:
    world = here(route(7, "LOCAL", table=MSDB), services=(("Ops", "Orders"),), own=OWN, forwarding=True)
    assert decide(world, "Orders", started_in=OUTSIDE) == local(5, 7, "Ops", broker=OPS)
