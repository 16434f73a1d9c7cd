"""Keeps an application's SQL from ending the transaction that it is part of (B2)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from ssbroker.exceptions import BrokerError
from ssbroker.store.sqlite import Connection

_BLANK: Final = r"(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    rf"{_BLANK}(?P<word>BEGIN|COMMIT|END|ROLLBACK(?!(?:\s+TRANSACTION)?\s+TO\b))\b", re.IGNORECASE | re.DOTALL
)


def lend(connection: Connection) -> None:
    """Makes a connection ready for the application's SQL: statements that begin or end a transaction raise on it, and change nothing.

    Args:
        connection: With its transaction begun.
    """
    connection.exec_trace = _refuse_ends(connection.exec_trace)


def take_back(connection: Connection) -> None:
    """Ends what `lend` began."""
    connection.exec_trace = None


def _refuse_ends(before: Callable[..., Any] | None) -> Callable[[object, str, object], bool]:
    def traced(cursor: object, sql: str, bindings: object) -> bool:
        found = _ENDS.match(sql)
        if found is not None:
            raise BrokerError(
                f"{found['word'].upper()} has no place inside of a transaction of the broker: its `with` block commits at its end, "
                "and is rolled back where an exception leaves it; for a part of it, use SAVEPOINT"
            )
        return True if before is None else bool(before(cursor, sql, bindings))

    return traced
