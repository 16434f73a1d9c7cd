"""`ssbroker route` and `ssbroker reassemble` with Spark, into folders of Parquet files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ssbroker.cli.csv_layout import read_layout
from ssbroker.cli.errors import reading
from ssbroker.cli.file_formats import Format, format_by_suffix, input_format
from ssbroker.cli.hive_partitions import refuse_partitions
from ssbroker.cli.input_columns import CONVERSATION_COLUMNS, fragment_columns
from ssbroker.cli.readers import common_schema, expand_patterns, open_inputs
from ssbroker.cli.reassemble_files import ReassembleJob
from ssbroker.cli.reassemble_summary import ACKNOWLEDGEMENTS, INCOMPLETE, MESSAGES, REJECTED, ReassembleCounts
from ssbroker.cli.route_files import RouteJob
from ssbroker.cli.route_summary import COUNTED_COLUMNS, TOP_ROWS, RouteCounts
from ssbroker.cli.writers import refuse_overwriting, replacing_folder
from ssbroker.exceptions import OptionError, OutputError

if TYPE_CHECKING:
    from ssbroker.spark import SparkReassembly

_SPARK_FORMATS: Final = (Format.PARQUET, Format.CSV, Format.JSONL)


def route_on_spark(job: RouteJob) -> tuple[RouteCounts, list[Path]]:
    """Routes files on Spark into a folder of Parquet files; returns the counts and the input files."""
    _check_outputs([path for path in (job.output, job.rejected) if path is not None], job.format)
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


def _check_outputs(outputs: Iterable[Path], requested: Format | None) -> None:
    for output in outputs:
        if requested not in (None, Format.PARQUET) or format_by_suffix(output) not in (None, Format.PARQUET):
            raise OptionError(f"{output}: --spark writes only a folder of Parquet files")


def _write_folder(frame: Any, part: Path, output: Path) -> None:
    frame.write.parquet(str(part))
    if not part.is_dir():
        raise OutputError(
            f"{output}: Spark wrote the output on another machine; use a path on storage that both machines can access"
        )


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
    for file in files if file_format is Format.CSV else ():
        layout = read_layout(file)
        if layout.delimiter != "," or layout.has_dashes or layout.encoding == "utf-16":
            raise OptionError(
                f"{file}: --spark reads only CSV in UTF-8, separated by commas, without the dashes of sqlcmd; omit --spark"
            )
    return file_format


_NOT_ON_SPARK: Final = ("max_pending_messages", "max_sequence_distance")


def reassemble_on_spark(job: ReassembleJob) -> tuple[ReassembleCounts, list[Path]]:
    """Reassembles files on Spark into folders of Parquet files; returns the counts and the input files.

    Spark sorts the fragments first, so that a task normally holds one message at a time.
    """
    _check_options(job)
    files = expand_patterns(job.fragments)
    refuse_partitions(files)
    _check_files(files)
    job.refuse_overwriting_inputs([*job.tables.values()], files=files)
    input_columns = fragment_columns(session_key_column=job.session_key_column)
    common_schema(open_inputs(files, input_columns, keep_json_lines=False, threads=1, progress=False), input_columns)
    keys = job.load_keys()
    from ssbroker.spark import cli, reassemble  # noqa: PLC0415 - PySpark is optional

    with cli.spark_errors_translated(), contextlib.ExitStack() as stack:
        parts = {name: stack.enter_context(replacing_folder(path)) for name, path in job.tables.items()}
        is_quiet = not sys.stderr.isatty()
        session = stack.enter_context(cli.session(threads=job.threads, quiet=is_quiet))
        fragments = cli.read(session, files, kind=Format.PARQUET)
        found = reassemble(fragments, strategy="sort", session_keys=keys, **job.options).persist()
        tables = {MESSAGES: found.messages, REJECTED: found.rejected, INCOMPLETE: found.incomplete}
        for name, part in parts.items():
            _write_folder(tables[name], part, job.tables[name])
        counts = _count_on_spark(found, rows=fragments.count())
        found.unpersist()
    return counts, files


def _check_options(job: ReassembleJob) -> None:
    if job.state is not None or ACKNOWLEDGEMENTS in job.tables:
        raise OptionError("--spark supports neither --state nor --acknowledgements")
    for name in _NOT_ON_SPARK:
        if name in job.options:
            raise OptionError(f"--spark does not support --{name.replace('_', '-')}")
    _check_outputs(job.tables.values(), job.format)


def _check_files(files: list[Path]) -> None:
    for file in files:
        with reading(file):
            file_format = input_format(file)
        if file_format is not Format.PARQUET:
            raise OptionError(f"{file}: --spark reads fragments only from Parquet")


def _count_on_spark(found: SparkReassembly, *, rows: int) -> ReassembleCounts:
    messages = _integer_row(found.messages.selectExpr("count(*)", "coalesce(sum(length(message_body)), 0)"))
    pending = _integer_row(
        found.incomplete.selectExpr("count(*)", "count(first_missing_fragment)", "coalesce(sum(received_bytes), 0)")
    )
    counts = ReassembleCounts(rows=rows, messages=messages[0], message_bytes=messages[1])
    counts.incomplete, counts.waiting, counts.pending_bytes = pending[1], pending[0] - pending[1], pending[2]
    has_next = (
        "bool_or(waits_for_sequence_number is null) over (partition by conversation_id, is_initiator) as has_next"
    )
    waiting = found.incomplete.selectExpr("first_missing_fragment", has_next)
    counts.blocked = waiting.where("first_missing_fragment is null and not has_next").count()
    for row in found.rejected.groupBy("reason").count().collect():
        counts.reasons[row["reason"]] = row["count"]
    return counts


def _integer_row(frame: Any) -> list[int]:
    return [int(value) for value in frame.first()]
