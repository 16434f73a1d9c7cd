"""For each finding code, a minimal fleet that has the finding, and a similar one that must not have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from ssbroker.catalog.details import (
    BindingDetails,
    ConversationCount,
    EndpointDetails,
    InstanceDetails,
    QueueDetails,
    ServiceDetails,
)
from ssbroker.diagnose import Fleet
from tests.oracle.world import Database, World
from tests.rules.setting import BCN, ELSEWHERE, MSDB, NOWHERE, SALES, STORES, here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW

DAY = timedelta(days=1)
ORDERS = (("Sales", "Orders"),)
OWN = ("TCP://own.example:4022",)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fleet that has a finding, and a similar one that does not."""

    code: str
    positive: Fleet
    objects: tuple[str, ...]
    """Instance, database and object of each finding with the code."""
    negative: Fleet


def fleet(**worlds: World) -> Fleet:
    """Returns a fleet of worlds, by instance name."""
    return Fleet({name: catalog_of(world) for name, world in worlds.items()})


def one(code: str, positive: World, negative: World, *objects: str) -> Case:
    """Returns a case with one instance, named A."""
    return Case(code=code, positive=fleet(A=positive), objects=objects, negative=fleet(A=negative))


def north(*routes_of_msdb: str, sender: str = "TCP://south", forwarding: bool = True) -> World:
    """Returns an instance with the database Sales, which sends everything to `sender` and hosts `Orders`."""
    passing = (route(number + 10, address, table=MSDB) for number, address in enumerate(routes_of_msdb))
    return replace(
        here(route(1, sender), *passing, services=ORDERS, own=("TCP://north",), forwarding=forwarding),
        databases=(Database(name="Sales", service_broker_guid=SALES),),
    )


def south(*routes: str, broker: object = STORES, enabled: bool = True, service: str = "Stock") -> World:
    """Returns an instance with the database Stores, which hosts `Stock`; messages from outside are routed to LOCAL."""
    own = (route(number + 1, address, table="Stores") for number, address in enumerate(routes))
    return replace(
        here(route(20, "LOCAL", table=MSDB), *own, services=(("Stores", service),), own=("TCP://south",)),
        databases=(Database(name="Stores", service_broker_guid=broker, is_broker_enabled=enabled),),  # type: ignore[arg-type]
    )


def passing(own: str, to: str) -> World:
    """Returns an instance that forwards everything."""
    return here(route(1, to, table=MSDB), own=(own,), forwarding=True)


def detailed(code: str, positive: InstanceDetails, negative: InstanceDetails, *objects: str) -> Case:
    """Returns a case with one instance, named A, of which more is known than its routes."""
    both = [
        Fleet({"A": catalog_of(here(route(1, "LOCAL"), services=ORDERS)).with_details(each)})
        for each in (positive, negative)
    ]
    return Case(code=code, positive=both[0], objects=objects, negative=both[1])


def endpoint_on(specified: str) -> Fleet:
    """Returns an instance whose endpoint listens on port 4023."""
    details = InstanceDetails(endpoint=EndpointDetails(name="Broker", state="STARTED"))
    world = here(route(1, "LOCAL"), services=ORDERS, own=("TCP://localhost:4023", specified))
    return Fleet({"A": catalog_of(world).with_details(details)})


def binding(*, has_certificate: bool) -> BindingDetails:
    """Returns a binding whose user exists."""
    return BindingDetails(
        database="Sales", name="ToStock", service="Stock", user="Stores", has_user=True, has_certificate=has_certificate
    )


def contracts(*, accepts: bool) -> Fleet:
    """Returns a fleet with a route to a service that has a contract or none."""
    whole = fleet(
        NORTH=replace(north(), routes=(route(1, "TCP://south", service="Stock"),)), SOUTH=south("TCP://north")
    )
    details = InstanceDetails(
        services={("Stores", "Stock"): ServiceDetails(queue="dbo.q", accepts_conversations=accepts)}
    )
    return Fleet({**whole, "SOUTH": whole["SOUTH"].with_details(details)})


ORDERS_QUEUE = {("Sales", "Orders"): ServiceDetails(queue="dbo.q", accepts_conversations=True)}

CASES = (
    one(
        "SSB001",
        here(route(1, "TCP://other", broker=ELSEWHERE)),
        here(route(1, "TCP://other", service="Stock", broker=ELSEWHERE)),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB002",
        here(
            route(1, "LOCAL", service="Orders"),
            route(2, "TCP://other", service="Orders", mirror="TCP://m"),
            services=ORDERS,
        ),
        # A conversation with an unknown broker id cannot be delivered by LOCAL, and uses the other route.
        here(route(1, "LOCAL", service="Orders"), route(2, "TCP://other", service="Orders"), services=ORDERS),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB003",
        here(route(1, "TCP://other", service="Stock", lifetime=NOW)),
        here(route(1, "TCP://other", service="Stock", lifetime=NOW + timedelta(microseconds=1))),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB004",
        here(route(1, "TCP://other", service="Stock", lifetime=NOW + 30 * DAY)),
        here(route(1, "TCP://other", service="Stock", lifetime=NOW + 31 * DAY)),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB005",
        here(route(1, "TCP://other", service="Stock"), route(2, "tcp://OTHER:4022/", service="Stock")),
        here(route(1, "TCP://other", service="Stock"), route(2, "TCP://other:4023", service="Stock")),
        'A/Sales/route "route 2"',
    ),
    one(
        "SSB006",
        here(route(1, "LOCAL"), route(2, "TCP://hub"), services=ORDERS),
        here(route(1, "LOCAL"), route(2, "TCP://hub", service="Stock"), services=ORDERS),
        'A/Sales/route "route 2"',
    ),
    one(
        "SSB007",
        here(route(1, "TRANSPORT", service="Stock")),
        here(route(1, "TRANSPORT", service="other.example:4022/Stock")),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB008",
        here(route(1, "LOCAL", service="Orders"), services=ORDERS, disabled=("Sales",)),
        here(route(1, "LOCAL", service="Orders"), services=ORDERS),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB009",
        here(route(1, "tcp://OWN.example/", service="Orders"), route(1, "TCP://own.example", table=MSDB), own=OWN),
        here(route(1, "tcp://own.example:4023", service="Orders"), own=OWN),
        'A/msdb/route "route 1"',
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB010",
        here(route(1, "TCP://other", service="Stock", broker=ELSEWHERE, mirror="tcp://Other:4022/")),
        here(route(1, "TCP://other", service="Stock", broker=ELSEWHERE, mirror="TCP://other:4023")),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB011",
        here(route(1, "TCP://other", service="Stock", mirror="TCP://partner")),
        here(route(1, "TCP://other", service="Stock", broker=ELSEWHERE, mirror="TCP://partner")),
        'A/Sales/route "route 1"',
    ),
    Case(
        code="SSB012",
        positive=fleet(NORTH=north(), SOUTH=south(broker=SALES)),
        objects=(f"broker id {SALES}",),
        negative=fleet(NORTH=north(), SOUTH=south()),
    ),
    one(
        "SSB013",
        replace(
            here(),
            databases=(
                Database(name="Sales", service_broker_guid=SALES),
                Database(name="Copy", service_broker_guid=SALES, is_broker_enabled=False),
            ),
        ),
        here(disabled=("Stores",)),
        f"A/Copy/broker id {SALES}",
    ),
    one(
        "SSB014",
        here(route(1, "LOCAL", service="Orders", broker=NOWHERE), services=ORDERS),
        here(route(1, "LOCAL", service="Orders", broker=SALES), services=ORDERS),
        'A/Sales/route "route 1"',
    ),
    one(
        "SSB015",
        here(route(1, "LOCAL"), route(2, "LOCAL", service=BCN), services=(*ORDERS, ("Ops", BCN))),
        here(route(1, "LOCAL", service="Orders"), route(2, "LOCAL", service=BCN), services=(*ORDERS, ("Ops", BCN))),
        'A/Sales/route "route 2"',
    ),
    one(
        "SSB016",
        here(route(1, "TCP://other", service="Stock", table=MSDB)),
        here(route(1, "TCP://other", service="Stock", table=MSDB), forwarding=True),
        'A/msdb/route "route 1"',
    ),
    Case(
        code="SSB017",
        positive=fleet(NORTH=north("LOCAL"), SOUTH=south("LOCAL")),
        objects=('SOUTH/Stores/database "Stores"',),
        negative=fleet(NORTH=north("LOCAL"), SOUTH=south("TCP://north")),
    ),
    one(
        "SSB018",
        here(route(1, "TCP://other", service="ORDERS"), services=ORDERS),
        here(route(1, "TCP://other", service="Order"), services=ORDERS),
        'A/Sales/route "route 1"',
    ),
    Case(
        code="SSB019",
        positive=fleet(NORTH=north("LOCAL"), SOUTH=replace(south("TCP://north"), routes=())),
        objects=('NORTH/Sales/service "Orders"', 'SOUTH/Stores/service "Stock"'),
        negative=fleet(NORTH=north("LOCAL"), SOUTH=south("TCP://north")),
    ),
    Case(
        code="SSB020",
        positive=fleet(
            A=passing("TCP://a", "TCP://b"), B=passing("TCP://b", "TCP://c"), C=passing("TCP://c", "TCP://a")
        ),
        objects=("loop A -> B -> C -> A",),
        negative=fleet(
            A=passing("TCP://a", "TCP://b"), B=passing("TCP://b", "TCP://c"), C=passing("TCP://c", "TCP://out")
        ),
    ),
    one(
        "SSB021",
        here(services=ORDERS, disabled=("Sales",)),
        here(services=ORDERS, disabled=("Stores",)),
        'A/Sales/database "Sales"',
    ),
    Case(
        code="SSB022",
        positive=fleet(NORTH=north(sender="TCP://sauth"), SOUTH=south("TCP://north")),
        objects=('NORTH/Sales/route "route 1"',),
        negative=fleet(NORTH=north(), SOUTH=south("TCP://north")),
    ),
    one(
        "SSB023",
        here(route(1, "LOCAL", table=MSDB), services=(("Ops", "Stock"), ("Stores", "Stock")), own=OWN),
        here(route(1, "LOCAL", table=MSDB), services=(("Ops", "Stock"), ("Stores", "Orders")), own=OWN),
        'A/service "Stock"',
    ),
    Case(
        code="SSB024",
        positive=fleet(
            NORTH=replace(north(), routes=(route(1, "TCP://south", service="Stock"),)),
            SOUTH=south("TCP://north", service="Other"),
        ),
        objects=('SOUTH/msdb/service "Stock"',),
        negative=fleet(
            NORTH=replace(north(), routes=(route(1, "TCP://south", service="Stock"),)), SOUTH=south("TCP://north")
        ),
    ),
    one(
        "SSB025",
        here(services=(("Sales", "Orders"), ("Sales", "Returns"))),
        here(route(1, "LOCAL"), services=(("Sales", "Orders"), ("Sales", "Returns"))),
        'A/Sales/database "Sales"',
    ),
    detailed(
        "SSB026",
        InstanceDetails(endpoint=EndpointDetails(name="Broker", state="STOPPED")),
        InstanceDetails(endpoint=EndpointDetails(name="Broker", state="STARTED")),
        'A/endpoint "Broker"',
    ),
    detailed(
        "SSB027",
        InstanceDetails(
            services=ORDERS_QUEUE, queues={("Sales", "dbo.q"): QueueDetails(schema="dbo", name="Q", is_enabled=False)}
        ),
        InstanceDetails(
            services=ORDERS_QUEUE, queues={("Sales", "dbo.q"): QueueDetails(schema="dbo", name="Q", is_enabled=True)}
        ),
        'A/Sales/queue "dbo.Q"',
    ),
    detailed(
        "SSB028",
        InstanceDetails(conversations=(ConversationCount(database="Sales", state="DISCONNECTED_INBOUND", count=100),)),
        InstanceDetails(conversations=(ConversationCount(database="Sales", state="DISCONNECTED_INBOUND", count=99),)),
        "A/Sales/conversations DISCONNECTED_INBOUND",
    ),
    detailed(
        "SSB029",
        InstanceDetails(bindings=(binding(has_certificate=False),)),
        InstanceDetails(bindings=(binding(has_certificate=True),)),
        'A/Sales/binding "ToStock"',
    ),
    Case(
        code="SSB030",
        positive=contracts(accepts=False),
        objects=('SOUTH/Stores/service "Stock"',),
        negative=contracts(accepts=True),
    ),
    Case(
        code="SSB031",
        positive=endpoint_on("TCP://own.example:4022"),
        objects=('A/endpoint "Broker"',),
        negative=endpoint_on("TCP://own.example:4023"),
    ),
)
