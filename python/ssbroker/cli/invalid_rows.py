"""Rows with invalid values, which a command lists in a file: their place, and the number of rows for each cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from ssbroker import _dataframes as dataframes
from ssbroker import schemas
from ssbroker._text import count_of, did_you_mean
from ssbroker.cli.chunks import Chunk, LoadedChunk

pc: Any = pyarrow.compute  # the stubs support neither Python constants nor text with 64-bit offsets

INVALID_ROWS_SCHEMA: Final = pa.schema([pa.field("file", pa.string(), nullable=False), *schemas.REJECTED_CONVERSATIONS])
"""The columns of a file that lists invalid rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidRows:
    """The rows of a chunk, without those whose cells cannot be converted."""

    loaded: LoadedChunk
    row_in_file: Callable[[int], int]
    """Converts the numbers of the loaded rows to row numbers in the file."""
    invalid: list[pa.RecordBatch]
    """The rows whose cells cannot be converted (`INVALID_ROWS_SCHEMA`)."""


def load_valid_rows(chunk: Chunk) -> ValidRows:
    """Loads the rows of a chunk without those that `LoadedChunk.invalid` lists; returns these separately."""
    loaded = chunk.load()
    if loaded.invalid is None:
        return ValidRows(loaded=loaded, row_in_file=chunk.row_in_file, invalid=[])
    kept = dataframes.kept_rows(loaded.invalid, rows=loaded.batch.num_rows)
    kept_numbers = pc.indices_nonzero(pa.array(kept))
    return ValidRows(
        loaded=_filter_rows(loaded, kept),
        row_in_file=lambda row: chunk.row_in_file(kept_numbers[row].as_py()),
        invalid=[invalid_in_file(loaded.invalid, chunk, chunk.row_in_file)],
    )


def without_invalid_rows(loaded: LoadedChunk, invalid: pa.Table) -> LoadedChunk:
    """Returns the rows of a chunk except those whose numbers are in `invalid`."""
    return _filter_rows(loaded, dataframes.kept_rows(invalid, rows=loaded.batch.num_rows))


def _filter_rows(loaded: LoadedChunk, kept: list[bool]) -> LoadedChunk:
    lines = None if loaded.json_lines is None else loaded.json_lines.filter(pa.array(kept))
    return LoadedChunk(batch=dataframes.filter_batch(loaded.batch, kept), json_lines=lines)


def invalid_in_file(invalid: pa.Table, chunk: Chunk, row_in_file: Callable[[int], int]) -> pa.RecordBatch:
    """Adds the file name to invalid rows, and converts their row numbers to row numbers in the file."""
    numbers: list[Any] = invalid["row"].to_pylist()
    columns: list[Any] = [
        pa.array([str(chunk.file)] * len(numbers), pa.string()),
        pa.array(map(row_in_file, numbers), pa.int64()),
        *(dataframes.single_array(column) for column in invalid.columns[1:]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INVALID_ROWS_SCHEMA)


def in_order(invalid: list[pa.RecordBatch]) -> pa.Table:
    """Returns the invalid rows of one chunk in the order of the file."""
    return pa.Table.from_batches(invalid, schema=INVALID_ROWS_SCHEMA).sort_by("row")


@dataclass(slots=True)
class InvalidCause:
    """Why rows are invalid. `example` is the value of one of them; None if it is null."""

    column: str
    reason: str
    example: str | None
    rows: int = 0


class CauseCounts:
    """Counts invalid rows by cause; memory grows only with the number of causes."""

    def __init__(self) -> None:
        self._causes: dict[tuple[str, str], InvalidCause] = {}

    def add(self, column: str, reason: str, *, example: str | None, rows: int = 1) -> None:
        """Adds invalid rows with the same invalid column and reason."""
        cause = self._causes.setdefault((column, reason), InvalidCause(column, reason, example))
        cause.rows += rows

    def add_rows(self, invalid: pa.RecordBatch | pa.Table) -> None:
        """Adds the rows of a batch or table in `INVALID_ROWS_SCHEMA`."""
        columns = (invalid.column(name).to_pylist() for name in ("column", "reason", "value"))
        for column, reason, value in zip(*columns, strict=True):
            self.add(column, reason, example=value)

    def all(self) -> list[InvalidCause]:
        """Returns the causes, the most frequent first."""
        return sorted(self._causes.values(), key=lambda cause: (-cause.rows, cause.column, cause.reason))


@dataclass(frozen=True, kw_only=True, slots=True)
class InvalidRows:
    """The invalid rows of a run."""

    causes: Sequence[InvalidCause]
    output: str
    verb: str
    """What happened to the rows: `rejected` or `ignored`."""
    databases: Sequence[str] = ()
    """The databases of the catalog, one of which may be meant by an unknown name."""

    @property
    def rows(self) -> int:
        """The number of invalid rows."""
        return sum(cause.rows for cause in self.causes)

    def to_dict(self) -> dict[str, Any]:
        """Returns the invalid rows as values for JSON."""
        return {"rows": self.rows, "output": self.output, "causes": [asdict(cause) for cause in self.causes]}

    def lines(self) -> list[str]:
        """Returns the lines of the summary: the number of rows, then each cause."""
        causes = []
        for cause in self.causes:
            example = "" if cause.example is None else f", such as {cause.example!r}"
            meant = did_you_mean(cause.example or "", self.databases) if cause.reason == "unknown_database" else ""
            causes.append(f"  {cause.rows:,} x {cause.column}: {cause.reason}{example}{meant}")
        return [f"{count_of(self.rows, 'invalid row')} {self.verb}, listed in {self.output}", *causes]
