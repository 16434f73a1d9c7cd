"""Sends the rows of a Spark job into dialogs, exactly once."""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.dialogs.bulk_send import ADDRESS, BODY, DIALOG, MESSAGE_TYPE, NumberedBatch, send_batch_once
from ssbroker.catalog.instance_folder import is_instance_folder
from ssbroker.exceptions import InputError, OptionError, OutputError, SchemaError
from ssbroker.spark.source.options import WriteOptions
from ssbroker.spark.source.reader import opened

PLACE: Final = ".spark-staging"
POSITION: Final = "position"
_FORGOTTEN_SECONDS: Final = 7 * 24 * 3600
_ROWS: Final = 8192
_BYTES: Final = 32 << 20
_compute: Final[Any] = pyarrow.compute  # its stubs know too little of it


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What one task tells the driver of the rows that it has written."""

    file: str
    """The file."""
    rows: int
    """How many rows it holds."""
    partition: int
    """The number of the task's partition; its rows come after those of smaller ones."""
    query_id: str | None
    """The stream that the task belongs to; None for a batch write."""


def job_of(folder: Path, name: str, batch_id: int | None = None) -> Path:
    """The place of a job's files: of a batch of a stream, or of a batch write."""
    return folder / PLACE / name if batch_id is None else folder / PLACE / f"query-{name}" / str(batch_id)


def stage(
    folder: Path, place: Path, batches: Iterable[pa.RecordBatch], *, partition: int, query_id: str | None
) -> StagedRows:
    """Writes the rows of a task, in a worker.

    Args:
        folder: The folder of the instance.
        place: The place of the job's files.
        batches: The rows.
        partition: The number of the task's partition.
        query_id: The stream, if it is one.

    Returns:
        What the driver is told.

    Raises:
        InputError: This worker does not see the folder, or text is none.
        OutputError: The file cannot be written.
    """
    if not is_instance_folder(folder):
        raise InputError(
            f"{folder}: is not the folder of an instance here, in the worker; driver and workers have to see the same one",
            value=str(folder),
        )
    path, rows = place / f"{uuid.uuid4().hex}.arrow", 0
    writer = None
    try:
        place.mkdir(parents=True, exist_ok=True)
        try:
            for batch in batches:
                _check_text(batch)
                if writer is None:
                    writer = pa.ipc.new_file(str(path), batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error}") from error
    return StagedRows(str(path) if writer is not None else "", rows, partition, query_id)


def parts_of(staged: Sequence[StagedRows]) -> Iterator[pa.Table]:
    """The rows of a job in parts of bounded size: by their position where they have one, those without one last; else as the partitions have them.

    Args:
        staged: What the tasks told.

    Yields:
        The parts, in order.

    Raises:
        InputError: A file is not what the task wrote.
    """
    tables = [_table(one) for one in sorted(staged, key=lambda one: one.partition) if one.rows]
    if not tables:
        return
    if POSITION not in tables[0].column_names:
        for table in tables:
            for start in range(0, table.num_rows, step := _step(table)):
                yield table.slice(start, step)
        return
    yield from _ordered([batch for table in tables for batch in table.to_batches()])


def forget(staged: Iterable[StagedRows | None]) -> None:
    """Removes the files of tasks."""
    for one in staged:
        if one is not None and one.file:
            with suppress(OSError):
                Path(one.file).unlink()


def sweep(folder: Path, name: str, batch_id: int | None = None, *, now: float | None = None) -> None:
    """Removes what nobody needs any more: of a job, of a stream's batches up to one that is sent, and of jobs that ended a week ago.

    Args:
        folder: The folder of the instance.
        name: The batch write, or the stream.
        batch_id: The batch of the stream that is sent.
        now: The moment in seconds since 1970; None is now.
    """
    place = folder / PLACE
    job = job_of(folder, name, batch_id)
    done = [job] if batch_id is None else [tries for tries in _folders(job.parent) if _is_up_to(tries.name, batch_id)]
    for folder_done in done:
        shutil.rmtree(folder_done, ignore_errors=True)
    moment = time.time() if now is None else now
    for left in _folders(place):
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
            if moment - newest > _FORGOTTEN_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _is_up_to(name: str, batch_id: int) -> bool:
    return name.isdigit() and int(name) <= batch_id


def _folders(place: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(place) if entry.is_dir()]
    except OSError:
        return []


def _check_text(batch: pa.RecordBatch) -> None:
    """Spark makes text of any bytes."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise InputError(f"{field.name}: holds bytes that are no text: {error}", column=field.name) from error


def _table(one: StagedRows) -> pa.Table:
    try:
        with pa.memory_map(one.file) as source:
            table = pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{one.file}: is not what the task wrote: {error}", value=one.file) from error
    if table.num_rows != one.rows:
        raise InputError(
            f"{one.file}: is not what the task wrote: {table.num_rows} rows, not {one.rows}", value=one.file
        )
    return table


def _ordered(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows by their position, in parts. Only what stands in a part is copied, and no column is ever in one piece: it may have more than 2 GiB."""
    positions: Any = pa.chunked_array([batch.column(POSITION) for batch in batches])
    order: Any = _compute.sort_indices(positions)
    firsts = [0, *itertools.accumulate(batch.num_rows for batch in batches)]
    sizes: Any = pa.concat_arrays([_compute.binary_length(batch.column(BODY)) for batch in batches])
    numbers: list[int] = []
    held = 0
    for at in range(0, len(order), _ROWS):
        coming = order.slice(at, _ROWS)
        for number, size in zip(coming.tolist(), sizes.take(coming).tolist(), strict=True):
            if numbers and (len(numbers) == _ROWS or held + (size or 0) > _BYTES):
                yield _taken(batches, firsts, numbers)
                numbers, held = [], 0
            numbers.append(number)
            held += size or 0
    if numbers:
        yield _taken(batches, firsts, numbers)


def _taken(batches: Sequence[pa.RecordBatch], firsts: Sequence[int], numbers: Sequence[int]) -> pa.Table:
    """The rows of these numbers, in their order."""
    ascending = sorted(range(len(numbers)), key=numbers.__getitem__)
    pieces = []
    for place, group in itertools.groupby(ascending, key=lambda at: bisect.bisect_right(firsts, numbers[at]) - 1):
        pieces.append(batches[place].take(pa.array([numbers[at] - firsts[place] for at in group], pa.int64())))
    back = [0] * len(numbers)
    for found_at, at in enumerate(ascending):
        back[at] = found_at
    return pa.Table.from_batches(pieces).take(pa.array(back, pa.int64()))


def _step(table: pa.Table) -> int:
    """How many rows to take at once, so that what is held in memory is bounded."""
    return max(1, min(_ROWS, _BYTES * table.num_rows // max(1, table.nbytes)))


_log: Final = logging.getLogger("ssbroker.spark")

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_ORDERED: Final = (*_INTEGERS, "float", "double", "string", "date", "timestamp", "timestamp_ntz")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    BODY: ("binary",),
    MESSAGE_TYPE: ("string",),
    **dict.fromkeys(ADDRESS, ("string",)),
    "to_broker_instance": ("string", "binary"),
    DIALOG: ("string", "binary", *_INTEGERS),
    POSITION: _ORDERED,
}


@dataclass(frozen=True, slots=True)
class Sink:
    """A write into an instance; it travels from the driver to the workers.

    Attributes:
        writing: How rows are sent.
        job: The name of a batch write's files.
    """

    writing: WriteOptions
    job: str

    @classmethod
    def of(cls, writing: WriteOptions, columns: Mapping[str, str], *, overwrite: bool, is_stream: bool) -> Sink:
        """A write of rows with these columns.

        Args:
            writing: How they are sent.
            columns: Names and types, as Spark's DDL has them.
            overwrite: Whether Spark is to replace what is there.
            is_stream: Whether it is the sink of a stream.

        Returns:
            The write.

        Raises:
            OptionError: Messages cannot be replaced, or a stream is told its number.
            SchemaError: A column is missing, unknown or has another type.
        """
        if overwrite:
            raise OptionError("what was sent cannot be replaced: expected mode('append')")
        if is_stream and writing.batch is not None:
            raise OptionError("query_id and batch_id: a stream has its own; they are for batch writes")
        for name, kind in columns.items():
            if name not in _TYPES:
                raise SchemaError(f"column {name!r} has no meaning here; there are {', '.join(_TYPES)}", column=name)
            if kind not in _TYPES[name]:
                expected = " or ".join(_TYPES[name])
                raise SchemaError(
                    f"column {name!r} is {kind}, expected {expected}", column=name, expected=expected, actual=kind
                )
        for name, said in ((BODY, None), *((name, getattr(writing.addressing, name)) for name in ADDRESS[:2])):
            if name not in columns and said is None:
                or_option = "" if name == BODY else ", or the option of that name"
                raise SchemaError(f"expected a column {name!r} ({' or '.join(_TYPES[name])}){or_option}", column=name)
        return cls(writing, f"job-{uuid.uuid4().hex}")

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        partition: int,
        query_id: str | None = None,
        batch_id: int | None = None,
    ) -> StagedRows:
        """Writes the rows of a task beside the instance, in a worker; `query_id` and `batch_id` are those of a stream."""
        folder = self.writing.folder
        place = job_of(folder, self.job if query_id is None else query_id, batch_id)
        return stage(folder, place, batches, partition=partition, query_id=query_id)

    def commit(self, told: Sequence[StagedRows], batch_id: int | None = None) -> None:
        """Sends what the tasks wrote, in one transaction with the note that it is sent; nothing where it was sent before.

        Args:
            told: What the tasks told.
            batch_id: The number of a stream's batch.

        Raises:
            BrokerError: A message is refused; nothing was sent.
            InputError: A value is not what was expected; nothing was sent.
            StorageError: The database cannot be written; nothing was sent.
        """
        writing = self.writing
        query_id = next((one.query_id for one in told), None)
        batch = writing.batch if query_id is None or batch_id is None else NumberedBatch(query_id, batch_id)
        if any(one.rows for one in told):
            with opened(writing.folder) as instance:
                database = instance.database(writing.database)
                sent = send_batch_once(database_context(database), parts_of(told), writing.addressing, batch=batch)
            if sent is None:
                self._tell_sent_before(batch, is_stream=query_id is not None)
        forget(told)
        sweep(writing.folder, query_id or self.job, None if query_id is None else batch_id)

    def _tell_sent_before(self, batch: NumberedBatch | None, *, is_stream: bool) -> None:
        """A stream gives a batch again when it goes on; who numbers batch writes may have used a number twice."""
        if batch is None or is_stream:
            _log.info("%s: batch %s was sent before", self.writing.folder, batch)
            return
        _log.warning(
            "%s: nothing is sent of this write: batch_id %d of query_id %r, or a later one, was sent before; rows that are new need a "
            "higher batch_id",
            self.writing.folder,
            batch.batch_id,
            batch.writer,
        )

    def abort(self, told: Iterable[StagedRows | None]) -> None:
        """Removes the files of tasks; what was sent stands in the database, and is no file."""
        forget(told)
        sweep(self.writing.folder, self.job)
