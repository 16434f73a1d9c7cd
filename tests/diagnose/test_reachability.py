"""Reachability and loops of random fleets, checked by a search over observed decisions of the router."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

import pytest

from ssbroker import OptionError, SchemaError
from ssbroker._text import quoted_name
from ssbroker.diagnose import REACHABILITY, Fleet, Loop, RoutingEnd, loops, reachability, trace
from tests.diagnose.observed_fleets import unproven_findings
from tests.diagnose.random_fleets import ADDRESSES, SampledFleet
from tests.rules.setting import BCN, here
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW

SEEDS = (*range(25), 36, 51, 60)  # in the last three a message can circulate


@pytest.mark.parametrize("seed", SEEDS)
def test_reachability_equals_the_observed_outcomes(seed: int) -> None:
    sampled = SampledFleet(seed)
    matrix = reachability(sampled.fleet, services=sampled.services, at=NOW)
    assert matrix.schema == REACHABILITY
    reported: defaultdict[tuple[str, str, str], set[RoutingEnd]] = defaultdict(set)
    certain: defaultdict[tuple[str, str, str], set[bool]] = defaultdict(set)
    for row in matrix.to_pylist():
        cell = row["instance"], row["database"], row["service"]
        reported[cell].add(
            RoutingEnd(
                row["outcome"], row["at_instance"], row["target_database"], row["next_hop_address"], row["reason"]
            )
        )
        certain[cell].add(row["certain"])
    assert sum(len(ends) for ends in reported.values()) == matrix.num_rows
    expected = {
        (instance, database, service): sampled.ends((instance, database, service, None, True))
        for instance, database in sampled.databases
        for service in sampled.services
    }
    assert dict(reported) == expected
    assert dict(certain) == {cell: {len(ends) == 1} for cell, ends in expected.items()}


@pytest.mark.rule("R7")
@pytest.mark.parametrize("seed", SEEDS)
def test_missing_return_routes_equal_the_observed_failures(seed: int) -> None:
    """Expected from the observed routing of replies to each service that may have started the conversation."""
    sampled = SampledFleet(seed)
    expected = set()
    for instance, database in sampled.databases:
        own_services = {service.name for service in sampled.worlds[instance].services if service.database == database}
        broker = {row["name"]: row["service_broker_guid"] for row in sampled.fleet[instance].databases.to_pylist()}[
            database
        ]
        guid = None if broker is None else UUID(bytes=broker)
        reached = set().union(
            *(sampled.ends((instance, database, name, None, True)) for name in sampled.services if name != BCN)
        )
        for end in reached:
            if end.outcome != "DELIVERED" or (end.instance, end.database) == (instance, database):
                continue
            for name in own_services:
                return_ends = sampled.ends((str(end.instance), end.database, name, guid, False))
                if return_ends != {RoutingEnd("DELIVERED", instance, database)}:
                    expected.add((end.instance, end.database, f"{instance}/{database}/service {quoted_name(name)}"))
    found = unproven_findings(sampled.fleet)
    reported = {(f.instance, f.database, related) for f in found if f.code == "SSB017" for related in f.related}
    assert reported == expected


def is_real(sampled: SampledFleet, loop: Loop, service: str, broker: UUID | None) -> bool:
    """Returns whether each instance of a loop is observed to forward the message to the next."""
    for instance, following in zip(loop.instances, (*loop.instances[1:], loop.instances[0]), strict=True):
        key = (instance, None, service, broker, True)
        hops = {decision.next_hop_address for decision in sampled.decisions(key)}
        if hops.isdisjoint(ADDRESSES[following]):
            return False
    return True


@pytest.mark.rule("R42")
@pytest.mark.threat("T16")
@pytest.mark.parametrize("seed", SEEDS)
def test_loops_equal_the_observed_ones(seed: int) -> None:
    """Every reported loop is observed, and no service without a reported loop circulates."""
    sampled = SampledFleet(seed)
    found = loops(sampled.fleet, at=NOW)
    circulating = set()
    for loop in found:
        for service, broker in zip(loop.services, loop.broker_instances, strict=True):
            guid = None if broker is None else UUID(bytes=broker)
            assert is_real(sampled, loop, "unknown service" if service is None else service, guid), str(loop)
            circulating.add((service, guid))
    for service in sampled.services:
        if sampled.can_circulate(service, None):
            assert {(service, None), (None, None)} & circulating


def test_seeds_cover_loops_ties_and_every_end() -> None:
    """Otherwise the tests above might check nothing."""
    ends: set[str] = set()
    with_loops = uncertain = 0
    for seed in SEEDS:
        sampled = SampledFleet(seed)
        matrix = reachability(sampled.fleet, at=NOW)
        ends.update(map(str, matrix["outcome"].unique().to_pylist()))
        with_loops += bool(loops(sampled.fleet, at=NOW))
        uncertain += matrix["certain"].to_pylist().count(False)
    assert ends == {"DELIVERED", "DELAYED", "DROPPED", "ELSEWHERE", "LOOP"}
    assert with_loops >= 5
    assert uncertain >= 100


@pytest.mark.rule("R24")
@pytest.mark.parametrize("seed", SEEDS)
def test_trace_ends_in_one_of_the_observed_outcomes(seed: int) -> None:
    """With a conversation id, every instance breaks ties by `hash`."""
    sampled = SampledFleet(seed)
    for number, (instance, database) in enumerate(sampled.databases):
        service = sampled.services[(seed + number) % len(sampled.services)]
        conversation = UUID(int=seed << 64 | number)
        for given in (None, conversation):
            found = trace(sampled.fleet, service, instance=instance, database=database, conversation_id=given, at=NOW)
            expected = sampled.ends((instance, database, service, None, True))
            assert found.end in expected
            assert set(found.possible) == expected
            assert found.hops[0].database == database
            assert all(hop.database is None for hop in found.hops[1:])
            assert str(found).count("\n") >= len(found.hops)


def test_invalid_fleet_or_services_are_refused() -> None:
    """A single name must not be taken as a sequence of letters."""
    alone = catalog_of(here())
    with pytest.raises(SchemaError, match="instances: expected a mapping of instance names to catalogs, got list"):
        Fleet([alone])  # type: ignore[arg-type]
    for services in ("Stock", [b"Stock"]):
        with pytest.raises(OptionError, match="services: expected a sequence of strings"):
            reachability(alone, services=services)  # type: ignore[arg-type]
    assert reachability(alone, services=iter(["Stock"]))["service"].to_pylist()
