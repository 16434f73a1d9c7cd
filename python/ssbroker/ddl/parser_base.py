"""The token cursor and the clauses that statements share."""

from __future__ import annotations

from typing import Final, Literal, NoReturn

from ssbroker.ddl import lexer
from ssbroker.ddl.lexer import RefusalError, ScriptSource, Token
from ssbroker.exceptions import DdlError

NAME_CHARACTERS_MAX: Final = 128
_DIGITS_MAX: Final = 30  # more are out of range everywhere, and very many are too many for int()

# Every word that begins a statement. None of them is a name unless it stands in brackets or quotes.
STATEMENT_WORDS: Final = frozenset(
    {
        "ADD",
        "ALTER",
        "BACKUP",
        "BEGIN",
        "BULK",
        "CHECKPOINT",
        "CLOSE",
        "COMMIT",
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
_RESERVED: Final = (STATEMENT_WORDS - {"DISABLE", "ENABLE", "GET", "MOVE", "RECEIVE", "SEND", "THROW"}) | frozenset(
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
# A statement that ends with one of them was cut off.
_UNFINISHED: Final = frozenset(
    {",", "=", ".", ":", "AS", "BY", "COLLATE", "FOR", "FROM", "LOG", "PRIMARY", "SNAPSHOT", "TO", "WITH"}
)

Reading = Literal["routing", "objects"]
"""Which statements are read: those about routing, or all that say something to a running instance."""


class TokenCursor:
    """A position in the tokens of one batch."""

    def __init__(self, source: ScriptSource, tokens: list[Token], *, reading: Reading = "routing") -> None:
        self.reading: Final = reading
        self._source = source
        self._tokens = tokens
        end = tokens[-1].end if tokens else 0
        self._end = Token("end", "", "", end, end)
        self.index = 0
        self.begin()

    def begin(self) -> None:
        """Notes that a statement begins here."""
        self.start = self.token.start
        self.subject: str | None = None
        self._first = self.index

    @property
    def token(self) -> Token:
        """The token at the position."""
        return self.ahead(0)

    @property
    def key(self) -> str:
        """The keyword or sign at the position."""
        return self.ahead(0).key

    @property
    def done(self) -> bool:
        """Whether the batch is at its end."""
        return self.index >= len(self._tokens)

    @property
    def end(self) -> int:
        """Where the token before the position ends."""
        return self._tokens[self.index - 1].end

    def ahead(self, count: int) -> Token:
        """The token some places on."""
        index = self.index + count
        return self._tokens[index] if index < len(self._tokens) else self._end

    def take(self) -> Token:
        """The token at the position, which moves on, but not past the end of the batch."""
        token = self.ahead(0)
        self.index = min(self.index + 1, len(self._tokens))
        return token

    def to_end(self) -> None:
        """Moves to the end of the batch."""
        self.index = len(self._tokens)

    def accept(self, *keys: str) -> bool:
        """Moves past these keywords if they stand here."""
        if any(self.ahead(number).key != key for number, key in enumerate(keys)):
            return False
        self.index += len(keys)
        return True

    def expect(self, *keys: str) -> None:
        """Moves past these keywords, which must stand here."""
        for key in keys:
            if not self.accept(key):
                self.fail(f"{key} was expected")

    def first_on_line(self) -> bool:
        """Whether a line ends between the token before and this one."""
        if self.index == 0:
            return True
        between = self._source.text[self.end : self.token.start]
        return "\n" in between or "\r" in between

    def expect_whole(self) -> None:
        """Fails where the statement ends here, and its last word says that something is to follow."""
        if (self.done or self.key == ";") and self.index > 0 and self._tokens[self.index - 1].key in _UNFINISHED:
            self.fail("the rest of the statement was expected")

    def name(self) -> str:
        """A name: a word, or anything in brackets or quotes."""
        token = self.token
        plain = token.kind == "word" and (token.text[0].isalpha() or token.text[0] in "_#")
        if token.kind != "name" and not plain:
            self.fail("a name was expected")
        if token.key in _RESERVED:
            self.fail(f"a name was expected, and {token.key} is a reserved word; as a name it is [{token.text}]")
        try:
            check_name(token.text)
        except RefusalError as refusal:
            raise self.error(refusal.reason, number=refusal.number) from None
        self.index += 1
        return token.text

    def string(self) -> str:
        """A string."""
        if self.token.kind != "string":
            self.fail("a string in '...' was expected")
        return self.take().text

    def integer(self) -> int:
        """A number without a point, with a sign or without."""
        sign = -1 if self.key == "-" else 1
        if self.key in ("-", "+"):
            self.index += 1
        text = self.token.text
        if self.token.kind != "word" or not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX:
            self.fail("a whole number was expected")
        self.index += 1
        return sign * int(text)

    def once(self, keys: tuple[str, ...], seen: set[str]) -> str:
        """Moves past one of the options `keys`, each of which may be given once; those that were are in `seen`."""
        key = self.key
        if key not in keys:
            self.fail(f"{', '.join(keys[:-1])} or {keys[-1]} was expected")
        if key in seen:
            raise self.error(f"{key} is given twice", number=1039)
        seen.add(key)
        self.take()
        return key

    def error(self, reason: str, *, number: int | None = None) -> DdlError:
        """The error of the statement that began last."""
        return self._source.error(self.start, reason, subject=self.subject, number=number)

    def fail(self, expected: str) -> NoReturn:
        """Raises the syntax error at the position."""
        token = self.token
        where = (
            "at the end of the batch"
            if token.kind == "end"
            else f"near {lexer.last(self._source.text, self._tokens[self._first : self.index + 1])}"
        )
        line = self._source.line(token.start)
        if line != self._source.line(self.start):
            where += f" on line {line}"
        raise self.error(f"syntax error {where}: {expected}", number=102)

    def said(self) -> str:
        """The beginning of the statement, which was moved past, as it may be told."""
        tokens = self._tokens[self._first : self.index]
        is_name = tokens[0].kind in ("word", "name") and tokens[0].key not in STATEMENT_WORDS | {"WITH"}
        return lexer.beginning(self._source.text, tokens, is_call=is_name and self._first == 0)


def check_name(name: str) -> None:
    """Refuses what is no name of an object (`sysname`)."""
    if not name:
        raise RefusalError("a name is empty", 1038)
    if utf16_length(name) > NAME_CHARACTERS_MAX:
        raise RefusalError(f"the name that begins with {name[:20]} has more than {NAME_CHARACTERS_MAX} characters", 103)


def utf16_length(text: str) -> int:
    """The length that SQL Server counts: a character outside the basic plane counts twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def skip_rest(cursor: TokenCursor) -> None:
    """Moves to where the statement ends: a semicolon, or a word that begins another statement."""
    depth = 0
    while not cursor.done and (depth or cursor.key not in STATEMENT_WORDS | {";"}):
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
    if depth:
        cursor.fail("the parentheses do not match")
    cursor.expect_whole()


def named(cursor: TokenCursor) -> str:
    """The name of what the statement is about."""
    name = cursor.name()
    cursor.subject = f"{cursor.subject} [{name}]"
    return name


def owner(cursor: TokenCursor) -> str | None:
    """The name after AUTHORIZATION, if that stands here."""
    return cursor.name() if cursor.accept("AUTHORIZATION") else None


def on_or_off(cursor: TokenCursor) -> bool:
    """What stands after an option's name: ON or OFF, with = or without."""
    cursor.accept("=")
    if cursor.key not in ("ON", "OFF"):
        cursor.fail("ON or OFF was expected")
    return cursor.take().key == "ON"
