"""Options that several commands share."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from ssbroker._arguments import guid_bytes, parse_timestamp
from ssbroker.cli.chunks import SESSION_KEYS
from ssbroker.cli.errors import reading
from ssbroker.cli.formats import Format
from ssbroker.cli.readers import open_sources
from ssbroker.exceptions import InputError, InvalidGuidError, MalformedDataError, OptionError, SchemaError
from ssbroker.router import PendingRequest, TieBreak

CatalogOption: TypeAlias = Annotated[
    Path,
    typer.Option(
        help="A script of DDL (.sql), a folder of routes, databases and services, or a file with the routes alone."
    ),
]
NowOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The moment at which routes expire, in UTC if without a zone. Now if left out."),
]
TieBreakOption: TypeAlias = Annotated[TieBreak, typer.Option(help="How one of several equal routes is picked.")]
PendingRequestOption: TypeAlias = Annotated[
    PendingRequest, typer.Option(help="What step 4 does while routing information is requested.")
]
FormatOption: TypeAlias = Annotated[
    Format | None,
    typer.Option(metavar="FORMAT", help=f"{', '.join(Format)}: the format to write, whatever the suffix."),
]
ThreadsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="COUNT", help="How many threads. One for each core if left out.")
]
SummaryAsJsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]
QuietOption: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but errors (and what --json asks for).")
]
ProgressOption: TypeAlias = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar; on a terminal if left out.")
]


_SIZE: Final = re.compile(r"([0-9]{1,30})(?: ?(?:([kmgt])(i?))?b)?", re.IGNORECASE)
_COUNT: Final = re.compile(r"[0-9]{1,30}")
_UNITS: Final = "kmgt"
_NO_LIMIT: Final = "none"


def parse_size(text: str, *, option: str) -> int | None:
    """Reads a number of bytes, with a unit or without; `none` is no limit.

    Raises:
        OptionError: It is neither.

    Examples:
        >>> parse_size("256MiB", option="--max-pending-bytes"), parse_size("2 kB", option="--max-pending-bytes")
        (268435456, 2000)
    """
    if text.lower() == _NO_LIMIT:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise OptionError(f"{option}: {text!r:.80} is no size; expected one such as 256MiB, or none")
    number, unit, binary = found.groups()
    scale: int = (1024 if binary else 1000) ** (_UNITS.index(unit.lower()) + 1 if unit else 0)
    return int(number) * scale


def parse_count(text: str, *, option: str) -> int | None:
    """Reads a number; `none` is no limit.

    Raises:
        OptionError: It is neither.

    Examples:
        >>> parse_count("1000", option="--max-pending-messages"), parse_count("none", option="--max-pending-messages")
        (1000, None)
    """
    if text.lower() == _NO_LIMIT:
        return None
    if _COUNT.fullmatch(text) is None:
        raise OptionError(f"{option}: {text!r:.80} is no number; expected one such as 1000000, or none")
    return int(text)


def parse_now(text: str | None, *, option: str = "--now") -> datetime:
    """Reads the option `--now`, or another that is a moment; the current time where it is left out.

    Raises:
        OptionError: It is no moment.

    Examples:
        >>> parse_now("2026-11-20 21:00").isoformat()
        '2026-11-20T21:00:00+00:00'
    """
    try:
        return datetime.now(UTC) if text is None else parse_timestamp(text)
    except ValueError as error:
        raise OptionError(f"{option}: {text!r} is no moment; expected one such as 2026-11-20T21:00:00Z") from error


FolderArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of an instance.")]


_LENGTHS: Final = (16, 24, 32)
_IDS: Final = ("conversation_id", "conversation_handle")
_EXPECTED: Final = "a key of 16, 24 or 32 bytes, which text has as hexadecimal digits"


def load_keys(file: Path) -> Mapping[uuid.UUID | str | bytes, bytes]:
    r"""Reads the keys by conversation id.

    Args:
        file: A table with the columns `conversation_id` (or `conversation_handle`) and `session_key`.

    Returns:
        The keys by the 16 bytes of the id.

    Raises:
        SchemaError: A column is missing, or holds no bytes.
        InputError: The file cannot be read, an id is no GUID or has two keys, or a key has another length.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "keys.csv")
        ...     _ = path.write_text(f"conversation_id,session_key\n{uuid.UUID(int=1)},{'ab' * 16}\n")
        ...     [key.hex() for key in load_keys(path).values()]
        ['abababababababababababababababab']
    """
    with _untold(file), reading(file):
        return _keys(file)


@contextmanager
def _untold(file: Path) -> Iterator[None]:
    """Errors that would tell what stands in the file tell where alone: it may be a key in another form."""
    try:
        yield
    except InputError as error:
        of_system = isinstance(error.__cause__, OSError) and error.__cause__.errno is not None
        if of_system or (not isinstance(error, MalformedDataError) and error.column != "session_key"):
            raise
        row = "" if error.row is None else f", row {error.row}"
        reason = f"{file}: session_key{row}: expected {_EXPECTED}"
        if error.column is None:
            told = "is empty; expected" if _is_empty(file) else "expected"
            reason = f"{file}{row}: {told} a table with the columns conversation_id and session_key"
        raise type(error)(reason, column=error.column, row=error.row, expected=_EXPECTED) from None


def _is_empty(file: Path) -> bool:
    try:
        return file.stat().st_size == 0
    except OSError:  # it has gone meanwhile
        return False


def _keys(file: Path) -> Mapping[uuid.UUID | str | bytes, bytes]:
    (source,) = open_sources([file], SESSION_KEYS, lines=False, threads=1, progress=False)
    names = [] if source.schema is None else source.schema.names
    id_column = next((name for name in _IDS if name in names), "conversation_id")
    for name in (id_column, "session_key"):
        if name not in names:
            raise SchemaError(f"{file}: {name}: the column is missing", column=name)
    keys: dict[uuid.UUID | str | bytes, bytes] = {}
    for piece in source.pieces():
        columns = piece.load().columns
        pairs = zip(columns.column(id_column).to_pylist(), columns.column("session_key").to_pylist(), strict=True)
        for number, (given, key) in enumerate(pairs):
            row = piece.row_of(number)
            try:
                conversation = guid_bytes(given, name="conversation_id")
            except InvalidGuidError as error:
                raise InvalidGuidError(f"{file}: row {row}: {error}", column="conversation_id", row=row) from None
            if not isinstance(key, bytes) or len(key) not in _LENGTHS:  # the key itself is told to nobody
                raise InputError(
                    f"{file}: session_key, row {row}: expected {_EXPECTED}",
                    column="session_key",
                    row=row,
                    expected=_EXPECTED,
                )
            if keys.setdefault(conversation, key) != key:
                raise InputError(f"{file}: row {row}: {uuid.UUID(bytes=conversation)} has two keys", row=row)
    return keys
