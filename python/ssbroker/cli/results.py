"""A file of results while it is written: whatever fails names the place that the file is for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from ssbroker.cli.errors import writing
from ssbroker.cli.formats import Format
from ssbroker.cli.text import Column
from ssbroker.cli.writers import open_writer


class Result:
    """A file of results; it is complete when the `with` block ends without an error.

    Args:
        part: The file to write.
        kind: Its format.
        schema: Its columns.
        output: Where it is to be at last, for messages.

    Raises:
        OutputError: It cannot be written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "out.csv")
        ...     with Result(path, Format.CSV, pa.schema([("a", pa.int8())]), output=path) as result:
        ...         result.write(result.encode(pa.record_batch({"a": pa.array([1], pa.int8())})))
        ...     path.read_text().split()
        ['"a"', '1']
    """

    def __init__(self, part: Path, kind: Format, schema: pa.Schema, *, output: Path) -> None:
        self._output = output
        with writing(output):
            self._writer = open_writer(part, kind, schema)

    @property
    def growth(self) -> int:
        """How many times the memory of its rows an encoded batch takes, about."""
        return self._writer.growth

    def encode(self, batch: pa.RecordBatch, lines: Column | None = None) -> Any:
        """Brings rows into the form that `write` takes; may run in many threads at once."""
        with writing(self._output):
            return self._writer.encode(batch, lines)

    def write(self, encoded: Any) -> None:
        """Appends what `encode` gave."""
        with writing(self._output):
            self._writer.write(encoded)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            with writing(self._output):
                self._writer.close()
        else:
            with contextlib.suppress(Exception):  # it is removed anyway
                self._writer.close()
