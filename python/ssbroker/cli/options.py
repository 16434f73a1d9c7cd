"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from ssbroker._arguments import parse_timestamp
from ssbroker._well_known import SERVICE_NAME_MAX
from ssbroker.cli.file_formats import Format
from ssbroker.exceptions import OptionError, SsbrokerError
from ssbroker.router import PendingRequest, TieBreak

CatalogArgument: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="CATALOG",
        help="Routing tables: a T-SQL script (.sql), the folder of an instance, a folder with tables of routes, databases and services, or a file of routes.",
    ),
]
AtOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time at which routes are checked for expiry, such as 2026-11-20T21:00:00Z; UTC if it has no time zone. Default: now.",
    ),
]
TieBreakOption: TypeAlias = Annotated[
    TieBreak,
    typer.Option(
        metavar="HOW",
        help="How to choose among equal candidates: by a hash of the conversation id (hash), in turns (round_robin), or by route id (first).",
    ),
]
PendingRequestOption: TypeAlias = Annotated[
    PendingRequest,
    typer.Option(
        metavar="HOW",
        help="While dynamic routing waits for the route to a service: continue with other routes (continue), or delay its conversations (delay).",
    ),
]
FormatOption: TypeAlias = Annotated[
    Format | None,
    typer.Option(metavar="FORMAT", help=f"Output format: {', '.join(Format)}. Default: by the suffix of the output."),
]
ThreadsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="COUNT", help="Number of threads. Default: one per core.")
]
SummaryAsJsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the summary as a JSON object.")]
QuietOption: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors, and the summary if --json is specified.")
]
ProgressOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show or hide the progress bar. Default: shown on a terminal."),
]


_SIZE: Final = re.compile(r"([0-9]{1,30})(?: ?(?:([kmgt])(i?))?b)?", re.IGNORECASE)
_COUNT: Final = re.compile(r"[0-9]{1,30}")
_UNITS: Final = "kmgt"
_NO_LIMIT: Final = "none"


def parse_size(text: str, *, option: str) -> int | None:
    """Parses a number of bytes, with or without a unit; `none` is no limit.

    Examples:
        >>> parse_size("256MiB", option="--max-pending-bytes"), parse_size("2 kB", option="--max-pending-bytes")
        (268435456, 2000)
    """
    if text.lower() == _NO_LIMIT:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise OptionError(f"{option}: {text!r:.80} is not a valid size; expected one such as 256MiB, or none")
    number, unit, binary = found.groups()
    scale: int = (1024 if binary else 1000) ** (_UNITS.index(unit.lower()) + 1 if unit else 0)
    return int(number) * scale


@contextmanager
def as_options(**options: str) -> Iterator[None]:
    """Makes errors about arguments of a function name the command-line options instead.

    Examples:
        >>> with as_options(ignore="--ignore"):
        ...     raise OptionError("ignore: 'SSB999' is not a finding code")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: --ignore: 'SSB999' is not a finding code
    """
    try:
        yield
    except SsbrokerError as error:
        name, separator, problem = str(error).partition(": ")
        if separator and name in options:
            error.args = (f"{options[name]}: {problem}", *error.args[1:])
        raise


def check_service_name(name: str, *, option: str) -> None:
    """Refuses a name that no service and no route can have."""
    if not name.strip() or len(name) > SERVICE_NAME_MAX:
        raise OptionError(
            f"{option}: {name!r:.80} is not a valid service name; expected 1 to {SERVICE_NAME_MAX} characters, not only spaces"
        )


def parse_count(text: str, *, option: str) -> int | None:
    """Parses a count; `none` is no limit."""
    if text.lower() == _NO_LIMIT:
        return None
    if _COUNT.fullmatch(text) is None:
        raise OptionError(f"{option}: {text!r:.80} is not a valid number; expected one such as 1000000, or none")
    return int(text)


def parse_time(text: str | None, *, option: str, default: datetime) -> datetime:
    """Parses the value of an option that is a time; `default` is the time of an option that is not given."""
    try:
        return default if text is None else parse_timestamp(text)
    except ValueError as error:
        raise OptionError(
            f"{option}: {text!r} is not a valid time; expected one such as 2026-11-20T21:00:00Z"
        ) from error


FolderArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the instance.")]
