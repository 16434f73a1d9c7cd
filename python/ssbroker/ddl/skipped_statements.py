"""Recognizes and skips statements that do not concern Service Broker; distinguishes those that T-SQL does not have."""

from __future__ import annotations

from typing import Final

from ssbroker.ddl.parser_base import STATEMENT_WORDS, TokenCursor, did_you_mean
from ssbroker.ddl.parser_statements import known_statement
from ssbroker.ddl.statements import Skipped, Statement, Unknown

# Reserved words that start a statement anywhere outside parentheses.
_STATEMENT_STARTERS: Final = frozenset(
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
# Words that start a statement if they are first on a line, unless the current statement may contain them.
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
# Statements that contain none of the words that end them.
_SHORT: Final = frozenset({"COMMIT", "DECLARE", "EXEC", "EXECUTE", "PRINT", "ROLLBACK", "SET"})
_SHORT_ENDS: Final = frozenset({"EXEC", "EXECUTE", "SELECT", "SET"})
_PERMISSIONS: Final = ("GRANT", "DENY", "REVOKE")

# The first words of the kinds of objects that CREATE, ALTER and DROP are about.
_OBJECT_WORDS: Final = frozenset(
    [
        "AGGREGATE",
        "APPLICATION",
        "ASSEMBLY",
        "ASYMMETRIC",
        "AUTHORIZATION",
        "AVAILABILITY",
        "BROKER",
        "CERTIFICATE",
        "CLUSTERED",
        "COLUMN",
        "COLUMNSTORE",
        "CONTRACT",
        "CREDENTIAL",
        "CRYPTOGRAPHIC",
        "DATABASE",
        "DEFAULT",
        "ENDPOINT",
        "EVENT",
        "EXTERNAL",
        "FEDERATION",
        "FULLTEXT",
        "FUNCTION",
        "INDEX",
        "JSON",
        "LOGIN",
        "MASTER",
        "MATERIALIZED",
        "MESSAGE",
        "NONCLUSTERED",
        "OR",
        "PARTITION",
        "PRIMARY",
        "PROC",
        "PROCEDURE",
        "QUEUE",
        "REMOTE",
        "RESOURCE",
        "ROLE",
        "ROUTE",
        "RULE",
        "SCHEMA",
        "SEARCH",
        "SECURITY",
        "SELECTIVE",
        "SENSITIVITY",
        "SEQUENCE",
        "SERVER",
        "SERVICE",
        "SIGNATURE",
        "SPATIAL",
        "STATISTICS",
        "SYMMETRIC",
        "SYNONYM",
        "TABLE",
        "TRIGGER",
        "TYPE",
        "UNIQUE",
        "USER",
        "VECTOR",
        "VIEW",
        "WORKLOAD",
        "XML",
    ]
)
_OBJECT_VERBS: Final = frozenset({"ALTER", "CREATE", "DROP"})
# Statements that start with these have a kind of two words.
_TWO_WORDS: Final = _OBJECT_VERBS | {
    "ADD",
    "BACKUP",
    "BEGIN",
    "BULK",
    "DISABLE",
    "ENABLE",
    "END",
    "GET",
    "MOVE",
    "RESTORE",
}
_OTHER_STARTERS: Final = frozenset(
    ["BREAK", "CONTINUE", "LINENO", "READTEXT", "SETUSER", "UPDATETEXT", "WITH", "WRITETEXT"]
)
_CREATED: Final = frozenset(
    {"TABLE", "VIEW", "PROCEDURE", "PROC", "FUNCTION", "TRIGGER", "SYNONYM", "SEQUENCE", "TYPE"}
)
_CHANGES_VARIABLES: Final = frozenset(
    [
        "BEGIN",
        "EXEC",
        "EXECUTE",
        "FETCH",
        "GET",
        "RECEIVE",
        "SELECT",
        "SET",
        "UPDATE",
        "WAITFOR",
        "INSERT",
        "DELETE",
        "MERGE",
        "WITH",
    ]
)


def skip_other(cursor: TokenCursor) -> Statement:
    """Moves past a statement that does not concern Service Broker."""
    first = cursor.index
    unknown = _unknown_reason(cursor)
    skip_simple(cursor)
    tokens = cursor.tokens_since(first)
    keys = [token.key for token in tokens]
    if unknown is not None:
        return Unknown(*unknown)
    if keys[0] == "RESTORE" and "ENABLE_BROKER" in keys:
        return Skipped("RESTORE DATABASE WITH ENABLE_BROKER")
    changed = (
        tuple(token.text for token in tokens if token.key.startswith("@")) if keys[0] in _CHANGES_VARIABLES else ()
    )
    return Skipped(_kind(keys), changed, _created(cursor, first))


def skip_simple(cursor: TokenCursor) -> None:
    """Moves past a statement without control flow: to a semicolon, or to a word that starts another statement."""
    head = cursor.take().key
    if head in ("BEGIN", "END"):
        cursor.take()
    permissions = head in _PERMISSIONS  # `GRANT CREATE ROUTE TO ...` is not a CREATE ROUTE
    depth = cases = 0
    while not cursor.at_end:
        key = cursor.key
        if depth == 0 and cases == 0 and not permissions:
            if key in (";", "ELSE", "END") or _starts_statement(cursor, head):
                break
        elif key == ";" and depth == 0:
            break
        depth += (key == "(") - (key == ")")
        cases += (key == "CASE") - (key == "END")
        permissions = permissions and not (depth == 0 and key in ("TO", "FROM"))
        cursor.take()
    if depth > 0:
        cursor.fail("unbalanced parentheses")


def _starts_statement(cursor: TokenCursor, head: str) -> bool:
    """Returns whether another statement starts here, after one that starts with `head`."""
    key, follower = cursor.key, cursor.ahead(1).key
    if key == "IF":
        return follower != "EXISTS" or cursor.ahead(2).key == "("  # not DROP TABLE IF EXISTS
    if key == "GRANT":
        return follower != "OPTION"
    if head in _SHORT and key in _SHORT_ENDS and not (head == "DECLARE" and key == "SELECT"):
        return True
    if key in _STATEMENT_STARTERS or known_statement(cursor) is not None or cursor.is_label():
        return True
    return key in _LINE_STARTERS and head not in _LINE_STARTERS[key] and cursor.is_first_on_line()


def skip_condition(cursor: TokenCursor, head: str) -> None:
    """Moves to the first word that starts a statement."""
    depth = cases = 0
    while depth > 0 or cases > 0 or cursor.key not in STATEMENT_WORDS:
        if cursor.at_end or cursor.key == ";":
            cursor.fail(f"expected a statement after {head}")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cases += (cursor.key == "CASE") - (cursor.key == "END")
        cursor.take()


def _unknown_reason(cursor: TokenCursor) -> tuple[str, int] | None:
    """Returns why T-SQL has no such statement, with the number of the error; None if it may have."""
    token, key, noun = cursor.token, cursor.key, cursor.ahead(1)
    if key in _OBJECT_VERBS:
        if noun.kind == "word" and noun.key not in _OBJECT_WORDS:
            hint = did_you_mean(noun.key, _OBJECT_WORDS)
            return f"{key} {noun.text[:_SHOWN_MAX]} is not a statement of T-SQL{hint}", 343
        return None
    if key in STATEMENT_WORDS or key in _OTHER_STARTERS or key == "(" or noun.key == ":":
        return None
    hint = did_you_mean(key, STATEMENT_WORDS)
    is_name = token.kind in ("word", "name")
    is_argument = noun.kind in ("string", "end") or noun.key in (".", ";") or noun.key.startswith("@")
    if cursor.index == 0 and is_name and not hint and (is_argument or key.startswith(("SP_", "XP_"))):
        return None  # a procedure call without EXEC
    shown = token.text[:_SHOWN_MAX] if token.kind == "word" else "this"
    return f"no statement of T-SQL starts with {shown}{hint}", 102


_SHOWN_MAX: Final = 40


def _kind(keys: list[str]) -> str:
    """Returns the words by which a statement is counted, without names."""
    count = 2 if keys[0] in _TWO_WORDS else 1
    if keys[0] == "SET":
        return "SET"
    if keys[0] in _PERMISSIONS and "ENDPOINT" in keys:
        return f"{keys[0]} ON ENDPOINT"
    words = [key for key in keys[:count] if key.isalpha() or key in STATEMENT_WORDS]
    return " ".join(words) if words and words[0] in STATEMENT_WORDS | _OTHER_STARTERS else "procedure call"


def _created(cursor: TokenCursor, first: int) -> tuple[str, str] | None:
    """Returns kind and name of the object that CREATE creates; the name without brackets."""
    tokens = [token for token in cursor.tokens_since(first)[:12] if token.key not in ("OR", "ALTER")]
    if len(tokens) < 3 or tokens[0].key != "CREATE" or tokens[1].key not in _CREATED:  # noqa: PLR2004 - verb, noun, name
        return None
    name = tokens[2].text
    for dot, part in zip(tokens[3::2], tokens[4::2], strict=False):
        if dot.key != ".":
            break
        name = part.text
    return tokens[1].key, name
