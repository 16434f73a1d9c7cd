"""R31 to R34: where in this instance the target service is."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from tests.oracle.world import Conversation, Database, Service, World
from tests.rules.setting import (
    ELSEWHERE,
    MSDB,
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
    route,
)

EVERYWHERE = tuple((database, "Orders") for database in ("Stores", "Sales", "Ops"))
LOCAL = route(1, "LOCAL")
LOCAL_OF_MSDB = route(2, "LOCAL", table=MSDB)


@pytest.mark.rule("R31")
def test_the_id_of_the_conversation_names_the_database() -> None:
    """Not the own one, though it has the service too."""
    world = here(LOCAL, LOCAL_OF_MSDB, services=EVERYWHERE)
    assert decide(world, "Orders", broker=STORES) == local(5, 1, "Stores", broker=STORES)
    assert decide(world, "Orders", broker=OPS, begun_in=OUTSIDE) == local(5, 2, "Ops", broker=OPS)


@pytest.mark.rule("R31")
def test_the_id_of_the_route_names_the_database() -> None:
    """Where the conversation names none."""
    world = here(route(1, "LOCAL", service="Orders", broker=OPS), services=EVERYWHERE)
    assert decide(world, "Orders") == local(3, 1, "Ops", broker=OPS)


@pytest.mark.rule("R31")
def test_the_database_must_have_the_service_and_be_enabled() -> None:
    """Or the route cannot be used."""
    assert decide(here(LOCAL, services=EVERYWHERE[1:]), "Orders", broker=STORES) == delayed(
        "service_not_found", 5, broker=STORES
    )
    assert decide(here(LOCAL, services=EVERYWHERE, disabled=("Stores",)), "Orders", broker=STORES) == delayed(
        "service_not_found", 5, broker=STORES
    )
    unknown = here(LOCAL_OF_MSDB, services=EVERYWHERE)
    assert decide(unknown, "Orders", broker=ELSEWHERE, begun_in=OUTSIDE) == dropped(
        "service_not_found", 5, broker=ELSEWHERE
    )


@pytest.mark.rule("R31")
@pytest.mark.parametrize("order", [1, -1])
def test_of_databases_with_one_id_the_enabled_one_counts(order: int) -> None:
    """A disabled copy is passed by."""
    world = World(
        routes=(LOCAL_OF_MSDB,),
        databases=(
            Database(name="Copy", service_broker_guid=SALES, is_broker_enabled=False),
            Database(name="Sales", service_broker_guid=SALES),
        )[::order],
        services=(Service(database="Copy", name="Orders"), Service(database="Sales", name="Orders")),
    )
    assert decide(world, "Orders", broker=SALES, begun_in=OUTSIDE) == local(5, 2, "Sales", broker=SALES)


@pytest.mark.rule("R31")
def test_a_database_with_an_unknown_id_is_not_found_by_an_id() -> None:
    """Not by the id of zeros either; without an id it is found, and its id stays unknown."""
    world = World(routes=(route(1, "LOCAL", table="Lone"),), services=(Service(database="Lone", name="Orders"),))
    for broker in (SALES, UUID(int=0)):
        assert decide(world, "Orders", broker=broker, begun_in="Lone") == delayed("service_not_found", 5, broker=broker)
    assert decide(world, "Orders", begun_in="Lone") == local(5, 1, "Lone")


@pytest.mark.rule("R32")
def test_the_own_database_is_searched_first() -> None:
    """All conversations stay in it, whatever the tie break."""
    world = here(LOCAL, services=EVERYWHERE)
    for tie_break in ("hash", "first", "round_robin"):
        assert set(decide_all(world, many("Sales"), tie_break=tie_break)) == {local(5, 1, "Sales", broker=SALES)}


@pytest.mark.rule("R32")
def test_else_one_of_the_others() -> None:
    """Each of them for some conversations, with its id."""
    world = here(route(1, "LOCAL"), services=(EVERYWHERE[0], EVERYWHERE[2]))
    expected = {local(5, 1, "Stores", broker=STORES), local(5, 1, "Ops", broker=OPS)}
    assert set(decide_all(world, many("Sales"))) == expected


@pytest.mark.rule("R32")
def test_what_came_from_outside_has_no_own_database() -> None:
    """All hosts are candidates."""
    answers = decide_all(here(LOCAL_OF_MSDB, services=EVERYWHERE), many(None))
    assert {answer.target_database for answer in answers} == {"Sales", "Stores", "Ops"}


@pytest.mark.rule("R32", "R41")
def test_what_re_entered_has_no_own_database() -> None:
    """The database in which it began is one of all."""
    world = here(route(1, "TCP://own"), LOCAL_OF_MSDB, services=EVERYWHERE, own=("TCP://own",))
    answers = decide_all(world, many("Sales"))
    assert {answer.target_database for answer in answers} == {"Sales", "Stores", "Ops"}


@pytest.mark.rule("R32")
def test_msdb_is_a_host_like_others() -> None:
    """Its services are found."""
    world = here(LOCAL, LOCAL_OF_MSDB, services=((MSDB, "Orders"),))
    assert decide(world, "Orders") == local(5, 1, MSDB)
    assert decide(world, "Orders", begun_in=OUTSIDE) == local(5, 2, MSDB)


@pytest.mark.rule("R33")
def test_services_of_disabled_databases_are_invisible() -> None:
    """All go to the one that is enabled."""
    world = here(LOCAL_OF_MSDB, services=EVERYWHERE, disabled=("Sales", "Ops"))
    assert set(decide_all(world, many(None))) == {local(5, 2, "Stores", broker=STORES)}


@pytest.mark.rule("R33", "R26")
def test_with_none_but_disabled_hosts_nothing_is_found() -> None:
    """As if no database had the service."""
    world = here(LOCAL, LOCAL_OF_MSDB, services=EVERYWHERE[:1], disabled=("Stores",))
    assert decide(world, "Orders") == delayed("service_not_found", 5)
    assert decide(world, "Orders", begun_in=OUTSIDE) == dropped("service_not_found", 5)


@pytest.mark.rule("R33")
def test_holds_for_msdb_too() -> None:
    """The services of a disabled msdb are invisible, though its table is read."""
    world = here(LOCAL_OF_MSDB, services=((MSDB, "Orders"),))
    world = replace(world, databases=(Database(name=MSDB, service_broker_guid=OPS, is_broker_enabled=False),))
    assert decide(world, "Orders", begun_in=OUTSIDE) == dropped("service_not_found", 5)


@pytest.mark.rule("R34")
def test_what_a_disabled_database_began_stays() -> None:
    """No table is read, whatever it holds; the conversation's own id is kept."""
    world = here(
        LOCAL, route(2, "TCP://a", service="Orders"), route(3, "LOCAL", service="SQL/ServiceBroker/BrokerConfiguration"),
        services=EVERYWHERE, disabled=("Sales",), forwarding=True,
    )  # fmt: skip
    assert decide(world, "Orders") == delayed("sender_disabled", None)
    assert decide(world, "Orders", broker=STORES) == delayed("sender_disabled", None, broker=STORES)
    assert decide(world, "Orders", broker=STORES, is_initiator=False) == delayed("sender_disabled", None, broker=STORES)


@pytest.mark.rule("R34")
def test_is_about_senders() -> None:
    """What others began, or what arrives, is routed; a disabled msdb stops only what began in it."""
    world = here(LOCAL, LOCAL_OF_MSDB, route(3, "LOCAL", table="Stores"), services=EVERYWHERE, disabled=("Stores",))
    assert decide(world, "Orders") == local(5, 1, "Sales", broker=SALES)
    assert decide(world, "Orders", begun_in="Stores") == delayed("sender_disabled", None)
    without_msdb = replace(
        world, databases=(*world.databases, Database(name=MSDB, service_broker_guid=ELSEWHERE, is_broker_enabled=False))
    )
    assert decide(without_msdb, "Orders", broker=OPS, begun_in=OUTSIDE) == local(5, 2, "Ops", broker=OPS)
    assert decide(without_msdb, "Orders", begun_in=MSDB) == delayed("sender_disabled", None)


def many(database: str | None) -> list[Conversation]:
    random = Random(31)
    return [
        Conversation(to_service_name="Orders", database=database, conversation_id=UUID(int=random.getrandbits(128)))
        for _ in range(60)
    ]
