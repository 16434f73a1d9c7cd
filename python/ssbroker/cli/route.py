"""`ssbroker route`: routes files of conversations into a file of decisions."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ssbroker import schemas
from ssbroker.catalog.catalog import Catalog
from ssbroker.cli import formats
from ssbroker.cli.chunks import CONVERSATIONS, Chunk, InputFile, all_pieces
from ssbroker.cli.errors import located, reading
from ssbroker.cli.formats import Format, of_output
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
from ssbroker.cli.pipeline import UNDER_WAY_BYTES, in_order, use_threads
from ssbroker.cli.progress import ProgressBar
from ssbroker.cli.readers import common_schema, conformed, expand, open_sources
from ssbroker.cli.text import cell
from ssbroker.cli.writers import Result, refuse_overwriting, replacing_files, replacing_folder, without_dictionaries
from ssbroker.exceptions import InputError, OptionError, OutputError, SchemaError
from ssbroker.router import PendingRequest, Router, TieBreak

COUNTED: Final = ("outcome", "reason", "match_step", "next_hop_address", "target_database")
_WAITING_MAX: Final = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How often each value of a column occurs, the most frequent first; null does not count except in `match_step`."""

    column: str
    """The column."""
    values: tuple[tuple[Any, int], ...]
    """Each value with how often it occurs."""


class RouteCounts:
    """Counts decisions batch by batch, in memory that grows with the different values only."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts: dict[str, list[pa.Table]] = {name: [] for name in COUNTED}

    def add(self, counted: dict[str, pa.Table], *, rows: int) -> None:
        """Adds what `count` gave for a batch."""
        self.rows += rows
        for name, table in counted.items():
            waiting = self._counts[name]
            waiting.append(table)
            if sum(part.num_rows for part in waiting[1:]) > _WAITING_MAX:
                self._counts[name] = [_summed(waiting)]

    def counts(self, column: str, *, top: int | None = None) -> Counts:
        """The counts of a column, at most `top` of them.

        Examples:
            >>> tally = RouteCounts()
            >>> batch = pa.record_batch({name: ["a", "b", "b"] for name in COUNTED})
            >>> tally.add(count(batch), rows=3)
            >>> tally.counts("outcome").values
            (('b', 2), ('a', 1))
        """
        waiting = self._counts[column]
        if not waiting:
            return Counts(column=column, values=())
        table = _summed(waiting).sort_by([("count", "descending"), ("value", "ascending")])
        first = table.slice(0, top).to_pylist()
        return Counts(column=column, values=tuple((row["value"], row["count"]) for row in first))


def count(decisions: pa.RecordBatch) -> dict[str, pa.Table]:
    """How often each value of the counted columns occurs in a batch.

    Examples:
        >>> count(pa.record_batch({name: ["a", "a"] for name in COUNTED}))["reason"].to_pylist()
        [{'value': 'a', 'count': 2}]
    """
    return {name: _counted(decisions.column(name), with_null=name == "match_step") for name in COUNTED}


def _counted(column: Any, *, with_null: bool) -> pa.Table:
    if not with_null:
        column = column.drop_null()
    pairs = pc.value_counts(column)
    values = pairs.field(0)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pa.table({"value": values, "count": pairs.field(1)})


def _summed(tables: list[pa.Table]) -> pa.Table:
    summed = pa.concat_tables(tables).group_by("value").aggregate([("count", "sum")])
    return pa.table({"value": summed["value"], "count": summed["count_sum"]})


TOP: Final = 10
_STEPS: Final = {
    0: "reply, delivered here",
    1: "service and broker id",
    2: "service, route without broker id",
    3: "service, one broker id picked",
    4: "dynamic routing",
    5: "route for any service",
    6: "service of this instance",
    7: "no route",
    None: "not looked for",
}


@dataclass(frozen=True, kw_only=True)
class RouteSummary:
    """What a run did."""

    catalog: str
    """What was routed by."""
    conversations: Sequence[str]
    """The files that were routed."""
    output: str
    """The file or folder that was written."""
    now: datetime
    """The moment that was routed for."""
    tie_break: str
    """How one of several equals was picked."""
    rows: int
    """How many conversations."""
    seconds: float
    """How long it took."""
    outcomes: Counts
    """How many conversations had each outcome."""
    reasons: Counts
    """The same by reason."""
    match_steps: Counts
    """The same by step."""
    next_hops: Counts
    """The busiest next hops."""
    target_databases: Counts
    """The busiest databases of this instance."""

    @property
    def rows_per_second(self) -> int:
        """How many conversations a second."""
        return round(self.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
        return {
            "catalog": self.catalog,
            "conversations": list(self.conversations),
            "output": self.output,
            "now": self.now.isoformat().replace("+00:00", "Z"),
            "tie_break": self.tie_break,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "outcomes": dict(self.outcomes.values),
            "reasons": dict(self.reasons.values),
            "match_steps": {"none" if step is None else str(step): rows for step, rows in self.match_steps.values},
            "next_hops": [{"address": address, "rows": rows} for address, rows in self.next_hops.values],
            "target_databases": [{"database": name, "rows": rows} for name, rows in self.target_databases.values],
        }

    def print(self, console: Console) -> None:
        """Prints it as tables."""
        for title, counts in (
            ("Outcome", self.outcomes),
            ("Reason", self.reasons),
            ("Match step", self.match_steps),
            ("Busiest next hops", self.next_hops),
            ("Target databases", self.target_databases),
        ):
            if counts.values:
                console.print(self._table(title, counts))
        rows, speed = f"{self.rows:,}", f"{self.rows_per_second:,}"
        console.print(
            f"{rows} conversations routed in {self.seconds:,.1f} s ({speed} rows/s) to {self.output}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )

    def _table(self, title: str, counts: Counts) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title_justify="left")
        table.add_column(title, min_width=36, overflow="fold")
        table.add_column("Conversations", justify="right", min_width=14)
        table.add_column("Share", justify="right", min_width=7)
        for value, rows in counts.values:
            label = (
                f"{'-' if value is None else value} {_STEPS[value]}" if counts.column == "match_step" else str(value)
            )
            table.add_row(cell(label), f"{rows:,}", f"{rows / self.rows:.1%}")
        table.add_row()
        return table


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
    job = RouteJob(
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
        tally, files = route_on_spark(job)
    else:
        tally, files = route_files(job, progress=False if quiet and progress is None else progress)
    summary = RouteSummary(
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


@dataclass(frozen=True, kw_only=True)
class RouteJob:
    """What is to be routed by what, and how."""

    catalog: Path
    """What to load the catalog from."""
    conversations: Sequence[str]
    """Files, folders and patterns."""
    output: Path
    """What to write."""
    format: Format | None
    """The format of the output, None where its suffix tells."""
    now: datetime
    """The moment to route for."""
    tie_break: TieBreak
    """How one of several equals is picked."""
    pending_request: PendingRequest
    """What a pending request for routing information does."""
    threads: int | None
    """How many threads route, None for one for each core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Routed:
    encoded: Any
    counted: dict[str, pa.Table]
    rows: int
    position: int


def route_files(job: RouteJob, *, progress: bool | None) -> tuple[RouteCounts, list[Path]]:
    """Routes files into one file, which appears whole or not at all.

    Args:
        job: What to do.
        progress: Whether to show a bar; None shows it where standard error is a terminal.

    Returns:
        The counts, and the files that were read.

    Raises:
        SsbrokerError: Something in the input is wrong, or the output cannot be written.
    """
    files = expand(job.conversations)
    kind = of_output(job.output, job.format)
    refuse_overwriting([job.output], inputs=files, catalogs=[job.catalog])
    threads = use_threads(job.threads)
    with replacing_files([job.output]) as (part,):
        router = Router(
            Catalog.load(job.catalog, now=job.now), tie_break=job.tie_break, pending_request=job.pending_request
        )
        lines = kind is Format.JSONL
        sources = open_sources(files, CONVERSATIONS, lines=lines, threads=threads, progress=progress)
        schema = common_schema(sources, CONVERSATIONS)
        written = pa.schema([*schema, *without_dictionaries(schemas.DECISIONS)])
        with Result(part, kind, written, output=job.output) as result:
            tally = _route(job, router, sources, schema, result, threads=threads, progress=progress)
    return tally, files


def _route(
    job: RouteJob,
    router: Router,
    sources: Sequence[InputFile],
    schema: pa.Schema,
    result: Result,
    *,
    threads: int,
    progress: bool | None,
) -> RouteCounts:
    def route(numbered: tuple[Chunk, int]) -> _Routed:
        piece, position = numbered
        rows = piece.load()
        try:
            decisions = router.route(rows.columns, now=job.now)
        except (InputError, SchemaError) as error:
            raise located(error, file=piece.file, row_of=piece.row_of) from error
        if rows.lines is None:
            encoded = result.encode(_side_by_side(conformed(rows.columns, schema), decisions))
        else:
            encoded = result.encode(decisions, rows.lines)
        return _Routed(encoded=encoded, counted=count(decisions), rows=decisions.num_rows, position=position)

    tally = RouteCounts()
    total = sum(source.file.stat().st_size for source in sources)
    routed = in_order(
        all_pieces(sources),
        route,
        threads=1 if job.tie_break == "round_robin" else threads,  # turns are taken in the order of the rows
        weigh=lambda numbered: numbered[0].size * result.growth,
        weight_max=UNDER_WAY_BYTES,
    )
    with ProgressBar("Routing", total_bytes=total, shown=progress) as bar, contextlib.closing(routed):
        for piece in routed:
            result.write(piece.encoded)
            tally.add(piece.counted, rows=piece.rows)
            bar.update(rows=tally.rows, position=piece.position)
        bar.update(rows=tally.rows, position=total)
    return tally


def _side_by_side(columns: pa.RecordBatch, decisions: pa.RecordBatch) -> pa.RecordBatch:
    names = [*columns.schema.names, *decisions.schema.names]
    return pa.RecordBatch.from_arrays([*columns.columns, *decisions.columns], names=names)


_READABLE: Final = (Format.PARQUET, Format.CSV, Format.JSONL)


def route_on_spark(job: RouteJob) -> tuple[RouteCounts, list[Path]]:
    """Routes files into a folder of Parquet, which appears whole or not at all.

    Args:
        job: What to do.

    Returns:
        The counts, and the files that were read.

    Raises:
        SsbrokerError: Something in the input is wrong, the output cannot be written, or PySpark is not there.
    """
    _check(job)
    files = expand(job.conversations)
    kind = _common_kind(files)
    refuse_overwriting([job.output], inputs=files, catalogs=[job.catalog])
    if kind is not Format.JSONL:  # Spark would take the columns of one file for those of all
        sources = open_sources(files, CONVERSATIONS, lines=False, threads=1, progress=False)
        common_schema(sources, CONVERSATIONS)
    from ssbroker.spark import formats as spark_formats  # noqa: PLC0415 - only where Spark is wanted
    from ssbroker.spark import route  # noqa: PLC0415

    quiet = not sys.stderr.isatty()
    tally = RouteCounts()
    with spark_formats.spark_errors_translated(), replacing_folder(job.output) as part:
        catalog = Catalog.load(job.catalog, now=job.now)
        with spark_formats.session(threads=job.threads, quiet=quiet) as session:
            conversations = spark_formats.read(session, files, kind=kind)
            decided = route(
                conversations,
                catalog,
                now=job.now,
                tie_break=job.tie_break,
                pending_request=job.pending_request,
            )
            decided.write.parquet(str(part))
            if not part.is_dir():
                raise OutputError(
                    f"{job.output}: Spark wrote on another machine; the output has to be where both reach it"
                )
            top = {"next_hop_address": TOP, "target_database": TOP}
            counted = spark_formats.count(session.read.parquet(str(part)), COUNTED, top=top)
        tally.add(counted, rows=sum(row["count"] for row in counted["outcome"].to_pylist()))
    return tally, files


def _check(job: RouteJob) -> None:
    if job.format not in (None, Format.PARQUET) or formats.by_suffix(job.output) not in (None, Format.PARQUET):
        raise OptionError(f"{job.output}: --spark writes a folder of Parquet, no other format")


def _common_kind(files: list[Path]) -> Format:
    kinds = {}
    for file in files:
        with reading(file):
            kinds[formats.of_input(file)] = file
    if len(kinds) > 1:
        raise OptionError(f"--spark reads files of one format at a time, not of {' and '.join(kinds)}")
    kind = next(iter(kinds))
    if kind not in _READABLE:
        raise OptionError(f"{kinds[kind]}: --spark reads {', '.join(_READABLE)}, not Arrow IPC")
    return kind
