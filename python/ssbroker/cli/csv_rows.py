"""Which row of a CSV file is wrong, and how: pyarrow says neither, and takes a quote that has no end for one that ends with the file."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ssbroker.exceptions import MalformedDataError

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
                    return _malformed(f"{file}: row {row}: {told}", row)
                for name, cell in zip(header, cells, strict=False):
                    if found := _NO_UTF8.search(cell):
                        told = f"is no text in UTF-8 (byte 0x{ord(found[0]) - 0xDC00:02x}); save the file as UTF-8 or UTF-16"
                        return _malformed(f"{file}: {name}, row {row}: {told}", row)
                row += bool(cells)
        except csv.Error as error:
            told = "a quote that begins here has no end" if "unexpected end" in str(error) else str(error)
            return _malformed(f"{file}: row {row}: {told}", row)
    return None


def _malformed(message: str, row: int) -> MalformedDataError:
    return MalformedDataError(message, row=row, expected="CSV in UTF-8 with a header line")


@contextmanager
def _cells_of(length: int) -> Iterator[None]:
    before = csv.field_size_limit(length)
    try:
        yield
    finally:
        csv.field_size_limit(before)
