"""`ssbroker route`: routes files of conversations and prints a summary."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ssbroker.cli.diagnose_options import HtmlOption, database_names, instance_name, write_text
from ssbroker.cli.invalid_rows import InvalidRows
from ssbroker.cli.options import (
    AtOption,
    CatalogArgument,
    EncodingOption,
    FormatOption,
    FromTargetsOption,
    LenientCatalogOption,
    PendingRequestOption,
    ProgressOption,
    QuietOption,
    SummaryAsJsonOption,
    ThreadsOption,
    TieBreakOption,
    VariableOption,
    parse_time,
    parse_variables,
)
from ssbroker.cli.output_paths import check_writable
from ssbroker.cli.route_files import RouteJob, route_files
from ssbroker.cli.route_summary import TOP_ROWS, RouteCounts, RouteSummary

EXAMPLES = """Examples:

Route conversations with the routing tables of a folder:

  ssbroker route world/ --conversations in.parquet -o out.parquet

Route several files and folders with a T-SQL script, into CSV:

  ssbroker route net.sql --conversations day/*.csv more/ -o out.csv

Show the traffic as a Sankey diagram, next to the routes and their findings:

  ssbroker route net.sql --conversations in.csv -o out.csv --html report.html

Print the summary as JSON:

  ssbroker route net.sql --conversations in.csv -o out.jsonl --json

Write invalid rows to another file instead of stopping at the first one:

  ssbroker route net.sql --conversations day/*.csv -o out.csv --rejected bad.csv

Route on Spark, into a folder of Parquet files:

  ssbroker route world/ --spark --conversations in/ -o out
"""


def route(
    *,
    catalog: CatalogArgument,
    conversations: Annotated[
        list[str],
        typer.Option(
            metavar="FILE...",
            help="Conversations to route: files, folders or patterns, in Parquet, CSV, JSON Lines or Arrow IPC, all with the same columns.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Output file. Its suffix determines the format, unless --format is specified.",
        ),
    ],
    rejected: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write invalid rows to this file (with --spark, a folder), with column, value and reason, and route the other rows. Default: stop at the first invalid row.",
        ),
    ] = None,
    from_target: FromTargetsOption = False,
    format: FormatOption = None,  # noqa: A002
    at: AtOption = None,
    tie_break: TieBreakOption = "hash",
    pending_request: PendingRequestOption = "continue",
    threads: ThreadsOption = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Route on Spark. The output is a folder of Parquet files.")
    ] = False,
    html: HtmlOption = None,
    as_json: SummaryAsJsonOption = False,
    quiet: QuietOption = False,
    progress: ProgressOption = None,
    variable: VariableOption = None,
    encoding: EncodingOption = None,
    lenient: LenientCatalogOption = False,
) -> None:
    """Route conversations: write each one with its routing decision, and print a summary.

    The output has the columns of the input, followed by outcome, match_step, route_id, next_hop_address, mirror_address, target_database, broker_instance and reason. An existing output is replaced only when the new one is complete.
    """
    job = RouteJob(
        catalog=catalog,
        conversations=conversations,
        output=output,
        rejected=rejected,
        format=format,
        now=parse_time(at, option="--at", default=datetime.now(UTC)),
        tie_break=tie_break,
        pending_request=pending_request,
        threads=threads,
        from_target=from_target,
        html=html,
        variables=parse_variables(variable),
        encoding=encoding,
        lenient=lenient,
    )
    check_writable([] if html is None else [html])
    started_at = time.perf_counter()
    if spark:
        from ssbroker.cli.on_spark import route_on_spark  # noqa: PLC0415 - needed only here

        counts, files = route_on_spark(job)
    else:
        counts, files = route_files(job, progress=False if quiet and progress is None else progress)
    summary = RouteSummary(
        catalog=str(catalog),
        conversations=[str(file) for file in files],
        output=str(output),
        now=job.now,
        tie_break=tie_break,
        rows=counts.rows,
        rejected=None
        if rejected is None
        else InvalidRows(
            causes=counts.rejected.all(),
            output=str(rejected),
            verb="rejected",
            databases=database_names({"": job.loaded_catalog}),
        ),
        seconds=time.perf_counter() - started_at,
        outcomes=counts.of_column("outcome"),
        reasons=counts.of_column("reason"),
        match_steps=counts.of_column("match_step"),
        next_hops=counts.of_column("next_hop_address", top=TOP_ROWS),
        target_databases=counts.of_column("target_database", top=TOP_ROWS),
    )
    if html is not None:
        _write_report(job, counts, html)
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), indent=2, ensure_ascii=False))
    elif not quiet:
        summary.print(Console())


def _write_report(job: RouteJob, counts: RouteCounts, html: Path) -> None:
    from ssbroker.diagnose import Fleet, html_report  # noqa: PLC0415 - keeps --help fast

    fleet = Fleet({instance_name(job.catalog): job.loaded_catalog})
    write_text(html, html_report(fleet, traffic=counts.all_traffic(), at=job.now))
