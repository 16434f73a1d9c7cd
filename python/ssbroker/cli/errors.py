"""One-line error messages that name the file."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from ssbroker import _csv
from ssbroker._text import one_line
from ssbroker.exceptions import InputError, MalformedDataError, OutputError, SchemaError, renumber_row

_ROW_AS_REASON: Final = re.compile(r"(\bbecause row )([0-9]+)")


def error_in_file(
    error: InputError | SchemaError, *, file: Path, row_in_file: Callable[[int], int] = int
) -> InputError | SchemaError:
    """Returns an error about a chunk with the name of the file and the row number in the file.

    Examples:
        >>> error = InputError("age, row 2: 'x' is not a number", row=2)
        >>> str(error_in_file(error, file=Path("people.csv"), row_in_file=lambda row: row + 40))
        "people.csv: age, row 42: 'x' is not a number"
    """
    moved = renumber_row(error, row_in_file) if isinstance(error, InputError) else error
    # An error about a column may name a row as the reason.
    message = _ROW_AS_REASON.sub(lambda found: f"{found[1]}{row_in_file(int(found[2]))}", str(moved))
    row = moved.row if isinstance(moved, InputError) else None
    named = type(moved)(f"{file}: {message}{line_of(file, row)}")
    named.__dict__.update(moved.__dict__)
    return named


def line_of(file: Path, row: int | None) -> str:
    """Returns the line of a row in a CSV file, to append to a message; empty for other files."""
    is_csv = file.suffix.lower() in _csv.SUFFIXES
    return _csv.line_text(_csv.CsvFile(file).line_of_row(row)) if row is not None and is_csv and file.exists() else ""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Converts errors that pyarrow and the system raise while reading `path` to `InputError` and `MalformedDataError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file or folder") from error
    except PermissionError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise MalformedDataError(f"{path}: {one_line(str(error))}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Converts errors that pyarrow and the system raise while writing `path` to `OutputError`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {one_line(error.strerror or str(error))}") from error
    except pa.ArrowException as error:
        raise OutputError(f"{path}: cannot be written: {one_line(str(error))}") from error
