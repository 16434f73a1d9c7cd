"""How far a statement reaches that is not run, so that nothing within it is run and nothing after it is lost."""

from __future__ import annotations

from typing import Final

from ssbroker.ddl.cursor import STATEMENT_WORDS, Cursor
from ssbroker.ddl.grammar import known, parse_known

# Reserved words that begin a statement wherever they stand outside parentheses.
_STARTERS: Final = frozenset(
    {
        "BACKUP",
        "BEGIN",
        "COMMIT",
        "CREATE",
        "DBCC",
        "DECLARE",
        "DENY",
        "GOTO",
        "KILL",
        "PRINT",
        "RAISERROR",
        "RECONFIGURE",
        "RESTORE",
        "RETURN",
        "REVOKE",
        "ROLLBACK",
        "TRUNCATE",
        "USE",
        "WAITFOR",
        "WHILE",
    }
)
# Words that begin a statement where they stand first on a line, unless the statement before may go on with them.
_LINE_STARTERS: Final = {
    "ALTER": ("ALTER",),
    "DELETE": ("ALTER", "CREATE", "MERGE", "WITH"),
    "DROP": ("ALTER",),
    "EXEC": ("INSERT",),
    "EXECUTE": ("INSERT",),
    "INSERT": ("MERGE", "WITH"),
    "SELECT": ("CREATE", "DECLARE", "INSERT", "SELECT", "WITH"),
    "SEND": (),
    "SET": ("ALTER", "MERGE", "UPDATE"),
    "UPDATE": ("ALTER", "CREATE", "DECLARE", "MERGE", "SELECT", "WITH"),
}
_PERMISSIONS: Final = ("GRANT", "DENY", "REVOKE")
_NOT_A_BLOCK: Final = ("TRAN", "TRANSACTION", "DISTRIBUTED", "DIALOG", "CONVERSATION")
_MODULES: Final = ("PROCEDURE", "PROC", "FUNCTION", "TRIGGER", "VIEW")


def skip(cursor: Cursor) -> tuple[str, ...]:
    """Moves past the statement at the cursor; the known statements within it."""
    holds: list[str] = []
    _skip(cursor, holds)
    return tuple(dict.fromkeys(holds))


def _skip(cursor: Cursor, holds: list[str]) -> None:
    key = cursor.key
    if key in ("IF", "WHILE"):
        _skip_conditional(cursor, holds)
    elif _opens_block(cursor):
        _skip_block(cursor, holds)
    elif _reaches_batch_end(cursor):
        cursor.to_end()
    elif key == ":" and cursor.first_on_line():
        _skip_line(cursor)
    elif (key == "END" and cursor.ahead(1).key != "CONVERSATION") or key == "ELSE":
        cursor.fail(f"{key} without its {'BEGIN' if key == 'END' else 'IF'}")
    else:
        _skip_plain(cursor)


def _skip_plain(cursor: Cursor) -> None:
    head = cursor.take().key
    if head in ("BEGIN", "END"):
        cursor.take()
    permissions = head in _PERMISSIONS  # `GRANT CREATE ROUTE TO ...` begins no CREATE ROUTE
    depth = cases = 0
    while not cursor.done:
        key = cursor.key
        if depth == 0 and cases == 0 and not permissions:
            if key in (";", "ELSE", "END") or _begins(cursor, head):
                break
        elif key == ";" and depth == 0:
            break
        depth += (key == "(") - (key == ")")
        cases += (key == "CASE") - (key == "END")
        permissions = permissions and not (depth == 0 and key in ("TO", "FROM"))
        cursor.take()
    if depth > 0:
        cursor.fail("the parentheses do not match")


def _begins(cursor: Cursor, head: str) -> bool:
    """Whether another statement begins here, after one that began with `head`."""
    key, follower = cursor.key, cursor.ahead(1).key
    if key == "IF":
        return follower != "EXISTS" or cursor.ahead(2).key == "("  # not DROP TABLE IF EXISTS
    if key == "GRANT":
        return follower != "OPTION"
    if key in _STARTERS or known(cursor) is not None:
        return True
    return key in _LINE_STARTERS and head not in _LINE_STARTERS[key] and cursor.first_on_line()


def _opens_block(cursor: Cursor) -> bool:
    return cursor.key == "BEGIN" and cursor.ahead(1).key not in _NOT_A_BLOCK


def _skip_block(cursor: Cursor, holds: list[str]) -> None:
    depth = 0
    while True:
        if cursor.done:
            cursor.fail("END was expected")
        verb = known(cursor)
        if verb is not None:
            holds.append(verb)
        if cursor.key == "CASE" or _opens_block(cursor):
            depth += 1
        elif cursor.key == "END" and cursor.ahead(1).key != "CONVERSATION":
            depth -= 1
        cursor.take()
        if depth == 0:
            if cursor.key in ("TRY", "CATCH"):
                cursor.take()
            return


def _skip_conditional(cursor: Cursor, holds: list[str]) -> None:
    """IF with its ELSE, or WHILE, however deep they stand in each other: `heads` are those whose statement is still to come."""
    heads: list[str] = []
    while True:
        while cursor.key in ("IF", "WHILE"):
            heads.append(cursor.take().key)
            _skip_condition(cursor, heads[-1])
        _skip_inner(cursor, holds)
        while heads:
            if heads.pop() == "IF" and (cursor.accept(";", "ELSE") or cursor.accept("ELSE")):
                heads.append("ELSE")
                break
        if not heads:
            return


def _skip_condition(cursor: Cursor, head: str) -> None:
    """It reaches to the first word that begins a statement."""
    depth = cases = 0
    while depth > 0 or cases > 0 or cursor.key not in STATEMENT_WORDS:
        if cursor.done or cursor.key == ";":
            cursor.fail(f"a statement was expected after {head}")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cases += (cursor.key == "CASE") - (cursor.key == "END")
        cursor.take()


def _skip_inner(cursor: Cursor, holds: list[str]) -> None:
    if cursor.done or cursor.key == ";":
        cursor.fail("a statement was expected")
    verb = known(cursor)
    if verb is None:
        _skip(cursor, holds)
        return
    holds.append(verb)
    subject = cursor.subject
    parse_known(cursor, verb)
    cursor.subject = subject


def _reaches_batch_end(cursor: Cursor) -> bool:
    """RETURN ends the batch; a procedure, function, trigger or view is all of its batch."""
    if cursor.key == "RETURN":
        return True
    if cursor.key not in ("CREATE", "ALTER"):
        return False
    noun = cursor.ahead(3).key if (cursor.ahead(1).key, cursor.ahead(2).key) == ("OR", "ALTER") else cursor.ahead(1).key
    return noun in _MODULES


def _skip_line(cursor: Cursor) -> None:
    """A command of sqlcmd: `:setvar`, `:on error exit`."""
    cursor.take()
    while not cursor.done and not cursor.first_on_line():
        cursor.take()
