"""The file of the service master key of an instance."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ssbroker import _files
from ssbroker.exceptions import StorageError

SERVICE_MASTER_KEY_FILE: Final = "service_master.key"
_KEY_BYTES: Final = 32


def read_service_master_key(folder: Path) -> bytes | None:
    """Reads the key; returns None if there is none, and raises StorageError if the file is unreadable or invalid."""
    path = folder / SERVICE_MASTER_KEY_FILE
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}", file=str(path)) from error
    if len(key) != _KEY_BYTES:
        raise StorageError(
            f"{path}: expected a key of {_KEY_BYTES} bytes; it has {len(key)}; restore the file from a backup",
            file=str(path),
        )
    return key


def read_or_create_service_master_key(folder: Path, new_key: Callable[[], bytes]) -> bytes:
    """Reads the key, or creates the file with a new one.

    The file is created atomically, so concurrent processes get the same key, and it is durable on return.
    """
    key = read_service_master_key(folder)
    if key is not None:
        return key
    path = folder / SERVICE_MASTER_KEY_FILE
    try:
        # Only the owner can read a temporary file; it is linked to its name once it is complete.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{SERVICE_MASTER_KEY_FILE}.", dir=folder)
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
    key = read_service_master_key(folder)
    if key is None:
        raise StorageError(
            f"{path}: is missing, although it was just created; another process may have deleted it", file=str(path)
        )
    return key
