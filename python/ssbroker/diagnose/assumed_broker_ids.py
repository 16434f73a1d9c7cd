"""Assumes broker ids for databases whose id a script cannot contain, so that an unknown id does not count as a different id."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from typing import Any, Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.catalog_rows import Tables, read_tables
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.reached_instances import ReachedInstances

_NAMESPACE: Final = uuid.UUID("73736272-6f6b-4572-8000-617373756d65")


class AssumedBrokerIds:
    """A fleet in which every database has a broker id.

    A database with an unknown id gets the id that most routes to its services name, directly or through forwarders. The
    id must not belong to another database, and NEW_BROKER must not have replaced it in this database. If there is no
    such id, the database gets a new id. If two databases qualify for an id, the first in the order of the fleet gets
    it. In SQL Server, every database has an id, by which a reply finds its database.

    Attributes:
        fleet: The fleet with all ids.
        databases: The instances and databases whose ids are assumed.
    """

    def __init__(self, fleet: Fleet) -> None:
        assumed: dict[tuple[str, str], bytes] = {}
        if any(catalog.databases["service_broker_guid"].null_count for catalog in fleet.values()):
            assumed = _assumed_ids(fleet)
        self.databases: Final = frozenset(assumed)
        self.fleet: Final = (
            Fleet({instance: _with_ids(catalog, instance, assumed) for instance, catalog in fleet.items()})
            if assumed
            else fleet
        )


def with_assumed_ids(fleet: Fleet) -> Fleet:
    """Returns the `AssumedBrokerIds.fleet` of a fleet. The result is kept, because computing it takes longer than a trace."""
    kept = fleet._with_ids  # noqa: SLF001 - the fleet keeps it for this function
    if kept is None:
        kept = fleet._with_ids = AssumedBrokerIds(fleet).fleet  # noqa: SLF001
    return kept


def _assumed_ids(fleet: Fleet) -> dict[tuple[str, str], bytes]:
    """Returns an id for each database whose id is unknown."""
    tables = {instance: read_tables(catalog) for instance, catalog in fleet.items()}
    known = {row.broker for each in tables.values() for row in each.databases.values() if row.broker is not None}
    named = _named_ids(fleet, tables, known)
    assumed: dict[tuple[str, str], bytes] = {}
    used = set(known)
    for instance, each in tables.items():
        for database, row in each.databases.items():
            if row.broker is not None:
                continue
            candidates = [broker for broker, _ in named[instance, database].most_common() if broker not in used]
            new = uuid.uuid5(_NAMESPACE, f"{instance}\n{database}").bytes
            assumed[instance, database] = broker = candidates[0] if candidates else new
            used.add(broker)
    return assumed


def _named_ids(
    fleet: Fleet, tables: dict[str, Tables], known: set[bytes]
) -> defaultdict[tuple[str, str], Counter[bytes]]:
    """Counts, for each database of each instance, the broker ids in routes to its services that no database is known to have."""
    found: defaultdict[tuple[str, str], Counter[bytes]] = defaultdict(Counter)
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


def _with_ids(catalog: Catalog, instance: str, assumed: dict[tuple[str, str], bytes]) -> Catalog:
    rows: list[dict[str, Any]] = catalog.databases.select(schemas.DATABASES.names).to_pylist()
    for row in rows:
        if row["service_broker_guid"] is None:
            row["service_broker_guid"] = assumed[instance, row["name"]]
    return Catalog(
        catalog.routes,
        pa.Table.from_pylist(rows, schema=schemas.DATABASES),
        catalog.services,
        addresses=catalog.addresses,
        message_forwarding=catalog.message_forwarding,
        pending_requests=catalog.pending_requests,
    ).with_details(catalog.details)
