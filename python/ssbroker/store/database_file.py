"""A database file: connections, transactions, the single writer, fork safety."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from enum import IntFlag
from pathlib import Path
from threading import get_ident
from typing import Final, Protocol, TypeAlias, TypeVar, final

from ssbroker import _core
from ssbroker._arguments import timeout_seconds
from ssbroker.exceptions import LockTimeoutError, OutputError, StorageError
from ssbroker.store.objects import NativeSnapshot
from ssbroker.store.queues import reset_rollbacks
from ssbroker.store.schema import APPLICATION_ID
from ssbroker.store.sqlite import (
    Connection,
    FileIdentity,
    FileReplacedError,
    busy_handler,
    check_empty,
    connect,
    file_identity,
    lock_timeout_error,
    own_lock_error,
    raise_storage_error,
    single_row,
    storage_errors,
)

Placement: TypeAlias = tuple[int | None, int, bool]
"""Where messages were stored: (queue id, priority, whether the receiver is remote); for the transmission queue (None, sender id, False)."""
SessionSummary: TypeAlias = tuple[int, list[tuple[Placement, int]], list[tuple[int, bool]]]
"""The number of messages sent; placements with message counts; and for each RECEIVE its queue id and whether it was empty."""

ReceivedRow: TypeAlias = tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str]
"""A received message: body, handle, group, conversation, whether the initiator sent it, sequence number, type, service, contract,
priority, queuing order and validation."""

Arrivals = _core.Arrivals
SharedMemory = _core.SharedMemory
Counts = _core.Counts
SessionContext = _core.SessionContext


SHARED_MEMORY_SUFFIX: Final = "-notify"
"""Suffix of the file beside a database file that contains the memory its processes share."""


class LockCall(IntFlag):
    """The kinds of calls that the holder of a write lock has made, as other processes see them; `rust/python/src/session.rs` has the same bits."""

    SEND = 1
    RECEIVE = 2
    SQL = 4


def describe_lock_holder(holder: tuple[int, int, int] | None, thread: int | None) -> str:
    """Describes the holder of a write lock, as in `SharedMemory.holder`, and what to do; `thread` holds it if it is of this process."""
    if holder is None or not _is_running(holder[0]):
        return "The holder is unknown: another program, such as the sqlite3 shell, may have an open write transaction"
    process_id, since, calls = holder
    who = f"Process {process_id}"
    advice = "Do slow work outside transactions: take messages with a lease, with Database.take"
    if process_id == os.getpid() and thread == threading.get_ident():
        # This thread has the lock of its own Instance, and waits for the lock of the file.
        who = "Another Instance of this process"
        advice = "Open each folder once in a process, and share the Instance between its threads"
    elif process_id == os.getpid():
        names = {each.ident: each.name for each in threading.enumerate()}
        who = f"Thread {names.get(thread, 'unknown')!r} of this process"
    started = datetime.fromtimestamp(since / 1e6, UTC)
    done = [text for call, text in _LOCK_CALLS.items() if calls & call]
    what = f", in a transaction that has {' and '.join(done)}" if done else ""
    return (
        f"{who} has held the lock since {started:%H:%M:%S} UTC, for {max(0.0, time.time() - since / 1e6):.1f} s{what}. "
        f"{advice}"
    )


_LOCK_CALLS: Final = {
    LockCall.RECEIVE: "received messages",
    LockCall.SEND: "sent messages",
    LockCall.SQL: "executed SQL on its connection",
}


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


_FORK_WAIT: Final = 1.0
"""Maximum seconds that a fork waits for other threads to leave SQLite."""
_FORK_POLL_INTERVAL: Final = 0.0005


_PAGES_COPIED: Final = 1000
"""The pages that a copy of a file reads between two checks for an interrupt."""
_CALLER: Final = threading.local()


@contextmanager
def calling_for(thread: int) -> Iterator[None]:
    """Marks the calls of this thread as made for the thread of an event loop, which waits for them."""
    _CALLER.thread = thread
    try:
        yield
    finally:
        del _CALLER.thread


class Pool(Protocol):
    """A connection pool that must be safe across forks."""

    @property
    def users(self) -> set[int]:
        """The threads that may be executing inside SQLite for this file."""

    def pause(self) -> None:
        """Makes new users of the pool call `ForkGuard.enter` first."""

    def close_idle(self) -> None:
        """Closes the connections that are not in use."""

    def end_pause(self) -> None:
        """Ends the pause."""

    def keep_inherited(self) -> None:
        """In the forked process: prevents inherited connections from ever being closed."""


class ForkGuard:
    """Tracks forks of this process, and makes SQLite connections safe across them.

    Attributes:
        count: The number of forks since the first process. Comparing it is faster than asking the system for the process id.
        is_unsafe: Whether another thread was inside SQLite at a fork; it may have held a mutex that nobody in this process releases.
        inherited: The files whose connections were in use when this process was forked.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_unsafe = False
        self.inherited: Final[set[tuple[int, int] | None]] = set()
        self._pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()
        self._lock: Final = threading.RLock()
        self._thread: int | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )

    def register(self, pool: Pool) -> None:
        """Registers the connection pool of a file."""
        self._pools.add(pool)

    def enter(self, used: dict[object, int], key: object, thread: int) -> None:
        """Records that a thread may be inside SQLite from now on; waits while the process forks, unless the thread is already inside."""
        while True:
            used[key] = thread
            if self._thread in (None, thread):
                return
            del used[key]
            if thread in self._users(list(self._pools)):  # the fork waits for it
                used[key] = thread
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
    def _users(pools: list[Pool]) -> set[int | None]:
        return set().union(*(pool.users for pool in pools))


FORKS: Final = ForkGuard()


@final
class WriteLock(_core.WriteLock):
    """The write lock of a file within this process: FIFO, with timeouts.

    While free, it can keep one open connection for the next holder. Every step is atomic, because a signal handler may interrupt it and
    acquire the lock.

    Examples:
        >>> lock = WriteLock()
        >>> lock.acquire(timeout=1.0), lock.acquire(timeout=0.0)
        (True, False)
        >>> lock.release()
    """

    __slots__ = ()

    @property
    def is_held_by_this_thread(self) -> bool:
        """Whether this thread holds the lock, so that acquiring it again would deadlock."""
        return self.holder == threading.get_ident()

    @property
    def would_deadlock(self) -> bool:
        """Whether this thread holds the lock or waits for it, so that acquiring it (in a signal handler) would deadlock."""
        thread = threading.get_ident()
        return self.is_waiting(thread) or self.holder == thread

    def acquire(self, *, timeout: float, holder: int | None = None) -> bool:
        """Waits for the lock for up to `timeout` seconds; returns whether it was acquired. `holder` is the thread id that will release it."""
        holder = threading.get_ident() if holder is None else holder
        if self.try_acquire(holder):
            return True
        signal = threading.Lock()
        signal.acquire()
        if self.acquire_or_enqueue(signal, holder):  # it was released just now
            return True
        try:
            signal.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
            return self.stop_waiting(signal)
        except BaseException:  # Ctrl-C: an abandoned place in the queue would block all others
            if self.stop_waiting(signal):
                self.release()
            raise


_IDLE_MAX: Final = 8


class Connections:
    """A pool of connections to a file. A returned connection is reused unless something of it is still open.

    There is no lock here: each step is atomic with respect to other threads and signal handlers.

    A forked process never uses or closes connections of its parent.

    Attributes:
        identity: Identifies the file, to detect that it was replaced.
    """

    def __init__(self, path: Path, write_lock: WriteLock, *, vfs: str | None = None) -> None:
        self._path = path
        self._write_lock = write_lock
        self.identity: Final = FileIdentity(path)
        self.vfs: Final = vfs
        self._forks = FORKS.count
        self._used: dict[object, int] = {}
        self._idle: list[Connection] = []
        self._suspended: set[Connection] = set()
        self._is_closed = False
        FORKS.register(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process and the connections belong to its parent."""
        return self._forks != FORKS.count

    def check(self) -> None:
        """Raises `StorageError` if the file was opened before a fork, or is closed."""
        if self.is_inherited:
            raise StorageError(
                f"{self._path}: was opened before this process was forked; open the instance again in this process",
                file=str(self._path),
            )
        if self._is_closed:
            raise StorageError(f"{self._path}: is closed; open the instance again", file=str(self._path))

    def take(self, *, wait: float, create: bool = False) -> Connection:
        """Takes a connection without an open transaction, which waits up to `wait` seconds for other processes."""
        self.check()
        if FORKS.is_unsafe:
            raise StorageError(
                f"{self._path}: other threads were using SQLite when this process was forked, so it may wait for them forever; "
                "fork before you open an instance, or start processes with `spawn`",
                file=str(self._path),
            )
        self.identity.check()
        key, thread = object(), threading.get_ident()
        try:
            FORKS.enter(self._used, key, thread)
            if (connection := self._take_idle()) is not None:
                self._used[connection] = thread
                connection.set_busy_handler(busy_handler(wait))
                return connection
            if FORKS.inherited and file_identity(str(self._path)) in FORKS.inherited:
                raise StorageError(
                    f"{self._path}: was in use when this process was forked; fork before you open the instance, or start processes with `spawn`",
                    file=str(self._path),
                )
            connection = connect(self._path, create=create, wait=wait, vfs=self.vfs)
            self.identity.record()
            self._used[connection] = thread
            return connection
        finally:
            self._used.pop(key, None)

    @property
    def used(self) -> dict[object, int]:
        """The connections in use, with the id of the thread that uses each."""
        return self._used

    def move_to_write_lock(self, connection: Connection) -> None:
        """Records that a connection now belongs to the holder of the write lock, which counts as in use."""
        self._used.pop(connection, None)

    def suspend(self, connection: Connection) -> None:
        """Marks a connection as kept by its user, but unused until `resume`."""
        self._suspended.add(connection)
        self._used.pop(connection, None)

    def resume(self, connection: Connection) -> bool:
        """Marks a suspended connection as in use again; returns False if a fork has closed it."""
        if self.is_inherited:
            self.check()
        FORKS.enter(self._used, connection, threading.get_ident())
        try:
            self._suspended.remove(connection)
        except KeyError:
            self._used.pop(connection, None)
            return False
        return True

    def block_commits(self, connection: Connection) -> None:
        """Makes every commit on a connection fail until `allow_commits`.

        Then neither `COMMIT` in an application's SQL, nor a statement after SQLite has rolled back the transaction by itself (as it does
        when a disk fails), can commit part of a transaction.
        """
        connection.set_commit_hook(self._reject_commit)

    def allow_commits(self, connection: Connection) -> None:
        """Lets a connection commit again, unless the application has closed it."""
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        with suppress(apsw.ConnectionClosedError):
            connection.set_commit_hook(None)

    def give_back(self, connection: Connection, *, is_reusable: bool = True, with_lock: bool = False) -> None:
        """Rolls back what is not committed, and returns the connection to the pool, or to the write lock if `with_lock`."""
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        if self.is_inherited:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            # A cursor that was not read to its end holds an old snapshot, which makes further writes impossible.
            is_clean = connection.txn_state() == apsw.SQLITE_TXN_NONE
        except apsw.Error:
            is_clean = False
        if is_clean and is_reusable and not self._is_closed:
            if with_lock and self._write_lock.keep_connection(connection):
                del self._used[connection]
                return
            if len(self._idle) < _IDLE_MAX:
                self._put_into_pool(connection)
                return
        try:
            connection.close(force=True)
        finally:
            self._used.pop(connection, None)

    def close(self) -> None:
        """Closes the connections that are not in use; the others are closed when they are returned."""
        if self.is_inherited:
            return
        key = object()
        try:
            FORKS.enter(self._used, key, threading.get_ident())
            self._is_closed = True
            self._write_lock.close()
            while (connection := self._write_lock.take_idle_connection() or self._take_idle()) is not None:
                connection.close(force=True)
        finally:
            self._used.pop(key, None)

    def pause(self) -> None:
        """Makes new transactions call `take` for a connection while a fork is in progress."""
        self._write_lock.set_paused(True)

    def end_pause(self) -> None:
        """Ends the pause after the fork."""
        self._write_lock.set_paused(False)

    @property
    def users(self) -> set[int]:
        """The threads that may be executing inside SQLite for this file."""
        in_use = self._write_lock.connection_in_use()
        threads = {*list(self._used.values())}
        return threads if in_use is None or in_use[1] is None else threads | {in_use[1]}

    def close_idle(self) -> None:
        """Before a fork: closes idle connections, so that the new process does not inherit them and may open the file itself."""
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        idle = list(self._suspended)
        self._suspended.difference_update(idle)
        if (kept := self._write_lock.take_idle_connection()) is not None:
            idle.append(kept)
        while (connection := idle.pop() if idle else self._take_idle()) is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # not needed here
            connection.close(force=True)

    def keep_inherited(self) -> None:
        """In a forked process: prevents connections that were in use from ever being closed, and their file from being opened.

        Closing a connection rolls back its transaction in the shared index of the write-ahead log, which would corrupt the parent's file.
        And while one is open, SQLite mistakes the parent's locks for those of this process, so writes could be lost.
        """
        import apsw  # noqa: PLC0415  # a caller that has a connection has imported it

        self._write_lock.mark_inherited()
        in_use = self._write_lock.connection_in_use()
        used = [*self._used] if in_use is None else [*self._used, in_use[0]]
        if used:
            for kept in (apsw, *used):  # apsw closes all connections when it is unloaded
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            FORKS.inherited.add(file_identity(str(self._path)))
            FORKS.inherited.discard(None)  # the file no longer exists

    def _put_into_pool(self, connection: Connection) -> None:
        """Puts a connection into the pool for the next user."""
        key = object()  # so that a fork in between does not miss it
        self._used[key] = self._used.get(connection, threading.get_ident())
        del self._used[connection]
        self._idle.append(connection)
        del self._used[key]
        if self._is_closed:  # meanwhile
            self.close()

    def _take_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _reject_commit(self) -> bool:
        raise rolled_back_error(self._path)


def rolled_back_error(path: Path, reason: str = "was ended by SQL, or rolled back after a disk error") -> StorageError:
    """Returns the error for a transaction that is no longer open; the reason completes `the transaction ...`."""
    return StorageError(
        f"{path}: the transaction {reason}; no changes were saved; run the transaction again", file=str(path)
    )


class Session(_core.Session):
    """One transaction of a file: its write lock, its connection, its commit. Not thread-safe.

    The native part begins, sends, receives and commits as long as it need not wait and Python does not need the connection. This part
    waits for the lock, shares the connection with Python, and reports why a commit failed.

    Attributes:
        is_reusable: Whether the connection may be reused by later transactions.
    """

    __slots__ = ("_file", "_has_handler", "_is_guarded", "_lock_timeout", "_thread", "is_reusable")

    def __init__(self, _context: SessionContext, thread: int, file: DatabaseFile, lock_timeout: float) -> None:
        self._thread = thread
        self._file = file
        self._has_handler = False
        self._lock_timeout = lock_timeout
        self._is_guarded = False
        self.is_reusable = True

    def begin(self) -> Connection:
        """Returns the connection; the first call acquires the write lock. Only `commit` can commit, whatever SQL is executed."""
        connection = self.begin_unguarded()
        if not self._is_guarded:
            self._file.connections.block_commits(connection)
            self._is_guarded = True
        return connection

    def begin_unguarded(self) -> Connection:
        """Returns the connection, for callers that execute nothing after a statement that failed."""
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

        Other changes become durable with the next durable commit of any process, or with `DatabaseFile.sync`; a power cut before that undoes them.
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
        """Rolls back what was not committed, and releases the lock."""
        self._close(is_clean=False)

    def _close(self, *, is_clean: bool) -> None:
        connections = self._file.connections
        if not self.has_begun or connections.is_inherited:
            return
        self._has_handler = False
        if is_clean and self.release():
            return
        try:
            # A fork must never miss a connection that is in use.
            connections.used[self.connection] = self._thread
            connection = self.detach()
            self._unguard(connection)
            connections.give_back(connection, is_reusable=self.is_reusable, with_lock=True)
        finally:
            self.is_reusable = True
            self._file.write_lock.release()

    def _wait_and_begin(self) -> Connection:
        connections, write_lock = self._file.connections, self._file.write_lock
        deadline = time.monotonic() + self._lock_timeout
        connections.check()  # locks held by threads of the parent process are never released here
        if write_lock.would_deadlock:
            raise own_lock_error(self._file.path)
        is_acquired = False
        try:
            self._acquire()
            is_acquired = True
            with self._file.lock_errors(waited=self._lock_timeout):
                connection: Connection = connections.take(wait=max(0.0, deadline - time.monotonic()))
                try:
                    connection.set_busy_handler(busy_handler(deadline - time.monotonic(), self._file.wait_for_release))
                    connection.execute("BEGIN IMMEDIATE")
                    self.adopt(connection)
                    connections.move_to_write_lock(connection)
                    self._has_handler = True
                except BaseException:
                    if not self.has_begun:
                        connections.give_back(connection)
                    raise
        except BaseException:  # a signal handler may have raised it anywhere
            if not self.has_begun and (is_acquired or write_lock.is_held_by_this_thread):
                write_lock.release()
            raise
        return connection

    def _check_identity(self) -> None:
        try:
            self._file.connections.identity.check()
        except BaseException:
            self.close()
            raise

    def _acquire(self) -> None:
        if not self._file.write_lock.acquire(timeout=self._lock_timeout, holder=self._thread):
            raise self._file.lock_timeout_error(self._lock_timeout)

    def _check(self, connection: Connection) -> None:
        """Rejects a transaction that SQLite has rolled back, or that belongs to the parent process."""
        if self._file.connections.is_inherited:
            self._file.connections.check()
        elif not connection.statements.in_transaction:
            raise rolled_back_error(self._file.path)

    def _unguard(self, connection: Connection) -> None:
        if self._is_guarded:
            self._is_guarded = False
            self._file.connections.allow_commits(connection)

    def _commit(self, connection: Connection, *, is_durable: bool) -> None:
        self._unguard(connection)
        try:
            is_same_file = connection.statements.commit(is_durable=is_durable)
        except BaseException as error:
            self._not_committed(connection, error)
            raise
        if not is_same_file:
            self._file.connections.identity.check()

    def _not_committed(self, connection: Connection, error: BaseException) -> None:
        """Rolls back a commit that failed, and raises `StorageError` if the file is the cause."""
        self._roll_back(connection)
        try:
            raise_storage_error(error, self._file.path, waited=self._lock_timeout)
        except LockTimeoutError:  # no other process can block the holder of the write lock
            raise _open_error(self._file.path) from error
        except StorageError as failure:
            self._file.record_commit_result(str(failure))
            raise

    def _roll_back(self, connection: Connection) -> None:
        """Rolls back a commit that failed.

        If only the sync failed, the commit is complete in the log, and would take effect after a crash. The smallest possible commit,
        which rewrites the version unchanged, replaces it. If that fails too, nothing more can be done.
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


class FileWatch:
    """Detects commits to a file by any process, with a connection of its own. Not thread-safe."""

    __slots__ = ("_connection", "_connections", "_path", "_version", "_wait")

    def __init__(self, path: Path, *, connections: Connections, wait: float) -> None:
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


Result = TypeVar("Result")

WRITE_RETRY_AFTER: Final = 120.0
"""Seconds after a failed write until `retry_failed_write` tries again, longer than any wait of P17; a failed read is reported for as long."""
LOCK_TIMEOUT: Final = 10.0
"""Default seconds to wait for a file's write lock."""


class DatabaseFile:
    """An open database file. Thread-safe within the process that opened it.

    Attributes:
        path: The file.
        lock_timeout: Seconds to wait for the write lock.
        failure: Why the last write of this process failed; None if it succeeded.
        failed_at: The time of that failure, by `time.monotonic`.
        has_deferred_sync: Whether a commit since then succeeded without a sync, so that the next sync ends the failure.
        write_lock: The write lock within this process.
        connections: The connections of this process.
    """

    def __init__(self, path: Path, *, lock_timeout: float = LOCK_TIMEOUT, vfs: str | None = None) -> None:
        self.path = path
        self.lock_timeout = timeout_seconds(lock_timeout, name="lock_timeout")
        self.failure: str | None = None
        self.failed_at = -math.inf
        self.has_deferred_sync = False
        self._read_error = ""
        self._read_failed_at = -math.inf
        self._shared: SharedMemory | None = None
        self.write_lock: Final = WriteLock()
        self._context: Final = SessionContext(self.write_lock)
        self.connections: Final = Connections(path, self.write_lock, vfs=vfs)

    @classmethod
    def create(
        cls,
        path: Path,
        migrations: tuple[str, ...],
        *,
        fill: Callable[[Connection], None] | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        vfs: str | None = None,
    ) -> DatabaseFile:
        """Creates the file with its tables and what `fill` writes, in one transaction. An empty file left by a crash is reused."""
        file = cls(path, lock_timeout=lock_timeout, vfs=vfs)
        try:
            with storage_errors(path, waited=file.lock_timeout):
                file.connections.give_back(file.connections.take(wait=file.lock_timeout, create=True))
            with file.write() as connection:
                check_empty(connection, path)  # another process may have been faster
                connection.pragma("application_id", APPLICATION_ID)
                _migrate(connection, migrations, 0)
                if fill is not None:
                    fill(connection)
        except BaseException:
            file.close()
            raise
        return file

    @classmethod
    def open(
        cls,
        path: Path,
        migrations: tuple[str, ...],
        *,
        lock_timeout: float = LOCK_TIMEOUT,
        vfs: str | None = None,
    ) -> DatabaseFile:
        """Opens a file, and migrates its tables to the version of this library."""
        file = cls(path, lock_timeout=lock_timeout, vfs=vfs)
        try:
            with file.read() as connection:
                version = connection.pragma("user_version")
            if version < len(migrations):
                with file.write() as connection:
                    version = connection.pragma("user_version")
                    if 0 <= version < len(migrations):  # no other process was faster
                        with storage_errors(path, is_internal=True):
                            _migrate(connection, migrations, version)
            _check_version(path, version, len(migrations))
        except BaseException:
            file.close()
            raise
        return file

    @property
    def is_locked_by_this_thread(self) -> bool:
        """Whether this thread, or the one that it makes calls for, holds the write lock, so that acquiring it again could deadlock."""
        holder = self.write_lock.holder
        return holder is not None and holder in (get_ident(), getattr(_CALLER, "thread", None))

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process whose parent opened the file."""
        return self.connections.is_inherited

    def check(self) -> None:
        """Raises `StorageError` if the file was opened before a fork, or is closed."""
        self.connections.check()

    def share_memory(self) -> SharedMemory | None:
        """Shares memory with other processes that have the file open, and returns it; None if the system does not support it."""
        try:
            self._shared = SharedMemory(f"{self.path}{SHARED_MEMORY_SUFFIX}", self.path, os.getpid())
        except OSError:
            return None
        self.write_lock.share(self._shared)
        return self._shared

    def wait_for_release(self, seconds: float) -> bool:
        """Waits until another process releases the write lock; returns False at once if it is not known which process holds it."""
        return self._shared is not None and self._shared.wait_for_release(seconds)

    def lock_timeout_error(self, waited: float) -> LockTimeoutError:
        """Returns the error for a write lock that others hold, which names the holder if it is known."""
        error = lock_timeout_error(self.path, waited)
        if self._shared is None:
            return error
        holder = describe_lock_holder(self._shared.holder, self.write_lock.holder)
        return LockTimeoutError(f"{error}. {holder}", file=str(self.path))

    @contextmanager
    def lock_errors(self, *, waited: float) -> Iterator[None]:
        """Converts errors as `storage_errors` does, and names the holder of the write lock."""
        try:
            with storage_errors(self.path, waited=waited):
                yield
        except LockTimeoutError as error:
            raise self.lock_timeout_error(waited) from error.__cause__

    @contextmanager
    def write(self, *, lock_timeout: float | None = None, is_durable: bool = True) -> Iterator[Connection]:
        """Runs a write transaction: commits at the end of the block as `Session.commit` does, or rolls back if the block raises."""
        wait = self.lock_timeout if lock_timeout is None else lock_timeout
        session = self.session(lock_timeout=wait)
        try:
            with storage_errors(self.path, waited=wait):
                yield session.begin()
            session.commit(is_durable=is_durable)
        except StorageError as error:
            if error.file == str(self.path) and not isinstance(error, LockTimeoutError | FileReplacedError):
                self.record_commit_result(str(error))
            raise
        finally:
            session.close()

    def sync(self) -> None:
        """Makes all commits of this process durable that were made with `is_durable=False`; costs little if they already are."""
        try:
            with storage_errors(self.path, waited=self.lock_timeout, is_internal=True):
                connection = self.connections.take(wait=self.lock_timeout)
                try:
                    connection.statements.sync()
                finally:
                    self.connections.give_back(connection)
            if self.has_deferred_sync:
                self.record_commit_result(None)
        except StorageError as error:
            if not isinstance(error, LockTimeoutError | FileReplacedError):
                self.record_commit_result(str(error))
            raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Runs a read transaction on a snapshot of the file; it does not block writers."""
        with self._reader() as connection:
            self.connections.block_commits(connection)
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                self.connections.allow_commits(connection)

    def copy_to(self, path: Path) -> None:
        """Copies a snapshot of the file to a new file; it does not block writers."""
        import apsw  # noqa: PLC0415  # an extra, loaded by now

        try:
            path.touch(exist_ok=False)
        except OSError as error:
            raise OutputError(f"{path}: cannot be created: {error.strerror or error}") from error
        try:
            with (
                storage_errors(path),
                self.read() as source,
                closing(apsw.Connection(str(path), vfs=self.connections.vfs)) as target,
                target.backup("main", source, "main") as running,
            ):
                while not running.done:
                    running.step(_PAGES_COPIED)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def query(self, run: Callable[[Connection], Result]) -> Result:
        """Runs a function that executes a single statement on the last commit, which is cheaper than `read`."""
        with self._reader() as connection:
            return run(connection)

    def session(self, context: SessionContext | None = None, *, lock_timeout: float | None = None) -> Session:
        """Returns a transaction that has not started; `context` announces its commits without Python, None announces nothing."""
        wait = self.lock_timeout if lock_timeout is None else lock_timeout
        return Session(self._context if context is None else context, get_ident(), self, wait)

    def set_snapshot(self, version: int, snapshot: NativeSnapshot) -> None:
        """Sets the snapshot of the objects that the fast path uses while they have this version."""
        self.write_lock.set_metadata(version, snapshot)

    def watch(self) -> FileWatch:
        """Returns a watch that detects commits; it keeps a connection until it is closed."""
        return FileWatch(self.path, connections=self.connections, wait=self.lock_timeout)

    def checkpoint(self) -> None:
        """Moves all commits from the write-ahead log into the file itself, so that it is complete without its `-wal`."""
        may_wait = busy_handler(self.lock_timeout)
        with self._reader() as connection:
            # The first column says that the file was busy; SQLite does not wait if another process moves the log.
            while single_row(connection, "PRAGMA wal_checkpoint(TRUNCATE)")[0]:
                if not may_wait(0):
                    raise LockTimeoutError(
                        f"{self.path}: other connections were reading or writing for more than {self.lock_timeout:g} s",
                        file=str(self.path),
                    )

    def retry_failed_write(self) -> None:
        """Tries the smallest possible write if the last write failed a while ago, to find out whether the file is writable again.

        The failed write may have been larger and is retried by its caller; while that fails, this small write would prove nothing.
        """
        if self.failure is not None and time.monotonic() - self.failed_at >= WRITE_RETRY_AFTER:
            with suppress(StorageError):
                with self.write(lock_timeout=0.0) as connection:
                    connection.pragma("user_version", connection.pragma("user_version"))
                self.record_commit_result(None)

    @property
    def read_failure(self) -> str | None:
        """Why the file could not be read recently; None if no failure is known.

        A later read that succeeds proves nothing, because only a part of the file may be damaged.
        """
        is_recent = time.monotonic() - self._read_failed_at < WRITE_RETRY_AFTER
        return f"could not be read: {self._read_error}" if is_recent else None

    @contextmanager
    def _reader(self) -> Iterator[Connection]:
        """Provides a connection for reading, and records failures for `read_failure`."""
        try:
            with storage_errors(self.path, waited=self.lock_timeout, is_internal=True):
                connection = self.connections.take(wait=self.lock_timeout)
                try:
                    yield connection
                finally:
                    self.connections.give_back(connection)
        except StorageError as error:
            self._record_read_failure(error)
            raise

    def _record_read_failure(self, error: StorageError) -> None:
        if error.file == str(self.path) and not isinstance(error, LockTimeoutError | FileReplacedError):
            self._read_error, self._read_failed_at = str(error), time.monotonic()

    def record_commit_result(self, failure: str | None) -> None:
        """Records whether a commit succeeded (None) or why it failed."""
        self.failure = failure
        self.has_deferred_sync = False
        self.write_lock.set_failing(failure is not None)
        if failure is not None:
            self.failed_at = time.monotonic()

    def close(self) -> None:
        """Closes the connections that are not in use; the others are closed when they are returned."""
        self.connections.close()


def _check_version(path: Path, version: int, known: int) -> None:
    if not 0 <= version <= known:
        remedy = "; upgrade ssbroker" if version > known else ""
        raise StorageError(
            f"{path}: has format version {version}; this library supports versions up to {known}{remedy}",
            file=str(path),
        )


def _migrate(connection: Connection, migrations: tuple[str, ...], version: int) -> None:
    for step in migrations[version:]:
        connection.execute(step)
    connection.pragma("user_version", len(migrations))
