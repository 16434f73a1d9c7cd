"""The content and order of findings."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ssbroker import OptionError, SchemaError
from ssbroker.catalog.details import InstanceDetails, QueueDetails, ServiceDetails
from ssbroker.ddl.system_objects import SYSTEM_SERVICES
from ssbroker.diagnose import FINDINGS, Fleet, lint, reachability, trace
from tests.diagnose.finding_cases import fleet, north, passing, south
from tests.oracle.world import Database, Service, World
from tests.rules.setting import ELSEWHERE, MSDB, SALES, STORES, here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


def codes(world: World, **options: object) -> list[str]:
    return [finding.code for finding in lint(catalog_of(world), at=NOW, **options)]  # type: ignore[arg-type]


def test_findings_are_ordered_by_severity_and_match_the_table() -> None:
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
    assert str(found).splitlines() == [str(finding) for finding in found]


def test_empty_fleet_has_no_findings() -> None:
    assert len(lint(Fleet({}), at=NOW)) == 0
    assert str(lint(Fleet({}), at=NOW)) == "no findings"
    assert lint(Fleet({}), at=NOW).table == pa.Table.from_pylist([], schema=FINDINGS)


def test_related_routes_have_qualified_names() -> None:
    world = here(route(1, "TCP://other", service="Stock"), route(2, "TCP://other", service="Stock"))
    (finding,) = lint(Fleet({"NORTH": catalog_of(world)}), at=NOW)
    assert finding.related == ('NORTH/Sales/route 1 "route 1"',)
    assert (finding.route_id, finding.remedy) == (2, "USE [Sales]; DROP ROUTE [route 2];")


def test_routes_of_different_classes_are_not_duplicates() -> None:
    """A mirrored route and one without a mirror to the same address are not merged; the latter is shadowed."""
    world = here(
        route(1, "TCP://other", service="Stock", broker=ELSEWHERE),
        route(2, "TCP://other", service="Stock", broker=ELSEWHERE, mirror="TCP://partner"),
    )
    assert codes(world) == ["SSB002"]


@pytest.mark.rule("R22")
@pytest.mark.parametrize("wildcard", ["TRANSPORT", "TCP://hub"])
def test_local_wildcard_without_services_is_not_shadowed_by_later_classes(wildcard: str) -> None:
    """LOCAL precedes them, and will deliver to a service that is created later."""
    world = here(
        route(1, "LOCAL"),
        route(2, wildcard),
        route(3, "LOCAL", service="Orders"),
        services=(("Sales", "Orders"),),
    )
    (finding,) = (finding for finding in lint(catalog_of(world), at=NOW) if finding.code == "SSB002")
    assert (finding.severity, finding.object, finding.related, finding.scripts) == ("info", 'route "route 1"', (), ())


def test_services_that_every_database_of_sql_server_has_are_no_problem() -> None:
    """An export of all rows of sys.services contains them."""

    def exported(world: World, *services: tuple[str, str]) -> World:
        databases = (*world.databases, Database(name="model", is_broker_enabled=False))
        system = ((database.name, name) for database in databases for name in SYSTEM_SERVICES)
        named = tuple(Service(database=database, name=name) for database, name in (*services, *system))
        return replace(world, databases=databases, services=named)

    a = exported(
        here(route(1, "TCP://b", service="Stock"), route(30, "LOCAL", table=MSDB), own=("TCP://a",)),
        ("Sales", "urn:Orders"),
    )
    routes = route(1, "TCP://a", service="urn:Orders", table="Stores"), route(20, "LOCAL", table=MSDB)
    b = exported(replace(here(*routes, own=("TCP://b",)), databases=(Database(name="Stores"),)), ("Stores", "Stock"))
    whole = fleet(A=a, B=b)
    assert [str(finding) for finding in lint(whole, at=NOW)] == []
    assert trace(whole, "Stock", instance="A", database="Sales", at=NOW).always_delivered


def severity_of_missing_return_route(whole: Fleet) -> str:
    (finding,) = (finding for finding in lint(whole, at=NOW) if finding.code == "SSB017")
    return finding.severity


@pytest.mark.parametrize(("contracts", "severity"), [(1, "warning"), (0, "error")])
def test_a_missing_return_route_is_a_warning_if_another_service_may_start_the_conversations(
    contracts: int, severity: str
) -> None:
    """A service without a contract can only start conversations."""
    sender = north(sender="TCP://south")
    sales = replace(sender, services=(*sender.services, Service(database="Sales", name="Billing")))
    back = route(1, "TCP://north", service="Orders", table="Stores")
    details = InstanceDetails(
        services={
            ("Sales", "Orders"): ServiceDetails(queue="q", accepts_conversations=True),
            ("Sales", "Billing"): ServiceDetails(queue="q", accepts_conversations=contracts > 0),
        }
    )
    whole = Fleet(
        {
            "NORTH": catalog_of(sales).with_details(details),
            "SOUTH": catalog_of(replace(south(), routes=(*south().routes, back))),
        }
    )
    assert severity_of_missing_return_route(whole) == severity


def test_a_missing_return_route_is_a_warning_if_the_routes_may_be_for_replies_only() -> None:
    """The copies share the load of the conversations from NORTH, to whose service they only reply."""
    copies = {
        name: replace(
            here(
                route(1, "TCP://north", service="Orders", table="Stores"),
                route(20, "LOCAL", table=MSDB),
                services=(("Stores", "Stock"),),
                own=(f"TCP://{name.lower()}",),
            ),
            databases=(Database(name="Stores"),),
        )
        for name in ("SOUTH", "WEST")
    }
    sender = replace(
        north("LOCAL"),
        routes=(
            *north("LOCAL").routes[1:],
            *(route(number, f"TCP://{to}", service="Stock") for number, to in enumerate(("south", "west"), start=1)),
        ),
    )
    assert severity_of_missing_return_route(fleet(NORTH=sender, **copies)) == "warning"


def test_a_forwarder_needs_no_return_route_to_the_services_of_msdb() -> None:
    """Every msdb of SQL Server has services, such as those of Database Mail, which send nothing to other instances."""
    forwarder = here(
        route(1, "TCP://north", service="Orders", table=MSDB),
        route(2, "TCP://south", service="Stock", table=MSDB),
        services=((MSDB, "InternalMailService"),),
        own=("TCP://hub",),
        forwarding=True,
    )
    back = route(1, "TCP://hub", service="Orders", table="Stores")
    whole = fleet(
        NORTH=north("LOCAL", sender="TCP://hub"),
        HUB=replace(forwarder, databases=()),
        SOUTH=replace(south(), routes=(*south().routes, back)),
    )
    assert [finding.where for finding in lint(whole, at=NOW) if finding.severity == "error"] == []


@pytest.mark.rule("R42")
def test_route_back_to_the_sender_is_found() -> None:
    """B drops what comes from A, which has the service itself: no loop, since A would deliver what comes from others."""
    whole = fleet(
        A=here(
            route(1, "TCP://b", service="Stock"),
            route(20, "LOCAL", table=MSDB),
            services=(("Stores", "Stock"), ("Sales", "Orders")),
            own=("TCP://a",),
        ),
        B=passing("TCP://b", "TCP://a"),
    )
    found = [finding for finding in lint(whole, at=NOW) if finding.code == "SSB024"]
    assert [(finding.where, finding.message, finding.remedy) for finding in found] == [
        (
            'B/msdb/service "Stock"',
            "messages from A/Sales are dropped, because the route leads back to the instance that the messages come from",
            "In A: USE [Sales]; ALTER ROUTE [route 1] WITH ADDRESS = N'LOCAL';",
        )
    ]


@pytest.mark.rule("R42")
def test_two_instances_that_route_to_each_other_are_one_finding() -> None:
    whole = fleet(
        A=here(route(1, "TCP://b", service="Stock"), own=("TCP://a",)),
        B=passing("TCP://b", "TCP://c"),
        C=passing("TCP://c", "TCP://b"),
    )
    found = {finding.code: finding.message for finding in lint(whole, at=NOW) if finding.code in ("SSB020", "SSB024")}
    assert found == {
        "SSB020": "messages for every service that no route names are dropped, because each instance would send them back to the "
        "other"
    }


@pytest.mark.rule("R14")
def test_wildcard_after_dynamic_routing_is_not_shadowed() -> None:
    """While a request is pending, the search continues and finds the wildcard."""
    world = here(
        route(1, "TCP://hub"),
        route(2, "LOCAL", service="SQL/ServiceBroker/BrokerConfiguration"),
        services=(("Ops", "Stock"),),
    )
    found = codes(world)
    assert "SSB002" not in found
    assert "SSB015" in found


def test_days_until_expiry_count_from_the_given_time() -> None:
    world = here(route(1, "TCP://other", service="Stock", lifetime=NOW + timedelta(days=3)))
    catalog = catalog_of(world)
    assert codes(world, expires_within=timedelta(days=2)) == []
    assert [finding.message for finding in lint(catalog, at=NOW + timedelta(days=2))] == [
        "expires at 2026-11-23 21:00:00 UTC, in 1 day"
    ]
    assert [finding.message for finding in lint(catalog, at=NOW + timedelta(days=5))] == [
        "expired at 2026-11-23 21:00:00 UTC, 2 days ago"
    ]
    assert codes(world, expires_within=timedelta.max) == ["SSB004"]


@pytest.mark.rule("R41", "R42")
def test_own_address_is_an_error_in_msdb_and_a_warning_elsewhere() -> None:
    """R41, R42."""
    world = here(
        route(1, "TCP://me", service="Stock"),
        route(2, "TCP://me", service="Stock", table=MSDB),
        own=("TCP://me",),
        forwarding=True,
    )
    found = [finding for finding in lint(catalog_of(world), at=NOW) if finding.code == "SSB009"]
    assert [(finding.database, finding.severity) for finding in found] == [("msdb", "error"), ("Sales", "warning")]


def test_mirrored_route_without_a_service_name_but_with_a_broker_id() -> None:
    """Only what is missing is reported."""
    mirrored = route(1, "TCP://other", broker=ELSEWHERE, mirror="TCP://partner")
    (finding,) = (each for each in lint(catalog_of(here(mirrored)), at=NOW) if each.code == "SSB011")
    assert finding.message == "has a mirror address but no service name"


@pytest.mark.rule("I1")
def test_disabled_copy_is_a_warning() -> None:
    """Two enabled databases are an error; a disabled copy might be enabled later."""
    both = lint(fleet(NORTH=north(), SOUTH=south(broker=SALES)), at=NOW)
    one_off = lint(fleet(NORTH=north(), SOUTH=south(broker=SALES, enabled=False)), at=NOW)
    assert [finding.severity for finding in both if finding.code == "SSB012"] == ["error"]
    assert [finding.severity for finding in one_off if finding.code == "SSB012"] == ["warning"]


@pytest.mark.rule("I1")
def test_zeros_are_not_a_broker_id() -> None:
    """`sys.databases` has them for `master` and `model` on every server."""
    zeros = uuid.UUID(int=0)
    unused = tuple(
        Database(name=name, service_broker_guid=zeros, is_broker_enabled=False) for name in ("master", "model")
    )
    world = replace(south(), databases=(*south().databases, *unused))
    found = lint(fleet(NORTH=replace(north(), databases=(*north().databases, *unused)), SOUTH=world), at=NOW)
    assert [finding for finding in found if finding.code in ("SSB012", "SSB013")] == []


@pytest.mark.rule("R8", "I5")
def test_stale_broker_id_is_found_across_instances() -> None:
    """SOUTH's database has a new id, NORTH's route has the old one."""
    old = here(route(1, "TCP://south", service="Stock", broker=ELSEWHERE), own=("TCP://north",))
    found = [finding for finding in lint(fleet(NORTH=old, SOUTH=south()), at=NOW) if finding.code == "SSB014"]
    assert [finding.where for finding in found] == ['NORTH/Sales/route "route 1"']
    assert str(STORES) in found[0].message
    assert f"BROKER_INSTANCE = N'{STORES}'" in found[0].remedy


@pytest.mark.rule("R7")
def test_return_path_needs_no_route_at_the_initiator() -> None:
    """A reply with the initiator's broker id is delivered without a route of msdb."""
    assert "SSB017" not in [finding.code for finding in lint(fleet(NORTH=north(), SOUTH=south("TCP://north")), at=NOW)]


def test_remedy_covers_all_services_without_a_return_route() -> None:
    """Otherwise the finding would reappear for the next service once the first route is created."""
    services = tuple(Service(database="Sales", name=name) for name in ("Orders", "Returns", "Gifts"))
    several = replace(north("LOCAL"), services=services)
    found = [each for each in lint(fleet(NORTH=several, SOUTH=south("LOCAL")), at=NOW) if each.code == "SSB017"]
    assert [each.remedy for each in found] == [
        (
            "In SOUTH: USE [Stores]; CREATE ROUTE [Orders] WITH SERVICE_NAME = N'Orders', ADDRESS = N'TCP://north:4022'; "
            "CREATE ROUTE [Returns] WITH SERVICE_NAME = N'Returns', ADDRESS = N'TCP://north:4022'; "
            "CREATE ROUTE [Gifts] WITH SERVICE_NAME = N'Gifts', ADDRESS = N'TCP://north:4022';"
        )
    ]
    assert len(found[0].related) == 3


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(SchemaError, match="expected a Fleet or a Catalog, got dict"):
        lint({})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expires_within"):
        lint(Fleet({}), expires_within=timedelta(days=-1))
    for services in ("Stock", ["Stock", 5], ["\ud800"], 5):
        with pytest.raises(OptionError, match="services: expected a sequence of strings"):
            reachability(fleet(A=here()), services=services)  # type: ignore[arg-type]
    assert reachability(fleet(A=here()), services=(name for name in ["Stock"])).num_rows > 0
    with pytest.raises(OptionError, match="'SSB999' is not a finding code"):
        lint(Fleet({}), ignore=["SSB999"])
    with pytest.raises(OptionError, match="ignore: expected a sequence of strings, got 'SSB008'"):
        lint(Fleet({}), ignore="SSB008")
    with pytest.raises(OptionError, match="severity: expected one of error, warning, info, got 'fatal'"):
        lint(Fleet({})).at_least("fatal")  # type: ignore[arg-type]
    assert len(lint(Fleet({}), at=datetime(2026, 1, 1, tzinfo=UTC))) == 0


@pytest.mark.rule("R31")
def test_unknown_broker_id_uses_the_route_after_local() -> None:
    """With a single database, LOCAL can deliver everything but conversations with another broker id."""
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
        ("//Cafe\u0301/Orders", "Unicode normalization form"),
        ("//CAFE\u0301/ Orders", "case, white space or Unicode normalization form"),
    ],
)
def test_difference_of_similar_names_is_described(written: str, difference: str) -> None:
    """Names compare byte by byte; similar names of routes and of services are both reported."""
    there = (("Ops", "//Caf\u00e9/Orders"),)
    by_route = here(route(1, "TCP://other", service=written), services=there)
    (finding,) = (finding for finding in lint(catalog_of(by_route), at=NOW) if finding.code == "SSB018")
    assert finding.object == 'route "route 1"'
    assert finding.message.endswith(f"differs only in {difference}")
    by_service = here(route(1, "LOCAL"), services=(*there, ("Stores", written)))
    found = [finding.message for finding in lint(catalog_of(by_service), at=NOW) if finding.code == "SSB018"]
    assert [message.endswith(f"only in {difference}") for message in found] == [True]


@pytest.mark.rule("R5")
def test_similar_name_is_reported_for_its_database() -> None:
    """A slash in a database name does not separate instance and database."""
    world = World(
        databases=(Database(name="Sales/EU"), Database(name="Sales/US")),
        services=(Service(database="Sales/EU", name="Orders"), Service(database="Sales/US", name="orders")),
    )
    (finding,) = (finding for finding in lint(catalog_of(world), at=NOW) if finding.code == "SSB018")
    assert (finding.instance, finding.database) == ("instance", "Sales/US")
    assert finding.related == ('instance/Sales/EU/service "Orders"',)


def mirrored_fleet(mirror: str) -> Fleet:
    """Returns a client with a mirrored route to ONE and a mirror address, and the pair, which has one broker id."""
    client = here(route(1, "TCP://one", service="Stock", broker=STORES, mirror=mirror), own=("TCP://client",))
    client = replace(client, databases=(Database(name="Sales", service_broker_guid=SALES),))
    pair = {
        name: replace(south(enabled=name == "ONE"), addresses=(f"TCP://{name.lower()}",)) for name in ("ONE", "TWO")
    }
    return fleet(CLIENT=client, **pair)


@pytest.mark.rule("I1")
def test_unknown_mirror_address_is_found() -> None:
    """The pair then looks like two databases that have one id by mistake."""
    assert [each.code for each in lint(mirrored_fleet("TCP://two"), at=NOW) if each.code in ("SSB012", "SSB022")] == []
    found = {each.code: each for each in lint(mirrored_fleet("TCP://tow"), at=NOW)}
    assert (found["SSB022"].message, found["SSB022"].severity) == (
        "has the mirror address TCP://tow:4022, which is not a known address of any of the instances",
        "info",
    )
    assert found["SSB012"].message == (
        'is shared by databases in 2 instances: ONE, TWO; the mirrored route CLIENT/Sales/route 1 "route 1" leads to only one of these instances, ONE, '
        "and to TCP://tow:4022, which is not a known address of any of the instances"
    )
    assert found["SSB012"].remedy.startswith(
        "If the databases are a mirrored pair, correct the addresses of the mirrored route"
    )


def test_wrong_port_of_a_mirror_is_corrected() -> None:
    found = {each.code: each for each in lint(mirrored_fleet("TCP://two:4023"), at=NOW)}
    assert found["SSB022"].severity == "error"
    assert found["SSB022"].message == "has the mirror address TCP://two:4023, but TWO listens on port 4022"
    assert found["SSB022"].remedy == (
        "In CLIENT: USE [Sales]; ALTER ROUTE [route 1] WITH MIRROR_ADDRESS = N'TCP://two:4022';"
    )


def test_messages_say_that_they_name_only_the_first_routes_or_services() -> None:
    mirrored = [
        route(number, f"TCP://main{number}", service="Stock", broker=ELSEWHERE, mirror=f"TCP://mirror{number}")
        for number in range(1, 5)
    ]
    world = here(*mirrored, route(5, "TCP://other", service="Stock", broker=ELSEWHERE))
    (shadowed,) = (each for each in lint(catalog_of(world), at=NOW) if each.code == "SSB002")
    names = '"route 1", "route 2", "route 3", ...'
    assert shadowed.message == f"is never used, because {names} always take precedence"
    services = tuple(f"S{number}" for number in range(1, 5))
    details = InstanceDetails(
        services={("Sales", each): ServiceDetails(queue="dbo.q", accepts_conversations=True) for each in services},
        queues={("Sales", "dbo.q"): QueueDetails(schema="dbo", name="Q", is_enabled=False)},
    )
    catalog = catalog_of(here(route(1, "LOCAL"), services=tuple(("Sales", each) for each in services)))
    (disabled,) = (each for each in lint(catalog.with_details(details), at=NOW) if each.code == "SSB027")
    assert disabled.message == 'is disabled: messages for "S1", "S2", "S3", ... wait in the transmission queue'
