"""The checks of routes."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker._text import bracketed, quantity, quoted_name, string_literal
from ssbroker._well_known import CONFIGURATION_SERVICE
from ssbroker.advice import broker_command
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.all_decisions import used_routes_before
from ssbroker.diagnose.catalog_rows import LOCAL, MSDB, TRANSPORT, FleetRoute, Tables
from ssbroker.diagnose.check_context import CheckContext
from ssbroker.diagnose.problems import Concern, Problem, listed_names, route_problem
from ssbroker.diagnose.reached_instances import ReachedInstances
from ssbroker.diagnose.remedies import (
    RouteDestination,
    alter_route,
    broker_clause,
    drop_route,
    local_routes,
    service_clause,
)
from ssbroker.diagnose.scripts_on_copies import UNKNOWN_ENDPOINT
from ssbroker.diagnose.similar_names import SimilarServices
from ssbroker.router import Router

SYSTEM_SERVICE_PREFIX: Final = "http://schemas.microsoft.com/SQL/"
"""The prefix of the services that exist in every SQL Server database."""


def check_unused_routes(context: CheckContext) -> Iterator[Problem]:
    """Checks for routes that no conversation ever uses, and finds the cause."""
    for instance, tables in context.tables.items():
        used = context.used_routes[instance]
        addressed_names = addresses_in(
            {route.service for route in tables.routes if route.address == TRANSPORT and route.service is not None}
        )
        first = _first_of_identical(context, tables)
        for route in tables.routes:
            if route.lifetime is not None and not context.is_live(route):
                yield route_problem(
                    "SSB003",
                    instance,
                    route,
                    f"expired at {_expiry_text(context, route.lifetime)}",
                    "Create the route again without LIFETIME, or drop it if it is no longer needed.",
                    candidates=chain(
                        _address_remedies(context, instance, route, recreate=True),
                        [_create_again_script(route), drop_route(route)],
                    ),
                )
                continue
            if route.key in used:
                continue
            identical = first.get(_identity(route))
            if route.service is None and route.broker is not None:
                yield route_problem(
                    "SSB001",
                    instance,
                    route,
                    "has a broker id but no service name",
                    "Add the name of the service, or drop the route.",
                    candidates=chain(_service_name_remedies(context, route), [drop_route(route)]),
                    concerns=(),
                )
            elif identical is not None and identical is not route:
                yield route_problem(
                    "SSB005",
                    instance,
                    route,
                    f"duplicates route {quoted_name(identical.name)}",
                    "Drop one of the two routes.",
                    related=[identical],
                    candidates=[drop_route(route)],
                    concerns=(),
                )
            else:
                yield from _unused_route(context, instance, route, addressed_names=addressed_names)


def _unused_route(
    context: CheckContext, instance: str, route: FleetRoute, *, addressed_names: Container[str]
) -> Iterator[Problem]:
    """Yields why a valid, live route that is not a duplicate is never used."""
    tables, used = context.tables[instance], context.used_routes[instance]
    service = route.service
    if service is not None and service.startswith(SYSTEM_SERVICE_PREFIX):
        return
    if service is not None and route.address == TRANSPORT and service not in addressed_names:
        yield route_problem(
            "SSB007",
            instance,
            route,
            f"has the address TRANSPORT, but {quoted_name(service)} does not begin with an address",
            "Set the address of the instance that has the service.",
            candidates=chain(
                _address_remedies(context, instance, route),
                _address_remedies(context, instance, route, recreate=True),
                [drop_route(route)],
            ),
        )
    elif service is not None and route.address == LOCAL and not _can_locate(tables, service, route.broker):
        hosts = tables.hosts.get(service, [])
        is_unknown = not hosts and not context.fleet[instance].details.is_complete
        where = f"no database of this instance has {quoted_name(service)}"
        advice = "Enable the database, create the service, or change the route to the address of the instance that has the service."
        if hosts:
            where = f"the databases that have {quoted_name(service)} are disabled, or have a different broker id: {', '.join(hosts)}"
        elif is_unknown:
            where = f"the script creates no database, and no database that it names has {quoted_name(service)}"
            advice = (
                "If another database of the instance has the service, the route is right: put this script and the script that creates that "
                "database into one folder, and load the folder. Otherwise create the service, or change the route to the address of the instance that has it."
            )
        yield route_problem(
            "SSB008",
            instance,
            route,
            f"leads to LOCAL, but {where}",
            advice,
            severity="warning" if is_unknown else None,
            candidates=chain(
                _spelling_remedies(context, route),
                _with_ids_of(context, instance, route, hosts),
                _enable_broker_remedies(context, instance, service),
                _address_remedies(context, instance, route),
                [drop_route(route)],
            ),
        )
    elif route.database != MSDB and not tables.databases[route.database].enabled:
        return  # nothing starts in a disabled database
    elif service is None and route.address == LOCAL and route.mirror is None and not _hosts_anything(tables):
        return  # the services are unknown, or all their databases are disabled, which is reported for the databases
    elif others := used_routes_before(route, tables, used):
        names, verb = listed_names(other.name for other in others), "takes" if len(others) == 1 else "take"
        yield route_problem(
            "SSB002",
            instance,
            route,
            f"is never used, because {', '.join(names)} always {verb} precedence",
            "Drop this route, or those that take precedence.",
            related=others,
            candidates=[drop_route(route)],
            concerns=(),
        )
    elif service is None and route.address == LOCAL:
        yield route_problem(
            "SSB002",
            instance,
            route,
            "delivers nothing, because every service of this instance has its own route in this table",
            "The route is harmless, and delivers to services that are created later.",
            severity="info",
        )


def _address_remedies(
    context: CheckContext, instance: str, route: FleetRoute, *, recreate: bool = False
) -> Iterator[str]:
    """Yields scripts that redirect a route to each instance that has the service of the route."""
    if route.service is None or route.mirror is not None:
        return
    targets = sorted(context.enabled_hosts(route.service), key=lambda each: (each[0] != instance, each))
    for destination in context.destinations(targets, seen_from=instance, besides=route.address):
        yield (_create_again_script(route, destination) if recreate else alter_route(route, destination.clauses))


def _create_again_script(route: FleetRoute, destination: RouteDestination | None = None) -> str:
    """Returns the statements that create a route again without LIFETIME."""
    to = destination or RouteDestination(route.address, route.mirror)
    service = "" if route.service is None else f"{service_clause(route.service)}, "
    clauses = service + to._replace(broker=to.broker or route.broker).clauses
    return f"{drop_route(route)} CREATE ROUTE {bracketed(route.name)} WITH {clauses};"


def _service_name_remedies(context: CheckContext, route: FleetRoute) -> Iterator[str]:
    """Yields scripts that change a route's service name to the only service of the database that has its broker id."""
    for tables in context.tables.values():
        for database, names in tables.services.items():
            if tables.databases[database].broker == route.broker and len(names) == 1:
                yield alter_route(route, service_clause(names[0]))


def _spelling_remedies(context: CheckContext, route: FleetRoute) -> Iterator[str]:
    """Yields a script that corrects a nearly correct service name."""
    services = SimilarServices(context.tables)
    if route.service is not None and services.of(route.service) is not None:
        yield alter_route(route, service_clause(services.nearest(route.service)))


def _with_ids_of(context: CheckContext, instance: str, route: FleetRoute, hosts: list[str]) -> Iterator[str]:
    for host in hosts:
        broker = context.broker_id(instance, host)
        if route.broker is not None and broker is not None and broker != route.broker:
            yield alter_route(route, broker_clause(broker))


def _enable_broker_remedies(context: CheckContext, instance: str, service: str) -> Iterator[str]:
    """Yields scripts that enable the databases of an instance that have a service."""
    tables = context.tables[instance]
    for host in tables.hosts.get(service, ()):
        if not tables.databases[host].enabled and (instance, host) not in context.mirrored:
            yield broker_command(host)


def _expiry_text(context: CheckContext, lifetime: datetime) -> str:
    days = abs(context.now - lifetime).days
    distance = "less than a day" if days == 0 else quantity(days, "day")
    when = f"{distance} ago" if lifetime <= context.now else f"in {distance}"
    return f"{lifetime:%Y-%m-%d %H:%M:%S} UTC, {when}"


def check_expiring_routes(context: CheckContext) -> Iterator[Problem]:
    """Checks for routes that are about to expire."""
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if route.lifetime is not None and context.now < route.lifetime <= context.until:
                yield route_problem(
                    "SSB004",
                    instance,
                    route,
                    f"expires at {_expiry_text(context, route.lifetime)}",
                    "Extend the LIFETIME of the route, or create the route again without LIFETIME.",
                    candidates=[_create_again_script(route)],
                    concerns=(),
                )


def check_wildcards(context: CheckContext) -> Iterator[Problem]:
    """Checks for routing tables that send messages for all services of other instances to the network."""
    for instance, tables in context.tables.items():
        by_table: defaultdict[str, list[FleetRoute]] = defaultdict(list)
        for route in tables.routes:
            if context.is_live(route) and route.service is None and route.broker is None:
                by_table[route.database].append(route)
        for group in by_table.values():
            local = [route for route in group if route.address == LOCAL]
            for route in group:
                if local and route.address not in (LOCAL, TRANSPORT) and route.key in context.used_routes[instance]:
                    yield route_problem(
                        "SSB006",
                        instance,
                        route,
                        f"routes all services that are not in this instance to {route.address}, in addition to the route {quoted_name(local[0].name)} to LOCAL",
                        "If this is intended, ignore this code; otherwise create one route for each service.",
                        related=local,
                    )


def check_own_addresses(context: CheckContext) -> Iterator[Problem]:
    """Checks for routes to the network address of the instance itself."""
    for instance, tables in context.tables.items():
        own = set(context.fleet[instance].addresses)
        for route in tables.routes:
            if context.is_live(route) and route.address in own:
                yield route_problem(
                    "SSB009",
                    instance,
                    route,
                    f"leads to {route.address}, which is an address of this instance itself",
                    "If the service is in this instance, change the address to LOCAL; otherwise correct the address.",
                    severity="error" if route.database == MSDB else "warning",
                    candidates=chain(
                        _address_remedies(context, instance, route),
                        [alter_route(route, "ADDRESS = N'LOCAL'"), drop_route(route)],
                    ),
                )


def check_mirrors(context: CheckContext) -> Iterator[Problem]:
    """Checks for mirrored routes that CREATE ROUTE would refuse."""
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if not context.is_live(route) or route.mirror is None:
                continue
            if route.mirror == route.address:
                yield route_problem(
                    "SSB010",
                    instance,
                    route,
                    f"has {route.address} as both address and mirror address",
                    "Set the mirror address to the address of the partner.",
                    candidates=[_create_again_script(route, RouteDestination(route.address))],
                    concerns=(),
                )
            if route.broker is None or route.service is None:
                missing = " or ".join(
                    text
                    for text, value in (("service name", route.service), ("broker id", route.broker))
                    if value is None
                )
                yield route_problem(
                    "SSB011",
                    instance,
                    route,
                    f"has a mirror address but no {missing}",
                    "Specify both SERVICE_NAME and BROKER_INSTANCE, the service_broker_guid of the mirrored database.",
                )


def check_forwarding(context: CheckContext) -> Iterator[Problem]:
    """Checks for routes of msdb to other instances if forwarding is disabled."""
    for instance, tables in context.tables.items():
        catalog = context.fleet[instance]
        if catalog.message_forwarding:
            continue
        endpoint = catalog.details.endpoint
        name = UNKNOWN_ENDPOINT if endpoint is None else endpoint.name
        for route in tables.routes:
            if route.database == MSDB and route.key in context.used_routes[instance] and route.address != LOCAL:
                enabled = f"ALTER ENDPOINT {bracketed(name)} FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"
                local = [] if route.service is None else [alter_route(route, "ADDRESS = N'LOCAL'")]
                is_here = route.service is not None and bool(tables.hosts.get(route.service))
                yield route_problem(
                    "SSB016",
                    instance,
                    route,
                    f"forwards messages from outside to {route.address}, but message forwarding is disabled",
                    "Enable message forwarding of the endpoint, or drop the route.",
                    candidates=[*(local if is_here else []), enabled, *([] if is_here else local), drop_route(route)],
                )


def check_dynamic_routing(context: CheckContext) -> Iterator[Problem]:
    """Checks for local services that are hidden by dynamic routing."""
    for instance, tables in context.tables.items():
        behaviour = context.graph.at(instance)
        dynamic_routes = {
            route.database: route
            for route in tables.routes
            if route.service == CONFIGURATION_SERVICE and context.is_live(route)
        }
        for database, route in dynamic_routes.items():
            hidden = [
                service
                for service, hosts in tables.hosts.items()
                if any(tables.databases[host].enabled and context.accepts(instance, host, service) for host in hosts)
                and any(decision.reason == "route_requested" for decision in behaviour.from_database(database, service))
            ]
            if hidden:
                yield route_problem(
                    "SSB015",
                    instance,
                    route,
                    f"hides {quantity(len(hidden), 'service')} of this instance: {', '.join(listed_names(hidden))}",
                    "Create a route to LOCAL for each service.",
                    services=hidden,
                    candidates=[local_routes(instance, tables, database, hidden)],
                    concerns=[Concern.of_table(instance, database, service) for service in hidden],
                )


def check_similar_route_names(context: CheckContext) -> Iterator[Problem]:
    """Checks for routes whose service name is similar to the name of an existing service."""
    services = SimilarServices(context.tables)
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if route.service is not None and context.is_live(route) and (differs := services.of(route.service)):
                nearest = services.nearest(route.service)
                yield route_problem(
                    "SSB018",
                    instance,
                    route,
                    f"is for {quoted_name(route.service)}, but {differs}",
                    f"Change the service name of the route to {quoted_name(nearest)}.",
                    services=[nearest],
                    candidates=[
                        alter_route(route, service_clause(nearest)),
                        drop_route(route),
                    ],
                    concerns=[Concern.of_table(instance, route.database, nearest)],
                )


def check_stale_broker_ids(context: CheckContext) -> Iterator[Problem]:
    """Checks for routes with an outdated broker id to an instance in which the service is in a database with a different id."""
    for instance, route, target_instance, hosts in stale_routes(context):
        ids = [broker for host in hosts if (broker := context.broker_id(target_instance, host)) is not None]
        has = ", ".join(str(uuid.UUID(bytes=broker)) for broker in ids)
        yield route_problem(
            "SSB014",
            instance,
            route,
            f"has the broker id {uuid.UUID(bytes=route.broker)}, which belongs to no known database; "
            f"{quoted_name(str(route.service))} in {target_instance} has {has or 'a new broker id, from NEW_BROKER'}",
            "Change the broker id of the route to the service_broker_guid of the database"
            + (f" in sys.databases of {target_instance}." if not ids else "."),
            related=[f"{target_instance}/{host}" for host in hosts],
            candidates=[alter_route(route, broker_clause(broker)) for broker in ids] + [drop_route(route)],
        )


def stale_routes(context: CheckContext) -> Iterator[tuple[str, FleetRoute, str, list[str]]]:
    """Yields routes with an unknown broker id to an instance of the fleet, with this instance and its databases that have the service."""
    known = {row.broker for tables in context.tables.values() for row in tables.databases.values()}
    targets = ReachedInstances(context.fleet, context.tables, is_live=context.is_live)
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if not context.is_live(route) or route.service is None or route.broker is None or route.broker in known:
                continue
            found = targets.of(instance, route)
            hosts = {target: context.tables[target].hosts[route.service] for target in found}
            if hosts and all(
                context.is_former_id(route.broker, target, host) for target in found for host in hosts[target]
            ):
                yield instance, route, found[0], hosts[found[0]]


def check_next_hops(context: CheckContext) -> Iterator[Problem]:
    """Checks for addresses that no instance of the fleet has; only for a fleet of several instances."""
    if len(context.fleet) == 1:
        return
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if context.is_live(route):
                for clause, hop in (("ADDRESS", route.address), ("MIRROR_ADDRESS", route.mirror)):
                    if hop not in (None, LOCAL, TRANSPORT) and context.fleet.at(hop, seen_from=instance) is None:
                        yield _unknown_next_hop(context, instance, route, clause, hop)


def _unknown_next_hop(context: CheckContext, instance: str, route: FleetRoute, clause: str, address: str) -> Problem:
    """Returns the finding on an unknown address."""
    leads = "leads to" if clause == "ADDRESS" else "has the mirror address"
    listening = context.addresses.listening(address, seen_from=instance)
    # For a mirrored route, there are none, because a new address alone does not correct it.
    moved = _address_remedies(context, instance, route)
    if listening is not None:
        host = address.rpartition(":")[0]
        return route_problem(
            "SSB022",
            instance,
            route,
            f"{leads} {address}, but {listening}",
            "Correct the port.",
            severity="error",
            candidates=chain(
                (alter_route(route, f"{clause} = {string_literal(f'{host}:{port}')}") for _, port in listening.ports),
                moved,
            ),
        )
    return route_problem(
        "SSB022",
        instance,
        route,
        f"{leads} {address}, which is not a known address of any of the instances",
        context.addresses.advice(address, seen_from=instance),
        # The route may be correct if an instance has an unknown address.
        candidates=() if context.addresses.possible_owners(address, seen_from=instance) else moved,
    )


_NULLABLE: Final = pa.schema([field.with_nullable(nullable=True) for field in schemas.ROUTES])


@cache
def _transport_router() -> Router:
    """Returns a router whose only route has the address TRANSPORT."""
    transport = dict.fromkeys(schemas.ROUTES.names) | {
        "database": "one",
        "name": "all",
        "route_id": 1,
        "address": TRANSPORT,
    }
    return Router(Catalog(pa.Table.from_pylist([transport], schema=_NULLABLE)), tie_break="first")


def addresses_in(services: Iterable[str]) -> dict[str, str]:
    """Returns the address at the beginning of each service name that has one, as a route to TRANSPORT uses it.

    Examples:
        >>> addresses_in(["TCP://South:4022/Stock", "//Stock"])
        {'TCP://South:4022/Stock': 'TCP://south:4022'}
    """
    names = sorted(services)
    if not names:
        return {}
    conversations = pa.RecordBatch.from_pydict(
        {
            "database": pa.array(["one"] * len(names), pa.string()),
            "to_service_name": pa.array(names, pa.string()),
            "to_broker_instance": pa.nulls(len(names), pa.binary(16)),
        }
    )
    hops = _transport_router().route(conversations)["next_hop_address"].to_pylist()
    return {service: hop for service, hop in zip(names, hops, strict=True) if hop is not None}


def _hosts_anything(tables: Tables) -> bool:
    return any(tables.databases[database].enabled for database in tables.services)


def _can_locate(tables: Tables, service: str, broker: bytes | None) -> bool:
    return any(
        tables.databases[host].enabled and (broker is None or tables.databases[host].broker == broker)
        for host in tables.hosts.get(service, ())
    )


def _identity(route: FleetRoute) -> tuple[str, str | None, bytes | None, str, bool]:
    return route.database, route.service, route.broker, route.address, route.mirror is not None


def _first_of_identical(
    context: CheckContext, tables: Tables
) -> dict[tuple[str, str | None, bytes | None, str, bool], FleetRoute]:
    """Returns the first of each group of identical live routes."""
    found: dict[tuple[str, str | None, bytes | None, str, bool], FleetRoute] = {}
    for route in sorted(tables.routes, key=lambda route: route.route_id):
        if context.is_live(route):
            found.setdefault(_identity(route), route)
    return found
