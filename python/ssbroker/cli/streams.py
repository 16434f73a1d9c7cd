"""Standard output and standard error where nobody reads them any more, or where they are closed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from ssbroker.exceptions import OutputError

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
