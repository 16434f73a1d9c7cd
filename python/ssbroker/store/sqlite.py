"""SQLite connections to database files, and the conversion of SQLite errors."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ssbroker import _core
from ssbroker.exceptions import (
    BrokerError,
    FileReplacedError,
    LockTimeoutError,
    MissingDependencyError,
    OptionError,
    SsbrokerError,
    StorageError,
)
from ssbroker.store.schema import APPLICATION_ID

if TYPE_CHECKING:
    import apsw

    class Connection(apsw.Connection):
        """An open connection, for annotations without importing apsw."""

        statements: _core.Statements
        """Native statements on this connection."""
        user: int | None
        """The thread that uses the connection; None if no thread does, or if it belongs to a transaction that holds the write lock."""
        is_exposed: bool
        """Whether an application has had the connection."""
        is_reusable: bool
        """Whether the connection can be used again: not while an application has it, nor after changes that outlive the transaction."""
else:
    Connection = "apsw.Connection"

Cursor: TypeAlias = "apsw.Cursor"
"""A cursor of a connection."""

_FILES_NEEDED: Final = 4
"""Files that SQLite opens for a database: the file, its write-ahead log, the log's index, and briefly the folder."""
_NO_FILE_LEFT: Final = {
    errno.EMFILE: "too many files are open in this process: raise its limit (ulimit -n), or keep fewer files, sockets and instances open",
    errno.ENFILE: "too many files are open in this system: raise its limit (fs.file-max), or stop processes that keep them open",
}


class storage_errors:  # noqa: N801  # used like a function; a class is faster than a generator
    """Context manager that converts SQLite errors about the file to `StorageError`; errors about a statement pass through.

    Args:
        path: The file.
        waited: Seconds waited for other writers, for the message; None if the write lock is held, so that a busy error
            concerns a lock in the application and passes through.
        is_internal: Whether all statements belong to the library; then an SQL error means that the tables were altered, and is also converted.

    Raises:
        StorageError: The disk is full, or the file is read-only, corrupt, or cannot be opened or read.
        LockTimeoutError: The file was locked by other writers.
    """

    __slots__ = ("_is_internal", "_path", "_waited")

    def __init__(self, path: Path, *, waited: float | None = None, is_internal: bool = False) -> None:
        self._path = path
        self._waited = waited
        self._is_internal = is_internal

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            raise_storage_error(error, self._path, waited=self._waited, is_internal=self._is_internal)


def raise_storage_error(
    error: BaseException, path: Path, *, waited: float | None = None, is_internal: bool = False
) -> None:
    """Converts an error as `storage_errors` does; returns if it does not concern the file."""
    if isinstance(error, SsbrokerError):  # already converted, or apsw is not installed
        return
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    if not isinstance(error, apsw.Error):
        return
    if isinstance(error, apsw.BusyError | apsw.ProtocolError):
        if waited is None:
            return
        raise lock_timeout_error(path, waited) from error
    file_errors = (
        apsw.FullError,
        apsw.ReadOnlyError,
        apsw.IOError,
        apsw.CorruptError,
        apsw.NotADBError,
        apsw.CantOpenError,
        apsw.NoMemError,
        apsw.PermissionsError,
    )
    if is_internal and isinstance(error, apsw.SQLError):
        raise StorageError(
            f"{path}: the tables do not match the schema version: {error}; if ssbroker was upgraded, restart this process with the new "
            "version",
            file=str(path),
        ) from error
    if isinstance(error, file_errors):
        number, reason = _reason(path, error)
        raise StorageError(f"{path}: {reason}", file=str(path), errno=number) from error


def lock_timeout_error(path: Path, waited: float) -> LockTimeoutError:
    """Returns the error for a lock held by other writers."""
    return LockTimeoutError(f"{path}: locked by other writers for more than {waited:g} s", file=str(path))


def rolled_back_error(path: Path, reason: str = "was ended by SQL, or rolled back after a disk error") -> StorageError:
    """Returns the error for a transaction that is no longer open; the reason completes `the transaction ...`."""
    return StorageError(
        f"{path}: the transaction {reason}; no changes were saved; run the transaction again", file=str(path)
    )


def own_lock_error(path: Path) -> LockTimeoutError:
    """Returns the error for a thread or task that would wait for its own open transaction."""
    return LockTimeoutError(
        f"{path}: this thread or task would wait for its own open transaction; use that transaction, or end it first. "
        "In coroutines, start transactions with `async with`",
        file=str(path),
    )


def single_row(connection: Connection, sql: str) -> tuple[Any, ...]:
    """Returns the row of a table that always has exactly one."""
    row: tuple[Any, ...] | None = connection.execute(sql).fetchone()
    if row is None:
        path = connection.filename
        raise StorageError(
            f"{path}: a row that ssbroker requires is missing; another program has probably altered the file; restore it from a backup",
            file=path,
        )
    return row


def interrupt_and_remove_hooks(connection: Connection, *, timeout: float) -> tuple[bool, bool]:
    """Removes hooks that an application may have set on a connection, and interrupts statements that another thread is executing on it.

    Returns whether the connection is open, and whether a statement was interrupted.

    Raises:
        apsw.ThreadingViolationError: The statement has not ended after `timeout` seconds.
    """
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    deadline = time.monotonic() + timeout
    is_interrupted = False
    while True:
        try:
            return _remove_hooks(connection), is_interrupted
        except apsw.ThreadingViolationError:
            if time.monotonic() > deadline:
                raise
            is_interrupted = True
            connection.interrupt()
            time.sleep(0.001)


def _remove_hooks(connection: Connection) -> bool:
    """Removes hooks; returns whether the connection is open."""
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    try:
        restore_settings(connection, default_settings())
        connection.authorizer = None
        connection.set_progress_handler(None)
        connection.set_update_hook(None)
        connection.set_rollback_hook(None)
        connection.set_profile(None)
        connection.trace_v2(0, None)
        connection.autovacuum_pages(None)
        connection.wal_autocheckpoint(_PAGES_TO_CHECKPOINT)  # uses a hook itself, which `set_wal_hook` replaces
        if hasattr(connection, "preupdate_hook"):  # depends on how SQLite was compiled
            connection.preupdate_hook(None)
    except apsw.ConnectionClosedError:
        return False
    return True


@functools.cache
def default_settings() -> dict[str, object]:
    """Returns the settings of a connection that change how Python executes statements on it, with their defaults."""
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    settings = {"exec_trace": None, "row_trace": None, "convert_binding": None, "convert_jsonb": None}
    known = {
        name: value for name, value in settings.items() if hasattr(apsw.Connection, name)
    }  # older versions of apsw lack some
    return {**known, "cursor_factory": apsw.Cursor}


def restore_settings(connection: Connection, settings: dict[str, object]) -> None:
    """Sets the given settings of a connection."""
    for name, value in settings.items():
        setattr(connection, name, value)


def is_missing(path: Path) -> bool:
    """Returns whether a file does not exist; False if its folder is not accessible."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def free_bytes(path: Path) -> int | None:
    """Returns how much space this process can use on the disk of a file; None if it is not known."""
    try:
        if not hasattr(os, "statvfs"):
            return shutil.disk_usage(path.parent).free
        found = os.statvfs(path.parent)
    except OSError:
        return None
    if not found.f_blocks:  # the file system does not report sizes
        return None
    return (found.f_bavail if os.geteuid() else found.f_bfree) * found.f_frsize


def _lack_of_files() -> tuple[int, str] | None:
    """Returns the error number and the reason if the limit of open files is reached, which SQLite does not report; otherwise None."""
    descriptors: list[int] = []
    try:
        while len(descriptors) < _FILES_NEEDED:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as failure:
        number = failure.errno or 0
        return (number, _NO_FILE_LEFT[number]) if number in _NO_FILE_LEFT else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return None


def _reason(path: Path, error: Exception) -> tuple[int | None, str]:
    """Returns the operating system's error number, if it is known, and SQLite's message, or a more precise reason."""
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    if isinstance(error, apsw.CantOpenError | apsw.IOError) and (reason := _lack_of_files()):
        return reason
    if isinstance(error, apsw.CantOpenError | apsw.IOError) and free_bytes(path) == 0:
        return errno.ENOSPC, "no space is left on its disk"
    if not isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError):
        return errno.ENOSPC if isinstance(error, apsw.FullError) else None, str(error)
    if is_missing(path):
        return errno.ENOENT, "no such file"
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as failure:
        return failure.errno, failure.strerror or str(failure)
    if is_folder:
        return errno.EISDIR, "is a folder"
    if not os.access(path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return errno.EACCES, "its folder is read-only, and SQLite must create two files in it"
    return (errno.EACCES, "is read-only") if isinstance(error, apsw.ReadOnlyError) else (None, str(error))


STATEMENTS_CACHED: Final = 256
_PAGE_BYTES: Final = 4096
_LOG_BYTES_KEPT: Final = 64 << 20
_PAGES_TO_CHECKPOINT: Final = 16_000
"""The log size, in pages, at which a checkpoint starts: large enough that most messages are received before a checkpoint copies them."""
_CACHE_KIB: Final = 16 * 1024
_POLL_SECONDS: Final = 0.001
_RELEASE_SECONDS: Final = 0.005
"""How long to wait for a wake-up before trying again, because a killed process does not announce that it has released the lock."""


class FileNotEmptyError(StorageError):
    """The file to create already exists and is not empty; callers convert it."""


def connect(path: Path, *, create: bool = False, wait: float = 0.0, vfs: str | None = None) -> Connection:
    """Opens a database file of an instance. Each commit is synced, unless `Statements.commit(is_durable=False)` defers the sync.

    Args:
        path: The file.
        create: Whether to create the file if it does not exist or is empty.
        wait: Seconds to wait for other processes.
        vfs: Name of the SQLite virtual file system; None means the default.

    Returns:
        The connection, with `busy_handler(wait)` as its busy handler.

    Raises:
        StorageError: The file cannot be opened or written, is not a database file of an instance, or, with `create`, is not empty.
        LockTimeoutError: The file was locked by other processes.
        MissingDependencyError: apsw is not installed.
    """
    _require_apsw()
    import apsw  # noqa: PLC0415  # the package imports without it

    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    with storage_errors(path, waited=wait):
        connection_class = _connection_class()
        # Makes each commit write to the log in one piece.
        vfs = _core.register_wal_vfs(vfs) or vfs
        connection = connection_class(str(path), flags=flags, vfs=vfs, statementcachesize=STATEMENTS_CACHED)
        try:
            connection.set_busy_handler(busy_handler(wait))
            _check(connection, path, create=create)
            _prepare(connection, path, wait=wait)
            connection.statements = _core.Statements(connection)
        except BaseException:
            connection.close(force=True)
            raise
    return connection


def check_vfs(name: object) -> None:
    """Raises `OptionError` unless SQLite has a virtual file system with this name; None means the default."""
    _require_apsw()
    import apsw  # noqa: PLC0415  # the package imports without it

    if name is not None and name not in (known := apsw.vfs_names()):
        raise OptionError(
            f"vfs: expected None or a virtual file system of SQLite ({', '.join(known)}), got {name!r:.80}"
        )


def _require_apsw() -> None:
    try:
        import apsw  # noqa: F401, PLC0415  # the package imports without it
    except ImportError:
        raise MissingDependencyError(
            "an instance needs apsw and cryptography: pip install 'ssbroker[broker]'"
        ) from None


def busy_handler(
    wait: float, wait_for_release: Callable[[float], bool] = lambda _seconds: False
) -> Callable[[int], bool]:
    """Returns a busy handler that retries for up to `wait` seconds from now: every millisecond or, if the holder of the lock is known, when it releases the lock, but at least every 5 ms.

    SQLite's own handler sleeps up to 0.1 s between attempts, and therefore starves if another process writes continuously.

    Args:
        wait: Seconds to retry.
        wait_for_release: A function that waits for the release of the lock, for at most the given number of seconds; it returns False immediately if
            the holder is unknown.
    """
    deadline = time.monotonic() + wait

    def should_retry(_attempts: int) -> bool:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if not wait_for_release(min(left, _RELEASE_SECONDS)):
            time.sleep(min(left, _POLL_SECONDS))
        return True

    return should_retry


def check_empty(connection: apsw.Connection, path: Path) -> None:
    """Raises FileNotEmptyError if the file contains anything."""
    versions = (connection.pragma("application_id"), connection.pragma("user_version"))
    if versions != (0, 0) or connection.execute("SELECT count(*) FROM sqlite_schema").get != 0:
        raise FileNotEmptyError(f"{path}: is not empty", file=str(path))


@functools.cache
def _connection_class() -> type[Connection]:
    """Returns the class of connections, after loading the native module into apsw's SQLite as an extension."""
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    class Opened(apsw.Connection):
        """A connection that checks the application's calls, and closes its native statements first, as SQLite requires."""

        __slots__ = ("is_exposed", "is_reusable", "statements", "user")
        statements: _core.Statements | None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.statements = None
            self.user: int | None = None
            self.is_exposed = False
            self.is_reusable = True

        def blob_open(self, *args: Any, **kwargs: Any) -> apsw.Blob:
            if self.exec_trace is not None:
                cast("Callable[[apsw.Connection, str, None], bool]", self.exec_trace)(self, "blob_open", None)
            return super().blob_open(*args, **kwargs)

        def close(self, force: bool = False) -> None:  # noqa: FBT001, FBT002  # apsw's signature
            if not force and self.exec_trace is not None:  # an application has the connection
                raise BrokerError(
                    f"{self.filename}: the connection of a `with` block cannot be closed, because ssbroker uses it again after the block; leave the block instead"
                )
            if self.statements is not None:
                self.statements.close()
            super().close(force)
            self.user = None

    loader = apsw.Connection(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(_core.__file__, "ssbroker_sqlite_init")
    loader.close()
    return cast("type[Connection]", Opened)


def _check(connection: apsw.Connection, path: Path, *, create: bool) -> None:
    if create:
        check_empty(connection, path)
    elif (found := connection.pragma("application_id")) != APPLICATION_ID:
        change = f"PRAGMA application_id is {found} instead of {APPLICATION_ID}"
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'ssb_database'").get:
            change += f": another program has changed it. Set it back: PRAGMA application_id = {APPLICATION_ID}"
            raise StorageError(f"{path}: {change}", file=str(path))
        raise StorageError(f"{path}: not a database file of an instance: {change}", file=str(path))
    if connection.readonly("main"):
        raise StorageError(f"{path}: is read-only", file=str(path))


def _prepare(connection: apsw.Connection, path: Path, *, wait: float) -> None:
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    # Without this, SQLite would plan a cached statement again for each set of bound values, at four times the cost.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("page_size", _PAGE_BYTES)
    if _journal_mode(connection, busy_handler(wait)) != "wal":
        raise StorageError(
            f"{path}: the file system does not support write-ahead logs; use a folder on a local disk", file=str(path)
        )
    connection.pragma("synchronous", "full")
    connection.pragma("cache_size", -_CACHE_KIB)
    connection.pragma("wal_autocheckpoint", _PAGES_TO_CHECKPOINT)
    connection.pragma("journal_size_limit", _LOG_BYTES_KEPT)
    connection.pragma("foreign_keys", 1)


def _journal_mode(connection: apsw.Connection, should_retry: Callable[[int], bool]) -> str:
    """Switches a file to write-ahead logging; SQLite does not call the busy handler for this, so busy errors are retried here."""
    import apsw  # noqa: PLC0415  # apsw is an extra, loaded by now

    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if not should_retry(0):
                raise


class FileIdentity:
    """The identity of an open file, to detect that its path leads to another file.

    Args:
        path: The file.
    """

    __slots__ = ("_identity", "_path")

    def __init__(self, path: Path) -> None:
        self._path: Final = str(path)
        self._identity: tuple[int, int] | None = None

    def record(self) -> None:
        """Records the identity of the file when it is first opened."""
        if self._identity is None:
            self._identity = file_identity(self._path)

    def check(self) -> None:
        """Raises FileReplacedError if the file was moved, deleted or replaced, so that a commit would be lost.

        Files in inaccessible folders are not checked, nor are files on Windows, where an open file cannot be replaced.
        """
        if self._identity is None or os.name == "nt":
            return
        try:
            status = os.stat(self._path)  # noqa: PTH116  # called for each transaction, and faster than Path
        except (FileNotFoundError, NotADirectoryError):
            raise FileReplacedError(
                f"{self._path}: was moved or deleted while it was open, so changes would be lost; put it back, or open the instance again",
                file=self._path,
            ) from None
        except OSError:
            return
        if (status.st_dev, status.st_ino) != self._identity:
            raise FileReplacedError(
                f"{self._path}: another file has replaced it since it was opened; changes to the old file would be lost. "
                "If the database was dropped and attached again, get it with instance.database(name) again. If another program has "
                "replaced the file, close the instance in each process, remove the old file's -wal and -shm files, and open the instance again",
                file=self._path,
            )


def file_identity(path: str) -> tuple[int, int] | None:
    """Returns the device and inode of a file; None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116  # as above
    except OSError:
        return None
    return status.st_dev, status.st_ino
