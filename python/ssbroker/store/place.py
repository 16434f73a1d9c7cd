"""Whether the file that was opened still stands at its place: SQLite goes on with it either way, and nobody finds what it writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ssbroker.exceptions import StorageError


class NotInPlaceError(StorageError):
    """The file that was opened does not stand at its place any more; of the file itself it says nothing."""


class Place:
    """Where a file stands, and which one was opened there.

    Args:
        path: The file.
    """

    __slots__ = ("_identity", "_path")

    def __init__(self, path: Path) -> None:
        self._path: Final = str(path)
        self._identity: tuple[int, int] | None = None

    def opened(self) -> None:
        """Notes that the file was opened; the first one counts."""
        if self._identity is None:
            self._identity = identity_of(self._path)

    def check(self) -> None:
        """Refuses where another file stands there than was opened, or none. Who may not look does not know; Windows lets nobody replace it.

        Raises:
            NotInPlaceError: What would be committed to the file that was opened would be lost.
        """
        if self._identity is None or os.name == "nt":
            return
        try:
            found = os.stat(self._path)  # noqa: PTH116  # at each use, and a `Path` takes longer
        except (FileNotFoundError, NotADirectoryError):
            raise NotInPlaceError(
                f"{self._path}: is not there any more; what would be written to it would be lost", file=self._path
            ) from None
        except OSError:
            return
        if (found.st_dev, found.st_ino) != self._identity:
            raise NotInPlaceError(
                f"{self._path}: another file has taken its place since it was opened; what would be written to the old one would be lost. "
                "Close the instance in each process, remove the old file's -wal and -shm, and open it again",
                file=self._path,
            )


def identity_of(path: str) -> tuple[int, int] | None:
    """The device and the inode of a file; None where it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  # as above
    except OSError:
        return None
    return found.st_dev, found.st_ino
