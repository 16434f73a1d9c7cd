"""Fleets: several instances with their catalogs and addresses."""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, wraps
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, ParamSpec, Self, TypeVar

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas
from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog, check_not_loaded, load_instances, script_options
from ssbroker.catalog.load import os_errors_as_input_errors
from ssbroker.ddl import ScriptOptions, summary
from ssbroker.exceptions import DdlWarning, DuplicateError, InputError, SchemaError

SYSTEM_DATABASES: Final = frozenset({"master", "model", "msdb", "tempdb"})
SINGLE_INSTANCE = "instance"
"""The name of the instance if a single catalog is given without a name."""
_LOOPBACK: Final = re.compile(r"TCP://(?:localhost|127\.[\d.]+|\[::1\]):")


class Fleet(Mapping[str, Catalog]):
    """Several instances by name: a mapping of instance names to catalogs.

    The `addresses` of each catalog determine which instance a route leads to.

    Args:
        instances: The catalog of each instance, by instance name.

    Raises:
        SchemaError: `instances` is not a mapping, a name is not a str, or a value is not a `Catalog`.
        DuplicateError: Two instances have the same address, so a route to it is ambiguous. Loopback addresses such as `localhost`
            may be shared, because each instance uses them for itself. So may the address of the listener of an availability group:
            its replicas have databases with the same broker id, or the same name and services.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> from ssbroker.diagnose import Fleet
        >>> fleet = Fleet({"NORTH": Catalog(schemas.ROUTES.empty_table(), addresses=["tcp://north"])})
        >>> fleet.at("TCP://north:4022"), fleet.at("TCP://south:4022")
        ('NORTH', None)
    """

    __slots__ = ("_addresses_of", "_by_address", "_instances", "_replicas", "_with_ids")

    def __init__(self, instances: Mapping[str, Catalog]) -> None:
        given: object = instances
        if not isinstance(given, Mapping):
            raise SchemaError(
                f"instances: expected a mapping of instance names to catalogs, got {type(given).__qualname__}"
            )
        self._instances = dict(instances)
        self._with_ids: Fleet | None = None  # of `assumed_ids.with_assumed_ids`
        self._by_address: dict[str, str] = {}
        self._addresses_of: dict[str, frozenset[str]] = {}
        shared: set[str] = set()
        self._replicas: dict[str, list[str]] = {}
        for name, catalog in self._instances.items():
            item: tuple[object, object] = (name, catalog)
            if not isinstance(item[0], str) or not isinstance(item[1], Catalog):
                raise SchemaError(
                    f"instances: expected names (str) and Catalogs, got {name!r:.80} with a value of type {type(catalog).__name__}"
                )
            self._addresses_of[name] = frozenset(catalog.addresses)
            for address in catalog.addresses:
                other = self._by_address.setdefault(address, name)
                if other != name and _LOOPBACK.match(address):
                    shared.add(address)
                elif other != name and _common_databases(self._instances[other], catalog):
                    self._replicas.setdefault(address, [other]).append(name)
                elif other != name:
                    raise DuplicateError(
                        f"instances: both {other!r} and {name!r} have the address {address}, and no database in common; correct the "
                        "addresses of one of them",
                        value=address,
                        expected="an address of a single instance, or of the listener of an availability group",
                    )
        for address in shared:
            del self._by_address[address]
        for address, replicas in self._replicas.items():
            # The listener leads to the primary, whose databases are enabled.
            replicas.sort(key=lambda name: -_enabled_databases(self._instances[name]))
            self._by_address[address] = replicas[0]

    @classmethod
    def of(cls, what: Fleet | Catalog) -> Fleet:
        """Returns a fleet unchanged, and a catalog as a fleet of one instance.

        Args:
            what: A fleet or a catalog. The instance of a catalog is named `instance`.

        Returns:
            The fleet.

        Raises:
            SchemaError: `what` is neither a fleet nor a catalog.

        Examples:
            >>> from ssbroker.diagnose import Fleet
            >>> from ssbroker import Catalog, schemas
            >>> list(Fleet.of(Catalog(schemas.ROUTES.empty_table())))
            ['instance']
        """
        if isinstance(what, Fleet):
            return what
        if isinstance(what, Catalog):
            return cls({SINGLE_INSTANCE: what})
        raise SchemaError(f"fleet: expected a Fleet or a Catalog, got {type(what).__qualname__}")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        now: datetime | None = None,
        variables: Mapping[str, str] | None = None,
        encoding: str | None = None,
        lenient: bool = False,
    ) -> Self:
        """Loads a fleet from a folder in which every subfolder and every `.sql` file is an instance of that name, or from one script.

        A script with `:connect` describes an instance for each server that it connects to.

        Args:
            path: The folder, or a script.
            now: The time from which LIFETIME counts in scripts; None for the current time. A datetime without a time zone is UTC.
            variables: Values of the sqlcmd variables in scripts, such as `$(DatabaseName)`.
            encoding: Encoding of scripts without a byte order mark, such as `cp1252`; None means UTF-8.
            lenient: Whether to skip statements that T-SQL does not have, and to accept databases that a script does not create.

        Returns:
            The fleet.

        Raises:
            InputError: The folder does not exist, contains no instance, or a file in it has an invalid value.
            DuplicateError: Two instances have the same name or the same address.
            SchemaError: A column is missing or has an unsupported type.
            OptionError: An argument has an invalid type or value.

        Examples:
            >>> from ssbroker.diagnose import Fleet
            >>> import tempfile
            >>> from pathlib import Path
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = Path(folder, "NORTH.sql").write_text("CREATE DATABASE Sales;")
            ...     list(Fleet.load(folder))
            ['NORTH']
        """
        at = utc_datetime(now)
        options = script_options(variables=variables, encoding=encoding, lenient=lenient)
        with os_errors_as_input_errors(Path(path)):
            is_script = Path(path).is_file()
        entries = {Path(path).stem: Path(path)} if is_script else cls.paths(path)
        loaded = cls._load_all(entries, now=at, options=options)
        for catalog in loaded.values():
            for line in summary(catalog.notes, about="routing"):
                warnings.warn(line, DdlWarning, stacklevel=2)
        return loaded

    @classmethod
    def _load_all(cls, paths: Mapping[str, Path], *, now: datetime, options: ScriptOptions) -> Self:
        found: dict[str, Catalog] = {}
        for name, path in paths.items():
            for instance, catalog in load_instances(path, name=name, now=now, options=options).items():
                check_not_loaded(instance, found, path)
                found[instance] = catalog
        return cls(found)

    @staticmethod
    def paths(folder: str | os.PathLike[str]) -> dict[str, Path]:
        """Finds the instances that `load` loads from a folder.

        Args:
            folder: The folder.

        Returns:
            The path of each instance, by instance name.

        Raises:
            InputError: The folder does not exist or contains no instance.
            DuplicateError: Two instances have the same name.

        Examples:
            >>> from ssbroker.diagnose import Fleet
            >>> import tempfile
            >>> from pathlib import Path
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Path(folder, "NORTH.sql").touch()
            ...     list(Fleet.paths(folder))
            ['NORTH']
        """
        folder = Path(folder)
        with os_errors_as_input_errors(folder):
            if not folder.is_dir():
                missing = "is not a folder" if folder.exists() else "no such folder"
                raise InputError(
                    f"{folder}: {missing}; expected a folder of instances",
                    value=str(folder),
                    expected="a folder of instances",
                )
            entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
            folders = {entry for entry in entries if entry.is_dir()}
        paths: dict[str, Path] = {}
        for entry in entries:
            if entry not in folders and entry.suffix.lower() != ".sql":
                continue
            name = entry.name if entry in folders else entry.stem
            if name in paths:
                raise DuplicateError(
                    f"{folder}: {paths[name].name} and {entry.name} both describe the instance {name!r}; rename one of them"
                )
            paths[name] = entry
        if not paths:
            raise InputError(f"{folder}: contains no instance; expected a folder or a .sql script for each instance")
        return paths

    @property
    def addresses(self) -> Mapping[str, str]:
        """The instance of each address, without addresses that several instances share, such as `localhost`."""
        return dict(self._by_address)

    @property
    def roles(self) -> Mapping[str, Literal["primary", "secondary"]]:
        """The role of each replica of an availability group: instances that have the same address, that of the listener."""
        return {
            name: "secondary" if number else "primary"
            for replicas in self._replicas.values()
            for number, name in enumerate(replicas)
        }

    def at(self, address: str, *, seen_from: str | None = None) -> str | None:
        """Returns the instance that has an address.

        Args:
            address: The address in normal form, `TCP://host:port`.
            seen_from: The instance whose route has the address. Its own addresses, including `localhost`, lead to itself.

        Returns:
            The name of the instance; None if no instance of the fleet has the address.

        Examples:
            >>> from ssbroker.diagnose import Fleet
            >>> from ssbroker import Catalog, schemas
            >>> one, other = (Catalog(schemas.ROUTES.empty_table(), addresses=["TCP://localhost"]) for _ in range(2))
            >>> fleet = Fleet({"NORTH": one, "SOUTH": other})
            >>> fleet.at("TCP://localhost:4022"), fleet.at("TCP://localhost:4022", seen_from="SOUTH")
            (None, 'SOUTH')
        """
        if seen_from is not None and address in self._addresses_of[seen_from]:
            return seen_from
        return self._by_address.get(address)

    def __getitem__(self, name: str) -> Catalog:
        return self._instances[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._instances)

    def __len__(self) -> int:
        return len(self._instances)

    def __repr__(self) -> str:
        return f"Fleet(instances={len(self)}, addresses={len(self._by_address)})"


def _common_databases(one: Catalog, other: Catalog) -> set[str]:
    """Returns the user databases of `other` that are copies of databases of `one`: with the same broker id, or name and services."""
    ids = {broker for _, broker in _user_databases(one) if broker is not None}
    names = {name for name, _ in _user_databases(one) if _services_of(one, name)}
    return {
        name
        for name, broker in _user_databases(other)
        if broker in ids or (broker is None and name in names and _services_of(one, name) == _services_of(other, name))
    }


def _user_databases(catalog: Catalog) -> list[tuple[str, bytes | None]]:
    rows: list[dict[str, Any]] = catalog.databases.select(["name", "service_broker_guid"]).to_pylist()
    return [(row["name"], row["service_broker_guid"]) for row in rows if row["name"] not in SYSTEM_DATABASES]


def _services_of(catalog: Catalog, database: str) -> set[str]:
    rows: list[dict[str, Any]] = catalog.services.select(["database", "name"]).to_pylist()
    return {row["name"] for row in rows if row["database"] == database}


def _enabled_databases(catalog: Catalog) -> int:
    return sum(row["is_broker_enabled"] for row in catalog.databases.to_pylist() if row["name"] not in SYSTEM_DATABASES)


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def without_garbage_collection(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorates a function to run with the cyclic garbage collector disabled.

    The decisions of a large fleet are millions of small tuples without cycles. Scanning them repeatedly would take two fifths of
    the time.
    """

    @wraps(function)
    def wrapper(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return wrapper


pc: Any = pyarrow.compute  # its stubs lack dictionary encoding


def dictionary_encoded(column: Any) -> tuple[list[int], list[Any]]:
    """Returns the index of each value among the distinct values, and the distinct values, with None appended, so that the index -1 means null.

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
    """Returns the values of an array, with equal strings as the same object, across arrays too."""
    numbers, values = dictionary_encoded(column)
    interned_words = [sys.intern(word) if isinstance(word, str) else word for word in values]
    return list(map(interned_words.__getitem__, numbers))


MSDB: Final = "msdb"
LOCAL: Final = "LOCAL"
TRANSPORT: Final = "TRANSPORT"


class FleetRoute(NamedTuple):
    """A row of `sys.routes`."""

    database: str
    """The database whose routing table it is in."""
    route_id: int
    name: str
    service: str | None
    broker: bytes | None
    lifetime: datetime | None
    address: str
    """In normal form."""
    mirror: str | None
    """In normal form."""

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the route within its instance."""
        return self.database, self.route_id


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
        """The databases that have each service, enabled or not."""
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
"""The columns of the fields of `FleetRoute`."""
_NOT_INTERNED: Final = ("route_id", "name")


def read(catalog: Catalog, normalized: dict[str, str] | None = None) -> Tables:
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


def _column(table: pa.Table, name: str) -> list[Any]:
    values = (chunk.to_pylist() if name in _NOT_INTERNED else interned(chunk) for chunk in table[name].chunks)
    return list(chain.from_iterable(values))


def normalize_addresses(addresses: Iterable[str]) -> dict[str, str]:
    """Returns the normal form of each address; all must be valid.

    Examples:
        >>> normalize_addresses(["tcp://Orders/", "local"])
        {'tcp://Orders/': 'TCP://orders:4022', 'local': 'LOCAL'}
    """
    addresses = list(addresses)
    keywords = {address: address.upper() for address in addresses if address.upper() in (LOCAL, TRANSPORT)}
    network = [address for address in addresses if address not in keywords]
    if not network:
        return keywords
    # Only the native catalog knows how to normalize an address.
    normal = Catalog(schemas.ROUTES.empty_table(), addresses=network).addresses
    return {**dict(zip(network, normal, strict=True)), **keywords}
