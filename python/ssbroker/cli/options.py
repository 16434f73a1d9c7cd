"""Options that several commands share, the parsing of their values, and warnings about statements that were not executed."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from ssbroker._arguments import parse_timestamp
from ssbroker._well_known import SERVICE_NAME_MAX
from ssbroker.catalog.catalog import script_options
from ssbroker.cli.file_formats import Format
from ssbroker.exceptions import DdlError, DdlWarning, InvalidGuidError, OptionError, SsbrokerError
from ssbroker.router import PendingRequest, TieBreak

if TYPE_CHECKING:
    from ssbroker.ddl import ScriptNote, ScriptOptions

CatalogArgument: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="CATALOG",
        help="Routing tables: a T-SQL script (.sql), an instance folder, a folder with tables of routes, databases and services, or a file of routes.",
    ),
]
FolderArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FOLDER", help="Instance folder.")]
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
        help="How to choose among equal candidates: by a hash of the conversation id (hash), in turn (round_robin), or by route id (first).",
    ),
]
FromTargetOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--from-target",
        help="The message is a reply: the target of the conversation sends it to the service of the initiator.",
    ),
]
FromTargetsOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--from-target",
        help="All messages are replies, which the targets of conversations send to the initiators; for files without the column is_initiator.",
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
VariableOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--variable",
        "-v",
        metavar="NAME=VALUE",
        help="Value of a sqlcmd variable, $(NAME) in scripts. Can be repeated. :setvar in a script overrides it. Default: the environment variable with this name.",
    ),
]
EncodingOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Encoding of scripts without a byte order mark, such as cp1252. Default: UTF-8."),
]
LenientOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--lenient",
        help="Skip statements that are not T-SQL, and accept scripts without Service Broker statements, such as exports of whole servers.",
    ),
]
LenientLintOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--lenient",
        help="Accept scripts without Service Broker statements, such as exports of whole servers, and names of databases that look like misspellings.",
    ),
]
LenientCatalogOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--lenient",
        help="Skip statements that SQL Server would reject, with a warning, and accept scripts without Service Broker statements, such as exports of whole servers.",
    ),
]
VerboseOption: TypeAlias = Annotated[
    bool, typer.Option("--verbose", help="List the skipped statements of scripts instead of counting them.")
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
_UNCLOSED: Final = frozenset({105, 113})
"""Errors of an unclosed quotation mark or comment: it is unknown where the next statement starts."""
_ROUTINE: Final = frozenset({"PRINT", "SET"})
"""Skipped statements that almost every script contains."""


def parse_size(text: str, *, option: str) -> int:
    """Parses a number of bytes, with or without a unit.

    Examples:
        >>> parse_size("256MiB", option="--max-message-bytes"), parse_size("2 kB", option="--max-message-bytes")
        (268435456, 2000)
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise OptionError(f"{option}: {text!r:.80} is not a valid size; expected a size such as 256MiB")
    number, unit, binary = found.groups()
    scale: int = (1024 if binary else 1000) ** (_UNITS.index(unit.lower()) + 1 if unit else 0)
    return int(number) * scale


def parse_size_limit(text: str, *, option: str) -> int | None:
    """Parses a number of bytes, with or without a unit; returns None for `none`, which means no limit."""
    if text.lower() == _NO_LIMIT:
        return None
    try:
        return parse_size(text, option=option)
    except OptionError as error:
        raise OptionError(f"{error}, or 'none' for no limit") from None


@contextmanager
def as_options(**options: str) -> Iterator[None]:
    """In errors about arguments of a function, replaces the argument names with the names of command-line options.

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
            if isinstance(error, InvalidGuidError) and error.expected is not None:  # options are always text
                problem = problem.replace(error.expected, "36 characters (braces allowed)")
            error.args = (f"{options[name]}: {problem}", *error.args[1:])
        raise


def check_service_name(name: str, *, option: str) -> None:
    """Refuses a service name that is not valid for any service or route."""
    if not name.strip() or len(name) > SERVICE_NAME_MAX:
        raise OptionError(
            f"{option}: {name!r:.80} is not a valid service name; expected 1 to {SERVICE_NAME_MAX} characters, not only spaces"
        )


def parse_count(text: str, *, option: str) -> int | None:
    """Parses a count; returns None for `none`, which means no limit."""
    if text.lower() == _NO_LIMIT:
        return None
    if _COUNT.fullmatch(text) is None:
        raise OptionError(
            f"{option}: {text!r:.80} is not a valid number; expected a number such as 1000000, or 'none' for no limit"
        )
    return int(text)


def parse_time(text: str | None, *, option: str, default: datetime) -> datetime:
    """Parses the value of an option that is a time; `default` is the time if the option is not given."""
    try:
        return default if text is None else parse_timestamp(text)
    except ValueError as error:
        raise OptionError(
            f"{option}: {text!r} is not a valid time; expected a time such as 2026-11-20T21:00:00Z"
        ) from error


def parse_script_options(
    variables: Sequence[str] | None, encoding: str | None, *, lenient: bool, collects: bool = False
) -> ScriptOptions:
    """Returns the options for reading scripts; with `collects`, errors in statements become notes."""
    with as_options(encoding="--encoding"):
        return script_options(
            variables=parse_variables(variables), encoding=encoding, lenient=lenient, collects=collects
        )


def parse_variables(variables: Sequence[str] | None) -> dict[str, str]:
    """Parses the values of `--variable`; returns the values of the variables by name, and those of environment variables with other names."""
    from ssbroker.ddl import sqlcmd  # noqa: PLC0415 - keeps the start of other commands fast

    given = {name: value for name, value in os.environ.items() if sqlcmd.VARIABLE_NAME.fullmatch(name) is not None}
    for variable in variables or ():
        name, equals, value = variable.partition("=")
        if not equals or sqlcmd.VARIABLE_NAME.fullmatch(name) is None:
            raise OptionError(f"-v: expected NAME=VALUE, got {variable!r:.80}")
        given[name] = value
    return given


@contextmanager
def suggesting_lenient(*, lenient: bool) -> Iterator[None]:
    """Adds to the error of a statement that SQL Server would reject, which has a number, that `lint` lists such statements and `--lenient` skips them."""
    try:
        yield
    except DdlError as error:
        if not lenient and error.number is not None and error.number not in _UNCLOSED:
            error.args = (
                f"{error}; ssbroker lint lists all such statements; to skip them with a warning, use --lenient",
                *error.args[1:],
            )
        raise


def warn_about(notes: Iterable[ScriptNote], *, about: str, verbose: bool) -> None:
    """Warns about statements that were not executed: lists each if `verbose`; otherwise only counts skipped ones, without routine ones."""
    from ssbroker import ddl  # noqa: PLC0415 - keeps the start of other commands fast

    told = (note for note in notes if not (note.kind == "skipped" and note.statement in _ROUTINE))
    lines = map(str, notes) if verbose else ddl.summary(told, about=about)
    for line in lines:
        warnings.warn(line, DdlWarning, stacklevel=2)
