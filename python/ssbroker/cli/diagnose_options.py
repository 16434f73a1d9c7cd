"""Options that `lint`, `trace`, `stuck` and `compare` share; loads the instances that they name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from ssbroker import schemas
from ssbroker._text import shortened_list
from ssbroker.catalog.catalog import Catalog, check_not_loaded, load_instances
from ssbroker.catalog.table_files import os_errors_as_input_errors
from ssbroker.cli.errors import writing
from ssbroker.cli.options import suggesting_lenient, warn_about
from ssbroker.cli.output_paths import replacing_files
from ssbroker.ddl.model import find_name
from ssbroker.ddl.system_objects import SYSTEM_DATABASES
from ssbroker.exceptions import InputError, InvalidAddressError, OptionError

if TYPE_CHECKING:
    from ssbroker.ddl import ScriptOptions
    from ssbroker.diagnose import Fleet


FleetOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fleet", help="Each path is a folder of instances: each subfolder and each .sql script in it is an instance."
    ),
]
AddressOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="NAME=ADDRESS",
        help="An address at which other instances reach the instance NAME, such as stock=TCP://stock:4022. Can be repeated.",
    ),
]
HtmlOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also write an HTML report: the result, the findings, an interactive graph of the routes, and the reachability of services.",
    ),
]
CatalogsArgument: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="CATALOG",
        help="Routing tables of one or more instances; each a T-SQL script (.sql), an instance folder, a folder with tables of routes, databases and services, or a file of routes.",
    ),
]


def instance_paths(paths: list[Path], *, is_fleet: bool) -> dict[str, Path]:
    """Returns the file or folder of each instance by its name; with `is_fleet`, each path is a folder of instances."""
    from ssbroker.diagnose import Fleet  # noqa: PLC0415 - keeps --help fast

    found: dict[str, Path] = {}
    for path in paths:
        for name, instance_path in (Fleet.paths(path) if is_fleet else {instance_name(path): path}).items():
            check_not_loaded(name, found, path)
            found[name] = instance_path
    return found


def load_fleet(
    paths: list[Path],
    *,
    is_fleet: bool,
    now: datetime,
    options: ScriptOptions,
    addresses: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Fleet:
    """Loads the instances of `instance_paths`, with additional addresses by instance name; a LIFETIME in a script counts from `now`."""
    from ssbroker.diagnose import Fleet  # noqa: PLC0415 - keeps --help fast

    found: dict[str, Catalog] = {}
    for name, path in instance_paths(paths, is_fleet=is_fleet).items():
        with suggesting_lenient(lenient=options.lenient):
            loaded = load_instances(path, name=name, now=now, options=options)
        for instance, catalog in loaded.items():
            check_not_loaded(instance, found, path)
            found[instance] = catalog
            warn_about(catalog.notes, about="routing", verbose=False)
    return Fleet(with_addresses(found, addresses))


def parse_instance_addresses(texts: Sequence[str] | None) -> dict[str, list[str]]:
    """Parses the values of `--address`.

    Examples:
        >>> parse_instance_addresses(["NORTH=TCP://north", "NORTH=TCP://10.0.0.1:4022"])
        {'NORTH': ['TCP://north', 'TCP://10.0.0.1:4022']}
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for text in texts or ():
        name, separator, address = text.rpartition("=")
        if not separator or not name:
            raise OptionError(
                f"--address: {text!r:.80} is not valid; expected NAME=ADDRESS, such as stock=TCP://stock:4022"
            )
        try:
            Catalog(schemas.ROUTES.empty_table(), addresses=[address])
        except InvalidAddressError:
            raise OptionError(
                f"--address: {address!r:.80} is not a valid address; expected TCP://host[:port]"
            ) from None
        found[name].append(address)
    return dict(found)


def check_instances(addresses: Mapping[str, Sequence[str]], *fleets: Mapping[str, Catalog]) -> None:
    """Raises OptionError if `--address` names an instance that is not in any of the fleets."""
    known = list(dict.fromkeys(name for fleet in fleets for name in fleet))
    for name in addresses:
        if find_name(name, known) is None:
            expected = ", ".join(shortened_list(known, SHOWN_NAMES_MAX))
            raise OptionError(f"--address: there is no instance {name!r:.80}; expected one of {expected}")


def with_addresses(instances: Mapping[str, Catalog], addresses: Mapping[str, Sequence[str]]) -> dict[str, Catalog]:
    """Returns the instances with additional addresses, which are given by instance name."""
    found = dict(instances)
    for given, more in addresses.items():
        name = find_name(given, found)
        if name is not None:
            found[name] = found[name].with_addresses(more)
    return found


def write_text(path: Path, text: str) -> None:
    """Writes a report; an existing file is replaced only when the new one is complete."""
    with replacing_files([path]) as (part,), writing(path):
        part.write_text(text, encoding="utf-8")


def instance_name(path: Path) -> str:
    """Returns the name of the instance that a file or folder describes.

    Examples:
        >>> instance_name(Path("net/NORTH.sql"))
        'NORTH'
    """
    resolved = path.resolve()
    with os_errors_as_input_errors(path):
        return resolved.name if resolved.is_dir() else resolved.stem


REPLY_WITHOUT_ID: Final = "Every reply names the broker id of the initiator's database: specify it with --broker-instance, because the decision may depend on it."
"""A note for `--from-target` without a broker id."""


def require_start(
    instance: str | None, database: str | None, fleet: Fleet, *, subject: str = "where the conversation starts"
) -> None:
    """Raises InputError with a list of databases if `--from` may mean several; `subject` says what to specify, for the message."""
    starts = [
        f"{name}/{each}"
        for name, catalog in fleet.items()
        if instance in (None, name)
        for each in map(str, catalog.databases["name"].to_pylist())
        if database in (None, each) and each not in SYSTEM_DATABASES
    ]
    if len(starts) > 1:
        expected = ", ".join(shortened_list(starts, SHOWN_NAMES_MAX))
        raise InputError(f"--from: specify {subject}: expected one of {expected}")


SHOWN_NAMES_MAX: Final = 10
"""The maximum number of names that an error lists."""


def parse_start(text: str | None, fleet: Fleet) -> tuple[str | None, str | None]:
    """Parses `INSTANCE/DATABASE` to both names, either of which may be omitted.

    A single name is an instance if the fleet has several instances and one with this name; otherwise, it is a database,
    of the only instance that has it, or of none if several have it. The case of both names is ignored.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> from ssbroker.diagnose import Fleet
        >>> empty = Catalog(schemas.ROUTES.empty_table())
        >>> one, two = Fleet({"NORTH": empty}), Fleet({"NORTH": empty, "SOUTH": empty})
        >>> parse_start("north/Sales", one), parse_start("Sales", one), parse_start("NORTH", two)
        (('NORTH', 'Sales'), (None, 'Sales'), ('NORTH', None))
    """
    if text is None:
        return None, None
    instance, slash, database = text.partition("/")
    if not slash:
        known = find_name(text, fleet)
        if len(fleet) > 1 and known is not None:
            return known, None
        database = find_name(text, database_names(fleet)) or text
        owners = [name for name, catalog in fleet.items() if database in catalog.databases["name"].to_pylist()]
        if len(fleet) > 1 and not owners:
            expected = ", ".join(shortened_list(fleet, SHOWN_NAMES_MAX))
            raise InputError(
                f"--from: {text!r:.80} is not an instance or a database; expected INSTANCE/DATABASE, with one of the instances {expected}",
                value=text,
            )
        return owners[0] if len(owners) == 1 else None, database
    if not instance or not database:
        raise InputError(
            f"--from: {text!r:.80} is not valid; expected INSTANCE/DATABASE, or one of the two names without the slash",
            value=text,
        )
    known = find_name(instance, fleet)
    if known is None:
        return instance, database
    return known, find_name(database, map(str, fleet[known].databases["name"].to_pylist())) or database


def database_names(*fleets: Mapping[str, Catalog]) -> list[str]:
    """Returns the distinct names of the databases in fleets."""
    names = (str(name) for fleet in fleets for each in fleet.values() for name in each.databases["name"].to_pylist())
    return list(dict.fromkeys(names))
