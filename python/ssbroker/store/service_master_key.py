"""Service master key of an instance, a file that only the owner of the instance can read; it encrypts the master keys of the databases."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ssbroker import _files
from ssbroker.exceptions import StorageError

FILE: Final = "service_master.key"
_KEY_BYTES: Final = 32


def read(folder: Path) -> bytes | None:
    """Reads the key; returns None if there is none, and raises StorageError if the file is unreadable or invalid."""
    path = folder / FILE
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}", file=str(path)) from error
    if len(key) != _KEY_BYTES:
        raise StorageError(f"{path}: expected a key of {_KEY_BYTES} bytes; it has {len(key)}", file=str(path))
    return key


def read_or_create(folder: Path, new_key: Callable[[], bytes]) -> bytes:
    """Reads the key, or creates the file with a new one.

    The file is created atomically, so concurrent processes get the same key, and it is durable on return.
    """
    key = read(folder)
    if key is not None:
        return key
    path = folder / FILE
    try:
        # Only the owner can read a temporary file; it is linked to its name once it is complete.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE}.", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(new_key())
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process created it first
                os.link(temporary, path)
        finally:
            Path(temporary).unlink()
        _files.sync_to_disk(folder)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}", file=str(path)) from error
    key = read(folder)
    if key is None:
        raise StorageError(f"{path}: was deleted by another process right after it was created", file=str(path))
    return key
