"""Reads Parquet, Arrow IPC, CSV and JSON files in chunks."""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import itertools
import json
import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from ssbroker._arrow import reject_misspelled_columns, type_without_views, without_views
from ssbroker.cli import formats
from ssbroker.cli.chunks import (
    Chunk,
    InputColumns,
    InputFile,
    WorkUnit,
    from_csv,
    from_json,
    joined,
    rows_of,
    without_rows,
)
from ssbroker.cli.errors import located, one_line, reading
from ssbroker.cli.formats import Format
from ssbroker.cli.pipeline import UNDER_WAY_BYTES, in_order
from ssbroker.cli.progress import ProgressBar
from ssbroker.exceptions import InputError, MalformedDataError, SchemaError

_READ_CHARACTERS: Final = 1 << 20
_SHOWN_MAX: Final = 80
_NO_UTF8: Final = re.compile("[\udc80-\udcff]")


def may_lack_a_quote(file: Path, *, encoding: str) -> bool:
    """Whether a quote of the file may have no end: they are an odd number."""
    count = 0
    with file.open(encoding=encoding, errors="replace", newline="") as text:
        while read := text.read(_READ_CHARACTERS):
            count += read.count('"')
    return count % 2 == 1


def wrong_row(file: Path, header: Sequence[str], *, encoding: str, cell_max: int) -> MalformedDataError | None:
    """The first row that is no CSV in UTF-8 with as many cells as the header.

    Args:
        file: The file.
        header: The names of its columns.
        encoding: Its encoding.
        cell_max: The longest cell.

    Returns:
        The error to raise, None where every row is sound.
    """
    row = 0
    with (
        _cells_of(cell_max),
        file.open(
            encoding=encoding, errors="surrogateescape" if encoding == "utf-8-sig" else "replace", newline=""
        ) as text,
    ):
        rows = csv.reader(text, strict=True)
        try:
            next(rows)
            for cells in rows:
                if cells and len(cells) != len(header):
                    shown = ",".join(cells)[:_SHOWN_MAX]
                    told = f"has {len(cells)} cells, expected {len(header)}: {shown!a}"
                    return _malformed_csv(f"{file}: row {row}: {told}", row)
                for name, cell in zip(header, cells, strict=False):
                    if found := _NO_UTF8.search(cell):
                        told = f"is no text in UTF-8 (byte 0x{ord(found[0]) - 0xDC00:02x}); save the file as UTF-8 or UTF-16"
                        return _malformed_csv(f"{file}: {name}, row {row}: {told}", row)
                row += bool(cells)
        except csv.Error as error:
            told = "a quote that begins here has no end" if "unexpected end" in str(error) else str(error)
            return _malformed_csv(f"{file}: row {row}: {told}", row)
    return None


def _malformed_csv(message: str, row: int) -> MalformedDataError:
    return MalformedDataError(message, row=row, expected="CSV in UTF-8 with a header line")


@contextmanager
def _cells_of(length: int) -> Iterator[None]:
    before = csv.field_size_limit(length)
    try:
        yield
    finally:
        csv.field_size_limit(before)


_PROBE_ROWS: Final = 1024
_READ_BYTES: Final = 1 << 20
_CSV_BLOCK_BYTES: Final = 2 << 20
_CSV_BLOCK_GROWTH: Final = 16
_CSV_BLOCK_BYTES_MAX: Final = 512 << 20
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

    def pieces(self) -> Iterator[Chunk]:
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

    def pieces(self) -> Iterator[Chunk]:
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

    def __init__(self, file: Path, *, intake: InputColumns) -> None:
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

    def pieces(self) -> Iterator[Chunk]:
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

    def _typed(self, piece: Chunk) -> WorkUnit:
        columns = piece.load().columns
        return WorkUnit(columns=from_csv(columns, self._intake, file=self.file, row_of=piece.row_of))


def _check_header(header: list[str], intake: InputColumns, *, file: Path) -> None:
    """Refuses a first line that names nothing that is read: it is a row, or its columns are parted by something else."""
    read = intake.columns.names
    if not set(header) & set(read):
        try:
            reject_misspelled_columns(header, expected=read)
        except SchemaError as error:
            raise located(error, file=file) from None
        expected = f"a header line with columns such as {', '.join(read)}, and commas between them"
        shown = ",".join(header)[:_SHOWN_MAX]
        raise MalformedDataError(
            f"{file}: its first line, {shown!r}, names no known column; expected {expected}", expected=expected
        )


pc: Any = pyarrow.compute  # its stubs know neither Python constants nor text with 64-bit offsets
BLOCK_BYTES: Final = 1 << 20
_EXPECTED: Final = "one JSON object a line"
_BOM: Final = b"\xef\xbb\xbf"


class JsonLinesSource:
    """A file of JSON lines.

    Args:
        file: The file.
        intake: What is read of it.
        schema: The columns to read it into, as JSON has them; None to pass the lines on as they stand.
    """

    rows = None

    def __init__(self, file: Path, *, intake: InputColumns, schema: pa.Schema | None) -> None:
        self.file = file
        self._intake = intake
        self._in_json = schema or intake.in_json
        self._nothing = without_rows(self._in_json)
        self.schema = None if schema is None else from_json(self._nothing, intake, file=file).schema
        self._keys: Sequence[str] | None = None
        with reading(file), file.open("rb"):
            pass

    def pieces(self) -> Iterator[Chunk]:
        """The rows, in order."""
        empty = True
        for block, first_row, position in blocks(self.file):
            empty = False
            if self.schema is None and self._keys is None:
                self._keys = _keys_of(block, self.file, self._intake)
            yield Chunk(
                file=self.file,
                first_row=first_row,
                size=3 * len(block),
                position=position,
                load=partial(self._load, block, first_row),
                line_of=partial(line_of, block, first_row),
            )
        if empty:
            lines = pa.nulls(0, pa.large_string()) if self.schema is None else None
            columns = from_json(self._nothing, self._intake, file=self.file)
            yield Chunk(
                file=self.file, first_row=0, size=0, position=0, load=lambda: WorkUnit(columns=columns, lines=lines)
            )

    def _load(self, block: bytes, first_row: int) -> WorkUnit:
        lines = lines_of(block, self.file, first_row)
        options = pyarrow.json.ParseOptions(
            explicit_schema=self._in_json, unexpected_field_behavior="error" if self.schema else "ignore"
        )
        columns = parsed(block, options, self._intake, self.file, first_row, rows=len(lines))
        row_of = partial(line_of, block, first_row)
        columns = from_json(columns, self._intake, file=self.file, row_of=row_of)
        if self.schema is not None:
            return WorkUnit(columns=columns)
        _check_keys(block, self._intake, file=self.file, first_row=first_row)
        absent = [name for name in self._intake.columns.names if name not in (self._keys or ())]
        for name in absent:
            if columns.column(name).null_count < columns.num_rows:
                row = row_of(pc.index(pc.is_valid(columns.column(name)), True).as_py())
                raise InputError(
                    f"{self.file}: {name}, row {row}: the first rows of the file lack it; expected it in all rows (null where there is no value), or in none",
                    column=name,
                    row=row,
                    expected="the same columns in all rows",
                )
        return WorkUnit(columns=columns.drop_columns(absent), lines=lines)


def blocks(file: Path) -> Iterator[tuple[bytes, int, int]]:
    """The lines of a file, several megabytes at a time, each block with the number of its first line and the position after it.

    A block of blank lines alone is left out.
    """
    with reading(file), file.open("rb") as opened:
        rest: list[bytes] = []  # the beginning of a line that may be long
        first_row = position = 0
        while data := opened.read(BLOCK_BYTES):
            if position == 0:
                data = data.removeprefix(_BOM)
            size, position = position + BLOCK_BYTES, opened.tell()
            end = len(data) if position < size else data.rfind(b"\n") + 1
            if end:
                block = b"".join([*rest, data[:end]])
                rest = []
                if block.strip():
                    yield block, first_row, position
                first_row += block.count(b"\n")
            rest.append(data[end:])
        last = b"".join(rest)
        if last.strip():
            yield last, first_row, position


def line_of(block: bytes, first: int, row: int) -> int:
    r"""On which line of a file a row of a block stands that begins with line `first`; a blank line is no row.

    Examples:
        >>> line_of(b"{}\n\n \n{}\n", 10, 1)
        13
    """
    filled = (number for number, line in enumerate(block.split(b"\n"), first) if line.strip())
    return next(itertools.islice(filled, row, None), first + row)


def lines_of(block: bytes, file: Path, first_row: int) -> Any:
    """The lines of a block that are not blank, as text, without the blanks around them.

    Raises:
        MalformedDataError: A line is no object.
    """
    with reading(file):
        whole = pa.array([block], pa.large_binary()).cast(pa.large_string())
    lines = pc.ascii_trim_whitespace(pc.split_pattern(whole, "\n").values)
    lines = lines.filter(pc.greater(pc.binary_length(lines), 0))
    objects = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    if not pc.all(objects, min_count=0).as_py():
        raise _bad_line(block, None, file, first_row) or _malformed_json(file, first_row)
    return lines


def parsed(
    block: bytes, options: pyarrow.json.ParseOptions, intake: InputColumns, file: Path, first_row: int, *, rows: int
) -> pa.RecordBatch:
    """The lines of a block as columns.

    Raises:
        InputError: A line is no JSON, or has a value of a type that is not expected.
        SchemaError: Lines have values of different types.
    """
    try:
        read_options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        table = pyarrow.json.read_json(io.BytesIO(block), read_options=read_options, parse_options=options)
    except pa.ArrowException as error:
        told = _bad_line(block, intake, file, first_row) or _changed_type(str(error), block, file, first_row)
        raise told or MalformedDataError(f"{file}: {one_line(str(error))}") from error
    if table.num_rows != rows:
        raise _bad_line(block, intake, file, first_row) or _malformed_json(file, first_row)
    return table.combine_chunks().to_batches()[0]


def _bad_line(block: bytes, intake: InputColumns | None, file: Path, first_row: int) -> InputError | SchemaError | None:
    """The first line of a block that is no object, or in which a column that the command reads has another type."""
    keys = [] if intake is None else list(intake.in_json)
    for row, line in enumerate(block.split(b"\n"), start=first_row):
        if not line.strip():
            continue
        where = f"{file}: row {row}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            return MalformedDataError(f"{where}: {error}; expected {_EXPECTED}", row=row, expected=_EXPECTED)
        if not isinstance(found, dict):
            return MalformedDataError(
                f"{where}: {line[:80]!r} is no object; expected {_EXPECTED}", row=row, expected=_EXPECTED
            )
        for field in keys:
            value = found.get(field.name)
            expected = _unless(value, field.type)
            if expected is not None:
                shown = json.dumps(value)[:80]
                return InputError(
                    f"{file}: {field.name}, row {row}: {shown} is not {expected}",
                    column=field.name,
                    row=row,
                    value=shown,
                    expected=expected,
                )
    return None


def _unless(value: Any, kind: pa.DataType) -> str | None:
    """What was expected, unless the value is that, or null."""
    if kind == pa.bool_():
        return None if value is None or isinstance(value, bool) else "true or false"
    if kind == pa.string():
        return None if value is None or isinstance(value, str) else "text"
    most = 1 << (kind.bit_width - 1)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and -most <= value < most
    return None if value is None or is_whole else InputColumns.expected(kind)


def _changed_type(told: str, block: bytes, file: Path, first_row: int) -> SchemaError | None:
    found = re.search(r"Column\(/(.*)\) changed from (\w+) to (\w+) in row (\d+)", told)
    if found is None:
        return None
    name, known, other, row = found.groups()
    message = f"{file}: {name}, row {line_of(block, first_row, int(row))}: is {other}, and {known} in lines before; expected one type"
    return SchemaError(message, column=name, expected=known, actual=other)


def _malformed_json(file: Path, first_row: int) -> MalformedDataError:
    return MalformedDataError(f"{file}: rows {first_row} and further: expected {_EXPECTED}", expected=_EXPECTED)


def _keys_of(block: bytes, file: Path, intake: InputColumns) -> list[str]:
    """Which columns that the command reads the lines of a block have, if only in some."""
    keys = []
    for name in intake.columns.names:
        key = re.compile(rf'"{name}"\s*:'.encode())
        try:
            if any(name in json.loads(line) for line in block.split(b"\n") if key.search(line)):
                keys.append(name)
        except (ValueError, TypeError, RecursionError) as error:
            raise _bad_line(block, intake, file, 0) or _malformed_json(file, 0) from error
    with contextlib.suppress(ValueError, RecursionError):  # what is no JSON is told where it is read
        first = json.loads(next((line for line in block.split(b"\n") if line.strip()), b"{}"))
        if isinstance(first, dict):
            _check_meant([*first, *keys], intake, file)
    return keys


def _check_meant(names: list[str], intake: InputColumns, file: Path) -> None:
    try:
        reject_misspelled_columns(names, expected=intake.columns.names)
    except SchemaError as error:
        raise located(error, file=file) from None


def _check_keys(block: bytes, intake: InputColumns, *, file: Path, first_row: int) -> None:
    added = re.compile(rf'"(?:{"|".join(intake.added)})"\s*:'.encode())
    if added.search(block) is None:
        return
    for row, line in enumerate(block.split(b"\n"), start=first_row):
        found = json.loads(line) if added.search(line) is not None else {}
        clash = next((name for name in intake.added if name in found), None)
        if clash is not None:
            raise SchemaError(
                f"{file}: row {row} has the column {clash}, which {intake.by} adds; drop or rename it", column=clash
            )


def infer_schema(files: Sequence[Path], intake: InputColumns, *, threads: int, progress: bool | None) -> pa.Schema:
    """The columns of files of JSON lines, for which all of them are read: any line may have a further one.

    Args:
        files: The files; a column may be missing in some lines.
        intake: What is read of them.
        threads: How many threads read.
        progress: Whether to show a bar; None shows it where standard error is a terminal.

    Returns:
        The columns; those that the command reads have the types that it reads.

    Raises:
        SchemaError: A column has values of types that have nothing in common.
        InputError: A file cannot be read.
    """
    found = pa.schema([])
    rows = 0
    total = sum(file.stat().st_size for file in files)
    schemas_of = in_order(
        _numbered(files),
        partial(_schema_of, intake),
        threads=threads,
        weigh=lambda block: 3 * len(block.data),
        weight_max=UNDER_WAY_BYTES,
    )
    with ProgressBar("Reading columns", total_bytes=total, shown=progress) as bar, contextlib.closing(schemas_of):
        for schema, count, block in schemas_of:
            found = _united(found, schema, file=block.file, first_row=block.first_row)
            rows += count
            bar.update(rows=rows, position=block.position)
    keys = intake.in_json
    if not found.names:
        return keys
    # Where no value is known, text stands in for the type: Parquet readers often know no other.
    return pa.schema(
        [keys.field(field.name) if field.name in keys.names else _with_text(field, pa.types.is_null) for field in found]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    file: Path
    data: bytes
    first_row: int
    position: int


def _numbered(files: Sequence[Path]) -> Iterator[_Block]:
    before = 0
    for file in files:
        for data, first_row, position in blocks(file):
            yield _Block(file=file, data=data, first_row=first_row, position=before + position)
        before += file.stat().st_size


def _schema_of(intake: InputColumns, block: _Block) -> tuple[pa.Schema, int, _Block]:
    rows = len(lines_of(block.data, block.file, block.first_row))
    batch = parsed(block.data, pyarrow.json.ParseOptions(), intake, block.file, block.first_row, rows=rows)
    # JSON has no moments: pyarrow makes them of text that looks so, and loses how it was written and its zone.
    return pa.schema([_with_text(field, pa.types.is_timestamp) for field in batch.schema]), rows, block


def _with_text(field: pa.Field[Any], stands: Callable[[Any], bool]) -> pa.Field[Any]:
    """The column as text where such a type is found, in lists and structs too."""

    def typed(kind: Any) -> Any:
        if stands(kind):
            return pa.string()
        if pa.types.is_list(kind):
            return pa.list_(typed(kind.value_type))
        if pa.types.is_struct(kind):
            return pa.struct([_with_text(each, stands) for each in kind])
        return kind

    return pa.field(field.name, typed(field.type))


def _united(one: pa.Schema, other: pa.Schema, *, file: Path, first_row: int) -> pa.Schema:
    """The columns of both."""
    fields = {field.name: field for field in one}
    for field in other:
        known = fields.get(field.name, field)
        try:
            united = pa.unify_schemas([pa.schema([known]), pa.schema([field])], promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaError(
                f"{file}: {field.name}, row {first_row} or later: is {field.type}, and {known.type} in lines before; expected one type",
                column=field.name,
                expected=str(known.type),
                actual=str(field.type),
            ) from error
        fields[field.name] = united.field(0)
    return pa.schema(list(fields.values()))


_HIDDEN: Final = (".", "_")


def expand(patterns: Sequence[str]) -> list[Path]:
    """The files that are meant, in order: each a file, a folder (the files in it that are of a known format), or a pattern.

    Args:
        patterns: What was given.

    Returns:
        The files; those of a folder or pattern sorted by name.

    Raises:
        InputError: Nothing is there, or one file is meant twice.
    """
    files: list[Path] = []
    for pattern in patterns:
        with reading(Path(pattern)):
            files += _meant_by(pattern)
    seen: set[Path] = set()
    for file in files:
        with reading(file):
            if not file.exists():
                raise InputError(f"{file}: no such file or folder")
            if not file.is_file():
                raise InputError(f"{file}: is no regular file; expected one, since it is read more than once")
        if file.resolve() in seen:
            raise InputError(f"{file}: is given twice; its rows would count twice")
        seen.add(file.resolve())
    return files


def open_sources(
    files: Sequence[Path], intake: InputColumns, *, lines: bool, threads: int, progress: bool | None
) -> list[InputFile]:
    """Opens files.

    Args:
        files: The files.
        intake: What is read of them.
        lines: Whether lines of JSON are passed on as they stand, and not read into columns.
        threads: How many threads may read ahead what the columns are.
        progress: Whether to show a bar where that takes long; None shows it where standard error is a terminal.

    Returns:
        What reads each.

    Raises:
        InputError: A file cannot be read, or is not of its format.
    """
    kinds = []
    for file in files:
        with reading(file):
            kinds.append(formats.of_input(file))
    json_files = [file for file, kind in zip(files, kinds, strict=True) if kind is Format.JSONL]
    schema = None if lines or not json_files else infer_schema(json_files, intake, threads=threads, progress=progress)
    sources: list[InputFile] = []
    for file, kind in zip(files, kinds, strict=True):
        if kind is Format.PARQUET:
            sources.append(ParquetSource(file))
        elif kind is Format.CSV:
            sources.append(CsvSource(file, intake=intake))
        elif kind is Format.JSONL:
            sources.append(JsonLinesSource(file, intake=intake, schema=schema))
        else:
            sources.append(ArrowSource(file, stream=kind is Format.ARROWS))
    return sources


def _meant_by(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return _folder(path)
    if path.exists() or not glob.has_magic(pattern):
        return [path]
    found = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not found:
        raise InputError(f"{pattern}: no file matches the pattern")
    return [file for entry in found for file in (_folder(entry) if entry.is_dir() else [entry])]


def _folder(folder: Path) -> list[Path]:
    with reading(folder):
        entries = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith(_HIDDEN))
    files = [entry for entry in entries if formats.by_suffix(entry) is not None]
    if not files:
        raise InputError(
            f"{folder}: holds no file of a known format ({formats.KNOWN_SUFFIXES}); folders within are not looked into, "
            "a pattern such as 'folder/**/*.parquet' finds them"
        )
    return files


def common_schema(sources: Sequence[InputFile], intake: InputColumns) -> pa.Schema:
    """The columns that all files have, in the order and with the types of the first.

    Args:
        sources: The files; those whose lines are passed on as they are count for nothing.
        intake: What is read of them.

    Returns:
        The columns; none where no file has columns.

    Raises:
        SchemaError: A column is missing, comes twice, has another type, or has the name of one that the command adds.

    Examples:
        >>> from ssbroker.cli.chunks import CONVERSATIONS
        >>> common_schema([], CONVERSATIONS).names
        []
    """
    first: InputFile | None = None
    for source in sources:
        if source.schema is None:
            continue
        _check_names(source, source.schema, intake)
        if first is None or first.schema is None:
            first = source
            continue
        for name in [*first.schema.names, *source.schema.names]:
            one, other = _type_of(first.schema, name), _type_of(source.schema, name)
            if one is None or other is None:
                has, lacks = (first, source) if other is None else (source, first)
                message = f"{lacks.file}: lacks the column {name}, which {has.file} has; expected the same columns in all files"
                raise SchemaError(message, column=name)
            if plain_type(one) != plain_type(other):
                message = (
                    f"{source.file}: {name} is {other}, and {one} in {first.file}; expected the same types in all files"
                )
                raise SchemaError(message, column=name, expected=str(one), actual=str(other))
    return pa.schema([]) if first is None or first.schema is None else first.schema


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns in the order and with the types of the schema.

    Examples:
        >>> batch = pa.record_batch({"a": pa.array(["x"], pa.large_string())})
        >>> conformed(batch, pa.schema([("a", pa.string())])).schema.types
        [DataType(string)]
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        column: Any = batch.column(field.name)
        if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(field.type):
            column = column.dictionary_decode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """What the values of a column are, whatever their layout.

    Examples:
        >>> plain_type(pa.dictionary(pa.int8(), pa.large_string()))
        DataType(string)
    """
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def _type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None


def _check_names(source: InputFile, schema: pa.Schema, intake: InputColumns) -> None:
    seen = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(f"{source.file}: has the column {name} twice; expected each once", column=name)
        if name in intake.added:
            raise SchemaError(
                f"{source.file}: has the column {name}, which {intake.by} adds; drop or rename it", column=name
            )
        seen.add(name)
