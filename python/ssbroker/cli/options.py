"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from ssbroker import moment
from ssbroker.cli.formats import Format
from ssbroker.exceptions import OptionError
from ssbroker.routing import PendingRequest, TieBreak

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
        return datetime.now(UTC) if text is None else moment.parse(text)
    except ValueError as error:
        raise OptionError(f"{option}: {text!r} is no moment; expected one such as 2026-11-20T21:00:00Z") from error
