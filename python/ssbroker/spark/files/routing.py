"""`route_files`: routes Parquet files of conversations in the workers; no rows pass between Python and the JVM."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker._arguments import integer_argument, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, OptionError
from ssbroker.router import PendingRequest
from ssbroker.schemas import CONVERSATIONS, DECISIONS
from ssbroker.spark.arguments import SparkTieBreak, check_tie_break, loaded_catalog, local_path
from ssbroker.spark.dry_run import validate_routing
from ssbroker.spark.files.parquet import (
    SPLIT_BYTES,
    Compression,
    Source,
    Split,
    TaskFiles,
    list_files,
    plan_splits,
    read_split,
)
from ssbroker.spark.files.staging import ProgressWatch, Staging, new_attempt, run_tasks, sync_files
from ssbroker.spark.input_columns import check_no_decision_columns, check_unique
from ssbroker.spark.routing_task import RouteTask, cached_router
from ssbroker.spark.shared_values import share_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PartitionBy = Literal["outcome", "next_hop_address", "target_database"]
"""The decision column that partitions the result files."""

BATCH_ROWS: Final = 1 << 16
_COUNTED: Final = ("outcome", "reason")
_DICTIONARY_COLUMNS: Final = ("database", "to_service_name")
_NO_DICTIONARY: Final = ("conversation_id", "conversation_handle")
_NO_STATISTICS: Final = (*_NO_DICTIONARY, "to_broker_instance", "broker_instance")


@dataclass(frozen=True, kw_only=True)
class RoutedFiles:
    """The result of `route_files`.

    Attributes:
        path: The output folder.
        files: The Parquet files in the folder, as paths relative to `path`.
        rows: The number of conversations.
        outcomes: The number of conversations with each outcome.
        reasons: The number of conversations with each reason.
    """

    path: Path
    files: tuple[str, ...] = field(repr=False)
    rows: int
    outcomes: dict[str, int]
    reasons: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The description of a job, which is sent to every task."""

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
    catalog: Catalog | str | os.PathLike[str],
    *,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    partition_by: PartitionBy | None = None,
    compression: Compression = "snappy",
    split_bytes: int = SPLIT_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> RoutedFiles:
    """Routes Parquet files of conversations into a folder of Parquet files, with the same decisions as `Router.route`.

    Spark only distributes the row groups: the workers read, route and write the files themselves, so no rows pass
    between Python and the JVM. The driver and all workers must have access to the same files under the same paths. The
    target folder appears when all files are complete. It never contains files of failed or repeated attempts of a task,
    or of a job whose driver was killed.

    Args:
        spark: The session, classic or Spark Connect.
        source: A Parquet file, a folder of Parquet files, or several of both, all with the same columns: the columns of
            conversations (`schemas.CONVERSATIONS`), and any extra columns.
        target: The folder to create.
        catalog: The instance's databases, services and routing tables; or a path, which `Catalog.load` reads once, with `now`
            as the time from which LIFETIME counts.
        now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.
        partition_by: The decision column whose values partition the files into folders `column=value`; None for no partitioning.
        compression: The compression codec of Parquet: `snappy`, `zstd`, `gzip`, `lz4`, `brotli` or `none`.
        split_bytes: The approximate number of bytes that one task reads; a row group is never split.
        progress: A function that is called with the number of completed tasks and of all tasks, about twice a second, in
            a separate thread; None for no calls.

    Returns:
        The files, the row count and the counts of decisions. `_manifest.json` in the target folder also contains the
        fingerprint of the catalog and `now`.

    Raises:
        InputError: A path in `source` does not exist, is a Hive partition or is in a Delta or Iceberg table, or a path is a URI.
        MalformedDataError: A file is not a valid Parquet file.
        SchemaError: A column is missing, has an unsupported type or the name of a decision column.
        OptionError: An option has an invalid value.
        OutputError: `target` exists or cannot be written.

    Examples:
        >>> from pathlib import Path
        >>> import pyarrow as pa
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
    check_tie_break(tie_break)
    allowed = get_args(PartitionBy)
    if partition_by is not None and partition_by not in allowed:
        raise OptionError(f"partition_by: expected one of {', '.join(allowed)}, or None, got {partition_by!r:.80}")
    integer_argument(split_bytes, name="split_bytes", minimum=1, maximum=2**63 - 1)
    if compression not in get_args(Compression):
        raise OptionError(f"compression: expected one of {', '.join(get_args(Compression))}, got {compression!r:.80}")
    at, folder = utc_datetime(now), local_path(target, name="target")
    catalog = loaded_catalog(catalog, now=at)
    files = list_files(source)
    schema, splits = plan_splits(files, split_bytes=split_bytes)
    check_unique(CONVERSATIONS.names, schema.names)
    check_no_decision_columns(schema.names)
    types = {name: schema.field(schema.get_all_field_indices(name)[0]).type for name in schema.names}
    validate_routing(catalog, types, now=at, tie_break=tie_break, pending_request=pending_request)
    with Staging(folder) as staging:
        job = _Job(
            task=RouteTask(
                catalog=share_catalog(spark, catalog), now=at, tie_break=tie_break, pending_request=pending_request
            ),
            schema=schema,
            splits=tuple(splits),
            attempts=str(staging.attempts),
            done=str(staging.done),
            partition_by=partition_by,
            compression=compression,
        )
        with ProgressWatch(staging.done, len(splits), progress):
            results = run_tasks(spark, len(splits), functools.partial(_route_split, job)) or [_write_empty(job)]
        files_by_path = {Path(path): name for result in results for name, path, _ in result["files"]}
        totals = _totals(results)
        staging.commit(
            files_by_path,
            {
                "source": [str(file) for file in files],
                "catalog": catalog.fingerprint,
                "now": at.isoformat(),
                "tie_break": tie_break,
                "pending_request": pending_request,
                "partition_by": partition_by,
                **totals,
                "files": [{"name": name, "rows": rows} for result in results for name, _, rows in result["files"]],
            },
        )
    return RoutedFiles(path=folder, files=tuple(files_by_path.values()), **totals)


def _route_split(job: _Job, number: int) -> dict[str, Any]:
    """Reads, routes and writes one split, in a worker."""
    split = job.splits[number]
    router = cached_router(job.task.catalog, job.task.tie_break, job.task.pending_request)
    counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
    task_files: TaskFiles | None = None
    attempt = new_attempt(Path(job.attempts))
    row = split.first_row
    # Repeated names are read as dictionaries, so that the router looks up each name once.
    for batch in read_split(split, max_rows=BATCH_ROWS, dictionary_columns=_DICTIONARY_COLUMNS):
        try:
            decided = router.route(batch, now=job.task.now)
        except InputError as error:
            error.add_note(f"Row 0 of this batch of {batch.num_rows} rows is row {row} of {split.file}.")
            raise
        row += batch.num_rows
        _count_decisions(decided, counts)
        joined = pa.RecordBatch.from_arrays(
            [*batch.columns, *decided.columns], names=[*batch.schema.names, *decided.schema.names]
        )
        task_files = task_files or _new_files(job, attempt, number, joined.schema)
        task_files.write(joined)
    return _task_result(job, number, task_files, counts)


def _write_empty(job: _Job) -> dict[str, Any]:
    """Writes one file without rows, so that the result has columns."""
    schema = pa.schema([*job.schema, *DECISIONS])
    task_files = TaskFiles(
        new_attempt(Path(job.attempts)),
        "part-00000",
        schema,
        partition_by=None,
        compression=job.compression,
        source_schema=job.schema,
    )
    task_files.write(pa.RecordBatch.from_pylist([], schema=schema))
    return _task_result(job, 0, task_files, {name: Counter() for name in _COUNTED})


def _new_files(job: _Job, attempt: Path, number: int, schema: pa.Schema) -> TaskFiles:
    return TaskFiles(
        attempt,
        f"part-{number:05}",
        schema,
        partition_by=job.partition_by,
        compression=job.compression,
        source_schema=job.schema,
        no_dictionary=_NO_DICTIONARY,
        no_statistics=_NO_STATISTICS,
    )


def _task_result(
    job: _Job, number: int, task_files: TaskFiles | None, counts: dict[str, Counter[str]]
) -> dict[str, Any]:
    files = {}
    if task_files is not None:
        task_files.close()
        files = task_files.files
        sync_files([path for path, _ in files.values()])
    Path(job.done, str(number)).touch()
    return {"files": [(name, str(path), rows) for name, (path, rows) in files.items()], **counts}


def _count_decisions(decided: pa.RecordBatch, counts: dict[str, Counter[str]]) -> None:
    for name, counter in counts.items():
        column: Any = decided.column(name)
        labels = column.dictionary.to_pylist()
        for entry in pc.value_counts(column.indices).tolist():
            counter[labels[entry["values"]]] += entry["counts"]


def _totals(results: list[dict[str, Any]]) -> dict[str, Any]:
    totals: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
    for result in results:
        for name in _COUNTED:
            totals[name].update(result[name])
    rows = sum(rows for result in results for _, _, rows in result["files"])
    return {"rows": rows, "outcomes": dict(totals["outcome"]), "reasons": dict(totals["reason"])}
