"""The key of an instance, under which the master keys of its databases open by themselves: a file beside them that only its owner reads."""

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
    """The key; None where there is none.

    Args:
        folder: The instance's.

    Returns:
        Its bytes.

    Raises:
        StorageError: The file cannot be read, or is no key.
    """
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


def read_or_create(folder: Path, new: Callable[[], bytes]) -> bytes:
    """The key, made where there is none; the same for all processes that ask at once.

    Args:
        folder: The instance's.
        new: Makes a key.

    Returns:
        Its bytes, durable.

    Raises:
        StorageError: The file cannot be written.
    """
    found = read(folder)
    if found is not None:
        return found
    path = folder / FILE
    try:
        # A temporary file is for its owner only; it gets its name once it is whole.
        descriptor, part = tempfile.mkstemp(prefix=f".{FILE}.", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(new())
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was faster
                os.link(part, path)
        finally:
            Path(part).unlink()
        _files.sync_to_disk(folder)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}", file=str(path)) from error
    made = read(folder)
    if made is None:
        raise StorageError(f"{path}: was removed as soon as it was made", file=str(path))
    return made
