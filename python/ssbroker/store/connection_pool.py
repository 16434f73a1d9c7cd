"""The SQLite connections of a process to a file. They are reused, but never in a forked process."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from ssbroker.exceptions import BrokerError, StorageError
from ssbroker.store.sqlite import (
    Connection,
    Cursor,
    FileIdentity,
    busy_handler,
    connect,
    file_identity,
    rolled_back_error,
    storage_errors,
)
from ssbroker.store.write_lock import WriteLock, thread_of

_FORK_WAIT: Final = 1.0
"""Maximum number of seconds that a fork waits until no other thread executes SQLite code."""
_FORK_POLL_INTERVAL: Final = 0.0005


class ForkGuard:
    """Tracks forks of this process, and makes SQLite connections safe across them.

    Attributes:
        count: The number of forks between the first process and this one. Comparing this number is faster than asking the system for
            the process id.
        is_unsafe: Whether another thread was executing SQLite code at a fork. It may have held a mutex, which no thread in this process releases.
        inherited: The files whose connections were in use when this process was forked.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_unsafe = False
        self.inherited: Final[set[tuple[int, int] | None]] = set()
        self._pools: Final[weakref.WeakSet[ConnectionPool]] = weakref.WeakSet()
        self._lock: Final = threading.RLock()
        self._thread: int | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )

    def register(self, pool: ConnectionPool) -> None:
        """Registers the connection pool of a file."""
        self._pools.add(pool)

    def enter(self, entered: dict[object, int], key: object, thread: int) -> None:
        """Records that a thread may execute SQLite code from now on. Waits while the process forks, unless the thread already executes SQLite code."""
        while True:
            entered[key] = thread
            if self._thread in (None, thread):
                return
            del entered[key]
            if thread in self._users(list(self._pools)):  # the fork waits for this thread
                entered[key] = thread
                return
            with self._lock:
                pass

    def _before(self) -> None:
        self._lock.acquire()
        self._thread = threading.get_ident()
        pools, deadline = list(self._pools), time.monotonic() + _FORK_WAIT
        for pool in pools:
            pool.pause()
        while self._users(pools) - {self._thread} and time.monotonic() < deadline:
            time.sleep(_FORK_POLL_INTERVAL)
        for pool in pools:
            pool.close_idle()

    def _after_in_parent(self) -> None:
        for pool in list(self._pools):
            pool.end_pause()
        self._end()

    def _after_in_child(self) -> None:
        self.count += 1
        pools = list(self._pools)
        self.is_unsafe = self.is_unsafe or bool(self._users(pools) - {self._thread})
        for pool in pools:
            pool.keep_inherited()
        self._end()

    def _end(self) -> None:
        self._thread = None
        self._lock.release()

    @staticmethod
    def _users(pools: list[ConnectionPool]) -> set[int | None]:
        return set().union(*(pool.users for pool in pools))


FORKS: Final = ForkGuard()
_IDLE_MAX: Final = 8


class ConnectionPool:
    """A pool of connections to a file. A returned connection is reused unless parts of it, such as cursors, are still open.

    The pool needs no lock: each step is atomic with respect to other threads and signal handlers. It refers to connections in use only
    weakly, so that Python closes a connection whose user was interrupted before returning it.

    A forked process never uses or closes its parent's connections.

    Attributes:
        identity: Identifies the file, to detect that it was replaced.
    """

    def __init__(self, path: Path, write_lock: WriteLock, *, vfs: str | None = None) -> None:
        self._path = path
        self._write_lock = write_lock
        self.identity: Final = FileIdentity(path)
        self.vfs: Final = vfs
        self._forks = FORKS.count
        self._entered: dict[object, int] = {}
        self._opened: set[weakref.ref[Connection]] = set()
        self._idle: list[Connection] = []
        self._is_closed = False
        FORKS.register(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process and the connections belong to its parent."""
        return self._forks != FORKS.count

    @property
    def is_closed(self) -> bool:
        """Whether the file is closed."""
        return self._is_closed

    def check(self) -> None:
        """Raises `StorageError` if the file was opened before a fork, or is closed."""
        if self.is_inherited:
            raise StorageError(
                f"{self._path}: was opened before this process was forked; open the instance again in this process",
                file=str(self._path),
            )
        if self._is_closed:
            raise StorageError(
                f"{self._path}: is closed; open the instance again, or, if only the database was detached or dropped and attached again, "
                "get it with instance.database(name) again",
                file=str(self._path),
            )

    def take(self, *, wait: float, create: bool = False, has_write_lock: bool = False) -> Connection:
        """Takes a connection without an open transaction from the pool, or opens one. The connection waits up to `wait` seconds for locks of other processes.

        `has_write_lock` means that the caller holds the write lock, and can take the connection that is kept with the lock.
        """
        self.check()
        if FORKS.is_unsafe:
            raise StorageError(
                f"{self._path}: other threads were using SQLite when this process was forked, so this process could wait for them forever; "
                "fork before you open an instance, or start processes with `spawn`",
                file=str(self._path),
            )
        self.identity.check()
        key, thread = object(), threading.get_ident()
        try:
            FORKS.enter(self._entered, key, thread)
            if (connection := self._take_idle(has_write_lock=has_write_lock)) is not None:
                connection.set_busy_handler(busy_handler(wait))
                connection.user = thread  # last, because an interrupt may follow a call
                return connection
            if FORKS.inherited and file_identity(str(self._path)) in FORKS.inherited:
                raise StorageError(
                    f"{self._path}: was in use when this process was forked; fork before you open the instance, or start processes with `spawn`",
                    file=str(self._path),
                )
            connection = connect(self._path, create=create, wait=wait, vfs=self.vfs)
            self.identity.record()
            self._opened.add(weakref.ref(connection, self._opened.discard))
            connection.user = thread
            return connection
        finally:
            if key in self._entered:  # not `pop`: an interrupt after a call would lose the connection
                del self._entered[key]

    @property
    def used(self) -> list[Connection]:
        """The connections in use, without that of the holder of the write lock."""
        return [each for each in self._connections() if each.user is not None]

    def resume(self, connection: Connection, *, wait: float) -> bool:
        """Takes a connection again that its caller has kept without using it; returns False if a fork has closed the connection."""
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        if self.is_inherited:
            self.check()
        key, thread = object(), threading.get_ident()
        try:
            FORKS.enter(self._entered, key, thread)
            connection.set_busy_handler(busy_handler(wait))
            connection.user = thread
        except apsw.ConnectionClosedError:
            return False
        finally:
            self._entered.pop(key, None)
        return True

    def block_commits(self, connection: Connection) -> None:
        """Makes every commit on a connection fail until its commit hook is removed.

        This prevents two ways of committing only a part of a transaction: `COMMIT` in an application's SQL, and a statement after SQLite
        has rolled back the transaction by itself, as it does when a disk fails.
        """
        connection.set_commit_hook(self._reject_commit)

    def reset(self, connection: Connection) -> bool:
        """Rolls back uncommitted changes, and removes the hooks of this package; returns whether the connection can be used again.

        If an application has kept the connection, it cannot use it while the connection is idle.
        """
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        if not connection.is_reusable:
            return False
        try:
            connection.exec_trace = None
            connection.set_commit_hook(None)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if connection.is_exposed:
                connection.exec_trace = self._refuse_if_idle
            # A cursor that has not been read to its end keeps an old snapshot, which makes further writes impossible.
            return connection.txn_state() == apsw.SQLITE_TXN_NONE
        except apsw.Error:
            return False

    def give_back(self, connection: Connection) -> None:
        """Resets a connection and returns it to the pool, or closes it if it cannot be used again."""
        if self.is_inherited:
            return
        is_reusable = False
        try:
            is_reusable = self.reset(connection) and not self._is_closed and len(self._idle) < _IDLE_MAX
        finally:
            if not is_reusable:
                connection.close(force=True)
        if is_reusable:
            key = object()  # so that a fork between these steps does not miss the connection
            try:
                self._entered[key] = threading.get_ident()
                connection.user = None
                self._idle.append(connection)
            finally:
                self._entered.pop(key, None)
            if self._is_closed:  # closed by another thread
                self.close()

    def close(self) -> None:
        """Closes the connections that are not in use; connections in use are closed when they are returned."""
        if self.is_inherited:
            return
        key = object()
        try:
            FORKS.enter(self._entered, key, threading.get_ident())
            self._is_closed = True
            self._write_lock.close()
            while (connection := self._take_idle(has_write_lock=True)) is not None:
                connection.close(force=True)
        finally:
            self._entered.pop(key, None)

    def pause(self) -> None:
        """Makes new transactions call `take` for a connection while a fork is in progress."""
        self._write_lock.set_paused(True)

    def end_pause(self) -> None:
        """Ends the pause after the fork."""
        self._write_lock.set_paused(False)

    @property
    def users(self) -> set[int | None]:
        """The threads that may be executing inside SQLite for this file."""
        in_use = self._write_lock.connection_in_use()
        threads = {*list(self._entered.values()), *(each.user for each in self.used)}
        return threads if in_use is None or in_use[1] is None else threads | {thread_of(in_use[1])}

    def close_idle(self) -> None:
        """Before a fork: closes connections without a user, so that the new process does not inherit them and can open the file itself."""
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        connections, in_use = self._connections(), self._write_lock.connection_in_use()
        while self._take_idle(has_write_lock=True) is not None:
            pass
        for connection in connections:
            if connection.user is None and (in_use is None or in_use[0] is not connection):
                with suppress(apsw.ConnectionClosedError):
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a checkpoint is not needed here
                    connection.close(force=True)

    def keep_inherited(self) -> None:
        """In a forked process: prevents connections that were in use at the fork from ever being closed, and their file from being opened.

        Closing such a connection would roll back its transaction in the shared index of the write-ahead log, and so
        corrupt the parent's file. While such a connection is open, SQLite treats the parent's locks as locks of this process,
        so writes could be lost.
        """
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        self._write_lock.mark_inherited()
        in_use = self._write_lock.connection_in_use()
        used = self.used if in_use is None else [*self.used, in_use[0]]
        if used or self._entered:
            for kept in (apsw, *used):  # apsw closes all connections when it is unloaded
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            FORKS.inherited.add(file_identity(str(self._path)))
            FORKS.inherited.discard(None)  # the identity of a file that no longer exists

    def _connections(self) -> list[Connection]:
        """Returns all connections that are open, and some that are closed."""
        return [found for each in list(self._opened) if (found := each()) is not None]

    def _take_idle(self, *, has_write_lock: bool) -> Connection | None:
        kept: Connection | None = self._write_lock.take_idle_connection() if has_write_lock else None
        if kept is not None:
            return kept
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _refuse_if_idle(self, cursor: Cursor | Connection, sql: str, _bindings: object) -> bool:
        """Raises `BrokerError` for a statement on a connection that is not taken."""
        connection = cast("Connection", getattr(cursor, "connection", cursor))
        if connection.user is not None:
            return True
        in_use = self._write_lock.connection_in_use()
        if in_use is not None and in_use[0] is connection:
            return True
        raise BrokerError(
            f"{sql.strip()!r:.80} cannot be executed: the `with` block that the connection belongs to has ended; "
            "use a connection only inside its block"
        )

    def _reject_commit(self) -> bool:
        raise rolled_back_error(self._path)


class CommitWatch:
    """Detects commits to a file by any program, with a separate connection that queries the file's version. Not thread-safe.

    In contrast, `CommitSignals` announces only the commits of ssbroker.
    """

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
            try:
                if self._connection is None or not self._connections.resume(self._connection, wait=self._wait):
                    self._connection = self._version = None  # the counters of different connections are not comparable
                    self._connection = self._connections.take(wait=self._wait)
                version: int = self._connection.pragma("data_version")
            finally:
                if self._connection is not None:
                    self._connection.user = None  # until the next call
        before, self._version = self._version, version
        return version != before

    def close(self) -> None:
        """Returns the connection to the pool."""
        connection, self._connection = self._connection, None
        if connection is not None and self._connections.resume(connection, wait=self._wait):
            self._connections.give_back(connection)
