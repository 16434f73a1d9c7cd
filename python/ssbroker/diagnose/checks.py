"""The checks of routes, broker ids, services and fleets, and `lint`, which runs them."""

from __future__ import annotations

import unicodedata
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import string_list, utc_datetime
from ssbroker._text import bracketed, string_literal
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.behaviour import preferred_routes
from ssbroker.diagnose.context import CheckContext, finding_about, qualified_route, quoted_name, route_finding
from ssbroker.diagnose.findings import CODES, Finding, Findings
from ssbroker.diagnose.fleet import (
    BROKER_CONFIGURATION,
    LOCAL,
    MSDB,
    TRANSPORT,
    DatabaseRow,
    Fleet,
    RouteRow,
    Tables,
    without_garbage_collection,
)
from ssbroker.diagnose.reachability import ReachabilitySets, RoutingEnd, Start, all_services, find_loops
from ssbroker.diagnose.script_findings import script_problems
from ssbroker.exceptions import DuplicateError, OptionError
from ssbroker.router import Router

_LISTED_MAX = 3


def check_loops(context: CheckContext) -> Iterator[Finding]:
    """Checks for loops between instances."""
    for loop in find_loops(context.graph):
        services = [service for service in loop.services if service is not None]
        others = ["every service that no route names"] if None in loop.services else []
        shown_names = [quoted_name(service) for service in dict.fromkeys(services)]
        shown = [*others, *shown_names[:_LISTED_MAX], *(["..."] if len(shown_names) > _LISTED_MAX else [])]
        yield finding_about(
            "SSB020",
            f"loop {loop}",
            f"messages for {', '.join(shown)} circulate",
            f"In msdb of one of these instances, such as {loop.instances[-1]}, change the route to LOCAL or drop it.",
            related=list(_routes_between(context, loop.instances)),
        )


def _routes_between(context: CheckContext, instances: tuple[str, ...]) -> Iterator[str]:
    for instance, following in zip(instances, (*instances[1:], instances[0]), strict=True):
        for route in context.tables[instance].routes:
            if route.database == MSDB and context.is_live(route) and context.fleet.at(route.address) == following:
                yield qualified_route(instance, route)


def check_next_hops(context: CheckContext) -> Iterator[Finding]:
    """Checks for addresses that no instance of the fleet has; only if it has several instances."""
    if len(context.fleet) == 1:
        return
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if not context.is_live(route) or route.address in (LOCAL, TRANSPORT):
                continue
            if context.fleet.at(route.address, seen_from=instance) is None:
                yield route_finding(
                    "SSB022",
                    instance,
                    route,
                    f"leads to {route.address}, which is not an address of any instance",
                    "Add the catalog of that instance with its addresses, or correct the route.",
                )


def check_services(context: CheckContext) -> Iterator[Finding]:
    """Checks for services that no conversation reaches, and for targets without a return route."""
    reach = ReachabilitySets(context.graph)
    targets_of = _TargetsByEnds(reach)
    reached: set[tuple[int, str]] = set()
    accepted: list[dict[int, str]] = [{} for _ in reach.starts]
    targets: dict[int, dict[int, str]] = {}
    for service in sorted(all_services(context.graph)):
        codes = reach.codes(service)
        reached.update((target, service) for code in set(codes) for target in targets_of[code])
        if service == BROKER_CONFIGURATION:
            continue  # the instance itself requests routes from it
        for number, (code, used) in enumerate(zip(codes, accepted, strict=True)):
            for target in targets_of[code]:
                if target not in used and target != number:
                    used[target] = service
                    targets[number] = used
    yield from _unreachable_services(context, {(*reach.starts[number], service) for number, service in reached})
    yield from _check_return_routes(context, targets)


class _TargetsByEnds(dict[int, tuple[int, ...]]):
    """The starts at which messages are delivered, by number of the set of ends; computed on first access."""

    def __init__(self, reach: ReachabilitySets) -> None:
        super().__init__()
        self._ends = reach.ends
        self._numbers = {start: number for number, start in enumerate(reach.starts)}

    def __missing__(self, code: int) -> tuple[int, ...]:
        delivered = (end for end in self._ends[code] if end.outcome == "DELIVERED")
        places = (Start(str(end.instance), str(end.database)) for end in delivered)
        self[code] = found = tuple(self._numbers[place] for place in places if place in self._numbers)
        return found


def _unreachable_services(context: CheckContext, reached: set[tuple[str, str, str]]) -> Iterator[Finding]:
    for instance, tables in context.tables.items():
        for database, names in tables.services.items():
            if not tables.databases[database].enabled:
                continue  # reported for the database
            for service in names:
                if (instance, database, service) in reached or _is_reached_from_outside(
                    context, instance, database, service
                ):
                    continue
                yield finding_about(
                    "SSB019",
                    f"service {quoted_name(service)}",
                    "no conversation reaches it",
                    f"If it should receive conversations: USE <database>; CREATE ROUTE <name> WITH SERVICE_NAME = {string_literal(service)}, ADDRESS = N'<address>';",
                    instance=instance,
                    database=database,
                )


def _is_reached_from_outside(context: CheckContext, instance: str, database: str, service: str) -> bool:
    """Returns whether messages from unknown instances reach the service; a fleet of several instances is considered complete."""
    if len(context.fleet) > 1:
        return False
    answers = context.graph.at(instance).arriving(service)
    return any(answer.target_database == database for answer in answers)


def _check_return_routes(context: CheckContext, targets: dict[int, dict[int, str]]) -> Iterator[Finding]:
    """Checks that the targets of each database can reach each of its services that may have started the conversation."""
    reach = ReachabilitySets(context.graph, is_initiator=False)
    initiators: list[tuple[int, str]] = []
    missing: defaultdict[int, list[int]] = defaultdict(list)
    for number, used in targets.items():
        origin = reach.starts[number]
        tables = context.tables[origin.instance]
        certain_end = {RoutingEnd("DELIVERED", *origin)}
        for service in tables.services.get(origin.database, ()):
            codes = reach.codes(service, tables.databases[origin.database].broker)
            certain = {code for code in set(codes) if reach.ends[code] == certain_end}
            for target in used:
                if codes[target] not in certain:
                    missing[target].append(len(initiators))
            initiators.append((number, service))
    shown_names = [f"{'/'.join(reach.starts[number])}/service {quoted_name(service)}" for number, service in initiators]
    for target, numbers in sorted(missing.items()):
        first, service = initiators[numbers[0]]
        yield _no_return_route(
            context,
            reach.starts[target],
            reach.starts[first],
            service=service,
            used=targets[first][target],
            related=list(map(shown_names.__getitem__, numbers)),
        )


def _no_return_route(
    context: CheckContext, target: Start, initiator: Start, *, service: str, used: str, related: list[str]
) -> Finding:
    others = len(related) - 1
    others_text = (
        f" or to {others} other service{'' if others == 1 else 's'} that may have started one" if others else ""
    )
    each = f", for this and {'the other service' if others == 1 else 'each of the other services'}" if others else ""
    address = next(iter(context.fleet[initiator.instance].addresses), "TCP://<host>:4022")
    return finding_about(
        "SSB017",
        f"database {quoted_name(target.database)}",
        f"accepts conversations for {quoted_name(used)} from {'/'.join(initiator)}, but has no reliable return route to {quoted_name(service)}{others_text}",
        f"In {target.instance}{each}: USE {bracketed(target.database)}; CREATE ROUTE <name> WITH SERVICE_NAME = {string_literal(service)}, "
        f"ADDRESS = N'{'LOCAL' if initiator.instance == target.instance else address}';",
        instance=target.instance,
        database=target.database,
        related=related,
    )


def check_broker_ids(context: CheckContext) -> Iterator[Finding]:
    """Checks for duplicate broker ids."""
    holders: defaultdict[bytes, list[tuple[str, DatabaseRow]]] = defaultdict(list)
    for instance, tables in context.tables.items():
        for database in tables.databases.values():
            if database.broker is not None and any(
                database.broker
            ):  # `master` and `model` have zeros, which are not an id
                holders[database.broker].append((instance, database))
    for broker, found in holders.items():
        by_instance: defaultdict[str, list[DatabaseRow]] = defaultdict(list)
        for instance, database in found:
            by_instance[instance].append(database)
        for instance, databases in by_instance.items():
            if len(databases) > 1:
                yield finding_about(
                    "SSB013",
                    f"broker id {uuid.UUID(bytes=broker)}",
                    f"is shared by {_names(databases)}",
                    f"Give the copy a new broker id: ALTER DATABASE {bracketed(databases[-1].name)} SET NEW_BROKER;",
                    instance=instance,
                    database=databases[-1].name,
                    related=[f"{instance}/{database.name}" for database in databases],
                )
        if len(by_instance) > 1:
            enabled = sum(any(database.enabled for database in databases) for databases in by_instance.values())
            yield finding_about(
                "SSB012",
                f"broker id {uuid.UUID(bytes=broker)}",
                f"is shared by databases in {len(by_instance)} instances: {', '.join(sorted(by_instance))}",
                "Give the copy a new broker id: ALTER DATABASE <copy> SET NEW_BROKER; then update the routes that name it.",
                related=[f"{instance}/{database.name}" for instance, database in found],
                severity="error" if enabled > 1 else "warning",
            )


def _names(databases: list[DatabaseRow]) -> str:
    return " and ".join(f"{quoted_name(row.name)} ({'enabled' if row.enabled else 'disabled'})" for row in databases)


def duplicate_enabled_id(error: DuplicateError, *, instance: str) -> Finding | None:
    """Returns the finding for a catalog that cannot be loaded because two enabled databases have the same broker id (I7), else None."""
    if error.column != "databases.service_broker_guid":
        return None
    return finding_about(
        "SSB013",
        f"broker id {error.value}",
        f"is shared by two enabled databases, so the catalog cannot be loaded and was not checked further: {error}",
        "Give the copy a new broker id: ALTER DATABASE <copy> SET NEW_BROKER; then update the routes that name it.",
        instance=instance,
        severity="error",
    )


def check_stale_broker_ids(context: CheckContext) -> Iterator[Finding]:
    """Checks for routes with the id of a database that no longer exists, to an instance where the service has another id."""
    known = {row.broker for tables in context.tables.values() for row in tables.databases.values()}
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if not context.is_live(route) or route.service is None or route.broker is None or route.broker in known:
                continue
            target_instance = (
                instance if route.address == LOCAL else context.fleet.at(route.address, seen_from=instance)
            )
            if target_instance is None:
                continue
            hosts = context.tables[target_instance].hosts.get(route.service, [])
            ids = [
                row.broker
                for row in map(context.tables[target_instance].databases.__getitem__, hosts)
                if row.broker is not None
            ]
            if ids:
                yield route_finding(
                    "SSB014",
                    instance,
                    route,
                    f"has broker id {uuid.UUID(bytes=route.broker)}, which belongs to no known database; "
                    f"{quoted_name(route.service)} in {target_instance} has {', '.join(str(uuid.UUID(bytes=broker)) for broker in ids)}",
                    f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH BROKER_INSTANCE = N'{uuid.UUID(bytes=ids[0])}';",
                    related=[f"{target_instance}/{host}" for host in hosts],
                )


def check_disabled_databases(context: CheckContext) -> Iterator[Finding]:
    """Checks for disabled databases that have services."""
    for instance, tables in context.tables.items():
        for database, services in tables.services.items():
            if not tables.databases[database].enabled:
                yield finding_about(
                    "SSB021",
                    f"database {quoted_name(database)}",
                    f"message delivery is disabled, and it has {len(services)} service{'' if len(services) == 1 else 's'}",
                    f"ALTER DATABASE {bracketed(database)} SET ENABLE_BROKER;",
                    instance=instance,
                    database=database,
                    related=[f"service {quoted_name(service)}" for service in services[:10]],
                )


class SimilarServices:
    """The services of a fleet, searchable by a similar name."""

    def __init__(self, tables: Mapping[str, Tables]) -> None:
        self._folded = _FoldedNames()
        self.groups: defaultdict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        """Services with similar names, each with an instance and database that have it."""
        for instance, each in tables.items():
            for service, databases in each.hosts.items():
                self.groups[self._folded[service]].setdefault(service, (instance, databases[0]))

    def of(self, wanted: str) -> str | None:
        """Describes how an existing service differs from `wanted`; None if there is no similar one, or if `wanted` exists."""
        similar = self.groups.get(self._folded[wanted], {})
        if not similar or wanted in similar:
            return None
        service, where = next(iter(similar.items()))
        return f"{'/'.join(where)} has {quoted_name(service)}, which differs only in {_difference(wanted, service)}"

    def nearest(self, wanted: str) -> str:
        """Returns the service that `of` describes."""
        return next(iter(self.groups[self._folded[wanted]]))


def check_similar_names(context: CheckContext) -> Iterator[Finding]:
    """Checks for names of routes and services that are similar to that of another service."""
    services = SimilarServices(context.tables)
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if route.service is not None and context.is_live(route) and (differs := services.of(route.service)):
                yield route_finding(
                    "SSB018",
                    instance,
                    route,
                    f"is for {quoted_name(route.service)}, but {differs}",
                    f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH SERVICE_NAME = "
                    f"{string_literal(services.nearest(route.service))};",
                )
    for similar in services.groups.values():
        first, *others = sorted(similar)
        for service in others:
            instance, database = similar[service]
            place = "/".join(similar[first])
            yield finding_about(
                "SSB018",
                f"service {quoted_name(service)}",
                f"differs from {quoted_name(first)} in {place} only in {_difference(service, first)}",
                "If both are meant to be the same service, drop one and create it again under the other name; a service cannot be renamed.",
                instance=instance,
                database=database,
                related=[f"{place}/service {quoted_name(first)}"],
            )


class _FoldedNames(dict[str, str]):
    """Names without their invisible differences, each computed once."""

    def __missing__(self, text: str) -> str:
        self[text] = folded = _without_invisible_characters(unicodedata.normalize("NFKC", text).casefold())
        return folded


def _without_invisible_characters(text: str) -> str:
    """Removes white space, control and format characters."""
    return "".join(
        character
        for character in text
        if not character.isspace() and unicodedata.category(character) not in ("Cc", "Cf")
    )


def _difference(one: str, other: str) -> str:
    if one.casefold() == other.casefold():
        return "case"
    if _without_invisible_characters(one) == _without_invisible_characters(other):
        return "white space"
    if unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", other):
        return "Unicode form"
    return "case, white space or Unicode form"


_NULLABLE: Final = pa.schema([field.with_nullable(nullable=True) for field in schemas.ROUTES])


def check_unused_routes(context: CheckContext) -> Iterator[Finding]:
    """Checks for routes that no conversation ever uses, and finds the cause."""
    for instance, tables in context.tables.items():
        used = context.used_routes[instance]
        addressed_names = _names_with_address(tables)
        first = _first_of_identical(context, tables)
        for route in tables.routes:
            if route.lifetime is not None and route.lifetime <= context.now:
                yield route_finding(
                    "SSB003",
                    instance,
                    route,
                    f"expired on {_expiry_text(context, route.lifetime)}",
                    f"Extend it: {_alter(route)} LIFETIME = <seconds>; or drop it: {_drop(route)}",
                )
                continue
            if route.key in used:
                continue
            identical = first.get(_identity(route))
            if route.service is None and route.broker is not None:
                yield route_finding(
                    "SSB001",
                    instance,
                    route,
                    "has a broker id but no service name",
                    f"Add the service name: {_alter(route)} SERVICE_NAME = N'<service>'; or drop the route.",
                )
            elif identical is not None and identical is not route:
                yield route_finding(
                    "SSB005",
                    instance,
                    route,
                    f"duplicates route {quoted_name(identical.name)}",
                    f"Drop one of the two: {_drop(route)}",
                    related=[identical],
                )
            else:
                yield from _unused_route(instance, tables, route, addressed_names=addressed_names, used=used)


def _unused_route(
    instance: str, tables: Tables, route: RouteRow, *, addressed_names: frozenset[str], used: set[tuple[str, int]]
) -> Iterator[Finding]:
    """Yields why a valid, live route that is not a duplicate is never used."""
    service = route.service
    if service is not None and route.address == TRANSPORT and service not in addressed_names:
        yield route_finding(
            "SSB007",
            instance,
            route,
            f"has the address TRANSPORT, but {quoted_name(service)} does not begin with an address",
            f"Set an address: {_alter(route)} ADDRESS = N'TCP://<host>:4022';",
        )
    elif service is not None and route.address == LOCAL and not _can_locate(tables, service, route.broker):
        hosts = tables.hosts.get(service, [])
        where = (
            f"the databases that have {quoted_name(service)} are disabled or have another broker id: {', '.join(hosts)}"
        )
        yield route_finding(
            "SSB008",
            instance,
            route,
            f"leads to LOCAL, but {where if hosts else f'no database of this instance has {quoted_name(service)}'}",
            "Enable the database, create the service, or change the route to the address of the instance that has the service.",
        )
    elif service is None and route.address == LOCAL and route.mirror is None and not _hosts_anything(tables):
        return  # its services are unknown, or all their databases are disabled, which is reported for these
    elif (tables.databases[route.database].enabled or route.database == MSDB) and (
        others := preferred_routes(route, tables, used)
    ):
        verb = "takes" if len(others) == 1 else "take"
        yield route_finding(
            "SSB002",
            instance,
            route,
            f"is never used, because {', '.join(quoted_name(other.name) for other in others[:3])} always {verb} precedence",
            f"Drop this route or the preferred one: {_drop(route)}",
            related=others,
        )
    elif service is None and route.address == LOCAL:
        yield route_finding(
            "SSB002",
            instance,
            route,
            "delivers nothing, because every service of this instance has its own route in this table",
            "It is harmless, and will deliver to services that are created later.",
            severity="info",
        )


def _expiry_text(context: CheckContext, lifetime: datetime) -> str:
    days = abs(context.now - lifetime).days
    distance = "less than a day" if days == 0 else f"{days} day{'' if days == 1 else 's'}"
    when = f"{distance} ago" if lifetime <= context.now else f"in {distance}"
    return f"{lifetime:%Y-%m-%d %H:%M:%S} UTC, {when}"


def check_expiring_routes(context: CheckContext) -> Iterator[Finding]:
    """Checks for routes that are about to expire."""
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if route.lifetime is not None and context.now < route.lifetime <= context.until:
                yield route_finding(
                    "SSB004",
                    instance,
                    route,
                    f"expires on {_expiry_text(context, route.lifetime)}",
                    f"Extend it: {_alter(route)} LIFETIME = <seconds>;",
                )


def check_wildcards(context: CheckContext) -> Iterator[Finding]:
    """Checks for tables that send all services of other instances to the network."""
    for instance, tables in context.tables.items():
        by_table: defaultdict[str, list[RouteRow]] = defaultdict(list)
        for route in tables.routes:
            if context.is_live(route) and route.service is None and route.broker is None:
                by_table[route.database].append(route)
        for group in by_table.values():
            local = [route for route in group if route.address == LOCAL]
            for route in group:
                if local and route.address not in (LOCAL, TRANSPORT) and route.key in context.used_routes[instance]:
                    yield route_finding(
                        "SSB006",
                        instance,
                        route,
                        f"sends all services that are not in this instance to {route.address}, next to {quoted_name(local[0].name)} to LOCAL",
                        "If this is intended, ignore this code; otherwise create one route for each service.",
                        related=local,
                    )


def check_own_addresses(context: CheckContext) -> Iterator[Finding]:
    """Checks for routes to the network address of the instance itself."""
    for instance, tables in context.tables.items():
        own = set(context.fleet[instance].addresses)
        for route in tables.routes:
            if context.is_live(route) and route.address in own:
                yield route_finding(
                    "SSB009",
                    instance,
                    route,
                    f"leads to {route.address}, which is an address of this instance itself",
                    f"If the service is in this instance: {_alter(route)} ADDRESS = N'LOCAL';",
                    severity="error" if route.database == MSDB else "warning",
                )


def check_mirrors(context: CheckContext) -> Iterator[Finding]:
    """Checks for mirrored routes that CREATE ROUTE would refuse."""
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if not context.is_live(route) or route.mirror is None:
                continue
            if route.mirror == route.address:
                yield route_finding(
                    "SSB010",
                    instance,
                    route,
                    f"has {route.address} as both address and mirror address",
                    f"Set the mirror to the partner's address: {_alter(route)} MIRROR_ADDRESS = N'TCP://<partner>:4022';",
                )
            if route.broker is None or route.service is None:
                missing = " or ".join(
                    text
                    for text, value in (("service name", route.service), ("broker id", route.broker))
                    if value is None
                )
                yield route_finding(
                    "SSB011",
                    instance,
                    route,
                    f"has a mirror address but no {missing}",
                    f"Specify both: {_alter(route)} SERVICE_NAME = N'<service>', BROKER_INSTANCE = N'<service_broker_guid>';",
                )


def check_forwarding(context: CheckContext) -> Iterator[Finding]:
    """Checks for routes of msdb to other instances if forwarding is disabled."""
    for instance, tables in context.tables.items():
        if context.fleet[instance].message_forwarding:
            continue
        for route in tables.routes:
            if route.database == MSDB and route.key in context.used_routes[instance] and route.address != LOCAL:
                yield route_finding(
                    "SSB016",
                    instance,
                    route,
                    f"forwards messages from outside to {route.address}, but message forwarding is disabled",
                    "ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED); or drop the route.",
                )


def check_dynamic_routing(context: CheckContext) -> Iterator[Finding]:
    """Checks for local services that are hidden by dynamic routing."""
    for instance, tables in context.tables.items():
        behaviour = context.graph.at(instance)
        dynamic_routes = {
            route.database: route
            for route in tables.routes
            if route.service == BROKER_CONFIGURATION and context.is_live(route)
        }
        for database, route in dynamic_routes.items():
            hidden = [
                service
                for service, hosts in tables.hosts.items()
                if any(tables.databases[host].enabled for host in hosts)
                and any(answer.reason == "route_requested" for answer in behaviour.from_database(database, service))
            ]
            if hidden:
                shown_names = ", ".join(
                    [*map(quoted_name, hidden[:_LISTED_MAX]), *(["..."] if len(hidden) > _LISTED_MAX else [])]
                )
                yield route_finding(
                    "SSB015",
                    instance,
                    route,
                    f"hides {len(hidden)} service{'s' if len(hidden) > 1 else ''} of this instance: {shown_names}",
                    f"For each service: USE {bracketed(database)}; CREATE ROUTE <name> WITH SERVICE_NAME = N'<service>', ADDRESS = N'LOCAL';",
                )


def _names_with_address(tables: Tables) -> frozenset[str]:
    """Returns the service names of routes to TRANSPORT that begin with an address, according to the router."""
    names = sorted(
        {route.service for route in tables.routes if route.address == TRANSPORT and route.service is not None}
    )
    if not names:
        return frozenset()
    transport = dict.fromkeys(schemas.ROUTES.names) | {
        "database": "one",
        "name": "all",
        "route_id": 1,
        "address": TRANSPORT,
    }
    router = Router(Catalog(pa.Table.from_pylist([transport], schema=_NULLABLE)), tie_break="first")
    conversations = pa.RecordBatch.from_pydict(
        {
            "database": pa.array(["one"] * len(names), pa.string()),
            "to_service_name": pa.array(names, pa.string()),
            "to_broker_instance": pa.nulls(len(names), pa.binary(16)),
        }
    )
    hops = router.route(conversations)["next_hop_address"].to_pylist()
    return frozenset(service for service, hop in zip(names, hops, strict=True) if hop is not None)


def _hosts_anything(tables: Tables) -> bool:
    return any(tables.databases[database].enabled for database in tables.services)


def _can_locate(tables: Tables, service: str, broker: bytes | None) -> bool:
    return any(
        tables.databases[host].enabled and (broker is None or tables.databases[host].broker == broker)
        for host in tables.hosts.get(service, ())
    )


def _identity(route: RouteRow) -> tuple[str, str | None, bytes | None, str, bool]:
    return route.database, route.service, route.broker, route.address, route.mirror is not None


def _first_of_identical(
    context: CheckContext, tables: Tables
) -> dict[tuple[str, str | None, bytes | None, str, bool], RouteRow]:
    """Returns the first of each group of identical live routes."""
    found: dict[tuple[str, str | None, bytes | None, str, bool], RouteRow] = {}
    for route in sorted(tables.routes, key=lambda route: route.route_id):
        if context.is_live(route):
            found.setdefault(_identity(route), route)
    return found


def _alter(route: RouteRow) -> str:
    return f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH"


def _drop(route: RouteRow) -> str:
    return f"USE {bracketed(route.database)}; DROP ROUTE {bracketed(route.name)};"


EXPIRES_WITHIN: Final = timedelta(days=30)
_CHECKS: Final[tuple[Callable[[CheckContext], Iterator[Finding]], ...]] = (
    check_unused_routes,
    check_expiring_routes,
    check_wildcards,
    check_own_addresses,
    check_mirrors,
    check_forwarding,
    check_dynamic_routing,
    check_broker_ids,
    check_stale_broker_ids,
    check_disabled_databases,
    check_similar_names,
    check_loops,
    check_next_hops,
    check_services,
    script_problems,
)


@without_garbage_collection
def lint(
    fleet: Fleet | Catalog,
    *,
    at: datetime | None = None,
    expires_within: timedelta = EXPIRES_WITHIN,
    ignore: Sequence[str] | AbstractSet[str] = (),
) -> Findings:
    """Finds problems in the routing tables, databases and services of a fleet.

    Whether a route is ever used, or always superseded by others, is decided by the router itself: it routes a conversation of
    every combination of the known service names and broker ids.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime without a time zone is UTC.
        expires_within: Routes that expire within this time are reported in advance.
        ignore: Codes of findings to leave out, such as `SSB006`.

    Returns:
        The findings, the most severe first.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime, `expires_within` is not a timedelta of 0 or more, or `ignore` has an unknown code.

    Examples:
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import lint
        >>> import pyarrow as pa
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["LOCAL"], "mirror_address": [None]}
        >>> [str(finding) for finding in lint(Catalog(pa.table(routes)))]
        ['SSB008 error: instance/Sales/route "Orders": leads to LOCAL, but no database of this instance has "//Orders"']
    """
    within: object = expires_within
    if not isinstance(within, timedelta) or within < timedelta(0):
        raise OptionError(f"expires_within: expected a timedelta of 0 or more, got {expires_within!r}")
    unknown = sorted(
        {*string_list([*ignore] if isinstance(ignore, AbstractSet) else ignore, name="ignore")} - CODES.keys()
    )
    if unknown:
        raise OptionError(f"ignore: {unknown[0]!r} is not a finding code; expected one of {', '.join(CODES)}")
    now = utc_datetime(at)
    try:
        until = now + expires_within
    except OverflowError:
        until = datetime.max.replace(tzinfo=now.tzinfo)
    context = CheckContext(fleet=Fleet.of(fleet), now=now, until=until)
    return Findings([finding for check in _CHECKS for finding in check(context) if finding.code not in ignore])
