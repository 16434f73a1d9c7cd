"""`ssbroker route` and `ssbroker reassemble` with Spark, into folders of Parquet files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._csv import CsvFile
from ssbroker.cli.errors import reading
from ssbroker.cli.file_formats import Format, input_format, output_format_by_suffix
from ssbroker.cli.hive_partitions import refuse_partitions
from ssbroker.cli.input_columns import CONVERSATION_COLUMNS, IS_INITIATOR, fragment_columns
from ssbroker.cli.input_files import already_known_direction, common_schema, expand_patterns, open_inputs
from ssbroker.cli.output_paths import refuse_overwriting, replacing_folder
from ssbroker.cli.reassemble_files import ReassembleJob
from ssbroker.cli.reassemble_summary import ACKNOWLEDGEMENTS, INCOMPLETE, INVALID, MESSAGES, REJECTED, ReassembleCounts
from ssbroker.cli.route_files import RouteJob
from ssbroker.cli.route_summary import COUNTED_COLUMNS, TOP_ROWS, RouteCounts
from ssbroker.exceptions import InputError, OptionError, OutputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ssbroker.spark import SparkReassembly

_SPARK_FORMATS: Final = (Format.PARQUET, Format.CSV, Format.JSONL)
_NULLABLE: Final = ("database", "to_broker_instance")
_SESSION_VARIABLES: Final = (
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
)


def route_on_spark(job: RouteJob) -> tuple[RouteCounts, list[Path]]:
    """Routes files on Spark into a folder of Parquet files; returns the counts and the input files."""
    _check_outputs([path for path in (job.output, job.rejected) if path is not None], job.format)
    files = expand_patterns(job.conversations)
    refuse_partitions(files)
    file_format = _common_format(files)
    refuse_overwriting(job.outputs, inputs=files, catalogs=[job.catalog])
    if file_format is not Format.JSONL:  # Spark takes the columns from one file only
        inputs = open_inputs(files, CONVERSATION_COLUMNS, keep_json_lines=False, threads=1, progress=False)
        common_schema(inputs, CONVERSATION_COLUMNS)
    from ssbroker.diagnose.html_traffic import COUNT, TRAFFIC_COLUMNS  # noqa: PLC0415 - keeps --help fast
    from ssbroker.spark import route  # noqa: PLC0415 - PySpark is optional

    quiet = not sys.stderr.isatty()
    counts = RouteCounts()
    with ExitStack() as opened:
        opened.enter_context(_spark_errors_translated())
        part = opened.enter_context(replacing_folder(job.output))
        rejected_part = None if job.rejected is None else opened.enter_context(replacing_folder(job.rejected))
        catalog = job.loaded_catalog
        with _spark_session(threads=job.threads, quiet=quiet) as session:
            conversations = _read_files(session, files, kind=file_format)
            if job.from_target:
                conversations = _add_is_initiator(conversations)
            routing: dict[str, Any] = {"now": job.now, "tie_break": job.tie_break}
            routing |= {"pending_request": job.pending_request, "engine": "arrow"}  # whose errors name the row
            if job.rejected is None or rejected_part is None:
                _write_folder(_drop_is_initiator(route(conversations, catalog, **routing), job), part, job.output)
            else:
                decided, rejected = route(conversations, catalog, errors="reject", **routing)
                _write_folder(_drop_is_initiator(decided, job), part, job.output)
                _write_folder(_drop_is_initiator(rejected, job), rejected_part, job.rejected)
                kinds = session.read.parquet(str(rejected_part)).groupBy("column", "reason")
                for column, reason, rows, example in kinds.agg({"*": "count", "value": "min"}).collect():
                    counts.rejected.add(column, reason, example=example, rows=rows)
            top = {"next_hop_address": TOP_ROWS, "target_database": TOP_ROWS}
            routed = session.read.parquet(str(part))
            value_counts = _count_values(routed, COUNTED_COLUMNS, top=top)
            traffic = None if job.html is None else _count_rows(routed, TRAFFIC_COLUMNS, name=COUNT)
        rows = sum(row["count"] for row in value_counts["outcome"].to_pylist())
        counts.add(value_counts, rows=rows, traffic=traffic)
    return counts, files


def _add_is_initiator(conversations: DataFrame) -> DataFrame:
    """Adds the column `is_initiator` for `--from-target`; refuses files that have this column."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    if IS_INITIATOR in conversations.columns:
        raise already_known_direction("the input")
    return conversations.withColumn(IS_INITIATOR, sf.lit(False))


def _drop_is_initiator(routed: DataFrame, job: RouteJob) -> DataFrame:
    """Drops the column that `--from-target` has added."""
    return routed.drop(IS_INITIATOR) if job.from_target else routed


def _check_outputs(outputs: Iterable[Path], requested: Format | None) -> None:
    for output in outputs:
        if requested not in (None, Format.PARQUET) or output_format_by_suffix(output) not in (None, Format.PARQUET):
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
        layout = CsvFile(file).layout
        if layout.delimiter != "," or layout.has_dashes or layout.encoding == "utf-16":
            raise OptionError(
                f"{file}: --spark reads only CSV in UTF-8, separated by commas, without the line of dashes that sqlcmd writes; omit --spark"
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
    from ssbroker.spark import reassemble  # noqa: PLC0415 - PySpark is optional

    with _spark_errors_translated(), ExitStack() as stack:
        parts = {name: stack.enter_context(replacing_folder(path)) for name, path in job.tables.items()}
        is_quiet = not sys.stderr.isatty()
        session = stack.enter_context(_spark_session(threads=job.threads, quiet=is_quiet))
        fragments = _read_files(session, files, kind=Format.PARQUET)
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
    if INVALID in job.tables:
        raise OptionError(
            "--spark does not support --invalid; exclude the invalid rows from the input, or omit --spark"
        )
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


@contextmanager
def _spark_errors_translated() -> Iterator[None]:
    """Turns Spark's exceptions into `InputError` with the line that contains the cause."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark is an extra

    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and not type(error).__module__.startswith("py4j."):
            raise
        raise InputError(_cause(str(error))) from error


@contextmanager
def _spark_session(*, threads: int | None, quiet: bool) -> Iterator[SparkSession]:
    """Yields the session that the environment configures (`SPARK_REMOTE`, `MASTER`, spark-submit), or else a local session.

    A local session uses `threads` cores (None means all), and is stopped at the end. With `quiet`, the standard error
    of a JVM that is started for the session is discarded.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("ssbroker")
    if SparkSession.getActiveSession() is not None or any(name in os.environ for name in _SESSION_VARIABLES):
        yield builder.getOrCreate()
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = builder.master(os.environ.get("MASTER") or f"local[{threads or '*'}]")
    with _stderr_discarded() if quiet else nullcontext():
        local = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
    try:
        yield local
    finally:
        local.stop()


def _read_files(spark: SparkSession, files: Sequence[Path], *, kind: str) -> DataFrame:
    """Reads files with the same columns as a DataFrame; `kind` is `parquet`, `csv` or `jsonl`.

    All CSV columns except `is_initiator` are strings; in nullable columns, an empty cell, NULL or null is null.
    """
    paths = [str(file.resolve()) for file in files]
    if kind == "parquet":
        return spark.read.parquet(*paths)
    if kind == "jsonl":
        return spark.read.json(paths, mode="FAILFAST")
    table = spark.read.csv(
        paths, header=True, multiLine=True, quote='"', escape='"', mode="FAILFAST", enforceSchema=False
    )
    return table.withColumns(
        {name: _typed_column(name) for name in table.columns if name in (*_NULLABLE, IS_INITIATOR)}
    )


def _count_values(table: DataFrame, columns: Sequence[str], *, top: Mapping[str, int]) -> dict[str, pa.Table]:
    """Counts the values of some columns.

    Columns named in `top` may have many values: only the given number of most frequent values is counted, and null is not counted.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    from ssbroker.spark.compat import collect_arrow  # noqa: PLC0415 - the same

    counts = {}
    for name in columns:
        groups = table.where(sf.col(name).isNotNull()) if name in top else table
        groups = groups.groupBy(sf.col(name).alias("value")).count()
        if name in top:
            groups = groups.orderBy(sf.desc("count"), "value").limit(top[name])
        counts[name] = collect_arrow(groups)
    return counts


def _count_rows(table: DataFrame, columns: Sequence[str], *, name: str) -> pa.Table:
    """Returns the distinct rows of some columns, with the number of each in the column `name`."""
    from ssbroker.spark.compat import collect_arrow  # noqa: PLC0415 - pyspark is an extra

    return collect_arrow(table.groupBy(*columns).count().withColumnRenamed("count", name))


def _typed_column(name: str) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    text = sf.col(name)
    if name != IS_INITIATOR:
        return sf.when(~text.isin("", "NULL", "null"), text)
    word = sf.lower(sf.trim(text))
    wrong = sf.concat(sf.lit("is_initiator: expected true, false, 1 or 0, got "), text)
    return (
        sf.when(word.isin("true", "1"), sf.lit(True))
        .when(word.isin("false", "0"), sf.lit(False))
        .when(text.isNotNull(), sf.raise_error(wrong).cast("boolean"))
    )


@contextmanager
def _stderr_discarded() -> Iterator[None]:
    """Discards the standard error of child processes started within the block."""
    original = os.dup(2)
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 2)
    os.close(null_device)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def _cause(text: str) -> str:
    r"""Returns the cause of a Spark failure: an ssbroker error, otherwise the last line of a Python traceback, otherwise the first line.

    Examples:
        >>> _cause("[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\nssbroker.exceptions.NullError: row 7\n")
        'row 7'
    """
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark could not start Java; it needs Java 17 or newer"
    lines = [line.strip() for line in text.partition("JVM stacktrace:")[0].splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("ssbroker.exceptions.")]
    if own:
        return own[-1].partition(": ")[2]
    last = lines[-1] if any("Traceback" in line for line in lines) else next(iter(lines), "no reason was reported")
    return f"Spark failed: {last}"
