"""`ssbroker route`: a catalog and files of conversations in, a file of decisions out."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ssbroker import moment
from ssbroker.cli.formats import Format
from ssbroker.cli.summary import TOP, Summary
from ssbroker.exceptions import OptionError
from ssbroker.routing import PendingRequest, TieBreak

EXAMPLES = """[bold]Examples[/bold]

Route what SQL Server exported, by its tables:

  ssbroker route --catalog world/ --conversations in.parquet -o out.parquet

Many files, by a script of DDL, to CSV:

  ssbroker route --catalog net.sql --conversations day/*.csv more/ -o out.csv

A summary for programs:

  ssbroker route --catalog net.sql --conversations in.csv -o out.jsonl --json

The same on Spark, into a folder of Parquet:

  ssbroker route --spark --catalog world/ --conversations in/ -o out
"""


def route(
    *,
    catalog: Annotated[
        Path,
        typer.Option(
            help="A script of DDL (.sql), a folder of routes, databases and services, or a file with the routes alone."
        ),
    ],
    conversations: Annotated[
        list[str],
        typer.Option(
            metavar="FILE...",
            help="What to route: files, folders and patterns. Parquet, CSV, JSON lines, Arrow IPC; all with the same columns.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write; its suffix tells the format.")],
    format: Annotated[Format | None, typer.Option(help="The format to write, whatever the suffix.")] = None,  # noqa: A002
    now: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The moment at which routes expire, in UTC if without a zone. Now if left out."
        ),
    ] = None,
    tie_break: Annotated[TieBreak, typer.Option(help="How one of several equal routes is picked.")] = "hash",
    pending_request: Annotated[
        PendingRequest, typer.Option(help="What step 4 does while routing information is requested.")
    ] = "continue",
    threads: Annotated[int | None, typer.Option(min=1, help="How many threads. One for each core if left out.")] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Route on Spark; the output is a folder of Parquet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but errors (and what --json asks for).")
    ] = False,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar; on a terminal if left out.")
    ] = None,
) -> None:
    """Route conversations: write each with the decision where it goes, and sum up what went where.

    The output has the columns of the input, then outcome, match_step, route_id, next_hop_address, mirror_address, target_database,
    broker_instance and reason. It appears whole or not at all.
    """
    from ssbroker.cli.local import Job, route_files  # noqa: PLC0415 - the help comes quicker without what reads files

    job = Job(
        catalog=catalog,
        conversations=conversations,
        output=output,
        format=format,
        now=parse_now(now),
        tie_break=tie_break,
        pending_request=pending_request,
        threads=threads,
    )
    begun = time.perf_counter()
    if spark:
        from ssbroker.cli.on_spark import route_on_spark  # noqa: PLC0415 - Spark is an extra

        tally, files = route_on_spark(job)
    else:
        tally, files = route_files(job, progress=False if quiet and progress is None else progress)
    summary = Summary(
        catalog=str(catalog),
        conversations=[str(file) for file in files],
        output=str(output),
        now=job.now,
        tie_break=tie_break,
        rows=tally.rows,
        seconds=time.perf_counter() - begun,
        outcomes=tally.counts("outcome"),
        reasons=tally.counts("reason"),
        match_steps=tally.counts("match_step"),
        next_hops=tally.counts("next_hop_address", top=TOP),
        target_databases=tally.counts("target_database", top=TOP),
    )
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), indent=2, ensure_ascii=False))
    elif not quiet:
        summary.print(Console())


def parse_now(text: str | None) -> datetime:
    """Reads the option `--now`; the current time where it is left out.

    Raises:
        OptionError: It is no moment.

    Examples:
        >>> parse_now("2026-11-20 21:00").isoformat()
        '2026-11-20T21:00:00+00:00'
    """
    try:
        return datetime.now(UTC) if text is None else moment.parse(text)
    except ValueError as error:
        raise OptionError(f"--now: {text!r} is no moment; expected one such as 2026-11-20T21:00:00Z") from error
