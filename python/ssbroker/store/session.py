"""One transaction of a file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING

from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store import rollbacks
from ssbroker.store.connections import undone_error
from ssbroker.store.opening import patience
from ssbroker.store.plain import Done, PlainSession
from ssbroker.store.sqlite import (
    Connection,
    lock_timeout_error,
    own_lock_error,
    raise_if_about_the_file,
    storage_errors,
)

if TYPE_CHECKING:
    from ssbroker.store.file import DatabaseFile


class Session:
    """One transaction of a file (B2), begun when it is first needed. Not for several threads at once.

    Args:
        file: The file.
        lock_timeout: The seconds to wait for others.

    Attributes:
        is_reusable: Whether the connection may serve others afterwards.
    """

    __slots__ = ("_changes", "_connection", "_file", "_is_guarded", "_lock_timeout", "_thread", "is_reusable")

    def __init__(self, file: DatabaseFile, *, lock_timeout: float) -> None:
        self._file = file
        self._lock_timeout = lock_timeout
        self._thread = get_ident()
        self._connection: Connection | None = None
        self._is_guarded = False
        self._changes = 0
        self.is_reusable = True

    @property
    def is_begun(self) -> bool:
        """Whether the write lock is held."""
        return self._connection is not None

    def adopt(self, plain: PlainSession) -> Done:
        """Goes on with what a plain session of this thread has begun, if it has.

        Args:
            plain: The session, which has nothing begun any more then.

        Returns:
            What was sent and received so far, which the plain session will not tell any more.
        """
        done = plain.leave(self, self._file.connections.used)
        if self._connection is not None:
            self._connection.set_busy_handler(patience(self._lock_timeout))
        return done

    def begin(self) -> Connection:
        """The connection, with the write lock, which is taken at the first call. Whatever is executed on it, only `commit` commits.

        Raises:
            LockTimeoutError: It was not free within `lock_timeout` seconds, or this thread would wait for itself.
            StorageError: The file cannot be written, or has undone the transaction.
        """
        connection = self.begin_unguarded()
        if not self._is_guarded:
            self._file.connections.guard(connection)
            self._is_guarded = True
        return connection

    def begin_unguarded(self) -> Connection:
        """The same for who executes nothing after a statement that failed."""
        connection = self._connection
        if connection is None:
            return self._begin()
        self._check(connection)
        return connection

    def commit(self, *, received_from: Iterable[int] = ()) -> None:
        """Makes what was done durable and visible (B4); nothing where nothing was begun. Ends the session either way.

        Args:
            received_from: The queues from which something was taken; rollbacks in a row count anew for these (B24).

        Raises:
            StorageError: It could not be; then nothing has changed.
        """
        connection = self._connection
        if connection is None:
            return
        is_clean = not self._is_guarded
        try:
            self._check(connection)
            with storage_errors(self._file.path):
                rollbacks.forget(connection, received_from)
            self._commit(connection)
            if connection.total_changes() != self._changes:
                self._file.ended(None)
        except BaseException:
            is_clean = False
            raise
        finally:
            self._close(is_clean=is_clean)

    def failed(self, error: BaseException) -> None:
        """After `adopt`, where a commit of the plain session failed, or the file does not stand at its place any more.

        Args:
            error: What it raised: that there is no such file, where it has committed to one that does not stand at its place.

        Raises:
            StorageError: What that means.
        """
        try:
            if isinstance(error, FileNotFoundError):
                self._file.connections.place.check()
            elif self._connection is not None:
                self._not_committed(self._connection, error)
        finally:
            self.close()

    def close(self) -> None:
        """Undoes what was not committed, and gives back the lock."""
        self._close(is_clean=False)

    def _close(self, *, is_clean: bool) -> None:
        connection, self._connection = self._connection, None
        connections = self._file.connections
        if connection is None or connections.is_inherited:
            return
        try:
            if is_clean:
                connections.keep(connection)
            else:
                self._unguard(connection)
                connections.give_back(connection, is_reusable=self.is_reusable)
        finally:
            self.is_reusable = True
            self._file.gate.release()

    def _begin(self) -> Connection:
        connections, gate = self._file.connections, self._file.gate
        deadline = time.monotonic() + self._lock_timeout
        connections.check()  # locks that threads of a process held that was forked are never given back
        if gate.is_asked_here:
            raise own_lock_error(self._file.path)
        try:
            self._acquire()
            with storage_errors(self._file.path, waited=self._lock_timeout):
                connection = connections.take(wait=max(0.0, deadline - time.monotonic()))
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    self._changes = connection.total_changes()
                    self._connection = connection
                except BaseException:
                    if self._connection is None:
                        connections.give_back(connection)
                    raise
        except BaseException:  # the handler of a signal may have raised it, anywhere
            if self._connection is None and gate.is_held_here:
                gate.release()
            raise
        return connection

    def _acquire(self) -> None:
        if not self._file.gate.acquire(timeout=self._lock_timeout, holder=self._thread):
            raise lock_timeout_error(self._file.path, self._lock_timeout)

    def _check(self, connection: Connection) -> None:
        """Refuses where the transaction is not there any more, or not here."""
        if self._file.connections.is_inherited:
            self._file.connections.check()
        elif not connection.statements.is_begun:
            raise undone_error(self._file.path)

    def _unguard(self, connection: Connection) -> None:
        if self._is_guarded:
            self._is_guarded = False
            self._file.connections.release(connection)

    def _commit(self, connection: Connection) -> None:
        self._unguard(connection)
        try:
            is_in_place = connection.statements.commit()
        except BaseException as error:
            self._not_committed(connection, error)
            raise
        if not is_in_place:
            self._file.connections.place.check()

    def _not_committed(self, connection: Connection, error: BaseException) -> None:
        """Undoes a commit that failed, and says why, where that is about the file."""
        self._undo(connection)
        try:
            raise_if_about_the_file(error, self._file.path, waited=self._lock_timeout)
        except LockTimeoutError:  # nobody else is in the way of who has the write lock
            raise _open_error(self._file.path) from error
        except StorageError as failure:
            self._file.ended(str(failure))
            raise

    def _undo(self, connection: Connection) -> None:
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
            connection.statements.commit()


def _open_error(path: Path) -> StorageError:
    return StorageError(
        f"{path}: nothing was committed, since something of the application is open, such as a blob; close it before the transaction ends",
        file=str(path),
    )
