"""Guards a connection while the application executes SQL on it: refuses statements that would break the transaction or the tables of ssbroker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast
from weakref import WeakSet

from ssbroker.exceptions import BrokerError
from ssbroker.store.sqlite import Connection, Cursor, default_settings, interrupt_and_remove_hooks, restore_settings

_COMMENT_OR_QUOTED: Final = re.compile(
    r"--[^\n]*|/\*.*?(?:\*/|\Z)|(?P<quoted>'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z))",
    re.DOTALL,
)
_SPACE: Final = r"[\s;]*"
_TRANSACTION_STATEMENT: Final = re.compile(
    rf"{_SPACE}(?P<word>BEGIN|COMMIT|END|ROLLBACK(?!(?:\s+TRANSACTION)?\s+TO\b))\b", re.IGNORECASE | re.DOTALL
)
_SESSION_STATEMENT: Final = re.compile(
    rf"{_SPACE}(?:PRAGMA|ATTACH|DETACH|CREATE\b.*\bTEMP(?:ORARY)?)\b", re.IGNORECASE | re.DOTALL
)
"""Statements whose effects on the connection outlive the transaction, even if it is rolled back."""
_VERSION_STATEMENT: Final = re.compile(
    rf"{_SPACE}PRAGMA\b\s*(?:(?:\w+|\"[^\"]*\"|'[^']*'|`[^`]*`|\[[^\]]*\])\s*\.\s*)?"
    rf"[\"'`\[]?(?P<name>user_version|application_id)[\"'`\]]?\s*[=(]",
    re.IGNORECASE | re.DOTALL,
)
_OWN_NAME: Final = r"(?:[\"'`\[]?main[\"'`\]]?\s*\.\s*)?[\"'`\[]?(?P<name>ssb_\w+)"
_TABLE_STATEMENT: Final = re.compile(
    rf"{_SPACE}(?:(?:INSERT|REPLACE|UPDATE|DELETE|CREATE|ALTER|DROP|OR|ABORT|FAIL|IGNORE|ROLLBACK|INTO|FROM|TEMP|TEMPORARY|VIRTUAL|"
    rf"UNIQUE|TABLE|INDEX|TRIGGER|VIEW|IF|NOT|EXISTS)\b\s*)+"
    rf"{_OWN_NAME}",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that write to a table whose name begins with `ssb_`, or create or drop one."""
_NESTED_WRITE: Final = re.compile(
    rf"{_SPACE}(?:WITH|CREATE\s*(?:TEMP(?:ORARY)?\s*)?TRIGGER)\b.*"
    rf"\b(?:(?:INSERT|REPLACE)\s*(?:OR\s*\w+\s*)?INTO|UPDATE(?:\s*OR\s*\w+)?|DELETE\s*FROM)\b\s*{_OWN_NAME}",
    re.IGNORECASE | re.DOTALL,
)
"""Writes to such a table after common table expressions, or in the body of a trigger."""
_QUERY_ONLY_STATEMENT: Final = re.compile(rf"{_SPACE}PRAGMA\b.*query_only", re.IGNORECASE | re.DOTALL)

_INTERRUPT_TIMEOUT: Final = 10.0
"""Seconds to wait until an interrupted statement of another thread has ended: a function of the application may be running in it."""


def _without_comments(sql: str) -> str:
    """Replaces each comment by a space.

    Examples:
        >>> _without_comments("SELECT '--' -- all /*")
        "SELECT '--'  "
    """
    if "--" not in sql and "/*" not in sql:
        return sql
    return _COMMENT_OR_QUOTED.sub(lambda found: found["quoted"] or " ", sql)


class ConnectionGuard:
    """Guards a connection while the application uses it: statements that begin or end a transaction raise an error and change nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._cursors: Final[WeakSet[Cursor | Connection]] = WeakSet()
        self._has_session_changes = False
        self._has_ended = False

    def start(self) -> None:
        """Starts the guard. Until `reclaim` has succeeded, nobody else uses the connection."""
        self._connection.is_exposed, self._connection.is_reusable = True, False
        self._connection.exec_trace = self._check_statement

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Executes statements of ssbroker itself, without the settings of the application, such as a `row_trace`."""
        defaults = default_settings()
        settings = {name: getattr(self._connection, name) for name in defaults}
        restore_settings(self._connection, defaults)
        try:
            yield
        finally:
            if not self._has_ended:  # an interrupt can end the transaction first
                restore_settings(self._connection, settings)

    def reclaim(self) -> bool:
        """Ends the guard and closes open cursors, which could block the commit. May be called again after an interrupt.

        Returns whether a statement of another thread was interrupted; the whole transaction must then be rolled back.
        """
        self._has_ended = True
        is_open, is_interrupted = interrupt_and_remove_hooks(self._connection, timeout=_INTERRUPT_TIMEOUT)
        if is_open:
            for cursor in list(self._cursors):
                cursor.close(force=True)
            self._undo()
            self._connection.is_reusable = not self._has_session_changes
        return is_interrupted

    def _undo(self) -> None:
        """Undoes what `start` has changed for the duration of the guard."""

    def _check_statement(self, cursor: Cursor | Connection, sql: str, _bindings: object) -> bool:
        sql = _without_comments(sql)
        found = _TRANSACTION_STATEMENT.match(sql)
        if found is not None:
            raise BrokerError(
                f"{found['word'].upper()} is not allowed in a broker transaction, which commits at the end of its `with` block "
                "and rolls back on an exception; use SAVEPOINT for a part of it"
            )
        version = _VERSION_STATEMENT.match(sql)
        if version is not None:
            raise BrokerError(
                f"PRAGMA {version['name'].lower()} cannot be set, because ssbroker uses it; "
                "keep the version of your tables in a table"
            )
        table = None
        if "ssb_" in sql.lower():  # this search is much faster than the others
            table = _TABLE_STATEMENT.match(sql) or _NESTED_WRITE.match(sql)
        if table is not None:
            raise BrokerError(
                f"{sql.strip()!r:.80} is not allowed: names that begin with 'ssb_', such as {table['name']!r}, belong to ssbroker; "
                "use the methods of Database and Transaction, and other names for your own tables"
            )
        return self._note_statement(cursor, sql)

    def _note_statement(self, cursor: Cursor | Connection, sql: str) -> bool:
        """Records changes that the end of the guard must undo."""
        if cursor is not self._connection:  # they are the same object if `with connection` creates a savepoint
            self._cursors.add(cursor)
        self._has_session_changes = self._has_session_changes or _SESSION_STATEMENT.match(sql) is not None
        return True


class ReadOnlyGuard(ConnectionGuard):
    """Guards a connection while the application reads: every statement that does more than read raises an error and changes nothing.

    Args:
        connection: The connection.
        check: Raises an error if the connection cannot be used in this process.
    """

    def __init__(self, connection: Connection, *, check: Callable[[], None]) -> None:
        self._check: Final = check
        super().__init__(connection)

    def start(self) -> None:
        """Makes the connection read-only, and starts the guard."""
        self._connection.is_reusable = False  # also if an interrupt follows the next call
        self._connection.pragma("query_only", True)
        super().start()

    def _undo(self) -> None:
        self._connection.pragma("query_only", False)

    def _check_statement(self, cursor: Cursor | Connection, sql: str, _bindings: object) -> bool:
        self._check()
        sql = _without_comments(sql)
        found = _TRANSACTION_STATEMENT.match(sql)
        if found is not None:
            raise BrokerError(
                f"{found['word'].upper()} is not allowed in a read transaction, which lasts as long as its `with` block; to end it, leave the block"
            )
        is_readonly = cursor is self._connection or cast("Cursor", cursor).is_readonly
        if not is_readonly or _QUERY_ONLY_STATEMENT.match(sql) is not None:
            raise BrokerError(f"a read transaction cannot execute {sql.strip()!r:.80}; write in database.transaction()")
        return self._note_statement(cursor, sql)
