"""`ssbroker status`: shows the state of an instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ssbroker.cli.options import FolderArgument
from ssbroker.cli.state_tables import (
    connection_row,
    conversation_rows,
    database_problems,
    database_rows,
    print_parts,
    queue_problems,
    queue_rows,
    serving_line,
    state_table,
    waiting_reasons,
    waiting_rows,
)
from ssbroker.cli.terminal import FittedTable, cell

EXAMPLES = """Examples:

Show the state of an instance:

  ssbroker status shop/

Show it until Ctrl-C, as it changes:

  ssbroker watch shop/

List the messages that have been undelivered for more than a minute:

  ssbroker status shop/ --json |
    jq '.transmission_queue[] | select(.oldest_seconds > 60)'
"""


def status(
    *,
    folder: FolderArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as a JSON object.")] = False,
) -> None:
    """Show the state of an instance.

    Shows databases, queues, conversations by state, undelivered messages with the reason, the process that serves the instance, and its connections.
    `ssbroker watch` shows them as they change.

    Exit status: 0 if all databases can be read and written, 1 if one cannot or if its disk is almost full, 2 after an error.
    """
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - keeps --help fast
    from ssbroker.broker.overview import overview_of  # noqa: PLC0415 - the same

    with Instance.open(folder, background=False) as instance:
        found = overview_of(instance)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print_parts(Console(), _parts(found, folder))
    if any(row["problem"] is not None for row in found["databases"]):
        raise typer.Exit(1)


def _parts(found: dict[str, Any], folder: Path) -> Iterator[Text | FittedTable]:
    """Yields the tables and lines that show a state."""
    yield cell(f"Instance {found['instance']}", "bold")
    for part in (
        database_rows(found),
        queue_rows(found),
        conversation_rows(found),
        waiting_rows(found),
    ):
        yield Text()
        yield part
    yield from database_problems(found)
    yield from queue_problems(found, folder)
    yield from waiting_reasons(found, folder)
    yield Text()
    yield from _serving(found["serving"])


def _serving(serving: dict[str, Any] | None) -> Iterator[Text | FittedTable]:
    yield serving_line(serving)
    if serving is None or serving["listens"] is None:
        return
    yield Text()
    rows = [connection_row(row) for row in serving["connections"]]
    yield state_table("Connections", rows) if rows else Text("There are no connections.")
