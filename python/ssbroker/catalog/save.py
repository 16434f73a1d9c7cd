"""Saves catalogs as scripts or tables; an existing file is replaced only by a complete one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ssbroker import _files
from ssbroker._arrow import table_without_views
from ssbroker.catalog.load import INSTANCE_FILE
from ssbroker.exceptions import OutputError


def save_text(path: Path, text: str) -> None:
    r"""Writes a text file, or changes nothing.

    Args:
        path: The file; one that is there is replaced.
        text: What to write, in UTF-8.

    Raises:
        OutputError: It could not be written; what stood there still does.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_text(Path(folder, "catalog.sql"), "-- nothing\n")
        ...     Path(folder, "catalog.sql").read_text()
        '-- nothing\n'
    """
    path = _resolved(path)
    with _workplace(path) as workplace:
        file = workplace / path.name
        file.write_bytes(text.encode())
        if path.exists():
            shutil.copymode(path, file)
        _files.sync_to_disk(file)
        file.replace(path)
        _files.sync_to_disk(path.parent)


def save_folder(path: Path, tables: Mapping[str, pa.Table], instance: Mapping[str, Any]) -> None:
    """Writes a folder of Parquet files and the settings of the instance, or changes nothing.

    The new folder takes the place of the old one by two renames; whoever looks between them finds neither.

    Args:
        path: The folder; one that holds a saved catalog and nothing else is replaced.
        tables: The tables by name.
        instance: The settings of the instance.

    Raises:
        OutputError: It could not be written, or the folder holds other files; what stood there still does.

    Examples:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_folder(Path(folder, "net"), {"services": pa.table({"database": ["Sales"]})}, {"addresses": []})
        ...     sorted(file.name for file in Path(folder, "net").iterdir())
        ['instance.json', 'services.parquet']
    """
    path = _resolved(path)
    with _workplace(path) as workplace:
        _refuse_foreign(path, {INSTANCE_FILE, *(f"{name}.parquet" for name in tables)})
        new, old = workplace / "new", workplace / "old"
        new.mkdir()
        for name, table in tables.items():
            pq.write_table(table_without_views(table), new / f"{name}.parquet")
        (new / INSTANCE_FILE).write_bytes(json.dumps(instance, indent=2, ensure_ascii=False).encode() + b"\n")
        for file in new.iterdir():
            _files.sync_to_disk(file)
        _files.sync_to_disk(new)
        if path.exists():
            shutil.copymode(path, new)
            path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        _files.sync_to_disk(path.parent)


def _resolved(path: Path) -> Path:
    """Where the path leads, so that a link stays one."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise OutputError(f"{path}: could not be written: {error}") from error


@contextlib.contextmanager
def _workplace(path: Path) -> Iterator[Path]:
    """A folder beside `path`, so on the same disk, that is gone afterwards; what goes wrong in it is an `OutputError`."""
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name[:80]}.", dir=path.parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)
    except (OSError, pa.ArrowException, UnicodeEncodeError) as error:
        if isinstance(error, OutputError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{path}: could not be written: {reason}; what stood there is unchanged") from error


def _refuse_foreign(path: Path, own: set[str]) -> None:
    """A folder is replaced as a whole, so it must not hold anything that saving did not write."""
    if not path.exists():
        return
    if not path.is_dir():
        raise OutputError(f"{path}: is a file; expected a folder, or a name that ends in .sql")
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in own)
    if foreign:
        raise OutputError(
            f"{path}: holds {foreign[0]!r}, which would be lost; expected a new folder, or one that a catalog was saved to"
        )
