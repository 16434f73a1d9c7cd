"""Splits scripts into batches, tokens and annotations, and redacts secrets in errors."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

from ssbroker.ddl.annotations import parse_annotation
from ssbroker.ddl.errors import EncodingError, RefusalError, refusal_text
from ssbroker.exceptions import DdlError, OptionError

_NEWLINE: Final = re.compile(r"\r\n?|\n")

# UTF-32 comes before UTF-16, because its little-endian mark starts with the UTF-16 mark.
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class ScriptPosition(NamedTuple):
    """The position at which a statement of a script starts."""

    file: str | None
    """The script; None if it was passed as text."""
    line: int
    """The line, counted from 1."""


class SourcePart(NamedTuple):
    """A part of a script that comes from one place of one file."""

    start: int
    """Where the part starts in the text of the script."""
    file: str | None
    line: int
    """The line of the file with which the part starts."""
    is_secret: bool = False
    """Whether the part is the value of a variable that may be a password."""


class ScriptSource:
    """The text of a script, which may be composed of several files; converts positions to files and lines.

    Args:
        text: The text.
        file: The file of the text.
        parts: The parts of a text that is composed of several files, in order; None for a single file.
        outer: The position of the EXEC statement that runs this text.
    """

    def __init__(
        self,
        text: str,
        file: str | None,
        *,
        parts: Sequence[SourcePart] | None = None,
        outer: ScriptPosition | None = None,
    ) -> None:
        self.text = text.removeprefix("\ufeff")
        self.file = file
        self.outer = outer
        self._breaks = [match.end() for match in _NEWLINE.finditer(self.text)]
        self._parts = list(parts) if parts else [SourcePart(0, file, 1)]
        self._starts = [part.start for part in self._parts]
        if not text.isascii():
            self._refuse_surrogates()

    def position(self, offset: int) -> ScriptPosition:
        """Returns the file and line of an offset; for text that EXEC runs, the file and line of the EXEC."""
        if self.outer is not None:
            return self.outer
        part = self._part(offset)
        line = bisect_right(self._breaks, offset) - bisect_right(self._breaks, part.start) + part.line
        return ScriptPosition(part.file, line)

    def line(self, offset: int) -> int:
        """Returns the line of an offset, counted from 1."""
        return self.position(offset).line

    def line_start(self, offset: int) -> int:
        """Returns the offset at which the line that contains an offset starts."""
        line = bisect_right(self._breaks, offset)
        return self._breaks[line - 1] if line else 0

    def is_secret(self, token: Token) -> bool:
        """Returns whether a token comes from a variable that may be a password, or from text that may contain a password."""
        if self.outer is not None:
            return token.kind in ("string", "name") or (token.kind == "word" and token.key not in _SHOWN_IN_TEXT)
        first = max(bisect_right(self._starts, token.start) - 1, 0)
        return any(part.is_secret for part in self._parts[first : bisect_right(self._starts, token.end - 1)])

    def location(self, offset: int) -> str:
        """Returns `file:line`, or `line n` if the script has no file name."""
        return location_text(self.position(offset))

    def error(self, offset: int, reason: str, *, subject: str | None = None, number: int | None = None) -> DdlError:
        """Returns the error for the statement that starts at an offset."""
        message = refusal_text(reason, subject=subject, number=number)
        file, line = self.position(offset)
        where = self.location(offset) + ("" if self.outer is None else ": in dynamic SQL of EXEC")
        return DdlError(f"{where}: {message}", number=number, file=file, line=line)

    def _part(self, offset: int) -> SourcePart:
        return self._parts[max(bisect_right(self._starts, offset) - 1, 0)]

    def _refuse_surrogates(self) -> None:
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise self.error(
                error.start, "the text contains an unpaired surrogate, which is not a valid character"
            ) from None


def location_text(position: ScriptPosition) -> str:
    """Returns `file:line`, or `line n` if the script has no file name."""
    return f"line {position.line}" if position.file is None else f"{position.file}:{position.line}"


def decode(data: bytes, *, file: str | None = None, encoding: str | None = None) -> str:
    r"""Decodes a script file: UTF-8, or the encoding of its byte order mark (SSMS saves "Unicode" as UTF-16).

    UTF-16 without a byte order mark is recognized by its first character. Code pages are not guessed: names are compared
    byte by byte, so a wrong guess would silently change names. Specify a code page as `encoding`. The byte order mark is
    removed; line ends are kept.

    Examples:
        >>> decode(b"\xef\xbb\xbfUSE Sales")
        'USE Sales'
        >>> decode("USE Sales".encode("utf-16"))
        'USE Sales'
    """
    mark, used = next(
        ((m, e) for m, e in _BYTE_ORDER_MARKS if data.startswith(m)), (b"", encoding or _encoding_of(data))
    )
    try:
        return data[len(mark) :].decode(used)
    except UnicodeDecodeError as error:
        before = data[len(mark) : len(mark) + error.start].decode(used, "ignore")
        line = len(_NEWLINE.findall(before)) + 1
        place = f"line {line}" if file is None else f"{file}:{line}"
        found = f"not {used.upper()} (byte 0x{error.object[error.start]:02x})"
        hint = "specify the code page of the script, such as cp1252, as its encoding (--encoding)"
        advice = f"save the script as UTF-8 or UTF-16, or {hint if encoding is None else 'specify its encoding'}"
        raise EncodingError(f"{place}: {found}; {advice}", file=file, line=line) from None


def check_encoding(name: str) -> str:
    """Returns the name of a text encoding, or raises if there is no encoding with this name."""
    try:
        codecs.lookup(name)
        "".encode(name)
    except (LookupError, ValueError):
        raise OptionError(
            f"encoding: {name!r:.80} is not a text encoding; expected an encoding such as cp1252"
        ) from None
    return name


def _encoding_of(unmarked: bytes) -> str:
    if unmarked[:1] == b"\0":
        return "utf-16-be"
    return "utf-16-le" if unmarked[1:2] == b"\0" else "utf-8"


class Annotation(NamedTuple):
    """One `-- ssbroker:` comment; `values` contains the keys, each with its text."""

    start: int
    values: tuple[tuple[str, str], ...]


# Possessive repeats: megabytes of text, terminated or not, are scanned once and without backtracking.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s++)
      | --(?P<comment>[^\r\n]*+)
      | (?P<block>/\*)
      | (?P<string>[Nn]?'[^']*+(?:''[^']*+)*+')
      | (?P<bracket>\[[^\]]*+(?:\]\][^\]]*+)*+\])
      | (?P<quote>"[^"]*+(?:""[^"]*+)*+")
      | (?P<open>[Nn]?'|["\[])
      | (?P<word>[\w@$#]++)
      | \x00:connect[ ](?P<connect>[^\x00]*+)\x00
      | (?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)
_BLOCK_COMMENT: Final = re.compile(r"/\*|\*/")
_SEPARATOR_LINE: Final = re.compile(
    r"[^\S\r\n]*+(?P<count>[0-9]*+)(?=[^\S\r\n]*+(?:;[^\S\r\n]*+)?+(?:--|/\*|[\r\n]|\Z))"
)
_COUNT_DIGITS_MAX: Final = 10
# A backslash at the end of a line continues the string on the next line.
_CONTINUATION: Final = re.compile(r"\\(?:\r\n|\n|\r)")

Kind = Literal["word", "name", "string", "symbol", "end", "connect"]


class Token(NamedTuple):
    """One token; `key` is the upper-case keyword or the symbol, empty for names and strings."""

    kind: Kind
    key: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ScriptBatch:
    """The tokens and annotations between two `GO` separators."""

    tokens: list[Token] = field(repr=False)  # may include passwords
    annotations: list[Annotation]
    count: int
    """The number of times that the batch runs."""
    server: str | None = None
    """The server to which `:connect` connected before the batch; None before the first `:connect`."""
    connect_offset: int = 0
    """The offset of this `:connect` in the text."""


def batches(source: ScriptSource) -> Iterator[ScriptBatch]:
    """Yields the batches of a script; the mark that `sqlcmd.substitute` inserts for `:connect` also ends a batch."""
    tokens: list[Token] = []
    annotations: list[Annotation] = []
    server: str | None = None
    connect_offset = 0
    position = space_start = 0  # where the whitespace before the position starts
    while position < len(source.text):
        start = position
        item, position = next_token(source, position)
        if isinstance(item, Annotation):
            annotations.append(item)
        elif item is not None and item.kind == "connect":
            yield ScriptBatch(tokens, annotations, 1, server, connect_offset)
            tokens, annotations, server, connect_offset = [], [], item.text, item.start
        elif item is not None:
            separator = _match_separator(source, item, space_start=space_start) if item.key == "GO" else None
            if separator is None:
                tokens.append(item)
            else:
                position = separator.end()
                yield ScriptBatch(
                    tokens, annotations, _repeat_count(source, item, separator["count"]), server, connect_offset
                )
                tokens, annotations = [], []
        if not source.text[start].isspace():
            space_start = position
    yield ScriptBatch(tokens, annotations, 1, server, connect_offset)


def text_batch(source: ScriptSource) -> ScriptBatch:
    """Returns the tokens of a text that EXEC runs, in which GO is not a separator."""
    tokens: list[Token] = []
    position = 0
    while position < len(source.text):
        item, position = next_token(source, position)
        if isinstance(item, Token):
            tokens.append(item)
    return ScriptBatch(tokens, [], 1)


def next_token(source: ScriptSource, position: int) -> tuple[Token | Annotation | None, int]:
    """Returns the token or annotation at a position (None for whitespace and other comments), and the position of its end."""
    match = _TOKEN.match(source.text, position)
    if match is None:  # the last alternative matches any character
        raise AssertionError(position)
    text, end = match[0], match.end()
    kind = match.lastgroup
    if kind == "space":
        return None, end
    if kind == "word":
        # Converts only ASCII letters: Unicode upper case would turn words with a dotless i or a long s into keywords.
        return Token("word", text.upper() if text.isascii() else text, text, position, end), end
    if kind == "symbol":
        return Token("symbol", text, text, position, end), end
    if kind == "comment":
        return _annotation(source, match["comment"], position), end
    if kind == "block":
        return None, _block_comment_end(source, position)
    literal = _literal(match)
    if literal is not None:
        return Token(literal[0], "", literal[1], position, end), end
    what = "unclosed name: [ without a closing ]" if text == "[" else f"unclosed quotation mark {text}"
    raise source.error(position, what, number=105)


def _annotation(source: ScriptSource, comment: str, start: int) -> Annotation | None:
    try:
        values = parse_annotation(comment)
    except RefusalError as refusal:
        raise source.error(start, refusal.reason) from None
    return None if values is None else Annotation(start, values)


def _literal(match: re.Match[str]) -> tuple[Kind, str] | None:
    """Returns the kind and text of a string, a quoted name or the mark of `:connect`; None if a quotation mark is not closed."""
    text = match[0]
    match match.lastgroup:
        case "string":
            return "string", _CONTINUATION.sub("", text[text.index("'") + 1 : -1]).replace("''", "'")
        case "bracket":
            return "name", text[1:-1].replace("]]", "]")
        case "quote":
            return "name", text[1:-1].replace('""', '"')
        case "connect":
            return "connect", text.removeprefix("\0:connect ").removesuffix("\0")
    return None


def _block_comment_end(source: ScriptSource, start: int) -> int:
    depth = 0
    for mark in _BLOCK_COMMENT.finditer(source.text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise source.error(start, "unclosed comment /*", number=113)


def _match_separator(source: ScriptSource, token: Token, *, space_start: int) -> re.Match[str] | None:
    """Matches the rest of a line with a GO separator, which may contain only a count; None if this GO is not a separator."""
    return _SEPARATOR_LINE.match(source.text, token.end) if space_start <= source.line_start(token.start) else None


def _repeat_count(source: ScriptSource, token: Token, digits: str) -> int:
    if len(digits.lstrip("0")) > _COUNT_DIGITS_MAX:
        raise source.error(
            token.start,
            f"the count of GO is too large: {digits[:_COUNT_DIGITS_MAX]}...; it may have at most {_COUNT_DIGITS_MAX} digits",
        )
    return int(digits[-_COUNT_DIGITS_MAX:] or 1)


_SECRETS: Final = frozenset({"PASSWORD", "SECRET"})
_MAY_HAVE_SECRETS: Final = _SECRETS | {"KEY"}
_CALL_WORDS: Final = frozenset({"EXEC", "EXECUTE"})
_SUMMARY_TOKENS_MAX: Final = 60
_TOKEN_CHARACTERS_MAX: Final = 40
_REDACTED: Final = "'...'"
# The words that errors may show from a text that EXEC runs, because the text may contain a password.
_SHOWN_IN_TEXT: Final = frozenset(
    [
        "ADDRESS",
        "ALTER",
        "AS",
        "BROKER",
        "BROKER_INSTANCE",
        "CONTRACT",
        "CREATE",
        "DATABASE",
        "DROP",
        "ENDPOINT",
        "END",
        "EXEC",
        "EXECUTE",
        "FOR",
        "GO",
        "GRANT",
        "IF",
        "INSERT",
        "LIFETIME",
        "MESSAGE",
        "MIRROR_ADDRESS",
        "ON",
        "QUEUE",
        "ROUTE",
        "SELECT",
        "SENT",
        "SERVICE",
        "SERVICE_NAME",
        "SET",
        "TO",
        "TYPE",
        "UPDATE",
        "USE",
        "WITH",
    ]
)


def statement_summary(source: ScriptSource, tokens: Sequence[Token], *, is_call: bool) -> str:
    """Returns the first words of a skipped statement, without strings; for a procedure call or sqlcmd command, only the name.

    With `is_call`, the statement may call a procedure without EXEC, as the first statement of a batch may.
    """
    text = source.text
    shown = end = min(len(tokens), _SUMMARY_TOKENS_MAX)
    call = 0 if is_call or tokens[0].key == ":" else next(filter(partial(_is_call, tokens), range(end)), None)
    if call is not None:
        end = min(end, _callee_end(tokens, call))
    words = ""
    for index, token in enumerate(tokens[:end]):
        gap = " " if index and token.start > tokens[index - 1].end else ""
        words += gap + (
            _REDACTED
            if _is_quoted(text, token) or _is_long_binary(token) or _is_secret(tokens, index) or source.is_secret(token)
            else text[token.start : token.end]
        )
    return words if end == shown else f"{words} ..."


def last_token_text(source: ScriptSource, tokens: Sequence[Token]) -> str:
    """Returns the text of the last token, shortened, and redacted if it may be a secret."""
    token, text = tokens[-1], source.text
    may_be = (_is_quoted(text, token) or _is_long_binary(token)) and any(one.key in _MAY_HAVE_SECRETS for one in tokens)
    is_redacted = may_be or _is_secret(tokens, len(tokens) - 1) or source.is_secret(token)
    shown = _REDACTED if is_redacted else text[token.start : token.end]
    return shown if len(shown) <= _TOKEN_CHARACTERS_MAX else shown[:_TOKEN_CHARACTERS_MAX] + "..."


def _is_call(tokens: Sequence[Token], index: int) -> bool:
    """Returns whether a procedure is called here; `GRANT EXECUTE ON` and `EXECUTE AS` are not calls."""
    following = tokens[index + 1].key if index + 1 < len(tokens) else ""
    return tokens[index].key in _CALL_WORDS and following not in ("AS", "ON")


def _callee_end(tokens: Sequence[Token], call: int) -> int:
    """Returns the index at which the name of the called procedure or command ends: `EXEC @status = dbo.p`, `:connect`."""
    end = min(call + 2, len(tokens))
    while end < len(tokens) and {tokens[end - 1].key, tokens[end].key} & {".", "="}:
        end += 1
    return end


def _is_quoted(text: str, token: Token) -> bool:
    return token.kind == "string" or text[token.start] == '"'


_BINARY_SHOWN_MAX: Final = 40


def _is_long_binary(token: Token) -> bool:
    """Returns whether a token is a binary constant that may be a private key; identifiers and hashes are shorter."""
    return token.key.startswith("0X") and len(token.key) > _BINARY_SHOWN_MAX


def _is_secret(tokens: Sequence[Token], index: int) -> bool:
    """Returns whether the token follows PASSWORD or SECRET, quoted or not."""
    return tokens[index].key != "=" and any(one.key in _SECRETS for one in tokens[max(index - 2, 0) : index])
