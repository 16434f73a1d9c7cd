"""A transaction from its first use to its end (B2, B4, B5)."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ssbroker.broker.dialogs import poison
from ssbroker.broker.work.effects import Effects
from ssbroker.broker.work.guarding import Lent
from ssbroker.broker.work.own_work import work_on
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import BrokerError, SsbrokerError, StorageError
from ssbroker.store.sqlite import Connection, raise_if_about_the_file, storage_errors

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


class Lifecycle:
    """Begins the transaction when it is first needed, and ends it. As a context manager it stands around each call.

    A call that is refused has changed nothing. One that fails on its way, because of the disk, an interrupt or a mistake in here,
    may have written a part: then the whole transaction is undone, and every further call says so.
    """

    def __init__(self, database: Database) -> None:
        self.database: Final = database
        self.effects: Final = Effects(log=database.instance.events)
        self._session: Final = database.file.session()
        self._work: Work | None = None
        self._lent: Lent | None = None
        self._is_open = False
        self._is_over = False
        self._is_broken = False

    def __del__(self) -> None:
        """Undoes what was entered without `with`, and dropped: nobody else could give back the lock."""
        if self.has_lock and not self.database.file.is_inherited:
            self.leave()
            message = f"{self.database.file.path}: a transaction was dropped before its end, and is undone; use it in a `with` block"
            warnings.warn(message, ResourceWarning, stacklevel=2)

    @property
    def has_lock(self) -> bool:
        """Whether the write lock is held."""
        return self._session.is_begun

    def open(self) -> None:
        """Enters the transaction's block; nothing is locked yet.

        Raises:
            BrokerError: It was entered before.
        """
        if self._is_open or self._is_over:
            raise BrokerError("a transaction is entered once; begin another with database.transaction()")
        self._is_open = True

    def lend(self) -> Connection:
        """The connection, for the application's own SQL."""
        connection = self._begin().connection
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
        commits = error is None
        self._is_open, self._is_over = False, True
        is_committed = False
        try:
            if commits and self._is_broken:
                raise _undone(self.database)
            if commits:
                self._take_back()
                if self._work is not None:
                    poison.commits(self._work)
                self._session.commit()
                is_committed = True
        finally:
            self.leave()
            # In a forked process nothing has happened, and locks of its parent's threads are never given back.
            if not self.database.file.is_inherited:
                worker = self.database.instance.worker
                (worker.committed if is_committed else worker.rolled_back)(self.database, self.effects)
        if error is not None:
            raise_if_about_the_file(error, self.database.file.path)

    def __enter__(self) -> Work:
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SsbrokerError) and not isinstance(error, StorageError)):
            return
        self._is_broken = True
        self.leave()
        with storage_errors(self.database.file.path):
            raise error

    def _take_back(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            self._session.is_reusable = lent.take_back()

    def _begin(self) -> Work:
        if not self._is_open:
            raise BrokerError("the transaction is over, or not begun: use it inside of its `with` block")
        if self._is_broken:
            raise _undone(self.database)
        connection = self._session.begin()
        if self._work is None:
            self._work = work_on(self.database, connection, self.effects)
        return self._work


def _undone(database: Database) -> StorageError:
    path = database.file.path
    return StorageError(
        f"{path}: a call failed on its way and the transaction was undone; nothing of it stands", file=str(path)
    )
