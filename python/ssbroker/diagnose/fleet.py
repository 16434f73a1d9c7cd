"""A fleet: several instances that are diagnosed together."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Self

from ssbroker import schemas
from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog, check_not_loaded, load_instances, script_options
from ssbroker.catalog.table_files import os_errors_as_input_errors
from ssbroker.ddl import ScriptOptions, summary
from ssbroker.ddl.system_objects import SYSTEM_DATABASES
from ssbroker.diagnose.catalog_rows import with_databases
from ssbroker.exceptions import DdlWarning, DuplicateError, InputError, SchemaError

SINGLE_INSTANCE = "instance"
"""The name of the instance if a single catalog is given without a name."""
LOOPBACK: Final = re.compile(r"TCP://(?:localhost|127\.[\d.]+|\[::1\]):")
"""The addresses by which an instance reaches only its own host."""


class Fleet(Mapping[str, Catalog]):
    """Several instances by name: a mapping of instance names to catalogs.

    The `addresses` of each catalog determine which instance a route leads to.

    Args:
        instances: The catalog of each instance, by instance name.

    Raises:
        SchemaError: `instances` is not a mapping, a name is not a str, or a value is not a `Catalog`.
        DuplicateError: Two instances have the same address, so a route to this address is ambiguous. Loopback addresses such as `localhost`
            may be shared, because each instance uses them for itself. The address of an availability group listener may
            also be shared: the replicas have databases with the same broker id, or with the same name and services.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> from ssbroker.diagnose import Fleet
        >>> fleet = Fleet({"NORTH": Catalog(schemas.ROUTES.empty_table(), addresses=["tcp://north"])})
        >>> fleet.at("TCP://north:4022"), fleet.at("TCP://south:4022")
        ('NORTH', None)
    """

    __slots__ = ("_addresses_of", "_assumed_ids", "_by_address", "_instances", "_replicas")

    def __init__(self, instances: Mapping[str, Catalog]) -> None:
        given: object = instances
        if not isinstance(given, Mapping):
            raise SchemaError(
                f"instances: expected a mapping of instance names to catalogs, got {type(given).__qualname__}"
            )
        self._instances = dict(instances)
        self._assumed_ids: Any = None  # of `assumed_broker_ids.assumed_ids_of`
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
                if other != name and LOOPBACK.match(address):
                    shared.add(address)
                elif other != name and _common_databases(self._instances[other], catalog):
                    self._replicas.setdefault(address, [other]).append(name)
                elif other != name:
                    raise DuplicateError(
                        f"instances: both {other!r} and {name!r} have the address {address}, and no database in common; correct the "
                        "addresses of one of the two instances",
                        value=address,
                        expected="an address of a single instance, or of the listener of an availability group",
                    )
        for address in shared:
            del self._by_address[address]
        for address, replicas in self._replicas.items():
            # The listener leads to the primary replica, whose databases are enabled.
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
        """Loads a fleet from a folder in which every subfolder and every `.sql` file is an instance with that name, or from one script.

        A script with `:connect` describes an instance for each server that it connects to.

        Args:
            path: The folder, or a script.
            now: The time from which LIFETIME in scripts counts; None for the current time. A datetime must have a time zone.
            variables: Values of the sqlcmd variables in scripts, such as `$(DatabaseName)`.
            encoding: Encoding of scripts without a byte order mark, such as `cp1252`; None means UTF-8.
            lenient: Whether to skip statements that SQL Server would reject, with a warning, and to accept scripts without
                Service Broker statements, database names that look like misspellings of names that a script creates,
                and changes to an endpoint that no script creates.

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
            folder: The folder, as for `load`.

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
                    f"{folder}: {paths[name].name} and {entry.name} both describe the instance {name!r}; rename one of the two"
                )
            paths[name] = entry
        if not paths:
            raise InputError(f"{folder}: contains no instance; expected a folder or a .sql script for each instance")
        return paths

    @property
    def addresses(self) -> Mapping[str, str]:
        """Maps each address to its instance; omits addresses that several instances share, such as `localhost`."""
        return dict(self._by_address)

    @property
    def roles(self) -> Mapping[str, Literal["primary", "secondary"]]:
        """The role of each replica of an availability group. Replicas are instances that share the address of a listener."""
        return {
            name: "secondary" if number else "primary"
            for replicas in self._replicas.values()
            for number, name in enumerate(replicas)
        }

    def at(self, address: str, *, seen_from: str | None = None) -> str | None:
        """Returns the name of the instance at an address.

        Args:
            address: The address in normal form, `TCP://host:port`.
            seen_from: The instance whose route has the address. If the address, such as `localhost`, is one of its own, it is returned.

        Returns:
            The name of the instance; None if no instance of the fleet has the address, or if several have it, such as `localhost`.

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


def after_failover(fleet: Fleet, replica: str) -> Fleet:
    """Returns a fleet after a failover: of the databases in the availability groups of a replica, only its own copies are enabled."""
    changed = dict(fleet)
    for replicas in fleet._replicas.values():  # noqa: SLF001 - an object of this module
        if replica in replicas:
            others = [changed[name] for name in replicas if name != replica]
            shared = set().union(*(_common_databases(other, changed[replica]) for other in others))
            for name in replicas:
                changed[name] = _with_enabled(changed[name], shared, is_enabled=name == replica)
    return Fleet(changed)


def how_to_specify_address(address: str, *, instance: str = "NAME") -> str:
    """Returns how to specify the address of an instance: for one run of a command, and in the script of the instance."""
    return f"--address {shlex.quote(f'{instance}={address}')}, or -- ssbroker: addresses={address} in its script"


def _common_databases(one: Catalog, other: Catalog) -> set[str]:
    """Returns the user databases of `other` that are copies of databases of `one`: with the same broker id or, if an id is unknown, with the same name and services."""
    known = _user_databases(one)
    ids = set(known.values()) - {None}
    return {
        name
        for name, broker in _user_databases(other).items()
        if broker in ids
        or (
            name in known
            and None in (broker, known[name])
            and _services_of(one, name)
            and _services_of(one, name) == _services_of(other, name)
        )
    }


def _user_databases(catalog: Catalog) -> dict[str, bytes | None]:
    rows: list[dict[str, Any]] = catalog.databases.select(["name", "service_broker_guid"]).to_pylist()
    return {row["name"]: row["service_broker_guid"] for row in rows if row["name"] not in SYSTEM_DATABASES}


def _services_of(catalog: Catalog, database: str) -> set[str]:
    rows: list[dict[str, Any]] = catalog.services.select(["database", "name"]).to_pylist()
    return {row["name"] for row in rows if row["database"] == database}


def _with_enabled(catalog: Catalog, databases: set[str], *, is_enabled: bool) -> Catalog:
    rows: list[dict[str, Any]] = catalog.databases.select(schemas.DATABASES.names).to_pylist()
    return with_databases(
        catalog, [row | {"is_broker_enabled": is_enabled} if row["name"] in databases else row for row in rows]
    )


def _enabled_databases(catalog: Catalog) -> int:
    return sum(row["is_broker_enabled"] for row in catalog.databases.to_pylist() if row["name"] not in SYSTEM_DATABASES)
