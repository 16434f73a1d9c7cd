"""From a batch to its statements, each with the place where it stands and the annotations that belong to it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ssbroker.ddl.annotations import INSTANCE_KEYS
from ssbroker.ddl.cursor import STATEMENT_WORDS, Cursor, Reading
from ssbroker.ddl.grammar import known, parse_known
from ssbroker.ddl.skip import skip
from ssbroker.ddl.source import Source
from ssbroker.ddl.statements import Skipped, Statement
from ssbroker.ddl.tokens import Batch

_SHOWN_CHARACTERS_MAX: Final = 60


@dataclass(slots=True)
class Parsed:
    """A statement in its place."""

    statement: Statement
    subject: str
    start: int
    end: int
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """The statements of a batch, and the annotations of the instance."""

    statements: list[Parsed]
    instance: list[tuple[int, str, str]]
    """Position, key and value."""


def parse(source: Source, batch: Batch, *, reading: Reading = "routing") -> ParsedBatch:
    """The statements of a batch."""
    statements = list(_statements(source, batch, reading))
    return ParsedBatch(statements, list(_attach(source, batch, statements)))


def _statements(source: Source, batch: Batch, reading: Reading) -> Iterator[Parsed]:
    cursor = Cursor(source, batch.tokens, reading=reading)
    while not cursor.done:
        if cursor.accept(";"):
            continue
        cursor.begin()
        verb = known(cursor)
        statement = Skipped(skip(cursor)) if verb is None else parse_known(cursor, verb)
        if verb is not None and not _may_follow(cursor):
            cursor.fail("the statement should end here")
        subject = cursor.subject
        if subject is None or isinstance(statement, Skipped):
            subject = _first_words(cursor.said())
        end = cursor.token.end if cursor.key == ";" else cursor.end
        yield Parsed(statement, subject, cursor.start, end)


def _may_follow(cursor: Cursor) -> bool:
    """Whether a statement may end here: at its semicolon, the end, a label, a command of sqlcmd or another statement."""
    return cursor.done or cursor.key in STATEMENT_WORDS | {";", ":"} or cursor.ahead(1).key == ":"


def _attach(source: Source, batch: Batch, statements: list[Parsed]) -> Iterator[tuple[int, str, str]]:
    """Gives each annotation to the statement around it or before it on its line; the rest is the instance's."""
    starts = [parsed.start for parsed in statements]
    for note in batch.annotations:
        index = bisect_right(starts, note.start) - 1
        owner = statements[index] if index >= 0 else None
        if owner is not None and source.line(note.start) > source.line(owner.end - 1):
            owner = None
        for key, value in note.values:
            if owner is not None and isinstance(owner.statement, Skipped):
                continue
            if key in INSTANCE_KEYS:
                yield note.start, key, value
            elif owner is None:
                raise source.error(note.start, f"the annotation {key} stands at the end of no statement")
            elif owner.annotations.setdefault(key, value) != value:
                raise source.error(note.start, f"the annotation {key} is given twice", subject=owner.subject)


def _first_words(text: str) -> str:
    words = " ".join(text[: 10 * _SHOWN_CHARACTERS_MAX].split())
    return words if len(words) <= _SHOWN_CHARACTERS_MAX else words[:_SHOWN_CHARACTERS_MAX] + "..."
