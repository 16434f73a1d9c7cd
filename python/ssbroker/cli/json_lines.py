"""JSON lines: one object a line, passed on as it stands where the output is JSON lines too, else read into columns."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from ssbroker import further
from ssbroker.cli.errors import located, one_line, reading
from ssbroker.cli.intake import Intake, from_json
from ssbroker.cli.pieces import Piece, Rows, without_rows
from ssbroker.exceptions import InputError, MalformedDataError, SchemaError

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

    def __init__(self, file: Path, *, intake: Intake, schema: pa.Schema | None) -> None:
        self.file = file
        self._intake = intake
        self._in_json = schema or intake.in_json
        self._nothing = without_rows(self._in_json)
        self.schema = None if schema is None else from_json(self._nothing, intake, file=file).schema
        self._keys: Sequence[str] | None = None
        with reading(file), file.open("rb"):
            pass

    def pieces(self) -> Iterator[Piece]:
        """The rows, in order."""
        empty = True
        for block, first_row, position in blocks(self.file):
            empty = False
            if self.schema is None and self._keys is None:
                self._keys = _keys_of(block, self.file, self._intake)
            yield Piece(
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
            yield Piece(
                file=self.file, first_row=0, size=0, position=0, load=lambda: Rows(columns=columns, lines=lines)
            )

    def _load(self, block: bytes, first_row: int) -> Rows:
        lines = lines_of(block, self.file, first_row)
        options = pyarrow.json.ParseOptions(
            explicit_schema=self._in_json, unexpected_field_behavior="error" if self.schema else "ignore"
        )
        columns = parsed(block, options, self._intake, self.file, first_row, rows=len(lines))
        row_of = partial(line_of, block, first_row)
        columns = from_json(columns, self._intake, file=self.file, row_of=row_of)
        if self.schema is not None:
            return Rows(columns=columns)
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
        return Rows(columns=columns.drop_columns(absent), lines=lines)


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
        raise _bad_line(block, None, file, first_row) or _malformed(file, first_row)
    return lines


def parsed(
    block: bytes, options: pyarrow.json.ParseOptions, intake: Intake, file: Path, first_row: int, *, rows: int
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
        raise _bad_line(block, intake, file, first_row) or _malformed(file, first_row)
    return table.combine_chunks().to_batches()[0]


def _bad_line(block: bytes, intake: Intake | None, file: Path, first_row: int) -> InputError | SchemaError | None:
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
    return None if value is None or is_whole else Intake.expected(kind)


def _changed_type(told: str, block: bytes, file: Path, first_row: int) -> SchemaError | None:
    found = re.search(r"Column\(/(.*)\) changed from (\w+) to (\w+) in row (\d+)", told)
    if found is None:
        return None
    name, known, other, row = found.groups()
    message = f"{file}: {name}, row {line_of(block, first_row, int(row))}: is {other}, and {known} in lines before; expected one type"
    return SchemaError(message, column=name, expected=known, actual=other)


def _malformed(file: Path, first_row: int) -> MalformedDataError:
    return MalformedDataError(f"{file}: rows {first_row} and further: expected {_EXPECTED}", expected=_EXPECTED)


def _keys_of(block: bytes, file: Path, intake: Intake) -> list[str]:
    """Which columns that the command reads the lines of a block have, if only in some."""
    keys = []
    for name in intake.columns.names:
        key = re.compile(rf'"{name}"\s*:'.encode())
        try:
            if any(name in json.loads(line) for line in block.split(b"\n") if key.search(line)):
                keys.append(name)
        except (ValueError, TypeError, RecursionError) as error:
            raise _bad_line(block, intake, file, 0) or _malformed(file, 0) from error
    with contextlib.suppress(ValueError, RecursionError):  # what is no JSON is told where it is read
        first = json.loads(next((line for line in block.split(b"\n") if line.strip()), b"{}"))
        if isinstance(first, dict):
            _check_meant([*first, *keys], intake, file)
    return keys


def _check_meant(names: list[str], intake: Intake, file: Path) -> None:
    try:
        further.check_meant(names, read=intake.columns.names)
    except SchemaError as error:
        raise located(error, file=file) from None


def _check_keys(block: bytes, intake: Intake, *, file: Path, first_row: int) -> None:
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
