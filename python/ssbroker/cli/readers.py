"""Reads Parquet, Arrow IPC, CSV and JSON files in chunks."""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.json
import pyarrow.parquet as pq

from ssbroker import schemas
from ssbroker._arrow import drop_columns, reject_misspelled_columns, type_without_views, with_column, without_views
from ssbroker._arrow_types import replace_leaves
from ssbroker._csv import CsvFile
from ssbroker._text import one_line
from ssbroker.cli.chunks import IN_FLIGHT_BYTES_MAX, Chunk, LoadedChunk, empty_batch, rechunk, rows_per_chunk
from ssbroker.cli.errors import error_in_file, reading
from ssbroker.cli.input_columns import InputColumns
from ssbroker.cli.parallel_map import ordered_map
from ssbroker.cli.terminal import ProgressBar
from ssbroker.cli.text_conversion import convert_csv, convert_json
from ssbroker.exceptions import InputError, MalformedDataError, SchemaError

pc: Any = pyarrow.compute  # the stubs support neither Python constants nor text with 64-bit offsets
_SHOWN_CHARACTERS_MAX: Final = 80

_PROBE_ROWS: Final = 1024
_READ_BYTES: Final = 1 << 20

BLOCK_BYTES: Final = 1 << 20
_JSON_EXPECTED: Final = "one JSON object per line"
_UTF8_MARK: Final = b"\xef\xbb\xbf"


class ParquetInput:
    """A Parquet file, read page by page: row groups may be larger than memory."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with reading(file):
            self._parquet = pq.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)
            self.schema = self._parquet.schema_arrow.remove_metadata()
        self._row_count = self._parquet.metadata.num_rows

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order."""
        with reading(self.file), self._parquet:
            yield from rechunk(self._batches(), self.file)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        size, rows_read = self.file.stat().st_size, 0
        if self._row_count == 0:
            yield empty_batch(self.schema), size
        for group in range(self._parquet.num_row_groups):
            for batch in self._parquet.iter_batches(self._batch_rows(group), row_groups=[group]):
                rows_read += batch.num_rows
                yield batch, size * rows_read // self._row_count

    def _batch_rows(self, group: int) -> int:
        """Estimates the rows per batch from the first rows, because the file does not contain their size in memory."""
        if self._parquet.metadata.row_group(group).num_rows <= _PROBE_ROWS:
            return _PROBE_ROWS
        probe = next(self._parquet.iter_batches(_PROBE_ROWS, row_groups=[group]))
        return rows_per_chunk(probe.nbytes, rows=probe.num_rows)


class ArrowInput:
    """A memory-mapped Arrow IPC file or stream: its batches may be larger than memory."""

    def __init__(self, file: Path, *, is_stream: bool) -> None:
        self.file = file
        self._is_stream = is_stream
        with reading(file):
            if file.stat().st_size == 0:
                raise MalformedDataError(f"{file}: the file is empty; expected Arrow IPC")
            with file.open("rb") as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            self._buffer = pa.BufferReader(pa.py_buffer(self._map))
            self._reader: Any = pa.ipc.open_stream(self._buffer) if is_stream else pa.ipc.open_file(self._buffer)
            self.schema = pa.schema([_without_view_values(field) for field in self._reader.schema.remove_metadata()])

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order."""
        with reading(self.file):
            for chunk in rechunk(self._batches(), self.file):
                yield chunk
                if hasattr(mmap, "MADV_DONTNEED"):  # frees pages that were read; they are mapped again if needed
                    self._map.madvise(mmap.MADV_DONTNEED)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        size, is_empty = len(self._map), True
        for batch, position in self._stream_batches() if self._is_stream else self._file_batches():
            is_empty = False
            step = rows_per_chunk(batch.nbytes, rows=batch.num_rows)
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                part.validate(full=True)
                yield part, position
        if is_empty:
            yield empty_batch(self.schema), size

    def _stream_batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        for batch in self._reader:
            yield self._with_supported_dictionaries(batch), self._buffer.tell()

    def _file_batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        count = self._reader.num_record_batches
        for number in range(count):
            batch = self._with_supported_dictionaries(self._reader.get_batch(number))
            yield batch, len(self._map) * (number + 1) // count

    def _with_supported_dictionaries(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts dictionaries of views, which Polars writes, because pyarrow cannot look up their values."""
        for number, field in enumerate(self.schema):
            column: Any = batch.column(number)
            if column.type != field.type:
                column.dictionary.validate(full=True)
                batch = with_column(batch, number, field, without_views(column))
        return batch


def _without_view_values(field: pa.Field[Any]) -> pa.Field[Any]:
    return field.with_type(type_without_views(field.type)) if pa.types.is_dictionary(field.type) else field


class CsvInput:
    """A CSV file with a header line. Columns that the command does not read remain text.

    Args:
        file: The file.
        input_columns: The columns that the command reads.
        lists_invalid: Whether the command lists invalid rows, so that a cell that cannot be converted raises no error.
    """

    def __init__(self, file: Path, *, input_columns: InputColumns, lists_invalid: bool = False) -> None:
        self.file = file
        self._lists_invalid = lists_invalid
        self._input_columns = input_columns
        with reading(file):
            self._csv = CsvFile(file)
        self._csv.check_header(input_columns.schema.names)
        self.schema = convert_csv(empty_batch(self._csv.schema), input_columns, file=file).schema

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order."""
        with reading(self.file):
            for chunk in rechunk(self._batches(), self.file):
                yield replace(chunk, load=partial(self._load, chunk))

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        is_empty = True
        for batch, position in self._csv.batches():
            is_empty = False
            yield batch, position
        if is_empty:
            yield empty_batch(self._csv.schema), self.file.stat().st_size

    def _load(self, chunk: Chunk) -> LoadedChunk:
        found: dict[int, dict[str, Any]] | None = {} if self._lists_invalid else None
        batch = convert_csv(
            chunk.load().batch, self._input_columns, file=self.file, row_in_file=chunk.row_in_file, invalid=found
        )
        return LoadedChunk(batch=batch, invalid=_invalid_rows(found))


class JsonLinesInput:
    """A file of JSON Lines.

    Args:
        file: The file.
        input_columns: The columns that the command reads.
        schema: The columns to parse, with binary columns as text; None to copy the lines to the output unchanged.
        lists_invalid: Whether the command lists invalid rows, so that text that is not hexadecimal raises no error.
    """

    def __init__(
        self, file: Path, *, input_columns: InputColumns, schema: pa.Schema | None, lists_invalid: bool = False
    ) -> None:
        self.file = file
        self._lists_invalid = lists_invalid
        self._input_columns = input_columns
        self._json_schema = schema or input_columns.json_schema
        self._empty = empty_batch(self._json_schema)
        self.schema = None if schema is None else convert_json(self._empty, input_columns, file=file).schema
        self._present: Sequence[str] | None = None
        with reading(file), file.open("rb"):
            pass

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order."""
        is_empty = True
        for block, first_row, position in _read_blocks(self.file):
            is_empty = False
            if self.schema is None and self._present is None:
                self._present = _columns_present(block, self.file, self._input_columns)
            yield Chunk(
                file=self.file,
                first_row=first_row,
                memory_bytes=3 * len(block),
                end_position=position,
                load=partial(self._load, block, first_row),
                line_number=_LineNumbers(block, first_row),
            )
        if is_empty:
            lines = pa.nulls(0, pa.large_string()) if self.schema is None else None
            batch = convert_json(self._empty, self._input_columns, file=self.file)
            yield Chunk(
                file=self.file,
                first_row=0,
                memory_bytes=0,
                end_position=0,
                load=lambda: LoadedChunk(batch=batch, json_lines=lines),
            )

    def _load(self, block: bytes, first_row: int) -> LoadedChunk:
        lines = _split_lines(block, self.file, first_row)
        options = pyarrow.json.ParseOptions(
            explicit_schema=self._json_schema, unexpected_field_behavior="error" if self.schema else "ignore"
        )
        batch = _parse_block(block, options, self._input_columns, self.file, first_row, rows=len(lines))
        row_in_file = _LineNumbers(block, first_row)
        found: dict[int, dict[str, Any]] | None = {} if self._lists_invalid else None
        batch = convert_json(batch, self._input_columns, file=self.file, row_in_file=row_in_file, invalid=found)
        if self.schema is not None:
            return LoadedChunk(batch=batch, invalid=_invalid_rows(found))
        _reject_added_columns(block, self._input_columns, file=self.file, first_row=first_row)
        absent = [name for name in self._input_columns.schema.names if name not in (self._present or ())]
        for name in absent:
            if batch.column(name).null_count < batch.num_rows:
                row = row_in_file(pc.index(pc.is_valid(batch.column(name)), True).as_py())
                raise InputError(
                    f"{self.file}: {name}, row {row}: the column is missing in the first rows; "
                    "expected it in all rows (null if there is no value), or in none",
                    column=name,
                    row=row,
                    expected="the same columns in all rows",
                )
        return LoadedChunk(batch=drop_columns(batch, absent), json_lines=lines)


def _invalid_rows(found: dict[int, dict[str, Any]] | None) -> pa.Table | None:
    """Returns the rows with cells that cannot be converted as a table; None if there are none."""
    return pa.Table.from_pylist(list(found.values()), schema=schemas.REJECTED_CONVERSATIONS) if found else None


def _read_blocks(file: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yields blocks of lines, each with the number of its first line and the file position after it; omits blocks of blank lines."""
    with reading(file), file.open("rb") as opened:
        incomplete_line: list[bytes] = []
        first_row = position = 0
        while data := opened.read(BLOCK_BYTES):
            if position == 0:
                data = data.removeprefix(_UTF8_MARK)
            full_position, position = position + BLOCK_BYTES, opened.tell()
            end = len(data) if position < full_position else data.rfind(b"\n") + 1
            if end:
                block = b"".join([*incomplete_line, data[:end]])
                incomplete_line = []
                if block.strip():
                    yield block, first_row, position
                first_row += block.count(b"\n")
            incomplete_line.append(data[end:])
        last = b"".join(incomplete_line)
        if last.strip():
            yield last, first_row, position


class _LineNumbers:
    r"""Maps the rows of a block to their lines in the file; the first line of the block is `first`, and blank lines are not rows.

    Examples:
        >>> _LineNumbers(b"{}\n\n \n{}\n", 10)(1)
        13
    """

    def __init__(self, block: bytes, first: int) -> None:
        self._block: Final = block
        self._first: Final = first

    def __call__(self, row: int) -> int:
        return self._filled[row] if row < len(self._filled) else self._first + row

    @cached_property
    def _filled(self) -> list[int]:
        return [number for number, line in enumerate(self._block.split(b"\n"), self._first) if line.strip()]


def _split_lines(block: bytes, file: Path, first_row: int) -> Any:
    """Returns the lines of a block as text, stripped and without blank lines; rejects lines that are not objects."""
    with reading(file):
        text = pa.array([block], pa.large_binary()).cast(pa.large_string())
    lines = pc.ascii_trim_whitespace(pc.split_pattern(text, "\n").values)
    lines = lines.filter(pc.greater(pc.binary_length(lines), 0))
    are_objects = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    if not pc.all(are_objects, min_count=0).as_py():
        raise _find_bad_line(block, None, file, first_row) or _malformed_block(file, first_row)
    return lines


def _parse_block(
    block: bytes,
    options: pyarrow.json.ParseOptions,
    input_columns: InputColumns,
    file: Path,
    first_row: int,
    *,
    rows: int,
) -> pa.RecordBatch:
    """Parses the lines of a block into columns."""
    try:
        read_options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        table = pyarrow.json.read_json(io.BytesIO(block), read_options=read_options, parse_options=options)
    except pa.ArrowException as error:
        located = _find_bad_line(block, input_columns, file, first_row)
        located = located or _changed_type_error(str(error), block, file, first_row)
        raise located or MalformedDataError(f"{file}: {one_line(str(error))}") from error
    if table.num_rows != rows:
        raise _find_bad_line(block, input_columns, file, first_row) or _malformed_block(file, first_row)
    return table.combine_chunks().to_batches()[0]


def _find_bad_line(
    block: bytes, input_columns: InputColumns | None, file: Path, first_row: int
) -> InputError | SchemaError | None:
    """Returns the error for the first line that is not an object, or in which a column has the wrong type; None if there is no such line."""
    fields = [] if input_columns is None else list(input_columns.json_schema)
    for row, line in enumerate(block.split(b"\n"), start=first_row):
        if not line.strip():
            continue
        where = f"{file}: row {row}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            return MalformedDataError(
                f"{where}: {_shown(line)} is not valid JSON ({reason}); expected {_JSON_EXPECTED}",
                row=row,
                expected=_JSON_EXPECTED,
            )
        if not isinstance(found, dict):
            return MalformedDataError(
                f"{where}: {_shown(line)} is not a JSON object; expected {_JSON_EXPECTED}",
                row=row,
                expected=_JSON_EXPECTED,
            )
        for field in fields:
            value = found.get(field.name)
            expected = _expected_if_wrong(value, field.type)
            if expected is not None:
                shown = json.dumps(value)[:_SHOWN_CHARACTERS_MAX]
                return InputError(
                    f"{file}: {field.name}, row {row}: {shown} is not valid; expected {expected}",
                    column=field.name,
                    row=row,
                    value=shown,
                    expected=expected,
                )
    return None


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN_CHARACTERS_MAX].decode("utf-8", "backslashreplace"))


def _expected_if_wrong(value: Any, data_type: pa.DataType) -> str | None:
    """Returns a description of the expected values, or None if the value is null or has the expected type."""
    if data_type == pa.bool_():
        return None if value is None or isinstance(value, bool) else "true or false"
    if data_type == pa.string():
        return None if value is None or isinstance(value, str) else "a string"
    limit = 1 << (data_type.bit_width - 1)
    is_integer = isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    return None if value is None or is_integer else InputColumns.expected_value(data_type)


def _changed_type_error(arrow_message: str, block: bytes, file: Path, first_row: int) -> SchemaError | None:
    found = re.search(r"Column\(/(.*)\) changed from (\w+) to (\w+) in row (\d+)", arrow_message)
    if found is None:
        return None
    name, before, after, row = found.groups()
    where = f"row {_LineNumbers(block, first_row)(int(row))}"
    return _two_types_error(file, name, where, before=before, after=after)


def _two_types_error(file: Path, column: str, where: str, *, before: str, after: str) -> SchemaError:
    message = f"{file}: {column}, {where}: the type is {after}, but {before} in earlier rows; expected one type"
    return SchemaError(message, column=column, expected=before, actual=after)


def _malformed_block(file: Path, first_row: int) -> MalformedDataError:
    return MalformedDataError(
        f"{file}: row {first_row} or later: not valid JSON; expected {_JSON_EXPECTED}", expected=_JSON_EXPECTED
    )


def _columns_present(block: bytes, file: Path, input_columns: InputColumns) -> list[str]:
    """Returns the columns that the command reads and that at least one line of the block contains."""
    present = []
    for name in input_columns.schema.names:
        key = re.compile(rf'"{name}"\s*:'.encode())
        try:
            if any(name in json.loads(line) for line in block.split(b"\n") if key.search(line)):
                present.append(name)
        except (ValueError, TypeError, RecursionError) as error:
            raise _find_bad_line(block, input_columns, file, 0) or _malformed_block(file, 0) from error
    with contextlib.suppress(ValueError, RecursionError):  # invalid JSON is reported when the block is parsed
        first = json.loads(next((line for line in block.split(b"\n") if line.strip()), b"{}"))
        if isinstance(first, dict):
            reject_misspelled([*first, *present], input_columns, file)
    return present


def reject_misspelled(names: list[str], input_columns: InputColumns, file: Path) -> None:
    """Refuses an extra column that looks like a misspelling of a column that the command reads and the file lacks."""
    try:
        reject_misspelled_columns(names, expected=input_columns.schema.names)
    except SchemaError as error:
        raise error_in_file(error, file=file) from None


def _reject_added_columns(block: bytes, input_columns: InputColumns, *, file: Path, first_row: int) -> None:
    added_key = re.compile(rf'"(?:{"|".join(input_columns.added)})"\s*:'.encode())
    if added_key.search(block) is None:
        return
    for row, line in enumerate(block.split(b"\n"), start=first_row):
        found = json.loads(line) if added_key.search(line) is not None else {}
        conflict = next((name for name in input_columns.added if name in found), None)
        if conflict is not None:
            raise added_column_error(f"{file}: row {row}", conflict, input_columns)


def added_column_error(where: str, name: str, input_columns: InputColumns) -> SchemaError:
    """Returns the error for an input file that already has a column which the command adds."""
    message = f"{where}: {input_columns.operation} adds the column {name}; rename or drop the column in the input"
    return SchemaError(message, column=name)


def infer_json_schema(
    files: Sequence[Path], input_columns: InputColumns, *, threads: int, progress: bool | None
) -> pa.Schema:
    """Returns the columns of JSON Lines files; reads all of them, because any line may have an extra column.

    Columns that the command reads get the types that it expects.
    """
    found = pa.schema([])
    rows = 0
    total = sum(file.stat().st_size for file in files)
    block_schemas = ordered_map(
        _all_blocks(files),
        partial(_block_schema, input_columns),
        threads=threads,
        weight_of=lambda block: 3 * len(block.data),
        weight_max=IN_FLIGHT_BYTES_MAX,
    )
    with ProgressBar("Reading columns", total_bytes=total, shown=progress) as bar, contextlib.closing(block_schemas):
        for schema, count, block in block_schemas:
            found = _merge_schemas(found, schema, file=block.file, first_row=block.first_row)
            rows += count
            bar.update(rows=rows, position=block.position)
    known = input_columns.json_schema
    if not found.names:
        return known
    # A column that contains only nulls becomes text, because many Parquet readers do not support the null type.
    return pa.schema(
        [known.field(field.name) if field.name in known.names else _as_text(field, pa.types.is_null) for field in found]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    file: Path
    data: bytes
    first_row: int
    position: int


def _all_blocks(files: Sequence[Path]) -> Iterator[_Block]:
    bytes_before = 0
    for file in files:
        for data, first_row, position in _read_blocks(file):
            yield _Block(file=file, data=data, first_row=first_row, position=bytes_before + position)
        bytes_before += file.stat().st_size


def _block_schema(input_columns: InputColumns, block: _Block) -> tuple[pa.Schema, int, _Block]:
    rows = len(_split_lines(block.data, block.file, block.first_row))
    batch = _parse_block(block.data, pyarrow.json.ParseOptions(), input_columns, block.file, block.first_row, rows=rows)
    # pyarrow would parse text that looks like a timestamp, and lose its spelling and time zone.
    return pa.schema([_as_text(field, pa.types.is_timestamp) for field in batch.schema]), rows, block


def _as_text(field: pa.Field[Any], is_replaced: Callable[[Any], bool]) -> pa.Field[Any]:
    """Replaces the matching types with text, also inside lists and structs."""
    return field.with_type(replace_leaves(field.type, lambda leaf: pa.string() if is_replaced(leaf) else leaf))


def _merge_schemas(one: pa.Schema, other: pa.Schema, *, file: Path, first_row: int) -> pa.Schema:
    fields = {field.name: field for field in one}
    for field in other:
        known = fields.get(field.name, field)
        try:
            merged = pa.unify_schemas([pa.schema([known]), pa.schema([field])], promote_options="permissive")
        except pa.ArrowException as error:
            where = f"row {first_row} or later"
            raise _two_types_error(file, field.name, where, before=str(known.type), after=str(field.type)) from error
        fields[field.name] = merged.field(0)
    return pa.schema(list(fields.values()))
