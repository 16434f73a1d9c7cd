"""Rows on their way from the tasks to the driver, in files beside the instance (U24)."""

from __future__ import annotations

import bisect
import itertools
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from ssbroker.broker.dialogs.rows import BODY
from ssbroker.exceptions import InputError, OutputError
from ssbroker.instance_folder import is_instance

PLACE: Final = ".spark-staging"
POSITION: Final = "position"
_FORGOTTEN_SECONDS: Final = 7 * 24 * 3600
_ROWS: Final = 8192
_BYTES: Final = 32 << 20
_compute: Final[Any] = pyarrow.compute  # its stubs know too little of it


@dataclass(frozen=True, slots=True)
class Staged:
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
) -> Staged:
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
    if not is_instance(folder):
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
    return Staged(str(path) if writer is not None else "", rows, partition, query_id)


def parts_of(staged: Sequence[Staged]) -> Iterator[pa.Table]:
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


def forget(staged: Iterable[Staged | None]) -> None:
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


def _table(one: Staged) -> pa.Table:
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
