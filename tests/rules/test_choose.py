"""Choosing among the routes found, and outcomes if none is usable."""

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
    """Nine spellings of one address and one of another share the conversations equally."""
    spellings = ["TCP://a.example:4022", "tcp://A.EXAMPLE", "tcp://a.example/"] * 3
    world = here(*(route(n, text) for n, text in enumerate(spellings, 1)), route(10, B))
    answers = [answer.route_id for answer in decide_all(world, many())]
    assert set(answers) == {1, 10}
    assert 430 < answers.count(10) < 570


@pytest.mark.rule("R21")
def test_merged_routes_have_the_lowest_id() -> None:
    """Whatever the order of the rows."""
    world = here(route(7, A), route(3, "tcp://A.example/"), route(5, A))
    for tie_break in ("hash", "first", "round_robin"):
        assert decide(world, "Orders", tie_break=tie_break) == remote(5, 3, A)


@pytest.mark.rule("R21", "R6")
def test_another_port_is_another_address() -> None:
    world = here(route(1, "TCP://a.example:4022"), route(2, "TCP://a.example:4023"))
    assert {answer.route_id for answer in decide_all(world, many())} == {1, 2}


@pytest.mark.rule("R21", "R22")
def test_a_mirror_is_never_lost_by_merging() -> None:
    """A route with a mirror is not merged with one without."""
    world = here(route(1, A), route(2, A, mirror=M))
    assert decide(world, "Orders") == remote(5, 2, A, mirror=M)


@pytest.mark.rule("R21")
def test_merged_mirrored_routes_have_the_lowest_id() -> None:
    """The mirror address is ignored."""
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
def test_the_first_class_with_routes_is_taken(present: tuple[int, ...]) -> None:
    """Mirrored, LOCAL, network, TRANSPORT: all fifteen combinations."""
    routes = [CLASSES[number] for number in present]
    for order in (routes, routes[::-1]):
        assert decide(here(*order, services=(("Stores", TARGET),)), TARGET) == CHOSEN[present[0]]


@pytest.mark.rule("R22")
def test_local_is_usable_only_if_the_service_is_in_this_instance() -> None:
    """Otherwise the network route is taken, or TRANSPORT."""
    assert decide(here(*CLASSES[1:]), TARGET) == remote(5, 12, B)
    assert decide(here(CLASSES[1], CLASSES[3]), TARGET) == remote(5, 11, N)
    elsewhere = here(*CLASSES[1:], services=(("Stores", "Other"),))
    assert decide(elsewhere, TARGET) == remote(5, 12, B)
    disabled = here(*CLASSES[1:], services=(("Stores", TARGET),), disabled=("Stores",))
    assert decide(disabled, TARGET) == remote(5, 12, B)


@pytest.mark.rule("R22", "R31")
def test_local_is_usable_only_if_locate_finds_a_database() -> None:
    """The service exists here, but not in the database with the broker id."""
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
    """Only the routes found by one step are candidates."""
    world = here(route(1, "LOCAL", service="Orders"), route(2, B))
    assert decide(world, "Orders") == delayed("service_not_found", 2)


@pytest.mark.rule("R22")
def test_a_mirrored_route_is_of_class_1_with_any_address() -> None:
    """Its address determines usability and outcome."""
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
    """Unusable routes get no share."""
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
    """`[TCP://]host:port[/...]`, in normal form."""
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
def test_transport_requires_an_address_in_the_service_name(name: str) -> None:
    """Otherwise a local conversation is DELAYED, and a message from outside is DROPPED."""
    world = here(route(1, "TRANSPORT"), route(2, "TRANSPORT", table=MSDB), forwarding=True)
    assert decide(world, name) == delayed("address_unusable", 5)
    assert decide(world, name, started_in=OUTSIDE) == dropped("address_unusable", 5)


@pytest.mark.rule("R23")
def test_a_route_by_name_may_have_transport() -> None:
    """CREATE ROUTE rejects it, but a catalog may contain it."""
    world = here(route(1, "TRANSPORT", service=TARGET, broker=SALES))
    assert decide(world, TARGET) == remote(3, 1, N, broker=SALES)


@pytest.mark.rule("R25")
def test_without_forwarding_messages_from_outside_are_dropped() -> None:
    """If the chosen address is not LOCAL; the decision has the route, but no next hop."""
    for each, mirror in ((CLASSES[0], M), (CLASSES[2], None), (CLASSES[3], None)):
        of_msdb = replace(each, database=MSDB)
        answer = decide(here(of_msdb), TARGET, started_in=OUTSIDE)
        assert answer == dropped("forwarding_disabled", 5, each.route_id, mirror=mirror)
    named = here(route(1, A, service="Orders", broker=NOWHERE, table=MSDB))
    assert decide(named, "Orders", started_in=OUTSIDE) == dropped("forwarding_disabled", 3, 1, broker=NOWHERE)


@pytest.mark.rule("R25")
def test_with_forwarding_messages_from_outside_are_forwarded() -> None:
    """By TRANSPORT too."""
    for each, chosen in zip(CLASSES, CHOSEN, strict=True):
        world = here(replace(each, database=MSDB), services=(("Stores", TARGET),), forwarding=True)
        expected = chosen if chosen.outcome == "LOCAL" else replace(chosen, outcome="FORWARD")
        assert decide(world, TARGET, started_in=OUTSIDE) == expected


@pytest.mark.rule("R25")
def test_local_does_not_require_forwarding() -> None:
    """Messages for services here are delivered."""
    world = here(route(1, "LOCAL", table=MSDB), services=(("Stores", "Orders"),))
    assert decide(world, "Orders", started_in=OUTSIDE) == local(5, 1, "Stores", broker=STORES)


@pytest.mark.rule("R25")
def test_local_conversations_do_not_require_forwarding() -> None:
    assert decide(here(route(1, A)), "Orders") == remote(5, 1, A)


@pytest.mark.rule("R26")
def test_without_a_usable_route() -> None:
    """A local conversation is DELAYED, a message from outside DROPPED; the decision has no route."""
    world = here(route(1, "LOCAL"), route(2, "LOCAL", table=MSDB))
    assert decide(world, "Orders") == delayed("service_not_found", 5)
    assert decide(world, "Orders", broker=SALES) == delayed("service_not_found", 5, broker=SALES)
    assert decide(world, "Orders", started_in=OUTSIDE) == dropped("service_not_found", 5)
    assert decide(world, "Orders", broker=SALES, started_in=OUTSIDE) == dropped("service_not_found", 5, broker=SALES)


@pytest.mark.rule("R26")
def test_the_reason_without_a_usable_route() -> None:
    """The service was not found if any route found was LOCAL, mirrored or not; otherwise no address was usable."""
    assert decide(here(route(1, "TRANSPORT"), route(2, "LOCAL")), "Orders") == delayed("service_not_found", 5)
    assert decide(here(route(1, "TRANSPORT"), route(2, "LOCAL", mirror=M)), "Orders") == delayed("service_not_found", 5)
    assert decide(here(route(1, "TRANSPORT"), route(2, "TRANSPORT", mirror=M)), "Orders") == delayed(
        "address_unusable", 5
    )
    assert decide(here(route(1, "TRANSPORT", service="Orders"), route(2, "LOCAL")), "Orders") == delayed(
        "address_unusable", 2
    )


@pytest.mark.rule("R26")
def test_the_broker_id_of_unusable_routes_does_not_bind() -> None:
    """The decision has only the broker id that the conversation names."""
    assert decide(here(route(1, "LOCAL", service="Orders", broker=SALES)), "Orders") == delayed("service_not_found", 3)


def many() -> list[Conversation]:
    random = Random(21)
    return [
        Conversation(to_service_name="Orders", database="Sales", conversation_id=UUID(int=random.getrandbits(128)))
        for _ in range(1000)
    ]
