"""One transaction on a database file: its write lock, connection and commit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from ssbroker import _core
from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store.connection_pool import ConnectionPool
from ssbroker.store.queues import reset_rollbacks
from ssbroker.store.sqlite import (
    Connection,
    busy_handler,
    own_lock_error,
    raise_storage_error,
    rolled_back_error,
    storage_errors,
)
from ssbroker.store.write_lock import WriteLock

Placement: TypeAlias = tuple[int | None, int, bool]
"""Where messages were stored: (queue id, priority, whether the receiver is remote); for the transmission queue (None, sender id, False)."""
SessionSummary: TypeAlias = tuple[int, list[tuple[Placement, int]], list[tuple[int, bool]]]
"""The number of messages sent; placements with message counts; and for each RECEIVE its queue id and whether it was empty."""

ReceivedRow: TypeAlias = tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str]
"""A received message: body, handle, group, conversation, whether the initiator sent it, sequence number, type, service, contract,
priority, queuing order and validation."""

Counts = _core.Counts
SessionContext = _core.SessionContext


class SessionFile(Protocol):
    """The part of a `DatabaseFile` that a session uses."""

    has_deferred_sync: bool
    """Whether a commit since the last failure succeeded without a sync."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def connections(self) -> ConnectionPool:
        """The connections of this process."""

    @property
    def write_lock(self) -> WriteLock:
        """The write lock within this process."""

    def wait_for_release(self, seconds: float) -> bool:
        """Waits until another process releases the write lock."""

    def held_lock_error(self, waited: float) -> LockTimeoutError:
        """Returns the error for a write lock that other writers hold."""

    def lock_errors(self, *, waited: float) -> AbstractContextManager[None]:
        """Converts SQLite errors in the block; a timeout names the holder of the write lock."""

    def record_commit_result(self, failure: str | None) -> None:
        """Records whether a commit succeeded (None) or why it failed."""


class Session(_core.Session):
    """One transaction on a file: its write lock, connection and commit. Not thread-safe.

    The native base class begins, sends, receives and commits as long as it need not wait and Python does not need the
    connection. This class waits for the lock, shares the connection with Python, and reports why a commit failed.
    """

    __slots__ = ("_file", "_has_handler", "_holder", "_is_guarded", "_lock_timeout")

    def __init__(self, _context: SessionContext, holder: int, file: SessionFile, lock_timeout: float) -> None:
        self._holder = holder
        self._file = file
        self._has_handler = False
        self._lock_timeout = lock_timeout
        self._is_guarded = False

    def begin(self) -> Connection:
        """Returns the connection; the first call acquires the write lock. Only `commit` can commit, whatever SQL is executed."""
        connection = self.begin_unguarded()
        self._is_guarded = True  # first, because an interrupt may follow the next call
        self._file.connections.block_commits(connection)
        return connection

    def begin_unguarded(self) -> Connection:
        """Returns the connection like `begin`, but does not block commits: for callers that execute nothing after a failed statement."""
        has_begun = self.has_begun
        connection: Connection | None = self.begin_fast()
        if connection is None:
            return self._wait_and_begin()
        if has_begun:
            self._check(connection)
        else:
            self._check_identity()
        if not self._has_handler:  # the fast path does not wait
            connection.set_busy_handler(busy_handler(self._lock_timeout))
            self._has_handler = True
        return connection

    def commit(self, *, received_from: Iterable[int] = (), is_durable: bool = True) -> None:
        """Makes the changes visible and, if `is_durable`, durable, and ends the session. Does nothing if the transaction has not begun.

        Without `is_durable`, the changes become durable with the next durable commit of any process, or with `DatabaseFile.sync`;
        a power cut before that undoes them.
        """
        connection = self.connection
        if connection is None:
            return
        is_clean = not self._is_guarded
        try:
            self._check(connection)
            with storage_errors(self._file.path):
                reset_rollbacks(connection, received_from)
            has_changed = self.has_changed
            self._commit(connection, is_durable=is_durable)
            if has_changed and is_durable:
                self._file.record_commit_result(None)
            elif has_changed:
                self._file.has_deferred_sync = True
        except BaseException:
            is_clean = False
            raise
        finally:
            self._close(is_clean=is_clean)

    def handle_commit_failure(self, error: BaseException) -> None:
        """Ends the session after `commit_fast` has raised."""
        try:
            if isinstance(error, FileNotFoundError):
                self._file.connections.identity.check()
            elif self.connection is not None:
                self._not_committed(self.connection, error)
        finally:
            self.close()

    def close(self) -> None:
        """Rolls back uncommitted changes, and releases the lock."""
        self._close(is_clean=False)

    def _close(self, *, is_clean: bool) -> None:
        connection = self.connection
        if connection is None or self._file.connections.is_inherited:
            return
        self._has_handler = False
        is_reusable = is_clean
        try:
            is_reusable = is_clean or self._file.connections.reset(connection)
        finally:
            self._is_guarded = False
            self.release(is_reusable)

    def _wait_and_begin(self) -> Connection:
        connections, write_lock = self._file.connections, self._file.write_lock
        deadline = time.monotonic() + self._lock_timeout
        connections.check()  # locks held by threads of the parent process are never released here
        if write_lock.would_deadlock:
            raise own_lock_error(self._file.path)
        if not write_lock.acquire(timeout=self._lock_timeout, holder=self._holder):
            raise self._file.held_lock_error(self._lock_timeout)
        try:
            with self._file.lock_errors(waited=self._lock_timeout):
                wait = max(0.0, deadline - time.monotonic())
                connection = connections.take(wait=wait, has_write_lock=True)
                try:
                    connection.set_busy_handler(busy_handler(deadline - time.monotonic(), self._file.wait_for_release))
                    connection.execute("BEGIN IMMEDIATE")
                    self.adopt(connection)
                    self._has_handler = True
                finally:  # a signal handler may have raised an exception anywhere
                    if self.has_begun:
                        connection.user = None  # the write lock counts it from now on
                    else:
                        connections.give_back(connection)
        except BaseException:
            if not self.has_begun:
                write_lock.release()
            raise
        return connection

    def _check_identity(self) -> None:
        try:
            self._file.connections.identity.check()
        except BaseException:
            self.close()
            raise

    def _check(self, connection: Connection) -> None:
        """Rejects a transaction that SQLite has rolled back, or that belongs to the parent process."""
        if self._file.connections.is_inherited:
            self._file.connections.check()
        elif not connection.statements.in_transaction:
            raise rolled_back_error(self._file.path)

    def _commit(self, connection: Connection, *, is_durable: bool) -> None:
        if self._is_guarded:
            connection.set_commit_hook(None)
        try:
            is_same_file = connection.statements.commit(is_durable=is_durable)
        except BaseException as error:
            self._not_committed(connection, error)
            raise
        if not is_same_file:
            self._file.connections.identity.check()

    def _not_committed(self, connection: Connection, error: BaseException) -> None:
        """Rolls back a failed commit, and raises `StorageError` if the file is the cause."""
        self._roll_back(connection)
        try:
            raise_storage_error(error, self._file.path, waited=self._lock_timeout)
        except LockTimeoutError:  # no other process can block the holder of the write lock
            raise _open_error(self._file.path) from error
        except StorageError as failure:
            self._file.record_commit_result(str(failure))
            raise

    def _roll_back(self, connection: Connection) -> None:
        """Rolls back a failed commit.

        If only the sync failed, the commit is complete in the log, and would take effect after a crash. It is replaced
        with the smallest possible commit, which rewrites `PRAGMA user_version` unchanged. If that also fails, nothing
        more can be done.
        """
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        with suppress(apsw.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            connection.pragma("user_version", connection.pragma("user_version"))
            connection.statements.commit()


def _open_error(path: Path) -> StorageError:
    return StorageError(
        f"{path}: nothing was committed, because the application has an open statement or blob; close it before the transaction ends",
        file=str(path),
    )
