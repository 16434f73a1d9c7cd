"""How much a call has a database file do, counted where SQLite counts it: a number that is the same on every machine."""

from __future__ import annotations

from collections.abc import Callable

from ssbroker.broker.database import Database


def steps(database: Database, call: Callable[[], object]) -> int:
    """The steps of SQLite's virtual machine that a call takes to read a database, in tens.

    Args:
        database: The database.
        call: Reads it, in this thread.

    Returns:
        Their number.
    """
    number = 0

    def count() -> bool:
        nonlocal number
        number += 1
        return False

    with database.file.read() as connection:  # whoever reads next is given the same one
        connection.set_progress_handler(count, 10)
    call()
    with database.file.read() as connection:
        connection.set_progress_handler(None)
    return number
