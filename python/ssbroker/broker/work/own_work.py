"""A transaction that the instance itself begins, for what nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ssbroker import moment
from ssbroker.broker.work.effects import Effects
from ssbroker.broker.work.work import Work
from ssbroker.store.sqlite import Connection

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
        yield work_on(database, connection, effects)
    instance.worker.committed(database, effects)


def work_on(database: Database, connection: Connection, effects: Effects) -> Work:
    """What everything that happens in a begun transaction of a database needs.

    Args:
        database: The database.
        connection: Its file, with the write lock.
        effects: Gathers what others are to be told after the commit.

    Returns:
        The transaction.
    """
    instance = database.instance
    objects = database.objects(connection)
    return Work(
        database=database.name,
        connection=connection,
        objects=objects,
        now=lambda: moment.microseconds(instance.clock()),
        new_id=lambda: instance.new_guid().bytes,
        begins=partial(instance.worker.begins, database.database_id),
        ways_of=instance.worker.ways.ways_of(database.name, objects),
        effects=effects,
    )
