"""Reports errors as one line, and copes with closed output streams."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import pyarrow as pa

from ssbroker._text import terminal_safe
from ssbroker.exceptions import InputError, MalformedDataError, OutputError, SchemaError, renumber_row

_LENGTH_MAX: Final = 600


def one_line(text: str) -> str:
    r"""The text on one line as a terminal may have it, its middle left out where it is very long.

    Examples:
        >>> one_line("two\n  lines")
        'two lines'
    """
    line = terminal_safe(" ".join(text.split()))
    return line if len(line) <= _LENGTH_MAX else f"{line[: _LENGTH_MAX - 100]} ... {line[-90:]}"


def located(
    error: InputError | SchemaError, *, file: Path, row_of: Callable[[int], int] = int
) -> InputError | SchemaError:
    """The same error, about a file and its rows instead of a piece of it.

    Args:
        error: What is wrong with the piece.
        file: The file.
        row_of: Tells the number in the file of a row of the piece.

    Returns:
        The error.

    Examples:
        >>> str(located(InputError("age, row 2: 'x' is no number", row=2), file=Path("people.csv"), row_of=lambda row: row + 40))
        "people.csv: age, row 42: 'x' is no number"
    """
    moved = renumber_row(error, row_of) if isinstance(error, InputError) else error
    there = type(moved)(f"{file}: {moved}")
    there.__dict__.update(moved.__dict__)
    return there


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what pyarrow and the system raise while `path` is read into input errors that name the file.

    Raises:
        InputError: The file is not there, or may not be read.
        MalformedDataError: Its content is not what its format demands.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file or folder") from error
    except PermissionError as error:
        raise InputError(f"{path}: may not be read: {error.strerror or error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise MalformedDataError(f"{path}: {one_line(str(error))}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what pyarrow and the system raise while the result for `path` is written into output errors.

    Raises:
        OutputError: The result could not be written.
    """
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {one_line(error.strerror or str(error))}") from error
    except pa.ArrowException as error:
        raise OutputError(f"{path}: cannot be written: {one_line(str(error))}") from error


_NAMES: Final = {1: "standard output", 2: "standard error"}


@contextmanager
def standard_streams() -> Iterator[None]:
    """Has a command go on to its end, whoever reads what it says.

    A reader that has seen enough (`ssbroker sql shop/ *.sql | head -1`) stops neither the work nor changes the exit status, and a stream
    that was closed from the start counts as one that nobody reads. What cannot be written for another reason is an `OutputError`. A sign that
    the stream's encoding does not have is written as its escape, which JSON reads too.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _File(io.FileIO):
    """A stream of the process; what its reader does not want any more is gone, and so is what comes after an error that was told."""

    _is_lost = False

    def write(self, data: Any, /) -> int:
        if self._is_lost:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
        except OSError as error:
            self._is_lost = True
            name = _NAMES.get(self.fileno(), "the output")
            raise OutputError(f"{name}: cannot be written: {error.strerror}") from error


def _lasting(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    is_another = stream is not sys.__stdout__ and stream is not sys.__stderr__
    if is_another or stream.isatty():
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_File(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )
