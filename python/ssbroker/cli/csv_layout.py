"""The layout of a CSV file that SSMS, sqlcmd or a spreadsheet wrote: encoding, separator, and lines that are not rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_DASHES: Final = re.compile(r"-+")
ROW_COUNT: Final = re.compile(r"\(\d+ rows? affected\)")
_LINE_MAX: Final = 1 << 20


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


def read_layout(file: Path) -> CsvLayout:
    """Determines the layout of a CSV file from its first lines."""
    with file.open("rb") as opened:
        encoding = "utf-16" if opened.read(2) in _UTF16_MARKS else "utf-8-sig"
    with file.open(encoding=encoding, errors="replace", newline="") as text:
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
        has_dashes=is_underline(second or []),
        has_rows=second is not None,
    )


def is_underline(cells: list[str]) -> bool:
    """Returns whether sqlcmd has underlined the header with these cells.

    Examples:
        >>> is_underline(["--------", "---"]), is_underline(["-", "x"]), is_underline([])
        (True, False, False)
    """
    return bool(cells) and all(_DASHES.fullmatch(cell.strip()) for cell in cells)


def is_row_count(line: str) -> bool:
    """Returns whether a line is the row count that sqlcmd writes below the rows.

    Examples:
        >>> is_row_count("(1 rows affected)"), is_row_count("(none)")
        (True, False)
    """
    return ROW_COUNT.fullmatch(line.strip()) is not None


def numbered_rows(rows: Iterator[list[str]], layout: CsvLayout) -> Iterator[list[str]]:
    """Yields the rows after the header, without blank lines and lines that sqlcmd adds."""
    next(rows)
    if layout.has_dashes:
        next(rows)
    for cells in rows:
        if cells and not is_row_count(layout.delimiter.join(cells)):
            yield cells


def first_line(cells: list[str], *, last: int) -> int:
    """Returns the line on which a row starts, given its last line: cells may contain line breaks."""
    return last - sum(cell.count("\n") for cell in cells)


def line_of_row(file: Path, row: int) -> int | None:
    """Returns the line, counted from 1, on which a row of a CSV file starts; None if it cannot be read."""
    layout = read_layout(file)
    with file.open(encoding=layout.encoding, errors="replace", newline="") as text, field_size_limit(1 << 29):
        rows = csv.reader(text, delimiter=layout.delimiter)
        try:
            for number, cells in enumerate(numbered_rows(rows, layout)):
                if number == row:
                    return first_line(cells, last=rows.line_num)
        except csv.Error:
            return None
    return None


@contextmanager
def field_size_limit(characters: int) -> Iterator[None]:
    """Sets the maximum number of characters that the `csv` module accepts in a cell, within the block."""
    before = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(before)
