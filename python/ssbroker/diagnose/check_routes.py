"""Findings about one route, or one routing table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker.catalog import Catalog
from ssbroker.diagnose.findings import Finding
from ssbroker.diagnose.picks import preferred
from ssbroker.diagnose.setting import Setting, about_route, name
from ssbroker.diagnose.tables import BROKER_CONFIGURATION, LOCAL, MSDB, TRANSPORT, RouteRow, Tables
from ssbroker.routing import Router
from ssbroker.wording import bracketed

_NAMED_MAX: Final = 3
_NULLABLE: Final = pa.schema([field.with_nullable(nullable=True) for field in schemas.ROUTES])


def dead_routes(setting: Setting) -> Iterator[Finding]:
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


def _moment(setting: Setting, lifetime: datetime) -> str:
    days = abs(setting.now - lifetime).days
    when = "ago" if lifetime <= setting.now else "from now"
    distance = "less than a day" if days == 0 else f"{days} day{'' if days == 1 else 's'}"
    return f"{lifetime:%Y-%m-%d %H:%M:%S} UTC, {distance} {when}"


def expiring_routes(setting: Setting) -> Iterator[Finding]:
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


def wildcards(setting: Setting) -> Iterator[Finding]:
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


def own_addresses(setting: Setting) -> Iterator[Finding]:
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


def mirrors(setting: Setting) -> Iterator[Finding]:
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


def forwarding(setting: Setting) -> Iterator[Finding]:
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


def dynamic_routing(setting: Setting) -> Iterator[Finding]:
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


def _firsts(setting: Setting, rows: Tables) -> dict[tuple[str, str | None, bytes | None, str, bool], RouteRow]:
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
