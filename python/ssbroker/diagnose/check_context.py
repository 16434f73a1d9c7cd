"""The input of all checks, and helpers that create problems."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import tee
from typing import Final, NamedTuple, Self

from ssbroker._text import bracketed, quoted, restore_spaces, route_name, shortened_list, string_literal
from ssbroker.ddl.system_objects import SYSTEM_DATABASES
from ssbroker.diagnose.all_decisions import used_routes_of
from ssbroker.diagnose.catalog_rows import LOCAL, MSDB, FleetRoute, Tables
from ssbroker.diagnose.findings import CODES, Finding, Severity, Subject
from ssbroker.diagnose.fleet import LOOPBACK, Fleet
from ssbroker.diagnose.known_addresses import LISTED_MAX, KnownAddresses
from ssbroker.diagnose.routing_graph import RoutingGraph
from ssbroker.diagnose.routing_loops import Loop, find_loops
from ssbroker.diagnose.scripts_on_copies import drop_route_named


class Step(NamedTuple):
    """A script for one instance."""

    instance: str
    script: str


Candidate = tuple[Step, ...]
"""A possible remedy."""


class Concern(NamedTuple):
    """A conversation that must be delivered after a remedy."""

    instance: str
    database: str | None
    """Where it starts; None if it arrives at the instance from outside."""
    service: str

    @classmethod
    def of_table(cls, instance: str, table: str, service: str) -> Self:
        """Returns the conversation that the routes of a database route: those of msdb route what arrives from outside."""
        return cls(instance, None if table == MSDB else table, service)


class RouteDestination(NamedTuple):
    """Where a route must lead to reach a database."""

    address: str
    mirror: str | None = None
    broker: bytes | None = None
    """The broker id; a mirrored route needs it."""

    @property
    def clauses(self) -> str:
        """The clauses of ALTER ROUTE."""
        addresses = ("ADDRESS", self.address), ("MIRROR_ADDRESS", self.mirror)
        clauses = [f"{name} = {string_literal(value)}" for name, value in addresses if value is not None]
        return ", ".join(clauses if self.broker is None else [broker_clause(self.broker), *clauses])


TO_LOCAL: Final = RouteDestination(LOCAL)


class Candidates:
    """The possible remedies of a problem, the best first; each is made when it is first needed, since few are tried."""

    def __init__(self, instance: str, given: Iterable[str | Candidate]) -> None:
        made = (_restored((Step(instance, each),) if isinstance(each, str) else each) for each in given)
        (self._from_first,) = tee(made, 1)

    def __iter__(self) -> Iterator[Candidate]:
        return copy(self._from_first)


def _restored(candidate: Candidate) -> Candidate:
    return tuple(Step(instance, restore_spaces(script)) for instance, script in candidate)


class Problem(NamedTuple):
    """A finding without a remedy, the possible remedies, and what they must achieve."""

    finding: Finding
    """Its `remedy` is the advice if no candidate is proven."""
    candidates: Iterable[Candidate] = ()
    concerns: Sequence[Concern] = ()


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """A fleet at a point in time."""

    fleet: Fleet
    now: datetime
    until: datetime
    """Routes that expire before this time are reported in advance."""
    assumed: frozenset[tuple[str, str]] = frozenset()
    """The instances and databases whose broker ids are assumed, because their source does not contain them."""
    base: CheckContext | None = None
    """A context whose instances are the same but for `changed`; what it has computed is used again."""
    changed: frozenset[str] = frozenset()

    @cached_property
    def tables(self) -> dict[str, Tables]:
        """The tables of each instance."""
        return {name: behaviour.tables for name, behaviour in self.graph.behaviours.items()}

    @cached_property
    def used_routes(self) -> Mapping[str, set[tuple[str, int]]]:
        """The routes of each instance that some conversation uses."""
        shared = {} if self.base is None else self.base.used_routes
        return {
            name: shared[name]
            if name in shared and name not in self.changed
            else used_routes_of(self.fleet[name], behaviour)
            for name, behaviour in self.graph.behaviours.items()
        }

    @cached_property
    def graph(self) -> RoutingGraph:
        """All routing paths through the fleet; that an endpoint is stopped or a queue disabled is a finding of its own."""
        kept = (
            {}
            if self.base is None
            else {name: each for name, each in self.base.graph.behaviours.items() if name not in self.changed}
        )
        return RoutingGraph(self.fleet, now=self.now, behaviours=kept, ignores_states=True)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The loops between instances."""
        return find_loops(self.graph)

    @cached_property
    def mirrored(self) -> frozenset[tuple[str, str]]:
        """The instances and databases that are partners of a mirrored pair, or replicas of an availability group."""
        found = {
            (instance, database)
            for instance, catalog in self.fleet.items()
            for database in catalog.details.mirroring_roles
        }
        for instance, tables in self.tables.items():
            for route in tables.routes:
                if route.mirror is None or route.broker is None:
                    continue
                partners = [self.fleet.at(each, seen_from=instance) for each in (route.address, route.mirror)]
                found |= {
                    (partner, database)
                    for partner in partners
                    if partner is not None
                    for database, row in self.tables[partner].databases.items()
                    if row.broker == route.broker
                }
        replicas = self.fleet.roles
        names = {database for instance in replicas for database in self.tables[instance].databases}
        for database in names - SYSTEM_DATABASES:
            holders = [instance for instance in replicas if database in self.tables[instance].databases]
            if len(holders) > 1:
                found |= {(instance, database) for instance in holders}
        return frozenset(found)

    def is_live(self, route: FleetRoute) -> bool:
        """Returns whether the route has not expired."""
        return route.is_live(self.now)

    @cached_property
    def addresses(self) -> KnownAddresses:
        """The addresses of the instances."""
        return KnownAddresses(self.fleet)

    def may_lead_to_unstated(self, instance: str, route: FleetRoute) -> bool:
        """Returns whether a route leads to an address that no instance has, while the address of some instance is not stated."""
        return bool(self.addresses.unstated) and self.fleet.at(route.address, seen_from=instance) is None

    def hosts(self, service: str) -> list[tuple[str, str]]:
        """Returns the instances and databases that have a service, enabled or not."""
        return [
            (instance, database)
            for instance, tables in self.tables.items()
            for database in tables.hosts.get(service, ())
        ]

    def enabled_hosts(self, service: str) -> list[tuple[str, str]]:
        """Returns the instances and enabled databases that have a service."""
        return [
            (instance, database)
            for instance, database in self.hosts(service)
            if self.tables[instance].databases[database].enabled
        ]

    def broker_id(self, instance: str, database: str) -> bytes | None:
        """Returns the broker id of a database; None if it is only assumed."""
        return None if (instance, database) in self.assumed else self.tables[instance].databases[database].broker

    def is_former_id(self, broker: bytes, instance: str, database: str) -> bool:
        """Returns whether a database certainly does not have an id that no database is known to have."""
        former = self.fleet[instance].details.former_broker_ids.get(database, ())
        return (instance, database) not in self.assumed or broker in former

    def accepts(self, instance: str, database: str, service: str) -> bool:
        """Returns whether conversations with a service can be started, as far as that is known."""
        details = self.fleet[instance].details.services.get((database, service))
        return details is None or details.accepts_conversations

    def destination(self, instance: str, database: str, *, seen_from: str) -> RouteDestination | None:
        """Returns where a route of one instance must lead to reach a database of another, also after a failover.

        None if an address is not known, or the broker id that a mirrored route needs.
        """
        if instance == seen_from:
            return TO_LOCAL
        if (instance, database) not in self.mirrored:
            own = self.addresses.of(instance)
            return next((RouteDestination(each) for each in sorted(own, key=self._shared_addresses.__contains__)), None)
        if instance in self.fleet.roles:
            known = self._shared_addresses.intersection(self.fleet[instance].addresses)
            listener = min(known.difference(self.fleet[seen_from].addresses), default=None)
            return None if listener is None else RouteDestination(listener)
        broker = self.broker_id(instance, database)
        addresses = [
            self.address_of(each)
            for each in (
                instance,
                *(other for other, name in sorted(self.mirrored) if name == database and other != instance),
            )
            if (row := self.tables[each].databases.get(database)) is not None and row.broker == broker
        ]
        match broker, addresses:
            case bytes(), [str(address), str(mirror)]:
                return RouteDestination(address, mirror, broker)
        return None

    def destinations(
        self, hosts: Iterable[tuple[str, str]], *, seen_from: str, besides: str | None = None
    ) -> Iterator[RouteDestination]:
        """Yields the known destinations of databases, each once, except those with the address `besides`."""
        for each in dict.fromkeys(self.destination(*host, seen_from=seen_from) for host in hosts):
            if each is not None and each.address != besides:
                yield each

    @cached_property
    def _shared_addresses(self) -> frozenset[str]:
        """The addresses of the listeners of availability groups, which all replicas have."""
        counts = Counter(address for catalog in self.fleet.values() for address in set(catalog.addresses))
        return frozenset(address for address, count in counts.items() if count > 1 and not LOOPBACK.match(address))

    def address_of(self, instance: str) -> str | None:
        """Returns the address by which other instances reach an instance; None if no address is known."""
        return next(iter(self.addresses.of(instance)), None)


def route_problem(
    code: str,
    instance: str,
    route: FleetRoute,
    message: str,
    advice: str,
    *,
    services: Iterable[str] = (),
    related: Sequence[FleetRoute | str] = (),
    severity: Severity | None = None,
    candidates: Iterable[str | Candidate] = (),
    concerns: Sequence[Concern] | None = None,
) -> Problem:
    """Creates a problem of a route, which affects the route's service and other `services`; by default it concerns the conversations for it."""
    finding = Finding(
        code=code,
        severity=severity or CODES[code].severity,
        instance=instance,
        database=route.database,
        subject=Subject("route", route.name),
        route_id=route.route_id,
        services=(*services, *([] if route.service is None else [route.service])),
        message=restore_spaces(message),
        remedy=restore_spaces(advice),
        related=tuple(other if isinstance(other, str) else qualified_route(instance, other) for other in related),
    )
    if concerns is None:
        concerns = [] if route.service is None else [Concern.of_table(instance, route.database, route.service)]
    return Problem(finding, Candidates(instance, candidates), concerns)


def problem_about(
    code: str,
    subject: Subject,
    message: str,
    advice: str,
    *,
    instance: str | None = None,
    database: str | None = None,
    services: Iterable[str] = (),
    loop: tuple[str, ...] = (),
    related: Sequence[str] = (),
    severity: Severity | None = None,
    candidates: Iterable[str | Candidate] = (),
    concerns: Sequence[Concern] = (),
) -> Problem:
    """Creates a problem of another object, which affects `services`, and the object if it is one."""
    finding = Finding(
        code=code,
        severity=severity or CODES[code].severity,
        instance=instance,
        database=database,
        subject=subject,
        services=(*services, *([subject.name] if subject.kind == "service" and subject.name is not None else [])),
        loop=loop,
        message=restore_spaces(message),
        remedy=restore_spaces(advice),
        related=tuple(related),
    )
    return Problem(finding, Candidates(instance or "", candidates), concerns)


def listed_names(names: Iterable[str]) -> list[str]:
    """Returns the first names in quotation marks, followed by `...` if there are more."""
    return shortened_list(map(quoted_name, names), LISTED_MAX)


def quoted_name(text: str) -> str:
    """Returns a name in quotation marks, safe for a terminal."""
    return restore_spaces(quoted(text))


def qualified_route(instance: str, route: FleetRoute) -> str:
    """Returns instance, database, id and name of a route."""
    return f"{instance}/{route.database}/{restore_spaces(route_name({'route_id': route.route_id, 'name': route.name}))}"


def broker_clause(broker: bytes) -> str:
    """Returns the clause of a route that names a broker id."""
    return f"BROKER_INSTANCE = N'{uuid.UUID(bytes=broker)}'"


def alter_route(route: FleetRoute, clauses: str) -> str:
    """Returns the statements that change a route."""
    return f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH {clauses};"


def drop_route(route: FleetRoute) -> str:
    """Returns the statements that drop a route."""
    return drop_route_named(route.database, route.name)


def new_route(
    tables: Tables,
    database: str,
    *,
    service: str | None,
    reserved: set[str],
    destination: RouteDestination = TO_LOCAL,
) -> str:
    """Returns the statements that create a route, under a name that the table does not have.

    `reserved` are the names of the routes that the same candidate creates in this table; the name is added to them.
    """
    taken = tables.route_names.get(database, set()) | reserved
    address = destination.address
    wanted = "AutoCreatedLocal" if service is None and address == LOCAL else (service or "AllServices").strip("/")
    wanted = wanted.rpartition("/")[2] or "Route"
    name, number = wanted, 1
    while name.casefold() in taken:
        number += 1
        name = f"{wanted} {number}"
    reserved.add(name.casefold())
    clauses = "" if service is None else f"SERVICE_NAME = {string_literal(service)}, "
    return f"USE {bracketed(database)}; CREATE ROUTE {bracketed(name)} WITH {clauses}{destination.clauses};"


def local_routes(instance: str, tables: Tables, database: str, services: Iterable[str | None]) -> Candidate:
    """Returns the steps that create a route to LOCAL for each service; None is the route for all services."""
    reserved: set[str] = set()
    return tuple(Step(instance, new_route(tables, database, service=each, reserved=reserved)) for each in services)
