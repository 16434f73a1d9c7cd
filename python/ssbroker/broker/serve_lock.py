"""The lock that ensures that only one process serves an instance."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ssbroker import _files
from ssbroker.broker.fork_safety import close_after_fork
from ssbroker.exceptions import StorageError

FILE: Final = "serve.lock"
_ATTEMPTS: Final = 100
_PAUSE_SECONDS: Final = 0.01
_PROCESS_ID_BYTES: Final = 20


class ServeLock:
    """The lock on an instance folder that the serving process holds, from `acquire` until `release` or the end of the process.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lock = ServeLock(Path(folder))
        ...     lock.acquire()
        ...     held = ServeLock.is_held(Path(folder))
        ...     lock.release()
        ...     held, ServeLock.is_held(Path(folder))
        (True, False)
    """

    def __init__(self, folder: Path) -> None:
        self._path: Final = folder / FILE
        self._file: int | None = None
        close_after_fork(self)

    def acquire(self) -> None:
        """Acquires the lock, and writes the id of this process into the file."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._lock(file)
            except BaseException:
                os.close(file)
                raise
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                f"{self._path}: cannot be locked: {error.strerror}", file=str(self._path), errno=error.errno
            ) from error
        self._file = file

    def release(self) -> None:
        """Releases the lock; does nothing if it is not held."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def descriptors(self) -> Iterable[int]:
        """Returns the descriptor of the lock file, if open."""
        return () if self._file is None else (self._file,)

    def _lock(self, file: int) -> None:
        attempts = 0
        while not _files.try_lock(file):  # `is_held` holds the lock briefly
            attempts += 1
            if attempts == _ATTEMPTS:
                holder = os.read(file, _PROCESS_ID_BYTES).decode(errors="replace").strip()
                raise StorageError(
                    f"{self._path.parent}: process {holder} already serves the instance; only one process can serve it at a time",
                    file=str(self._path),
                )
            time.sleep(_PAUSE_SECONDS)
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())

    @staticmethod
    def is_held(folder: Path) -> bool:
        """Returns whether a process serves the instance in a folder."""
        return ServeLock.holder(folder) is not None

    @staticmethod
    def holder(folder: Path) -> int | None:
        """Returns the id of the process that serves the instance in a folder; 0 if unknown, None if there is none."""
        try:
            # Read access is enough to test the lock, except on Windows.
            file = os.open(folder / FILE, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        except OSError:
            return None
        try:
            return _process_id(file) if _files.is_locked(file) else None
        except OSError:  # the file system has no locks, so no process can hold one
            return None
        finally:
            os.close(file)


def _process_id(file: int) -> int:
    try:
        return int(os.read(file, _PROCESS_ID_BYTES))
    except (OSError, ValueError):  # Windows does not allow reading a locked file
        return 0
