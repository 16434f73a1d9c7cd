"""Files of fragments put together where they stand: readers deal fragments out by conversation, and others put each share together."""

from __future__ import annotations

import functools
import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from ssbroker import moment, options
from ssbroker import session_keys as keys
from ssbroker.catalog import Catalog
from ssbroker.exceptions import OptionError
from ssbroker.reassembler import reassemble
from ssbroker.routing import PendingRequest, Router, TieBreak
from ssbroker.session_keys import SessionKeys
from ssbroker.spark import columns
from ssbroker.spark.files.assembling import Job, dealt, put_together, readers_of
from ssbroker.spark.files.parts import Compression
from ssbroker.spark.files.splits import Source, files_of, splits_of
from ssbroker.spark.files.staging import Staging
from ssbroker.spark.files.tasks import Watch, run
from ssbroker.spark.names import check_free_names
from ssbroker.spark.paths import local_path
from ssbroker.spark.room import MESSAGE_BYTES_MAX
from ssbroker.spark.shipping import ship, ship_keys
from ssbroker.spark.worker import Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        options.whole(value, name=name, least=1, most=2**63 - 1)
    options.flag(in_order, name="in_order")
    options.whole(max_message_bytes, name="max_message_bytes", least=1, most=MESSAGE_BYTES_MAX)
    if max_fragments_per_message is not None:
        options.whole(max_fragments_per_message, name="max_fragments_per_message", least=1, most=2**31 - 1)
    normal = keys.normal(session_keys)
    files, folder = files_of(source), local_path(target, name="target")
    schema, splits = splits_of(files, split_bytes=split_bytes)
    rehearsed = reassemble(schema.empty_table(), session_keys=session_keys)
    routing = None
    if catalog is not None:
        check_free_names(schema.names, exact=False)
        at = moment.as_utc(now)
        Router(catalog, tie_break=tie_break, pending_request=pending_request).route(rehearsed.messages, now=at)
        routing = Task(catalog=ship(spark, catalog), now=at, tie_break=tie_break, pending_request=pending_request)
    size = sum(file.stat().st_size for file in files)
    with Staging(folder) as staging:
        job = Job(
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
        with Watch(staging.done, len(splits) + job.buckets, progress):
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
