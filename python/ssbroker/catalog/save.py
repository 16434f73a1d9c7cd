"""Saving of catalogs as scripts or tables; existing files are replaced atomically."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ssbroker import _files
from ssbroker._arrow import table_without_views
from ssbroker._text import shortened_list
from ssbroker.catalog.load import INSTANCE_FILE
from ssbroker.exceptions import OutputError

_OTHERS_MAX: Final = 10


def save_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8; on an error, an existing file is unchanged."""
    path = _resolve(path)
    with _temporary_folder(path) as temporary:
        file = temporary / path.name
        file.write_bytes(text.encode())
        if path.exists():
            shutil.copymode(path, file)
        _files.sync_to_disk(file)
        file.replace(path)
        _files.sync_to_disk(path.parent)


def save_folder(path: Path, tables: Mapping[str, pa.Table], instance: Mapping[str, Any]) -> None:
    """Writes tables as Parquet files, and the settings of the instance, to a folder; on an error, an existing folder is unchanged.

    Two renames replace the old folder with the new one; between them, the path does not exist. Only a folder that
    contains a saved catalog is replaced.
    """
    path = _resolve(path)
    with _temporary_folder(path) as temporary:
        _reject_other_files(path, {INSTANCE_FILE, *(f"{name}.parquet" for name in tables)})
        new, old = temporary / "new", temporary / "old"
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


def _resolve(path: Path) -> Path:
    """Follows symbolic links, so that the target is replaced and not the link."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise OutputError(f"{path}: cannot be written: {error}") from error


@contextlib.contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Creates a temporary folder next to `path`, on the same disk, and converts errors in the block to `OutputError`."""
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{path.name[:80]}.", dir=path.parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)
    except (OSError, pa.ArrowException, UnicodeEncodeError) as error:
        if isinstance(error, OutputError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{path}: cannot be written: {reason}; existing files are unchanged") from error


def _reject_other_files(path: Path, own: set[str]) -> None:
    """Raises OutputError if replacing the folder would delete files that saving did not write."""
    if not path.exists():
        return
    if not path.is_dir():
        raise OutputError(f"{path}: is a file; expected a folder, or a name that ends in .sql")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in own)
    if others:
        names = ", ".join(shortened_list(map(repr, others), _OTHERS_MAX))
        raise OutputError(
            f"{path}: contains {names}, which would be deleted; expected a new folder, or a folder to which a catalog was saved"
        )
