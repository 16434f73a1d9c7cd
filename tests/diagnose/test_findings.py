"""What a finding says, and in what order."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ssbroker import OptionError, SchemaError
from ssbroker.diagnose import FINDINGS, Fleet, lint, reachability
from tests.diagnose.cases import fleet, north, south
from tests.oracle.world import Database, Service, World
from tests.rules.setting import ELSEWHERE, MSDB, SALES, STORES, here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


def codes(world: World, **options: object) -> list[str]:
    return [finding.code for finding in lint(catalog_of(world), at=NOW, **options)]  # type: ignore[arg-type]


def test_the_worst_stands_first_and_the_table_says_the_same() -> None:
    world = here(
        route(1, "LOCAL"),
        route(2, "TCP://hub"),
        route(3, "TRANSPORT", service="Stock"),
        route(4, "TCP://other", broker=ELSEWHERE),
    )
    found = lint(catalog_of(world), at=NOW)
    assert [finding.code for finding in found] == ["SSB007", "SSB001", "SSB006"]
    assert found.table.schema == FINDINGS
    assert found.table.to_pylist() == [finding.to_dict() for finding in found]
    assert found.counts == {"error": 1, "warning": 1, "info": 1}
    assert [finding.code for finding in found.at_least("warning")] == ["SSB007", "SSB001"]
    assert [finding.code for finding in found.without(["SSB007"])] == ["SSB001", "SSB006"]
    assert found[1:] == (found[1], found[2])
    assert repr(found) == "Findings(error=1, warning=1, info=1)"


def test_nothing_is_found_in_nothing() -> None:
    assert len(lint(Fleet({}), at=NOW)) == 0
    assert lint(Fleet({}), at=NOW).table == pa.Table.from_pylist([], schema=FINDINGS)


def test_related_routes_are_named_in_full() -> None:
    world = here(route(1, "TCP://other", service="Stock"), route(2, "TCP://other", service="Stock"))
    (finding,) = lint(Fleet({"NORTH": catalog_of(world)}), at=NOW)
    assert finding.related == ('NORTH/Sales/route 1 "route 1"',)
    assert (finding.route_id, finding.remedy) == (2, "Drop one of the two: USE [Sales]; DROP ROUTE [route 2];")


def test_routes_in_two_classes_are_no_duplicates() -> None:
    """A mirrored route and a plain one to the same address are not merged; the plain one is shadowed."""
    world = here(
        route(1, "TCP://other", service="Stock", broker=ELSEWHERE),
        route(2, "TCP://other", service="Stock", broker=ELSEWHERE, mirror="TCP://partner"),
    )
    assert codes(world) == ["SSB002"]


@pytest.mark.rule("R14")
def test_a_route_behind_dynamic_routing_is_not_shadowed() -> None:
    """While a request is pending the search goes on, so the wildcard is taken then."""
    world = here(
        route(1, "TCP://hub"),
        route(2, "LOCAL", service="SQL/ServiceBroker/BrokerConfiguration"),
        services=(("Ops", "Stock"),),
    )
    found = codes(world)
    assert "SSB002" not in found
    assert "SSB015" in found


def test_the_days_before_an_expiry_are_counted_from_the_moment_asked_for() -> None:
    world = here(route(1, "TCP://other", service="Stock", lifetime=NOW + timedelta(days=3)))
    catalog = catalog_of(world)
    assert codes(world, expires_within=timedelta(days=2)) == []
    assert [finding.message for finding in lint(catalog, at=NOW + timedelta(days=2))] == [
        "expires 2026-11-23 21:00:00 UTC, 1 day from now"
    ]
    assert [finding.message for finding in lint(catalog, at=NOW + timedelta(days=5))] == [
        "expired 2026-11-23 21:00:00 UTC, 2 days ago"
    ]
    assert codes(world, expires_within=timedelta.max) == ["SSB004"]


@pytest.mark.rule("R41", "R42")
def test_a_loop_of_msdb_to_itself_is_an_error_and_elsewhere_a_detour() -> None:
    """R41, R42."""
    world = here(
        route(1, "TCP://me", service="Stock"),
        route(2, "TCP://me", service="Stock", table=MSDB),
        own=("TCP://me",),
        forwarding=True,
    )
    found = [finding for finding in lint(catalog_of(world), at=NOW) if finding.code == "SSB009"]
    assert [(finding.database, finding.severity) for finding in found] == [("msdb", "error"), ("Sales", "warning")]


@pytest.mark.rule("I1")
def test_a_copy_that_is_disabled_is_a_warning() -> None:
    """Both ids live is an error; a copy that is off can still become one."""
    both = lint(fleet(NORTH=north(), SOUTH=south(broker=SALES)), at=NOW)
    one_off = lint(fleet(NORTH=north(), SOUTH=south(broker=SALES, enabled=False)), at=NOW)
    assert [finding.severity for finding in both if finding.code == "SSB012"] == ["error"]
    assert [finding.severity for finding in one_off if finding.code == "SSB012"] == ["warning"]


@pytest.mark.rule("I1")
def test_zeros_are_no_broker_id() -> None:
    """`sys.databases` has them for `master` and `model` on every server."""
    nobody = uuid.UUID(int=0)
    unused = tuple(
        Database(name=name, service_broker_guid=nobody, is_broker_enabled=False) for name in ("master", "model")
    )
    world = replace(south(), databases=(*south().databases, *unused))
    found = lint(fleet(NORTH=replace(north(), databases=(*north().databases, *unused)), SOUTH=world), at=NOW)
    assert [finding for finding in found if finding.code in ("SSB012", "SSB013")] == []


@pytest.mark.rule("R8", "I5")
def test_a_stale_id_is_seen_across_instances() -> None:
    """SOUTH's database has a new id, NORTH's route has the old one."""
    old = here(route(1, "TCP://south", service="Stock", broker=ELSEWHERE), own=("TCP://north",))
    found = [finding for finding in lint(fleet(NORTH=old, SOUTH=south()), at=NOW) if finding.code == "SSB014"]
    assert [finding.where for finding in found] == ['NORTH/Sales/route "route 1"']
    assert str(STORES) in found[0].message
    assert f"BROKER_INSTANCE = N'{STORES}'" in found[0].remedy


@pytest.mark.rule("R7")
def test_a_way_back_needs_no_route_at_the_initiator() -> None:
    """A reply that names the initiator's broker id is delivered without msdb's routes; who has no id needs one."""
    assert "SSB017" not in [finding.code for finding in lint(fleet(NORTH=north(), SOUTH=south("TCP://north")), at=NOW)]


def test_each_service_without_a_way_back_gets_a_route_of_its_own() -> None:
    """Who had made the one that was told saw the same finding again, of the next service."""
    services = tuple(Service(database="Sales", name=name) for name in ("Orders", "Returns", "Gifts"))
    several = replace(north("LOCAL"), services=services)
    found = [each for each in lint(fleet(NORTH=several, SOUTH=south("LOCAL")), at=NOW) if each.code == "SSB017"]
    assert [
        each.remedy.endswith("ADDRESS = N'TCP://north:4022'; Likewise for each other service.") for each in found
    ] == [True]
    assert len(found[0].related) == 3


def test_what_is_no_fleet_no_time_and_no_code_is_refused() -> None:
    with pytest.raises(SchemaError, match="expected a Fleet or a Catalog, got dict"):
        lint({})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expires_within"):
        lint(Fleet({}), expires_within=timedelta(days=-1))
    for services in ("Stock", ["Stock", 5], ["\ud800"], 5):
        with pytest.raises(OptionError, match="services: expected a sequence of strings"):
            reachability(fleet(A=here()), services=services)  # type: ignore[arg-type]
    assert reachability(fleet(A=here()), services=(name for name in ["Stock"])).num_rows > 0
    with pytest.raises(OptionError, match="'SSB999' is no code"):
        lint(Fleet({}), ignore=["SSB999"])
    with pytest.raises(OptionError, match="ignore: expected a sequence of strings, got 'SSB008'"):
        lint(Fleet({}), ignore="SSB008")
    with pytest.raises(OptionError, match="severity: expected one of error, warning, info; got 'fatal'"):
        lint(Fleet({})).at_least("fatal")  # type: ignore[arg-type]
    assert len(lint(Fleet({}), at=datetime(2026, 1, 1, tzinfo=UTC))) == 0


@pytest.mark.rule("R31")
def test_an_id_that_nobody_has_takes_the_route_behind_local() -> None:
    """With one database only, what LOCAL cannot deliver is a conversation with an id from elsewhere."""
    one = Database(name="Sales", service_broker_guid=SALES)
    orders = (Service(database="Sales", name="Orders"),)
    world = World(
        databases=(one,),
        services=orders,
        routes=(route(1, "LOCAL", service="Orders"), route(2, "TCP://other", service="Orders")),
    )
    assert codes(world) == []


@pytest.mark.rule("R5")
@pytest.mark.parametrize(
    ("written", "difference"),
    [
        ("//caf\u00e9/orders", "case"),
        ("//Caf\u00e9/ Orders", "white space"),
        ("//Caf\u00e9/Orders\u00a0", "white space"),
        ("//Caf\u00e9/\u200bOrders\ufeff", "white space"),
        ("//Cafe\u0301/Orders", "Unicode form"),
        ("//CAFE\u0301/ Orders", "case, white space or Unicode form"),
    ],
)
def test_how_a_name_differs_is_told(written: str, difference: str) -> None:
    """Names compare byte by byte; both a route for it and a service of it are told."""
    there = (("Ops", "//Caf\u00e9/Orders"),)
    by_route = here(route(1, "TCP://other", service=written), services=there)
    (finding,) = (finding for finding in lint(catalog_of(by_route), at=NOW) if finding.code == "SSB018")
    assert finding.object == 'route "route 1"'
    assert finding.message.endswith(f"differs by {difference} only")
    by_service = here(route(1, "LOCAL"), services=(*there, ("Stores", written)))
    found = [finding.message for finding in lint(catalog_of(by_service), at=NOW) if finding.code == "SSB018"]
    assert [message.endswith(f"by {difference} only") for message in found] == [True]


@pytest.mark.rule("R5")
def test_a_name_is_told_of_the_database_that_has_it() -> None:
    """A slash in the name of a database belongs to it, and not to the instance."""
    world = World(
        databases=(Database(name="Sales/EU"), Database(name="Sales/US")),
        services=(Service(database="Sales/EU", name="Orders"), Service(database="Sales/US", name="orders")),
    )
    (finding,) = (finding for finding in lint(catalog_of(world), at=NOW) if finding.code == "SSB018")
    assert (finding.instance, finding.database) == ("instance", "Sales/US")
    assert finding.related == ('instance/Sales/EU/service "Orders"',)
