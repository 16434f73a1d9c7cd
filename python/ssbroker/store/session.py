"""One transaction of a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store.connections import Connections, undone_error
from ssbroker.store.fair_lock import FairLock
from ssbroker.store.place import NotInPlaceError
from ssbroker.store.sqlite import lock_timeout_error, own_lock_error, storage_errors

if TYPE_CHECKING:
    import apsw


class Session:
    """One transaction of a file (B2), begun when it is first needed. Not for several threads at once.

    Args:
        path: The file.
        connections: Its connections.
        writer: Its write lock within this process.
        lock_timeout: The seconds to wait for others.
        ended: Told why the disk did not take a commit, or None where it took one that changed something.

    Attributes:
        is_reusable: Whether the connection may serve others afterwards.
    """

    def __init__(
        self,
        path: Path,
        *,
        connections: Connections,
        writer: FairLock,
        lock_timeout: float,
        ended: Callable[[str | None], None],
    ) -> None:
        self._path = path
        self._connections = connections
        self._writer = writer
        self._lock_timeout = lock_timeout
        self._ended = ended
        self.is_reusable = True
        self._thread = threading.get_ident()
        self._changes = 0
        self._connection: apsw.Connection | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the write lock is held."""
        return self._connection is not None

    def begin(self) -> apsw.Connection:
        """The connection, with the write lock; the lock is taken at the first call.

        Raises:
            LockTimeoutError: It was not free within `lock_timeout` seconds, or this thread would wait for itself.
            StorageError: The file cannot be written, or has undone the transaction.
        """
        if self._connection is None:
            self._connection = self._begin()
        elif self._connections.is_inherited:
            self._connections.check()
        elif not _is_in_transaction(self._connection):
            raise undone_error(self._path)
        return self._connection

    def commit(self) -> None:
        """Makes what was done durable and visible (B4); nothing where nothing was begun. Ends the session either way.

        Raises:
            StorageError: It could not be; then nothing has changed.
        """
        connection = self._connection
        if connection is None:
            return
        try:
            if self._connections.is_inherited:
                self._connections.check()
            if not _is_in_transaction(connection):
                raise undone_error(self._path)
            self._commit(connection)
            if connection.total_changes() != self._changes:
                self._ended(None)
        finally:
            self.close()

    def close(self) -> None:
        """Undoes what was not committed, and gives back the lock."""
        connection, self._connection = self._connection, None
        if connection is None or self._connections.is_inherited:
            return
        try:
            self._connections.give_back(connection, is_reusable=self.is_reusable)
        finally:
            self.is_reusable = True
            self._writer.release()

    def _begin(self) -> apsw.Connection:
        self._connections.check()
        deadline = time.monotonic() + self._lock_timeout
        if self._writer.is_held_here:
            raise own_lock_error(self._path)
        if not self._writer.acquire(timeout=self._lock_timeout, holder=self._thread):
            raise lock_timeout_error(self._path, self._lock_timeout)
        try:
            with storage_errors(self._path, waited=self._lock_timeout):
                connection = self._connections.take(wait=max(0.0, deadline - time.monotonic()))
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except BaseException:
                    self._connections.give_back(connection)
                    raise
        except BaseException:
            self._writer.release()
            raise
        self._changes = connection.total_changes()
        return connection

    def _commit(self, connection: apsw.Connection) -> None:
        try:
            with storage_errors(self._path, waited=self._lock_timeout):
                try:
                    self._connections.commit(connection)
                except BaseException:
                    self._undo(connection)
                    raise
                self._connections.place.check()
        except LockTimeoutError as error:  # nobody else is in the way of who has the write lock
            raise _open_error(self._path) from error
        except NotInPlaceError:
            raise
        except StorageError as error:
            self._ended(str(error))
            raise

    def _undo(self, connection: apsw.Connection) -> None:
        """After a commit that failed.

        Where only the sync failed, the commit stands whole in the log, and would be found there after a crash. The smallest commit
        there is, a version that stays the same, takes its place. Where that cannot be written either, the disk is past help.
        """
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        with suppress(apsw.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            connection.pragma("user_version", connection.pragma("user_version"))
            self._connections.commit(connection)


def _is_in_transaction(connection: apsw.Connection) -> bool:
    import apsw  # noqa: PLC0415  # whoever has a connection has it

    try:
        return connection.in_transaction
    except apsw.ConnectionClosedError:  # by the application, which had it lent
        return False


def _open_error(path: Path) -> StorageError:
    return StorageError(
        f"{path}: nothing was committed, since something of the application is open, such as a blob; close it before the transaction ends",
        file=str(path),
    )
