"""The doorway from a catalog to a running instance: the one place where what is below the broker reaches up to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance
    from ssbroker.catalog import Catalog

MSDB: Final = "msdb.sqlite"


def is_instance(path: Path) -> bool:
    """Whether a path is the folder of an instance.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     is_instance(Path(folder))
        False
    """
    return os.path.exists(path / MSDB)  # noqa: PTH110 - pathlib raises where it may not look


def catalog_of(folder: Path) -> Catalog:
    """What an instance is routed by now; whoever has it open goes on.

    Args:
        folder: The folder of the instance.

    Returns:
        Its catalog.

    Raises:
        StorageError: There is none, or its files cannot be read.
        MissingDependencyError: The library `apsw` is not installed.
    """
    with _opened(folder) as instance:
        return instance.catalog()


def files_elsewhere(folder: Path) -> list[Path]:
    """The files of those databases of an instance that were attached where they lie, outside of its folder.

    Args:
        folder: The folder of the instance.

    Returns:
        The files.

    Raises:
        StorageError: There is no instance, or its files cannot be read.
        MissingDependencyError: The library `apsw` is not installed.
    """
    with _opened(folder) as instance:
        files = [Path(database.file.path) for database in instance.databases]
    return [file for file in files if not (file.parent.exists() and file.parent.samefile(folder))]


def _opened(folder: Path) -> Instance:
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - the broker knows catalogs, and files of tables need no broker

    return Instance.open(folder, background=False)
