"""The connections of one process to a file."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import StorageError
from ssbroker.store.place import Place, identity_of
from ssbroker.store.sqlite import connect, patience

if TYPE_CHECKING:
    import apsw

_IDLE_MAX: Final = 8
_FORK_WAITS: Final = 1.0
"""The seconds for which a fork waits for other threads to come out of the files."""
_FORK_LOOKS_EVERY: Final = 0.0005


class Connections:
    """Connections that are taken and given back; one that is given back serves again, unless something of it is still open.

    There is no lock here: each step is one that nothing can come in the middle of, neither another thread nor the handler of a signal.

    No connection commits, whatever is executed on it, but by `commit`: neither `COMMIT` in an application's SQL nor a statement
    after SQLite has undone the transaction by itself, as it does when a disk fails, can leave half of a transaction behind.
    A process that was forked never uses or closes those of its parent. Who forks waits until other threads are out of SQLite: a mutex
    that one of them held would be held for ever in the new process.

    Attributes:
        place: Where the file stands.
    """

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self._path = path
        self.place: Final = Place(path)
        self._vfs = vfs
        self._forks = _forks
        self._used: dict[object, int] = {}
        self._idle: list[apsw.Connection] = []
        self._resting: set[apsw.Connection] = set()
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
        if _is_spoilt:
            raise StorageError(
                f"{self._path}: other threads used files when this process was forked, and SQLite may wait for them for ever; "
                "fork before an instance is opened, or start processes with `spawn`",
                file=str(self._path),
            )
        self.place.check()
        place, thread = object(), threading.get_ident()
        try:
            self._enter(place, thread)
            if (connection := self._from_idle()) is not None:
                self._used[connection] = thread
                connection.set_busy_handler(patience(wait))
                return connection
            if _inherited and identity_of(str(self._path)) in _inherited:
                raise StorageError(
                    f"{self._path}: was in use when this process was forked; fork before, or start processes with `spawn`",
                    file=str(self._path),
                )
            connection = connect(self._path, create=create, wait=wait, vfs=self._vfs)
            connection.set_commit_hook(self._refuse)
            self.place.opened()
            self._used[connection] = thread
            return connection
        finally:
            self._used.pop(place, None)

    def rest(self, connection: apsw.Connection) -> None:
        """Says that whoever took a connection keeps it, and does not use it before `resume`."""
        self._resting.add(connection)
        self._used.pop(connection, None)

    def resume(self, connection: apsw.Connection) -> bool:
        """Whether a connection that rested is still there to be used; a fork closes it.

        Raises:
            StorageError: This process was forked after the file was opened.
        """
        if self.is_inherited:
            self.check()
        self._enter(connection, threading.get_ident())
        try:
            self._resting.remove(connection)
        except KeyError:
            self._used.pop(connection, None)
            return False
        return True

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
        if is_clean and is_reusable and not self._is_closed and len(self._idle) < _IDLE_MAX:
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
            self._enter(place, threading.get_ident())
            self._is_closed = True
            while (connection := self._from_idle()) is not None:
                connection.close(force=True)
        finally:
            self._used.pop(place, None)

    @property
    def users(self) -> set[int]:
        """The threads that may be inside of SQLite for this file."""
        return {*list(self._used.values())}

    def let_go(self) -> None:
        """Before a fork: closes what is not in use, so that the new process inherits nothing of it and may open the file itself."""
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        resting = list(self._resting)
        self._resting.difference_update(resting)
        while (connection := resting.pop() if resting else self._from_idle()) is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # that would be work for nothing
            connection.close(force=True)

    def keep_inherited(self) -> None:
        """In a forked process: keeps what was in use from ever being closed, at its end too, and the file from being opened.

        Closing a connection undoes its transaction in the log's index, which is shared: the parent would find its file damaged. And
        while one is open, SQLite takes the parent's locks for this process's own: what is written here may be lost.
        """
        import apsw  # noqa: PLC0415  # whoever has a connection has it

        if self._used:
            for kept in (apsw, *self._used):  # the module closes all connections when it goes
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            _inherited.add(identity_of(str(self._path)))
            _inherited.discard(None)  # it is not there any more

    def _keep(self, connection: apsw.Connection) -> None:
        """Keeps a connection for whoever asks next."""
        place = object()  # so that a fork in between does not miss it
        self._used[place] = self._used.get(connection, threading.get_ident())
        del self._used[connection]
        self._idle.append(connection)
        del self._used[place]
        if self._is_closed:  # meanwhile
            self.close()

    def _from_idle(self) -> apsw.Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _enter(self, place: object, thread: int) -> None:
        """Notes that a thread may be inside of SQLite from now on; while the process forks, those wait that were not yet."""
        while True:
            self._used[place] = thread
            if _forking in (None, thread):
                return
            del self._used[place]
            if thread in _users(list(_POOLS)):  # the fork waits for it
                self._used[place] = thread
                return
            with _GATE:
                pass

    def _refuse(self) -> bool:
        raise undone_error(self._path)


def undone_error(path: Path) -> StorageError:
    """What is said where a transaction is not there any more that should be."""
    return StorageError(
        f"{path}: the transaction was ended from within, or undone by an error of the disk; nothing of it stands",
        file=str(path),
    )


_POOLS: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()
_forks = 0
"""How many forks lie between this process and the first one: asking the system for the process each time takes longer."""


_inherited: Final[set[tuple[int, int] | None]] = set()
"""The files of which connections were in use when this process was forked."""


_is_spoilt = False
"""Whether another thread was inside of SQLite at the fork, and may have held one of its mutexes, which nobody gives back here."""
_GATE: Final = threading.RLock()
"""Held by the thread that forks."""
_forking: int | None = None
"""The thread that forks."""


def _before_fork() -> None:
    global _forking  # noqa: PLW0603  # it is the process's own
    _GATE.acquire()
    _forking = threading.get_ident()
    pools, until = list(_POOLS), time.monotonic() + _FORK_WAITS
    while _users(pools) - {_forking} and time.monotonic() < until:
        time.sleep(_FORK_LOOKS_EVERY)
    for pool in pools:
        pool.let_go()


def _after_fork_in_parent() -> None:
    global _forking  # noqa: PLW0603  # it is the process's own
    _forking = None
    _GATE.release()


def _after_fork_in_child() -> None:
    global _forks, _is_spoilt  # noqa: PLW0603  # they are the process's own
    _forks += 1
    pools = list(_POOLS)
    _is_spoilt = _is_spoilt or bool(_users(pools) - {_forking})
    for pool in pools:
        pool.keep_inherited()
    _after_fork_in_parent()


def _users(pools: list[Connections]) -> set[int]:
    return set().union(*(pool.users for pool in pools))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
