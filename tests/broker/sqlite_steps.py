"""The cost of a call in steps of SQLite's virtual machine, which is the same on every computer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ssbroker.broker.database import Database, database_context
from ssbroker.store.sqlite import Connection


class Steps:
    """Counts steps of SQLite's virtual machine, in tens."""

    def __init__(self) -> None:
        self.number = 0

    def count(self) -> bool:
        """Counts ten more steps; returns False to continue."""
        self.number += 1
        return False


@contextmanager
def counted(connection: Connection) -> Iterator[Steps]:
    """Counts the steps of a connection within the block."""
    taken = Steps()
    connection.set_progress_handler(taken.count, 10)
    try:
        yield taken
    finally:
        connection.set_progress_handler(None)


def steps(database: Database, call: Callable[[], object]) -> int:
    """Returns the steps, in tens, of a call that runs in this thread; no other thread may use the database."""
    with database_context(database).file.read() as reader:  # the next reader gets the same connection
        pass
    with database.transaction() as t:
        writer = t._session.begin_unguarded()
    with counted(reader) as read, counted(writer) as written:
        call()
    return read.number + written.number
