"""Instance folders as a source of catalogs. The package registers the function that opens them, as it is defined above this one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

_MSDB: Final = "msdb.sqlite"
_INSTANCES_MAX: Final = 4
_WITHOUT_CONTENT: Final = "-shm"
"""The suffix of SQLite's shared memory, which is written by readers too."""


class Contents(Protocol):
    """What a catalog is made of."""

    @property
    def routes(self) -> pa.Table:
        """In the schema of `sys.routes`."""

    @property
    def databases(self) -> pa.Table | None:
        """In the schema of `sys.databases`."""

    @property
    def services(self) -> pa.Table | None:
        """In the schema of `sys.services`."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Under which the instance is reached."""

    @property
    def message_forwarding(self) -> bool:
        """Whether it passes messages on."""

    @property
    def pending_requests(self) -> tuple[str, ...]:
        """The services for which routing information has been requested."""


class _DatabaseWithFile(Protocol):
    @property
    def path(self) -> Path: ...


class OpenInstance(Protocol):
    """An open instance, as far as catalogs use it."""

    @property
    def databases(self) -> Sequence[_DatabaseWithFile]:
        """Its databases."""

    def catalog(self) -> Contents:
        """Its catalog."""


Opener = Callable[[Path], AbstractContextManager[OpenInstance]]
_openers: Final[list[Opener]] = []


def register(opener: Opener) -> None:
    """Registers the function that opens instance folders.

    Args:
        opener: Returns a context manager that closes the instance.
    """
    _openers[:] = [opener]


def is_instance(path: Path) -> bool:
    """Whether a path is an instance folder.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     is_instance(Path(folder))
        False
    """
    return os.path.exists(path / _MSDB)  # noqa: PTH110 - pathlib raises where it may not look


def contents_of(folder: Path) -> Contents:
    """The current catalog of an instance, which other processes may have open.

    Raises:
        StorageError: The folder holds no instance, or its files cannot be read.
        MissingDependencyError: The library `apsw` is not installed.
    """
    with _openers[0](folder) as instance:
        return instance.catalog()


def files_of(folder: Path) -> list[Path]:
    """The files that hold what an instance is routed by.

    Raises:
        OSError: The folder cannot be listed.
        StorageError: The files of the instance cannot be read.
    """
    own = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.endswith(_WITHOUT_CONTENT))
    stats = [(file.name, file.stat()) for file in own if file.name.startswith(_MSDB)]
    registry = tuple((name, found.st_ino, found.st_size, found.st_mtime_ns) for name, found in stats)
    with_logs = [(file, file.with_name(f"{file.name}-wal")) for file in _files_elsewhere(folder, registry)]
    return own + [file for pair in with_logs for file in pair if file.exists()]


@functools.lru_cache(maxsize=_INSTANCES_MAX)
def _files_elsewhere(folder: Path, _registry: object) -> list[Path]:
    """Database files that were attached from other folders; read again when msdb, which lists them, has changed."""
    with _openers[0](folder) as instance:
        files = [database.path for database in instance.databases]
    return [file for file in files if not (file.parent.exists() and file.parent.samefile(folder))]
