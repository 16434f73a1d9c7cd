"""`ssbroker sql`: runs T-SQL scripts and queries on an instance."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import typer
from rich.console import Console
from rich.text import Text

from ssbroker._arrow import guid_text
from ssbroker._text import one_line, quantity
from ssbroker.cli.options import FolderArgument
from ssbroker.cli.script_options import (
    EncodingOption,
    LenientOption,
    VariableOption,
    VerboseOption,
    parse_options,
    warn_about,
)
from ssbroker.cli.text import RowsView, cell
from ssbroker.ddl.parser_base import most_similar
from ssbroker.exceptions import BrokerError, InputError, MissingDependencyError, OptionError

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


Rows = list[dict[str, Any]]
_TWO_PART_NAME: Final = re.compile(r"""(?:(\w+)|"([^"]+)"|\[([^\]]+)\])\.(?:(\w+)|"([^"]+)"|\[([^\]]+)\])""")

_ONE_PART_NAME: Final = re.compile(r"\b(?:from|join)\s+(\w+)\b(?!\s*[.(])", re.IGNORECASE)


def run_query(instance: Instance, text: str) -> tuple[list[str], Rows]:
    """Runs a query in DuckDB's SQL on the views (`sys.databases`) and queues (`dbo.Orders`) that it names; returns column names and rows.

    Names may be in any case, and without the schema after FROM and JOIN.
    """
    try:
        import duckdb  # noqa: PLC0415 - DuckDB is optional
    except ImportError:
        raise MissingDependencyError("--query requires DuckDB: pip install duckdb") from None
    objects = _objects(instance)
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        try:
            for number, (place, (schema, name)) in enumerate(_referenced_objects(objects, text)):
                connection.register(f"view_{number}", _with_uuids(_read_view(instance, schema, name)))
                connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{place}"')
                connection.execute(f'CREATE VIEW "{place}"."{name}" AS FROM view_{number}')
            connection.execute(text)
            names = _unique_names([str(column[0]) for column in connection.description or ()])
            rows = connection.fetchall()
        except duckdb.Error as error:
            raise InputError(f"--query: {one_line(str(error))}{_similar_object(objects, text)}") from None
    return names, [dict(zip(names, row, strict=True)) for row in rows]


def json_value(value: Any) -> Any:
    """Converts a value for JSON."""
    if isinstance(value, bytes | bytearray):
        return f"0x{value.hex()}"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _unique_names(names: list[str]) -> list[str]:
    """Appends numbers to duplicate names."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1) if f"{name}_{number}" not in names)
        found[next(one for one in chain([name], numbered) if one not in found)] = None
    return list(found)


def _objects(instance: Instance) -> list[tuple[str, str]]:
    """Returns the schema and name of the views and queues that a query can read."""
    from ssbroker.broker.views import DATABASE_VIEWS, INSTANCE_VIEWS  # noqa: PLC0415 - keeps --help fast

    views = [("sys", name.removeprefix("sys.")) for name in (*INSTANCE_VIEWS, *DATABASE_VIEWS)]
    queues = [(row["schema_name"], row["name"]) for row in instance.view("sys.service_queues").to_pylist()]
    return [*dict.fromkeys(queues), *views]


def _referenced_objects(objects: list[tuple[str, str]], text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields the views and queues that a query names, in any case, each with the schema in which the query looks for it."""
    by_name = {f"{schema}.{name}".casefold(): (schema, name) for schema, name in reversed(objects)}
    by_name |= {f"{schema}.{name}": (schema, name) for schema, name in objects}
    by_last_part = {name.casefold(): (schema, name) for schema, name in reversed(objects)}
    found: dict[tuple[str, tuple[str, str]], None] = {}
    for parts in _TWO_PART_NAME.findall(text):
        one, two, three, four, five, six = parts
        name = f"{one or two or three}.{four or five or six}"
        key = by_name.get(name) or by_name.get(name.casefold())
        if key is not None:
            found[key[0], key] = None
    for name in _ONE_PART_NAME.findall(text):
        if name.casefold() in by_last_part:
            found["main", by_last_part[name.casefold()]] = None
    yield from found


def _similar_object(objects: list[tuple[str, str]], text: str) -> str:
    """Returns a question about the first name in the query that is similar to a view or queue, if there is none of that name."""
    known = {name.casefold(): f"{schema}.{name}" for schema, name in reversed(objects)}
    for name in re.findall(r"\b(?:from|join)\s+(?:\w+\.)?(\w+)", text, re.IGNORECASE):
        similar = None if name.casefold() in known else most_similar(name.casefold(), known)
        if similar is not None:
            return f"; did you mean {known[similar]}?"
    return ""


def _read_view(instance: Instance, schema: str, name: str) -> pa.Table:
    return instance.view(f"sys.{name}" if schema == "sys" else f"[{schema}].[{name}]")


def _uuid_column(ids: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    if not hasattr(pa, "uuid"):  # pyarrow 17 and older; text compares with text too
        return pa.chunked_array(map(guid_text, ids.chunks), pa.large_string())
    uuid_type: Any = pa.uuid()  # the stubs do not know arrays of extension types
    return pa.chunked_array([pa.ExtensionArray.from_storage(uuid_type, chunk) for chunk in ids.chunks], uuid_type)


def _with_uuids(table: pa.Table) -> pa.Table:
    """Converts ids to UUIDs, which a query can compare with text."""
    for number, field in enumerate(table.schema):
        if field.type == pa.binary(16):
            table = table.set_column(number, field.name, _uuid_column(table.column(number)))
    return table


EXAMPLES = """Examples:

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
    """Run T-SQL scripts or a query on an instance.

    Scripts define databases, queues, services, contracts and routes. Each batch of a script, up to GO, is applied completely or not at all. A query reads the views and queues.

    Exit status: 1 if a statement that may concern Service Broker was not carried out, because the script does not decide its condition or text; 0 otherwise.
    """
    from ssbroker.broker.instance import Instance, context_of  # noqa: PLC0415 - keeps --help fast
    from ssbroker.broker.scripts import execute_file  # noqa: PLC0415 - the same

    if not files and select is None:
        raise OptionError("nothing to run: give scripts or --query")
    options = parse_options(variable, encoding, lenient=lenient)
    is_incomplete = False
    if create:
        with suppress(BrokerError):  # it exists, or another process is creating it
            Instance.create(folder, name=folder.resolve().name, background=False).close()
    with Instance.open(folder, background=False) as instance:
        for file in files or ():
            notes = execute_file(context_of(instance), file, options=options)
            warn_about(notes, about="Service Broker", verbose=verbose)
            left_out = sum(note.kind == "not_carried_out" for note in notes)
            is_incomplete |= left_out > 0 and not lenient
            if not quiet:
                outcome = f"{quantity(left_out, 'statement')} not carried out" if left_out else "done"
                typer.echo(f"{file}: {outcome}")
        if select is not None:
            _print_rows(*run_query(instance, select), as_json=as_json)
    if is_incomplete:
        raise typer.Exit(1)


def _print_rows(names: list[str], rows: Rows, *, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps([{name: json_value(row[name]) for name in names} for row in rows], indent=2, ensure_ascii=False)
        )
        return
    Console().print(RowsView(names, [[_cell(row[name]) for name in names] for row in rows]), crop=False)


def _cell(value: Any) -> Text:
    """Returns a table cell with the lines of a value."""
    return Text("\n").join(map(cell, "" if value is None else str(json_value(value)).split("\n")))
