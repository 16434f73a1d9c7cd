"""On random instances: what is said to be never taken is never taken by the router, and every other route is taken by something."""

from __future__ import annotations

from itertools import product
from random import Random
from uuid import UUID

import pyarrow as pa
import pytest

import ssbroker
from ssbroker.diagnose import lint
from tests.oracle.world import Conversation, World
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import BROKER_IDS, NOW, SERVICE_NAMES

NEVER_TAKEN = {"SSB001", "SSB002", "SSB003", "SSB005", "SSB007", "SSB008"}
FRESH = UUID("00000000-1111-4222-8333-444444444444")


def conversations(world: World, random: Random, *, times: int) -> list[Conversation]:
    """Every pair of a name and an id in play, and of others, from everywhere, with so many conversation ids each."""
    names = {*SERVICE_NAMES, "TCP://fresh.example:4022/name", "a fresh name"}
    databases = [None, *sorted({database.name for database in world.instance_databases})]
    return [
        Conversation(
            conversation_id=UUID(int=random.getrandbits(128)),
            database=database,
            to_service_name=name,
            to_broker_instance=broker,
            is_initiator=True,
        )
        for database, name, broker in product(databases, sorted(names), (None, FRESH, *BROKER_IDS))
        for _ in range(times)
    ]


def taken(catalog: ssbroker.Catalog, asked: list[Conversation]) -> set[tuple[str, int]]:
    """The routes that the router takes for some conversations, by table and id; a first table that leads back here counts too."""
    tables = [asking.database or "msdb" for asking in asked]
    found: set[tuple[str, int]] = set()
    for addresses in ((), catalog.addresses):
        for pending in (catalog.pending_requests, sorted(set(SERVICE_NAMES) | {"a fresh name"})):
            there = ssbroker.Catalog(
                catalog.routes,
                catalog.databases,
                catalog.services,
                addresses=addresses,
                message_forwarding=catalog.message_forwarding,
                pending_requests=pending,
            )
            ids = ssbroker.Router(there).route(batch_of(asked), now=NOW)["route_id"].to_pylist()
            if not addresses:
                found |= {(table, number) for table, number in zip(tables, ids, strict=True) if number is not None}
            else:
                arrived = [
                    (asking, number) for asking, number in zip(asked, ids, strict=True) if asking.database is None
                ]
                found |= {("msdb", number) for _, number in arrived if number is not None}
    return found


@pytest.mark.rule("R20", "R21", "R22")
@pytest.mark.parametrize("seed", range(60))
def test_what_is_said_to_be_never_taken_is_never_taken(seed: int) -> None:
    """And where an enabled database's route is not said to be, some conversation takes it."""
    world, _ = seeded_world(seed, conversations=0)
    catalog = catalog_of(world)
    said = {(f.database, f.route_id) for f in lint(catalog, at=NOW) if f.code in NEVER_TAKEN and f.route_id is not None}
    taken_by_router = taken(catalog, conversations(world, Random(seed), times=16))
    assert said.isdisjoint(taken_by_router)
    enabled = {row["name"] for row in catalog.databases.to_pylist() if row["is_broker_enabled"]}
    hosting = any(service["database"] in enabled for service in catalog.services.to_pylist())
    unsaid = [
        (route["database"], route["route_id"])
        for route in catalog.routes.to_pylist()
        if (route["database"] in enabled or route["database"] == "msdb")
        and (route["database"], route["route_id"]) not in said
        and (hosting or route["address"].upper() != "LOCAL")
    ]
    assert [key for key in unsaid if key not in taken_by_router] == []


def test_the_seeds_show_every_kind() -> None:
    """Else the test above could be empty."""
    found: set[str] = set()
    for seed in range(60):
        world, _ = seeded_world(seed, conversations=0)
        found |= {finding.code for finding in lint(catalog_of(world), at=NOW)}
    assert found >= NEVER_TAKEN
    assert isinstance(lint(catalog_of(world), at=NOW).table, pa.Table)
