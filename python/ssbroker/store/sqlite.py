"""What is said when a file cannot be used."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ssbroker.exceptions import LockTimeoutError, SsbrokerError, StorageError

if TYPE_CHECKING:
    import apsw

    from ssbroker import _core

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
