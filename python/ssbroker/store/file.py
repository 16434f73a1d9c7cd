"""A database file: connections, transactions, the single writer, fork safety."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Final, Protocol, TypeAlias, TypeVar, final

from ssbroker import _core
from ssbroker._arguments import timeout_seconds
from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store.objects import NativeSnapshot
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

Told: TypeAlias = tuple[int | None, int, bool]
"""Where messages stand now: queue, priority and whether their receiver was reached over the network; or None, the sender, and nothing."""
Done: TypeAlias = tuple[int, list[tuple[Told, int]], list[tuple[int, bool]]]
"""How many messages were sent; where they stand, and how many of them; and each RECEIVE: its queue, and whether it found nothing."""

Row: TypeAlias = tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str]
"""A received message: body, handle, group, conversation, whether the initiator sent it, number, type, service, contract, priority, queuing
order and validation."""

Arrivals = _core.Arrivals
Counts = _core.Counts
SessionContext = _core.SessionContext


def count(connection: Connection, queue_id: int) -> int:
    """Counts one more.

    Args:
        connection: The database, with its write lock.
        queue_id: The queue.

    Returns:
        How often it was now; 0 where the queue is gone.
    """
    connection.execute("UPDATE ssb_queues SET rollbacks = rollbacks + 1 WHERE queue_id = ?", (queue_id,))
    row = connection.execute("SELECT rollbacks FROM ssb_queues WHERE queue_id = ?", (queue_id,)).fetchone()
    return 0 if row is None else row[0]


def forget(connection: Connection, queue_ids: Iterable[int]) -> None:
    """Begins to count anew; writes nothing where nothing was counted.

    Args:
        connection: The database, with its write lock.
        queue_ids: The queues.
    """
    for queue_id in queue_ids:
        connection.statements.reset_rollback_count(queue_id)


_WAITS: Final = 1.0
"""The seconds for which a fork waits for other threads to come out of the files."""
_LOOKS_EVERY: Final = 0.0005


class Pool(Protocol):
    """The connections of this process to a file."""

    @property
    def users(self) -> set[int]:
        """The threads that may be inside of SQLite for this file."""

    def pause(self) -> None:
        """Has whoever begins anything ask `Forks.enter` first."""

    def let_go(self) -> None:
        """Closes what is not in use."""

    def go_on(self) -> None:
        """Ends the pause."""

    def keep_inherited(self) -> None:
        """In the new process: keeps what was in use from ever being closed."""


class ForkGuard:
    """The forks of this process.

    Attributes:
        count: How many lie between this process and the first one: asking the system for the process each time takes longer.
        is_spoilt: Whether another thread was inside of SQLite at a fork, and may have held a mutex, which nobody gives back here.
        inherited: The files of which connections were in use when this process was forked.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_spoilt = False
        self.inherited: Final[set[tuple[int, int] | None]] = set()
        self._pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()
        self._gate: Final = threading.RLock()
        self._thread: int | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_parent=self._go_on, after_in_child=self._after_in_child)

    def watch(self, pool: Pool) -> None:
        """Takes in the connections of a file.

        Args:
            pool: The connections.
        """
        self._pools.add(pool)

    def enter(self, used: dict[object, int], place: object, thread: int) -> None:
        """Notes that a thread may be inside of SQLite from now on; while the process forks, those wait that were not yet.

        Args:
            used: What a pool has in use, by whom.
            place: What is noted.
            thread: The thread.
        """
        while True:
            used[place] = thread
            if self._thread in (None, thread):
                return
            del used[place]
            if thread in self._users(list(self._pools)):  # the fork waits for it
                used[place] = thread
                return
            with self._gate:
                pass

    def _before(self) -> None:
        self._gate.acquire()
        self._thread = threading.get_ident()
        pools, until = list(self._pools), time.monotonic() + _WAITS
        for pool in pools:
            pool.pause()
        while self._users(pools) - {self._thread} and time.monotonic() < until:
            time.sleep(_LOOKS_EVERY)
        for pool in pools:
            pool.let_go()

    def _go_on(self) -> None:
        for pool in list(self._pools):
            pool.go_on()
        self._end()

    def _after_in_child(self) -> None:
        self.count += 1
        pools = list(self._pools)
        self.is_spoilt = self.is_spoilt or bool(self._users(pools) - {self._thread})
        for pool in pools:
            pool.keep_inherited()
        self._end()

    def _end(self) -> None:
        self._thread = None
        self._gate.release()

    @staticmethod
    def _users(pools: list[Pool]) -> set[int | None]:
        return set().union(*(pool.users for pool in pools))


FORKS: Final = ForkGuard()


@final
class Gate(_core.Gate):
    """Threads get the lock one after the other, first come, first served; whoever waits too long gives up its place. A connection may go with it.

    A signal may interrupt a thread anywhere in here, and its handler ask for the lock too: each step is one that nothing can come in the
    middle of.

    Examples:
        >>> gate = Gate()
        >>> gate.acquire(timeout=1.0), gate.acquire(timeout=0.0)
        (True, False)
        >>> gate.release()
    """

    __slots__ = ()

    @property
    def is_held_here(self) -> bool:
        """Whether it is for this thread to give it back: whoever asks for it here would wait for itself."""
        return self.holder == threading.get_ident()

    @property
    def is_asked_here(self) -> bool:
        """Whether this thread has it, or waits for it: the handler of a signal that asks for it here would wait for itself."""
        thread = threading.get_ident()
        return self.stands_in_line(thread) or self.holder == thread

    def acquire(self, *, timeout: float, holder: int | None = None) -> bool:
        """Waits for the lock for up to `timeout` seconds.

        Args:
            timeout: The seconds.
            holder: The thread that is to give it back, by its number; None is this one.

        Returns:
            Whether it was given.
        """
        holder = threading.get_ident() if holder is None else holder
        if self.acquire_free(holder):
            return True
        turn = threading.Lock()
        turn.acquire()
        if self.stand_in_line(turn, holder):  # it was given back just now
            return True
        try:
            turn.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
            return self.had_turn(turn)
        except BaseException:  # Ctrl-C: whoever stands in the queue and never comes would hold up all others
            if self.had_turn(turn):
                self.release()
            raise


_IDLE_MAX: Final = 8


class Connections:
    """Connections that are taken and given back; one that is given back serves again, unless something of it is still open.

    There is no lock here: each step is one that nothing can come in the middle of, neither another thread nor the handler of a signal.

    A process that was forked never uses or closes those of its parent (`forking`).

    Attributes:
        place: Where the file stands.
    """

    def __init__(self, path: Path, gate: Gate, *, vfs: str | None = None) -> None:
        self._path = path
        self._gate = gate
        self.place: Final = FileIdentity(path)
        self._vfs = vfs
        self._forks = FORKS.count
        self._used: dict[object, int] = {}
        self._idle: list[Connection] = []
        self._resting: set[Connection] = set()
        self._is_closed = False
        FORKS.watch(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, and the connections are its parent's."""
        return self._forks != FORKS.count

    def check(self) -> None:
        """Refuses where no connection may be taken.

        Raises:
            StorageError: This process was forked after the file was opened, or the file is closed.
        """
        if self.is_inherited:
            raise StorageError(
                f"{self._path}: was opened before this process was forked; open the instance here", file=str(self._path)
            )
        if self._is_closed:
            raise StorageError(f"{self._path}: is closed", file=str(self._path))

    def take(self, *, wait: float, create: bool = False) -> Connection:
        """A connection with no transaction open, which waits for other processes for `wait` seconds.

        Raises:
            StorageError: The file cannot be opened.
            LockTimeoutError: Other processes kept it to themselves.
        """
        self.check()
        if FORKS.is_spoilt:
            raise StorageError(
                f"{self._path}: other threads used files when this process was forked, and SQLite may wait for them for ever; "
                "fork before an instance is opened, or start processes with `spawn`",
                file=str(self._path),
            )
        self.place.check()
        place, thread = object(), threading.get_ident()
        try:
            FORKS.enter(self._used, place, thread)
            if (connection := self._from_idle()) is not None:
                self._used[connection] = thread
                connection.set_busy_handler(busy_handler(wait))
                return connection
            if FORKS.inherited and file_identity(str(self._path)) in FORKS.inherited:
                raise StorageError(
                    f"{self._path}: was in use when this process was forked; fork before, or start processes with `spawn`",
                    file=str(self._path),
                )
            connection = connect(self._path, create=create, wait=wait, vfs=self._vfs)
            self.place.record()
            self._used[connection] = thread
            return connection
        finally:
            self._used.pop(place, None)

    @property
    def used(self) -> dict[object, int]:
        """What is in use, by the thread that uses it."""
        return self._used

    def lent(self, connection: Connection) -> None:
        """Notes that a connection goes with the write lock now, which counts as use."""
        self._used.pop(connection, None)

    def rest(self, connection: Connection) -> None:
        """Says that whoever took a connection keeps it, and does not use it before `resume`."""
        self._resting.add(connection)
        self._used.pop(connection, None)

    def resume(self, connection: Connection) -> bool:
        """Whether a connection that rested is still there to be used; a fork closes it.

        Raises:
            StorageError: This process was forked after the file was opened.
        """
        if self.is_inherited:
            self.check()
        FORKS.enter(self._used, connection, threading.get_ident())
        try:
            self._resting.remove(connection)
        except KeyError:
            self._used.pop(connection, None)
            return False
        return True

    def guard(self, connection: Connection) -> None:
        """Has a connection commit by its statements alone, once they are let through (`release`).

        Neither `COMMIT` in an application's SQL nor a statement after SQLite has undone the transaction by itself, as it does when a
        disk fails, can leave half of a transaction behind then.
        """
        connection.set_commit_hook(self._refuse)

    def release(self, connection: Connection) -> None:
        """Lets the connection commit, unless the application has closed it."""
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        with suppress(apsw.ConnectionClosedError):
            connection.set_commit_hook(None)

    def give_back(self, connection: Connection, *, is_reusable: bool = True, with_lock: bool = False) -> None:
        """Rolls back what is not committed, and keeps the connection for the next use, unless it must not be used again.

        Args:
            connection: The connection.
            is_reusable: Whether it may be used again.
            with_lock: Whether its user holds the write lock: then it goes with the lock, if that has none.
        """
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        if self.is_inherited:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            # A cursor that was not read to its end holds its snapshot, and with that nothing can be written any more.
            is_clean = connection.txn_state() == apsw.SQLITE_TXN_NONE
        except apsw.Error:
            is_clean = False
        if is_clean and is_reusable and not self._is_closed:
            if with_lock and self._gate.keep(connection):
                del self._used[connection]
                return
            if len(self._idle) < _IDLE_MAX:
                self._keep(connection)
                return
        try:
            connection.close(force=True)
        finally:
            self._used.pop(connection, None)

    def close(self) -> None:
        """Closes the connections that are not in use; the others close when they are given back."""
        if self.is_inherited:
            return
        place = object()
        try:
            FORKS.enter(self._used, place, threading.get_ident())
            self._is_closed = True
            self._gate.close()
            while (connection := self._gate.take_kept() or self._from_idle()) is not None:
                connection.close(force=True)
        finally:
            self._used.pop(place, None)

    def pause(self) -> None:
        """Has whoever begins a transaction ask `take` for a connection, while a fork goes on."""
        self._gate.pause(True)

    def go_on(self) -> None:
        """After the fork."""
        self._gate.pause(False)

    @property
    def users(self) -> set[int]:
        """The threads that may be inside of SQLite for this file."""
        lent = self._gate.lent()
        threads = {*list(self._used.values())}
        return threads if lent is None or lent[1] is None else threads | {lent[1]}

    def let_go(self) -> None:
        """Before a fork: closes what is not in use, so that the new process inherits nothing of it and may open the file itself."""
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        resting = list(self._resting)
        self._resting.difference_update(resting)
        if (kept := self._gate.take_kept()) is not None:
            resting.append(kept)
        while (connection := resting.pop() if resting else self._from_idle()) is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # that would be work for nothing
            connection.close(force=True)

    def keep_inherited(self) -> None:
        """In a forked process: keeps what was in use from ever being closed, at its end too, and the file from being opened.

        Closing a connection undoes its transaction in the log's index, which is shared: the parent would find its file damaged. And
        while one is open, SQLite takes the parent's locks for this process's own: what is written here may be lost.
        """
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        self._gate.inherit()
        lent = self._gate.lent()
        used = [*self._used] if lent is None else [*self._used, lent[0]]
        if used:
            for kept in (apsw, *used):  # the module closes all connections when it goes
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            FORKS.inherited.add(file_identity(str(self._path)))
            FORKS.inherited.discard(None)  # it is not there any more

    def _keep(self, connection: Connection) -> None:
        """Keeps a connection for whoever asks next."""
        place = object()  # so that a fork in between does not miss it
        self._used[place] = self._used.get(connection, threading.get_ident())
        del self._used[connection]
        self._idle.append(connection)
        del self._used[place]
        if self._is_closed:  # meanwhile
            self.close()

    def _from_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _refuse(self) -> bool:
        raise undone_error(self._path)


def undone_error(path: Path) -> StorageError:
    """What is said where a transaction is not there any more that should be."""
    return StorageError(
        f"{path}: the transaction was ended by SQL, or rolled back after a disk error; no changes were saved",
        file=str(path),
    )


class Session(_core.Session):
    """One transaction of a file: its write lock, its connection, its commit. Not for several threads at once.

    The native part begins, sends, receives and commits as long as nothing has to be waited for and Python does not need the connection.
    This part waits for the lock, shares the connection with Python, and reports why a commit failed.

    Attributes:
        is_reusable: Whether the connection may serve other transactions afterwards.
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
        """Returns the connection, with the write lock, which is taken at the first call. Only `commit` commits, whatever is executed on it.

        Raises:
            LockTimeoutError: The lock was not free within `lock_timeout` seconds, or this thread would wait for itself.
            StorageError: The file cannot be written, or SQLite has rolled back the transaction.
        """
        connection = self.begin_unguarded() if self.is_begun else self._wait_and_begin()
        if not self._is_guarded:
            self._file.connections.guard(connection)
            self._is_guarded = True
        return connection

    def begin_unguarded(self) -> Connection:
        """Returns the connection, for callers that execute nothing after a statement that failed."""
        is_begun = self.is_begun
        connection: Connection | None = self.begin_fast()
        if connection is None:
            return self._wait_and_begin()
        if is_begun:
            self._check(connection)
        else:
            self._check_place()
        if not self._has_handler:  # the fast path waits for nobody
            connection.set_busy_handler(busy_handler(self._lock_timeout))
            self._has_handler = True
        return connection

    def commit(self, *, received_from: Iterable[int] = ()) -> None:
        """Makes the changes durable and visible, and ends the session. Does nothing if the transaction has not begun.

        Args:
            received_from: The queues from which messages were taken; their count of successive rollbacks starts again.

        Raises:
            StorageError: Nothing was committed.
        """
        connection = self.connection
        if connection is None:
            return
        is_clean = not self._is_guarded
        try:
            self._check(connection)
            with storage_errors(self._file.path):
                forget(connection, received_from)
            has_changed = self.has_changed
            self._commit(connection)
            if has_changed:
                self._file.ended(None)
        except BaseException:
            is_clean = False
            raise
        finally:
            self._close(is_clean=is_clean)

    def failed(self, error: BaseException) -> None:
        """Ends the session after `commit_fast` has raised.

        Args:
            error: What it raised; FileNotFoundError if it has committed to a file that is no longer at its path.

        Raises:
            StorageError: The error, if it is about the file.
        """
        try:
            if isinstance(error, FileNotFoundError):
                self._file.connections.place.check()
            elif self.connection is not None:
                self._not_committed(self.connection, error)
        finally:
            self.close()

    def close(self) -> None:
        """Rolls back what was not committed, and releases the lock."""
        self._close(is_clean=False)

    def _close(self, *, is_clean: bool) -> None:
        connections = self._file.connections
        if not self.is_begun or connections.is_inherited:
            return
        self._has_handler = False
        if is_clean and self.give_back():
            return
        try:
            # A connection that is in use keeps a fork waiting, at every moment.
            connections.used[self.connection] = self._thread
            connection = self.leave()
            self._unguard(connection)
            connections.give_back(connection, is_reusable=self.is_reusable, with_lock=True)
        finally:
            self.is_reusable = True
            self._file.gate.release()

    def _wait_and_begin(self) -> Connection:
        connections, gate = self._file.connections, self._file.gate
        deadline = time.monotonic() + self._lock_timeout
        connections.check()  # locks that threads of a process held that was forked are never given back
        if gate.is_asked_here:
            raise own_lock_error(self._file.path)
        try:
            self._acquire()
            with storage_errors(self._file.path, waited=self._lock_timeout):
                connection: Connection = connections.take(wait=max(0.0, deadline - time.monotonic()))
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    self.adopt(connection)
                    connections.lent(connection)
                    self._has_handler = True
                except BaseException:
                    if not self.is_begun:
                        connections.give_back(connection)
                    raise
        except BaseException:  # the handler of a signal may have raised it, anywhere
            if not self.is_begun and gate.is_held_here:
                gate.release()
            raise
        return connection

    def _check_place(self) -> None:
        try:
            self._file.connections.place.check()
        except BaseException:
            self.close()
            raise

    def _acquire(self) -> None:
        if not self._file.gate.acquire(timeout=self._lock_timeout, holder=self._thread):
            raise lock_timeout_error(self._file.path, self._lock_timeout)

    def _check(self, connection: Connection) -> None:
        """Refuses a transaction that SQLite has rolled back, or that is the parent process's."""
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
        """Rolls back a commit that failed, and reports why, if that is about the file."""
        self._undo(connection)
        try:
            raise_storage_error(error, self._file.path, waited=self._lock_timeout)
        except LockTimeoutError:  # nobody else can be in the way of the holder of the write lock
            raise _open_error(self._file.path) from error
        except StorageError as failure:
            self._file.ended(str(failure))
            raise

    def _undo(self, connection: Connection) -> None:
        """Undoes a commit that failed.

        If only the sync failed, the commit is complete in the log, and would be found there after a crash. The smallest possible commit
        replaces it: a version that stays the same. If that cannot be written either, the disk is beyond help.
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


class FileWatch:
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
                self._connection.set_busy_handler(busy_handler(self._wait))
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


Answer = TypeVar("Answer")

TRIED_AGAIN_AFTER: Final = 120.0
"""The seconds after a failure from which on `try_again` writes: longer than any wait of P17. A read that failed is told of for as long."""
LOCK_TIMEOUT: Final = 10.0
"""The seconds to wait for a file's write lock, unless told otherwise (B3)."""


class DatabaseFile:
    """An open database file, used by any thread of the process that opened it.

    Attributes:
        path: The file.
        lock_timeout: The seconds to wait for the write lock.
        failure: Why it could not be written when that was last tried here; None where it could be.
        failed_at: When that was, by `time.monotonic`.
        gate: Whose turn it is to write, within this process.
        connections: The connections of this process.
    """

    def __init__(self, path: Path, *, lock_timeout: float = LOCK_TIMEOUT, vfs: str | None = None) -> None:
        self.path = path
        self.lock_timeout = timeout_seconds(lock_timeout, name="lock_timeout")
        self.failure: str | None = None
        self.failed_at = -math.inf
        self._unread = ""
        self._unread_at = -math.inf
        self.gate: Final = Gate()
        self._context: Final = SessionContext(self.gate)
        self.connections: Final = Connections(path, self.gate, vfs=vfs)

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
        """Makes the file with its tables and what `fill` writes, as a whole or not at all: an empty file, as a crash leaves it, is made again.

        Raises:
            StorageError: Something stands there, or it cannot be written.
        """
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
        """Opens a file, and brings its tables to the version of this library.

        Raises:
            StorageError: It is not there, none of ours, of a newer version, damaged or not writable.
            LockTimeoutError: Its version could not be brought up, since others write to it.
        """
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
    def is_written_here(self) -> bool:
        """Whether this thread holds the write lock: whoever asks for it here would wait for itself."""
        return self.gate.is_held_here

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, and its parent has opened the file."""
        return self.connections.is_inherited

    def check(self) -> None:
        """Refuses where the file cannot be used by anybody here.

        Raises:
            StorageError: This process was forked after the file was opened, or the file is closed.
        """
        self.connections.check()

    @contextmanager
    def write(self, *, lock_timeout: float | None = None) -> Iterator[Connection]:
        """A transaction that is committed at the end of the block, or rolled back where an exception leaves it.

        Args:
            lock_timeout: The seconds to wait for the write lock; None is as long as always.

        Raises:
            LockTimeoutError: The write lock was not free in time.
            StorageError: The file cannot be written; nothing has changed.
        """
        wait = self.lock_timeout if lock_timeout is None else lock_timeout
        session = self.session(lock_timeout=wait)
        try:
            with storage_errors(self.path, waited=wait):
                yield session.begin()
            session.commit()
        except StorageError as error:
            if error.file == str(self.path) and not isinstance(error, LockTimeoutError | FileReplacedError):
                self.ended(str(error))
            raise
        finally:
            session.close()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A snapshot of the file; writers go on meanwhile.

        Raises:
            StorageError: The file cannot be read.
        """
        with self._lent() as connection:
            self.connections.guard(connection)
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                self.connections.release(connection)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """What one statement finds in what was committed last; for that it costs less than `read`.

        Raises:
            StorageError: The file cannot be read.
        """
        with self._lent() as connection:
            return question(connection)

    def session(self, context: SessionContext | None = None, *, lock_timeout: float | None = None) -> Session:
        """Returns a transaction that has not begun yet.

        Args:
            context: What announces its commits without Python; None announces nothing.
            lock_timeout: The seconds to wait for the write lock; None is the file's default.
        """
        wait = self.lock_timeout if lock_timeout is None else lock_timeout
        return Session(self._context if context is None else context, get_ident(), self, wait)

    def know(self, version: int, picture: NativeSnapshot) -> None:
        """Has sessions go by a picture of the objects, for as long as these have its version.

        Args:
            version: The version.
            picture: The picture.
        """
        self.gate.know(version, picture)

    def watch(self) -> FileWatch:
        """What tells whether anybody has committed; it has a connection of its own until it is closed."""
        return FileWatch(self.path, connections=self.connections, wait=self.lock_timeout)

    def checkpoint(self) -> None:
        """Puts all that is committed into the file itself, so that it is whole without what SQLite keeps beside it.

        Raises:
            LockTimeoutError: Others read what stood there before, for too long.
            StorageError: The file cannot be written.
        """
        goes_on = busy_handler(self.lock_timeout)
        with self._lent() as connection:
            # SQLite says so in a column, and where somebody else moves the log, it says so at once.
            while single_row(connection, "PRAGMA wal_checkpoint(TRUNCATE)")[0]:
                if not goes_on(0):
                    raise LockTimeoutError(
                        f"{self.path}: others were reading or writing it for more than {self.lock_timeout:g} s",
                        file=str(self.path),
                    )

    def try_again(self) -> None:
        """Writes the least that there is, where the file could not be written for the last time a while ago.

        What failed may have been larger, and is tried again by who wanted it: while that fails, this would say too much.
        """
        if self.failure is not None and time.monotonic() - self.failed_at >= TRIED_AGAIN_AFTER:
            with suppress(StorageError):
                with self.write(lock_timeout=0.0) as connection:
                    connection.pragma("user_version", connection.pragma("user_version"))
                self.ended(None)

    @property
    def trouble(self) -> str | None:
        """Why the file cannot be trusted with anything, though some of it may still be read; None where nothing is known.

        Something of it could not be read of late: what is damaged in one place is whole in others, so a read that succeeds says nothing.
        """
        is_late = time.monotonic() - self._unread_at < TRIED_AGAIN_AFTER
        return f"could not be read: {self._unread}" if is_late else None

    @contextmanager
    def _lent(self) -> Iterator[Connection]:
        """A connection to read by; that it could not be read is remembered for `trouble`."""
        try:
            with storage_errors(self.path, waited=self.lock_timeout, is_internal=True):
                connection = self.connections.take(wait=self.lock_timeout)
                try:
                    yield connection
                finally:
                    self.connections.give_back(connection)
        except StorageError as error:
            self._not_read(error)
            raise

    def _not_read(self, error: StorageError) -> None:
        if error.file == str(self.path) and not isinstance(error, LockTimeoutError | FileReplacedError):
            self._unread, self._unread_at = str(error), time.monotonic()

    def ended(self, failure: str | None) -> None:
        """Notes what became of a commit.

        Args:
            failure: Why the disk did not take it; None where it did.
        """
        self.failure = failure
        self.gate.fail(failure is not None)
        if failure is not None:
            self.failed_at = time.monotonic()

    def close(self) -> None:
        """Closes the connections that are not in use; the others close when they are given back."""
        self.connections.close()


def _check_version(path: Path, version: int, known: int) -> None:
    if not 0 <= version <= known:
        raise StorageError(f"{path}: has version {version}; this library knows versions up to {known}", file=str(path))


def _migrate(connection: Connection, migrations: tuple[str, ...], version: int) -> None:
    for step in migrations[version:]:
        connection.execute(step)
    connection.pragma("user_version", len(migrations))
