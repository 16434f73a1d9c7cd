"""Assumes broker ids for databases whose id the catalogs do not state, so that an unknown id does not count as a different id."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from ssbroker import schemas
from ssbroker.catalog.catalog import Catalog
from ssbroker.ddl.system_objects import SYSTEM_DATABASES
from ssbroker.diagnose.catalog_rows import Tables, read_tables, with_databases
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.reached_instances import ReachedInstances

Location = tuple[str, str]
"""An instance and a database."""
_NAMESPACE: Final = uuid.UUID("73736272-6f6b-4572-8000-617373756d65")


class AssumedBrokerIds:
    """A fleet in which every database has a broker id.

    A database with an unknown id gets the id that most routes to its services name, directly or through forwarders. The
    id must not belong to another database, and NEW_BROKER must not have replaced it in this database. If there is no
    such id, the database gets a new id. If two databases qualify for an id, the first in the order of the fleet gets
    it. Replicas of a database in an availability group have the same id. In SQL Server, every database has an id, by
    which a reply finds its database.

    Attributes:
        given: The fleet without the assumed ids.
        fleet: The fleet with all ids.
        databases: The instances and databases whose ids are assumed.
    """

    def __init__(self, fleet: Fleet) -> None:
        assumed: dict[Location, bytes] = {}
        if any(catalog.databases["service_broker_guid"].null_count for catalog in fleet.values()):
            assumed = _assumed_ids(fleet)
        self.given: Final = fleet
        self.databases: Final = frozenset(assumed)
        self.fleet: Final = _with_ids(fleet, assumed)

    def for_conversation(self, service: str, broker: bytes | None) -> Fleet:
        """Returns the fleet for a conversation that names a broker id.

        If no database of `fleet` has the id, one database of each instance gets it: the first with the service whose id
        is assumed, and in which NEW_BROKER has not replaced the named id.
        """
        if broker is None or broker in self._used or service not in self._hosts:
            return self.fleet
        ids: dict[Location, bytes] = {}
        for instance, database in self._hosts[service]:
            is_former = broker in self.fleet[instance].details.former_broker_ids.get(database, ())
            if not is_former and all(other != instance for other, _ in ids):
                ids[instance, database] = broker
        return _with_ids(self.fleet, ids)

    @cached_property
    def _used(self) -> frozenset[bytes]:
        columns = (catalog.databases["service_broker_guid"] for catalog in self.fleet.values())
        return frozenset(broker for column in columns for broker in column.to_pylist() if broker is not None)

    @cached_property
    def _hosts(self) -> dict[str, list[Location]]:
        """For each service, the databases that have it and whose ids are assumed; databases that are enabled in any instance come first."""
        found: defaultdict[str, list[Location]] = defaultdict(list)
        enabled: set[str] = set()
        instances = {instance for instance, _ in self.databases}
        for instance in self.fleet:
            if instance not in instances:
                continue
            tables = read_tables(self.fleet[instance])
            enabled.update(name for name, row in tables.databases.items() if row.enabled)
            for service, hosts in tables.hosts.items():
                for host in hosts:
                    if (instance, host) in self.databases:
                        found[service].append((instance, host))
        return {service: sorted(hosts, key=lambda host: host[1] not in enabled) for service, hosts in found.items()}


def assumed_ids_of(fleet: Fleet) -> AssumedBrokerIds:
    """Returns the assumed ids of a fleet. The result is kept, because computing it takes longer than a trace."""
    kept: AssumedBrokerIds | None = fleet._assumed_ids  # noqa: SLF001 - the fleet keeps it for this function
    if kept is None:
        kept = fleet._assumed_ids = AssumedBrokerIds(fleet)  # noqa: SLF001
    return kept


def _assumed_ids(fleet: Fleet) -> dict[Location, bytes]:
    """Returns an id for each database whose id is unknown."""
    tables = {instance: read_tables(catalog) for instance, catalog in fleet.items()}
    known = {row.broker for each in tables.values() for row in each.databases.values() if row.broker is not None}
    named = _named_ids(fleet, tables, known)
    assumed: dict[Location, bytes] = {}
    used = set(known)
    for replicas in _replicas(fleet, tables):
        unknown = [each for each in replicas if tables[each[0]].databases[each[1]].broker is None]
        if not unknown:
            continue
        specified = [
            broker for instance, database in replicas if (broker := tables[instance].databases[database].broker)
        ]
        counts: Counter[bytes] = sum((named[each] for each in unknown), Counter())
        candidates = [broker for broker, _ in counts.most_common() if broker not in used]
        new = uuid.uuid5(_NAMESPACE, "\n".join(unknown[0])).bytes
        broker = (*specified, *candidates, new)[0]
        used.add(broker)
        assumed |= dict.fromkeys(unknown, broker)
    return assumed


def _replicas(fleet: Fleet, tables: dict[str, Tables]) -> Iterator[list[Location]]:
    """Yields every database; those of availability groups together with their replicas, which have the same name and services."""
    found: defaultdict[tuple[str, str, frozenset[str]], list[Location]] = defaultdict(list)
    roles = fleet.roles
    for instance, each in tables.items():
        sharing = map(fleet.at, fleet[instance].addresses) if roles.get(instance) == "secondary" else ()
        primary = next((other for other in sharing if other not in (None, instance)), instance)
        for database in each.databases:
            services = frozenset(each.services.get(database, ()))
            is_alone = not services or database in SYSTEM_DATABASES
            found[instance if is_alone else str(primary), database, services].append((instance, database))
    yield from found.values()


def _named_ids(fleet: Fleet, tables: dict[str, Tables], known: set[bytes]) -> defaultdict[Location, Counter[bytes]]:
    """Counts, for each database of each instance, the broker ids in routes to its services that no database is known to have."""
    found: defaultdict[Location, Counter[bytes]] = defaultdict(Counter)
    targets = ReachedInstances(fleet, tables)
    for instance, each in tables.items():
        for route in each.routes:
            if route.service is None or route.broker is None or route.broker in known:
                continue
            for target in targets.of(instance, route, with_mirror=True):
                former = fleet[target].details.former_broker_ids
                for host in tables[target].hosts[route.service]:
                    if route.broker not in former.get(host, ()):
                        found[target, host][route.broker] += 1
    return found


def _with_ids(fleet: Fleet, ids: Mapping[Location, bytes]) -> Fleet:
    """Returns the fleet with other broker ids of some databases; catalogs without such databases are the same objects."""
    by_instance: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    for (instance, database), broker in ids.items():
        by_instance[instance][database] = broker
    changed = {instance: _catalog_with_ids(fleet[instance], each) for instance, each in by_instance.items()}
    return Fleet({**fleet, **changed}) if changed else fleet


def _catalog_with_ids(catalog: Catalog, ids: Mapping[str, bytes]) -> Catalog:
    rows: list[dict[str, Any]] = catalog.databases.select(schemas.DATABASES.names).to_pylist()
    for row in rows:
        row["service_broker_guid"] = ids.get(row["name"], row["service_broker_guid"])
    return with_databases(catalog, rows)
