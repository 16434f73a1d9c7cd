"""CSV files as SSMS, sqlcmd and spreadsheets write them: in UTF-8 or UTF-16, with commas, tabs or semicolons, and with lines that are not rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TextIO

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from ssbroker._arrow import reject_misspelled_columns
from ssbroker.exceptions import MalformedDataError, SchemaError

pc: Any = pyarrow.compute  # the stubs support neither Python constants nor text with 64-bit offsets

SUFFIXES: Final = (".csv", ".tsv", ".txt")
"""The suffixes of CSV files; SSMS saves rows that tabs separate as `.txt`."""
NULL_TEXTS: Final = ("", "NULL", "null")
"""The texts with which various tools represent null; SSMS and sqlcmd write `NULL`."""

_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_DASHES: Final = re.compile(r"-+")
_ROW_COUNT: Final = re.compile(r"\(\d+ rows? affected\)")
_LINE_MAX: Final = 1 << 20
_SHOWN_CHARACTERS_MAX: Final = 80
_READ_CHARACTERS: Final = 1 << 20

_BLOCK_BYTES: Final = 2 << 20
_BLOCK_GROWTH: Final = 16
_BLOCK_BYTES_MAX: Final = 512 << 20
_ROW_TOO_LONG: Final = "straddling"
"""A word in pyarrow's message about a row that is longer than a block."""
_ESCAPED_BYTE: Final = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as decoded by Python's `surrogateescape`."""

_FROM_SQLCMD: Final = (
    'to separate columns with commas, run sqlcmd with -s "," -W, or save the results of SSMS from the grid'
)
_FROM_SSMS: Final = (
    "if SSMS omitted the header line, turn on Tools > Options > Query Results > SQL Server > Results to Grid > "
    "Include column headers when copying or saving the results, and run the query in a new window"
)


@dataclass(frozen=True, kw_only=True)
class CsvLayout:
    """The layout of a CSV file.

    Attributes:
        encoding: `utf-16`, or `utf-8-sig`.
        delimiter: A comma, or a tab or semicolon if the header has no comma.
        header: The names of the columns; empty for an empty file.
        has_dashes: Whether sqlcmd has underlined the header.
        has_rows: Whether the file has more than a header.
    """

    encoding: str
    delimiter: str
    header: tuple[str, ...]
    has_dashes: bool
    has_rows: bool


class CsvFile:
    r"""A CSV file, whose columns are read as text.

    Errors of pyarrow, of the module `csv` and of the system are not converted.

    Args:
        path: The file.
        data: The content of the file; None to read the file when it is needed, in blocks.

    Examples:
        >>> file = CsvFile(Path("routes.txt"), b"name\taddress\n----\t-------\nStock\tNULL\n\n(1 rows affected)\n")
        >>> file.layout.delimiter, file.read().to_pylist()
        ('\t', [{'name': 'Stock', 'address': 'NULL'}])
    """

    def __init__(self, path: Path, data: bytes | None = None) -> None:
        self.path: Final = path
        self._data: Final = data
        self.layout: Final = self._read_layout()
        self.schema: Final = pa.schema([(name, pa.string()) for name in self.layout.header])

    def check_header(self, known: Sequence[str]) -> None:
        """Rejects a first line without a known column: the line is a row, or its separator is not supported."""
        header = self.layout.header
        if not header:
            raise MalformedDataError(f"{self.path}: the file is empty; expected a header line with the column names")
        if set(header) & set(known):
            return
        is_aligned = any(cell.strip() in known for cell in header) or (
            len(header) == 1 and len(set(header[0].split()) & set(known)) > 1
        )
        if not is_aligned:
            try:
                reject_misspelled_columns(header, expected=known)
            except SchemaError as error:
                raise SchemaError(
                    f"{self.path}: {error}", column=error.column, expected=error.expected, actual=error.actual
                ) from None
        expected = f"a header line with columns such as {', '.join(known)}, separated by commas, semicolons or tabs"
        shown = self.layout.delimiter.join(header)[:_SHOWN_CHARACTERS_MAX]
        raise MalformedDataError(
            f"{self.path}: no known column in the first line, {shown!r}; expected {expected}; "
            f"{_FROM_SQLCMD if is_aligned else _FROM_SSMS}",
            expected=expected,
        )

    def read(self) -> pa.Table:
        """Returns all rows."""
        return pa.Table.from_batches([batch for batch, _ in self.batches()], self.schema)

    def batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yields the rows in order, without blank lines and lines that sqlcmd adds, and the position in the file after each batch."""
        block_bytes, rows_read = _BLOCK_BYTES, 0
        while self.layout.has_rows:
            try:
                for batch, position in self._batches_by(block_bytes, skipped_rows=rows_read):
                    rows_read += batch.num_rows
                    yield self._without_row_count(batch), position
                break
            except pa.ArrowInvalid as error:  # a row may be longer than a block
                if _ROW_TOO_LONG not in str(error):
                    raise self._malformed_row() or error from error
                block_bytes *= _BLOCK_GROWTH
                if block_bytes > _BLOCK_BYTES_MAX:
                    problem = f"row {rows_read} or later: a row is longer than {_BLOCK_BYTES_MAX >> 20} MiB"
                    message = f"{self.path}: {problem}, or a quoted cell is not closed"
                    raise MalformedDataError(message, row=rows_read) from error
        if self._may_have_open_quote() and (malformed := self._malformed_row()) is not None:
            raise malformed

    def line_of_row(self, row: int) -> int | None:
        """Returns the line, counted from 1, on which a row starts; None if it cannot be read."""
        with self._text(errors="replace") as text, _field_size_limit(_BLOCK_BYTES_MAX):
            rows = csv.reader(text, delimiter=self.layout.delimiter)
            try:
                for number, cells in enumerate(self._numbered_rows(rows)):
                    if number == row:
                        return _first_line(cells, last=rows.line_num)
            except csv.Error:
                return None
        return None

    def _read_layout(self) -> CsvLayout:
        """Determines the layout from the first lines."""
        with self._binary() as opened:  # Python's error for a folder has a number, pyarrow's does not
            encoding = "utf-16" if opened.read(2) in _UTF16_MARKS else "utf-8-sig"
        with self._text(encoding=encoding, errors="replace") as text:
            first = text.readline(_LINE_MAX)
            delimiter = next((one for one in ",\t;" if one in first), ",")
            text.seek(0)
            rows = csv.reader(text, delimiter=delimiter)
            header = next(rows, [])
            second: list[str] | None = []
            with suppress(csv.Error):  # reported when the rows are read
                second = next(rows, None)
        return CsvLayout(
            encoding=encoding,
            delimiter=delimiter,
            header=tuple(header),
            has_dashes=_is_underline(second or []),
            has_rows=second is not None,
        )

    def _arrow_file(self) -> Any:
        return pa.OSFile(str(self.path), "rb") if self._data is None else pa.BufferReader(self._data)

    def _binary(self) -> BinaryIO:
        return self.path.open("rb") if self._data is None else io.BytesIO(self._data)

    def _text(self, *, errors: str, encoding: str | None = None) -> TextIO:
        return io.TextIOWrapper(self._binary(), encoding=encoding or self.layout.encoding, errors=errors, newline="")

    def _batches_by(self, block_bytes: int, *, skipped_rows: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        with self._arrow_file() as opened:
            rows_before = 0
            for batch in self._open(opened, block_bytes):
                start = min(batch.num_rows, max(0, skipped_rows - rows_before))
                rows_before += batch.num_rows
                if start < batch.num_rows:
                    yield batch.slice(start), opened.tell()

    def _open(self, opened: Any, block_bytes: int) -> pyarrow.csv.CSVStreamingReader:
        return pyarrow.csv.open_csv(
            opened,
            read_options=pyarrow.csv.ReadOptions(
                block_size=block_bytes,
                encoding=self.layout.encoding.removesuffix("-sig"),
                skip_rows_after_names=int(self.layout.has_dashes),
                # Threads read blocks ahead, which would take too much memory if the blocks are large. A thread that
                # frees the content of the file at exit would abort the process.
                use_threads=block_bytes == _BLOCK_BYTES and self._data is None,
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self.layout.delimiter, newlines_in_values=True, invalid_row_handler=_skip_row_count
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(self.layout.header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _without_row_count(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Removes the row count that sqlcmd writes below the rows, which pyarrow treats as a row if there is only one column."""
        if batch.num_columns > 1:
            return batch
        is_count: Any = pc.match_substring_regex(batch.column(0), f"^{_ROW_COUNT.pattern}\\s*$")
        return batch.filter(pc.invert(pc.fill_null(is_count, False)))

    def _may_have_open_quote(self) -> bool:
        """Returns whether the number of quotes is odd; pyarrow reads everything after an unclosed quote as one cell."""
        count = 0
        with self._text(errors="replace") as text:
            while read := text.read(_READ_CHARACTERS):
                count += read.count('"')
        return count % 2 == 1

    def _malformed_row(self) -> MalformedDataError | None:
        """Returns the error for the first row that is not CSV in UTF-8 or UTF-16 with as many cells as the header; None if there is no such row."""
        row, header, delimiter = 0, self.layout.header, self.layout.delimiter
        errors = "surrogateescape" if self.layout.encoding == "utf-8-sig" else "replace"
        with _field_size_limit(_BLOCK_BYTES_MAX), self._text(errors=errors) as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            try:
                for cells in self._numbered_rows(rows):
                    if len(cells) != len(header):
                        shown = delimiter.join(cells)[:_SHOWN_CHARACTERS_MAX]
                        problem = f"expected {len(header)} cells, as in the header, got {len(cells)}: {shown!a}"
                        return self._malformed(f"row {row}: {problem}", row, _first_line(cells, last=rows.line_num))
                    for name, cell in zip(header, cells, strict=False):
                        if found := _ESCAPED_BYTE.search(cell):
                            byte = f"0x{ord(found[0]) - 0xDC00:02x}"
                            problem = f"not valid UTF-8 (byte {byte}); save the file as UTF-8 or UTF-16"
                            return self._malformed(
                                f"{name}, row {row}: {problem}", row, _first_line(cells, last=rows.line_num)
                            )
                    row += 1
            except csv.Error as error:
                is_open_quote = "unexpected end" in str(error)
                problem = "a quoted cell that starts here is not closed" if is_open_quote else str(error)
                return self._malformed(f"row {row}: {problem}", row, None if is_open_quote else rows.line_num)
        return None

    def _malformed(self, problem: str, row: int, line: int | None) -> MalformedDataError:
        expected = "CSV in UTF-8 or UTF-16 with a header line"
        return MalformedDataError(f"{self.path}: {problem}{line_text(line)}", row=row, expected=expected)

    def _numbered_rows(self, rows: Iterator[list[str]]) -> Iterator[list[str]]:
        """Yields the rows after the header, without blank lines and lines that sqlcmd adds."""
        next(rows)
        if self.layout.has_dashes:
            next(rows)
        for cells in rows:
            if cells and not _is_row_count(self.layout.delimiter.join(cells)):
                yield cells


def line_text(line: int | None) -> str:
    """Returns a line number as text to append to a message; it is clearer than a row number, which starts at 0 after the header."""
    return "" if line is None else f" (line {line} of the file)"


def _skip_row_count(row: Any) -> Literal["skip", "error"]:
    """Skips the row count that sqlcmd writes below the rows; any other row whose cells do not match the header is an error."""
    return "skip" if _is_row_count(row.text) else "error"


def _is_underline(cells: list[str]) -> bool:
    """Returns whether sqlcmd has underlined the header with these cells.

    Examples:
        >>> _is_underline(["--------", "---"]), _is_underline(["-", "x"]), _is_underline([])
        (True, False, False)
    """
    return bool(cells) and all(_DASHES.fullmatch(cell.strip()) for cell in cells)


def _is_row_count(line: str) -> bool:
    """Returns whether a line is the row count that sqlcmd writes below the rows.

    Examples:
        >>> _is_row_count("(1 rows affected)"), _is_row_count("(none)")
        (True, False)
    """
    return _ROW_COUNT.fullmatch(line.strip()) is not None


def _first_line(cells: list[str], *, last: int) -> int:
    """Returns the line on which a row starts, given its last line: cells may contain line breaks."""
    return last - sum(cell.count("\n") for cell in cells)


@contextmanager
def _field_size_limit(characters: int) -> Iterator[None]:
    """Sets the maximum number of characters that the `csv` module accepts in a cell, within the block."""
    before = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(before)
