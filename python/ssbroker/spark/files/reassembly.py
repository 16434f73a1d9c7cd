"""Reassembles files of fragments in place, through buckets on disk."""

from __future__ import annotations

import functools
import itertools
import json
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute

from ssbroker import reassembly as keys
from ssbroker._arguments import boolean, utc_datetime, whole_number
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, OptionError
from ssbroker.reassembly import Reassembler, SessionKeys, md5, reassemble
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.schemas import PENDING, REJECTED
from ssbroker.spark import columns
from ssbroker.spark.broadcast import MESSAGE_BYTES_MAX, SharedValue, local_path, ship, ship_keys
from ssbroker.spark.columns import check_free_names
from ssbroker.spark.files.parquet import Compression, Source, Split, TaskFiles, files_of, read, splits_of
from ssbroker.spark.files.staging import ProgressWatch, Staging, complete, new_attempt, run
from ssbroker.spark.reassembly import native_keys
from ssbroker.spark.worker import RouteTask, router_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pc: Any = pyarrow.compute  # its stubs know too little of it
_HELD_BYTES_MIN: Final = 16 << 20
_HELD_BYTES_MAX: Final = 64 << 20
_HELD_BYTES_OF_A_BUCKET: Final = 2 << 20
_PLAIN: Final = pa.ipc.IpcWriteOptions()
_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_SAMPLE_ROWS: Final = 64
_SAVING: Final = 0.8
"""What is left of rows that are worth to be compressed."""
_IDS: Final = ("conversation_id", "conversation_handle")
_FILES_MAX: Final = 16
"""The files of a reader; the buckets of one stand beside each other, and it can go when they are done."""
_PLACES: Final = ".places"
"""Beside each file another one says which of its batches are of which bucket: all readers' together are too many for one to know."""


class BucketWriter:
    """Writes the rows of one reader, those of each bucket together.

    Args:
        folder: Where the files will stand; a file without rows is not made.
        schema: The columns.
        count: How many buckets there are.
        secret: What ids are hashed with, so that nobody can choose ids that meet in one bucket.
    """

    def __init__(self, folder: Path, schema: pa.Schema, *, count: int, secret: bytes) -> None:
        self.folder: Final = folder
        self._count: Final = count
        self._secret: Final = secret
        self._schema: Final = schema
        self._files: Final[dict[int, _File]] = {}
        self._options: pa.ipc.IpcWriteOptions | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._held = 0
        self._held_most: Final = held_bytes(count)

    @property
    def files(self) -> list[int]:
        """The numbers of the files that there are."""
        return sorted(self._files)

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows."""
        self._waiting.append(batch)
        self._held += batch.nbytes
        if self._held >= self._held_most:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        for file in self._files.values():
            file.close(whole=error is None)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._waiting, self._held = [], 0
        numbers = bucket_numbers(table, count=self._count, secret=self._secret)
        order = pc.sort_indices(numbers)  # stable: the rows of a bucket stay as they came
        ordered, sorted_numbers = table.take(order), numbers.take(order)
        runs = pc.run_end_encode(sorted_numbers)
        start = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            rows = ordered.slice(start, end - start)
            file = self._opened(number, rows)
            for batch in rows.combine_chunks().to_batches():
                file.write(number, batch)
            start = end

    def _opened(self, bucket: int, rows: pa.Table) -> _File:
        number = file_number(bucket, count=self._count)
        if number not in self._files:
            if self._options is None:
                sample = rows.slice(0, _SAMPLE_ROWS)
                saves = _written_bytes(sample, _LZ4) < _SAVING * _written_bytes(sample, _PLAIN)
                self._options = _LZ4 if saves else _PLAIN
            self._files[number] = _File(file_of(self.folder, number), self._schema, self._options)
        return self._files[number]


class _File:
    """One file in the making, and what stands beside it."""

    def __init__(self, path: Path, schema: pa.Schema, options: pa.ipc.IpcWriteOptions) -> None:
        self._path: Final = path
        self._sink: Final = pa.OSFile(str(path), "wb")
        self._writer: Final = pa.ipc.new_file(self._sink, schema, options=options)
        self._batches: Final = itertools.count()
        self._places: Final[dict[int, list[int]]] = defaultdict(list)

    def write(self, bucket: int, batch: pa.RecordBatch) -> None:
        """Appends rows of a bucket."""
        self._writer.write_batch(batch)
        self._places[bucket].append(next(self._batches))

    def close(self, *, whole: bool) -> None:
        if whole:
            self._writer.close()
            self._path.with_suffix(_PLACES).write_text(json.dumps(self._places), encoding="ascii")
        self._sink.close()


def held_bytes(count: int) -> int:
    """How much a reader holds before it writes what it has of each bucket: little, which is the same memory again, but for many buckets.

    Args:
        count: How many buckets there are.

    Examples:
        >>> [held_bytes(count) >> 20 for count in (1, 8, 16, 40, 10_000)]
        [16, 16, 32, 64, 64]
    """
    return min(_HELD_BYTES_MAX, max(_HELD_BYTES_MIN, count * _HELD_BYTES_OF_A_BUCKET))


def file_of(folder: Path, number: int) -> Path:
    """One of the files of a reader.

    Args:
        folder: Where its files stand.
        number: The number of the file.
    """
    return folder / f"{number}.arrow"


def file_number(bucket: int, *, count: int) -> int:
    """The number of the file in which the rows of a bucket stand, of each reader.

    Args:
        bucket: The bucket.
        count: How many buckets there are.

    Examples:
        >>> [file_number(bucket, count=40) for bucket in (0, 1, 2, 3, 39)]
        [0, 0, 0, 1, 15]
        >>> buckets_beside(3, count=40)
        range(3, 5)
    """
    return bucket * min(count, _FILES_MAX) // count


def buckets_beside(bucket: int, *, count: int) -> range:
    """The buckets that are in the same files as one.

    Args:
        bucket: The bucket.
        count: How many buckets there are.
    """
    number, files = file_number(bucket, count=count), min(count, _FILES_MAX)
    return range(-(-number * count // files), -(-(number + 1) * count // files))


def rows_of(file: Path, bucket: int) -> Iterator[pa.RecordBatch]:
    """The batches of one bucket in a file of a reader.

    Args:
        file: The file.
        bucket: The bucket.

    Yields:
        The batches, in the order in which they were written.
    """
    places = json.loads(file.with_suffix(_PLACES).read_bytes()).get(str(bucket))
    if places is None:
        return
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        for place in places:
            yield reader.get_batch(place)


def remove(file: Path) -> None:
    """Removes a file of a reader, if it is still there.

    Args:
        file: The file.
    """
    for path in (file, file.with_suffix(_PLACES)):
        path.unlink(missing_ok=True)


def _written_bytes(table: pa.Table, options: pa.ipc.IpcWriteOptions) -> int:
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.size()


def bucket_numbers(table: pa.Table, *, count: int, secret: bytes) -> Any:
    """The bucket of each row: rows of one conversation are in one, in whichever form its id is written.

    Args:
        table: The rows.
        count: How many buckets there are.
        secret: What ids are hashed with.

    Returns:
        An array of `int32`. A row without an id is in bucket 0.

    Examples:
        >>> import uuid
        >>> ids = [str(uuid.UUID(int=number)) for number in range(100)]
        >>> plain, braced = pa.table({"conversation_id": ids}), pa.table({"conversation_id": [f"{{{each.upper()}}}" for each in ids]})
        >>> one, other = (bucket_numbers(table, count=7, secret=b"any") for table in (plain, braced))
        >>> one == other, len(set(one.to_pylist()))
        (True, 7)
    """
    name = next(name for name in _IDS if name in table.column_names)
    ids: Any = table[name].combine_chunks()
    if pa.types.is_dictionary(ids.type):
        ids = ids.cast(ids.type.value_type)
    if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type):
        ids = _as_bytes(ids)
    joined = pc.binary_join_element_wise(secret, ids.cast(pa.binary()), b"")
    heads = memoryview(md5(joined).buffers()[1]).cast("Q")[: 2 * len(ids) : 2]
    numbers = pa.array([head % count for head in heads.tolist()], pa.int32())
    return pc.if_else(pc.is_valid(ids), numbers, pa.scalar(0, pa.int32()))


def _as_bytes(texts: Any) -> Any:
    """The same bytes for the same id: its digits, however they are written."""
    return pc.utf8_lower(pc.replace_substring_regex(texts, pattern="[{}-]", replacement=""))


BATCH_ROWS: Final = 1 << 14

_UNIQUE: Final = ("conversation_id", "message_body", "message_signature")

Readers: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Where the rows of all buckets stand: the folder of each reader, and the numbers of its files."""


@dataclass(frozen=True, kw_only=True)
class FilesJob:
    """What every task has to know."""

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


def dealt(job: FilesJob, number: int) -> dict[str, Any]:
    """Reads a split, and deals its fragments out by conversation.

    Args:
        job: What every task knows.
        number: The split's.

    Returns:
        Where the files stand, and which there are.
    """
    split = job.splits[number]
    folder = new_attempt(Path(job.attempts))
    with BucketWriter(folder, job.schema, count=job.buckets, secret=job.secret) as writer:
        for batch in read(split, rows_most=BATCH_ROWS):
            writer.write(batch.cast(job.schema))
    Path(job.done, f"dealt-{number}").touch()
    return {"folder": str(folder), "files": writer.files}


def readers_of(told: list[dict[str, Any]]) -> Readers:
    """Where the rows of all buckets stand, in the order in which they were read.

    Args:
        told: What `dealt` came to, for each split.

    Returns:
        The readers. It grows with their number alone, for every task is told of it.
    """
    return tuple((one["folder"], tuple(one["files"])) for one in told)


def put_together(job: FilesJob, readers: Readers, number: int) -> dict[str, Any]:
    """Puts the fragments of a share together. The files that it was read from go as soon as all their shares are done.

    Args:
        job: What every task knows.
        readers: Where the rows of all shares stand.
        number: Which share.

    Returns:
        The files that were written, each with its name in the result and its rows, and how often each reason occurs. Where another try
        of the task was done before, these are its own.

    Raises:
        InputError: A value is not what was expected.
    """
    outcome, in_file = _outcome(job, number), file_number(number, count=job.buckets)
    files = [file_of(Path(folder), in_file) for folder, numbers in readers if in_file in numbers]
    try:
        if not outcome.exists():
            _put_together(job, files, number)
    except FileNotFoundError:  # another try was faster, and took the files away
        if not outcome.exists():
            raise
    told: dict[str, Any] = json.loads(outcome.read_bytes())
    beside = buckets_beside(number, count=job.buckets)
    if all(_outcome(job, bucket).exists() for bucket in beside):
        for file in files:
            remove(file)
    return told


def _put_together(job: FilesJob, files: list[Path], number: int) -> None:
    writing = _Writing(job, number)
    reassembler = Reassembler(
        max_pending_bytes=None,
        max_pending_messages=None,
        max_message_bytes=job.max_message_bytes,
        max_fragments_per_message=job.max_fragments_per_message,
        max_sequence_distance=None,
        in_order=job.in_order,
        session_keys=_keys_of(job.session_keys),
    )
    for file in files:
        for batch in rows_of(file, number):
            try:
                pushed = reassembler.push(batch)
            except InputError as error:
                error.add_note(f"Row 0 is the first of {batch.num_rows} rows of one share of the conversations.")
                raise
            writing.messages(pushed.messages)
            writing.rejected(pushed.rejected)
    writing.incomplete(reassembler.pending())
    if number == 0:  # the result has columns though it may have no rows
        writing.messages(job.messages.empty_table())
        writing.rejected(REJECTED.empty_table())
        writing.incomplete(PENDING.empty_table())
    writing.complete()


def _outcome(job: FilesJob, number: int) -> Path:
    """The file that says what a share came to: a later try of the task may find the rows gone."""
    return Path(job.done, f"whole-{number}")


class _Writing:
    """The files of one share."""

    def __init__(self, job: FilesJob, number: int) -> None:
        self._job: Final = job
        self._number: Final = number
        self._attempt: Final = new_attempt(Path(job.attempts))
        self._parts: dict[str, TaskFiles] = {}
        self._reasons: Counter[str] = Counter()

    def messages(self, rows: pa.Table) -> None:
        """Writes messages, with their decisions where they are routed."""
        for batch in rows.to_batches() or _no_rows(rows.schema):
            self._write("messages", self._routed(batch))

    def rejected(self, rows: pa.Table) -> None:
        """Writes what was refused."""
        self._reasons.update(str(reason) for reason in rows["reason"].to_pylist())
        for batch in rows.to_batches() or _no_rows(rows.schema):
            self._write("rejected", batch)

    def incomplete(self, rows: pa.Table) -> None:
        """Writes what is pending."""
        for batch in rows.to_batches() or _no_rows(rows.schema):
            self._write("incomplete", batch)

    def complete(self) -> None:
        """Completes the files, and tells of them."""
        files = []
        for kind, parts in self._parts.items():
            parts.close()
            complete([path for path, _ in parts.files.values()])
            files += [(f"{kind}/{name}", str(path), rows) for name, (path, rows) in parts.files.items()]
        told = self._attempt / "outcome.json"
        told.write_text(json.dumps({"files": files, "reasons": self._reasons}), encoding="utf-8")
        complete([told])
        told.replace(_outcome(self._job, self._number))

    def _write(self, kind: str, batch: pa.RecordBatch) -> None:
        if kind not in self._parts:
            if not batch.num_rows and self._number != 0:
                return
            folder = self._attempt / kind
            folder.mkdir()
            name = f"part-{self._number:05}"
            self._parts[kind] = TaskFiles(
                folder,
                name,
                batch.schema,
                partition_by=None,
                compression=self._job.compression,
                read=self._job.schema if kind == "messages" else None,
                unique=_UNIQUE,
                unordered=_UNIQUE,
            )
        self._parts[kind].write(batch)

    def _routed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        routing = self._job.routing
        if routing is None:
            return batch
        decided = router_of(routing.catalog, routing.tie_break, routing.pending_request).route(batch, now=routing.now)
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *decided.columns], names=[*batch.schema.names, *decided.schema.names]
        )


def _keys_of(given: str | SharedValue[dict[bytes, bytes]] | None) -> Any:
    return native_keys(given) if isinstance(given, SharedValue) else given


def _no_rows(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([], schema=schema)


SPLIT_BYTES: Final = 128 << 20
BUCKET_BYTES: Final = 128 << 20
BUCKETS_MAX: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ReassembledFiles:
    """What `reassemble_files` has written.

    Attributes:
        path: The folder, with the folders `messages`, `rejected` and `incomplete`.
        files: Its Parquet files, relative to it.
        messages: How many messages are whole and have come to their turn.
        rejected: How many fragments were refused, for each reason.
        incomplete: How many messages are incomplete, or wait for one that is.
    """

    path: Path
    files: tuple[str, ...]
    messages: int
    rejected: dict[str, int]
    incomplete: int


def reassemble_files(
    spark: SparkSession,
    source: Source,
    target: str | os.PathLike[str],
    *,
    catalog: Catalog | None = None,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
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
    """Puts Parquet files of fragments together into a folder of Parquet files: messages, whole, verified and in order, what was rejected, what is incomplete.

    Spark only hands out numbers. Some tasks read the files and deal the fragments out by conversation, into files beside the target;
    others put each share together. No row crosses between Python and the JVM, and a task needs room for one share. All paths have to
    be the same files for the driver and for every worker. The folder appears as a whole, or not at all.

    Args:
        spark: The session, classic or Spark Connect.
        source: A Parquet file, a folder of them, or several of both, all with the same columns: fragments (`schemas.FRAGMENTS`, the
            signatures left out or not), and any others, of which a message gets those of its fragment number 0.
        target: The folder to make.
        catalog: By which the messages are routed, too; then the columns of the decision are with them.
        now: The moment at which routes expire, None for that of this call. Without a zone it is UTC.
        tie_break: How one of several equals is picked: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.
        in_order: Whether a message waits for those before it in its direction; then the messages of a direction are in one file, in order.
        session_keys: Keys that encrypt the signatures, by conversation id, or the column that has them (and is left out of the messages).
        max_message_bytes: The largest message, at most 2**30; a larger one is rejected as `limit_exceeded`.
        max_fragments_per_message: The most fragments of a message, None for no limit.
        compression: How Parquet compresses.
        split_bytes: How many bytes of a file one task reads, about; a row group is never cut.
        bucket_bytes: How many bytes of files make a share, about. A conversation is never cut, so one that is larger makes its share larger.
        progress: Called with the tasks that are done and all of them, about twice a second, in a thread of its own.

    Returns:
        What was written. `_manifest.json` in the folder says the same.

    Raises:
        InputError: Something in `source` is not there, or a path is a URI.
        MalformedDataError: A file is no Parquet file.
        SchemaError: A column is missing, has a type that cannot be read or the name of a column of the decision.
        OptionError: An option is not one of those allowed.
        OutputError: Something stands at `target`, or it cannot be written.

    Examples:
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
    columns.check_tie_break(tie_break)
    if compression not in get_args(Compression):
        raise OptionError(f"compression: expected one of {', '.join(get_args(Compression))}; got {compression!r:.80}")
    for name, value in (("split_bytes", split_bytes), ("bucket_bytes", bucket_bytes)):
        whole_number(value, name=name, minimum=1, maximum=2**63 - 1)
    boolean(in_order, name="in_order")
    whole_number(max_message_bytes, name="max_message_bytes", minimum=1, maximum=MESSAGE_BYTES_MAX)
    if max_fragments_per_message is not None:
        whole_number(max_fragments_per_message, name="max_fragments_per_message", minimum=1, maximum=2**31 - 1)
    normal = keys.normalize_session_keys(session_keys)
    files, folder = files_of(source), local_path(target, name="target")
    schema, splits = splits_of(files, split_bytes=split_bytes)
    rehearsed = reassemble(schema.empty_table(), session_keys=session_keys)
    routing = None
    if catalog is not None:
        check_free_names(schema.names, exact=False)
        at = utc_datetime(now)
        Router(catalog, tie_break=tie_break, pending_request=pending_request).route(rehearsed.messages, now=at)
        routing = RouteTask(catalog=ship(spark, catalog), now=at, tie_break=tie_break, pending_request=pending_request)
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
            session_keys=ship_keys(spark, normal) if isinstance(normal, dict) else _column(normal),
            routing=routing,
        )
        with ProgressWatch(staging.done, len(splits) + job.buckets, progress):
            told = run(spark, len(splits), functools.partial(dealt, job))
            results = run(spark, job.buckets, functools.partial(put_together, job, readers_of(told)))
        placed = {Path(path): name for result in results for name, path, _ in result["files"]}
        counted = _told(results)
        staging.commit(
            placed,
            {
                "source": [str(file) for file in files],
                "catalog": None if catalog is None else catalog.fingerprint,
                "now": None if routing is None else routing.now.isoformat(),
                "in_order": in_order,
                **counted,
                "files": [{"name": name, "rows": rows} for result in results for name, _, rows in result["files"]],
            },
        )
    return ReassembledFiles(path=folder, files=tuple(placed.values()), **counted)


def bucket_count(size: int, bucket_bytes: int) -> int:
    """How many shares there are: one, or a multiple of four, so that two or four cores are done at the same time.

    Args:
        size: The bytes of the files.
        bucket_bytes: How many a share has at most, about.

    Examples:
        >>> [bucket_count(size, 100) for size in (0, 100, 101, 400, 401, 10**9)]
        [1, 1, 4, 4, 8, 65536]
    """
    count = -(-size // bucket_bytes)
    return min(BUCKETS_MAX, 1 if count <= 1 else -(-count // 4) * 4)


def _told(results: list[dict[str, Any]]) -> dict[str, Any]:
    rows: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result["reasons"])
        for name, _, count in result["files"]:
            rows[name.partition("/")[0]] += count
    return {"messages": rows["messages"], "rejected": dict(reasons), "incomplete": rows["incomplete"]}


def _column(normal: object) -> str | None:
    return normal if isinstance(normal, str) else None
