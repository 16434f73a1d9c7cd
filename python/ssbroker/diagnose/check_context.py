"""The input of all checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from ssbroker.ddl.system_objects import SYSTEM_DATABASES
from ssbroker.diagnose.all_decisions import used_routes_of
from ssbroker.diagnose.catalog_rows import FleetRoute, Tables
from ssbroker.diagnose.fleet import LOOPBACK, Fleet, after_failover
from ssbroker.diagnose.known_addresses import KnownAddresses
from ssbroker.diagnose.remedies import TO_LOCAL, RouteDestination
from ssbroker.diagnose.routing_graph import RoutingGraph
from ssbroker.diagnose.routing_loops import Loop, find_loops


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
    """A context with the same instances except those in `changed`; its computed results are reused."""
    changed: frozenset[str] = frozenset()

    @cached_property
    def tables(self) -> dict[str, Tables]:
        """The tables of each instance."""
        return {name: behaviour.tables for name, behaviour in self.graph.behaviours.items()}

    @cached_property
    def used_routes(self) -> Mapping[str, set[tuple[str, int]]]:
        """The routes of each instance that at least one conversation uses."""
        shared = {} if self.base is None else self.base.used_routes
        return {
            name: shared[name]
            if name in shared and name not in self.changed
            else used_routes_of(self.fleet[name], behaviour)
            for name, behaviour in self.graph.behaviours.items()
        }

    @cached_property
    def graph(self) -> RoutingGraph:
        """All routing paths through the fleet. Stopped endpoints and disabled queues are ignored, because other checks report them."""
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

    def after_failover(self, replica: str) -> CheckContext:
        """Returns the context after a failover of the availability groups of a replica to this replica."""
        fleet = after_failover(self.fleet, replica)
        changed = frozenset(name for name, catalog in fleet.items() if catalog is not self.fleet[name])
        return replace(self, fleet=fleet, base=self, changed=changed)

    def is_live(self, route: FleetRoute) -> bool:
        """Returns whether the route has not expired."""
        return route.is_live(self.now)

    @cached_property
    def addresses(self) -> KnownAddresses:
        """The addresses of the instances."""
        return KnownAddresses(self.fleet)

    def may_lead_to_unknown(self, instance: str, route: FleetRoute) -> bool:
        """Returns whether a route leads to an address that no instance has, while the address of at least one instance is not known."""
        return bool(self.addresses.unknown) and self.fleet.at(route.address, seen_from=instance) is None

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
        """Returns whether a broker id that no database is known to have certainly does not belong to the given database."""
        former = self.fleet[instance].details.former_broker_ids.get(database, ())
        return (instance, database) not in self.assumed or broker in former

    def accepts(self, instance: str, database: str, service: str) -> bool:
        """Returns whether conversations with a service can be started, as far as known."""
        details = self.fleet[instance].details.services.get((database, service))
        return details is None or details.accepts_conversations

    def destination(self, instance: str, database: str, *, seen_from: str) -> RouteDestination | None:
        """Returns the destination of a route by which one instance reaches a database of another instance, even after a failover.

        None if an address is not known, or if a mirrored route needs a broker id that is not known.
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
        """Yields the distinct known destinations of databases, except destinations with the address `besides`."""
        for each in dict.fromkeys(self.destination(*host, seen_from=seen_from) for host in hosts):
            if each is not None and each.address != besides:
                yield each

    @cached_property
    def _shared_addresses(self) -> frozenset[str]:
        """The listener addresses of availability groups, which all replicas share."""
        counts = Counter(address for catalog in self.fleet.values() for address in set(catalog.addresses))
        return frozenset(address for address, count in counts.items() if count > 1 and not LOOPBACK.match(address))

    def address_of(self, instance: str) -> str | None:
        """Returns the address by which other instances reach an instance; None if no address is known."""
        return next(iter(self.addresses.of(instance)), None)
