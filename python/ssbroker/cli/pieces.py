"""What readers hand on: a run of rows of one file, small enough that several fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

PIECE_BYTES: Final = 4 << 20
PIECE_ROWS: Final = 32_768


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows to be worked on."""

    columns: pa.RecordBatch
    """The columns; of JSON lines that are passed on as they are, only those that the command reads."""
    lines: Any = None
    """The objects of JSON lines as they stand in the file, where they are passed on as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A run of rows of one file."""

    file: Path
    """The file."""
    first_row: int
    """Its first row, counted from 0 in the file."""
    size: int
    """Its bytes in memory, about."""
    position: int
    """How many bytes of the file are read when it is done."""
    load: Callable[[], Rows]
    """Gives the rows; where that is work, it is left to the thread that works on them."""
    line_of: Callable[[int], int] | None = None
    """The line of the file on which a row of the piece stands, where lines may be blank; None where every line is a row."""

    def row_of(self, row: int) -> int:
        """The number in the file of a row of the piece, for errors."""
        return self.first_row + row if self.line_of is None else self.line_of(row)


class Source(Protocol):
    """A file that is read."""

    @property
    def file(self) -> Path:
        """The file."""
        ...

    @property
    def rows(self) -> int | None:
        """How many rows it has, None where that is not known before it is read."""
        ...

    @property
    def schema(self) -> pa.Schema | None:
        """Its columns, None where its lines are passed on as they are."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """Its rows, in order; at least one piece."""
        ...


def all_pieces(sources: Sequence[Source]) -> Iterator[tuple[Piece, int]]:
    """The pieces of all files, each with how much of all files is read when it is done.

    Examples:
        >>> list(all_pieces([]))
        []
    """
    before = 0
    for source in sources:
        for piece in source.pieces():
            yield piece, before + piece.position
        before += source.file.stat().st_size


def without_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns and no rows; unlike `pa.array`, it does not go and import pandas.

    Examples:
        >>> without_rows(pa.schema([("a", pa.int8())])).num_rows
        0
    """
    nulls: Any = pa.nulls  # its stubs know each type, but not all of them at once
    return pa.RecordBatch.from_arrays([nulls(0, kind) for kind in schema.types], schema=schema)


def rows_of(size: int, *, rows: int) -> int:
    """How many rows make a piece, where `rows` rows take `size` bytes.

    Examples:
        >>> rows_of(4_096_000, rows=1000)
        1024
    """
    if rows == 0 or size == 0:
        return PIECE_ROWS
    return max(1, min(PIECE_ROWS, PIECE_BYTES * rows // size))


def joined(batches: Iterator[tuple[pa.RecordBatch, int]], file: Path) -> Iterator[Piece]:
    """Pieces made of batches: large ones are cut, small ones put together.

    Args:
        batches: Each with the position in the file after it.
        file: The file they are from.

    Yields:
        The pieces.
    """
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = first_row = position = 0
    for batch, position_after in batches:
        position = position_after
        step = rows_of(batch.nbytes, rows=batch.num_rows)
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            if waiting and (waiting_rows + part.num_rows > PIECE_ROWS or waiting_bytes + part.nbytes > PIECE_BYTES):
                yield _piece(waiting, file, first_row, position)
                first_row += waiting_rows
                waiting, waiting_rows, waiting_bytes = [], 0, 0
            waiting.append(part)
            waiting_rows += part.num_rows
            waiting_bytes += part.nbytes
        if not waiting and first_row == 0:
            waiting = [batch]
    if waiting:
        yield _piece(waiting, file, first_row, position)


def _piece(batches: list[pa.RecordBatch], file: Path, first_row: int, position: int) -> Piece:
    batch = batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return Piece(file=file, first_row=first_row, size=batch.nbytes, position=position, load=lambda: Rows(columns=batch))
