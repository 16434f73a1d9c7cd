"""Sees that others have committed to a file, for next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ssbroker.store.connections import Connections
from ssbroker.store.opening import patience
from ssbroker.store.sqlite import Connection, storage_errors

if TYPE_CHECKING:
    from pathlib import Path


class Watch:
    """A connection that only asks whether the file has changed since it was last asked. Not for several threads at once.

    Args:
        path: The file.
        connections: Where connections come from.
        wait: The seconds to wait for other processes.
    """

    __slots__ = ("_connection", "_connections", "_path", "_version", "_wait")

    def __init__(self, path: Path, *, connections: Connections, wait: float) -> None:
        self._path: Final = path
        self._connections: Final = connections
        self._wait: Final = wait
        self._connection: Connection | None = None
        self._version: int | None = None

    def has_changed(self) -> bool:
        """Whether anybody has committed, in this process or another, since the last call; the first says yes.

        Returns:
            Whether somebody has.

        Raises:
            StorageError: The file cannot be read.
        """
        with storage_errors(self._path, waited=self._wait):
            if self._connection is None or not self._connections.resume(self._connection):
                self._connection = self._version = None  # what another connection has counted says nothing
                self._connection = self._connections.take(wait=self._wait)
            else:
                self._connection.set_busy_handler(patience(self._wait))
            try:
                version: int = self._connection.pragma("data_version")
            finally:
                self._connections.rest(self._connection)
        before, self._version = self._version, version
        return version != before

    def close(self) -> None:
        """Gives the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None and self._connections.resume(connection):
            self._connections.give_back(connection)
