"""Input files as a sequence of chunks: runs of rows, small enough to hold several in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

CHUNK_BYTES: Final = 4 << 20
CHUNK_ROWS: Final = 32_768
IN_FLIGHT_BYTES_MAX: Final = 64 << 20
"""The approximate size of the input that is processed at the same time."""
UNMERGED_ROWS_MAX: Final = 200_000
"""The number of rows in the results of chunks above which these results are merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedChunk:
    """The rows of a chunk."""

    batch: pa.RecordBatch
    """The columns; if `json_lines` is set, only the columns that the command reads."""
    json_lines: Any = None
    """The JSON text of each row, if lines of the file are copied to the output."""
    invalid: pa.Table | None = None
    """The rows with cells that cannot be converted (`schemas.REJECTED_CONVERSATIONS`, counted from the first row of the chunk), if the
    command lists them; their converted cells have arbitrary values."""


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
    """Yields the chunks of all files, each with the total number of bytes read so far."""
    bytes_before = 0
    for input_file in inputs:
        for chunk in input_file.chunks():
            yield chunk, bytes_before + chunk.end_position
        bytes_before += input_file.file.stat().st_size


def total_bytes(inputs: Sequence[InputFile]) -> int:
    """Returns the total size of all files."""
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
