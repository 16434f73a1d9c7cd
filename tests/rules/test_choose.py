"""R21 to R26: which of the routes found is chosen, and what becomes of those that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from uuid import UUID

import pytest

from tests.oracle.world import Conversation
from tests.rules.setting import (
    MSDB,
    NOWHERE,
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

A = "TCP://a.example:4022"
B = "TCP://b.example:4022"
M = "TCP://mirror.example:4022"
N = "TCP://next.example:5022"
TARGET = "TCP://next.example:5022/Orders"
"""A service name that begins with an address, so that TRANSPORT can be used."""


@pytest.mark.rule("R21")
def test_routes_with_the_same_address_count_as_one() -> None:
    """Nine spellings of one address and one other share the conversations half and half."""
    spellings = ["TCP://a.example:4022", "tcp://A.EXAMPLE", "tcp://a.example/"] * 3
    world = here(*(route(n, text) for n, text in enumerate(spellings, 1)), route(10, B))
    answers = [answer.route_id for answer in decide_all(world, many())]
    assert set(answers) == {1, 10}
    assert 430 < answers.count(10) < 570


@pytest.mark.rule("R21")
def test_the_lowest_id_stands_for_the_merged() -> None:
    """Whatever the order of the rows."""
    world = here(route(7, A), route(3, "tcp://A.example/"), route(5, A))
    for tie_break in ("hash", "first", "round_robin"):
        assert decide(world, "Orders", tie_break=tie_break) == remote(5, 3, A)


@pytest.mark.rule("R21", "R6")
def test_another_port_is_another_address() -> None:
    """Not merged."""
    world = here(route(1, "TCP://a.example:4022"), route(2, "TCP://a.example:4023"))
    assert {answer.route_id for answer in decide_all(world, many())} == {1, 2}


@pytest.mark.rule("R21", "R22")
def test_a_mirror_is_never_lost_by_merging() -> None:
    """A route with a mirror does not merge with one without."""
    world = here(route(1, A), route(2, A, mirror=M))
    assert decide(world, "Orders") == remote(5, 2, A, mirror=M)


@pytest.mark.rule("R21")
def test_of_mirrored_routes_with_one_address_the_lowest_id_stands() -> None:
    """Mirrors play no part in what is the same."""
    world = here(route(2, A, mirror=B), route(1, A, mirror=M))
    assert set(decide_all(world, many())) == {remote(5, 1, A, mirror=M)}


CLASSES = (route(14, A, mirror=M), route(13, "LOCAL"), route(12, B), route(11, "TRANSPORT"))
"""One route of each class, the later class with the lower id."""

CHOSEN = (
    remote(5, 14, A, mirror=M),
    local(5, 13, "Stores", broker=STORES),
    remote(5, 12, B),
    remote(5, 11, N),
)


@pytest.mark.rule("R22")
@pytest.mark.parametrize("present", [each for size in (1, 2, 3, 4) for each in combinations(range(4), size)])
def test_the_first_class_that_is_there_is_taken(present: tuple[int, ...]) -> None:
    """Mirrored, LOCAL, network, TRANSPORT: all fifteen mixtures."""
    routes = [CLASSES[number] for number in present]
    for order in (routes, routes[::-1]):
        assert decide(here(*order, services=(("Stores", TARGET),)), TARGET) == CHOSEN[present[0]]


@pytest.mark.rule("R22")
def test_local_is_usable_only_if_the_service_is_here() -> None:
    """Else the network, else TRANSPORT."""
    assert decide(here(*CLASSES[1:]), TARGET) == remote(5, 12, B)
    assert decide(here(CLASSES[1], CLASSES[3]), TARGET) == remote(5, 11, N)
    elsewhere = here(*CLASSES[1:], services=(("Stores", "Other"),))
    assert decide(elsewhere, TARGET) == remote(5, 12, B)
    disabled = here(*CLASSES[1:], services=(("Stores", TARGET),), disabled=("Stores",))
    assert decide(disabled, TARGET) == remote(5, 12, B)


@pytest.mark.rule("R22", "R31")
def test_usable_means_that_locate_finds_a_database() -> None:
    """The service is here, but not in the database that the id names."""
    world = here(*CLASSES[1:3], services=(("Stores", "Orders"),))
    assert decide(world, "Orders", broker=STORES) == local(5, 13, "Stores", broker=STORES)
    assert decide(world, "Orders", broker=SALES) == remote(5, 12, B, broker=SALES)
    bound = here(
        route(1, "LOCAL", service="Orders", broker=SALES),
        route(2, B, service="Orders", broker=SALES),
        services=(("Stores", "Orders"),),
    )
    assert decide(bound, "Orders") == remote(3, 2, B, broker=SALES)


@pytest.mark.rule("R22", "R26")
def test_a_later_step_is_not_searched_when_nothing_is_usable() -> None:
    """What one step found is all there is to choose from."""
    world = here(route(1, "LOCAL", service="Orders"), route(2, B))
    assert decide(world, "Orders") == delayed("service_not_found", 2)


@pytest.mark.rule("R22")
def test_a_mirrored_route_is_of_class_1_whatever_its_address() -> None:
    """Usable, and what happens, goes by its address."""
    mirrored = (route(3, "LOCAL", mirror=M), route(4, "TRANSPORT", mirror=M))
    plain = (route(1, "LOCAL"), route(2, B))
    services = (("Sales", "Orders"),)
    assert decide(here(mirrored[0], *plain, services=services), "Orders") == local(
        5, 3, "Sales", broker=SALES, mirror=M
    )
    assert decide(here(mirrored[0], *plain), "Orders") == remote(5, 2, B)
    assert decide(here(mirrored[1], *plain, services=(("Sales", TARGET),)), TARGET) == remote(5, 4, N, mirror=M)
    assert decide(here(mirrored[1], *plain, services=services), "Orders") == local(5, 1, "Sales", broker=SALES)


@pytest.mark.rule("R24")
def test_the_pick_is_among_the_usable_routes_of_the_class() -> None:
    """An unusable route takes no share."""
    world = here(
        route(1, "LOCAL", mirror=M), route(2, "TRANSPORT", mirror=M), route(3, A, mirror=M), route(4, B, mirror=M)
    )
    answers = [answer.route_id for answer in decide_all(world, many())]
    assert set(answers) == {3, 4}
    assert 430 < answers.count(3) < 570


@pytest.mark.rule("R23")
@pytest.mark.parametrize(
    ("name", "hop"),
    [
        ("TCP://next.example:5022/Orders", N),
        ("tcp://NEXT.example:5022/Orders/More", N),
        ("next.example:05022", N),
        ("Next.Example:5022/", N),
        ("TCP://next.example:5022", N),
        ("TCP://[2001:DB8:0::1]:5022/Orders", "TCP://[2001:db8::1]:5022"),
        ("[::1]:5022", "TCP://[::1]:5022"),
        ("10.0.0.1:1/ a name, with anything after it\n", "TCP://10.0.0.1:1"),
        ("next.example:5022//", N),
        ("tcp:5022/", "TCP://tcp:5022"),
    ],
)
def test_transport_takes_the_next_hop_from_the_service_name(name: str, hop: str) -> None:
    """`[TCP://]host:port[/...]`, written in the normal form."""
    assert decide(here(route(1, "transport")), name) == remote(5, 1, hop)


@pytest.mark.rule("R23", "R26")
@pytest.mark.parametrize(
    "name",
    [
        "Orders",
        "",
        "TCP://next.example/Orders",
        "next.example",
        "TCP://next.example:/Orders",
        "next.example:0/Orders",
        "next.example:65536",
        "next.example:5022Orders",
        "next.example:5022:5022",
        "next.example:-5022",
        "http://next.example:5022/Orders",
        "TCP://TCP://next.example:5022",
        " next.example:5022",
        "next example:5022",
        "next..example:5022",
        ".next:5022",
        "nèxt.example:5022",
        "next.example:٥٠٢٢",
        "::1:5022",
        "[::g]:5022",
        "/next.example:5022",
        "TCP://:5022/Orders",
        ":5022",
    ],
)
def test_a_name_that_holds_no_address_makes_the_route_unusable(name: str) -> None:
    """Begun here it is DELAYED, from outside DROPPED."""
    world = here(route(1, "TRANSPORT"), route(2, "TRANSPORT", table=MSDB), forwarding=True)
    assert decide(world, name) == delayed("address_unusable", 5)
    assert decide(world, name, begun_in=OUTSIDE) == dropped("address_unusable", 5)


@pytest.mark.rule("R23")
def test_a_route_by_name_may_say_transport() -> None:
    """A catalog may hold what CREATE ROUTE refuses."""
    world = here(route(1, "TRANSPORT", service=TARGET, broker=SALES))
    assert decide(world, TARGET) == remote(3, 1, N, broker=SALES)


@pytest.mark.rule("R25")
def test_without_forwarding_what_came_from_outside_goes_nowhere() -> None:
    """DROPPED when the chosen address is not LOCAL; the chosen route is named, the next hop is not."""
    for each, mirror in ((CLASSES[0], M), (CLASSES[2], None), (CLASSES[3], None)):
        of_msdb = replace(each, database=MSDB)
        answer = decide(here(of_msdb), TARGET, begun_in=OUTSIDE)
        assert answer == dropped("forwarding_disabled", 5, each.route_id, mirror=mirror)
    named = here(route(1, A, service="Orders", broker=NOWHERE, table=MSDB))
    assert decide(named, "Orders", begun_in=OUTSIDE) == dropped("forwarding_disabled", 3, 1, broker=NOWHERE)


@pytest.mark.rule("R25")
def test_with_forwarding_it_is_passed_on() -> None:
    """Also by TRANSPORT."""
    for each, chosen in zip(CLASSES, CHOSEN, strict=True):
        world = here(replace(each, database=MSDB), services=(("Stores", TARGET),), forwarding=True)
        expected = chosen if chosen.outcome == "LOCAL" else replace(chosen, outcome="FORWARD")
        assert decide(world, TARGET, begun_in=OUTSIDE) == expected


@pytest.mark.rule("R25")
def test_local_needs_no_forwarding() -> None:
    """What arrives for a service here is delivered."""
    world = here(route(1, "LOCAL", table=MSDB), services=(("Stores", "Orders"),))
    assert decide(world, "Orders", begun_in=OUTSIDE) == local(5, 1, "Stores", broker=STORES)


@pytest.mark.rule("R25")
def test_what_begins_here_needs_no_forwarding() -> None:
    """A conversation that originates in this instance is sent."""
    assert decide(here(route(1, A)), "Orders") == remote(5, 1, A)


@pytest.mark.rule("R26")
def test_without_a_usable_route() -> None:
    """Begun here it is DELAYED, from outside DROPPED; no route is named."""
    world = here(route(1, "LOCAL"), route(2, "LOCAL", table=MSDB))
    assert decide(world, "Orders") == delayed("service_not_found", 5)
    assert decide(world, "Orders", broker=SALES) == delayed("service_not_found", 5, broker=SALES)
    assert decide(world, "Orders", begun_in=OUTSIDE) == dropped("service_not_found", 5)
    assert decide(world, "Orders", broker=SALES, begun_in=OUTSIDE) == dropped("service_not_found", 5, broker=SALES)


@pytest.mark.rule("R26")
def test_the_reason() -> None:
    """The service was not found if a route found was LOCAL, mirrored or not; else no address was usable."""
    assert decide(here(route(1, "TRANSPORT"), route(2, "LOCAL")), "Orders") == delayed("service_not_found", 5)
    assert decide(here(route(1, "TRANSPORT"), route(2, "LOCAL", mirror=M)), "Orders") == delayed("service_not_found", 5)
    assert decide(here(route(1, "TRANSPORT"), route(2, "TRANSPORT", mirror=M)), "Orders") == delayed(
        "address_unusable", 5
    )
    assert decide(here(route(1, "TRANSPORT", service="Orders"), route(2, "LOCAL")), "Orders") == delayed(
        "address_unusable", 2
    )


@pytest.mark.rule("R26")
def test_the_id_of_routes_that_cannot_be_used_does_not_bind() -> None:
    """Nothing was chosen, so only the conversation's own id is told."""
    assert decide(here(route(1, "LOCAL", service="Orders", broker=SALES)), "Orders") == delayed("service_not_found", 3)


def many() -> list[Conversation]:
    random = Random(21)
    return [
        Conversation(to_service_name="Orders", database="Sales", conversation_id=UUID(int=random.getrandbits(128)))
        for _ in range(1000)
    ]
