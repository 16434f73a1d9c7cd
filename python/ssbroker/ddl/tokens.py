"""From text to batches of tokens: strings, names in brackets or quotes, words and signs, comments left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from ssbroker.ddl.annotations import Annotation, annotation
from ssbroker.ddl.source import Source

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
class Batch:
    """What stands between two `GO`."""

    tokens: list[Token] = field(repr=False)  # passwords among them
    annotations: list[Annotation]
    count: int
    """How many times the batch runs."""


def batches(source: Source) -> Iterator[Batch]:
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
                yield Batch(tokens, annotations, _count(source, item, separator["count"]))
                tokens, annotations = [], []
        if not source.text[start].isspace():
            blank = position
    yield Batch(tokens, annotations, 1)


def _next(source: Source, position: int) -> tuple[Token | Annotation | None, int]:
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


def _end_of_comment(source: Source, start: int) -> int:
    depth = 0
    for mark in _BLOCK_COMMENT.finditer(source.text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise source.error(start, "the comment /* is not closed", number=113)


def _go(source: Source, token: Token, *, blank: int) -> re.Match[str] | None:
    """What follows a GO that separates batches: alone on its line but for a count."""
    return _GO_LINE.match(source.text, token.end) if blank <= source.line_start(token.start) else None


def _count(source: Source, token: Token, digits: str) -> int:
    """How many times a batch runs, by what stands behind its GO."""
    if len(digits.lstrip("0")) > _COUNT_DIGITS_MAX:
        raise source.error(token.start, f"a batch cannot run {digits[:_COUNT_DIGITS_MAX]}... times")
    return int(digits[-_COUNT_DIGITS_MAX:] or 1)
