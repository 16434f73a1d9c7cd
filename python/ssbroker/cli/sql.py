"""`ssbroker sql`: runs scripts and queries on an instance."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ssbroker.cli.errors import one_line
from ssbroker.cli.options import FolderArgument
from ssbroker.cli.text import cell
from ssbroker.exceptions import BrokerError, InputError, MissingDependencyError, OptionError

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


Rows = list[dict[str, Any]]
_NAMES: Final = re.compile(r"""(?:(\w+)|"([^"]+)"|\[([^\]]+)\])\.(?:(\w+)|"([^"]+)"|\[([^\]]+)\])""")


def query(instance: Instance, text: str) -> tuple[list[str], Rows]:
    """Runs a query on the views and queues that it names, as they are now.

    Args:
        instance: The instance.
        text: A query in DuckDB's SQL; views are `sys.databases` and so on, queues `dbo.Orders`.

    Returns:
        The names of the columns, each of them once, and the rows.

    Raises:
        MissingDependencyError: DuckDB is not installed.
        InputError: The query is wrong, or names what is not there.
    """
    try:
        import duckdb  # noqa: PLC0415 - only a query needs it
    except ImportError:
        raise MissingDependencyError("a query needs DuckDB: pip install duckdb") from None
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        try:
            for number, (schema, name) in enumerate(_named(instance, text)):
                connection.register(f"view_{number}", _readable(_view(instance, schema, name)))
                connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
                connection.execute(f'CREATE VIEW "{schema}"."{name}" AS FROM view_{number}')
            connection.execute(text)
            names = _distinct([str(column[0]) for column in connection.description or ()])
            rows = connection.fetchall()
        except duckdb.Error as error:
            raise InputError(f"the query: {one_line(str(error))}") from None
    return names, [dict(zip(names, row, strict=True)) for row in rows]


def plain(value: Any) -> Any:
    r"""A value as JSON has it.

    Examples:
        >>> plain(b"\x01\xff"), plain(datetime(2026, 11, 21)), plain(float("inf"))
        ('0x01ff', '2026-11-21T00:00:00', 'inf')
    """
    if isinstance(value, bytes | bytearray):
        return f"0x{value.hex()}"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _distinct(names: list[str]) -> list[str]:
    """The names; one that is there already has a number behind it."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1) if f"{name}_{number}" not in names)
        found[next(one for one in chain([name], numbered) if one not in found)] = None
    return list(found)


def _named(instance: Instance, text: str) -> list[tuple[str, str]]:
    """The views and queues among the names of two parts in a query; the others are columns of something."""
    queues = {(row["schema_name"], row["name"]) for row in instance.view("sys.service_queues").to_pylist()}
    found = [(one or two or three, four or five or six) for one, two, three, four, five, six in _NAMES.findall(text)]
    return [key for key in dict.fromkeys(found) if key[0] == "sys" or key in queues]


def _view(instance: Instance, schema: str, name: str) -> pa.Table:
    return instance.view(f"sys.{name}" if schema == "sys" else f"[{schema}].[{name}]")


def _readable(table: pa.Table) -> pa.Table:
    """The table with ids as UUIDs, so that a query compares them with their text."""
    for number, field in enumerate(table.schema):
        if field.type == pa.binary(16):
            column = table.column(number)
            ids: list[Any] = [pa.ExtensionArray.from_storage(pa.uuid(), chunk) for chunk in column.chunks]
            kind: Any = pa.uuid()  # the stubs know no arrays of extension types
            table = table.set_column(number, field.name, pa.chunked_array(ids, kind))
    return table


EXAMPLES = """[bold]Examples[/bold]

  ssbroker sql shop/ databases.sql queues.sql services.sql

A new instance, defined by what an old server had:

  ssbroker sql shop/ --create net.sql

What waits, and why:

  ssbroker sql shop/ --query "SELECT to_service_name, transmission_status FROM sys.transmission_queue"
"""


def sql(
    *,
    folder: FolderArgument,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Scripts of T-SQL, run in this order.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "--query", metavar="SELECT", help="Then ask the views and queues, in DuckDB's SQL (needs DuckDB)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows of the query as JSON.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Make the instance where there is none.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not name the scripts that are done.")] = False,
) -> None:
    """Run scripts that define databases, queues, services, contracts, routes; or query an instance's views and queues.

    A batch of a script, up to GO, is done whole or not at all.
    """
    from ssbroker.broker.instance import Instance, context_of  # noqa: PLC0415 - the help comes quicker without the broker
    from ssbroker.broker.scripts import execute_file  # noqa: PLC0415 - the same

    if not files and select is None:
        raise OptionError("there is nothing to run: give scripts, or --query")
    if create:
        with suppress(BrokerError):  # it is there, or another process is just making it
            Instance.create(folder, name=folder.resolve().name, background=False).close()
    with Instance.open(folder, background=False) as instance:
        for file in files or ():
            execute_file(context_of(instance), file)
            if not quiet:
                typer.echo(f"{file}: done")
        if select is not None:
            _print(*query(instance, select), as_json=as_json)


def _print(names: list[str], rows: Rows, *, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps([{name: plain(row[name]) for name in names} for row in rows], indent=2, ensure_ascii=False)
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(cell(name), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    Console().print(table)


def _cell(value: Any) -> Text:
    """A value in its lines."""
    return Text("\n").join(map(cell, "" if value is None else str(plain(value)).split("\n")))
