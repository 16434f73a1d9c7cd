"""Catalogs and fleets as the commands that diagnose take them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ssbroker.catalog.catalog import Catalog
from ssbroker.catalog.load import os_errors_as_input_errors
from ssbroker.cli.errors import writing
from ssbroker.cli.writers import replacing_files
from ssbroker.exceptions import DuplicateError, InputError

if TYPE_CHECKING:
    from ssbroker.diagnose import Fleet


AtOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The moment at which routes expire, in UTC if without a zone. Now if left out."),
]
FleetOption: TypeAlias = Annotated[
    bool, typer.Option("--fleet", help="The path is a folder in which each folder and each .sql script is an instance.")
]
HtmlOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write one self-contained page: graph, findings, what reaches what."),
]
CatalogsArgument: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="CATALOG...",
        help="An instance each: a script of DDL (.sql), a folder of routes, databases and services, or a file with the routes alone.",
    ),
]


def places(paths: list[Path], *, is_fleet: bool) -> dict[str, Path]:
    """The file or folder of each instance, which is named like it.

    Args:
        paths: A catalog each, or folders of instances.
        is_fleet: Whether they are folders of instances.

    Returns:
        The path of each by its name.

    Raises:
        InputError: There is no such folder, it holds no instance, or two instances have one name.
    """
    from ssbroker.diagnose import Fleet  # noqa: PLC0415 - the help comes quicker without

    found: dict[str, Path] = {}
    for path in paths:
        for name, place in (Fleet.paths(path) if is_fleet else {instance_name(path): path}).items():
            if name in found:
                raise DuplicateError(f"{path}: two catalogs are of the instance {name!r}", value=name)
            found[name] = place
    return found


def load_fleet(paths: list[Path], *, is_fleet: bool, now: datetime) -> Fleet:
    """Instances, named like their files or folders.

    Args:
        paths: A catalog each, or folders of instances.
        is_fleet: Whether they are folders of instances.
        now: The moment from which LIFETIME of a script counts.

    Returns:
        The fleet.

    Raises:
        InputError: Nothing is there, a value is not what was expected, or two instances have one name.
    """
    from ssbroker.diagnose import Fleet  # noqa: PLC0415 - the help comes quicker without

    return Fleet({name: Catalog.load(place, now=now) for name, place in places(paths, is_fleet=is_fleet).items()})


def write_text(path: Path, text: str) -> None:
    """Writes a report, which appears whole or not at all.

    Raises:
        OutputError: It cannot be written.
    """
    with replacing_files([path]) as (part,), writing(path):
        part.write_text(text, encoding="utf-8")


def instance_name(path: Path) -> str:
    """The name of the instance that a path holds.

    Raises:
        InputError: The path cannot be reached.

    Examples:
        >>> instance_name(Path("net/NORTH.sql"))
        'NORTH'
    """
    resolved = path.resolve()
    with os_errors_as_input_errors(path):
        return resolved.name if resolved.is_dir() else resolved.stem


def place(text: str | None, fleet: Fleet) -> tuple[str | None, str | None]:
    """Reads `INSTANCE/DATABASE`; of one instance the database alone, of several the instance alone.

    Raises:
        InputError: There is nothing before or behind the slash.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> from ssbroker.diagnose import Fleet
        >>> empty = Catalog(schemas.ROUTES.empty_table())
        >>> one, two = Fleet({"NORTH": empty}), Fleet({"NORTH": empty, "SOUTH": empty})
        >>> place("NORTH/Sales", one), place("Sales", one), place("NORTH", two), place(None, two)
        (('NORTH', 'Sales'), (None, 'Sales'), ('NORTH', None), (None, None))
    """
    if text is None:
        return None, None
    instance, slash, database = text.partition("/")
    if not slash:
        return (text, None) if len(fleet) > 1 and text in fleet else (None, text)
    if not instance or not database:
        raise InputError(f"--from: {text!r:.80}; expected INSTANCE/DATABASE", value=text)
    return instance, database
