"""Input files as a sequence of chunks: runs of rows, small enough to hold several in memory, and a parallel map over them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

CHUNK_BYTES: Final = 4 << 20
CHUNK_ROWS: Final = 32_768
UNMERGED_ROWS_MAX: Final = 200_000
"""The maximum number of rows of the results of chunks before they are merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedChunk:
    """The rows of a chunk."""

    batch: pa.RecordBatch
    """The columns; if `json_lines` is set, only those that the command reads."""
    json_lines: Any = None
    """The JSON text of each row, if the lines of the file are copied to the output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A run of rows of one file."""

    file: Path
    first_row: int
    """The row number in the file of the first row, counted from 0."""
    memory_bytes: int
    """The approximate size of the rows in memory."""
    end_position: int
    """The number of bytes of the file that have been read at the end of the chunk."""
    load: Callable[[], LoadedChunk]
    """Returns the rows. Parsing, if any, happens here, in the thread that processes the chunk."""
    line_number: Callable[[int], int] | None = None
    """Maps a row of the chunk to its line in the file; None if each line is a row."""

    def row_in_file(self, row: int) -> int:
        """Returns the row number in the file of a row of the chunk, for error messages."""
        return self.first_row + row if self.line_number is None else self.line_number(row)


class InputFile(Protocol):
    """An open input file."""

    @property
    def file(self) -> Path:
        """The path."""
        ...

    @property
    def schema(self) -> pa.Schema | None:
        """The columns; None if lines of JSON are copied to the output."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order; at least one chunk, even if the file has no rows."""
        ...


def all_chunks(inputs: Sequence[InputFile]) -> Iterator[tuple[Chunk, int]]:
    """Yields the chunks of all files, each with the number of bytes of all files read at its end."""
    bytes_before = 0
    for input_file in inputs:
        for chunk in input_file.chunks():
            yield chunk, bytes_before + chunk.end_position
        bytes_before += input_file.file.stat().st_size


def total_bytes(inputs: Sequence[InputFile]) -> int:
    """Returns the size of all files."""
    return sum(input_file.file.stat().st_size for input_file in inputs)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch without rows; unlike `pa.array`, this does not import pandas."""
    nulls: Any = pa.nulls  # the stubs have one overload for each type, none for any type
    return pa.RecordBatch.from_arrays([nulls(0, data_type) for data_type in schema.types], schema=schema)


def rows_per_chunk(size: int, *, rows: int) -> int:
    """Returns the number of rows in a chunk, given that `rows` rows take `size` bytes."""
    if rows == 0 or size == 0:
        return CHUNK_ROWS
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES * rows // size))


def rechunk(batches: Iterator[tuple[pa.RecordBatch, int]], file: Path) -> Iterator[Chunk]:
    """Splits large batches and joins small ones; each batch comes with the file position after it."""
    buffered: list[pa.RecordBatch] = []
    buffered_rows = buffered_bytes = first_row = position = 0
    for batch, position_after in batches:
        position = position_after
        step = rows_per_chunk(batch.nbytes, rows=batch.num_rows)
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            if buffered and (buffered_rows + part.num_rows > CHUNK_ROWS or buffered_bytes + part.nbytes > CHUNK_BYTES):
                yield _chunk(buffered, file, first_row, position)
                first_row += buffered_rows
                buffered, buffered_rows, buffered_bytes = [], 0, 0
            buffered.append(part)
            buffered_rows += part.num_rows
            buffered_bytes += part.nbytes
        if not buffered and first_row == 0:
            buffered = [batch]
    if buffered:
        yield _chunk(buffered, file, first_row, position)


def _chunk(batches: list[pa.RecordBatch], file: Path, first_row: int, position: int) -> Chunk:
    batch = batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return Chunk(
        file=file,
        first_row=first_row,
        memory_bytes=batch.nbytes,
        end_position=position,
        load=lambda: LoadedChunk(batch=batch),
    )


IN_FLIGHT_BYTES_MAX: Final = 64 << 20
"""The approximate size of the input that is processed at the same time."""
_READ_THREADS_MAX: Final = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def configure_threads(requested: int | None) -> int:
    """Returns the number of worker threads, one per core by default, and limits the thread pool of pyarrow to it."""
    threads = requested or _available_cores()
    pa.set_cpu_count(min(threads, _READ_THREADS_MAX))  # pyarrow reads ahead the same amount for each of its threads
    return threads


def ordered_map(
    items: Iterator[Item],
    process: Callable[[Item], Result],
    *,
    threads: int,
    weight_of: Callable[[Item], int],
    weight_max: int,
) -> Generator[Result]:
    """Maps `process` over the items in worker threads; yields the results in the order of the items.

    One more thread reads the items ahead. An error is raised in place of the result of its item.

    Args:
        items: The input; advanced by one thread only.
        process: Called from several threads; with one thread, in order.
        threads: The number of worker threads.
        weight_of: The weight of an item, such as its size in bytes.
        weight_max: No item is started while those in progress weigh this much; a single item may weigh more.

    Examples:
        >>> list(ordered_map(iter("abc"), str.upper, threads=2, weight_of=len, weight_max=2))
        ['A', 'B', 'C']
    """
    ordered = _OrderedMap(items, process, threads=threads, weight_of=weight_of, weight_max=weight_max)
    try:
        yield from ordered.results()
    finally:
        ordered.stop()


class _OrderedMap(Generic[Item, Result]):
    def __init__(
        self,
        items: Iterator[Item],
        process: Callable[[Item], Result],
        *,
        threads: int,
        weight_of: Callable[[Item], int],
        weight_max: int,
    ) -> None:
        self._items = items
        self._process = process
        self._weight_of = weight_of
        self._weight_max = weight_max
        self._count_max = 2 * threads
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="worker")
        self._pending_read: Future[tuple[Item] | None] | None = self._reader.submit(self._read_next)
        self._in_progress: deque[tuple[int, Future[Result]]] = deque()
        self._weight = 0
        self._read_error: BaseException | None = None

    def results(self) -> Iterator[Result]:
        while self._pending_read is not None or self._in_progress:
            ready = self._wait_for_any()
            if self._pending_read is not None and self._pending_read in ready:
                self._submit(self._pending_read)
            elif self._in_progress and self._in_progress[0][1] in ready:
                weight, future = self._in_progress.popleft()
                self._weight -= weight
                yield future.result()
        if self._read_error is not None:
            raise self._read_error

    def stop(self) -> None:
        self._reader.shutdown(cancel_futures=True)
        self._workers.shutdown(cancel_futures=True)

    def _read_next(self) -> tuple[Item] | None:
        for item in self._items:
            return (item,)
        return None

    def _wait_for_any(self) -> set[Future[object]]:
        futures: set[Future[object]] = set()
        if self._pending_read is not None and (not self._in_progress or self._can_submit()):
            futures.add(self._pending_read)  # type: ignore[arg-type]  # Future is invariant; here it is only waited for
        if self._in_progress:
            futures.add(self._in_progress[0][1])  # type: ignore[arg-type]
        return wait(futures, return_when=FIRST_COMPLETED).done

    def _can_submit(self) -> bool:
        return len(self._in_progress) < self._count_max and self._weight < self._weight_max

    def _submit(self, pending_read: Future[tuple[Item] | None]) -> None:
        self._pending_read = None
        try:
            read = pending_read.result()
        except Exception as error:  # noqa: BLE001 - raised after the results of the items before it
            self._read_error = error
            return
        if read is None:
            return
        weight = self._weight_of(read[0])
        self._weight += weight
        self._in_progress.append((weight, self._workers.submit(self._process, read[0])))
        self._pending_read = self._reader.submit(self._read_next)


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
