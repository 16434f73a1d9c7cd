"""`reassemble_files`: reassembles Parquet files of fragments in the workers, through buckets on disk."""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

import pyarrow as pa

from ssbroker import reassembly as keys
from ssbroker._arguments import boolean, integer_argument, utc_datetime
from ssbroker._arrow import cast_batch
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, OptionError
from ssbroker.reassembly import Reassembler, SessionKeys, reassemble
from ssbroker.router import PendingRequest, Router
from ssbroker.schemas import PENDING, REJECTED
from ssbroker.spark.arguments import MESSAGE_BYTES_MAX, SparkTieBreak, check_tie_break, loaded_catalog, local_path
from ssbroker.spark.files.bucket_files import (
    BucketWriter,
    bucket_file_number,
    bucket_file_path,
    buckets_in_same_file,
    read_bucket,
    remove_bucket_file,
)
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
from ssbroker.spark.input_columns import check_no_decision_columns
from ssbroker.spark.reassembly_task import native_keys
from ssbroker.spark.routing_task import RouteTask, cached_router
from ssbroker.spark.shared_values import SharedValue, share_catalog, share_session_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BATCH_ROWS: Final = 1 << 14

_UNIQUE: Final = ("conversation_id", "message_body", "message_signature")

BucketFolders: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""The location of the rows of all buckets: the folder of each split, and the numbers of the files in it."""


@dataclass(frozen=True, kw_only=True)
class FilesJob:
    """The description of a job, which is sent to every task."""

    schema: pa.Schema
    messages: pa.Schema
    splits: tuple[Split, ...]
    buckets: int
    secret: bytes = field(repr=False)
    attempts: str
    done: str
    compression: Compression
    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    session_keys: str | SharedValue[dict[bytes, bytes]] | None = field(repr=False)
    routing: RouteTask | None


def partition_split(job: FilesJob, number: int) -> dict[str, Any]:
    """Reads a split and distributes its fragments into bucket files by conversation; returns the folder and numbers of the files."""
    split = job.splits[number]
    folder = new_attempt(Path(job.attempts))
    with BucketWriter(folder, job.schema, count=job.buckets, secret=job.secret) as writer:
        for batch in read_split(split, max_rows=BATCH_ROWS):
            writer.write(cast_batch(batch, job.schema))
    Path(job.done, f"split-{number}").touch()
    return {"folder": str(folder), "files": writer.files}


def bucket_folders(results: list[dict[str, Any]]) -> BucketFolders:
    """Returns the location of the rows of all buckets, in the order in which they were read.

    `results` are the results of `partition_split`. Every task gets the returned tuple, so the size of the tuple must
    depend only on the number of splits.
    """
    return tuple((result["folder"], tuple(result["files"])) for result in results)


def reassemble_bucket(job: FilesJob, folders: BucketFolders, number: int) -> dict[str, Any]:
    """Reassembles a bucket; removes its files once all buckets that share them are done.

    Returns the files that were written and the number of fragments for each rejection reason. If another attempt has
    already finished, returns the result of that attempt.
    """
    result_path, file_index = _result_path(job, number), bucket_file_number(number, count=job.buckets)
    files = [bucket_file_path(Path(folder), file_index) for folder, numbers in folders if file_index in numbers]
    try:
        if not result_path.exists():
            _write_bucket(job, files, number)
    except FileNotFoundError:  # another attempt was faster and removed the files
        if not result_path.exists():
            raise
    result: dict[str, Any] = json.loads(result_path.read_bytes())
    sharing_buckets = buckets_in_same_file(number, count=job.buckets)
    if all(_result_path(job, bucket).exists() for bucket in sharing_buckets):
        for file in files:
            remove_bucket_file(file)
    return result


def _write_bucket(job: FilesJob, files: list[Path], number: int) -> None:
    output = _BucketOutput(job, number)
    reassembler = Reassembler(
        max_pending_bytes=None,
        max_pending_messages=None,
        max_message_bytes=job.max_message_bytes,
        max_fragments_per_message=job.max_fragments_per_message,
        max_sequence_distance=None,
        in_order=job.in_order,
        session_keys=_reassembler_keys(job.session_keys),
    )
    for file in files:
        for batch in read_bucket(file, number):
            try:
                pushed = reassembler.push(batch)
            except InputError as error:
                error.add_note(f"Row 0 is the first of {batch.num_rows} rows of one bucket of conversations.")
                raise
            output.messages(pushed.messages)
            output.rejected(pushed.rejected)
    output.incomplete(reassembler.pending())
    if number == 0:  # the result has columns even if it has no rows
        output.messages(job.messages.empty_table())
        output.rejected(REJECTED.empty_table())
        output.incomplete(PENDING.empty_table())
    output.complete()


def _result_path(job: FilesJob, number: int) -> Path:
    """Returns the path of a bucket's result, which is stored for later attempts of the task, when the files of the bucket may be removed."""
    return Path(job.done, f"bucket-{number}")


class _BucketOutput:
    """The output files of one bucket."""

    def __init__(self, job: FilesJob, number: int) -> None:
        self._job: Final = job
        self._number: Final = number
        self._attempt: Final = new_attempt(Path(job.attempts))
        self._files: dict[str, TaskFiles] = {}
        self._reasons: Counter[str] = Counter()

    def messages(self, rows: pa.Table) -> None:
        """Writes messages, with their decisions if they are routed."""
        for batch in rows.to_batches() or _empty_batch(rows.schema):
            self._write("messages", self._with_decisions(batch))

    def rejected(self, rows: pa.Table) -> None:
        """Writes rejected fragments."""
        self._reasons.update(str(reason) for reason in rows["reason"].to_pylist())
        for batch in rows.to_batches() or _empty_batch(rows.schema):
            self._write("rejected", batch)

    def incomplete(self, rows: pa.Table) -> None:
        """Writes incomplete messages."""
        for batch in rows.to_batches() or _empty_batch(rows.schema):
            self._write("incomplete", batch)

    def complete(self) -> None:
        """Completes the files and publishes the bucket's result."""
        files = []
        for kind, task_files in self._files.items():
            task_files.close()
            sync_files([path for path, _ in task_files.files.values()])
            files += [(f"{kind}/{name}", str(path), rows) for name, (path, rows) in task_files.files.items()]
        result = self._attempt / "outcome.json"
        result.write_text(json.dumps({"files": files, "reasons": self._reasons}), encoding="utf-8")
        sync_files([result])
        result.replace(_result_path(self._job, self._number))

    def _write(self, kind: str, batch: pa.RecordBatch) -> None:
        if kind not in self._files:
            if not batch.num_rows and self._number != 0:
                return
            folder = self._attempt / kind
            folder.mkdir()
            name = f"part-{self._number:05}"
            self._files[kind] = TaskFiles(
                folder,
                name,
                batch.schema,
                partition_by=None,
                compression=self._job.compression,
                source_schema=self._job.schema if kind == "messages" else None,
                no_dictionary=_UNIQUE,
                no_statistics=_UNIQUE,
            )
        self._files[kind].write(batch)

    def _with_decisions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        routing = self._job.routing
        if routing is None:
            return batch
        decided = cached_router(routing.catalog, routing.tie_break, routing.pending_request).route(
            batch, now=routing.now
        )
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *decided.columns], names=[*batch.schema.names, *decided.schema.names]
        )


def _reassembler_keys(given: str | SharedValue[dict[bytes, bytes]] | None) -> Any:
    return native_keys(given) if isinstance(given, SharedValue) else given


def _empty_batch(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([], schema=schema)


BUCKET_BYTES: Final = 128 << 20
BUCKETS_MAX: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ReassembledFiles:
    """The result of `reassemble_files`.

    Attributes:
        path: The target folder, with subfolders `messages`, `rejected` and `incomplete`.
        files: The Parquet files in the folder, as paths relative to `path`.
        messages: The number of messages in the subfolder `messages`: complete messages that do not wait for an earlier message.
        rejected: The number of rejected fragments for each reason.
        incomplete: The number of messages that are incomplete or wait for an earlier message.
    """

    path: Path
    files: tuple[str, ...] = field(repr=False)
    messages: int
    rejected: dict[str, int]
    incomplete: int


def reassemble_files(
    spark: SparkSession,
    source: Source,
    target: str | os.PathLike[str],
    *,
    catalog: Catalog | str | os.PathLike[str] | None = None,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    max_message_bytes: int = 256 << 20,
    max_fragments_per_message: int | None = 1 << 20,
    compression: Compression = "snappy",
    split_bytes: int = SPLIT_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ReassembledFiles:
    """Reassembles Parquet files of fragments into a folder of Parquet files: complete messages, rejected fragments and incomplete messages.

    Spark schedules the tasks, but no rows pass through it. A first set of tasks reads the files and distributes the
    fragments by conversation into *buckets*, which are stored in a temporary folder next to the target. Each task of a
    second set reassembles one bucket, and needs memory for the whole bucket. The driver and all workers must have access
    to the same files under the same paths. The target folder appears when all files are complete.

    Each direction starts at sequence number 0: with `in_order`, a message whose predecessors are not in `source` is
    reported as incomplete, even if an earlier job has released them. To continue after earlier jobs, use `stream`, or
    `in_order=False`.

    Args:
        spark: The session, classic or Spark Connect.
        source: A Parquet file, a folder of Parquet files, or several of both, all with the same columns: the columns of
            fragments (`schemas.FRAGMENTS`; signatures are optional), and extra columns. A message gets the values of
            its fragment 0.
        target: The folder to create.
        catalog: The instance's databases, services and routing tables; or a path, which `Catalog.load` reads once, with
            `now` as the time from which LIFETIME counts. With a catalog, the messages are also routed, and the result
            contains the decision columns. None for no routing.
        now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.
        in_order: Whether a message waits for earlier messages of its direction. If so, the messages of a direction are
            in one file, in order.
        session_keys: Keys that encrypt the signatures: a mapping from conversation ids to session keys, or the name of
            the column with the keys, which is omitted from the messages.
        max_message_bytes: The maximum message size, at most 2**30; larger messages are rejected as `limit_exceeded`.
        max_fragments_per_message: The maximum number of fragments of a message; None for no limit.
        compression: The compression codec of Parquet: `snappy`, `zstd`, `gzip`, `lz4`, `brotli` or `none`.
        split_bytes: The approximate number of bytes that one task reads; a row group is never split.
        bucket_bytes: The approximate size of a bucket in bytes. A conversation is never split, so a larger conversation enlarges its bucket.
        progress: A function that is called with the number of completed tasks and of all tasks, about twice a second, in
            a separate thread; None for no calls.

    Returns:
        The files and their row counts, as in `_manifest.json` in the target folder.

    Raises:
        InputError: A path in `source` does not exist, is a Hive partition or is in a Delta or Iceberg table, or a path is a URI.
        MalformedDataError: A file is not a valid Parquet file.
        SchemaError: A column is missing, has an unsupported type or the name of a decision column.
        OptionError: An option has an invalid value.
        OutputError: `target` exists or cannot be written.

    Examples:
        >>> from pathlib import Path
        >>> import tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker, ssbroker.spark
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [0],
        ...                      "message_body": [b"Hello, world"]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pq.write_table(ssbroker.fragment(messages, max_fragment_bytes=5), Path(folder, "fragments.parquet"))
        ...     done = ssbroker.spark.reassemble_files(spark, Path(folder, "fragments.parquet"), Path(folder, "whole"))
        ...     done.messages, pq.read_table(Path(folder, "whole", "messages"))["message_body"].to_pylist()
        (1, [b'Hello, world'])
        >>> spark.stop()
    """
    check_tie_break(tie_break)
    if compression not in get_args(Compression):
        raise OptionError(f"compression: expected one of {', '.join(get_args(Compression))}, got {compression!r:.80}")
    for name, value in (("split_bytes", split_bytes), ("bucket_bytes", bucket_bytes)):
        integer_argument(value, name=name, minimum=1, maximum=2**63 - 1)
    boolean(in_order, name="in_order")
    integer_argument(max_message_bytes, name="max_message_bytes", minimum=1, maximum=MESSAGE_BYTES_MAX)
    if max_fragments_per_message is not None:
        integer_argument(max_fragments_per_message, name="max_fragments_per_message", minimum=1, maximum=2**31 - 1)
    normalized_keys = keys.normalize_session_keys(session_keys)
    files, folder = list_files(source), local_path(target, name="target")
    schema, splits = plan_splits(files, split_bytes=split_bytes)
    rehearsed = reassemble(schema.empty_table(), session_keys=session_keys)
    routing = None
    if catalog is not None:
        check_no_decision_columns(schema.names)
        at = utc_datetime(now)
        catalog = loaded_catalog(catalog, now=at)
        Router(catalog, tie_break=tie_break, pending_request=pending_request).route(rehearsed.messages, now=at)
        routing = RouteTask(
            catalog=share_catalog(spark, catalog), now=at, tie_break=tie_break, pending_request=pending_request
        )
    size = sum(file.stat().st_size for file in files)
    with Staging(folder) as staging:
        job = FilesJob(
            schema=schema,
            messages=rehearsed.messages.schema,
            splits=tuple(splits),
            buckets=bucket_count(size, bucket_bytes),
            secret=secrets.token_bytes(16),
            attempts=str(staging.attempts),
            done=str(staging.done),
            compression=compression,
            in_order=in_order,
            max_message_bytes=max_message_bytes,
            max_fragments_per_message=max_fragments_per_message,
            session_keys=share_session_keys(spark, normalized_keys)
            if isinstance(normalized_keys, dict)
            else _key_column(normalized_keys),
            routing=routing,
        )
        with ProgressWatch(staging.done, len(splits) + job.buckets, progress):
            partitioned = run_tasks(spark, len(splits), functools.partial(partition_split, job))
            folders = bucket_folders(partitioned)
            results = run_tasks(spark, job.buckets, functools.partial(reassemble_bucket, job, folders))
        files_by_path = {Path(path): name for result in results for name, path, _ in result["files"]}
        totals = _totals(results)
        staging.commit(
            files_by_path,
            {
                "source": [str(file) for file in files],
                "catalog": None if catalog is None else catalog.fingerprint,
                "now": None if routing is None else routing.now.isoformat(),
                "in_order": in_order,
                **totals,
                "files": [{"name": name, "rows": rows} for result in results for name, _, rows in result["files"]],
            },
        )
    return ReassembledFiles(path=folder, files=tuple(files_by_path.values()), **totals)


def bucket_count(size: int, bucket_bytes: int) -> int:
    """Returns the number of buckets: one, or a multiple of four, so that two or four cores finish at the same time.

    Examples:
        >>> [bucket_count(size, 100) for size in (0, 100, 101, 400, 401, 10**9)]
        [1, 1, 4, 4, 8, 65536]
    """
    count = -(-size // bucket_bytes)
    return min(BUCKETS_MAX, 1 if count <= 1 else -(-count // 4) * 4)


def _totals(results: list[dict[str, Any]]) -> dict[str, Any]:
    rows: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result["reasons"])
        for name, _, count in result["files"]:
            rows[name.partition("/")[0]] += count
    return {"messages": rows["messages"], "rejected": dict(reasons), "incomplete": rows["incomplete"]}


def _key_column(normalized_keys: object) -> str | None:
    return normalized_keys if isinstance(normalized_keys, str) else None
