"""Locks between processes: one server for each instance, and what a forked process must close."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

from ssbroker import _files
from ssbroker.exceptions import StorageError


class ForkSensitive(Protocol):
    """Who has files or sockets open that no other process may keep open."""

    def descriptors(self) -> Iterable[int]:
        """Their numbers, as far as they are open now. It is called in a forked process, and waits for nothing."""


_HOLDERS: Final[WeakSet[ForkSensitive]] = WeakSet()


def close_after_fork(holder: ForkSensitive) -> None:
    """Has processes that are forked from now on let go of what somebody holds, for as long as that one is there.

    Args:
        holder: Who holds it.
    """
    _HOLDERS.add(holder)


def _let_go() -> None:
    """In the forked process: has the numbers stand for nothing. Closed, they would be given anew, and then closed by who had them."""
    held = [number for holder in list(_HOLDERS) for number in holder.descriptors() if number >= 0]
    if not held:
        return
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
    except OSError:  # no file is left
        os.close(held[0])
        nothing = os.open(os.devnull, os.O_RDWR)
    for number in held:
        with suppress(OSError):  # a thread of the parent was about to close it
            os.dup2(nothing, number, inheritable=False)
    if nothing not in held:
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


FILE: Final = "serve.lock"
_LOOKS: Final = 100
_PAUSE_SECONDS: Final = 0.01
_NUMBER_BYTES: Final = 20


class ServeLock:
    """The lock of a folder, held from `acquire` to `release`, or until the process ends.

    Args:
        folder: The instance's folder.

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
        """Takes the lock, and leaves the number of this process in the file, for people.

        Raises:
            StorageError: Another process serves the instance, this one does already, or the file cannot be made or locked.
        """
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take(file)
            except BaseException:
                os.close(file)
                raise
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be locked: {error.strerror}", file=str(self._path)) from error
        self._file = file

    def release(self) -> None:
        """Gives the lock back; where it is not held, nothing happens."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def descriptors(self) -> Iterable[int]:
        """See `forks.Holder`."""
        return () if self._file is None else (self._file,)

    def _take(self, file: int) -> None:
        looks = 0
        while not _files.try_lock(file):  # whoever asks holds it for a moment
            looks += 1
            if looks == _LOOKS:
                holder = os.read(file, _NUMBER_BYTES).decode(errors="replace").strip()
                raise StorageError(
                    f"{self._path.parent}: process {holder} serves the instance already; one process does at a time",
                    file=str(self._path),
                )
            time.sleep(_PAUSE_SECONDS)
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())

    @staticmethod
    def is_held(folder: Path) -> bool:
        """Whether a process serves an instance.

        Args:
            folder: The instance's folder.

        Returns:
            Whether one does.
        """
        return ServeLock.holder(folder) is not None

    @staticmethod
    def holder(folder: Path) -> int | None:
        """Which process serves an instance.

        Args:
            folder: The instance's folder.

        Returns:
            Its number; 0 where it has not written that yet, None where no process serves the instance.
        """
        try:
            # Whoever may read the file may ask; Windows has a lock only for who may write.
            file = os.open(folder / FILE, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        except OSError:
            return None
        try:
            return _number(file) if _files.is_locked(file) else None
        except OSError:  # the file system knows no locks, so nobody could take it either
            return None
        finally:
            os.close(file)


def _number(file: int) -> int:
    try:
        return int(os.read(file, _NUMBER_BYTES))
    except (OSError, ValueError):  # Windows lets nobody read what is locked
        return 0
