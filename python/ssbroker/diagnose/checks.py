"""The checks that find problems in routes, broker ids, services and fleets."""

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
from ssbroker.diagnose.behaviour import preferred
from ssbroker.diagnose.catalog_tables import BROKER_CONFIGURATION, LOCAL, MSDB, TRANSPORT, DatabaseRow, RouteRow, Tables
from ssbroker.diagnose.context import CheckContext, about, about_route, name, route_in_full
from ssbroker.diagnose.findings import CODES, Finding, Findings
from ssbroker.diagnose.fleet import Fleet, without_collector
from ssbroker.diagnose.reachability import ReachabilitySets, RoutingEnd, Start, all_services, circling
from ssbroker.exceptions import DuplicateError, OptionError
from ssbroker.router import Router

_NAMED_MAX = 3


def circles(setting: CheckContext) -> Iterator[Finding]:
    """Loops between instances."""
    for loop in circling(setting.ways):
        services = [service for service in loop.services if service is not None]
        others = ["every service that no route names"] if None in loop.services else []
        told = [name(service) for service in dict.fromkeys(services)]
        shown = [*others, *told[:_NAMED_MAX], *(["..."] if len(told) > _NAMED_MAX else [])]
        yield about(
            "SSB020",
            f"loop {loop}",
            f"is taken by {', '.join(shown)}",
            f"In the msdb of one of them, let the route end: to LOCAL, or drop it. The shortest cut is {loop.instances[-1]}.",
            related=list(_routes_between(setting, loop.instances)),
        )


def _routes_between(setting: CheckContext, instances: tuple[str, ...]) -> Iterator[str]:
    for instance, following in zip(instances, (*instances[1:], instances[0]), strict=True):
        for route in setting.rows[instance].routes:
            if route.database == MSDB and setting.is_live(route) and setting.fleet.at(route.address) == following:
                yield route_in_full(instance, route)


def unknown_hops(setting: CheckContext) -> Iterator[Finding]:
    """Addresses that no instance of the fleet has; only where there is more than one."""
    if len(setting.fleet) == 1:
        return
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if not setting.is_live(route) or route.address in (LOCAL, TRANSPORT):
                continue
            if setting.fleet.at(route.address, seen_from=instance) is None:
                yield about_route(
                    "SSB022",
                    instance,
                    route,
                    f"goes to {route.address}, which no instance here has",
                    "Add the instance's catalog with its addresses, or correct the route.",
                )


def services(setting: CheckContext) -> Iterator[Finding]:
    """Services that nothing reaches, and targets that cannot answer."""
    reach = ReachabilitySets(setting.ways)
    places = _Places(reach)
    reached: set[tuple[int, str]] = set()
    every: list[dict[int, str]] = [{} for _ in reach.starts]
    targets: dict[int, dict[int, str]] = {}
    for service in sorted(all_services(setting.ways)):
        codes = reach.codes(service)
        reached.update((target, service) for code in set(codes) for target in places[code])
        if service == BROKER_CONFIGURATION:
            continue  # what asks it is the instance itself, in the database that needs a route
        for number, (code, taken) in enumerate(zip(codes, every, strict=True)):
            for target in places[code]:
                if target not in taken and target != number:
                    taken[target] = service
                    targets[number] = taken
    yield from _unreached(setting, {(*reach.starts[number], service) for number, service in reached})
    yield from _ways_back(setting, targets)


class _Places(dict[int, tuple[int, ...]]):
    """The starts that are also where it is delivered, for each set of ends, worked out when it is first asked for."""

    def __init__(self, reach: ReachabilitySets) -> None:
        super().__init__()
        self._fates = reach.fates
        self._numbers = {start: number for number, start in enumerate(reach.starts)}

    def __missing__(self, code: int) -> tuple[int, ...]:
        delivered = (fate for fate in self._fates[code] if fate.outcome == "DELIVERED")
        places = (Start(str(fate.instance), str(fate.database)) for fate in delivered)
        self[code] = found = tuple(self._numbers[place] for place in places if place in self._numbers)
        return found


def _unreached(setting: CheckContext, reached: set[tuple[str, str, str]]) -> Iterator[Finding]:
    for instance, rows in setting.rows.items():
        for database, names in rows.services.items():
            if not rows.databases[database].enabled:
                continue  # said already, of the database
            for service in names:
                if (instance, database, service) in reached or _from_outside(setting, instance, database, service):
                    continue
                yield about(
                    "SSB019",
                    f"service {name(service)}",
                    "is the target of no conversation",
                    f"If it is to be one: USE <database>; CREATE ROUTE <name> WITH SERVICE_NAME = {string_literal(service)}, ADDRESS = N'<address>';",
                    instance=instance,
                    database=database,
                )


def _from_outside(setting: CheckContext, instance: str, database: str, service: str) -> bool:
    """Whether it is reached by what arrives from instances that are not looked at; in a fleet of several, all are."""
    if len(setting.fleet) > 1:
        return False
    answers = setting.ways.at(instance).arriving(service)
    return any(answer.target_database == database for answer in answers)


def _ways_back(setting: CheckContext, targets: dict[int, dict[int, str]]) -> Iterator[Finding]:
    """What the targets of each database send back to it, to each of its services that may have begun a conversation."""
    reach = ReachabilitySets(setting.ways, is_initiator=False)
    initiators: list[tuple[int, str]] = []
    missing: defaultdict[int, list[int]] = defaultdict(list)
    for number, taken in targets.items():
        home = reach.starts[number]
        rows = setting.rows[home.instance]
        sure_end = {RoutingEnd("DELIVERED", *home)}
        for service in rows.services.get(home.database, ()):
            codes = reach.codes(service, rows.databases[home.database].broker)
            sure = {code for code in set(codes) if reach.fates[code] == sure_end}
            for target in taken:
                if codes[target] not in sure:
                    missing[target].append(len(initiators))
            initiators.append((number, service))
    told = [f"{'/'.join(reach.starts[number])}/service {name(service)}" for number, service in initiators]
    for target, numbers in sorted(missing.items()):
        first, service = initiators[numbers[0]]
        yield _no_way_back(
            setting,
            reach.starts[target],
            reach.starts[first],
            service=service,
            taken=targets[first][target],
            related=list(map(told.__getitem__, numbers)),
        )


def _no_way_back(
    setting: CheckContext, target: Start, initiator: Start, *, service: str, taken: str, related: list[str]
) -> Finding:
    others = len(related) - 1
    more = f", nor to {others} other service{'' if others == 1 else 's'} that may have begun one" if others else ""
    likewise = f" Likewise for {'the' if others == 1 else 'each'} other service." if others else ""
    address = next(iter(setting.fleet[initiator.instance].addresses), "TCP://<host>:4022")
    return about(
        "SSB017",
        f"database {name(target.database)}",
        f"takes conversations for {name(taken)} from {'/'.join(initiator)}, and has no sure way back to {name(service)}{more}",
        f"In {target.instance}: USE {bracketed(target.database)}; CREATE ROUTE <name> WITH SERVICE_NAME = {string_literal(service)}, "
        f"ADDRESS = N'{'LOCAL' if initiator.instance == target.instance else address}';{likewise}",
        instance=target.instance,
        database=target.database,
        related=related,
    )


def broker_ids(setting: CheckContext) -> Iterator[Finding]:
    """Broker ids that occur twice."""
    holders: defaultdict[bytes, list[tuple[str, DatabaseRow]]] = defaultdict(list)
    for instance, rows in setting.rows.items():
        for database in rows.databases.values():
            if database.broker is not None and any(database.broker):  # zeros are none: `master` and `model` have them
                holders[database.broker].append((instance, database))
    for broker, found in holders.items():
        by_instance: defaultdict[str, list[DatabaseRow]] = defaultdict(list)
        for instance, database in found:
            by_instance[instance].append(database)
        for instance, databases in by_instance.items():
            if len(databases) > 1:
                yield about(
                    "SSB013",
                    f"broker id {uuid.UUID(bytes=broker)}",
                    f"is that of {_names(databases)}",
                    f"Give the copy an id of its own: ALTER DATABASE {bracketed(databases[-1].name)} SET NEW_BROKER;",
                    instance=instance,
                    database=databases[-1].name,
                    related=[f"{instance}/{database.name}" for database in databases],
                )
        if len(by_instance) > 1:
            enabled = sum(any(database.enabled for database in databases) for databases in by_instance.values())
            yield about(
                "SSB012",
                f"broker id {uuid.UUID(bytes=broker)}",
                f"is that of databases in {len(by_instance)} instances: {', '.join(sorted(by_instance))}",
                "Give the copy an id of its own: ALTER DATABASE <copy> SET NEW_BROKER; then renew the routes that name it.",
                related=[f"{instance}/{database.name}" for instance, database in found],
                severity="error" if enabled > 1 else "warning",
            )


def _names(databases: list[DatabaseRow]) -> str:
    return " and ".join(f"{name(row.name)} ({'enabled' if row.enabled else 'disabled'})" for row in databases)


def enabled_twice(error: DuplicateError, *, instance: str) -> Finding | None:
    """What it means that a catalog cannot be loaded, where the reason is one that a running instance has too.

    Args:
        error: What `Catalog` raised.
        instance: Whose catalog it is.

    Returns:
        The finding, where two enabled databases have one broker id (I7); None for other reasons.

    Examples:
        >>> enabled_twice(DuplicateError("a name occurs twice", column="databases.name"), instance="NORTH") is None
        True
    """
    if error.column != "databases.service_broker_guid":
        return None
    return about(
        "SSB013",
        f"broker id {error.value}",
        f"is that of two enabled databases, so the catalog cannot be used, and nothing else was looked at: {error}",
        "Give the copy an id of its own: ALTER DATABASE <copy> SET NEW_BROKER; then renew the routes that name it.",
        instance=instance,
        severity="error",
    )


def stale_ids(setting: CheckContext) -> Iterator[Finding]:
    """Routes with the id of a database that is no more, to an instance where the service has another one."""
    known = {row.broker for rows in setting.rows.values() for row in rows.databases.values()}
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if not setting.is_live(route) or route.service is None or route.broker is None or route.broker in known:
                continue
            there = instance if route.address == LOCAL else setting.fleet.at(route.address, seen_from=instance)
            if there is None:
                continue
            hosts = setting.rows[there].hosts.get(route.service, [])
            ids = [
                row.broker for row in map(setting.rows[there].databases.__getitem__, hosts) if row.broker is not None
            ]
            if ids:
                yield about_route(
                    "SSB014",
                    instance,
                    route,
                    f"names broker id {uuid.UUID(bytes=route.broker)}, which no database known here has; "
                    f"{name(route.service)} in {there} has {', '.join(str(uuid.UUID(bytes=broker)) for broker in ids)}",
                    f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH BROKER_INSTANCE = N'{uuid.UUID(bytes=ids[0])}';",
                    related=[f"{there}/{host}" for host in hosts],
                )


def delivery_off(setting: CheckContext) -> Iterator[Finding]:
    """Disabled databases that have services."""
    for instance, rows in setting.rows.items():
        for database, services in rows.services.items():
            if not rows.databases[database].enabled:
                yield about(
                    "SSB021",
                    f"database {name(database)}",
                    f"is disabled and has {len(services)} service{'' if len(services) == 1 else 's'}",
                    f"ALTER DATABASE {bracketed(database)} SET ENABLE_BROKER;",
                    instance=instance,
                    database=database,
                    related=[f"service {name(service)}" for service in services[:10]],
                )


class NearServices:
    """The services of a fleet, to be found by names that are nearly theirs.

    Args:
        rows: The rows of each instance.
    """

    def __init__(self, rows: Mapping[str, Tables]) -> None:
        self._folded = _Folded()
        self.alike: defaultdict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        """Services that are nearly the same, each with the instance and a database that have it."""
        for instance, each in rows.items():
            for service, databases in each.hosts.items():
                self.alike[self._folded[service]].setdefault(service, (instance, databases[0]))

    def of(self, meant: str) -> str | None:
        """In which way a service is nearly what is meant; None where none is, or one is just that."""
        near = self.alike.get(self._folded[meant], {})
        if not near or meant in near:
            return None
        service, where = next(iter(near.items()))
        return f"{'/'.join(where)} has {name(service)}, which differs by {_difference(meant, service)} only"

    def nearest(self, meant: str) -> str:
        """The service that `of` tells of."""
        return next(iter(self.alike[self._folded[meant]]))


def near_names(setting: CheckContext) -> Iterator[Finding]:
    """Names of routes, and of services, that are nearly those of a service."""
    services = NearServices(setting.rows)
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if route.service is not None and setting.is_live(route) and (differs := services.of(route.service)):
                yield about_route(
                    "SSB018",
                    instance,
                    route,
                    f"is for {name(route.service)}; {differs}",
                    f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH SERVICE_NAME = "
                    f"{string_literal(services.nearest(route.service))};",
                )
    for near in services.alike.values():
        first, *others = sorted(near)
        for service in others:
            instance, database = near[service]
            there = "/".join(near[first])
            yield about(
                "SSB018",
                f"service {name(service)}",
                f"differs from {name(first)} in {there} by {_difference(service, first)} only",
                "If both mean one service, make it anew under one name; names cannot be changed.",
                instance=instance,
                database=database,
                related=[f"{there}/service {name(first)}"],
            )


class _Folded(dict[str, str]):
    """Names without what makes them differ unseen, each worked out once: a fleet names a service in many routes."""

    def __missing__(self, text: str) -> str:
        self[text] = folded = _bare(unicodedata.normalize("NFKC", text).casefold())
        return folded


def _bare(text: str) -> str:
    """Without white space, and without the signs that show nothing."""
    return "".join(sign for sign in text if not sign.isspace() and unicodedata.category(sign) not in ("Cc", "Cf"))


def _difference(one: str, other: str) -> str:
    if one.casefold() == other.casefold():
        return "case"
    if _bare(one) == _bare(other):
        return "white space"
    if unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", other):
        return "Unicode form"
    return "case, white space or Unicode form"


_NULLABLE: Final = pa.schema([field.with_nullable(nullable=True) for field in schemas.ROUTES])


def dead_routes(setting: CheckContext) -> Iterator[Finding]:
    """Routes that no conversation ever takes, each with its cause."""
    for instance, rows in setting.rows.items():
        taken = setting.taken[instance]
        held = _held_addresses(rows)
        first = _firsts(setting, rows)
        for route in rows.routes:
            if route.lifetime is not None and route.lifetime <= setting.now:
                yield about_route(
                    "SSB003",
                    instance,
                    route,
                    f"expired {_moment(setting, route.lifetime)}",
                    f"Prolong it: {_alter(route)} LIFETIME = <seconds>; or drop it: {_drop(route)}",
                )
                continue
            if route.key in taken:
                continue
            same = first.get(_same(route))
            if route.service is None and route.broker is not None:
                yield about_route(
                    "SSB001",
                    instance,
                    route,
                    "names a broker id and no service",
                    f"Give it the service: {_alter(route)} SERVICE_NAME = N'<service>'; or drop it.",
                )
            elif same is not None and same is not route:
                yield about_route(
                    "SSB005",
                    instance,
                    route,
                    f"says the same as route {name(same.name)}",
                    f"Drop one of the two: {_drop(route)}",
                    related=[same],
                )
            else:
                yield from _unused(instance, rows, route, held=held, taken=taken)


def _unused(
    instance: str, rows: Tables, route: RouteRow, *, held: frozenset[str], taken: set[tuple[str, int]]
) -> Iterator[Finding]:
    """Why a live route, which is well made and no duplicate, is never taken."""
    service = route.service
    if service is not None and route.address == TRANSPORT and service not in held:
        yield about_route(
            "SSB007",
            instance,
            route,
            f"goes to TRANSPORT, and {name(service)} holds no address",
            f"Give it the address: {_alter(route)} ADDRESS = N'TCP://<host>:4022';",
        )
    elif service is not None and route.address == LOCAL and not _located(rows, service, route.broker):
        hosts = rows.hosts.get(service, [])
        where = f"only databases that are disabled or have another broker id have {name(service)}: {', '.join(hosts)}"
        yield about_route(
            "SSB008",
            instance,
            route,
            f"goes to LOCAL, and {where if hosts else f'no database here has {name(service)}'}",
            "Enable the database, create the service, or give the route the address of the instance that has it.",
        )
    elif service is None and route.address == LOCAL and route.mirror is None and not _hosts_anything(rows):
        return  # nothing is known of its services, or all are off, which is said of their databases
    elif (rows.databases[route.database].enabled or route.database == MSDB) and (
        others := preferred(route, rows, taken)
    ):
        yield about_route(
            "SSB002",
            instance,
            route,
            f"is never taken, because {', '.join(name(other.name) for other in others[:3])} always goes before it",
            f"Drop it, or the other: {_drop(route)}",
            related=others,
        )
    elif service is None and route.address == LOCAL:
        yield about_route(
            "SSB002",
            instance,
            route,
            "delivers nothing, because every service that is here has a route of its own in this table",
            "It does no harm, and serves the next service that is created here.",
            severity="info",
        )


def _moment(setting: CheckContext, lifetime: datetime) -> str:
    days = abs(setting.now - lifetime).days
    when = "ago" if lifetime <= setting.now else "from now"
    distance = "less than a day" if days == 0 else f"{days} day{'' if days == 1 else 's'}"
    return f"{lifetime:%Y-%m-%d %H:%M:%S} UTC, {distance} {when}"


def expiring_routes(setting: CheckContext) -> Iterator[Finding]:
    """Routes that are about to expire."""
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if route.lifetime is not None and setting.now < route.lifetime <= setting.until:
                yield about_route(
                    "SSB004",
                    instance,
                    route,
                    f"expires {_moment(setting, route.lifetime)}",
                    f"Prolong it: {_alter(route)} LIFETIME = <seconds>;",
                )


def wildcards(setting: CheckContext) -> Iterator[Finding]:
    """Tables that send to the network whatever is not here."""
    for instance, rows in setting.rows.items():
        tables: defaultdict[str, list[RouteRow]] = defaultdict(list)
        for route in rows.routes:
            if setting.is_live(route) and route.service is None and route.broker is None:
                tables[route.database].append(route)
        for group in tables.values():
            local = [route for route in group if route.address == LOCAL]
            for route in group:
                if local and route.address not in (LOCAL, TRANSPORT) and route.key in setting.taken[instance]:
                    yield about_route(
                        "SSB006",
                        instance,
                        route,
                        f"takes every service that is not here to {route.address}, beside {name(local[0].name)} to LOCAL",
                        "If that is meant, ignore this code; otherwise name the services, one route for each.",
                        related=local,
                    )


def own_addresses(setting: CheckContext) -> Iterator[Finding]:
    """Routes to the instance itself, by its network address."""
    for instance, rows in setting.rows.items():
        own = set(setting.fleet[instance].addresses)
        for route in rows.routes:
            if setting.is_live(route) and route.address in own:
                yield about_route(
                    "SSB009",
                    instance,
                    route,
                    f"goes to {route.address}, which is {instance} itself",
                    f"If the service is here: {_alter(route)} ADDRESS = N'LOCAL';",
                    severity="error" if route.database == MSDB else "warning",
                )


def mirrors(setting: CheckContext) -> Iterator[Finding]:
    """Mirrored routes that CREATE ROUTE would refuse."""
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if not setting.is_live(route) or route.mirror is None:
                continue
            if route.mirror == route.address:
                yield about_route(
                    "SSB010",
                    instance,
                    route,
                    f"has {route.address} as address and as mirror",
                    f"Give it the partner's address: {_alter(route)} MIRROR_ADDRESS = N'TCP://<partner>:4022';",
                )
            if route.broker is None or route.service is None:
                missing = "broker id" if route.service is not None else "service and no broker id"
                yield about_route(
                    "SSB011",
                    instance,
                    route,
                    f"has a mirror address and no {missing}",
                    f"Name them: {_alter(route)} SERVICE_NAME = N'<service>', BROKER_INSTANCE = N'<service_broker_guid>';",
                )


def forwarding(setting: CheckContext) -> Iterator[Finding]:
    """Ways out of msdb where forwarding is off."""
    for instance, rows in setting.rows.items():
        if setting.fleet[instance].message_forwarding:
            continue
        for route in rows.routes:
            if route.database == MSDB and route.key in setting.taken[instance] and route.address != LOCAL:
                yield about_route(
                    "SSB016",
                    instance,
                    route,
                    f"leads what comes from outside to {route.address}, and forwarding is off",
                    "ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED); or drop the route.",
                )


def dynamic_routing(setting: CheckContext) -> Iterator[Finding]:
    """Local services that dynamic routing stands before."""
    for instance, rows in setting.rows.items():
        behaviour = setting.ways.at(instance)
        asking = {
            route.database: route
            for route in rows.routes
            if route.service == BROKER_CONFIGURATION and setting.is_live(route)
        }
        for database, route in asking.items():
            hidden = [
                service
                for service, hosts in rows.hosts.items()
                if any(rows.databases[host].enabled for host in hosts)
                and any(answer.reason == "route_requested" for answer in behaviour.begun(database, service))
            ]
            if hidden:
                told = ", ".join([*map(name, hidden[:_NAMED_MAX]), *(["..."] if len(hidden) > _NAMED_MAX else [])])
                yield about_route(
                    "SSB015",
                    instance,
                    route,
                    f"hides {len(hidden)} service{'s' if len(hidden) > 1 else ''} of this instance: {told}",
                    f"For each, USE {bracketed(database)}; CREATE ROUTE <name> WITH SERVICE_NAME = N'<service>', ADDRESS = N'LOCAL';",
                )


def _held_addresses(rows: Tables) -> frozenset[str]:
    """The names, among those of routes to TRANSPORT, that hold an address: as the router reads them."""
    names = sorted({route.service for route in rows.routes if route.address == TRANSPORT and route.service is not None})
    if not names:
        return frozenset()
    transport = dict.fromkeys(schemas.ROUTES.names) | {
        "database": "one",
        "name": "all",
        "route_id": 1,
        "address": TRANSPORT,
    }
    router = Router(Catalog(pa.Table.from_pylist([transport], schema=_NULLABLE)), tie_break="first")
    asked = pa.record_batch(
        {
            "database": pa.array(["one"] * len(names), pa.string()),
            "to_service_name": pa.array(names, pa.string()),
            "to_broker_instance": pa.nulls(len(names), pa.binary(16)),
        }
    )
    hops = router.route(asked)["next_hop_address"].to_pylist()
    return frozenset(service for service, hop in zip(names, hops, strict=True) if hop is not None)


def _hosts_anything(rows: Tables) -> bool:
    return any(rows.databases[database].enabled for database in rows.services)


def _located(rows: Tables, service: str, broker: bytes | None) -> bool:
    return any(
        rows.databases[host].enabled and (broker is None or rows.databases[host].broker == broker)
        for host in rows.hosts.get(service, ())
    )


def _same(route: RouteRow) -> tuple[str, str | None, bytes | None, str, bool]:
    return route.database, route.service, route.broker, route.address, route.mirror is not None


def _firsts(setting: CheckContext, rows: Tables) -> dict[tuple[str, str | None, bytes | None, str, bool], RouteRow]:
    """Of the live routes that say the same, the one that stands for all."""
    found: dict[tuple[str, str | None, bytes | None, str, bool], RouteRow] = {}
    for route in sorted(rows.routes, key=lambda route: route.route_id):
        if setting.is_live(route):
            found.setdefault(_same(route), route)
    return found


def _alter(route: RouteRow) -> str:
    return f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH"


def _drop(route: RouteRow) -> str:
    return f"USE {bracketed(route.database)}; DROP ROUTE {bracketed(route.name)};"


EXPIRES_WITHIN: Final = timedelta(days=30)
_CHECKS: Final[tuple[Callable[[CheckContext], Iterator[Finding]], ...]] = (
    dead_routes,
    expiring_routes,
    wildcards,
    own_addresses,
    mirrors,
    forwarding,
    dynamic_routing,
    broker_ids,
    stale_ids,
    delivery_off,
    near_names,
    circles,
    unknown_hops,
    services,
)


@without_collector
def lint(
    fleet: Fleet | Catalog,
    *,
    at: datetime | None = None,
    expires_within: timedelta = EXPIRES_WITHIN,
    ignore: Sequence[str] | AbstractSet[str] = (),
) -> Findings:
    """Finds what is wrong with the routing tables, databases and services of a fleet.

    That a route is never taken, or shadowed, is the router's own answer: no conversation over the names and ids in play takes it.

    Args:
        fleet: The instances, or one.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        expires_within: What expires within this time is reported beforehand.
        ignore: Codes that are not reported.

    Returns:
        The findings, the worst first.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is no datetime, `expires_within` is no time from now on, or a code is none.

    Examples:
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import lint
        >>> import pyarrow as pa
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["LOCAL"], "mirror_address": [None]}
        >>> [str(finding) for finding in lint(Catalog(pa.table(routes)))]
        ['SSB008 error: instance/Sales/route "Orders": goes to LOCAL, and no database here has "//Orders"']
    """
    within: object = expires_within
    if not isinstance(within, timedelta) or within < timedelta(0):
        raise OptionError(f"expires_within: expected a timedelta of 0 or more, got {expires_within!r}")
    unknown = sorted(
        {*string_list([*ignore] if isinstance(ignore, AbstractSet) else ignore, name="ignore")} - CODES.keys()
    )
    if unknown:
        raise OptionError(f"ignore: {unknown[0]!r} is no code; expected one of {', '.join(CODES)}")
    now = utc_datetime(at)
    try:
        until = now + expires_within
    except OverflowError:
        until = datetime.max.replace(tzinfo=now.tzinfo)
    setting = CheckContext(fleet=Fleet.of(fleet), now=now, until=until)
    return Findings([finding for check in _CHECKS for finding in check(setting) if finding.code not in ignore])
