"""On random instances, routes reported as unused are never used by the router, and all others are."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import ssbroker
from ssbroker.diagnose import Fleet, lint
from ssbroker.diagnose.assumed_broker_ids import AssumedBrokerIds
from tests.diagnose.observed_fleets import unproven_findings
from tests.oracle.world import Conversation, World
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import BROKER_IDS, NOW, SERVICE_NAMES

UNUSED_CODES = {"SSB001", "SSB002", "SSB003", "SSB005", "SSB007", "SSB008"}
UNKNOWN_ID = UUID("00000000-1111-4222-8333-444444444444")


def conversations(world: World, catalog: ssbroker.Catalog, random: Random, *, times: int) -> list[Conversation]:
    """Returns conversations for every pair of known and unknown names and ids, from everywhere, `times` of each."""
    own: list[Any] = catalog.databases["service_broker_guid"].to_pylist()
    ids = {*BROKER_IDS, UNKNOWN_ID, *(UUID(bytes=broker) for broker in own)}
    names = {*SERVICE_NAMES, "TCP://unknown.example:4022/name", "an unknown name"}
    databases = [None, *sorted({database.name for database in world.instance_databases})]
    return [
        Conversation(
            conversation_id=UUID(int=random.getrandbits(128)),
            database=database,
            to_service_name=name,
            to_broker_instance=broker,
            is_initiator=True,
        )
        for database, name, broker in product(databases, sorted(names), (None, *sorted(ids)))
        for _ in range(times)
    ]


def used_routes(catalog: ssbroker.Catalog, traffic: list[Conversation]) -> set[tuple[str, int]]:
    """Returns the routes that the router uses, by table and id, including the first one of a reentered conversation."""
    tables = [conversation.database or "msdb" for conversation in traffic]
    found: set[tuple[str, int]] = set()
    for addresses in ((), catalog.addresses):
        for pending in (catalog.pending_requests, sorted(set(SERVICE_NAMES) | {"an unknown name"})):
            variant = ssbroker.Catalog(
                catalog.routes,
                catalog.databases,
                catalog.services,
                addresses=addresses,
                message_forwarding=catalog.message_forwarding,
                pending_requests=pending,
            )
            ids = ssbroker.Router(variant).route(batch_of(traffic), now=NOW)["route_id"].to_pylist()
            if not addresses:
                found |= {(table, number) for table, number in zip(tables, ids, strict=True) if number is not None}
            else:
                arrived = [
                    (conversation, number)
                    for conversation, number in zip(traffic, ids, strict=True)
                    if conversation.database is None
                ]
                found |= {("msdb", number) for _, number in arrived if number is not None}
    return found


@pytest.mark.rule("R20", "R21", "R22")
@pytest.mark.parametrize("seed", range(60))
def test_reported_unused_routes_are_never_used(seed: int) -> None:
    """Every other route of an enabled database is used by some conversation."""
    world, _ = seeded_world(seed, conversations=0)
    catalog = AssumedBrokerIds(Fleet.of(catalog_of(world))).fleet["instance"]
    reported = {
        (f.database, f.route_id)
        for f in unproven_findings(Fleet.of(catalog))
        if f.code in UNUSED_CODES and f.route_id is not None
    }
    used = used_routes(catalog, conversations(world, catalog, Random(seed), times=16))
    assert reported.isdisjoint(used)
    enabled = {row["name"] for row in catalog.databases.to_pylist() if row["is_broker_enabled"]}
    hosting = any(service["database"] in enabled for service in catalog.services.to_pylist())
    unreported = [
        (route["database"], route["route_id"])
        for route in catalog.routes.to_pylist()
        if (route["database"] in enabled or route["database"] == "msdb")
        and (route["database"], route["route_id"]) not in reported
        and (hosting or route["address"].upper() != "LOCAL")
    ]
    assert [key for key in unreported if key not in used] == []


def test_seeds_cover_every_code() -> None:
    """Otherwise the test above might check nothing."""
    found: set[str] = set()
    for seed in range(60):
        world, _ = seeded_world(seed, conversations=0)
        found |= {finding.code for finding in unproven_findings(Fleet.of(catalog_of(world)))}
    assert found >= UNUSED_CODES
    assert isinstance(lint(catalog_of(world), at=NOW).table, pa.Table)
