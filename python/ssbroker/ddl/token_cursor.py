"""The token cursor, and parsers of clauses that several statements share."""

from __future__ import annotations

from typing import Final, NoReturn

from ssbroker._text import did_you_mean, utf16_length
from ssbroker.ddl import lexer
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.lexer import ScriptSource, Token
from ssbroker.exceptions import DdlError

NAME_CHARACTERS_MAX: Final = 128
_DIGITS_MAX: Final = 30  # more digits are always out of range, and very many exceed the limit of int()

# Words that start a statement. They can be names only in brackets or quotes.
STATEMENT_WORDS: Final = frozenset(
    {
        "ADD",
        "ALTER",
        "BACKUP",
        "BEGIN",
        "BREAK",
        "BULK",
        "CHECKPOINT",
        "CLOSE",
        "COMMIT",
        "CONTINUE",
        "CREATE",
        "DBCC",
        "DEALLOCATE",
        "DECLARE",
        "DELETE",
        "DENY",
        "DISABLE",
        "DROP",
        "ENABLE",
        "END",
        "EXEC",
        "EXECUTE",
        "FETCH",
        "GET",
        "GOTO",
        "GRANT",
        "IF",
        "INSERT",
        "KILL",
        "MERGE",
        "MOVE",
        "OPEN",
        "PRINT",
        "RAISERROR",
        "RECEIVE",
        "RECONFIGURE",
        "RESTORE",
        "RETURN",
        "REVERT",
        "REVOKE",
        "ROLLBACK",
        "SAVE",
        "SELECT",
        "SEND",
        "SET",
        "SHUTDOWN",
        "THROW",
        "TRUNCATE",
        "UPDATE",
        "USE",
        "WAITFOR",
        "WHILE",
    }
)
RESERVED_WORDS: Final = (
    STATEMENT_WORDS - {"DISABLE", "ENABLE", "GET", "MOVE", "RECEIVE", "SEND", "THROW"}
) | frozenset(
    {
        "AS",
        "AUTHORIZATION",
        "ELSE",
        "EXISTS",
        "FOR",
        "FROM",
        "IN",
        "INTO",
        "IS",
        "LIKE",
        "NOT",
        "NULL",
        "OF",
        "ON",
        "OR",
        "ORDER",
        "TO",
        "UNION",
        "VALUES",
        "WHERE",
        "WITH",
    }
)
# A statement that ends with one of these is truncated.
_UNFINISHED: Final = frozenset(
    {",", "=", ".", ":", "AS", "BY", "COLLATE", "FOR", "FROM", "LOG", "PRIMARY", "SNAPSHOT", "TO", "WITH"}
)


class TokenCursor:
    """A position within the tokens of one batch."""

    def __init__(self, source: ScriptSource, tokens: list[Token]) -> None:
        self._source = source
        self._tokens = tokens
        end = tokens[-1].end if tokens else 0
        self._end = Token("end", "", "", end, end)
        self._last_label: int | None = None
        self.index = 0
        self.begin_statement()

    def begin_statement(self, index: int | None = None) -> None:
        """Marks the position, or an earlier position, as the start of a statement."""
        self.first = self.index if index is None else index
        self.start = self.ahead(self.first - self.index).start
        self.subject: str | None = None

    @property
    def token(self) -> Token:
        """The token at the position."""
        return self.ahead(0)

    @property
    def key(self) -> str:
        """The keyword or sign at the position."""
        return self.ahead(0).key

    @property
    def at_end(self) -> bool:
        """Whether the cursor is at the end of the batch."""
        return self.index >= len(self._tokens)

    @property
    def previous_end(self) -> int:
        """The end of the token before the position."""
        return self._tokens[self.index - 1].end

    def ahead(self, count: int) -> Token:
        """Returns the token `count` places after the position."""
        index = self.index + count
        return self._tokens[index] if index < len(self._tokens) else self._end

    def take(self) -> Token:
        """Returns the token at the position and moves past it, but not past the end of the batch."""
        token = self.ahead(0)
        self.index = min(self.index + 1, len(self._tokens))
        return token

    def tokens_since(self, index: int) -> tuple[Token, ...]:
        """Returns the tokens from an index to the position."""
        return tuple(self._tokens[index : self.index])

    def skip_to_end(self) -> None:
        """Moves to the end of the batch."""
        self.index = len(self._tokens)

    def accept(self, *keys: str) -> bool:
        """Moves past these keywords, and returns True, if they follow here."""
        if any(self.ahead(number).key != key for number, key in enumerate(keys)):
            return False
        self.index += len(keys)
        return True

    def expect(self, *keys: str) -> None:
        """Moves past these keywords, or raises a syntax error."""
        for key in keys:
            if not self.accept(key):
                self.fail(f"expected {key}")

    def is_first_on_line(self, index: int | None = None) -> bool:
        """Returns whether the current token, or the token at an index, is the first on its line."""
        index = self.index if index is None else index
        if index == 0:
            return True
        between = self._source.text[self._tokens[index - 1].end : self._tokens[index].start]
        return "\n" in between or "\r" in between

    def is_label(self, index: int | None = None) -> bool:
        """Returns whether a label (a name with a colon) is at the position or at an index."""
        index = self.index if index is None else index
        count = index - self.index
        if self.ahead(count + 1).key != ":" or self.is_first_on_line(index + 1):
            return False
        return self.ahead(count).kind in ("word", "name") and self.ahead(count + 2).key != ":"

    def has_label_ahead(self) -> bool:
        """Returns whether a label follows in the batch."""
        if self._last_label is None:
            self._last_label = next((index for index in reversed(range(len(self._tokens))) if self.is_label(index)), -1)
        return self._last_label >= self.index

    def expect_complete(self) -> None:
        """Raises a syntax error if the statement ends here after a word that requires more."""
        if (self.at_end or self.key == ";") and self.index > 0 and self._tokens[self.index - 1].key in _UNFINISHED:
            self.fail("expected the rest of the statement")

    def name(self) -> str:
        """Parses a name: a word, or anything in brackets or quotes."""
        token = self.token
        is_regular = token.kind == "word" and (token.text[0].isalpha() or token.text[0] in "_#")
        if token.kind != "name" and not is_regular:
            self.fail("expected a name")
        if token.key in RESERVED_WORDS:
            self.fail(f"expected a name, but {token.key} is a reserved word; to use it as a name, write [{token.text}]")
        try:
            check_name(token.text)
        except RefusalError as refusal:
            raise self.error(refusal.reason, number=refusal.number) from None
        self.index += 1
        return token.text

    def string(self) -> str:
        """Parses a string."""
        if self.token.kind != "string":
            self.fail("expected a string in '...'")
        return self.take().text

    def integer(self) -> int:
        """Parses an integer with an optional sign."""
        sign = -1 if self.key == "-" else 1
        if self.key in ("-", "+"):
            self.index += 1
        text = self.token.text
        if self.token.kind != "word" or not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX:
            self.fail("expected an integer")
        self.index += 1
        return sign * int(text)

    def unique_option(self, keys: tuple[str, ...], seen: set[str], *, what: str = "") -> str:
        """Moves past one of the options in `keys`, and adds it to `seen`; each option may be specified only once."""
        key = self.key
        if key not in keys:
            self.fail(f"expected {what}{', '.join(keys[:-1])} or {keys[-1]}{did_you_mean(key, keys)}")
        if key in seen:
            raise self.error(f"{key} is specified more than once", number=1039)
        seen.add(key)
        self.take()
        return key

    def error(self, reason: str, *, number: int | None = None) -> DdlError:
        """Returns an error for the current statement."""
        return self._source.error(self.start, reason, subject=self.subject, number=number)

    def fail(self, reason: str) -> NoReturn:
        """Raises a syntax error at the position."""
        token = self.token
        where = (
            "at the end of the batch"
            if token.kind == "end"
            else f"near {lexer.last_token_text(self._source, self._tokens[self.first : self.index + 1])}"
        )
        line = self._source.line(token.start)
        if line != self._source.line(self.start):
            where += f" on line {line}"
        raise self.error(f"syntax error {where}: {reason}", number=102)

    def summary(self) -> str:
        """Returns the first words of the current statement, with secrets redacted."""
        tokens = self._tokens[self.first : self.index]
        is_name = tokens[0].kind in ("word", "name") and tokens[0].key not in STATEMENT_WORDS | {"WITH"}
        return lexer.statement_summary(self._source, tokens, is_call=is_name and self.first == 0)


def check_name(name: str) -> None:
    """Refuses an invalid name of an object (`sysname`)."""
    if not name:
        raise RefusalError("a name is empty", 1038)
    if utf16_length(name) > NAME_CHARACTERS_MAX:
        raise RefusalError(f"the name that starts with {name[:20]} has more than {NAME_CHARACTERS_MAX} characters", 103)
    if "\0" in name:
        raise RefusalError(f"the name {name!r} contains NUL, which is not a valid character")


def skip_rest(cursor: TokenCursor) -> None:
    """Moves to the end of the statement: a semicolon, or a word that starts another statement."""
    depth = 0
    while not cursor.at_end and (depth or not (cursor.key in STATEMENT_WORDS | {";"} or cursor.is_label())):
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
    if depth:
        cursor.fail("unbalanced parentheses")
    cursor.expect_complete()


def subject_name(cursor: TokenCursor) -> str:
    """Parses the name of the object that the statement is about, and adds it to the subject of errors."""
    name = cursor.name()
    cursor.subject = f"{cursor.subject} [{name}]"
    return name


def drop_name(cursor: TokenCursor) -> str:
    """Parses the name of the object that a statement drops."""
    refuse_if_exists(cursor)
    return subject_name(cursor)


def refuse_if_exists(cursor: TokenCursor) -> None:
    """Refuses IF EXISTS after DROP and a noun, because T-SQL allows it only for other kinds of objects."""
    if cursor.key == "IF":
        cursor.fail(
            f"expected a name; {cursor.subject} has no IF EXISTS: use IF EXISTS (SELECT ...) {cursor.subject} ..."
        )


def optional_owner(cursor: TokenCursor) -> str | None:
    """Parses an optional AUTHORIZATION clause; returns the name of the owner, or None without the clause."""
    return cursor.name() if cursor.accept("AUTHORIZATION") else None


def on_or_off(cursor: TokenCursor) -> bool:
    """Parses the value of an option: ON or OFF, with or without =."""
    cursor.accept("=")
    if cursor.key not in ("ON", "OFF"):
        cursor.fail("expected ON or OFF")
    return cursor.take().key == "ON"
