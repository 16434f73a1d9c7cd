"""`ssbroker sql`: runs T-SQL scripts and queries on an instance."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ssbroker._text import quantity
from ssbroker.cli.options import (
    EncodingOption,
    FolderArgument,
    LenientOption,
    VariableOption,
    VerboseOption,
    parse_script_options,
    warn_about,
)
from ssbroker.cli.sql_query import result_table, rows_as_json, run_queries
from ssbroker.exceptions import BrokerError, InputError, OptionError

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance
    from ssbroker.ddl import ScriptOptions

EXAMPLES = """Examples:

Type statements and queries, with completion and history:

  ssbroker sql shop/

Run scripts:

  ssbroker sql shop/ databases.sql queues.sql services.sql

Create an instance from the script of a SQL Server:

  ssbroker sql shop/ --create net.sql

Run a script of sqlcmd with its variables:

  ssbroker sql shop/ publish.sql -v DatabaseName=Sales

List the routes of all databases:

  ssbroker sql shop/ --query "SELECT database, name, address FROM sys.routes"
"""


def sql(
    *,
    folder: FolderArgument,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="T-SQL scripts to run, in this order.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "--query",
            metavar="SELECT",
            help="Query over the views and queues, in DuckDB's SQL, to run after the scripts. Requires DuckDB.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows of the query as JSON.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the instance if it does not exist.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the completed scripts.")] = False,
    variable: VariableOption = None,
    encoding: EncodingOption = None,
    lenient: LenientOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run T-SQL scripts, a query or an interactive shell on an instance.

    Scripts define databases, queues, services, contracts and routes. Each batch of a script, up to GO, is applied completely or not at all. A query reads the views and queues. Without scripts or --query, the command opens an interactive shell for statements and queries on a terminal.

    Exit status: 0 if everything was executed, 1 if a statement that may concern Service Broker was not executed (its condition or text cannot be determined from the script, or an instance does not support it), 2 after an error.
    """
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - keeps --help fast
    from ssbroker.broker.scripts import read_script  # noqa: PLC0415 - the same

    is_shell = not files and select is None
    if is_shell and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise OptionError(
            "nothing to run: pass scripts or --query, or start the shell by running the command in a terminal"
        )
    options = parse_script_options(variable, encoding, lenient=lenient)
    scripts = [(file, read_script(file, options)) for file in files or ()]  # before the instance is created
    if create:
        with suppress(BrokerError):  # the instance exists, or another process is creating it
            Instance.create(folder, name=folder.resolve().name, background=False).close()
    with Instance.open(folder, background=False) as instance:
        if is_shell:
            from ssbroker.cli.sql_shell import Shell  # noqa: PLC0415 - prompt_toolkit takes long to import

            Shell(instance, options, as_json=as_json).run()
            return
        is_complete = _run_scripts(instance, scripts, options, quiet=quiet, verbose=verbose)
        if select is not None:
            _print_results(instance, select, as_json=as_json)
    if not is_complete:
        raise typer.Exit(1)


def _run_scripts(
    instance: Instance, scripts: Iterable[tuple[Path, str]], options: ScriptOptions, *, quiet: bool, verbose: bool
) -> bool:
    """Runs scripts; returns whether all statements that may concern Service Broker were executed or need not be executed."""
    from ssbroker.broker.instance import instance_context  # noqa: PLC0415 - keeps --help fast
    from ssbroker.broker.scripts import execute  # noqa: PLC0415 - the same

    is_complete = True
    for file, text in scripts:
        notes = execute(instance_context(instance), text, file=str(file), options=options)
        warn_about(notes, about="Service Broker", verbose=verbose)
        left_out = sum(note.kind == "not_executed" for note in notes)
        is_complete &= left_out == 0 or options.lenient
        if not quiet:
            outcome = f"{quantity(left_out, 'statement')} not executed" if left_out else "done"
            typer.echo(f"{file}: {outcome}")
    return is_complete


def _print_results(instance: Instance, select: str, *, as_json: bool) -> None:
    try:
        results = run_queries(instance, select)
    except InputError as error:
        raise InputError(f"--query: {error}") from None
    if as_json and len(results) > 1:
        raise OptionError(
            f"--query: --json prints the rows of one query, got {len(results)} queries; run each query separately"
        )
    if as_json:
        typer.echo(rows_as_json(*results[0]))
        return
    for number, (names, rows) in enumerate(results):
        if number:
            typer.echo()
        Console().print(result_table(names, rows), crop=False)
