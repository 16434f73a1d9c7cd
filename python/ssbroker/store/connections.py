"""The connections of one process to a file."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import StorageError
from ssbroker.store.forking import FORKS
from ssbroker.store.gate import Gate
from ssbroker.store.opening import connect, patience
from ssbroker.store.place import Place, identity_of

if TYPE_CHECKING:
    from ssbroker.store.sqlite import Connection

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
        self.place: Final = Place(path)
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
                connection.set_busy_handler(patience(wait))
                return connection
            if FORKS.inherited and identity_of(str(self._path)) in FORKS.inherited:
                raise StorageError(
                    f"{self._path}: was in use when this process was forked; fork before, or start processes with `spawn`",
                    file=str(self._path),
                )
            connection = connect(self._path, create=create, wait=wait, vfs=self._vfs)
            self.place.opened()
            self._used[connection] = thread
            return connection
        finally:
            self._used.pop(place, None)

    @property
    def used(self) -> dict[object, int]:
        """What is in use, by the thread that uses it."""
        return self._used

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

    def keep(self, connection: Connection) -> None:
        """Has a connection of which it is known that nothing of it is open go with the write lock, which is held, or gives it back."""
        if not self.is_inherited and not self._is_closed and self._gate.keep(connection):
            del self._used[connection]
        else:
            self.give_back(connection)

    def give_back(self, connection: Connection, *, is_reusable: bool = True) -> None:
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
            FORKS.inherited.add(identity_of(str(self._path)))
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
        f"{path}: the transaction was ended from within, or undone by an error of the disk; nothing of it stands",
        file=str(path),
    )
