"""Detects commits to a database file by any program, which it asks for its version; `CommitSignals` are sent by ssbroker instead."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ssbroker.store.connection_pool import ConnectionPool
from ssbroker.store.sqlite import Connection, busy_handler, storage_errors


class CommitWatch:
    """Detects commits to a file by any process, with a connection of its own. Not thread-safe."""

    __slots__ = ("_connection", "_connections", "_path", "_version", "_wait")

    def __init__(self, path: Path, *, connections: ConnectionPool, wait: float) -> None:
        self._path: Final = path
        self._connections: Final = connections
        self._wait: Final = wait
        self._connection: Connection | None = None
        self._version: int | None = None

    def has_changed(self) -> bool:
        """Returns whether any process has committed since the last call; the first call returns True."""
        with storage_errors(self._path, waited=self._wait):
            if self._connection is None or not self._connections.resume(self._connection):
                self._connection = self._version = None  # the counter of another connection is not comparable
                self._connection = self._connections.take(wait=self._wait)
            else:
                self._connection.set_busy_handler(busy_handler(self._wait))
            try:
                version: int = self._connection.pragma("data_version")
            finally:
                self._connections.suspend(self._connection)
        before, self._version = self._version, version
        return version != before

    def close(self) -> None:
        """Returns the connection to the pool."""
        connection, self._connection = self._connection, None
        if connection is not None and self._connections.resume(connection):
            self._connections.give_back(connection)
