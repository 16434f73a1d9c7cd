"""Options of commands that read T-SQL scripts, and the report of what scripts leave undone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from ssbroker import ddl
from ssbroker.catalog.catalog import script_options
from ssbroker.exceptions import DdlWarning, OptionError

if TYPE_CHECKING:
    from ssbroker.ddl import ScriptNote, ScriptOptions


VariableOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--variable",
        "-v",
        metavar="NAME=VALUE",
        help="Value of a sqlcmd variable, $(NAME) in scripts. Can be repeated. :setvar in a script overrides it.",
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
        help="Skip statements that T-SQL does not have, and accept scripts without Service Broker statements: for exports of whole servers.",
    ),
]
VerboseOption: TypeAlias = Annotated[
    bool, typer.Option("--verbose", help="List the skipped statements of scripts instead of counting them.")
]


def parse_options(
    variables: Sequence[str] | None, encoding: str | None, *, lenient: bool, collects: bool = False
) -> ScriptOptions:
    """Returns how scripts are read; with `collects`, errors of statements become notes."""
    return script_options(variables=parse_variables(variables), encoding=encoding, lenient=lenient, collects=collects)


def parse_variables(variables: Sequence[str] | None) -> dict[str, str]:
    """Returns the values of variables by name."""
    given: dict[str, str] = {}
    for variable in variables or ():
        name, equals, value = variable.partition("=")
        if not equals:
            raise OptionError(f"-v: expected NAME=VALUE, got {variable!r:.80}")
        given[name] = value
    return given


_ROUTINE: Final = frozenset({"PRINT", "SET"})
"""Skipped statements that every script has."""


def warn_about(notes: Iterable[ScriptNote], *, about: str, verbose: bool) -> None:
    """Warns about what scripts leave undone: each statement, or the number of skipped ones except routine."""
    told = (note for note in notes if not (note.kind == "skipped" and note.statement in _ROUTINE))
    lines = map(str, notes) if verbose else ddl.summary(told, about=about)
    for line in lines:
        warnings.warn(line, DdlWarning, stacklevel=2)
