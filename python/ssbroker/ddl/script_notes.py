"""Notes about statements of a script that were skipped, ignored, not executed, unknown or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ssbroker._text import quantity
from ssbroker.ddl.lexer import ScriptPosition, location_text

NoteKind = Literal[
    "skipped",
    "security",
    "messages",
    "unsupported",
    "existing",
    "ignored",
    "caught",
    "not_executed",
    "unknown",
    "refused",
    "unreadable",
    "empty",
    "restored",
    "offline",
]
"""What happened to a statement."""

PROBLEMS: Final[frozenset[NoteKind]] = frozenset(
    {"not_executed", "unknown", "refused", "unreadable", "empty", "restored", "offline"}
)
"""The kinds of notes which mean that the result may differ from the script."""


class Remark(NamedTuple):
    """What a statement did not do, or did differently."""

    kind: NoteKind
    text: str


NOT_ABOUT_BROKER: Final = Remark("skipped", "skipped (not about Service Broker)")


OTHER_ENDPOINT: Final = Remark("ignored", "skipped (not the Service Broker endpoint)")


UNUSABLE_KEY: Final = Remark(
    "ignored",
    "skipped the private key: keys that a password encrypts are not supported, because Service Broker cannot use them",
)


NO_ENDPOINT: Final = Remark(
    "ignored",
    "skipped (the script does not create this endpoint, and the statement does not say whether the endpoint is for Service Broker)",
)


def skipped_remark(clauses: str) -> Remark | None:
    """Returns the remark that clauses of a statement were skipped; None if there are none."""
    return Remark("ignored", f"skipped {clauses}") if clauses else None


@dataclass(frozen=True, slots=True)
class ScriptNote:
    """A remark about a statement of a script.

    Attributes:
        kind: What happened: `skipped` (does not concern Service Broker), `security` (transport security, which `ssbroker serve` takes from its
            options), `messages` (sends or receives messages, which scripts do not do), `unsupported` (concerns Service Broker, but is not
            supported), `existing` (already exists, or is assumed to exist), `ignored` (a clause was ignored), `caught`
            (an error that a CATCH handled), `not_executed` (may concern Service Broker, but its condition or text is
            not known from the script), `unknown` (not a statement of T-SQL), `refused` (an error), `unreadable` (a file
            whose encoding is not known), `empty` (the script has no statement about Service Broker), `restored` (a
            database whose broker may be disabled after a restore) or `offline` (a database that the script leaves
            offline).
        subject: The statement, shortened and without secrets; empty for a whole script.
        text: What was done, and why.
        position: The file and line.
        statement: The first words of the statement; skipped statements are counted by these words.
        number: The error number of SQL Server; None if there is none.
    """

    kind: NoteKind
    subject: str
    text: str
    position: ScriptPosition
    statement: str = ""
    number: int | None = None

    @property
    def is_problem(self) -> bool:
        """Whether the result may differ from the script."""
        return self.kind in PROBLEMS

    def __str__(self) -> str:
        parts = [location_text(self.position), self.subject, self.text]
        return ": ".join(part for part in parts if part)


def counts(notes: Iterable[ScriptNote]) -> dict[str, int]:
    """Returns how many statements were skipped, by their first words, the most frequent first."""
    return dict(Counter(note.statement for note in notes if note.kind in ("skipped", "messages")).most_common())


def summary(notes: Iterable[ScriptNote], *, about: str) -> Iterator[str]:
    """Yields lines that list what was not done; skipped statements are only counted.

    Args:
        notes: The notes.
        about: What the skipped statements are not about, such as `routing`.
    """
    given = list(notes)
    for note in given:
        if note.kind not in ("skipped", "security", "messages"):
            yield f"{note}; the statement was skipped" if note.kind == "refused" else str(note)
    skipped, security, messages = (
        [note for note in given if note.kind == kind] for kind in ("skipped", "security", "messages")
    )
    if skipped:
        yield f"{_where(skipped)}skipped {quantity(len(skipped), 'statement')} not about {about}: {_listed(skipped)}"
    if messages:
        yield (
            f"{_where(messages)}did not execute {quantity(len(messages), 'statement')} to send or receive messages ({_listed(messages)}): "
            "scripts define objects; to send and receive, use a transaction in Python"
        )
    if security:
        kinds = ", ".join(dict.fromkeys(note.statement for note in security))
        yield (
            f"{_where(security)}skipped {quantity(len(security), 'statement')} about transport security ({kinds}): "
            "an instance takes certificates from the options of `ssbroker serve`, such as --certificate and --pin"
        )


def _listed(notes: list[ScriptNote]) -> str:
    return ", ".join(f"{count} {statement}" for statement, count in counts(notes).items())


def _where(notes: list[ScriptNote]) -> str:
    files = {note.position.file for note in notes}
    (file, *others) = files
    return "" if others or file is None else f"{file}: "
