"""The rows of a catalog as Python values."""

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

pc: Any = pyarrow.compute  # its stubs do not know dictionaries


def encoded(column: Any) -> tuple[list[int], list[Any]]:
    """The values of an array without an object for each row.

    Args:
        column: The array, a dictionary or plain.

    Returns:
        The place of each value among the distinct ones, and those; the last of them is None, at place -1.

    Examples:
        >>> encoded(pa.array(["b", None, "a", "b"]))
        ([0, -1, 1, 0], ['b', 'a', None])
    """
    dictionary = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    places = pc.cast(pc.fill_null(dictionary.indices, -1), pa.int32())
    first = places.offset
    numbers = memoryview(places.buffers()[1]).cast("i")[first : first + len(places)].tolist()
    return numbers, [*dictionary.dictionary.to_pylist(), None]


def shared(column: Any) -> list[Any]:
    """The values of an array, equal ones as one object; equal texts are one object in all arrays.

    Examples:
        >>> one, other = shared(pa.array(["//Orders"])), shared(pa.array(["//Orders"]))
        >>> one[0] is other[0]
        True
    """
    numbers, words = encoded(column)
    kept = [sys.intern(word) if isinstance(word, str) else word for word in words]
    return list(map(kept.__getitem__, numbers))


MSDB: Final = "msdb"
LOCAL: Final = "LOCAL"
TRANSPORT: Final = "TRANSPORT"
BROKER_CONFIGURATION: Final = "SQL/ServiceBroker/BrokerConfiguration"


class RouteRow(NamedTuple):
    """A row of `sys.routes`."""

    database: str
    """Whose table."""
    route_id: int
    name: str
    service: str | None
    broker: bytes | None
    lifetime: datetime | None
    address: str
    """In its normal form."""
    mirror: str | None
    """In its normal form."""

    @property
    def key(self) -> tuple[str, int]:
        """What tells routes of an instance apart."""
        return self.database, self.route_id


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseRow:
    """A row of `sys.databases`."""

    name: str
    broker: bytes | None
    enabled: bool


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What an instance knows, as plain values."""

    routes: tuple[RouteRow, ...]
    databases: dict[str, DatabaseRow]
    services: dict[str, tuple[str, ...]]
    """The services of each database that has some, each once."""

    @cached_property
    def hosts(self) -> dict[str, list[str]]:
        """The databases that have each service, enabled or not."""
        found: dict[str, list[str]] = defaultdict(list)
        for database, names in self.services.items():
            for name in names:
                found[name].append(database)
        return dict(found)


_IN_ROW: Final = (
    "database",
    "route_id",
    "name",
    "remote_service_name",
    "broker_instance",
    "lifetime",
    "address",
    "mirror_address",
)
"""Where `RouteRow` takes its values from."""
_DISTINCT: Final = ("route_id", "name")


def read(catalog: Catalog, forms: dict[str, str] | None = None) -> Tables:
    """The rows of a catalog.

    Args:
        catalog: The catalog.
        forms: The normal forms of addresses that are known from other catalogs; those of this one are added.

    Returns:
        The rows.
    """
    forms = {} if forms is None else forms
    held = catalog.routes
    columns = {name: _column(held, name) for name in _IN_ROW}
    addresses, mirrors = columns["address"], columns["mirror_address"]
    forms.update(normal_forms(each for each in {*addresses, *mirrors} if each is not None and each not in forms))
    columns |= {"address": list(map(forms.get, addresses)), "mirror_address": list(map(forms.get, mirrors))}
    routes = tuple(map(RouteRow._make, zip(*columns.values(), strict=True)))
    services: dict[str, dict[str, None]] = defaultdict(dict)
    for database, name in zip(*(_column(catalog.services, name) for name in schemas.SERVICES.names), strict=True):
        services[database][name] = None
    return Tables(
        routes=routes,
        databases={
            row["name"]: DatabaseRow(
                name=row["name"], broker=row["service_broker_guid"], enabled=row["is_broker_enabled"]
            )
            for row in catalog.databases.select(schemas.DATABASES.names).to_pylist()
        },
        services={database: tuple(names) for database, names in services.items()},
    )


def _column(table: pa.Table, name: str) -> list[Any]:
    values = (chunk.to_pylist() if name in _DISTINCT else shared(chunk) for chunk in table[name].chunks)
    return list(chain.from_iterable(values))


def normal_forms(addresses: Iterable[str]) -> dict[str, str]:
    """The normal form of each address, which all are valid.

    Examples:
        >>> normal_forms(["tcp://Orders/", "local"])
        {'tcp://Orders/': 'TCP://orders:4022', 'local': 'LOCAL'}
    """
    addresses = list(addresses)
    plain = {address: address.upper() for address in addresses if address.upper() in (LOCAL, TRANSPORT)}
    network = [address for address in addresses if address not in plain]
    if not network:
        return plain
    # The native catalog normalises: what an address is stands in one place.
    normal = Catalog(schemas.ROUTES.empty_table(), addresses=network).addresses
    return {**dict(zip(network, normal, strict=True)), **plain}
