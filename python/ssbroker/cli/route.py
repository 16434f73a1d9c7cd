"""`ssbroker route`: routes files of conversations and prints a summary."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console

from ssbroker import _dataframes as dataframes
from ssbroker import schemas
from ssbroker._text import count_of
from ssbroker.catalog.catalog import Catalog
from ssbroker.cli.chunks import (
    IN_FLIGHT_BYTES_MAX,
    UNMERGED_ROWS_MAX,
    Chunk,
    InputFile,
    LoadedChunk,
    all_chunks,
    configure_threads,
    ordered_map,
    total_bytes,
)
from ssbroker.cli.diagnose_options import HtmlOption, instance_name, write_text
from ssbroker.cli.errors import error_in_file, reading
from ssbroker.cli.file_formats import Format, format_by_suffix, input_format, output_format
from ssbroker.cli.hive_partitions import refuse_partitions
from ssbroker.cli.input_columns import CONVERSATION_COLUMNS
from ssbroker.cli.options import (
    AtOption,
    CatalogArgument,
    FormatOption,
    PendingRequestOption,
    ProgressOption,
    QuietOption,
    SummaryAsJsonOption,
    ThreadsOption,
    TieBreakOption,
    parse_time,
)
from ssbroker.cli.readers import common_schema, conform, expand_patterns, open_inputs
from ssbroker.cli.script_options import EncodingOption, LenientOption, VariableOption, parse_variables
from ssbroker.cli.terminal import FittedTable, ProgressBar, cell, print_prose, share_table
from ssbroker.cli.writers import OutputFile, refuse_overwriting, replacing_files, replacing_folder, without_dictionaries
from ssbroker.exceptions import InputError, OptionError, OutputError, SchemaError
from ssbroker.router import PendingRequest, Router, TieBreak

COUNTED_COLUMNS: Final = ("outcome", "reason", "match_step", "next_hop_address", "target_database")


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueCounts:
    """The number of rows with each value of a column, the most frequent first; null is counted only in `match_step`."""

    column: str
    values: tuple[tuple[Any, int], ...]
    """Each value with its number of rows."""


class RouteCounts:
    """Counts decisions batch by batch; memory grows only with the number of distinct values."""

    def __init__(self) -> None:
        self.rows = 0
        self.rejected = 0
        """The number of invalid rows."""
        self._counts: dict[str, list[pa.Table]] = {name: [] for name in COUNTED_COLUMNS}
        self.traffic: list[pa.Table] = []
        """The distinct decisions with their services and numbers; empty if they are not counted."""

    def add(self, value_counts: dict[str, pa.Table], *, rows: int, traffic: pa.Table | None = None) -> None:
        """Adds the result of `count_values` for a batch, and its traffic."""
        self.rows += rows
        if traffic is not None:
            self.traffic.append(traffic)
            if sum(part.num_rows for part in self.traffic[1:]) > UNMERGED_ROWS_MAX:
                self.traffic = [self.all_traffic()]
        for name, table in value_counts.items():
            tables = self._counts[name]
            tables.append(table)
            if sum(part.num_rows for part in tables[1:]) > UNMERGED_ROWS_MAX:
                self._counts[name] = [_merge(tables)]

    def all_traffic(self) -> pa.Table:
        """Returns the traffic that was counted."""
        from ssbroker.diagnose.report_traffic import NO_TRAFFIC, count_traffic  # noqa: PLC0415 - keeps --help fast

        return count_traffic(pa.concat_tables(self.traffic or [NO_TRAFFIC]))

    def of_column(self, column: str, *, top: int | None = None) -> ValueCounts:
        """Returns the counts of a column, at most `top` of them.

        Examples:
            >>> counts = RouteCounts()
            >>> batch = pa.record_batch({name: ["a", "b", "b"] for name in COUNTED_COLUMNS})
            >>> counts.add(count_values(batch), rows=3)
            >>> counts.of_column("outcome").values
            (('b', 2), ('a', 1))
        """
        tables = self._counts[column]
        if not tables:
            return ValueCounts(column=column, values=())
        table = _merge(tables).sort_by([("count", "descending"), ("value", "ascending")])
        first = table.slice(0, top).to_pylist()
        return ValueCounts(column=column, values=tuple((row["value"], row["count"]) for row in first))


def count_values(decisions: pa.RecordBatch) -> dict[str, pa.Table]:
    """Counts the values of each counted column in a batch."""
    return {name: _count_column(decisions.column(name), includes_null=name == "match_step") for name in COUNTED_COLUMNS}


def _count_column(column: Any, *, includes_null: bool) -> pa.Table:
    if not includes_null:
        column = column.drop_null()
    pairs = pc.value_counts(column)
    values = pairs.field(0)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pa.table({"value": values, "count": pairs.field(1)})


def _merge(tables: list[pa.Table]) -> pa.Table:
    summed = pa.concat_tables(tables).group_by("value").aggregate([("count", "sum")])
    return pa.table({"value": summed["value"], "count": summed["count_sum"]})


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedRows:
    """The invalid rows of a run."""

    rows: int
    output: str

    def to_dict(self) -> dict[str, Any]:
        """Returns them as values for JSON."""
        return {"rows": self.rows, "output": self.output}


TOP_ROWS: Final = 10
_STEP_LABELS: Final = {
    0: "reply to this instance",
    1: "service and broker id",
    2: "service, route without broker id",
    3: "service, one broker id picked",
    4: "dynamic routing",
    5: "route for any service",
    6: "service of this instance",
    7: "no route",
    None: "no search",
}


@dataclass(frozen=True, kw_only=True)
class RouteSummary:
    """The summary of a run."""

    catalog: str
    conversations: Sequence[str]
    """The input files."""
    output: str
    now: datetime
    """The time at which routes were checked for expiry."""
    tie_break: str
    rows: int
    """The number of conversations routed."""
    rejected: RejectedRows | None
    """The invalid rows, if they were written to a file."""
    seconds: float
    """The duration of the run."""
    outcomes: ValueCounts
    reasons: ValueCounts
    match_steps: ValueCounts
    next_hops: ValueCounts
    """The busiest next hops."""
    target_databases: ValueCounts
    """The busiest target databases of this instance."""

    @property
    def rows_per_second(self) -> int:
        """The conversations routed per second."""
        return round(self.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as values for JSON."""
        return {
            "catalog": self.catalog,
            "conversations": list(self.conversations),
            "output": self.output,
            "now": self.now.isoformat().replace("+00:00", "Z"),
            "tie_break": self.tie_break,
            "rows": self.rows,
            "rejected": None if self.rejected is None else self.rejected.to_dict(),
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "outcomes": dict(self.outcomes.values),
            "reasons": dict(self.reasons.values),
            "match_steps": {"none" if step is None else str(step): rows for step, rows in self.match_steps.values},
            "next_hops": [{"address": address, "rows": rows} for address, rows in self.next_hops.values],
            "target_databases": [{"database": name, "rows": rows} for name, rows in self.target_databases.values],
        }

    def print(self, console: Console) -> None:
        """Prints the summary as tables."""
        for title, counts in (
            ("Outcome", self.outcomes),
            ("Reason", self.reasons),
            ("Match step", self.match_steps),
            ("Busiest next hops", self.next_hops),
            ("Target databases", self.target_databases),
        ):
            if counts.values:
                console.print(self._table(title, counts), crop=False)
                console.print()
        speed = f"{self.rows_per_second:,}"
        lines = [
            f"{count_of(self.rows, 'conversation')} routed in {self.seconds:,.1f} s ({speed} rows/s) to {self.output}"
        ]
        if self.rejected is not None:
            lines.append(f"{count_of(self.rejected.rows, 'invalid row')} rejected to {self.rejected.output}")
        print_prose(console, "\n".join(lines))

    def _table(self, title: str, counts: ValueCounts) -> FittedTable:
        table = share_table(title, "Conversations")
        for value, rows in counts.values:
            label = (
                f"{'-' if value is None else value} {_STEP_LABELS[value]}"
                if counts.column == "match_step"
                else str(value)
            )
            table.add_row(cell(label), f"{rows:,}", f"{rows / self.rows:.1%}")
        return FittedTable(table)


EXAMPLES = """Examples:

Route conversations by the routing tables of a folder:

  ssbroker route world/ --conversations in.parquet -o out.parquet

Route several files and folders by a T-SQL script, into CSV:

  ssbroker route net.sql --conversations day/*.csv more/ -o out.csv

Show the traffic as a Sankey diagram, beside the routes and their findings:

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
            help="Conversations to route: files, folders or patterns, in Parquet, CSV, JSON lines or Arrow IPC, all with the same columns.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Output file. Its suffix determines the format, unless --format is given.",
        ),
    ],
    rejected: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write invalid rows to this file, with column, value and reason, and route the others; with --spark, a folder. Default: stop at the first one.",
        ),
    ] = None,
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
    lenient: LenientOption = False,
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
        html=html,
        variables=parse_variables(variable),
        encoding=encoding,
        lenient=lenient,
    )
    started_at = time.perf_counter()
    if spark:
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
        rejected=None if rejected is None else RejectedRows(rows=counts.rejected, output=str(rejected)),
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


@dataclass(frozen=True, kw_only=True)
class RouteJob:
    """The arguments of a run."""

    catalog: Path
    conversations: Sequence[str]
    """Files, folders and patterns."""
    output: Path
    rejected: Path | None
    """The output for invalid rows; None to stop at the first one."""
    format: Format | None
    """The format of the outputs; None to choose by their suffixes."""
    now: datetime
    """The time at which routes are checked for expiry."""
    tie_break: TieBreak
    pending_request: PendingRequest
    threads: int | None
    """The number of threads; None for one per core."""
    variables: Mapping[str, str]
    """The sqlcmd variables of scripts."""
    encoding: str | None
    """The encoding of scripts; None for UTF-8."""
    lenient: bool
    """Whether scripts may have unknown statements, or none about Service Broker."""
    html: Path | None = None
    """The report to write."""

    @property
    def outputs(self) -> list[Path]:
        """The files to write."""
        return [path for path in (self.output, self.rejected, self.html) if path is not None]

    @cached_property
    def loaded_catalog(self) -> Catalog:
        """The catalog; LIFETIME in scripts counts from the time at which it is loaded, whatever `now` is."""
        return Catalog.load(self.catalog, variables=self.variables, encoding=self.encoding, lenient=self.lenient)


@dataclass(frozen=True, kw_only=True, slots=True)
class _RoutedChunk:
    encoded: Any
    value_counts: dict[str, pa.Table]
    rows: int
    position: int
    rejected: pa.RecordBatch | None
    """The invalid rows, with file and row number."""
    traffic: pa.Table | None


def route_files(job: RouteJob, *, progress: bool | None) -> tuple[RouteCounts, list[Path]]:
    """Routes files into one file; returns the counts and the input files."""
    files = expand_patterns(job.conversations)
    outputs = [job.output] if job.rejected is None else [job.output, job.rejected]
    file_format, *rejected_format = [output_format(output, job.format) for output in outputs]
    refuse_overwriting(job.outputs, inputs=files, catalogs=[job.catalog])
    threads = configure_threads(job.threads)
    with replacing_files(outputs) as (part, *rejected_part), contextlib.ExitStack() as opened:
        router = Router(job.loaded_catalog, tie_break=job.tie_break, pending_request=job.pending_request)
        keep_json_lines = file_format is Format.JSONL
        inputs = open_inputs(
            files, CONVERSATION_COLUMNS, keep_json_lines=keep_json_lines, threads=threads, progress=progress
        )
        schema = common_schema(inputs, CONVERSATION_COLUMNS)
        output_schema = pa.schema([*schema, *without_dictionaries(schemas.DECISIONS)])
        output_file = opened.enter_context(OutputFile(part, file_format, output_schema, output=job.output))
        rejected_file = None
        if job.rejected is not None:
            rejected_file = opened.enter_context(
                OutputFile(rejected_part[0], rejected_format[0], _REJECTED_SCHEMA, output=job.rejected)
            )
        chunks = _routed_chunks(job, router, inputs, schema, output_file, threads=threads)
        counts = _write(chunks, inputs, output_file, rejected_file, progress=progress)
    return counts, files


_REJECTED_SCHEMA: Final = pa.schema([pa.field("file", pa.string(), nullable=False), *schemas.REJECTED_CONVERSATIONS])


def _routed_chunks(
    job: RouteJob,
    router: Router,
    inputs: Sequence[InputFile],
    schema: pa.Schema,
    output_file: OutputFile,
    *,
    threads: int,
) -> Generator[_RoutedChunk]:
    def route_chunk(item: tuple[Chunk, int]) -> _RoutedChunk:
        chunk, position = item
        loaded = chunk.load()
        rejected: pa.RecordBatch | None = None
        try:
            if job.rejected is None:
                decisions = router.route(loaded.batch, now=job.now)
            else:
                decisions, invalid = router.route(loaded.batch, now=job.now, errors="reject")
                if invalid.num_rows:
                    loaded = _without_invalid_rows(loaded, invalid)
                    rejected = _with_row_numbers(invalid, chunk)
        except (InputError, SchemaError) as error:
            raise _with_option(error_in_file(error, file=chunk.file, row_in_file=chunk.row_in_file)) from error
        if loaded.json_lines is None:
            encoded = output_file.encode(_concat_columns(conform(loaded.batch, schema), decisions))
        else:
            encoded = output_file.encode(decisions, loaded.json_lines)
        return _RoutedChunk(
            encoded=encoded,
            value_counts=count_values(decisions),
            rows=decisions.num_rows,
            position=position,
            rejected=rejected,
            traffic=None if job.html is None else _traffic(loaded.batch, decisions),
        )

    return ordered_map(
        all_chunks(inputs),
        route_chunk,
        threads=1 if job.tie_break == "round_robin" else threads,  # turns are taken in row order
        weight_of=lambda item: item[0].memory_bytes * output_file.size_factor,
        weight_max=IN_FLIGHT_BYTES_MAX,
    )


def _write(
    routed: Generator[_RoutedChunk],
    inputs: Sequence[InputFile],
    output_file: OutputFile,
    rejected_file: OutputFile | None,
    *,
    progress: bool | None,
) -> RouteCounts:
    counts = RouteCounts()
    total = total_bytes(inputs)
    with ProgressBar("Routing", total_bytes=total, shown=progress) as bar, contextlib.closing(routed):
        for chunk in routed:
            output_file.write(chunk.encoded)
            if rejected_file is not None and chunk.rejected is not None:
                rejected_file.write(rejected_file.encode(chunk.rejected))
                counts.rejected += chunk.rejected.num_rows
            counts.add(chunk.value_counts, rows=chunk.rows, traffic=chunk.traffic)
            bar.update(rows=counts.rows, position=chunk.position)
        bar.update(rows=counts.rows, position=total)
    return counts


def _without_invalid_rows(loaded: LoadedChunk, invalid: pa.Table) -> LoadedChunk:
    kept = dataframes.kept_rows(invalid, rows=loaded.batch.num_rows)
    lines = None if loaded.json_lines is None else loaded.json_lines.filter(pa.array(kept))
    return LoadedChunk(batch=dataframes.filter_batch(loaded.batch, kept), json_lines=lines)


def _with_row_numbers(invalid: pa.Table, chunk: Chunk) -> pa.RecordBatch:
    """Adds the file to invalid rows, and counts their row numbers in it."""
    numbers: list[Any] = invalid["row"].to_pylist()
    columns: list[Any] = [
        pa.array([str(chunk.file)] * len(numbers), pa.string()),
        pa.array(map(chunk.row_in_file, numbers), pa.int64()),
        *(dataframes.single_array(column) for column in invalid.columns[1:]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_REJECTED_SCHEMA)


def _with_option(error: InputError | SchemaError) -> InputError | SchemaError:
    """Names the option instead of the argument of a router."""
    if error.column != "conversation_id" or not isinstance(error, SchemaError):
        return error
    message = str(error).replace('a router with tie_break="first"', "--tie-break first")
    return SchemaError(message, column=error.column, expected=error.expected, actual=error.actual)


def _traffic(conversations: pa.RecordBatch, decisions: pa.RecordBatch) -> pa.Table:
    from ssbroker.diagnose.report_traffic import TRAFFIC_COLUMNS, count_traffic  # noqa: PLC0415 - keeps --help fast

    service, *names = TRAFFIC_COLUMNS
    columns = {service: conversations.column(service), **{name: decisions.column(name) for name in names}}
    return count_traffic(pa.table(columns))


def _concat_columns(conversations: pa.RecordBatch, decisions: pa.RecordBatch) -> pa.RecordBatch:
    names = [*conversations.schema.names, *decisions.schema.names]
    return pa.RecordBatch.from_arrays([*conversations.columns, *decisions.columns], names=names)


_SPARK_FORMATS: Final = (Format.PARQUET, Format.CSV, Format.JSONL)


def route_on_spark(job: RouteJob) -> tuple[RouteCounts, list[Path]]:
    """Routes files on Spark into a folder of Parquet files; returns the counts and the input files."""
    for output in (job.output, *([] if job.rejected is None else [job.rejected])):
        _check_output(output, job.format)
    files = expand_patterns(job.conversations)
    refuse_partitions(files)
    file_format = _common_format(files)
    refuse_overwriting(job.outputs, inputs=files, catalogs=[job.catalog])
    if file_format is not Format.JSONL:  # Spark reads the columns of one file only
        inputs = open_inputs(files, CONVERSATION_COLUMNS, keep_json_lines=False, threads=1, progress=False)
        common_schema(inputs, CONVERSATION_COLUMNS)
    from ssbroker.diagnose.report_traffic import COUNT, TRAFFIC_COLUMNS  # noqa: PLC0415 - keeps --help fast
    from ssbroker.spark import cli, route  # noqa: PLC0415 - PySpark is optional

    quiet = not sys.stderr.isatty()
    counts = RouteCounts()
    with contextlib.ExitStack() as opened:
        opened.enter_context(cli.spark_errors_translated())
        part = opened.enter_context(replacing_folder(job.output))
        rejected_part = None if job.rejected is None else opened.enter_context(replacing_folder(job.rejected))
        catalog = job.loaded_catalog
        with cli.session(threads=job.threads, quiet=quiet) as session:
            conversations = cli.read(session, files, kind=file_format)
            routing: dict[str, Any] = {"now": job.now, "tie_break": job.tie_break}
            routing |= {"pending_request": job.pending_request, "engine": "arrow"}  # its errors name the row
            if job.rejected is None or rejected_part is None:
                _write_folder(route(conversations, catalog, **routing), part, job.output)
            else:
                decided, rejected = route(conversations, catalog, errors="reject", **routing)
                _write_folder(decided, part, job.output)
                _write_folder(rejected, rejected_part, job.rejected)
                counts.rejected = session.read.parquet(str(rejected_part)).count()
            top = {"next_hop_address": TOP_ROWS, "target_database": TOP_ROWS}
            routed = session.read.parquet(str(part))
            value_counts = cli.count(routed, COUNTED_COLUMNS, top=top)
            traffic = None if job.html is None else cli.count_rows(routed, TRAFFIC_COLUMNS, name=COUNT)
        rows = sum(row["count"] for row in value_counts["outcome"].to_pylist())
        counts.add(value_counts, rows=rows, traffic=traffic)
    return counts, files


def _check_output(output: Path, requested: Format | None) -> None:
    if requested not in (None, Format.PARQUET) or format_by_suffix(output) not in (None, Format.PARQUET):
        raise OptionError(f"{output}: --spark writes only a folder of Parquet files")


def _write_folder(frame: Any, part: Path, output: Path) -> None:
    frame.write.parquet(str(part))
    if not part.is_dir():
        raise OutputError(f"{output}: Spark wrote the output on another machine; use a path that both machines reach")


def _common_format(files: list[Path]) -> Format:
    files_by_format = {}
    for file in files:
        with reading(file):
            files_by_format[input_format(file)] = file
    if len(files_by_format) > 1:
        raise OptionError(f"--spark reads only one format at a time, got {' and '.join(files_by_format)}")
    ((file_format, file),) = files_by_format.items()
    if file_format not in _SPARK_FORMATS:
        raise OptionError(f"{file}: --spark reads {', '.join(_SPARK_FORMATS)}, but not Arrow IPC")
    return file_format
