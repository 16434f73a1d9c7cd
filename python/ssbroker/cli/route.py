"""`ssbroker route`: a catalog and files of conversations in, a file of decisions out."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ssbroker.cli.options import (
    CatalogOption,
    FormatOption,
    NowOption,
    PendingRequestOption,
    ProgressOption,
    QuietOption,
    SummaryAsJsonOption,
    ThreadsOption,
    TieBreakOption,
    parse_now,
)
from ssbroker.cli.route_summary import TOP, Summary

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
    catalog: CatalogOption,
    conversations: Annotated[
        list[str],
        typer.Option(
            metavar="FILE...",
            help="What to route: files, folders and patterns. Parquet, CSV, JSON lines, Arrow IPC; all with the same columns.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write; its suffix tells the format.")],
    format: FormatOption = None,  # noqa: A002
    now: NowOption = None,
    tie_break: TieBreakOption = "hash",
    pending_request: PendingRequestOption = "continue",
    threads: ThreadsOption = None,
    spark: Annotated[bool, typer.Option("--spark", help="Route on Spark; the output is a folder of Parquet.")] = False,
    as_json: SummaryAsJsonOption = False,
    quiet: QuietOption = False,
    progress: ProgressOption = None,
) -> None:
    """Route conversations: write each with the decision where it goes, and sum up what went where.

    The output has the columns of the input, then outcome, match_step, route_id, next_hop_address, mirror_address, target_database,
    broker_instance and reason. It appears whole or not at all.
    """
    from ssbroker.cli.route_files import Job, route_files  # noqa: PLC0415 - the help comes quicker without what reads files

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
        from ssbroker.cli.route_on_spark import route_on_spark  # noqa: PLC0415 - Spark is an extra

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
