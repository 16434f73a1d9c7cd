"""Skips statements that do not concern Service Broker, and recognizes statements that do not exist in T-SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ssbroker._text import did_you_mean, most_similar
from ssbroker.ddl.parser_statements import known_statement
from ssbroker.ddl.statements import Skipped, Statement, Tokens, Unknown
from ssbroker.ddl.token_cursor import RESERVED_WORDS, STATEMENT_WORDS, TokenCursor

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
# Words that start a statement if they are the first word on a line, unless the current statement may contain them.
_LINE_STARTERS: Final = {
    "ALTER": ("ALTER",),
    "DELETE": ("ALTER", "CREATE", "MERGE", "WITH"),
    "DROP": ("ALTER",),
    "EXEC": ("INSERT",),
    "EXECUTE": ("INSERT",),
    "INSERT": ("MERGE", "WITH"),
    "SEND": (),
    "SET": ("ALTER", "MERGE", "UPDATE"),
    "UPDATE": ("ALTER", "CREATE", "MERGE", "SELECT", "WITH"),
}
# Statements that cannot contain the words in `_SHORT_ENDS`, so that such a word starts another statement.
_SHORT: Final = frozenset({"COMMIT", "DECLARE", "EXEC", "EXECUTE", "PRINT", "RAISERROR", "ROLLBACK", "SET"})
_SHORT_ENDS: Final = frozenset({"EXEC", "EXECUTE", "SET"})
# A SELECT after one of these words is part of the same statement.
_BEFORE_QUERY: Final = frozenset({"ALL", "AS", "EXCEPT", "FOR", "INTERSECT", "UNION"})
# After these words, a SELECT is not the query of the same INSERT or WITH.
_INSTEAD_OF_QUERY: Final = frozenset({"DELETE", "EXEC", "EXECUTE", "MERGE", "SELECT", "UPDATE", "VALUES"})
# Statements that cannot contain EXEC.
_QUERIES: Final = frozenset({"DELETE", "FETCH", "SELECT", "UPDATE"})
_PERMISSIONS: Final = ("GRANT", "DENY", "REVOKE")

# The first words of the kinds of objects that CREATE, ALTER and DROP apply to.
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
# For statements that start with these words, the kind consists of two words.
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
# The kinds of objects that consist of more than one word, except Service Broker objects.
_LONG_NOUNS: Final = (
    "APPLICATION ROLE",
    "ASYMMETRIC KEY",
    "AVAILABILITY GROUP",
    "CLUSTERED COLUMNSTORE INDEX",
    "CLUSTERED INDEX",
    "COLUMN ENCRYPTION KEY",
    "COLUMN MASTER KEY",
    "COLUMNSTORE INDEX",
    "CRYPTOGRAPHIC PROVIDER",
    "DATABASE AUDIT SPECIFICATION",
    "DATABASE ENCRYPTION KEY",
    "DATABASE SCOPED CONFIGURATION",
    "DATABASE SCOPED CREDENTIAL",
    "EVENT NOTIFICATION",
    "EVENT SESSION",
    "EXTERNAL DATA SOURCE",
    "EXTERNAL FILE FORMAT",
    "EXTERNAL LANGUAGE",
    "EXTERNAL LIBRARY",
    "EXTERNAL MODEL",
    "EXTERNAL RESOURCE POOL",
    "EXTERNAL TABLE",
    "FULLTEXT CATALOG",
    "FULLTEXT INDEX",
    "FULLTEXT STOPLIST",
    "MATERIALIZED VIEW",
    "NONCLUSTERED COLUMNSTORE INDEX",
    "NONCLUSTERED INDEX",
    "PARTITION FUNCTION",
    "PARTITION SCHEME",
    "PRIMARY XML INDEX",
    "RESOURCE GOVERNOR",
    "RESOURCE POOL",
    "SEARCH PROPERTY LIST",
    "SECURITY POLICY",
    "SELECTIVE XML INDEX",
    "SENSITIVITY CLASSIFICATION",
    "SERVER AUDIT",
    "SERVER AUDIT SPECIFICATION",
    "SERVER CONFIGURATION",
    "SERVER ROLE",
    "SERVICE MASTER KEY",
    "SIGNATURE",
    "SPATIAL INDEX",
    "SYMMETRIC KEY",
    "UNIQUE CLUSTERED INDEX",
    "UNIQUE INDEX",
    "UNIQUE NONCLUSTERED INDEX",
    "VECTOR INDEX",
    "WORKLOAD CLASSIFIER",
    "WORKLOAD GROUP",
    "XML INDEX",
    "XML SCHEMA COLLECTION",
)
_LONG_NOUN_WORDS: Final = tuple(sorted((noun.split() for noun in _LONG_NOUNS), key=len, reverse=True))
EVENT_NOTIFICATION_KINDS: Final = frozenset({"CREATE EVENT NOTIFICATION", "DROP EVENT NOTIFICATION"})
"""Statements that concern Service Broker, but are not supported."""
MESSAGE_KINDS: Final = frozenset(
    {
        "BEGIN CONVERSATION",
        "BEGIN DIALOG",
        "END CONVERSATION",
        "GET CONVERSATION",
        "MOVE CONVERSATION",
        "RECEIVE",
        "SEND",
        "WAITFOR (GET CONVERSATION)",
        "WAITFOR (RECEIVE)",
    }
)
"""Statements that send or receive messages, which scripts do not do."""
_OTHER_STARTERS: Final = frozenset(
    ["BREAK", "CONTINUE", "LINENO", "READTEXT", "SETUSER", "UPDATETEXT", "WITH", "WRITETEXT"]
)
_CREATED: Final = frozenset(
    {"TABLE", "VIEW", "PROCEDURE", "PROC", "FUNCTION", "TRIGGER", "SYNONYM", "SEQUENCE", "TYPE", "SCHEMA", "ROLE"}
)
_CHANGES_VARIABLES: Final = frozenset(
    [
        "BEGIN",
        "DECLARE",
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
    return Skipped(_kind(keys), tuple(_changed(tokens, keys)), _created(cursor, first))


def _changed(tokens: Tokens, keys: list[str]) -> Iterator[str]:
    """Yields the variables, temporary tables and cursors that a statement may change."""
    if keys[0] not in _CHANGES_VARIABLES:
        return
    yield from (token.text for token in tokens if token.key.startswith(("@", "#")))
    if keys[0] == "DECLARE" and "CURSOR" in keys:
        yield tokens[1].text
    if keys[0] == "FETCH" and "INTO" in keys:
        yield tokens[keys.index("INTO") - 1].text


def skip_simple(cursor: TokenCursor) -> None:
    """Moves past a statement without control flow: to a semicolon, or to a word that starts another statement."""
    head = cursor.take().key
    if head in ("BEGIN", "END"):
        cursor.take()
    permissions = head in _PERMISSIONS  # `GRANT CREATE ROUTE TO ...` is not a CREATE ROUTE
    is_query = head in _QUERIES
    takes_query, takes_set = head in ("INSERT", "WITH"), head == "UPDATE"
    depth = cases = 0
    while not cursor.at_end:
        key = cursor.key
        if depth == 0 and cases == 0 and not permissions:
            if key in (";", "ELSE", "END") or (is_query and key in ("EXEC", "EXECUTE")):
                break
            if _starts_statement(cursor, head):
                break
            if key == "SELECT" and not takes_query and cursor.ahead(-1).key not in _BEFORE_QUERY:
                break
            if key == "SET" and head == "UPDATE" and not takes_set:
                break
            takes_query = takes_query and key not in _INSTEAD_OF_QUERY
            takes_set = takes_set and key != "SET"
            is_query |= head == "INSERT" and key in ("SELECT", "VALUES")
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
    if head in _SHORT and key in _SHORT_ENDS:
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
    """Returns why the statement does not exist in T-SQL, with the error number; None if the statement may exist in T-SQL."""
    token, key, noun = cursor.token, cursor.key, cursor.ahead(1)
    if key in _OBJECT_VERBS:
        if noun.kind == "word" and noun.key not in _OBJECT_WORDS:
            similar = most_similar(noun.key, _OBJECT_WORDS)
            hint = "" if similar is None else f"; did you mean {key} {similar}?"
            return f"{key} {noun.text[:_SHOWN_MAX]} is not a statement of T-SQL{hint}", 343
        return None
    if key in STATEMENT_WORDS or key in _OTHER_STARTERS or key == "(" or noun.key == ":":
        return None
    shown = token.text[:_SHOWN_MAX] if token.kind == "word" else "this"
    reason = f"no statement of T-SQL starts with {shown}"
    if cursor.index > 0 and "_" in key and _may_be_call(cursor):
        return f"{reason}; only the first statement of a batch calls a procedure without EXEC; write EXEC {shown}", 102
    hint = did_you_mean(key, STATEMENT_WORDS)
    if cursor.index == 0 and _has_name_of_procedure(cursor) and noun.kind in ("word", "name"):
        hint += f"; to call a procedure with this name, write EXEC {shown}"
    return f"{reason}{hint}", 102


_SHOWN_MAX: Final = 40


def is_call_without_exec(cursor: TokenCursor) -> bool:
    """Returns whether a batch starts here with the call of a procedure.

    The first word may resemble a keyword. A name followed by a word without a comma is also a valid call, but more
    likely a misspelled statement, such as `USEE Sales`, if a keyword resembles the name.
    """
    return cursor.index == 0 and _may_be_call(cursor)


def _has_name_of_procedure(cursor: TokenCursor) -> bool:
    token = cursor.token
    if token.kind == "word":
        is_regular = token.text[0].isalpha() or token.text[0] in "_#"
        return is_regular and token.key not in STATEMENT_WORDS | RESERVED_WORDS | _OTHER_STARTERS
    return token.kind == "name"


def _may_be_call(cursor: TokenCursor) -> bool:
    """Returns whether a name is followed by the arguments of a call: values or `@name = value`, separated by commas."""
    if not _has_name_of_procedure(cursor):
        return False
    count = 1
    while cursor.ahead(count).key == ".":
        count += 2 if cursor.ahead(count + 1).kind in ("word", "name") else 1
    is_distinct = count > 1 or cursor.token.kind == "name" or not cursor.token.text.isalpha()
    if _ends_call(cursor, count):
        return True
    argument = cursor.ahead(count)
    is_bare = argument.kind == "name" or (argument.kind == "word" and argument.text[:1].isalpha())
    end = _argument_end(cursor, count)
    if end is not None and _ends_call(cursor, end):
        return is_distinct or not is_bare
    while end is not None and cursor.ahead(end).key == ",":
        end = _argument_end(cursor, end + 1)
    return end is not None and _ends_call(cursor, end)


def _argument_end(cursor: TokenCursor, count: int) -> int | None:
    """Returns the end of a call's argument that starts `count` tokens ahead; None if there is no argument."""
    if cursor.ahead(count).key.startswith("@") and cursor.ahead(count + 1).key == "=":
        count += 2
    if cursor.ahead(count).key in ("+", "-"):
        count += 1
    value = cursor.ahead(count)
    if value.kind not in ("word", "name", "string") or value.key in STATEMENT_WORDS:
        return None
    count += 1
    if value.text[:1].isdecimal() and cursor.ahead(count).key == ".":
        count += 2 if cursor.ahead(count + 1).text[:1].isdecimal() else 1
    return count + (cursor.ahead(count).key in ("OUT", "OUTPUT"))


def _ends_call(cursor: TokenCursor, count: int) -> bool:
    token = cursor.ahead(count)
    if token.kind == "end" or token.key == ";":
        return True
    if token.key == "WITH":
        return cursor.ahead(count + 1).key in ("RECOMPILE", "RESULT")
    # An unreserved word, such as SEND, may be an argument.
    is_certain = token.key in RESERVED_WORDS or cursor.is_first_on_line(cursor.index + count)
    return token.key in STATEMENT_WORDS and is_certain


def _kind(keys: list[str]) -> str:
    """Returns the words by which a statement is counted, without names."""
    count = 2 if keys[0] in _TWO_WORDS else 1
    if keys[0] in _OBJECT_VERBS:
        count += next((len(words) - 1 for words in _LONG_NOUN_WORDS if keys[1 : 1 + len(words)] == words), 0)
    if keys[0] == "WAITFOR" and "RECEIVE" in keys:
        return "WAITFOR (RECEIVE)"
    if keys[0] == "WAITFOR" and "CONVERSATION" in keys:
        return "WAITFOR (GET CONVERSATION)"
    if keys[0] == "SET":
        return "SET"
    if keys[0] in _PERMISSIONS and "ENDPOINT" in keys:
        return f"{keys[0]} ON ENDPOINT"
    words = [key for key in keys[:count] if key.isalpha() or key in STATEMENT_WORDS]
    return " ".join(words) if words and words[0] in STATEMENT_WORDS | _OTHER_STARTERS else "statement in parentheses"


def _created(cursor: TokenCursor, first: int) -> tuple[str, str] | None:
    """Returns the kind and the name (without brackets) of the object that CREATE creates; None for another statement."""
    tokens = [token for token in cursor.tokens_since(first)[:12] if token.key not in ("OR", "ALTER")]
    if len(tokens) < 3 or tokens[0].key != "CREATE" or tokens[1].key not in _CREATED:  # noqa: PLR2004 - verb, noun, name
        return None
    name = tokens[2].text
    for dot, part in zip(tokens[3::2], tokens[4::2], strict=False):
        if dot.key != ".":
            break
        name = part.text
    return tokens[1].key, name
