"""The seven worked examples of the Service Broker documentation have the expected findings."""

from __future__ import annotations

from dataclasses import replace

from ssbroker.diagnose import lint
from tests.oracle.world import Service, World
from tests.rules.setting import MSDB, route
from tests.rules.test_worked_examples import BALANCED, USER, instance
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


def findings_of(world: World) -> list[str]:
    return [f"{finding.severity} {finding.code} {finding.database}" for finding in lint(catalog_of(world), at=NOW)]


def test_example_1_default_configuration_has_no_findings() -> None:
    assert findings_of(instance()) == []


def test_example_2_network_route_to_one_service_has_no_findings() -> None:
    assert (
        findings_of(instance(route(2, "tcp://host2.Adventure-Works.com:4022/", service="OrderParts", table=USER))) == []
    )


def test_example_3_mirrored_route_without_a_broker_id() -> None:
    """CREATE ROUTE refuses the route of this example."""
    mirrored = route(
        2,
        "tcp://partner1.Adventure-Works.com:4022/",
        mirror="tcp://partner2.Adventure-Works.com:4022/",
        service="OrderParts",
        table=USER,
    )
    assert findings_of(instance(mirrored)) == [f"warning SSB011 {USER}"]


def test_example_4_all_other_services_use_a_forwarder() -> None:
    assert findings_of(instance(route(2, "tcp://forwarding.Adventure-Works.com:4022/", table=USER))) == [
        f"info SSB006 {USER}"
    ]


def test_example_5_several_instances_of_a_service_have_no_findings() -> None:
    assert findings_of(BALANCED) == []


def test_example_6_forwarding_for_one_service() -> None:
    """Forwarded even if this instance has a copy; dropped if forwarding is disabled."""
    elsewhere = route(2, "tcp://elsewhere.Adventure-Works.com:4022/", service="ElsewhereService", table=MSDB)
    for forwarding, expected in ((True, []), (False, ["error SSB016 msdb"])):
        world = instance(elsewhere, forwarding=forwarding)
        assert findings_of(world) == expected
        copy = replace(world, services=(*world.services, Service(database=USER, name="ElsewhereService")))
        assert findings_of(copy) == expected


def test_example_7_forwarding_for_all_services_of_other_instances() -> None:
    elsewhere = route(2, "tcp://forwarding.Adventure-Works.com:4022/", table=MSDB)
    assert findings_of(instance(elsewhere, forwarding=True)) == ["info SSB006 msdb"]
    assert findings_of(instance(elsewhere)) == ["error SSB016 msdb", "info SSB006 msdb"]
