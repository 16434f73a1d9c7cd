"""Locating the target service in this instance."""

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
def test_the_broker_id_of_the_conversation_selects_the_database() -> None:
    """Not the own one, although it has the service too."""
    world = here(LOCAL, LOCAL_OF_MSDB, services=EVERYWHERE)
    assert decide(world, "Orders", broker=STORES) == local(5, 1, "Stores", broker=STORES)
    assert decide(world, "Orders", broker=OPS, started_in=OUTSIDE) == local(5, 2, "Ops", broker=OPS)


@pytest.mark.rule("R31")
def test_the_broker_id_of_the_route_selects_the_database() -> None:
    """If the conversation names none."""
    world = here(route(1, "LOCAL", service="Orders", broker=OPS), services=EVERYWHERE)
    assert decide(world, "Orders") == local(3, 1, "Ops", broker=OPS)


@pytest.mark.rule("R31")
def test_the_database_must_have_the_service_and_be_enabled() -> None:
    """Otherwise the route is unusable."""
    assert decide(here(LOCAL, services=EVERYWHERE[1:]), "Orders", broker=STORES) == delayed(
        "service_not_found", 5, broker=STORES
    )
    assert decide(here(LOCAL, services=EVERYWHERE, disabled=("Stores",)), "Orders", broker=STORES) == delayed(
        "service_not_found", 5, broker=STORES
    )
    unknown = here(LOCAL_OF_MSDB, services=EVERYWHERE)
    assert decide(unknown, "Orders", broker=ELSEWHERE, started_in=OUTSIDE) == dropped(
        "service_not_found", 5, broker=ELSEWHERE
    )


@pytest.mark.rule("R31")
@pytest.mark.parametrize("order", [1, -1])
def test_of_databases_with_the_same_id_the_enabled_one_is_found(order: int) -> None:
    """A disabled copy is skipped."""
    world = World(
        routes=(LOCAL_OF_MSDB,),
        databases=(
            Database(name="Copy", service_broker_guid=SALES, is_broker_enabled=False),
            Database(name="Sales", service_broker_guid=SALES),
        )[::order],
        services=(Service(database="Copy", name="Orders"), Service(database="Sales", name="Orders")),
    )
    assert decide(world, "Orders", broker=SALES, started_in=OUTSIDE) == local(5, 2, "Sales", broker=SALES)


@pytest.mark.rule("R31")
def test_a_database_with_an_unknown_id_is_not_found_by_an_id() -> None:
    """Not by the id of zeros either; without an id it is found, and its id remains unknown."""
    world = World(routes=(route(1, "LOCAL", table="Lone"),), services=(Service(database="Lone", name="Orders"),))
    for broker in (SALES, UUID(int=0)):
        assert decide(world, "Orders", broker=broker, started_in="Lone") == delayed(
            "service_not_found", 5, broker=broker
        )
    assert decide(world, "Orders", started_in="Lone") == local(5, 1, "Lone")


@pytest.mark.rule("R32")
def test_the_own_database_is_searched_first() -> None:
    """All conversations remain in it, whatever the tie break."""
    world = here(LOCAL, services=EVERYWHERE)
    for tie_break in ("hash", "first", "round_robin"):
        assert set(decide_all(world, many("Sales"), tie_break=tie_break)) == {local(5, 1, "Sales", broker=SALES)}


@pytest.mark.rule("R32")
def test_otherwise_one_of_the_other_databases_is_picked() -> None:
    """Each of them for some conversations, with its broker id."""
    world = here(route(1, "LOCAL"), services=(EVERYWHERE[0], EVERYWHERE[2]))
    expected = {local(5, 1, "Stores", broker=STORES), local(5, 1, "Ops", broker=OPS)}
    assert set(decide_all(world, many("Sales"))) == expected


@pytest.mark.rule("R32")
def test_messages_from_outside_have_no_own_database() -> None:
    """All databases with the service are candidates."""
    answers = decide_all(here(LOCAL_OF_MSDB, services=EVERYWHERE), many(None))
    assert {answer.target_database for answer in answers} == {"Sales", "Stores", "Ops"}


@pytest.mark.rule("R32", "R41")
def test_reentered_conversations_have_no_own_database() -> None:
    """The database in which it started is one of all."""
    world = here(route(1, "TCP://own"), LOCAL_OF_MSDB, services=EVERYWHERE, own=("TCP://own",))
    answers = decide_all(world, many("Sales"))
    assert {answer.target_database for answer in answers} == {"Sales", "Stores", "Ops"}


@pytest.mark.rule("R32")
def test_services_of_msdb_are_found() -> None:
    world = here(LOCAL, LOCAL_OF_MSDB, services=((MSDB, "Orders"),))
    assert decide(world, "Orders") == local(5, 1, MSDB)
    assert decide(world, "Orders", started_in=OUTSIDE) == local(5, 2, MSDB)


@pytest.mark.rule("R33")
def test_services_of_disabled_databases_are_invisible() -> None:
    """All conversations go to the enabled one."""
    world = here(LOCAL_OF_MSDB, services=EVERYWHERE, disabled=("Sales", "Ops"))
    assert set(decide_all(world, many(None))) == {local(5, 2, "Stores", broker=STORES)}


@pytest.mark.rule("R33", "R26")
def test_nothing_is_found_if_only_disabled_databases_have_the_service() -> None:
    world = here(LOCAL, LOCAL_OF_MSDB, services=EVERYWHERE[:1], disabled=("Stores",))
    assert decide(world, "Orders") == delayed("service_not_found", 5)
    assert decide(world, "Orders", started_in=OUTSIDE) == dropped("service_not_found", 5)


@pytest.mark.rule("R33")
def test_services_of_a_disabled_msdb_are_invisible() -> None:
    """Though its table is read."""
    world = here(LOCAL_OF_MSDB, services=((MSDB, "Orders"),))
    world = replace(world, databases=(Database(name=MSDB, service_broker_guid=OPS, is_broker_enabled=False),))
    assert decide(world, "Orders", started_in=OUTSIDE) == dropped("service_not_found", 5)


@pytest.mark.rule("R34")
def test_conversations_of_a_disabled_database_are_delayed() -> None:
    """No table is read; the broker id of the conversation is kept."""
    world = here(
        LOCAL, route(2, "TCP://a", service="Orders"), route(3, "LOCAL", service="SQL/ServiceBroker/BrokerConfiguration"),
        services=EVERYWHERE, disabled=("Sales",), forwarding=True,
    )  # fmt: skip
    assert decide(world, "Orders") == delayed("sender_disabled", None)
    assert decide(world, "Orders", broker=STORES) == delayed("sender_disabled", None, broker=STORES)
    assert decide(world, "Orders", broker=STORES, is_initiator=False) == delayed("sender_disabled", None, broker=STORES)


@pytest.mark.rule("R34")
def test_only_the_senders_database_delays_a_conversation() -> None:
    """Conversations of others, and messages from outside, are routed; a disabled msdb delays only its own."""
    world = here(LOCAL, LOCAL_OF_MSDB, route(3, "LOCAL", table="Stores"), services=EVERYWHERE, disabled=("Stores",))
    assert decide(world, "Orders") == local(5, 1, "Sales", broker=SALES)
    assert decide(world, "Orders", started_in="Stores") == delayed("sender_disabled", None)
    without_msdb = replace(
        world, databases=(*world.databases, Database(name=MSDB, service_broker_guid=ELSEWHERE, is_broker_enabled=False))
    )
    assert decide(without_msdb, "Orders", broker=OPS, started_in=OUTSIDE) == local(5, 2, "Ops", broker=OPS)
    assert decide(without_msdb, "Orders", started_in=MSDB) == delayed("sender_disabled", None)


def many(database: str | None) -> list[Conversation]:
    random = Random(31)
    return [
        Conversation(to_service_name="Orders", database=database, conversation_id=UUID(int=random.getrandbits(128)))
        for _ in range(60)
    ]
