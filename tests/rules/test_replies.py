"""Routing of replies, and of later messages of a conversation."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from tests.oracle.world import Conversation, Database, World
from tests.rules.setting import (
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
    forward,
    here,
    local,
    remote,
    route,
)

A = "TCP://a.example:4022"
B = "TCP://b.example:4022"

REPLIES = here(
    route(1, A, service="Orders", broker=SALES, table=MSDB),
    route(2, A, table=MSDB),
    services=(("Sales", "Orders"), ("Stores", "Orders"), ("Stores", "Returns")),
    forwarding=True,
)


@pytest.mark.rule("R7")
def test_a_reply_for_a_database_here_reads_no_route() -> None:
    """It is delivered locally although a route for this service and broker id leads elsewhere."""
    for database, broker in (("Sales", SALES), ("Stores", STORES)):
        answer = decide(REPLIES, "Orders", broker=broker, started_in=OUTSIDE, is_initiator=False)
        assert answer == local(0, None, database, broker=broker, reason="reply")


@pytest.mark.rule("R7")
def test_a_reply_needs_no_table() -> None:
    """The table of msdb may be empty, and forwarding off."""
    world = here(services=(("Stores", "Orders"),))
    answer = decide(world, "Orders", broker=STORES, started_in=OUTSIDE, is_initiator=False)
    assert answer == local(0, None, "Stores", broker=STORES, reason="reply")


@pytest.mark.rule("R7")
def test_only_messages_from_a_target_are_replies() -> None:
    """The same message from an initiator is routed as usual."""
    assert decide(REPLIES, "Orders", broker=SALES, started_in=OUTSIDE) == forward(1, 1, A, broker=SALES)


@pytest.mark.rule("R7")
def test_only_messages_from_outside_are_replies() -> None:
    """A target's message that starts here reads the table of its database."""
    world = here(route(1, A, service="Orders"), services=(("Stores", "Orders"),))
    assert decide(world, "Orders", broker=STORES, is_initiator=False) == remote(2, 1, A, broker=STORES)


@pytest.mark.rule("R7")
def test_a_reply_with_an_unknown_broker_id_is_routed() -> None:
    answer = decide(REPLIES, "Orders", broker=ELSEWHERE, started_in=OUTSIDE, is_initiator=False)
    assert answer == forward(5, 2, A, broker=ELSEWHERE)


@pytest.mark.rule("R7")
def test_a_reply_without_a_broker_id_is_routed() -> None:
    world = here(route(1, B, service="Orders", table=MSDB), services=(("Sales", "Orders"),), forwarding=True)
    assert decide(world, "Orders", started_in=OUTSIDE, is_initiator=False) == forward(2, 1, B)


@pytest.mark.rule("R7")
def test_a_disabled_database_drops_its_replies() -> None:
    """No other database with the service is tried."""
    world = here(
        route(1, A, table=MSDB),
        services=(("Sales", "Orders"), ("Stores", "Orders")),
        disabled=("Sales",),
        forwarding=True,
    )
    answer = decide(world, "Orders", broker=SALES, started_in=OUTSIDE, is_initiator=False)
    assert answer == dropped("service_not_found", 0, broker=SALES)


@pytest.mark.rule("R7")
def test_a_database_without_the_service_drops_the_reply() -> None:
    """Even if another database has the service."""
    answer = decide(REPLIES, "Returns", broker=SALES, started_in=OUTSIDE, is_initiator=False)
    assert answer == dropped("service_not_found", 0, broker=SALES)


@pytest.mark.rule("R7")
@pytest.mark.parametrize("order", [1, -1])
def test_of_databases_with_the_same_id_the_enabled_one_gets_the_reply(order: int) -> None:
    """Whichever comes first."""
    world = World(
        databases=(
            Database(name="Copy", service_broker_guid=SALES, is_broker_enabled=False),
            Database(name="Sales", service_broker_guid=SALES),
        )[::order],
        services=here(services=(("Copy", "Orders"), ("Sales", "Orders"), ("Copy", "Old"))).services,
    )
    taken = decide(world, "Orders", broker=SALES, started_in=OUTSIDE, is_initiator=False)
    assert taken == local(0, None, "Sales", broker=SALES, reason="reply")
    refused = decide(world, "Old", broker=SALES, started_in=OUTSIDE, is_initiator=False)
    assert refused == dropped("service_not_found", 0, broker=SALES)


@pytest.mark.rule("R7")
def test_msdb_may_receive_replies() -> None:
    world = World(
        databases=(Database(name=MSDB, service_broker_guid=OPS),),
        services=here(services=((MSDB, "Orders"),)).services,
    )
    answer = decide(world, "Orders", broker=OPS, started_in=OUTSIDE, is_initiator=False)
    assert answer == local(0, None, MSDB, broker=OPS, reason="reply")


@pytest.mark.rule("R8")
def test_later_messages_reach_the_database_of_the_first() -> None:
    """Routed again with the broker id that it was bound to, each of a thousand conversations goes to the same place."""
    world = here(
        route(1, A, service="Orders", broker=SALES),
        route(2, B, service="Orders", broker=STORES),
        route(3, "LOCAL", service="Orders", broker=OPS),
        services=(("Ops", "Orders"),),
    )
    assert_broker_id_binds(world, database="Sales", places=3)


@pytest.mark.rule("R8")
def test_later_messages_reach_the_same_local_copy() -> None:
    """The broker id of the located database binds if neither conversation nor route names one."""
    world = here(route(1, "LOCAL", table=MSDB), services=(("Sales", "Orders"), ("Stores", "Orders"), ("Ops", "Orders")))
    assert_broker_id_binds(world, database=None, places=3)


def assert_broker_id_binds(world: World, *, database: str | None, places: int) -> None:
    first = [
        Conversation(to_service_name="Orders", database=database, conversation_id=conversation_id)
        for conversation_id in thousand_ids()
    ]
    answers = decide_all(world, first)
    later = [
        Conversation(
            to_service_name="Orders",
            database=database,
            conversation_id=conversation.conversation_id,
            to_broker_instance=answer.broker_instance,
        )
        for conversation, answer in zip(first, answers, strict=True)
    ]
    where = [(answer.next_hop_address, answer.target_database, answer.broker_instance) for answer in answers]
    assert len(set(where)) == places
    for tie_break in ("hash", "first", "round_robin"):
        again = decide_all(world, later, tie_break=tie_break)
        assert [(each.next_hop_address, each.target_database, each.broker_instance) for each in again] == where


@pytest.mark.rule("R8", "R11", "R13")
def test_a_bound_conversation_does_not_move_to_another_copy() -> None:
    """If its route is gone, it waits."""
    world = here(route(1, A, service="Orders", broker=SALES))
    assert decide(world, "Orders", broker=NOWHERE) == delayed("no_route", 7, broker=NOWHERE)


def thousand_ids() -> list[UUID]:
    random = Random(8)
    return [UUID(int=random.getrandbits(128)) for _ in range(1000)]
