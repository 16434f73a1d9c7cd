"""Splits the input of the shell into queries and T-SQL scripts, and determines when it is complete."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ssbroker.ddl.lexer import ScriptSource, Token, batches
from ssbroker.ddl.parser import parse
from ssbroker.ddl.statements import TransactionControl, walk
from ssbroker.exceptions import DdlError

_WORDS: Final = re.compile(r"\s*(?:\\.*|(?:help|quit|exit)\s*;?\s*)", re.IGNORECASE)
_QUERY_STARTS: Final = frozenset(
    ["(", "DESCRIBE", "EXPLAIN", "FROM", "PIVOT", "SELECT", "SHOW", "SUMMARIZE", "TABLE", "UNPIVOT", "VALUES", "WITH"]
)
_UNCLOSED: Final = frozenset({105, 113})
"""The error numbers of unclosed quotation marks and comments."""
_NO_BLOCK: Final = {
    "BEGIN": frozenset({"CONVERSATION", "DIALOG", "DISTRIBUTED", "TRAN", "TRANSACTION"}),
    "END": frozenset({"CONVERSATION"}),
}
"""The words after BEGIN and END that mean that these neither start nor end a block."""


class Piece(NamedTuple):
    """A query, or T-SQL statements that run as one script."""

    text: str
    is_query: bool


def is_command(text: str) -> bool:
    """Returns whether a text is a command of the shell rather than T-SQL."""
    return _WORDS.fullmatch(text) is not None


def is_complete(text: str) -> bool:
    r"""Returns whether a text can run: it ends with a semicolon or a line with GO, outside of blocks, strings and comments, or is a command.

    Examples:
        >>> is_complete("SELECT 1;"), is_complete("CREATE QUEUE Orders\nGO"), is_complete(r"\q")
        (True, True, True)
        >>> is_complete("SELECT ';"), is_complete("IF DB_ID('Sales') IS NULL BEGIN CREATE DATABASE Sales;")
        (False, False)
    """
    if not text.strip() or is_command(text):
        return True
    try:
        *before, last = batches(ScriptSource(text, None))
    except DdlError as error:
        return error.number not in _UNCLOSED
    if not last.tokens:
        return bool(before)
    return last.tokens[-1].key == ";" and _depth(last.tokens) == 0


def pieces(text: str) -> Iterator[Piece]:
    r"""Yields the queries and the scripts between them.

    Examples:
        >>> [piece.text for piece in pieces("USE Sales; CREATE QUEUE Orders; SELECT 1; SELECT 2;")]
        ['USE Sales; CREATE QUEUE Orders;', 'SELECT 1', 'SELECT 2']
    """
    found = [batch for batch in batches(ScriptSource(text, None)) if batch.tokens]
    statements = [(number, one) for number, batch in enumerate(found) for one in _statements(batch.tokens)]
    if not any(_is_query(one) for _, one in statements):
        if statements:
            yield Piece(text, is_query=False)  # the whole text, with comments and GO
        return
    script: list[tuple[int, list[Token]]] = []
    for number, one in statements:
        if script and (_is_query(one) or script[-1][0] != number):
            yield _script(text, [statement for _, statement in script])
            script = []
        if _is_query(one):
            end = one[-2] if one[-1].key == ";" else one[-1]
            yield Piece(text[one[0].start : end.end], is_query=True)
        else:
            script.append((number, one))
    if script:
        yield _script(text, [statement for _, statement in script])


def open_transaction(text: str) -> str | None:
    """Returns the statement in an input that would begin or end a transaction across several inputs; None if there is none.

    Examples:
        >>> open_transaction("BEGIN TRANSACTION;"), open_transaction("ROLLBACK;")
        ('BEGIN TRANSACTION', 'ROLLBACK')
        >>> open_transaction("BEGIN TRAN; CREATE QUEUE Orders; COMMIT;")
    """
    source = ScriptSource(text, None)
    errors: list[DdlError] = []  # errors end the script; the statements before them count
    parsed = (one for batch in batches(source) for one in parse(source, batch, report=errors.append).statements)
    found = [one.statement.action for one in walk(parsed) if isinstance(one.statement, TransactionControl)]
    begins, ends = "BEGIN" in found, "COMMIT" in found or "ROLLBACK" in found
    if begins == ends and (begins or not found):
        return None
    return {"BEGIN": "BEGIN TRANSACTION", "SAVE": "SAVE TRANSACTION"}.get(found[0], found[0])


def _script(text: str, statements: Sequence[Sequence[Token]]) -> Piece:
    return Piece(text[statements[0][0].start : statements[-1][-1].end], is_query=False)


def _is_query(statement: Sequence[Token]) -> bool:
    return statement[0].key in _QUERY_STARTS


def _statements(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yields the tokens of each statement, up to its semicolon outside of blocks."""
    statement: list[Token] = []
    depth = 0
    for number, token in enumerate(tokens):
        if token.key == ";" and not statement:
            continue
        statement.append(token)
        depth = max(0, depth + _change(tokens, number))
        if token.key == ";" and depth == 0:
            yield statement
            statement = []
    if statement:
        yield statement


def _depth(tokens: Sequence[Token]) -> int:
    depth = 0
    for number in range(len(tokens)):
        depth = max(0, depth + _change(tokens, number))
    return depth


def _change(tokens: Sequence[Token], number: int) -> int:
    """Returns 1 if a token starts a block, -1 if it ends a block."""
    key = tokens[number].key
    following = tokens[number + 1].key if number + 1 < len(tokens) else ""
    if following in _NO_BLOCK.get(key, ()):
        return 0
    return (key in ("BEGIN", "CASE")) - (key == "END")
