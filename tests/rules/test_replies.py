"""R7, R8: where replies go, and that all messages of a conversation go to the same database."""

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
    """It is delivered in this instance although a route for this very service and id leads elsewhere."""
    for database, broker in (("Sales", SALES), ("Stores", STORES)):
        answer = decide(REPLIES, "Orders", broker=broker, begun_in=OUTSIDE, is_initiator=False)
        assert answer == local(0, None, database, broker=broker, reason="reply")


@pytest.mark.rule("R7")
def test_needs_no_table_at_all() -> None:
    """Msdb's table may be empty, and forwarding off."""
    world = here(services=(("Stores", "Orders"),))
    answer = decide(world, "Orders", broker=STORES, begun_in=OUTSIDE, is_initiator=False)
    assert answer == local(0, None, "Stores", broker=STORES, reason="reply")


@pytest.mark.rule("R7")
def test_is_for_what_comes_from_a_target() -> None:
    """The same message from an initiator takes the normal process."""
    assert decide(REPLIES, "Orders", broker=SALES, begun_in=OUTSIDE) == forward(1, 1, A, broker=SALES)


@pytest.mark.rule("R7")
def test_is_for_what_comes_from_outside() -> None:
    """A target's message that begins here reads the table of its database."""
    world = here(route(1, A, service="Orders"), services=(("Stores", "Orders"),))
    assert decide(world, "Orders", broker=STORES, is_initiator=False) == remote(2, 1, A, broker=STORES)


@pytest.mark.rule("R7")
def test_with_an_id_that_is_not_here_is_routed() -> None:
    """Otherwise the normal process applies."""
    answer = decide(REPLIES, "Orders", broker=ELSEWHERE, begun_in=OUTSIDE, is_initiator=False)
    assert answer == forward(5, 2, A, broker=ELSEWHERE)


@pytest.mark.rule("R7")
def test_without_an_id_is_routed() -> None:
    """A message from a target without a broker id takes the normal process."""
    world = here(route(1, B, service="Orders", table=MSDB), services=(("Sales", "Orders"),), forwarding=True)
    assert decide(world, "Orders", begun_in=OUTSIDE, is_initiator=False) == forward(2, 1, B)


@pytest.mark.rule("R7")
def test_a_disabled_database_drops_its_replies() -> None:
    """The database that cannot take it is not passed by; another one with the service is no help."""
    world = here(
        route(1, A, table=MSDB),
        services=(("Sales", "Orders"), ("Stores", "Orders")),
        disabled=("Sales",),
        forwarding=True,
    )
    answer = decide(world, "Orders", broker=SALES, begun_in=OUTSIDE, is_initiator=False)
    assert answer == dropped("service_not_found", 0, broker=SALES)


@pytest.mark.rule("R7")
def test_a_database_without_the_service_drops_the_reply() -> None:
    """Also where another database has it."""
    answer = decide(REPLIES, "Returns", broker=SALES, begun_in=OUTSIDE, is_initiator=False)
    assert answer == dropped("service_not_found", 0, broker=SALES)


@pytest.mark.rule("R7")
@pytest.mark.parametrize("order", [1, -1])
def test_of_databases_with_one_id_the_enabled_one_takes_the_reply(order: int) -> None:
    """A disabled copy with the same id changes nothing, whichever comes first."""
    world = World(
        databases=(
            Database(name="Copy", service_broker_guid=SALES, is_broker_enabled=False),
            Database(name="Sales", service_broker_guid=SALES),
        )[::order],
        services=here(services=(("Copy", "Orders"), ("Sales", "Orders"), ("Copy", "Old"))).services,
    )
    taken = decide(world, "Orders", broker=SALES, begun_in=OUTSIDE, is_initiator=False)
    assert taken == local(0, None, "Sales", broker=SALES, reason="reply")
    refused = decide(world, "Old", broker=SALES, begun_in=OUTSIDE, is_initiator=False)
    assert refused == dropped("service_not_found", 0, broker=SALES)


@pytest.mark.rule("R7")
def test_msdb_may_be_the_database_that_is_replied_to() -> None:
    """Any database of the instance counts."""
    world = World(
        databases=(Database(name=MSDB, service_broker_guid=OPS),),
        services=here(services=((MSDB, "Orders"),)).services,
    )
    answer = decide(world, "Orders", broker=OPS, begun_in=OUTSIDE, is_initiator=False)
    assert answer == local(0, None, MSDB, broker=OPS, reason="reply")


@pytest.mark.rule("R8")
def test_with_the_id_of_the_acknowledgement_all_messages_reach_the_database_of_the_first() -> None:
    """Routed again with the id that bound it, a conversation goes where its first message went; a thousand of them."""
    world = here(
        route(1, A, service="Orders", broker=SALES),
        route(2, B, service="Orders", broker=STORES),
        route(3, "LOCAL", service="Orders", broker=OPS),
        services=(("Ops", "Orders"),),
    )
    check_that_the_id_binds(world, database="Sales", places=3)


@pytest.mark.rule("R8")
def test_holds_for_copies_in_this_instance() -> None:
    """The id of the located database binds where neither conversation nor route named one."""
    world = here(route(1, "LOCAL", table=MSDB), services=(("Sales", "Orders"), ("Stores", "Orders"), ("Ops", "Orders")))
    check_that_the_id_binds(world, database=None, places=3)


def check_that_the_id_binds(world: World, *, database: str | None, places: int) -> None:
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
def test_an_id_that_is_gone_does_not_go_elsewhere_by_itself() -> None:
    """A bound conversation whose route is gone waits; it does not fall to another copy's route (R13)."""
    world = here(route(1, A, service="Orders", broker=SALES))
    assert decide(world, "Orders", broker=NOWHERE) == delayed("no_route", 7, broker=NOWHERE)


def thousand_ids() -> list[UUID]:
    random = Random(8)
    return [UUID(int=random.getrandbits(128)) for _ in range(1000)]
