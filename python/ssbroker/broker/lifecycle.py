"""A transaction from the first call that is not plain to its end (B2, B4, B5)."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

from ssbroker.broker.dialogs import poison
from ssbroker.broker.work.effects import Effects
from ssbroker.broker.work.guarding import Lent
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import BrokerError, SsbrokerError, StorageError
from ssbroker.store.plain import PlainSession
from ssbroker.store.sqlite import Connection, raise_if_about_the_file, storage_errors

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


class Lifecycle:
    """A transaction that does more than what is plain. As a context manager it stands around each call.

    A call that is refused has changed nothing. One that fails on its way, because of the disk, an interrupt or a mistake in here,
    may have written a part: then the whole transaction is undone, and every further call says so.

    Args:
        database: The database.
        plain: Its transaction so far; what that did is told with what is done from here on.
    """

    __slots__ = ("_database", "_effects", "_is_broken", "_lent", "_plain", "_session", "_work")

    def __init__(self, database: Database, plain: PlainSession) -> None:
        self._database: Final = database
        self._plain: Final = plain
        self._effects: Final = Effects(log=database.instance.events)
        self._work: Work | None = None
        self._lent: Lent | None = None
        self._session: Final = database.file.session()
        # An exception of a signal's handler may have taken with it what this has been left before.
        self._is_broken = plain.is_left
        self._effects.are_done(self._session.adopt(plain))

    def __del__(self) -> None:
        """Undoes what was entered without `with`, and dropped: nobody else could give back the lock."""
        session = getattr(self, "_session", None)  # where the handler of a signal has raised, it is not made whole
        if session is not None and session.is_begun and not self._database.file.is_inherited:
            self.leave()
            message = f"{self._database.file.path}: a transaction was dropped before its end, and is undone; use it in a `with` block"
            warnings.warn(message, ResourceWarning, stacklevel=2)

    @property
    def has_lock(self) -> bool:
        """Whether the write lock is held."""
        return self._session.is_begun

    def lend(self) -> Connection:
        """The connection, for the application's own SQL."""
        self._begin()
        connection = self._session.begin()
        if self._lent is None:
            self._lent = Lent(connection)
        return connection

    def leave(self) -> None:
        """Gives the lock back before the end; what was not committed is undone."""
        self._take_back()
        self._work = None
        self._session.close()

    def end(self, error: BaseException | None) -> None:
        """Ends the transaction, and tells the instance what it did.

        Args:
            error: What left the block; None makes the transaction durable.

        Raises:
            StorageError: It could not be; then nothing has changed. Or the application's own SQL met with a disk that fails.
        """
        self._plain.end()
        is_committed = False
        try:
            if error is None:
                self._commit()
                is_committed = True
        finally:
            if not is_committed:
                self.leave()
            self._tell(is_committed=is_committed)
        if error is not None:
            raise_if_about_the_file(error, self._database.file.path)

    def not_committed(self, error: BaseException) -> None:
        """What `end` does where the plain session has tried to commit.

        Args:
            error: What it raised.

        Raises:
            StorageError: What that means.
        """
        self._plain.end()
        try:
            self._session.failed(error)
        finally:
            self._tell(is_committed=False)

    def failed(self, error: BaseException) -> NoReturn:
        """What is done where a call fails on its way.

        Args:
            error: What it raised.

        Raises:
            StorageError: What that means, where it is about the file; otherwise the error itself.
        """
        self._is_broken = True
        self.leave()
        with storage_errors(self._database.file.path, is_ours=True):
            raise error

    def __enter__(self) -> Work:
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SsbrokerError) and not isinstance(error, StorageError)):
            return
        self.failed(error)

    def _commit(self) -> None:
        if self._is_broken:
            raise _undone(self._database)
        self._take_back()
        self._work = None
        self._session.commit(received_from=poison.received_from(self._effects))

    def _tell(self, *, is_committed: bool) -> None:
        # In a forked process nothing has happened, and locks of its parent's threads are never given back.
        if not self._database.file.is_inherited:
            worker = self._database.instance.worker
            (worker.committed if is_committed else worker.rolled_back)(self._database, self._effects)

    def _take_back(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            self._session.is_reusable = lent.take_back()

    def _begin(self) -> Work:
        if not self._plain.is_open:
            raise BrokerError("the transaction is over, or not begun: use it inside of its `with` block")
        if self._is_broken:
            raise _undone(self._database)
        connection = self._session.begin_unguarded()
        if self._work is None:
            with storage_errors(self._database.file.path, is_ours=True):
                self._work = Work(self._database, connection, self._effects)
        return self._work


def _undone(database: Database) -> StorageError:
    path = database.file.path
    return StorageError(
        f"{path}: a call failed on its way and the transaction was undone; nothing of it stands", file=str(path)
    )
