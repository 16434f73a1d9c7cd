"""The connections of one process to a file."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import StorageError
from ssbroker.store.sqlite import connect, patience

if TYPE_CHECKING:
    import apsw

_IDLE_MAX: Final = 8


class Connections:
    """Connections that are taken and given back; one that is given back serves again, unless something of it is still open.

    No connection commits, whatever is executed on it, but by `commit`: neither `COMMIT` in an application's SQL nor a statement
    after SQLite has undone the transaction by itself, as it does when a disk fails, can leave half of a transaction behind.
    A process that was forked never uses or closes those of its parent.
    """

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self._path = path
        self._vfs = vfs
        self._forks = _forks
        self._guard = threading.Lock()
        self._all: set[apsw.Connection] = set()
        self._idle: list[apsw.Connection] = []
        self._is_closed = False
        _POOLS.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, and the connections are its parent's."""
        return self._forks != _forks

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

    def take(self, *, wait: float, create: bool = False) -> apsw.Connection:
        """A connection with no transaction open, which waits for other processes for `wait` seconds.

        Raises:
            StorageError: The file cannot be opened.
            LockTimeoutError: Other processes kept it to themselves.
        """
        self.check()
        with self._guard:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            connection.set_busy_handler(patience(wait))
            return connection
        if _inherited and not _inherited.isdisjoint(_identity(self._path)):
            raise StorageError(
                f"{self._path}: was in use when this process was forked; fork before, or start processes with `spawn`",
                file=str(self._path),
            )
        connection = connect(self._path, create=create, wait=wait, vfs=self._vfs)
        connection.set_commit_hook(self._refuse)
        with self._guard:
            self._all.add(connection)
        return connection

    def commit(self, connection: apsw.Connection) -> None:
        """Commits the transaction of a connection that was taken."""
        connection.set_commit_hook(None)
        try:
            connection.execute("COMMIT")
        finally:
            connection.set_commit_hook(self._refuse)

    def give_back(self, connection: apsw.Connection, *, is_reusable: bool = True) -> None:
        """Undoes what is not committed, and keeps the connection for the next one who needs it, unless it is not to be used again."""
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
        with self._guard:
            if is_clean and is_reusable and not self._is_closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
            self._all.discard(connection)
        connection.close(force=True)

    def close(self) -> None:
        """Closes the connections that are not in use; the others close when they are given back."""
        if self.is_inherited:
            return
        with self._guard:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._all.difference_update(idle)
        for connection in idle:
            connection.close(force=True)

    def let_go(self) -> None:
        """Before a fork: closes what is not in use, so that the new process inherits nothing of it and may open the file itself."""
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        with self._guard:
            idle, self._idle = self._idle, []
            self._all.difference_update(idle)
        for connection in idle:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # that would be work for nothing
            connection.close(force=True)

    def keep_inherited(self) -> None:
        """In a forked process: keeps what was in use from ever being closed, at its end too, and the file from being opened.

        Closing a connection undoes its transaction in the log's index, which is shared: the parent would find its file damaged. And
        while one is open, SQLite takes the parent's locks for this process's own: what is written here may be lost.
        """
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        if self._all:
            for kept in (apsw, *self._all):  # the module closes all connections when it goes
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            _inherited.update(_identity(self._path))

    def _refuse(self) -> bool:
        raise undone_error(self._path)


def _identity(path: Path) -> set[tuple[int, int]]:
    """The device and the inode of a file; nothing where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return set()
    return {(found.st_dev, found.st_ino)}


def undone_error(path: Path) -> StorageError:
    """What is said where a transaction is not there any more that should be."""
    return StorageError(
        f"{path}: the transaction was ended from within, or undone by an error of the disk; nothing of it stands",
        file=str(path),
    )


_POOLS: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()
_forks = 0
"""How many forks lie between this process and the first one: asking the system for the process each time takes longer."""


_inherited: Final[set[tuple[int, int]]] = set()
"""The files of which connections were in use when this process was forked."""


def _before_fork() -> None:
    for pool in list(_POOLS):
        pool.let_go()


def _after_fork() -> None:
    global _forks  # noqa: PLW0603  # it is the process's own
    _forks += 1
    for pool in list(_POOLS):
        pool.keep_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
