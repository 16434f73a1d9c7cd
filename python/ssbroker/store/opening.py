"""How a file is opened."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ssbroker import _core
from ssbroker.exceptions import MissingDependencyError, StorageError
from ssbroker.store.schema import APPLICATION_ID
from ssbroker.store.sqlite import Connection, storage_errors

if TYPE_CHECKING:
    import apsw

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
