"""The seven worked examples of Service Broker's documentation (facts 33 to 37) lint as the documentation describes them."""

from __future__ import annotations

from dataclasses import replace

from ssbroker.diagnose import lint
from tests.oracle.world import Service, World
from tests.rules.setting import MSDB, route
from tests.rules.test_worked_examples import BALANCED, USER, instance
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


def said(world: World) -> list[str]:
    return [f"{finding.severity} {finding.code} {finding.database}" for finding in lint(catalog_of(world), at=NOW)]


def test_example_1_the_default_configuration_is_in_order() -> None:
    assert said(instance()) == []


def test_example_2_a_network_route_to_one_service_is_in_order() -> None:
    assert said(instance(route(2, "tcp://host2.Adventure-Works.com:4022/", service="OrderParts", table=USER))) == []


def test_example_3_a_mirrored_route_without_a_broker_id() -> None:
    """The documentation's own table is one that CREATE ROUTE refuses."""
    mirrored = route(
        2,
        "tcp://partner1.Adventure-Works.com:4022/",
        mirror="tcp://partner2.Adventure-Works.com:4022/",
        service="OrderParts",
        table=USER,
    )
    assert said(instance(mirrored)) == [f"warning SSB011 {USER}"]


def test_example_4_everything_else_goes_to_the_forwarder() -> None:
    assert said(instance(route(2, "tcp://forwarding.Adventure-Works.com:4022/", table=USER))) == [f"info SSB006 {USER}"]


def test_example_5_different_instances_of_a_service_are_in_order() -> None:
    assert said(BALANCED) == []


def test_example_6_forwarding_for_one_service() -> None:
    """Forwarded even if a copy is here; dropped if forwarding is off."""
    elsewhere = route(2, "tcp://elsewhere.Adventure-Works.com:4022/", service="ElsewhereService", table=MSDB)
    for forwarding, expected in ((True, []), (False, ["error SSB016 msdb"])):
        world = instance(elsewhere, forwarding=forwarding)
        assert said(world) == expected
        copy = replace(world, services=(*world.services, Service(database=USER, name="ElsewhereService")))
        assert said(copy) == expected


def test_example_7_forwarding_for_all_services_that_are_not_here() -> None:
    elsewhere = route(2, "tcp://forwarding.Adventure-Works.com:4022/", table=MSDB)
    assert said(instance(elsewhere, forwarding=True)) == ["info SSB006 msdb"]
    assert said(instance(elsewhere)) == ["error SSB016 msdb", "info SSB006 msdb"]
