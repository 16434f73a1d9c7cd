"""`ssbroker sql`: runs scripts of DDL on an instance."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ssbroker.cli.instances import FolderArgument
from ssbroker.cli.query import Rows, plain, query
from ssbroker.cli.shown import cell
from ssbroker.exceptions import BrokerError, OptionError

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
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - the help comes quicker without the broker
    from ssbroker.broker.scripts.execution import execute_file  # noqa: PLC0415 - the same

    if not files and select is None:
        raise OptionError("there is nothing to run: give scripts, or --query")
    if create:
        with suppress(BrokerError):  # it is there, or another process is just making it
            Instance.create(folder, name=folder.resolve().name, background=False).close()
    with Instance.open(folder, background=False) as instance:
        for file in files or ():
            execute_file(instance, file)
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
