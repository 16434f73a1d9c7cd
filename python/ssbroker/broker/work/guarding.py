"""Keeps an application's SQL from ending the transaction that it is part of (B2), and from outliving it."""

from __future__ import annotations

import re
from typing import Final
from weakref import WeakSet

from ssbroker.exceptions import BrokerError
from ssbroker.store.sqlite import Connection, Cursor, clear

_BLANK: Final = r"(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    rf"{_BLANK}(?P<word>BEGIN|COMMIT|END|ROLLBACK(?!(?:\s+TRANSACTION)?\s+TO\b))\b", re.IGNORECASE | re.DOTALL
)
_STAYS: Final = re.compile(rf"{_BLANK}(?:PRAGMA|ATTACH|DETACH|CREATE\b.*\bTEMP(?:ORARY)?)\b", re.IGNORECASE | re.DOTALL)
"""What SQLite keeps for the connection beyond the transaction, a rollback included."""


class Lent:
    """A connection while the application has it: statements that begin or end a transaction raise on it, and change nothing.

    Args:
        connection: With its transaction begun.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._cursors: Final[WeakSet[Cursor | Connection]] = WeakSet()
        self._has_set = False
        connection.exec_trace = self._traced

    def take_back(self) -> bool:
        """Has the connection as it was. Cursors that were not read to their end are closed: with `RETURNING`, they would keep SQLite from committing.

        Returns:
            Whether it may serve other transactions: the application has set nothing that would stay, and has not closed it.
        """
        if not clear(self._connection):
            return False
        for cursor in list(self._cursors):
            cursor.close(force=True)
        return not self._has_set

    def _traced(self, cursor: Cursor | Connection, sql: str, _bindings: object) -> bool:
        found = _ENDS.match(sql)
        if found is not None:
            raise BrokerError(
                f"{found['word'].upper()} has no place inside of a transaction of the broker: its `with` block commits at its end, "
                "and is rolled back where an exception leaves it; for a part of it, use SAVEPOINT"
            )
        if cursor is not self._connection:  # which it is where `with connection` makes a savepoint
            self._cursors.add(cursor)
        self._has_set = self._has_set or _STAYS.match(sql) is not None
        return True
