"""The folder of an instance as an argument, and an instance as a catalog."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from ssbroker.catalog import Catalog

FolderArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of an instance.")]
_MSDB: Final = "msdb.sqlite"


def load_catalog(path: Path, *, now: datetime) -> Catalog:
    """The catalog of files, or of an instance as it is now.

    Args:
        path: What `Catalog.load` takes, or the folder of an instance.
        now: The moment from which LIFETIME of a script counts.

    Returns:
        The catalog.

    Raises:
        InputError: There is none, or a value is not what was expected.
        StorageError: A file of the instance cannot be read.
    """
    if not (path / _MSDB).exists():
        return Catalog.load(path, now=now)
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - files of tables need no broker

    with Instance.open(path, background=False) as instance:
        return instance.catalog()
