"""Whether a conversation stays in its database depends on its content alone, and agrees with routing."""

from __future__ import annotations

import gc
import weakref
from uuid import UUID

import pytest

import ssbroker
from ssbroker import Instance
from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.database import Database, database_context
from ssbroker.store.objects import Broker, Objects, Route, Service
from tests.broker.conftest import INITIATOR, QUEUE, TARGET, Clock
from tests.broker.sample_databases import received, waiting
from tests.oracle.world import Conversation, World
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

WORLDS = 1500
STAYING_LEAST = 300
AWAY = "TCP://away.example:4022"


def objects_of(world: World, database: str, guid: UUID, *, is_enabled: bool) -> Objects:
    """Returns the objects of a database of a world."""
    routes = [
        Route(
            route.route_id or 0,
            route.name,
            route.remote_service_name,
            None if route.broker_instance is None else route.broker_instance.bytes,
            None if route.lifetime is None else epoch_microseconds(route.lifetime),
            route.address,
            route.mirror_address,
        )
        for route in world.tables[database]
    ]
    names = [service.name for service in world.services if service.database == database]
    return Objects(
        version=1,
        broker=Broker(guid.bytes, is_enabled, is_honor_broker_priority_on=False),
        message_types={},
        contracts={},
        queues={},
        services={name: Service(number, name, 1, frozenset()) for number, name in enumerate(names)},
        routes={f"{number}": route for number, route in enumerate(routes)},
        priorities={},
    )


def conversation_within(service: str, database: str, guid: UUID, *, is_initiator: bool) -> Conversation:
    """Returns a conversation within a database that names its broker id."""
    return Conversation(
        to_service_name=service,
        database=database,
        to_broker_instance=guid,
        is_initiator=is_initiator,
        conversation_id=UUID(int=1),
    )


def test_local_services_agree_with_routing() -> None:
    """For any routes, databases, addresses and requests, and both ends of a conversation."""
    requests_checked = 0
    for seed in range(WORLDS):
        world, _ = seeded_world(seed, conversations=0)
        requests = [
            (conversation_within(name, one.name, guid, is_initiator=side), guid)
            for one in world.databases
            if (guid := one.service_broker_guid) is not None
            for name in sorted(
                objects_of(world, one.name, guid, is_enabled=one.is_broker_enabled).services_routed_locally
            )
            for side in (True, False)
        ]
        requests_checked += len(requests)
        if not requests:
            continue
        router = ssbroker.Router(catalog_of(world))
        found = decisions_of(router.route(batch_of([conversation for conversation, _ in requests]), now=NOW))
        for (conversation, guid), decision in zip(requests, found, strict=True):
            result = (decision.outcome, decision.target_database, decision.broker_instance)
            assert result == ("LOCAL", conversation.database, guid), f"{seed}: {conversation}\n{world}"
    assert requests_checked >= STAYING_LEAST


@pytest.mark.rule("R2")
@pytest.mark.parametrize(
    "route",
    [
        f"CREATE ROUTE Away WITH SERVICE_NAME = N'{TARGET}', ADDRESS = N'{AWAY}'",
        f"ALTER ROUTE AutoCreatedLocal WITH ADDRESS = N'{AWAY}'",
        "ALTER ROUTE AutoCreatedLocal WITH ADDRESS = N'TRANSPORT'",
    ],
)
def test_a_route_created_by_another_process_is_used_for_the_next_message(
    instance: Instance, sales: Database, clock: Clock, route: str
) -> None:
    """Its previous messages were delivered directly into the queue of their database."""
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"1")
    with sales.transaction() as t:
        t.send(dialog, b"2")
    assert received(sales, QUEUE) == [b"1", b"2"]
    with Instance.open(instance.folder, clock=clock, background=False) as other:
        other.execute(f"USE Sales; {route};")
        with sales.transaction() as t:
            t.send(dialog, b"3")
        assert [each.message_sequence_number for each in waiting(sales)] == [2]
        assert received(sales, QUEUE) == []
        back = (
            "DROP ROUTE Away"
            if "CREATE ROUTE Away" in route
            else "ALTER ROUTE AutoCreatedLocal WITH ADDRESS = N'LOCAL'"
        )
        other.execute(f"USE Sales; {back};")
    clock.advance(seconds=5)
    instance.run_due()
    with sales.transaction() as t:
        t.send(dialog, b"4")
    assert received(sales, QUEUE) == [b"3", b"4"]
    assert waiting(sales) == []


@pytest.mark.rule("I7", "R31")
def test_a_bound_conversation_is_not_routed_to_another_database_with_the_service(
    instance: Instance, sales: Database
) -> None:
    """The broker id identifies the database, however many have the service."""
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"1")
    other = instance.create_database("Other")
    other.create_queue(QUEUE)
    other.create_service(TARGET, queue=QUEUE)
    with sales.transaction() as t:
        t.send(dialog, b"2")
    assert received(sales, QUEUE) == [b"1", b"2"]
    sales.set_broker("DISABLE_BROKER")
    with sales.transaction() as t:
        t.send(dialog, b"3")
    assert [each.message_sequence_number for each in waiting(sales)] == [2], "I2: it stays in the transmission queue"


def test_a_dropped_database_leaves_nothing_in_memory(instance: Instance, sales: Database) -> None:
    """Databases that are created and dropped under new names must not leave snapshots in memory."""

    def weak_snapshot(name: str) -> weakref.ref[Objects]:
        database = instance.create_database(name)
        database.create_queue("Q")
        database.create_service("//Q", queue="Q")
        with database.transaction() as t:
            t.send(t.begin_dialog("//Q", "//Q"), b"one")
        kept = weakref.ref(database_context(database).objects())
        instance.drop_database(name)
        return kept

    pictures = [weak_snapshot(f"Tenant {number}") for number in range(3)]
    with sales.transaction() as t:
        t.send(t.begin_dialog(INITIATOR, TARGET), b"one")
    gc.collect()
    assert [each() for each in pictures] == [None] * 3
