"""A database file: its one writer at a time, its version."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from ssbroker import options
from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.store.connections import Connections
from ssbroker.store.gate import Gate
from ssbroker.store.opening import check_blank, patience
from ssbroker.store.pictures import Picture
from ssbroker.store.place import NotInPlaceError
from ssbroker.store.schema import APPLICATION_ID
from ssbroker.store.session import Session
from ssbroker.store.sqlite import Connection, only_row, storage_errors
from ssbroker.store.watch import Watch

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
        self.lock_timeout = options.seconds(lock_timeout, name="lock_timeout")
        self.failure: str | None = None
        self.failed_at = -math.inf
        self._unread = ""
        self._unread_at = -math.inf
        self.gate: Final = Gate()
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
                check_blank(connection, path)  # another process may have been faster
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
                        with storage_errors(path, is_ours=True):
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
            if error.file == str(self.path) and not isinstance(error, LockTimeoutError | NotInPlaceError):
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

    def session(self, *, lock_timeout: float | None = None) -> Session:
        """A transaction that is not begun yet; `lock_timeout` as `write` has it."""
        wait = self.lock_timeout if lock_timeout is None else lock_timeout
        return Session(self, lock_timeout=wait)

    def know(self, version: int, picture: Picture) -> None:
        """Has sessions go by a picture of the objects, for as long as these have its version.

        Args:
            version: The version.
            picture: The picture.
        """
        self.gate.know(version, picture)

    def watch(self) -> Watch:
        """What tells whether anybody has committed; it has a connection of its own until it is closed."""
        return Watch(self.path, connections=self.connections, wait=self.lock_timeout)

    def checkpoint(self) -> None:
        """Puts all that is committed into the file itself, so that it is whole without what SQLite keeps beside it.

        Raises:
            LockTimeoutError: Others read what stood there before, for too long.
            StorageError: The file cannot be written.
        """
        goes_on = patience(self.lock_timeout)
        with self._lent() as connection:
            # SQLite says so in a column, and where somebody else moves the log, it says so at once.
            while only_row(connection, "PRAGMA wal_checkpoint(TRUNCATE)")[0]:
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
            with storage_errors(self.path, waited=self.lock_timeout, is_ours=True):
                connection = self.connections.take(wait=self.lock_timeout)
                try:
                    yield connection
                finally:
                    self.connections.give_back(connection)
        except StorageError as error:
            self._not_read(error)
            raise

    def _not_read(self, error: StorageError) -> None:
        if error.file == str(self.path) and not isinstance(error, LockTimeoutError | NotInPlaceError):
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
