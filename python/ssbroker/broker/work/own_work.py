"""A transaction that the instance itself begins, for what nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ssbroker.broker.work.effects import Effects
from ssbroker.broker.work.work import Work

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


@contextmanager
def own_work(database: Database, *, lock_timeout: float | None = None) -> Iterator[Work]:
    """A transaction that is committed at the end of the block; then whoever it concerns is told.

    Args:
        database: The database.
        lock_timeout: The seconds to wait for the write lock; None is as long as always.

    Yields:
        The transaction.

    Raises:
        LockTimeoutError: The write lock was not free in time.
        StorageError: The file cannot be written; nothing has changed.
    """
    instance = database.instance
    effects = Effects(log=instance.events)
    with database.file.write(lock_timeout=lock_timeout) as connection:
        yield Work(database, connection, effects)
    instance.worker.committed(database, effects)
