"""Splits scripts into batches and tokens; source positions, annotations in comments, and redaction for errors."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

from ssbroker._arguments import parse_timestamp
from ssbroker.exceptions import DdlError

_NEWLINE: Final = re.compile(r"\r\n?|\n")

# UTF-32 stands before UTF-16, whose mark it begins with.
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class RefusalError(Exception):
    """A statement is refused; whoever knows its line turns this into a `DdlError`."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number


class ScriptSource:
    """A script with its file name; it knows on which line a position stands."""

    def __init__(self, text: str, file: str | None) -> None:
        self.text = text.removeprefix("\ufeff")
        self.file = file
        self._breaks = [match.end() for match in _NEWLINE.finditer(self.text)]
        if not text.isascii():
            self._refuse_surrogates()

    def line(self, position: int) -> int:
        """The line, from 1, on which a position stands."""
        return bisect_right(self._breaks, position) + 1

    def line_start(self, position: int) -> int:
        """Where the line begins on which a position stands."""
        line = bisect_right(self._breaks, position)
        return self._breaks[line - 1] if line else 0

    def place(self, position: int) -> str:
        """`file:line`, or `line n` where the script came as text."""
        line = self.line(position)
        return f"line {line}" if self.file is None else f"{self.file}:{line}"

    def error(self, position: int, reason: str, *, subject: str | None = None, number: int | None = None) -> DdlError:
        """The error for the statement that begins at a position."""
        message = refusal_text(reason, subject=subject, number=number)
        return DdlError(f"{self.place(position)}: {message}", number=number, file=self.file, line=self.line(position))

    def _refuse_surrogates(self) -> None:
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise self.error(error.start, "the text holds half a surrogate pair, which is no character") from None


def refusal_text(reason: str, *, subject: str | None, number: int | None) -> str:
    """`CREATE ROUTE [X]: error 9743: reason`, without what is not known."""
    parts = [] if subject is None else [subject]
    if number is not None:
        parts.append(f"error {number}")
    return ": ".join([*parts, reason])


def decode(data: bytes, *, file: str | None = None) -> str:
    r"""The text of a script file: UTF-8, or what its byte order mark says (SSMS saves "Unicode" as UTF-16).

    UTF-16 without a mark is recognised by its first character. Code pages are not guessed: names compare byte by byte,
    and a wrong guess would be a silent other name.

    Args:
        data: The bytes of the file.
        file: Its name, for the error.

    Returns:
        The text, without the mark and with its line ends as they were.

    Raises:
        DdlError: The bytes are neither.

    Examples:
        >>> decode(b"\xef\xbb\xbfUSE Sales")
        'USE Sales'
        >>> decode("USE Sales".encode("utf-16"))
        'USE Sales'
    """
    mark, encoding = next(((m, e) for m, e in _BYTE_ORDER_MARKS if data.startswith(m)), (b"", _encoding_of(data)))
    try:
        return data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        before = data[len(mark) : len(mark) + error.start].decode(encoding, "ignore")
        line = len(_NEWLINE.findall(before)) + 1
        place = f"line {line}" if file is None else f"{file}:{line}"
        reason = f"not {encoding.upper()} (byte 0x{error.object[error.start]:02x}); save the script as UTF-8 or UTF-16"
        raise DdlError(f"{place}: {reason}", file=file, line=line) from None


def _encoding_of(unmarked: bytes) -> str:
    if unmarked[:1] == b"\0":
        return "utf-16-be"
    return "utf-16-le" if unmarked[1:2] == b"\0" else "utf-8"


_INTRODUCTION: Final = "ssbroker:"
_ESCAPED: Final = re.compile(r"[%,\s\x00-\x1f\x7f-\x9f]")
KEYS: Final = frozenset(
    {"route_id", "lifetime", "service_broker_guid", "addresses_only", "addresses", "pending_requests"}
)
INSTANCE_KEYS: Final = frozenset({"addresses", "pending_requests"})


class Annotation(NamedTuple):
    """One `-- ssbroker:` comment; `values` holds the text of each key."""

    start: int
    values: tuple[tuple[str, str], ...]


def annotation(source: ScriptSource, comment: str, start: int) -> Annotation | None:
    """The annotation that a comment is, None where it is an ordinary comment."""
    text = comment.lstrip()
    if not text.startswith(_INTRODUCTION):
        return None
    values = []
    for word in text.removeprefix(_INTRODUCTION).split():
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise source.error(start, f"the annotation {word!r} is none of {', '.join(sorted(KEYS))}, each with =")
        values.append((key, value))
    return Annotation(start, tuple(values))


def comment(**values: str | None) -> str:
    """The comment that says these values, with a space before it; empty where there are none."""
    said = [f"{key}={value}" for key, value in values.items() if value is not None]
    return f" -- {_INTRODUCTION} {' '.join(said)}" if said else ""


def format_list(values: tuple[str, ...]) -> str:
    """The values as one word."""
    return ",".join(_ESCAPED.sub(lambda match: quote(match[0], safe=""), value) for value in values)


def parse_list(text: str) -> tuple[str, ...]:
    """The values of `format_list`."""
    try:
        return tuple(unquote(part, errors="strict") for part in text.split(","))
    except UnicodeDecodeError:
        raise RefusalError(f"the annotation {text} holds a % that stands for no character") from None


def format_moment(utc: datetime) -> str:
    """A UTC moment as `2026-11-21T00:00:00Z`, with microseconds where there are any."""
    return utc.replace(tzinfo=None).isoformat() + "Z"


def parse_moment(text: str) -> datetime:
    """The moment of `format_moment`, or any other ISO 8601 moment."""
    try:
        return parse_timestamp(text)
    except (ValueError, OverflowError):
        raise RefusalError(f"the annotation lifetime={text} is no moment such as 2026-11-21T00:00:00Z") from None


def parse_route_id(text: str) -> int:
    """A route id: a number of 32 bits."""
    try:
        number = int(text) if text.isascii() else None
    except ValueError:
        number = None
    if number is None or not -(2**31) <= number < 2**31:
        raise RefusalError(f"the annotation route_id={text} is no number of 32 bits")
    return number


# Possessive repeats: text of megabytes, terminated or not, is read once and without a stack.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s++)
      | --(?P<comment>[^\r\n]*+)
      | (?P<block>/\*)
      | (?P<string>[Nn]?'[^']*+(?:''[^']*+)*+')
      | (?P<bracket>\[[^\]]*+(?:\]\][^\]]*+)*+\])
      | (?P<quote>"[^"]*+(?:""[^"]*+)*+")
      | (?P<open>[Nn]?'|["\[])
      | (?P<word>[\w@$#]++)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_BLOCK_COMMENT: Final = re.compile(r"/\*|\*/")
_GO_LINE: Final = re.compile(r"[^\S\r\n]*+(?P<count>[0-9]*+)(?=[^\S\r\n]*+(?:;[^\S\r\n]*+)?+(?:--|/\*|[\r\n]|\Z))")
_COUNT_DIGITS_MAX: Final = 10
# A backslash at the end of a line continues the string on the next one.
_CONTINUATION: Final = re.compile(r"\\(?:\r\n|\n|\r)")

Kind = Literal["word", "name", "string", "sign", "end"]


class Token(NamedTuple):
    """One token; `key` is what keywords and signs are compared with, empty for names and strings."""

    kind: Kind
    key: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ScriptBatch:
    """What stands between two `GO`."""

    tokens: list[Token] = field(repr=False)  # passwords among them
    annotations: list[Annotation]
    count: int
    """How many times the batch runs."""


def batches(source: ScriptSource) -> Iterator[ScriptBatch]:
    """The batches of a script, one at a time."""
    tokens: list[Token] = []
    annotations: list[Annotation] = []
    position = blank = 0  # the white space before the position begins at `blank`
    while position < len(source.text):
        start = position
        item, position = _next(source, position)
        if isinstance(item, Annotation):
            annotations.append(item)
        elif item is not None:
            separator = _go(source, item, blank=blank) if item.key == "GO" else None
            if separator is None:
                tokens.append(item)
            else:
                position = separator.end()
                yield ScriptBatch(tokens, annotations, _count(source, item, separator["count"]))
                tokens, annotations = [], []
        if not source.text[start].isspace():
            blank = position
    yield ScriptBatch(tokens, annotations, 1)


def _next(source: ScriptSource, position: int) -> tuple[Token | Annotation | None, int]:
    """The token or annotation at a position, None for white space and other comments; and where it ends."""
    match = _TOKEN.match(source.text, position)
    if match is None:  # the last alternative takes any character
        raise AssertionError(position)
    text, end = match[0], match.end()
    kind = match.lastgroup
    if kind == "space":
        return None, end
    if kind == "word":
        # Only ASCII: Unicode upper case would make keywords of words with a dotless i or a long s.
        return Token("word", text.upper() if text.isascii() else text, text, position, end), end
    if kind == "sign":
        return Token("sign", text, text, position, end), end
    if kind == "string":
        value = _CONTINUATION.sub("", text[text.index("'") + 1 : -1]).replace("''", "'")
        return Token("string", "", value, position, end), end
    if kind == "bracket":
        return Token("name", "", text[1:-1].replace("]]", "]"), position, end), end
    if kind == "quote":
        return Token("name", "", text[1:-1].replace('""', '"'), position, end), end
    if kind == "comment":
        return annotation(source, match["comment"], position), end
    if kind == "block":
        return None, _end_of_comment(source, position)
    raise source.error(position, f"the quotation mark {text} is not closed", number=105)


def _end_of_comment(source: ScriptSource, start: int) -> int:
    depth = 0
    for mark in _BLOCK_COMMENT.finditer(source.text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise source.error(start, "the comment /* is not closed", number=113)


def _go(source: ScriptSource, token: Token, *, blank: int) -> re.Match[str] | None:
    """What follows a GO that separates batches: alone on its line but for a count."""
    return _GO_LINE.match(source.text, token.end) if blank <= source.line_start(token.start) else None


def _count(source: ScriptSource, token: Token, digits: str) -> int:
    """How many times a batch runs, by what stands behind its GO."""
    if len(digits.lstrip("0")) > _COUNT_DIGITS_MAX:
        raise source.error(token.start, f"a batch cannot run {digits[:_COUNT_DIGITS_MAX]}... times")
    return int(digits[-_COUNT_DIGITS_MAX:] or 1)


_SECRETS: Final = frozenset({"PASSWORD", "SECRET"})
_MAY_HAVE_SECRETS: Final = _SECRETS | {"KEY"}
_CALLS: Final = frozenset({"EXEC", "EXECUTE"})
_TOKENS_MAX: Final = 60
_CHARACTERS_MAX: Final = 40
_UNTOLD: Final = "'...'"


def beginning(text: str, tokens: Sequence[Token], *, is_call: bool) -> str:
    """The beginning of a statement that is skipped, without its strings; of a call, or a command of sqlcmd, the name alone.

    Args:
        text: The script.
        tokens: Those of the statement.
        is_call: Whether it may call a procedure without EXEC, as the first statement of a batch may.

    Returns:
        The words, with one blank for all that stands between two of them.
    """
    shown = end = min(len(tokens), _TOKENS_MAX)
    call = 0 if is_call or tokens[0].key == ":" else next(filter(partial(_calls, tokens), range(end)), None)
    if call is not None:
        end = min(end, _callee(tokens, call))
    words = ""
    for index, token in enumerate(tokens[:end]):
        gap = " " if index and token.start > tokens[index - 1].end else ""
        words += gap + (
            _UNTOLD if _is_quoted(text, token) or _is_secret(tokens, index) else text[token.start : token.end]
        )
    return words if end == shown else f"{words} ..."


def last(text: str, tokens: Sequence[Token]) -> str:
    """The last of some tokens of a statement that is read, shortened; without its text where it may be a secret."""
    token = tokens[-1]
    may_be = _is_quoted(text, token) and any(one.key in _MAY_HAVE_SECRETS for one in tokens)
    told = _UNTOLD if may_be or _is_secret(tokens, len(tokens) - 1) else text[token.start : token.end]
    return told if len(told) <= _CHARACTERS_MAX else told[:_CHARACTERS_MAX] + "..."


def _calls(tokens: Sequence[Token], index: int) -> bool:
    """Whether a procedure is called here; `GRANT EXECUTE ON` and `EXECUTE AS` call none."""
    following = tokens[index + 1].key if index + 1 < len(tokens) else ""
    return tokens[index].key in _CALLS and following not in ("AS", "ON")


def _callee(tokens: Sequence[Token], call: int) -> int:
    """Where the name ends of what is called: `EXEC @status = dbo.p`, `:connect`."""
    end = min(call + 2, len(tokens))
    while end < len(tokens) and {tokens[end - 1].key, tokens[end].key} & {".", "="}:
        end += 1
    return end


def _is_quoted(text: str, token: Token) -> bool:
    return token.kind == "string" or text[token.start] == '"'


def _is_secret(tokens: Sequence[Token], index: int) -> bool:
    """Whether it is what follows PASSWORD or SECRET, quoted or not."""
    return tokens[index].key != "=" and any(one.key in _SECRETS for one in tokens[max(index - 2, 0) : index])
