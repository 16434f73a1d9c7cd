"""Files with columns: Parquet, Arrow IPC and CSV, read a piece at a time."""

from __future__ import annotations

import csv
import mmap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ssbroker import further
from ssbroker.cli.csv_rows import may_lack_a_quote, wrong_row
from ssbroker.cli.errors import located, reading
from ssbroker.cli.intake import Intake, from_csv
from ssbroker.cli.pieces import Piece, Rows, joined, rows_of, without_rows
from ssbroker.exceptions import MalformedDataError, SchemaError
from ssbroker.views import type_without_views, without_views

_PROBE_ROWS: Final = 1024
_READ_BYTES: Final = 1 << 20
_CSV_BLOCK_BYTES: Final = 2 << 20
_CSV_BLOCK_GROWTH: Final = 16
_CSV_BLOCK_BYTES_MAX: Final = 512 << 20
_SHOWN_MAX: Final = 80
_TOO_LONG: Final = "straddling"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


class ParquetSource:
    """A Parquet file, read page by page: row groups may be larger than memory."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with reading(file):
            self._parquet = pq.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)
            self.schema = self._parquet.schema_arrow.remove_metadata()
        self.rows = self._parquet.metadata.num_rows

    def pieces(self) -> Iterator[Piece]:
        """The rows, in order."""
        with reading(self.file), self._parquet:
            yield from joined(self._batches(), self.file)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        size, done = self.file.stat().st_size, 0
        if self.rows == 0:
            yield without_rows(self.schema), size
        for group in range(self._parquet.num_row_groups):
            for batch in self._parquet.iter_batches(self._step(group), row_groups=[group]):
                done += batch.num_rows
                yield batch, size * done // self.rows

    def _step(self, group: int) -> int:
        """What the rows of a group take in memory is not told by the file, so a few are looked at."""
        if self._parquet.metadata.row_group(group).num_rows <= _PROBE_ROWS:
            return _PROBE_ROWS
        probe = next(self._parquet.iter_batches(_PROBE_ROWS, row_groups=[group]))
        return rows_of(probe.nbytes, rows=probe.num_rows)


class ArrowSource:
    """An Arrow IPC file or stream, mapped into memory: its batches may be larger than memory."""

    rows = None

    def __init__(self, file: Path, *, stream: bool) -> None:
        self.file = file
        self._stream = stream
        with reading(file):
            if file.stat().st_size == 0:
                raise MalformedDataError(f"{file}: is empty; expected Arrow IPC")
            with file.open("rb") as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            self._buffer = pa.BufferReader(pa.py_buffer(self._map))
            self._reader: Any = pa.ipc.open_stream(self._buffer) if stream else pa.ipc.open_file(self._buffer)
            self.schema = pa.schema([_with_plain_words(field) for field in self._reader.schema.remove_metadata()])

    def pieces(self) -> Iterator[Piece]:
        """The rows, in order."""
        with reading(self.file):
            for piece in joined(self._batches(), self.file):
                yield piece
                if hasattr(mmap, "MADV_DONTNEED"):  # what has been read may leave memory; it is read again if need be
                    self._map.madvise(mmap.MADV_DONTNEED)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        size, empty = len(self._map), True
        for batch, position in self._stream_batches() if self._stream else self._file_batches():
            empty = False
            step = rows_of(batch.nbytes, rows=batch.num_rows)
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                part.validate(full=True)
                yield part, position
        if empty:
            yield without_rows(self.schema), size

    def _plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with plain words in its dictionaries: of views, which Polars writes, pyarrow looks none up."""
        for number, field in enumerate(self.schema):
            column: Any = batch.column(number)
            if column.type != field.type:
                column.dictionary.validate(full=True)
                batch = batch.set_column(number, field, without_views(column))
        return batch

    def _stream_batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        for batch in self._reader:
            yield self._plain(batch), self._buffer.tell()

    def _file_batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        count = self._reader.num_record_batches
        for number in range(count):
            yield self._plain(self._reader.get_batch(number)), len(self._map) * (number + 1) // count


def _with_plain_words(field: pa.Field[Any]) -> pa.Field[Any]:
    return field.with_type(type_without_views(field.type)) if pa.types.is_dictionary(field.type) else field


class CsvSource:
    """A CSV file with a header line, in UTF-8 or UTF-16. What the command does not read stays text."""

    rows = None

    def __init__(self, file: Path, *, intake: Intake) -> None:
        self.file = file
        self._intake = intake
        with reading(file):
            with file.open("rb") as opened:
                self._encoding = "utf-16" if opened.read(2) in _UTF16 else "utf-8-sig"
            with file.open(encoding=self._encoding, errors="replace", newline="") as text:
                self._header = next(csv.reader(text), [])
                self._has_rows = text.read(1) != ""
        if not self._header:
            raise MalformedDataError(f"{file}: is empty; expected a header line with the names of the columns")
        _check_header(self._header, intake, file=file)
        self._text_schema = pa.schema([(name, pa.string()) for name in self._header])
        self.schema = from_csv(without_rows(self._text_schema), intake, file=file).schema

    def pieces(self) -> Iterator[Piece]:
        """The rows, in order."""
        with reading(self.file):
            for piece in joined(self._batches(), self.file):
                yield replace(piece, load=partial(self._typed, piece))

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        block_bytes, done = _CSV_BLOCK_BYTES, 0
        while self._has_rows:
            try:
                for batch, position in self._batches_by(block_bytes, skipped=done):
                    done += batch.num_rows
                    yield batch, position
                break
            except pa.ArrowInvalid as error:  # a row may be longer than a block
                if _TOO_LONG not in str(error):
                    raise self._wrong_row() or error from error
                block_bytes *= _CSV_BLOCK_GROWTH
                if block_bytes > _CSV_BLOCK_BYTES_MAX:
                    message = f"{self.file}: row {done} or later: a row is longer than {_CSV_BLOCK_BYTES_MAX >> 20} MiB"
                    raise MalformedDataError(f"{message}, or a quote has no end", row=done) from error
        if may_lack_a_quote(self.file, encoding=self._encoding) and (wrong := self._wrong_row()) is not None:
            raise wrong
        if done == 0:
            yield without_rows(self._text_schema), self.file.stat().st_size

    def _wrong_row(self) -> MalformedDataError | None:
        return wrong_row(self.file, self._header, encoding=self._encoding, cell_max=_CSV_BLOCK_BYTES_MAX)

    def _batches_by(self, block_bytes: int, *, skipped: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        with pa.OSFile(str(self.file), "rb") as opened:
            before = 0
            for batch in self._open(opened, block_bytes):
                begin = min(batch.num_rows, max(0, skipped - before))
                before += batch.num_rows
                if begin < batch.num_rows:
                    yield batch.slice(begin), opened.tell()

    def _open(self, opened: Any, block_bytes: int) -> pyarrow.csv.CSVStreamingReader:
        return pyarrow.csv.open_csv(
            opened,
            read_options=pyarrow.csv.ReadOptions(
                block_size=block_bytes,
                encoding=self._encoding.removesuffix("-sig"),
                use_threads=block_bytes == _CSV_BLOCK_BYTES,  # they read ahead
            ),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(self._header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _typed(self, piece: Piece) -> Rows:
        columns = piece.load().columns
        return Rows(columns=from_csv(columns, self._intake, file=self.file, row_of=piece.row_of))


def _check_header(header: list[str], intake: Intake, *, file: Path) -> None:
    """Refuses a first line that names nothing that is read: it is a row, or its columns are parted by something else."""
    read = intake.columns.names
    if not set(header) & set(read):
        try:
            further.check_meant(header, read=read)
        except SchemaError as error:
            raise located(error, file=file) from None
        expected = f"a header line with columns such as {', '.join(read)}, and commas between them"
        shown = ",".join(header)[:_SHOWN_MAX]
        raise MalformedDataError(
            f"{file}: its first line, {shown!r}, names no known column; expected {expected}", expected=expected
        )
