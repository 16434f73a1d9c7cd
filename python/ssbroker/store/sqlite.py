"""SQLite connections, errors, and how a file is opened."""

from __future__ import annotations

import errno
import functools
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ssbroker import _core
from ssbroker.exceptions import LockTimeoutError, MissingDependencyError, SsbrokerError, StorageError
from ssbroker.store.schema import APPLICATION_ID

if TYPE_CHECKING:
    import apsw

    class Connection(apsw.Connection):
        """An open connection; other rooms name it without importing apsw."""

        statements: _core.Statements
        """What happens on it for every message."""
else:
    Connection = "apsw.Connection"

Cursor: TypeAlias = "apsw.Cursor"
"""What runs a statement on it."""

_FILES_NEEDED: Final = 4
"""What SQLite opens for a database: the file, its log, the log's index, and for a moment the folder."""
_NO_FILE_LEFT: Final = {
    errno.EMFILE: "too many files are open in this process: raise its limit (ulimit -n), or keep fewer files, sockets and instances open",
    errno.ENFILE: "too many files are open in this system: raise its limit (fs.file-max), or end what keeps them open",
}


class storage_errors:  # noqa: N801  # it is used like a function; as a class it costs less in every call
    """Tells SQLite's errors about the file itself (B4) as a `StorageError`; those about a statement pass.

    Args:
        path: The file.
        waited: The seconds that were waited for others; None where the write lock is held: then this file keeps nobody waiting, and what is
            busy is something of the application's own.
        is_ours: Whether all statements are this library's: that one does not fit says that somebody has altered the file.

    Raises:
        StorageError: The disk is full, the file is read-only, damaged, or cannot be opened or read.
        LockTimeoutError: Others kept the file to themselves.
    """

    __slots__ = ("_is_ours", "_path", "_waited")

    def __init__(self, path: Path, *, waited: float | None = None, is_ours: bool = False) -> None:
        self._path = path
        self._waited = waited
        self._is_ours = is_ours

    def __enter__(self) -> None:
        """Nothing has to be prepared."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            raise_if_about_the_file(error, self._path, waited=self._waited, is_ours=self._is_ours)


def raise_if_about_the_file(
    error: BaseException, path: Path, *, waited: float | None = None, is_ours: bool = False
) -> None:
    """What `storage_errors` does with an error.

    Raises:
        StorageError: The error says that of the file.
        LockTimeoutError: Others kept the file to themselves.
    """
    if isinstance(error, SsbrokerError):  # said already, or apsw itself is not there
        return
    import apsw  # noqa: PLC0415  # whoever has a connection has it

    if not isinstance(error, apsw.Error):
        return
    if isinstance(error, apsw.BusyError | apsw.ProtocolError):
        if waited is None:
            return
        raise lock_timeout_error(path, waited) from error
    about_the_file = (
        apsw.FullError,
        apsw.ReadOnlyError,
        apsw.IOError,
        apsw.CorruptError,
        apsw.NotADBError,
        apsw.CantOpenError,
        apsw.NoMemError,
        apsw.PermissionsError,
    )
    if is_ours and isinstance(error, apsw.SQLError):
        raise StorageError(f"{path}: its tables are not those of its version: {error}", file=str(path)) from error
    if isinstance(error, about_the_file):
        raise StorageError(f"{path}: {_reason(path, error)}", file=str(path)) from error


def lock_timeout_error(path: Path, waited: float) -> LockTimeoutError:
    """What is said to who could not get at the file in time (B3)."""
    return LockTimeoutError(f"{path}: others were writing to it for more than {waited:g} s", file=str(path))


def own_lock_error(path: Path) -> LockTimeoutError:
    """What is said to a thread that would wait for a transaction of its own (B3)."""
    return LockTimeoutError(
        f"{path}: this thread would wait for a transaction of its own, which is open; "
        "do the work inside of that one, or after its end",
        file=str(path),
    )


def only_row(connection: Connection, sql: str) -> tuple[Any, ...]:
    """The row of a table that has one, always.

    Raises:
        StorageError: Somebody has taken it away.
    """
    row: tuple[Any, ...] | None = connection.execute(sql).fetchone()
    if row is None:
        path = connection.filename
        raise StorageError(f"{path}: a row is missing that every file has; somebody has altered it", file=path)
    return row


def clear(connection: Connection) -> bool:
    """Takes off what an application may have set to be called by a connection; whether it has left it open."""
    import apsw  # noqa: PLC0415  # whoever has a connection has it

    try:
        connection.exec_trace = None
        connection.row_trace = None
        connection.cursor_factory = apsw.Cursor
        connection.set_update_hook(None)
        connection.set_profile(None)
        connection.trace_v2(0, None)
    except apsw.ConnectionClosedError:
        return False
    return True


def is_missing(path: Path) -> bool:
    """Whether a file is not there; of one in a folder that may not be looked into nobody knows."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _lack_of_files() -> str | None:
    """What is said where the system gives no more files, which SQLite does not say; those that it had opened it has closed again."""
    opened: list[int] = []
    try:
        while len(opened) < _FILES_NEEDED:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as failure:
        return _NO_FILE_LEFT.get(failure.errno or 0)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return None


def _reason(path: Path, error: Exception) -> str:
    """What SQLite said, or why it could not open the file, which it does not say."""
    import apsw  # noqa: PLC0415  # whoever has a connection has it

    if isinstance(error, apsw.CantOpenError | apsw.IOError) and (reason := _lack_of_files()):
        return reason
    if not isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError):
        return str(error)
    if is_missing(path):
        return "is not there"
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as failure:
        return failure.strerror or str(failure)
    if is_folder:
        return "is a folder"
    if not os.access(path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return "its folder is read-only; SQLite needs two more files beside it"
    return "is read-only" if isinstance(error, apsw.ReadOnlyError) else str(error)


STATEMENTS_CACHED: Final = 256
_PAGE_BYTES: Final = 4096
_LOG_BYTES_KEPT: Final = 64 << 20
_PAGES_TO_CHECKPOINT: Final = 16_000
"""Most rows of a queue are gone before they have to leave a log of this size; it is what is kept of the log anyway."""
_CACHE_KIB: Final = 16 * 1024
_POLL_SECONDS: Final = 0.001


class NotBlankError(StorageError):
    """A file is not made, since somebody has made something of it, perhaps just now."""


def connect(path: Path, *, create: bool = False, wait: float = 0.0, vfs: str | None = None) -> Connection:
    """Opens a database file of an instance, durable at each commit (B1). A file of others is left as it is.

    Args:
        path: The file.
        create: Make it where it is not there, or empty; otherwise it has to be.
        wait: The seconds to wait for other processes.
        vfs: The virtual file system to use, by name; None is SQLite's own.

    Returns:
        The connection; its busy handler is that of `patience(wait)`.

    Raises:
        StorageError: The file cannot be opened or written, or is none of an instance's; with `create`, something stands there.
        LockTimeoutError: Other processes kept it to themselves.
        MissingDependencyError: apsw is not installed.
    """
    try:
        import apsw  # noqa: PLC0415  # the package imports without it
    except ImportError:
        raise MissingDependencyError(
            "an instance needs apsw and cryptography: pip install 'ssbroker[broker]'"
        ) from None
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    with storage_errors(path, waited=wait):
        opened = _opener()
        # What a commit writes to the log goes to the disk in one piece, whatever file system is below.
        vfs = _core.gathering(vfs) or vfs
        connection = opened(str(path), flags=flags, vfs=vfs, statementcachesize=STATEMENTS_CACHED)
        try:
            connection.set_busy_handler(patience(wait))
            _check(connection, path, create=create)
            _prepare(connection, path, wait=wait)
            connection.statements = _core.Statements(connection)
        except BaseException:
            connection.close(force=True)
            raise
    return connection


def patience(wait: float) -> Callable[[int], bool]:
    """A busy handler that asks again each millisecond, for `wait` seconds from now.

    SQLite's own comes to wait a tenth of a second between two looks, and so starves beside a process that writes all the time.
    """
    deadline = time.monotonic() + wait

    def goes_on(_looks: int) -> bool:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, _POLL_SECONDS))
        return True

    return goes_on


def check_blank(connection: apsw.Connection, path: Path) -> None:
    """Refuses a file of which somebody has made something.

    Raises:
        NotBlankError: It is not empty.
    """
    marks = (connection.pragma("application_id"), connection.pragma("user_version"))
    if marks != (0, 0) or connection.execute("SELECT count(*) FROM sqlite_schema").get != 0:
        raise NotBlankError(f"{path}: exists already", file=str(path))


@functools.cache
def _opener() -> type[Connection]:
    """What opens connections; the native module knows the SQLite of apsw from then on, as an extension of it."""
    import apsw  # noqa: PLC0415  # whoever opens a file has it

    class Opened(apsw.Connection):
        """A connection whose statements go with it: SQLite closes none while one is left."""

        __slots__ = ("statements",)
        statements: _core.Statements | None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.statements = None

        def close(self, force: bool = False) -> None:  # noqa: FBT001, FBT002  # as apsw has it
            if self.statements is not None:
                self.statements.close()
            super().close(force)

    teacher = apsw.Connection(":memory:")
    teacher.enable_load_extension(True)
    teacher.load_extension(_core.__file__, "ssbroker_sqlite_init")
    teacher.close()
    return cast("type[Connection]", Opened)


def _check(connection: apsw.Connection, path: Path, *, create: bool) -> None:
    if create:
        check_blank(connection, path)
    elif connection.pragma("application_id") != APPLICATION_ID:
        raise StorageError(f"{path}: is no database file of an instance", file=str(path))
    if connection.readonly("main"):
        raise StorageError(f"{path}: is read-only", file=str(path))


def _prepare(connection: apsw.Connection, path: Path, *, wait: float) -> None:
    import apsw  # noqa: PLC0415  # whoever has a connection has it

    # Without this, SQLite plans a cached statement anew at each use: it looks at the values that are bound. Four times the cost.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("page_size", _PAGE_BYTES)
    if _journal_mode(connection, patience(wait)) != "wal":
        raise StorageError(f"{path}: its file system cannot hold a write-ahead log", file=str(path))
    connection.pragma("synchronous", "full")
    connection.pragma("cache_size", -_CACHE_KIB)
    connection.pragma("wal_autocheckpoint", _PAGES_TO_CHECKPOINT)
    connection.pragma("journal_size_limit", _LOG_BYTES_KEPT)
    connection.pragma("foreign_keys", 1)


def _journal_mode(connection: apsw.Connection, goes_on: Callable[[int], bool]) -> str:
    """Turns a file to a write-ahead log. It is read first and then written, and between these SQLite asks no busy handler."""
    import apsw  # noqa: PLC0415  # whoever has a connection has it

    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if not goes_on(0):
                raise


class NotInPlaceError(StorageError):
    """The file that was opened does not stand at its place any more; of the file itself it says nothing."""


class FileIdentity:
    """Where a file stands, and which one was opened there.

    Args:
        path: The file.
    """

    __slots__ = ("_identity", "_path")

    def __init__(self, path: Path) -> None:
        self._path: Final = str(path)
        self._identity: tuple[int, int] | None = None

    def opened(self) -> None:
        """Notes that the file was opened; the first one counts."""
        if self._identity is None:
            self._identity = identity_of(self._path)

    def check(self) -> None:
        """Refuses where another file stands there than was opened, or none. Who may not look does not know; Windows lets nobody replace it.

        Raises:
            NotInPlaceError: What would be committed to the file that was opened would be lost.
        """
        if self._identity is None or os.name == "nt":
            return
        try:
            found = os.stat(self._path)  # noqa: PTH116  # at each use, and a `Path` takes longer
        except (FileNotFoundError, NotADirectoryError):
            raise NotInPlaceError(
                f"{self._path}: is not there any more; what would be written to it would be lost", file=self._path
            ) from None
        except OSError:
            return
        if (found.st_dev, found.st_ino) != self._identity:
            raise NotInPlaceError(
                f"{self._path}: another file has taken its place since it was opened; what would be written to the old one would be lost. "
                "Close the instance in each process, remove the old file's -wal and -shm, and open it again",
                file=self._path,
            )


def identity_of(path: str) -> tuple[int, int] | None:
    """The device and the inode of a file; None where it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  # as above
    except OSError:
        return None
    return found.st_dev, found.st_ino
