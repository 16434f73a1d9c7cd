"""A fleet: several instances with their catalogs and addresses."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.catalog.load import os_errors_as_input_errors
from ssbroker.exceptions import DuplicateError, InputError, SchemaError

ALONE = "instance"
"""The name of the instance where there is one catalog and no name was given."""
_LOOPBACK: Final = re.compile(r"TCP://(?:localhost|127\.[\d.]+|\[::1\]):")


class Fleet(Mapping[str, Catalog]):
    """Instances by name; a mapping to their catalogs, whose `addresses` say who is where.

    Args:
        instances: The catalog of each instance.

    Raises:
        SchemaError: It is no mapping, a name is no text, or a value no `Catalog`.
        DuplicateError: Two instances have one address: nobody could say where a route to it leads. Addresses such as `localhost`, which
            each means of itself, may be those of several.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> from ssbroker.diagnose import Fleet
        >>> fleet = Fleet({"NORTH": Catalog(schemas.ROUTES.empty_table(), addresses=["tcp://north"])})
        >>> fleet.at("TCP://north:4022"), fleet.at("TCP://south:4022")
        ('NORTH', None)
    """

    __slots__ = ("_by_address", "_instances", "_own")

    def __init__(self, instances: Mapping[str, Catalog]) -> None:
        given: object = instances
        if not isinstance(given, Mapping):
            raise SchemaError(f"instances: expected catalogs by the names of instances, got {type(given).__qualname__}")
        self._instances = dict(instances)
        self._by_address: dict[str, str] = {}
        self._own: dict[str, frozenset[str]] = {}
        ambiguous: set[str] = set()
        for name, catalog in self._instances.items():
            kinds: tuple[object, object] = (name, catalog)
            if not isinstance(kinds[0], str) or not isinstance(kinds[1], Catalog):
                raise SchemaError(f"instances: expected names and catalogs, got {name!r:.80}: {type(catalog).__name__}")
            self._own[name] = frozenset(catalog.addresses)
            for address in catalog.addresses:
                other = self._by_address.setdefault(address, name)
                if other != name and _LOOPBACK.match(address):
                    ambiguous.add(address)
                elif other != name:
                    raise DuplicateError(
                        f"instances: both {other!r} and {name!r} have the address {address}",
                        value=address,
                        expected="an address of one instance",
                    )
        for address in ambiguous:
            del self._by_address[address]

    @classmethod
    def of(cls, what: Fleet | Catalog) -> Fleet:
        """A fleet as it is, and a catalog as a fleet of one instance.

        Raises:
            SchemaError: It is neither.

        Examples:
            >>> from ssbroker import Catalog, schemas
            >>> list(Fleet.of(Catalog(schemas.ROUTES.empty_table())))
            ['instance']
        """
        if isinstance(what, Fleet):
            return what
        if isinstance(what, Catalog):
            return cls({ALONE: what})
        raise SchemaError(f"fleet: expected a Fleet or a Catalog, got {type(what).__qualname__}")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, now: datetime | None = None) -> Self:
        """Reads a fleet from a folder in which every sub-folder, and every `.sql` file, is an instance, named like it.

        Args:
            path: The folder.
            now: The moment from which LIFETIME of a script counts, None for the current time. Without a zone it is UTC.

        Returns:
            The fleet.

        Raises:
            InputError: There is no such folder, it holds no instance, or a value in it is not what was expected.
            DuplicateError: Two instances have one name or one address.
            SchemaError: A column is missing, or has a type that cannot be read.

        Examples:
            >>> import tempfile
            >>> from pathlib import Path
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = Path(folder, "NORTH.sql").write_text("CREATE DATABASE Sales;")
            ...     list(Fleet.load(folder))
            ['NORTH']
        """
        at = utc_datetime(now)
        return cls({name: Catalog.load(entry, now=at) for name, entry in cls.paths(path).items()})

    @staticmethod
    def paths(folder: str | os.PathLike[str]) -> dict[str, Path]:
        """The instances that `load` finds in a folder, and where each stands.

        Args:
            folder: The folder.

        Returns:
            The path of each instance by its name.

        Raises:
            InputError: There is no such folder, or it holds no instance.
            DuplicateError: Two instances have one name.

        Examples:
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
                raise InputError(
                    f"{folder}: there is no such folder", value=str(folder), expected="a folder of instances"
                )
            entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))
            folders = {entry for entry in entries if entry.is_dir()}
        paths: dict[str, Path] = {}
        for entry in entries:
            if entry not in folders and entry.suffix.lower() != ".sql":
                continue
            name = entry.name if entry in folders else entry.stem
            if name in paths:
                raise DuplicateError(f"{folder}: {paths[name].name} and {entry.name} are both the instance {name!r}")
            paths[name] = entry
        if not paths:
            raise InputError(f"{folder}: holds no instance; expected a folder or a .sql script for each")
        return paths

    @property
    def addresses(self) -> Mapping[str, str]:
        """The instance of each address; without those that several have, which each means of itself."""
        return dict(self._by_address)

    def at(self, address: str, *, seen_from: str | None = None) -> str | None:
        """The instance that an address leads to.

        Args:
            address: In its normal form `TCP://host:port`.
            seen_from: The instance whose route it is: its own addresses lead to itself, `localhost` too.

        Returns:
            The instance; None if none of the fleet has the address.

        Examples:
            >>> from ssbroker import Catalog, schemas
            >>> one, other = (Catalog(schemas.ROUTES.empty_table(), addresses=["TCP://localhost"]) for _ in range(2))
            >>> fleet = Fleet({"NORTH": one, "SOUTH": other})
            >>> fleet.at("TCP://localhost:4022"), fleet.at("TCP://localhost:4022", seen_from="SOUTH")
            (None, 'SOUTH')
        """
        if seen_from is not None and address in self._own[seen_from]:
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


Options = ParamSpec("Options")
Result = TypeVar("Result")


def without_collector(work: Callable[Options, Result]) -> Callable[Options, Result]:
    """Has a function run while the collector of cycles rests.

    The answers of a large fleet are millions of small tuples without a cycle among them. The collector would walk them again and
    again, and take two fifths of the time; what is not needed any more goes without it.

    Args:
        work: The function.

    Returns:
        The same; afterwards the collector is as it was.

    Examples:
        >>> without_collector(gc.isenabled)(), gc.isenabled()
        (False, True)
    """

    @wraps(work)
    def quietly(*args: Options.args, **kwargs: Options.kwargs) -> Result:
        if not gc.isenabled():
            return work(*args, **kwargs)
        gc.disable()
        try:
            return work(*args, **kwargs)
        finally:
            gc.enable()

    return quietly
