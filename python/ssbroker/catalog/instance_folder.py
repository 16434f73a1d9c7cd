"""Instance folders as a source of catalogs.

The package `ssbroker` registers the function that opens an instance, because this package must not import the broker.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from ssbroker.catalog.details import InstanceDetails

STATUS_FILE: Final = "serving.json"
"""The file in which the serving process writes its addresses and connections."""
MSDB_FILE: Final = "msdb.sqlite"
"""The file by which an instance folder is recognized."""
_CACHED_INSTANCES: Final = 4
_SHARED_MEMORY_SUFFIX: Final = "-shm"
"""Suffix of SQLite's shared-memory file, which readers also modify."""


class Contents(Protocol):
    """Content of a catalog."""

    @property
    def routes(self) -> pa.Table:
        """The routes, with the columns of `schemas.ROUTES` and possibly others."""

    @property
    def databases(self) -> pa.Table | None:
        """The databases, with the columns of `schemas.DATABASES`."""

    @property
    def services(self) -> pa.Table | None:
        """The services, with the columns of `schemas.SERVICES`."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the instance."""

    @property
    def message_forwarding(self) -> bool:
        """Whether the instance forwards messages."""

    @property
    def pending_requests(self) -> tuple[str, ...]:
        """Services for which a request for routing information is pending."""


class InstanceContents(Contents, Protocol):
    """Content of the catalog of an instance."""

    @property
    def details(self) -> InstanceDetails:
        """Properties of services, queues and the endpoint that routing does not use."""


class _DatabaseWithFile(Protocol):
    @property
    def path(self) -> Path: ...


class OpenInstance(Protocol):
    """The part of an open instance that catalogs use."""

    @property
    def databases(self) -> Sequence[_DatabaseWithFile]:
        """Databases of the instance."""

    def catalog(self) -> InstanceContents:
        """Returns the current catalog."""


Opener = Callable[[Path], AbstractContextManager[OpenInstance]]
_openers: Final[list[Opener]] = []


def register_opener(opener: Opener) -> None:
    """Registers the function that opens an instance folder; the context manager that it returns closes the instance."""
    _openers[:] = [opener]


def is_instance_folder(path: Path) -> bool:
    """Returns whether a path is an instance folder."""
    return os.path.exists(path / MSDB_FILE)  # noqa: PTH110 - pathlib raises if a folder is not accessible


def read_contents(folder: Path) -> InstanceContents:
    """Returns the current catalog of an instance, which other processes may have open."""
    with _openers[0](folder) as instance:
        return instance.catalog()


def served_addresses(folder: Path) -> tuple[str, ...]:
    """Returns the addresses with which an instance is or was last served; empty if unknown."""
    try:
        found = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    addresses = found.get("addresses") if isinstance(found, dict) else None
    return tuple(each for each in addresses if isinstance(each, str)) if isinstance(addresses, list) else ()


def instance_files(folder: Path) -> list[Path]:
    """Returns the files that contain the routing tables of an instance, including attached databases in other folders."""
    own = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.endswith(_SHARED_MEMORY_SUFFIX))
    stats = [(file.name, file.stat()) for file in own if file.name.startswith(MSDB_FILE)]
    registry = tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    with_logs = [(file, file.with_name(f"{file.name}-wal")) for file in _attached_files(folder, registry)]
    return own + [file for pair in with_logs for file in pair if file.exists()]


@functools.lru_cache(maxsize=_CACHED_INSTANCES)
def _attached_files(folder: Path, _registry: object) -> list[Path]:
    """Returns database files attached from other folders. The cache key contains the state of the files of msdb, which lists the databases."""
    with _openers[0](folder) as instance:
        files = [database.path for database in instance.databases]
    return [file for file in files if not (file.parent.exists() and file.parent.samefile(folder))]
