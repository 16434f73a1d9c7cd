"""Files of conversations routed where they stand: Spark hands out row groups, and nothing but their numbers crosses into Python."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker._arguments import utc_datetime, whole_number
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, OptionError
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.schemas import CONVERSATIONS, DECISIONS
from ssbroker.spark import columns
from ssbroker.spark.broadcast import local_path, ship
from ssbroker.spark.columns import check_free_names, check_once
from ssbroker.spark.files.parquet import Compression, Source, Split, TaskFiles, files_of, read, splits_of
from ssbroker.spark.files.staging import ProgressWatch, Staging, complete, new_attempt, run
from ssbroker.spark.worker import RouteTask, router_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PartitionBy = Literal["outcome", "next_hop_address", "target_database"]
"""The column of the decision that parts the files of the result."""

BATCH_ROWS: Final = 1 << 16
SPLIT_BYTES: Final = 128 << 20
_COUNTED: Final = ("outcome", "reason")
_IN_DICTIONARIES: Final = ("database", "to_service_name")
_UNIQUE: Final = ("conversation_id", "conversation_handle")
_UNORDERED: Final = (*_UNIQUE, "to_broker_instance", "broker_instance")


@dataclass(frozen=True, kw_only=True)
class RoutedFiles:
    """What `route_files` has written.

    Attributes:
        path: The folder.
        files: Its Parquet files, relative to it.
        rows: How many conversations they hold.
        outcomes: How many have each outcome.
        reasons: How many have each reason.
    """

    path: Path
    files: tuple[str, ...]
    rows: int
    outcomes: dict[str, int]
    reasons: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What every task has to know."""

    task: RouteTask
    schema: pa.Schema
    splits: tuple[Split, ...]
    attempts: str
    done: str
    partition_by: str | None
    compression: Compression


def route_files(
    spark: SparkSession,
    source: Source,
    target: str | os.PathLike[str],
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    partition_by: PartitionBy | None = None,
    compression: Compression = "snappy",
    split_bytes: int = SPLIT_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> RoutedFiles:
    """Routes Parquet files of conversations into a folder of Parquet files; the answers are those of `Router.route`, row for row.

    Spark only hands out the row groups: each worker reads, routes and writes by itself, so no row crosses between Python and the JVM.
    All paths have to be the same files for the driver and for every worker. The folder appears as a whole, or not at all: what a task
    wrote that failed, ran twice or outlived its driver never gets there.

    Args:
        spark: The session, classic or Spark Connect.
        source: A Parquet file, a folder of them, or several of both, all with the same columns: those of conversations, and any others.
        target: The folder to make.
        catalog: The instance's databases, services and routing tables.
        now: The moment at which routes expire, None for that of this call. Without a zone it is UTC.
        tie_break: How one of several equals is picked: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.
        partition_by: The column of the decision by whose values the files are put into folders `column=value`; None puts them into none.
        compression: How Parquet compresses: `snappy`, `zstd`, `gzip`, `lz4`, `brotli` or `none`.
        split_bytes: How many bytes of a file one task reads, about; a row group is never cut.
        progress: Called with the tasks that are done and all of them, about twice a second, in a thread of its own.

    Returns:
        What was written. `_manifest.json` in the folder says the same, and by which catalog and at what moment.

    Raises:
        InputError: Something in `source` is not there, or a path is a URI.
        MalformedDataError: A file is no Parquet file.
        SchemaError: A column is missing, has a type that cannot be read or the name of a column of the decision.
        OptionError: An option is not one of those allowed.
        OutputError: Something stands at `target`, or it cannot be written.

    Examples:
        >>> import tempfile
        >>> import pyarrow.parquet as pq
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> routes = {"name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     conversations = pa.table({"conversation_id": [bytes(16)], "to_service_name": ["//Orders"]})
        ...     pq.write_table(conversations, Path(folder, "day.parquet"))
        ...     routed = ssbroker.spark.route_files(spark, Path(folder, "day.parquet"), Path(folder, "routed"), Catalog(pa.table(routes)))
        ...     routed.outcomes, pq.read_table(Path(folder, "routed"))["next_hop_address"].to_pylist()
        ({'REMOTE': 1}, ['TCP://orders:4022'])
        >>> spark.stop()
    """
    columns.check_tie_break(tie_break)
    allowed = get_args(PartitionBy)
    if partition_by is not None and partition_by not in allowed:
        raise OptionError(f"partition_by: expected one of {', '.join(allowed)}, or None; got {partition_by!r:.80}")
    whole_number(split_bytes, name="split_bytes", minimum=1, maximum=2**63 - 1)
    if compression not in get_args(Compression):
        raise OptionError(f"compression: expected one of {', '.join(get_args(Compression))}; got {compression!r:.80}")
    at, folder = utc_datetime(now), local_path(target, name="target")
    files = files_of(source)
    schema, splits = splits_of(files, split_bytes=split_bytes)
    check_once(CONVERSATIONS.names, schema.names)
    check_free_names(schema.names, exact=False)
    types = {name: schema.field(schema.get_all_field_indices(name)[0]).type for name in schema.names}
    columns.rehearse(catalog, types, tie_break=tie_break, pending_request=pending_request)
    with Staging(folder) as staging:
        job = _Job(
            task=RouteTask(catalog=ship(spark, catalog), now=at, tie_break=tie_break, pending_request=pending_request),
            schema=schema,
            splits=tuple(splits),
            attempts=str(staging.attempts),
            done=str(staging.done),
            partition_by=partition_by,
            compression=compression,
        )
        with ProgressWatch(staging.done, len(splits), progress):
            results = run(spark, len(splits), functools.partial(_routed, job)) or [_written_empty(job)]
        placed = {Path(path): name for result in results for name, path, _ in result["files"]}
        told = _told(results)
        staging.commit(
            placed,
            {
                "source": [str(file) for file in files],
                "catalog": catalog.fingerprint,
                "now": at.isoformat(),
                "tie_break": tie_break,
                "pending_request": pending_request,
                "partition_by": partition_by,
                **told,
                "files": [{"name": name, "rows": rows} for result in results for name, _, rows in result["files"]],
            },
        )
    return RoutedFiles(path=folder, files=tuple(placed.values()), **told)


def _routed(job: _Job, number: int) -> dict[str, Any]:
    """Reads, routes and writes one split, in a worker."""
    split = job.splits[number]
    router = router_of(job.task.catalog, job.task.tie_break, job.task.pending_request)
    counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
    parts: TaskFiles | None = None
    attempt = new_attempt(Path(job.attempts))
    row = split.first_row
    # Names that occur again and again are read as dictionaries, which the router looks up once each.
    for batch in read(split, rows_most=BATCH_ROWS, in_dictionaries=_IN_DICTIONARIES):
        try:
            decided = router.route(batch, now=job.task.now)
        except InputError as error:
            error.add_note(f"Row 0 of this batch of {batch.num_rows} rows is row {row} of {split.file}.")
            raise
        row += batch.num_rows
        _count(decided, counts)
        joined = pa.RecordBatch.from_arrays(
            [*batch.columns, *decided.columns], names=[*batch.schema.names, *decided.schema.names]
        )
        parts = parts or _parts(job, attempt, number, joined.schema)
        parts.write(joined)
    return _finished(job, number, parts, counts)


def _written_empty(job: _Job) -> dict[str, Any]:
    """One file without rows, so that the result has columns."""
    schema = pa.schema([*job.schema, *DECISIONS])
    parts = TaskFiles(
        new_attempt(Path(job.attempts)),
        "part-00000",
        schema,
        partition_by=None,
        compression=job.compression,
        read=job.schema,
    )
    parts.write(pa.RecordBatch.from_pylist([], schema=schema))
    return _finished(job, 0, parts, {name: Counter() for name in _COUNTED})


def _parts(job: _Job, attempt: Path, number: int, schema: pa.Schema) -> TaskFiles:
    return TaskFiles(
        attempt,
        f"part-{number:05}",
        schema,
        partition_by=job.partition_by,
        compression=job.compression,
        read=job.schema,
        unique=_UNIQUE,
        unordered=_UNORDERED,
    )


def _finished(job: _Job, number: int, parts: TaskFiles | None, counts: dict[str, Counter[str]]) -> dict[str, Any]:
    files = {}
    if parts is not None:
        parts.close()
        files = parts.files
        complete([path for path, _ in files.values()])
    Path(job.done, str(number)).touch()
    return {"files": [(name, str(path), rows) for name, (path, rows) in files.items()], **counts}


def _count(decided: pa.RecordBatch, counts: dict[str, Counter[str]]) -> None:
    for name, counted in counts.items():
        column: Any = decided.column(name)
        words = column.dictionary.to_pylist()
        for each in pc.value_counts(column.indices).tolist():
            counted[words[each["values"]]] += each["counts"]


def _told(results: list[dict[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
    for result in results:
        for name in _COUNTED:
            totals[name].update(result[name])
    rows = sum(rows for result in results for _, _, rows in result["files"])
    return {"rows": rows, "outcomes": dict(totals["outcome"]), "reasons": dict(totals["reason"])}
