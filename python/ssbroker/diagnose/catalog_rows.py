"""The routes, databases and services of a catalog as Python values."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas
from ssbroker.catalog.catalog import Catalog
from ssbroker.ddl.system_objects import SYSTEM_SERVICES

pc: Any = pyarrow.compute  # its stubs lack dictionary encoding


def dictionary_encoded(column: Any) -> tuple[list[int], list[Any]]:
    """Returns the index of each value among the distinct values, and the distinct values followed by None, so that the index -1 means null.

    Examples:
        >>> dictionary_encoded(pa.array(["b", None, "a", "b"]))
        ([0, -1, 1, 0], ['b', 'a', None])
    """
    dictionary = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    indices = pc.cast(pc.fill_null(dictionary.indices, -1), pa.int32())
    first = indices.offset
    numbers = memoryview(indices.buffers()[1]).cast("i")[first : first + len(indices)].tolist()
    return numbers, [*dictionary.dictionary.to_pylist(), None]


def interned(column: Any) -> list[Any]:
    """Returns the values of an array; equal strings are one object, also across arrays."""
    numbers, values = dictionary_encoded(column)
    interned_words = [sys.intern(word) if isinstance(word, str) else word for word in values]
    return list(map(interned_words.__getitem__, numbers))


MSDB: Final = "msdb"
LOCAL: Final = "LOCAL"
TRANSPORT: Final = "TRANSPORT"


class FleetRoute(NamedTuple):
    """A row of `sys.routes`."""

    database: str
    """The database whose routing table contains the route."""
    route_id: int
    name: str
    service: str | None
    broker: bytes | None
    lifetime: datetime | None
    address: str
    """The address, in normal form."""
    mirror: str | None
    """The mirror address, in normal form."""

    @property
    def key(self) -> tuple[str, int]:
        """The key of the route within its instance."""
        return self.database, self.route_id

    def is_live(self, now: datetime) -> bool:
        """Returns whether the route has not expired at a time."""
        return self.lifetime is None or self.lifetime > now


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetDatabase:
    """A row of `sys.databases`."""

    name: str
    broker: bytes | None
    enabled: bool


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of an instance."""

    routes: tuple[FleetRoute, ...]
    databases: dict[str, FleetDatabase]
    services: dict[str, tuple[str, ...]]
    """The distinct services of each database that has any."""

    @cached_property
    def hosts(self) -> dict[str, list[str]]:
        """For each service, the databases that have it, enabled or not."""
        found: dict[str, list[str]] = defaultdict(list)
        for database, names in self.services.items():
            for name in names:
                found[name].append(database)
        return dict(found)

    @cached_property
    def route_names(self) -> dict[str, set[str]]:
        """The names of the routes in each database, case-folded."""
        found: dict[str, set[str]] = defaultdict(set)
        for route in self.routes:
            found[route.database].add(route.name.casefold())
        return dict(found)


_ROUTE_COLUMNS: Final = (
    "database",
    "route_id",
    "name",
    "remote_service_name",
    "broker_instance",
    "lifetime",
    "address",
    "mirror_address",
)
"""The columns that correspond to the fields of `FleetRoute`."""
_NOT_INTERNED: Final = ("route_id", "name")


def read_tables(catalog: Catalog, normalized: dict[str, str] | None = None) -> Tables:
    """Reads the tables of a catalog.

    `normalized` caches the normal forms of addresses across catalogs.
    """
    normalized = {} if normalized is None else normalized
    routes_table = catalog.routes
    columns = {name: _column(routes_table, name) for name in _ROUTE_COLUMNS}
    addresses, mirrors = columns["address"], columns["mirror_address"]
    normalized.update(
        normalize_addresses(each for each in {*addresses, *mirrors} if each is not None and each not in normalized)
    )
    columns |= {"address": list(map(normalized.get, addresses)), "mirror_address": list(map(normalized.get, mirrors))}
    routes = tuple(map(FleetRoute._make, zip(*columns.values(), strict=True)))
    services: dict[str, dict[str, None]] = defaultdict(dict)
    for database, name in zip(*(_column(catalog.services, name) for name in schemas.SERVICES.names), strict=True):
        services[database][name] = None
    return Tables(
        routes=routes,
        databases={
            row["name"]: FleetDatabase(
                name=row["name"], broker=row["service_broker_guid"], enabled=row["is_broker_enabled"]
            )
            for row in catalog.databases.select(schemas.DATABASES.names).to_pylist()
        },
        services={database: tuple(names) for database, names in services.items()},
    )


def lacks_msdb(catalog: Catalog) -> bool:
    """Returns whether a catalog was created from tables without `msdb`, which every SQL Server has."""
    rows = catalog.databases.select(["name", "service_broker_guid"]).to_pylist()
    has_id = any(row["name"] == MSDB and row["service_broker_guid"] is not None for row in rows)
    return catalog.script is None and not has_id and MSDB not in pc.unique(catalog.routes["database"]).to_pylist()


EXPORT_MSDB: Final = "export the rows of sys.routes in msdb too; AutoCreatedLocal is one of them, unless it was dropped"
"""What to do about tables without `msdb`."""


def without_system_services(catalog: Catalog) -> Catalog:
    """Returns a catalog without the services that every database of SQL Server has; the catalog itself if it lists none of them."""
    is_system = pc.is_in(pc.cast(catalog.services["name"], pa.string()), value_set=pa.array([*SYSTEM_SERVICES]))
    if not pc.any(is_system).as_py():
        return catalog
    return catalog.replace(services=catalog.services.filter(pc.invert(is_system)))


def with_databases(catalog: Catalog, rows: list[dict[str, Any]]) -> Catalog:
    """Returns a copy of a catalog with other rows of databases."""
    return catalog.replace(databases=pa.Table.from_pylist(rows, schema=schemas.DATABASES))


def _column(table: pa.Table, name: str) -> list[Any]:
    values = (chunk.to_pylist() if name in _NOT_INTERNED else interned(chunk) for chunk in table[name].chunks)
    return list(chain.from_iterable(values))


def normalize_addresses(addresses: Iterable[str]) -> dict[str, str]:
    """Returns the normal form of each address; all addresses must be valid.

    Examples:
        >>> normalize_addresses(["tcp://Orders/", "local"])
        {'tcp://Orders/': 'TCP://orders:4022', 'local': 'LOCAL'}
    """
    addresses = list(addresses)
    keywords = {address: address.upper() for address in addresses if address.upper() in (LOCAL, TRANSPORT)}
    network = [address for address in addresses if address not in keywords]
    if not network:
        return keywords
    # Only the native catalog can normalize an address.
    normal = Catalog(schemas.ROUTES.empty_table(), addresses=network).addresses
    return {**dict(zip(network, normal, strict=True)), **keywords}
