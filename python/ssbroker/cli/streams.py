"""Standard output and standard error that survive closed pipes and limited encodings."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from ssbroker.exceptions import OutputError

_STREAM_NAMES: Final = {1: "standard output", 2: "standard error"}


@contextmanager
def standard_streams() -> Iterator[None]:
    """Replaces the standard streams, so that a command runs to its end even if nobody reads its output.

    A closed pipe (`ssbroker sql shop/ *.sql | head -1`) or a stream that was closed from the start neither stops the command nor changes
    its exit status. Other write errors raise `OutputError`. Characters that the encoding of the stream lacks are written as backslash
    escapes, which are valid in JSON too.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _resilient(sys.stdout), _resilient(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _ResilientFile(io.FileIO):
    """A stream that discards output after its pipe is closed, and after the first error."""

    _is_failed = False

    def write(self, data: Any, /) -> int:
        if self._is_failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
        except OSError as error:
            self._is_failed = True
            name = _STREAM_NAMES.get(self.fileno(), "the output")
            raise OutputError(f"{name}: cannot be written: {error.strerror}") from error


def _resilient(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    is_replaced = stream is not sys.__stdout__ and stream is not sys.__stderr__
    if is_replaced or stream.isatty():
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_ResilientFile(stream.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )
