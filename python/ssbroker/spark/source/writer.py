"""Sends the rows of a Spark job as messages, exactly once."""

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

from ssbroker.broker.database import database_context
from ssbroker.broker.dialogs.bulk_send import (
    ADDRESS,
    BODY,
    DIALOG,
    MESSAGE_TYPE,
    NumberedBatch,
    send_batch_once,
)
from ssbroker.catalog.instance_folder import is_instance_folder
from ssbroker.exceptions import InputError, OptionError, OutputError, SchemaError
from ssbroker.spark.source.options import WriteOptions
from ssbroker.spark.source.reader import open_instance

STAGING_FOLDER: Final = ".spark-staging"
POSITION: Final = "position"
_ABANDONED_SECONDS: Final = 7 * 24 * 3600
_PART_ROWS: Final = 8192
_PART_BYTES: Final = 32 << 20
_compute: Final[Any] = pyarrow.compute  # the stubs are incomplete


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A task's report to the driver about the rows that it wrote."""

    file: str
    """The path of the file; empty if no file was written."""
    rows: int
    """The number of rows in the file."""
    partition: int
    """The index of the task's partition; rows are ordered by partition."""
    query_id: str | None
    """The streaming query of the task; None for a batch write."""


def job_folder(folder: Path, name: str, batch_id: int | None = None) -> Path:
    """Returns the folder for the files of a batch write, or of a micro-batch of a stream."""
    return (
        folder / STAGING_FOLDER / name
        if batch_id is None
        else folder / STAGING_FOLDER / f"query-{name}" / str(batch_id)
    )


def stage(
    folder: Path, staging: Path, batches: Iterable[pa.RecordBatch], *, partition: int, query_id: str | None
) -> StagedRows:
    """Writes the rows of a task into a file in the instance folder, in a worker.

    Raises `InputError` if the worker finds no instance in the folder or a string is not valid UTF-8, and `OutputError` if the file cannot be
    written.
    """
    if not is_instance_folder(folder):
        raise InputError(
            f"{folder}: the worker finds no instance in this folder; the driver and all workers must have access to it under this path",
            value=str(folder),
        )
    path, rows = staging / f"{uuid.uuid4().hex}.arrow", 0
    writer = None
    try:
        staging.mkdir(parents=True, exist_ok=True)
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
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return StagedRows(str(path) if writer is not None else "", rows, partition, query_id)


def ordered_parts(staged: Sequence[StagedRows]) -> Iterator[pa.Table]:
    """Yields the rows of a job in parts of bounded size, ordered by position with nulls last, or by partition if there is no position column."""
    tables = [
        _read_staged(staged_rows)
        for staged_rows in sorted(staged, key=lambda staged_rows: staged_rows.partition)
        if staged_rows.rows
    ]
    if not tables:
        return
    if POSITION not in tables[0].column_names:
        for table in tables:
            for start in range(0, table.num_rows, rows_per_part := _rows_per_part(table)):
                yield table.slice(start, rows_per_part)
        return
    yield from _by_position([batch for table in tables for batch in table.to_batches()])


def remove_files(staged: Iterable[StagedRows | None]) -> None:
    """Removes the staged files of tasks."""
    for staged_rows in staged:
        if staged_rows is not None and staged_rows.file:
            with suppress(OSError):
                Path(staged_rows.file).unlink()


def remove_finished(folder: Path, name: str, batch_id: int | None = None, *, now: float | None = None) -> None:
    """Removes the files of a finished batch write, or of the sent micro-batch `batch_id` and all earlier ones.

    The files of jobs that were abandoned more than a week ago are also removed. `now` is the time in seconds since
    1970; None for the current time.
    """
    staging = folder / STAGING_FOLDER
    job = job_folder(folder, name, batch_id)
    batches = (
        [job] if batch_id is None else [batch for batch in _subfolders(job.parent) if _is_up_to(batch.name, batch_id)]
    )
    for finished in batches:
        shutil.rmtree(finished, ignore_errors=True)
    current = time.time() if now is None else now
    for leftover in _subfolders(staging):
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in (leftover, *leftover.rglob("*")))
            if current - newest > _ABANDONED_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


def _is_up_to(name: str, batch_id: int) -> bool:
    return name.isdigit() and int(name) <= batch_id


def _subfolders(staging: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(staging) if entry.is_dir()]
    except OSError:
        return []


def _check_text(batch: pa.RecordBatch) -> None:
    """Raises `InputError` for invalid UTF-8, which Spark strings may contain."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise InputError(f"{field.name}: contains invalid UTF-8: {error}", column=field.name) from error


def _read_staged(staged_rows: StagedRows) -> pa.Table:
    try:
        with pa.memory_map(staged_rows.file) as source:
            table = pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(
            f"{staged_rows.file}: the staged file is damaged ({error}); run the write again", value=staged_rows.file
        ) from error
    if table.num_rows != staged_rows.rows:
        raise InputError(
            f"{staged_rows.file}: the staged file is damaged (it has {table.num_rows} rows instead of {staged_rows.rows}); run the write again",
            value=staged_rows.file,
        )
    return table


def _by_position(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields the rows ordered by position. Only one part is copied at a time; columns are not concatenated, because they may exceed 2 GiB."""
    positions: Any = pa.chunked_array([batch.column(POSITION) for batch in batches])
    order: Any = _compute.sort_indices(positions)
    firsts = [0, *itertools.accumulate(batch.num_rows for batch in batches)]
    sizes: Any = pa.concat_arrays([_compute.binary_length(batch.column(BODY)) for batch in batches])
    numbers: list[int] = []
    held_bytes = 0
    for at in range(0, len(order), _PART_ROWS):
        coming = order.slice(at, _PART_ROWS)
        for number, size in zip(coming.tolist(), sizes.take(coming).tolist(), strict=True):
            if numbers and (len(numbers) == _PART_ROWS or held_bytes + (size or 0) > _PART_BYTES):
                yield _take_rows(batches, firsts, numbers)
                numbers, held_bytes = [], 0
            numbers.append(number)
            held_bytes += size or 0
    if numbers:
        yield _take_rows(batches, firsts, numbers)


def _take_rows(batches: Sequence[pa.RecordBatch], firsts: Sequence[int], numbers: Sequence[int]) -> pa.Table:
    """Returns the rows at these indices of all batches together, in this order."""
    ascending = sorted(range(len(numbers)), key=numbers.__getitem__)
    pieces = []
    for index, group in itertools.groupby(ascending, key=lambda at: bisect.bisect_right(firsts, numbers[at]) - 1):
        pieces.append(batches[index].take(pa.array([numbers[at] - firsts[index] for at in group], pa.int64())))
    back = [0] * len(numbers)
    for found_at, at in enumerate(ascending):
        back[at] = found_at
    return pa.Table.from_batches(pieces).take(pa.array(back, pa.int64()))


def _rows_per_part(table: pa.Table) -> int:
    """Returns the number of rows of one part, which bounds the memory that a part needs."""
    return max(1, min(_PART_ROWS, _PART_BYTES * table.num_rows // max(1, table.nbytes)))


_LOGGER: Final = logging.getLogger("ssbroker.spark")

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_ORDERED_TYPES: Final = (*_INTEGERS, "float", "double", "string", "date", "timestamp", "timestamp_ntz")
_COLUMN_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    BODY: ("binary",),
    MESSAGE_TYPE: ("string",),
    **dict.fromkeys(ADDRESS, ("string",)),
    "to_broker_instance": ("string", "binary"),
    DIALOG: ("string", "binary", *_INTEGERS),
    POSITION: _ORDERED_TYPES,
}


@dataclass(frozen=True, slots=True)
class Sink:
    """A planned write into an instance; the driver sends the plan to the workers.

    Attributes:
        options: The options of the write.
        job: The name of the folder for the files of a batch write.
    """

    options: WriteOptions
    job: str

    @classmethod
    def of(cls, options: WriteOptions, columns: Mapping[str, str], *, overwrite: bool, is_stream: bool) -> Sink:
        """Checks the columns (names and types in Spark DDL) and the mode, and creates a write.

        Raises `OptionError` for mode overwrite and for a stream with `query_id` or `batch_id`, and `SchemaError` for a missing, unknown or
        mistyped column.
        """
        if overwrite:
            raise OptionError("mode('overwrite'): sent messages cannot be replaced; use mode('append')")
        if is_stream and options.batch is not None:
            raise OptionError("query_id and batch_id: omit them in a stream, because Spark numbers its batches")
        for name, data_type in columns.items():
            if name not in _COLUMN_TYPES:
                raise SchemaError(f"unknown column {name!r}; expected one of {', '.join(_COLUMN_TYPES)}", column=name)
            if data_type not in _COLUMN_TYPES[name]:
                expected = " or ".join(_COLUMN_TYPES[name])
                raise SchemaError(
                    f"column {name!r} has type {data_type}; expected {expected}",
                    column=name,
                    expected=expected,
                    actual=data_type,
                )
        for name, default in ((BODY, None), *((name, getattr(options.defaults, name)) for name in ADDRESS[:2])):
            if name not in columns and default is None:
                or_option = "" if name == BODY else ", or set the option with this name"
                raise SchemaError(
                    f"missing column {name!r}; add it ({' or '.join(_COLUMN_TYPES[name])}){or_option}", column=name
                )
        return cls(options, f"job-{uuid.uuid4().hex}")

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        partition: int,
        query_id: str | None = None,
        batch_id: int | None = None,
    ) -> StagedRows:
        """Writes the rows of a task to the instance folder, in a worker; `query_id` and `batch_id` are for streams."""
        folder = self.options.folder
        staging = job_folder(folder, self.job if query_id is None else query_id, batch_id)
        return stage(folder, staging, batches, partition=partition, query_id=query_id)

    def commit(self, staged: Sequence[StagedRows], batch_id: int | None = None) -> None:
        """Sends the staged rows and records the batch as sent, in one transaction; sends nothing if the batch was already sent."""
        options = self.options
        query_id = next((staged_rows.query_id for staged_rows in staged), None)
        batch = options.batch if query_id is None or batch_id is None else NumberedBatch(query_id, batch_id)
        if any(staged_rows.rows for staged_rows in staged):
            with open_instance(options.folder) as instance:
                database = instance.database(options.database)
                sent = send_batch_once(database_context(database), ordered_parts(staged), options.defaults, batch=batch)
            if sent is None and batch is not None:
                self._log_already_sent(batch, is_stream=query_id is not None)
        remove_files(staged)
        remove_finished(options.folder, query_id or self.job, None if query_id is None else batch_id)

    def _log_already_sent(self, batch: NumberedBatch, *, is_stream: bool) -> None:
        """Logs that the batch was skipped. This is normal after the restart of a stream, but a batch write may have reused a number by mistake."""
        if is_stream:
            _LOGGER.info(
                "%s: skipped batch %d of query %s: it was already sent",
                self.options.folder,
                batch.batch_id,
                batch.writer,
            )
            return
        _LOGGER.warning(
            "%s: this write was skipped: batch_id %d of query_id %r, or a later one, was already sent; "
            "use a higher batch_id for new rows",
            self.options.folder,
            batch.batch_id,
            batch.writer,
        )

    def abort(self, staged: Iterable[StagedRows | None]) -> None:
        """Removes the staged files; rows that were sent are in the database and are not affected."""
        remove_files(staged)
        remove_finished(self.options.folder, self.job)
