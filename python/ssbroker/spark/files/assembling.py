"""What `reassemble_files` runs in Spark's Python workers: fragments dealt out by conversation, and each share put together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ssbroker.exceptions import InputError
from ssbroker.reassembler import Reassembler
from ssbroker.schemas import PENDING, REJECTED
from ssbroker.spark.assembling import native_keys
from ssbroker.spark.files.buckets import BucketWriter, buckets_beside, file_number, file_of, remove, rows_of
from ssbroker.spark.files.parts import Compression, Parts
from ssbroker.spark.files.splits import Split, read
from ssbroker.spark.files.staging import complete, new_attempt
from ssbroker.spark.shipping import Shipped
from ssbroker.spark.worker import Task, router_of

BATCH_ROWS: Final = 1 << 14

_UNIQUE: Final = ("conversation_id", "message_body", "message_signature")

Readers: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Where the rows of all buckets stand: the folder of each reader, and the numbers of its files."""


@dataclass(frozen=True, kw_only=True)
class Job:
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
    session_keys: str | Shipped[dict[bytes, bytes]] | None = field(repr=False)
    routing: Task | None


def dealt(job: Job, number: int) -> dict[str, Any]:
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


def put_together(job: Job, readers: Readers, number: int) -> dict[str, Any]:
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


def _put_together(job: Job, files: list[Path], number: int) -> None:
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


def _outcome(job: Job, number: int) -> Path:
    """The file that says what a share came to: a later try of the task may find the rows gone."""
    return Path(job.done, f"whole-{number}")


class _Writing:
    """The files of one share."""

    def __init__(self, job: Job, number: int) -> None:
        self._job: Final = job
        self._number: Final = number
        self._attempt: Final = new_attempt(Path(job.attempts))
        self._parts: dict[str, Parts] = {}
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
            self._parts[kind] = Parts(
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


def _keys_of(given: str | Shipped[dict[bytes, bytes]] | None) -> Any:
    return native_keys(given) if isinstance(given, Shipped) else given


def _no_rows(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([], schema=schema)
