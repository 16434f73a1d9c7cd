"""Writes output files: Parquet, Arrow IPC, CSV and JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ssbroker._arrow_types import without_dictionaries
from ssbroker._parquet import RowGroupWriter
from ssbroker.cli.chunks import empty_batch
from ssbroker.cli.errors import writing
from ssbroker.cli.file_formats import Format
from ssbroker.cli.input_files import conform
from ssbroker.cli.text_conversion import ArrowColumn, concat_text, csv_cells, json_values


class Writer(Protocol):
    """Encodes batches in one format and writes them to one file."""

    size_factor: int
    """The approximate size of encoded rows in memory, as a multiple of the size of the rows."""

    def encode(self, batch: pa.RecordBatch, json_lines: ArrowColumn | None = None) -> Any:
        """Encodes rows for `write`; called from several threads.

        Each of `json_lines`, which only the writer of JSON Lines supports, is a JSON object to which the columns of the batch are added.
        """
        ...

    def write(self, encoded: Any) -> None:
        """Appends encoded rows."""
        ...

    def close(self) -> None:
        """Completes the file."""
        ...


def open_writer(path: Path, file_format: Format, schema: pa.Schema) -> Writer:
    """Opens a file for writing; `schema` is the schema of the batches."""
    return _WRITERS[file_format](path, schema)


class CsvWriter:
    """CSV with a header line; ids are GUIDs of 36 characters, and text is quoted, so that empty text differs from null."""

    size_factor = 2

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb")
        self._file.write(_to_csv(empty_batch(schema), header=True))

    def encode(self, batch: pa.RecordBatch, json_lines: ArrowColumn | None = None) -> pa.Buffer:
        """Encodes rows."""
        del json_lines
        return _to_csv(batch, header=False)

    def write(self, encoded: pa.Buffer) -> None:
        """Appends encoded rows."""
        self._file.write(encoded)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


class JsonLinesWriter:
    """JSON Lines; rows that were read from JSON Lines keep their text, with fields added at the end."""

    size_factor = 3

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        del schema
        self._file = path.open("wb")

    def encode(self, batch: pa.RecordBatch, json_lines: ArrowColumn | None = None) -> pa.Buffer:
        """Encodes rows."""
        if json_lines is None:
            text = _to_json_objects(batch, first="{")
        else:
            unclosed = pc.binary_slice(json_lines.view(pa.large_binary()), 0, -1).view(pa.large_string())
            text = _to_json_objects(batch, first=unclosed, separator=",")
        _, offsets, characters = text.buffers()
        end = pa.Array.from_buffers(pa.int64(), len(text) + 1, [None, offsets])[-1].as_py()
        return characters.slice(0, end) if end else pa.py_buffer(b"")

    def write(self, encoded: pa.Buffer) -> None:
        """Appends encoded rows."""
        self._file.write(encoded)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


class ParquetWriter:
    """Parquet in row groups that fit into memory."""

    size_factor = 1

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._groups = RowGroupWriter(path, schema)

    def encode(self, batch: pa.RecordBatch, json_lines: ArrowColumn | None = None) -> pa.RecordBatch:
        """Converts rows to the schema."""
        del json_lines
        return conform(batch, self._schema)

    def write(self, encoded: pa.RecordBatch) -> None:
        """Appends encoded rows."""
        self._groups.write(encoded)
        if self._groups.is_full:
            self._groups.flush()

    def close(self) -> None:
        """Completes the file."""
        self._groups.close()


class ArrowWriter:
    """Arrow IPC; dictionary-encoded columns are written as plain values, because a file may contain only one dictionary per column."""

    size_factor = 1

    def __init__(self, path: Path, schema: pa.Schema, *, stream: bool = False) -> None:
        self._schema = without_dictionaries(schema)
        self._file = pa.OSFile(str(path), "wb")
        self._writer = (pa.ipc.new_stream if stream else pa.ipc.new_file)(self._file, self._schema)

    def encode(self, batch: pa.RecordBatch, json_lines: ArrowColumn | None = None) -> pa.RecordBatch:
        """Converts rows to the schema."""
        del json_lines
        return conform(batch, self._schema)

    def write(self, encoded: pa.RecordBatch) -> None:
        """Appends encoded rows."""
        self._writer.write_batch(encoded)

    def close(self) -> None:
        """Completes the file."""
        self._writer.close()
        self._file.close()


def _arrow_stream(path: Path, schema: pa.Schema) -> ArrowWriter:
    return ArrowWriter(path, schema, stream=True)


_WRITERS: Final[dict[Format, Callable[[Path, pa.Schema], Writer]]] = {
    Format.PARQUET: ParquetWriter,
    Format.CSV: CsvWriter,
    Format.JSONL: JsonLinesWriter,
    Format.ARROW: ArrowWriter,
    Format.ARROWS: _arrow_stream,
}


def _to_csv(batch: pa.RecordBatch, *, header: bool) -> pa.Buffer:
    cells = {name: csv_cells(column, name=name) for name, column in _named_columns(batch)}
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.RecordBatch.from_pydict(cells), sink, pyarrow.csv.WriteOptions(include_header=header))
    return sink.getvalue()


def _to_json_objects(batch: pa.RecordBatch, *, first: Any, separator: str = "") -> ArrowColumn:
    parts: list[Any] = [first]
    for name, column in _named_columns(batch):
        parts += [f"{separator}{json.dumps(name)}:", json_values(column, name=name)]
        separator = ","
    return concat_text([*parts, "}\n"])


def _named_columns(batch: pa.RecordBatch) -> list[tuple[str, ArrowColumn]]:
    return list(zip(batch.schema.names, batch.columns, strict=True))


class OutputFile:
    """An output file, which is complete when the `with` block ends without an error.

    Args:
        part: The file to write.
        file_format: The format of the file.
        schema: The columns of the file.
        output: The path that messages name.

    Raises:
        OutputError: The file cannot be written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "out.csv")
        ...     with OutputFile(path, Format.CSV, pa.schema([("a", pa.int8())]), output=path) as output_file:
        ...         output_file.write(output_file.encode(pa.record_batch({"a": pa.array([1], pa.int8())})))
        ...     path.read_text().split()
        ['"a"', '1']
    """

    def __init__(self, part: Path, file_format: Format, schema: pa.Schema, *, output: Path) -> None:
        self._output = output
        with writing(output):
            self._writer = open_writer(part, file_format, schema)

    @property
    def size_factor(self) -> int:
        """The approximate size of encoded rows in memory, as a multiple of the size of the rows."""
        return self._writer.size_factor

    def encode(self, batch: pa.RecordBatch, json_lines: ArrowColumn | None = None) -> Any:
        """Encodes rows for `write`; called from several threads."""
        with writing(self._output):
            return self._writer.encode(batch, json_lines)

    def write(self, encoded: Any) -> None:
        """Appends encoded rows."""
        with writing(self._output):
            self._writer.write(encoded)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            with writing(self._output):
                self._writer.close()
        else:
            with contextlib.suppress(Exception):  # the file is removed anyway
                self._writer.close()
