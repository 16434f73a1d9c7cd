"""`ssbroker route` without Spark: reads files, routes their conversations and writes the decisions."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arrow_types import without_dictionaries
from ssbroker.catalog.catalog import Catalog
from ssbroker.cli.chunks import (
    IN_FLIGHT_BYTES_MAX,
    Chunk,
    InputFile,
    all_chunks,
    total_bytes,
)
from ssbroker.cli.errors import error_in_file
from ssbroker.cli.file_formats import Format, output_format
from ssbroker.cli.input_columns import CONVERSATION_COLUMNS
from ssbroker.cli.input_files import add_is_initiator, common_schema, conform, expand_patterns, open_inputs
from ssbroker.cli.invalid_rows import (
    INVALID_ROWS_SCHEMA,
    in_order,
    invalid_in_file,
    load_valid_rows,
    without_invalid_rows,
)
from ssbroker.cli.options import as_options, suggesting_lenient
from ssbroker.cli.output_paths import refuse_overwriting, replacing_files
from ssbroker.cli.parallel_map import configure_threads, ordered_map
from ssbroker.cli.route_summary import RouteCounts, count_values
from ssbroker.cli.terminal import ProgressBar
from ssbroker.cli.text_conversion import InvalidCellError
from ssbroker.cli.writers import OutputFile
from ssbroker.exceptions import InputError, InvalidGuidError, NullError, SchemaError, UnknownDatabaseError
from ssbroker.router import PendingRequest, Router, TieBreak


@dataclass(frozen=True, kw_only=True)
class RouteJob:
    """The arguments of a run."""

    catalog: Path
    conversations: Sequence[str]
    """Files, folders and patterns."""
    output: Path
    rejected: Path | None
    """The output for invalid rows; None to stop at the first invalid row."""
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
    """Whether scripts may contain statements that SQL Server would reject, or no Service Broker statements at all."""
    from_target: bool = False
    """Whether all messages come from the target; files must then lack the column `is_initiator`."""
    html: Path | None = None
    """The HTML report to write; None to write none."""

    @property
    def outputs(self) -> list[Path]:
        """The files to write."""
        return [path for path in (self.output, self.rejected, self.html) if path is not None]

    @cached_property
    def loaded_catalog(self) -> Catalog:
        """The catalog; LIFETIME in scripts counts from the time of loading, regardless of `now`."""
        with suggesting_lenient(lenient=self.lenient), as_options(encoding="--encoding"):
            return Catalog.load(self.catalog, variables=self.variables, encoding=self.encoding, lenient=self.lenient)


@dataclass(frozen=True, kw_only=True, slots=True)
class _RoutedChunk:
    encoded: Any
    value_counts: dict[str, pa.Table]
    rows: int
    position: int
    rejected: pa.Table | None
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
            files,
            CONVERSATION_COLUMNS,
            keep_json_lines=keep_json_lines,
            threads=threads,
            progress=progress,
            lists_invalid=job.rejected is not None,
        )
        schema = common_schema(inputs, CONVERSATION_COLUMNS)
        output_schema = pa.schema([*schema, *without_dictionaries(schemas.DECISIONS)])
        output_file = opened.enter_context(OutputFile(part, file_format, output_schema, output=job.output))
        rejected_file = None
        if job.rejected is not None:
            rejected_file = opened.enter_context(
                OutputFile(rejected_part[0], rejected_format[0], INVALID_ROWS_SCHEMA, output=job.rejected)
            )
        chunks = _routed_chunks(job, router, inputs, schema, output_file, threads=threads)
        counts = _write(chunks, inputs, output_file, rejected_file, progress=progress)
    return counts, files


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
        try:
            valid = load_valid_rows(chunk)
        except InvalidCellError as error:
            raise _with_option(error) from None
        loaded, row_in_file, rejected = valid.loaded, valid.row_in_file, valid.invalid
        messages = add_is_initiator(loaded.batch, chunk.file) if job.from_target else loaded.batch
        try:
            if job.rejected is None:
                decisions = router.route(messages, now=job.now)
            else:
                decisions, invalid = router.route(messages, now=job.now, errors="reject")
                if invalid.num_rows:
                    loaded = without_invalid_rows(loaded, invalid)
                    rejected.append(invalid_in_file(invalid, chunk, row_in_file))
        except (InputError, SchemaError) as error:
            raise _with_option(error_in_file(error, file=chunk.file, row_in_file=row_in_file)) from error
        if loaded.json_lines is None:
            encoded = output_file.encode(_concat_columns(conform(loaded.batch, schema), decisions))
        else:
            encoded = output_file.encode(decisions, loaded.json_lines)
        return _RoutedChunk(
            encoded=encoded,
            value_counts=count_values(decisions),
            rows=decisions.num_rows,
            position=position,
            rejected=in_order(rejected) if rejected else None,
            traffic=None if job.html is None else _traffic(loaded.batch, decisions),
        )

    return ordered_map(
        all_chunks(inputs),
        route_chunk,
        threads=1 if job.tie_break == "round_robin" else threads,  # the rotation follows the order of rows
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
                for batch in chunk.rejected.to_batches():
                    rejected_file.write(rejected_file.encode(batch))
                counts.rejected.add_rows(chunk.rejected)
            counts.add(chunk.value_counts, rows=chunk.rows, traffic=chunk.traffic)
            bar.update(rows=counts.rows, position=chunk.position)
        bar.update(rows=counts.rows, position=total)
    return counts


def _with_option(error: InputError | SchemaError) -> InputError | SchemaError:
    """In an error of the router, replaces the argument name with the name of the option, and suggests `--rejected` for an invalid row."""
    is_of_row = isinstance(error, InvalidGuidError | NullError | UnknownDatabaseError) or error.column == "is_initiator"
    if is_of_row and isinstance(error, InputError) and error.row is not None:
        error.args = (f"{error}; to list invalid rows in a file and route the others, use --rejected FILE",)
        return error
    if error.column != "conversation_id" or not isinstance(error, SchemaError):
        return error
    message = str(error).replace('a router with tie_break="first"', "--tie-break first")
    return SchemaError(message, column=error.column, expected=error.expected, actual=error.actual)


def _traffic(conversations: pa.RecordBatch, decisions: pa.RecordBatch) -> pa.Table:
    from ssbroker.diagnose.html_traffic import TRAFFIC_COLUMNS, count_traffic  # noqa: PLC0415 - keeps --help fast

    service, *names = TRAFFIC_COLUMNS
    columns = {service: conversations.column(service), **{name: decisions.column(name) for name in names}}
    return count_traffic(pa.table(columns))


def _concat_columns(conversations: pa.RecordBatch, decisions: pa.RecordBatch) -> pa.RecordBatch:
    names = [*conversations.schema.names, *decisions.schema.names]
    return pa.RecordBatch.from_arrays([*conversations.columns, *decisions.columns], names=names)
