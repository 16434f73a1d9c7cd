"""The doorway from a catalog to a running instance: the one place where what is below the broker reaches up to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ssbroker.catalog import Catalog

_MSDB: Final = "msdb.sqlite"


def is_instance(path: Path) -> bool:
    """Whether a path is the folder of an instance.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     is_instance(Path(folder))
        False
    """
    return os.path.exists(path / _MSDB)  # noqa: PTH110 - pathlib raises where it may not look


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
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - the broker knows catalogs, and files of tables need no broker

    with Instance.open(folder, background=False) as instance:
        return instance.catalog()
