"""The seven worked examples of the Service Broker documentation."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from tests.oracle.world import Conversation, Database, Decision, Route, Service, World
from tests.rules.setting import MSDB, OUTSIDE, decide, decide_all, delayed, dropped, forward, local, remote, route

USER = "AdventureWorks2008R2"
HERE = UUID("1f0e8f5c-0a30-4a0b-8d5e-6c5c2c0d9a01")
ONE = UUID("5fb8d92b-ed69-4c80-afbb-2aa6a7d3cb2d")
TWO = UUID("81b1d3d0-288e-4d2c-b1d3-456cbb944b4f")

# The documentation writes addresses with a trailing slash; decisions have the normal form.
DEFAULTS = (route(1, "LOCAL", table=USER), route(1, "LOCAL", table=MSDB))


def instance(*routes: Route, forwarding: bool = False) -> World:
    """Returns an instance whose user database has one service, `LocalService`; both routing tables have `AutoCreatedLocal`."""
    return World(
        routes=(*DEFAULTS, *routes),
        databases=(Database(name=USER, service_broker_guid=HERE),),
        services=(Service(database=USER, name="LocalService"),),
        message_forwarding=forwarding,
    )


def out(world: World, name: str, *, broker: UUID | None = None) -> Decision:
    return decide(world, name, started_in=USER, broker=broker)


def arrived(world: World, name: str) -> Decision:
    return decide(world, name, started_in=OUTSIDE)


def by_default(world: World) -> None:
    """Expected decision for the other services, where only `AutoCreatedLocal` matches."""
    assert out(world, "LocalService") == local(5, 1, USER, broker=HERE)
    assert out(world, "MissingService") == delayed("service_not_found", 5)


def arrives_by_default(world: World) -> None:
    assert arrived(world, "LocalService") == local(5, 1, USER, broker=HERE)
    assert arrived(world, "MissingService") == dropped("service_not_found", 5)


@pytest.mark.rule("R26", "R15", "R22")
def test_example_1_the_default_configuration() -> None:
    """Everything is delivered here; unknown services are delayed, or dropped if from outside."""
    by_default(instance())
    arrives_by_default(instance())


@pytest.mark.rule("R12", "R2")
def test_example_2_a_network_route_to_one_service() -> None:
    """Local conversations with the service are sent to its host; messages for it from outside are not."""
    world = instance(route(2, "tcp://host2.Adventure-Works.com:4022/", service="OrderParts", table=USER))
    assert out(world, "OrderParts") == remote(2, 2, "TCP://host2.adventure-works.com:4022")
    by_default(world)
    arrives_by_default(world)
    assert arrived(world, "OrderParts") == dropped("service_not_found", 5)


@pytest.mark.rule("R51", "R12")
def test_example_3_a_network_route_to_a_mirrored_database() -> None:
    """The decision has both partners. DDL rejects this route, but rows may contain it."""
    world = instance(
        route(
            2,
            "tcp://partner1.Adventure-Works.com:4022/",
            mirror="tcp://partner2.Adventure-Works.com:4022/",
            service="OrderParts",
            table=USER,
        )
    )
    assert out(world, "OrderParts") == remote(
        2, 2, "TCP://partner1.adventure-works.com:4022", mirror="TCP://partner2.adventure-works.com:4022"
    )
    by_default(world)
    arrives_by_default(world)


@pytest.mark.rule("R22")
def test_example_4_a_network_route_to_all_external_services() -> None:
    """Local if the service is local, otherwise to the forwarder."""
    world = instance(route(2, "tcp://forwarding.Adventure-Works.com:4022/", table=USER))
    assert out(world, "LocalService") == local(5, 1, USER, broker=HERE)
    assert out(world, "OrderParts") == remote(5, 2, "TCP://forwarding.adventure-works.com:4022")
    arrives_by_default(world)


BALANCED = instance(
    route(2, "tcp://server1.Adventure-Works.com:4022/", service="BalancedService", broker=ONE, table=USER),
    route(3, "tcp://server2.Adventure-Works.com:4022/", service="BalancedService", broker=TWO, table=USER),
)


@pytest.mark.rule("R13", "R8", "R11")
def test_example_5_different_instances_of_a_service() -> None:
    """Some conversations go to one server, some to the other, each bound by the broker id; with an id exactly there."""
    first = remote(3, 2, "TCP://server1.adventure-works.com:4022", broker=ONE)
    second = remote(3, 3, "TCP://server2.adventure-works.com:4022", broker=TWO)
    random = Random(5)
    inputs = [
        Conversation(
            to_service_name="BalancedService", database=USER, conversation_id=UUID(int=random.getrandbits(128))
        )
        for _ in range(100)
    ]
    answers = decide_all(BALANCED, inputs)
    assert set(answers) == {first, second}
    bound = [
        replace(each, to_broker_instance=answer.broker_instance) for each, answer in zip(inputs, answers, strict=True)
    ]
    assert decide_all(BALANCED, bound) == [replace(answer, match_step=1) for answer in answers]
    by_default(BALANCED)
    arrives_by_default(BALANCED)


@pytest.mark.rule("R11")
@pytest.mark.parametrize(("broker", "number"), [(ONE, 2), (TWO, 3)])
def test_example_5_with_an_id(broker: UUID, number: int) -> None:
    """A conversation with a broker id goes to the server with that id."""
    assert out(BALANCED, "BalancedService", broker=broker) == remote(
        1, number, f"TCP://server{number - 1}.adventure-works.com:4022", broker=broker
    )


@pytest.mark.rule("R25", "R2", "R12")
@pytest.mark.parametrize("hosted_here", [False, True])
def test_example_6_forwarding_for_one_service(*, hosted_here: bool) -> None:
    """Forwarded even if a copy is local, dropped if forwarding is off, never used by local conversations."""
    elsewhere = route(2, "tcp://elsewhere.Adventure-Works.com:4022/", service="ElsewhereService", table=MSDB)
    for forwarding in (True, False):
        world = instance(elsewhere, forwarding=forwarding)
        if hosted_here:
            world = replace(world, services=(*world.services, Service(database=USER, name="ElsewhereService")))
        expected = forward(2, 2, "TCP://elsewhere.adventure-works.com:4022")
        assert arrived(world, "ElsewhereService") == (expected if forwarding else dropped("forwarding_disabled", 2, 2))
        started_here = local(5, 1, USER, broker=HERE) if hosted_here else delayed("service_not_found", 5)
        assert out(world, "ElsewhereService") == started_here
        by_default(world)
        arrives_by_default(world)


@pytest.mark.rule("R25", "R22")
def test_example_7_forwarding_for_all_external_services() -> None:
    """Local if the service is local, else forwarded, else dropped; local conversations are unaffected."""
    elsewhere = route(2, "tcp://forwarding.Adventure-Works.com:4022/", table=MSDB)
    world = instance(elsewhere, forwarding=True)
    assert arrived(world, "LocalService") == local(5, 1, USER, broker=HERE)
    assert arrived(world, "MissingService") == forward(5, 2, "TCP://forwarding.adventure-works.com:4022")
    by_default(world)
    closed = instance(elsewhere)
    assert arrived(closed, "LocalService") == local(5, 1, USER, broker=HERE)
    assert arrived(closed, "MissingService") == dropped("forwarding_disabled", 5, 2)
    by_default(closed)
