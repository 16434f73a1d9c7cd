"""An open database file: reads, write transactions, and its known failures."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from ssbroker._arguments import timeout_seconds
from ssbroker._core import SharedMemory
from ssbroker.exceptions import BrokerError, FileReplacedError, LockTimeoutError, OutputError, StorageError
from ssbroker.store.connection_pool import CommitWatch, ConnectionPool
from ssbroker.store.objects import NativeSnapshot
from ssbroker.store.schema import APPLICATION_ID
from ssbroker.store.session import Session, SessionContext
from ssbroker.store.sqlite import (
    Connection,
    busy_handler,
    check_empty,
    free_bytes,
    lock_timeout_error,
    single_row,
    storage_errors,
)
from ssbroker.store.write_lock import WriteLock, describe_lock_holder

if TYPE_CHECKING:
    import apsw

Result = TypeVar("Result")

WRITE_RETRY_AFTER: Final = 120.0
"""Seconds for which a failed read or write is reported, and until `check_writable` tries again; longer than retransmission waits (P17)."""
WRITE_CHECK_INTERVAL: Final = 10.0
"""The minimum number of seconds between two test writes of `check_writable`."""
_SPACE_MIN: Final = 1 << 20
"""Free bytes below which the disk counts as almost full: small writes may still succeed, but messages of other processes may not fit."""
SHARED_MEMORY_SUFFIX: Final = "-notify"
"""Suffix of the file beside a database file that contains the shared memory of the processes that have the database open."""
LOCK_TIMEOUT: Final = 10.0
"""Default seconds to wait for a file's write lock."""
_PAGES_COPIED: Final = 1000
"""The number of pages that a copy of a file reads between two checks for an interrupt."""


class DatabaseFile:
    """An open database file. Thread-safe within the process that opened it.

    Attributes:
        path: The file.
        lock_timeout: Seconds to wait for the write lock.
        failure: Why the last write of this process failed; None if it succeeded.
        failed_at: The time of the last failure, by `time.monotonic`.
        write_failures: The number of failed writes of this process.
        has_deferred_sync: Whether a commit since the last failure succeeded without a sync, so that the next sync ends the failure.
        write_lock: The write lock within this process.
        connections: The connections of this process.
    """

    def __init__(self, path: Path, *, lock_timeout: float = LOCK_TIMEOUT, vfs: str | None = None) -> None:
        self.path = path
        self.lock_timeout = timeout_seconds(lock_timeout, name="lock_timeout")
        self.failure: str | None = None
        self.failed_at = -math.inf
        self.write_failures = 0
        self._checked_at = -math.inf
        self._last_failure = ""
        self.has_deferred_sync = False
        self._read_error = ""
        self._read_failed_at = -math.inf
        self._shared: SharedMemory | None = None
        self.write_lock: Final = WriteLock()
        self._context: Final = SessionContext(self.write_lock)
        self.connections: Final = ConnectionPool(path, self.write_lock, vfs=vfs)

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
        """Creates the file, with its tables and the rows that `fill` writes, in one transaction. Reuses an empty file that a crash left behind."""
        file = cls(path, lock_timeout=lock_timeout, vfs=vfs)
        try:
            with storage_errors(path, waited=file.lock_timeout):
                file.connections.give_back(file.connections.take(wait=file.lock_timeout, create=True))
            with file.write() as connection:
                check_empty(connection, path)  # another process may have created it since the check
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
                    if 0 <= version < len(migrations):  # no other process has migrated it since the check
                        with storage_errors(path, is_internal=True):
                            _check_tables(connection, migrations, path)
                            _migrate(connection, migrations, version)
            if not 0 <= version <= len(migrations):
                _reject_version(file, version, migrations)
        except BaseException:
            file.close()
            raise
        return file

    @property
    def is_locked_by_this_thread(self) -> bool:
        """Whether this thread, or the thread for which it makes calls, holds the write lock, so that acquiring the lock again could deadlock."""
        return self.write_lock.is_held_for_this_thread

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process whose parent opened the file."""
        return self.connections.is_inherited

    def check(self) -> None:
        """Raises `StorageError` if the file was opened before a fork, or is closed."""
        self.connections.check()

    def check_fork(self) -> None:
        """Raises `StorageError` if the file was opened before a fork."""
        if self.is_inherited:
            self.check()

    def share_memory(self) -> SharedMemory | None:
        """Shares memory with other processes that have the file open, and returns it; None if the system does not support it."""
        try:
            self._shared = SharedMemory(f"{self.path}{SHARED_MEMORY_SUFFIX}", self.path, os.getpid())
        except OSError:
            return None
        self.write_lock.share(self._shared)
        return self._shared

    @property
    def lock_holder(self) -> tuple[int, int] | None:
        """The transaction that holds the write lock: its process and its start in microseconds since 1970; None if unknown."""
        holder = None if self._shared is None else self._shared.holder
        return None if holder is None else holder[:2]

    def wait_for_release(self, seconds: float) -> bool:
        """Waits until another process releases the write lock; returns False at once if the holder is not known."""
        return self._shared is not None and self._shared.wait_for_release(seconds)

    def held_lock_error(self, waited: float) -> LockTimeoutError:
        """Returns the error for a write lock that other writers hold; it names the holder if known."""
        error = lock_timeout_error(self.path, waited)
        if self._shared is None:
            return error
        own_holder = self.write_lock.holder if self.write_lock.is_recorded else None
        return LockTimeoutError(
            f"{error}. {describe_lock_holder(self._shared.holder, own_holder)}", file=str(self.path)
        )

    @contextmanager
    def lock_errors(self, *, waited: float) -> Iterator[None]:
        """Converts errors as `storage_errors` does, and names the holder of the write lock."""
        try:
            with storage_errors(self.path, waited=waited):
                yield
        except LockTimeoutError as error:
            raise self.held_lock_error(waited) from error.__cause__

    @contextmanager
    def write(self, *, lock_timeout: float | None = None, is_durable: bool = True) -> Iterator[Connection]:
        """Runs a write transaction: commits at the end of the block as `Session.commit` does, or rolls back if the block raises."""
        wait = self.lock_timeout if lock_timeout is None else lock_timeout
        session = self.session(lock_timeout=wait)
        recorded = self.write_failures
        try:
            with storage_errors(self.path, waited=wait):
                yield session.begin()
            recorded = self.write_failures
            session.commit(is_durable=is_durable)
        except StorageError as error:
            if self.write_failures == recorded:  # the session records a commit that fails
                self.record_write_error(error)
            raise
        finally:
            session.close()

    def sync(self) -> None:
        """Makes the commits of this process durable that used `is_durable=False`; fast if they are already durable."""
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
            self.record_write_error(error)
            raise

    @contextmanager
    def read(self, *, is_internal: bool = True) -> Iterator[Connection]:
        """Runs a read transaction on a snapshot of the file; it does not block writers.

        Args:
            is_internal: As for `storage_errors`; false if the application executes its own statements.
        """
        with self._reader(is_internal=is_internal) as connection:
            self.connections.block_commits(connection)
            connection.execute("BEGIN")
            with nullcontext() if is_internal else _refused_writes():
                yield connection

    def copy_to(self, path: Path) -> None:
        """Copies a snapshot of the file to a new file; it does not block writers."""
        import apsw  # noqa: PLC0415  # an extra, loaded by now

        try:
            path.touch(mode=0o600, exist_ok=False)  # it contains messages and session keys
        except OSError as error:
            raise OutputError(f"{path}: cannot be created: {error.strerror or error}") from error
        try:
            with (
                storage_errors(path),
                closing(apsw.Connection(str(path), vfs=self.connections.vfs)) as target,
                self.read() as source,
                _copy_errors(self.path, path),
                target.backup("main", source, "main") as running,
            ):
                while not running.done:
                    running.step(_PAGES_COPIED)
        except BaseException:
            for suffix in ("", "-journal"):  # SQLite leaves the journal on a full disk
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            raise

    def damage(self) -> str | None:
        """Returns the first damage that `PRAGMA quick_check` finds, which reads the whole file; None if there is none."""
        with self.read() as connection:
            (found,) = single_row(connection, "PRAGMA quick_check(1)")
        return None if found == "ok" else f"{self.path}: is damaged: {' '.join(str(found).split())}"

    def query(self, run: Callable[[Connection], Result]) -> Result:
        """Runs a function that executes a single statement on the last commit, which is cheaper than `read`."""
        with self._reader() as connection:
            return run(connection)

    def session(
        self, context: SessionContext | None = None, *, lock_timeout: float | None = None, holder: int | None = None
    ) -> Session:
        """Returns a transaction that has not started.

        `context` announces the commits of the transaction without Python; None announces nothing. `holder` holds the write lock; by
        default, it is this thread.
        """
        wait = self.lock_timeout if lock_timeout is None else lock_timeout
        holder = get_ident() if holder is None else holder
        return Session(self._context if context is None else context, holder, self, wait)

    def set_snapshot(self, version: int, snapshot: NativeSnapshot) -> None:
        """Sets the snapshot that the fast path uses while the objects have this version."""
        self.write_lock.set_metadata(version, snapshot)

    def watch(self) -> CommitWatch:
        """Returns a watch that detects commits; the watch keeps a connection until it is closed."""
        return CommitWatch(self.path, connections=self.connections, wait=self.lock_timeout)

    def checkpoint(self) -> None:
        """Moves all commits from the write-ahead log into the file itself, so that the file is complete without its `-wal`."""
        may_wait = busy_handler(self.lock_timeout)
        with self._reader() as connection:
            # The first column contains whether the file was busy; SQLite does not wait for checkpoints of other processes.
            while single_row(connection, "PRAGMA wal_checkpoint(TRUNCATE)")[0]:
                if not may_wait(0):
                    raise LockTimeoutError(
                        f"{self.path}: other connections were reading or writing for more than {self.lock_timeout:g} s",
                        file=str(self.path),
                    )

    def check_writable(self) -> None:
        """Tries the smallest possible write: the writes of other processes may fail while this process writes nothing.

        After a failure, the next test is later. The write that failed may have been larger, and its caller retries it; while the
        retries fail, the success of a small write does not mean that the disk works.
        """
        now = time.monotonic()
        due = self._checked_at + WRITE_CHECK_INTERVAL if self.failure is None else self.failed_at + WRITE_RETRY_AFTER
        if now < due:
            return
        self._checked_at = now
        with suppress(StorageError):
            with self.write(lock_timeout=0.0) as connection:
                connection.pragma("user_version", connection.pragma("user_version"))
            self.record_commit_result(None)

    @property
    def write_failure(self) -> str | None:
        """Why the file could not be written recently, or why writes will probably fail soon; None if no failure is known.

        A later successful write ends a failure only after a while, because it may be smaller than the failed write, which is retried.
        """
        is_recent = time.monotonic() - self.failed_at < WRITE_RETRY_AFTER
        if is_recent or self.failure is not None:
            return f"could not be written: {self._last_failure}"
        free = free_bytes(self.path)
        if free is not None and free < _SPACE_MIN:
            return f"its disk is almost full: {free:,} bytes are free"
        return None

    @property
    def read_failure(self) -> str | None:
        """Why the file could not be read recently; None if no failure is known.

        A later successful read does not end the failure, because possibly only a part of the file is damaged.
        """
        is_recent = time.monotonic() - self._read_failed_at < WRITE_RETRY_AFTER
        return f"could not be read: {self._read_error}" if is_recent else None

    @contextmanager
    def _reader(self, *, is_internal: bool = True) -> Iterator[Connection]:
        """Provides a connection for reading, and records failures for `read_failure`."""
        try:
            with storage_errors(self.path, waited=self.lock_timeout, is_internal=is_internal):
                connection = self.connections.take(wait=self.lock_timeout)
                user = connection.user
                try:
                    yield connection
                finally:
                    try:
                        self.connections.give_back(connection)
                    except BaseException:
                        if connection.user == user:  # an interrupt came first; the application may keep the connection
                            connection.close(force=True)
                        raise
        except StorageError as error:
            if self._is_own_failure(error):
                self._read_error, self._read_failed_at = str(error), time.monotonic()
            raise

    def _is_own_failure(self, error: StorageError) -> bool:
        """Returns whether an error means that this file has failed: it does not concern another file, a lock or the replacement of the file."""
        return error.file == str(self.path) and not isinstance(error, LockTimeoutError | FileReplacedError)

    def record_commit_result(self, failure: str | None) -> None:
        """Records whether a commit succeeded (None) or why it failed."""
        self.failure = failure
        self.has_deferred_sync = False
        self.write_lock.set_failing(failure is not None)
        if failure is not None:
            self.failed_at = time.monotonic()
            self._last_failure = failure
            self.write_failures += 1

    def record_write_error(self, error: StorageError) -> None:
        """Records the error that ended a transaction, if this file has failed."""
        if self._is_own_failure(error):
            self.record_commit_result(str(error))

    def close(self) -> None:
        """Closes the connections that are not in use; connections in use are closed when they are returned."""
        self.connections.close()


@contextmanager
def _refused_writes() -> Iterator[None]:
    """Converts the error of a write that is not a statement, such as a write to a blob."""
    import apsw  # noqa: PLC0415  # an extra, loaded by now

    try:
        yield
    except apsw.ReadOnlyError as error:
        raise BrokerError("a read transaction cannot write; write in database.transaction()") from error


@contextmanager
def _copy_errors(source: Path, target: Path) -> Iterator[None]:
    """Converts errors of a copy, which name neither the file nor the cause; only read errors concern the source."""
    import apsw  # noqa: PLC0415  # an extra, loaded by now

    try:
        yield
    except apsw.FullError as error:
        raise StorageError(f"{target}: database or disk is full", file=str(target), errno=errno.ENOSPC) from error
    except apsw.IOError as error:
        is_read = getattr(error, "extendedresult", None) in (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ)
        path, what = (source, "read") if is_read else (target, "written")
        raise StorageError(f"{path}: cannot be {what} during the copy: disk I/O error", file=str(path)) from error


def _reject_version(file: DatabaseFile, version: int, migrations: tuple[str, ...]) -> NoReturn:
    with file.read() as connection:
        _check_tables(connection, migrations, file.path)
    known = len(migrations)
    remedy = "; upgrade ssbroker" if version > known else ""
    raise StorageError(
        f"{file.path}: has format version {version}; this library supports versions up to {known}{remedy}",
        file=str(file.path),
    )


def _check_tables(connection: Connection, migrations: tuple[str, ...], path: Path) -> None:
    """Raises `StorageError` if the tables do not match `PRAGMA user_version`, because another program has changed that number."""
    import apsw  # noqa: PLC0415  # an extra, loaded by now

    version, found = connection.pragma("user_version"), _columns(connection)
    actual = None
    if not found:
        return
    with closing(apsw.Connection(":memory:")) as scratch:
        for number, step in enumerate(migrations, start=1):
            scratch.execute(step)
            if _columns(scratch) == found:
                if number == version:
                    return
                actual = number
    if actual is not None:
        or_newer = ", unless a newer ssbroker has upgraded the file" if version > len(migrations) else ""
        raise StorageError(
            f"{path}: PRAGMA user_version is {version}, but the tables are those of version {actual}: another program, such as a "
            f"migration tool, has changed it{or_newer}. Set it back: PRAGMA user_version = {actual}",
            file=str(path),
        )


def _columns(connection: apsw.Connection) -> set[tuple[str, str]]:
    """Returns the tables of the library and their columns."""
    return set(connection.execute(_COLUMNS))


_COLUMNS: Final = """
    SELECT t.name, c.name FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c
    WHERE t.type = 'table' AND t.name GLOB 'ssb_*'"""


def _migrate(connection: Connection, migrations: tuple[str, ...], version: int) -> None:
    for step in migrations[version:]:
        connection.execute(step)
    connection.pragma("user_version", len(migrations))
