"""Files of any columns, written a batch at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ssbroker.cli.conform import conformed
from ssbroker.cli.formats import Format
from ssbroker.cli.pieces import without_rows
from ssbroker.cli.text import Column, csv_cells, joined_text, json_values
from ssbroker.row_groups import RowGroups


class Writer(Protocol):
    """Writes one file."""

    growth: int
    """How many times the memory of its rows an encoded piece takes, about."""

    def encode(self, batch: pa.RecordBatch, lines: Column | None = None) -> Any:
        """Brings rows into the form that `write` takes; may run in many threads at once.

        With `lines`, which only JSON lines know, each row is an object as it stands, with the fields of the batch at its end.
        """
        ...

    def write(self, encoded: Any) -> None:
        """Appends what `encode` gave."""
        ...

    def close(self) -> None:
        """Completes the file."""
        ...


def open_writer(path: Path, kind: Format, schema: pa.Schema) -> Writer:
    """Opens a file to write.

    Args:
        path: The file.
        kind: Its format.
        schema: The columns, as the batches have them.

    Returns:
        The writer.

    Raises:
        OSError: The file cannot be written.
        pyarrow.ArrowException: The format has no such column.
    """
    return _WRITERS[kind](path, schema)


class CsvWriter:
    """CSV with a header line; ids are GUIDs of 36 characters, and text stands in quotes, so that an empty one is no null."""

    growth = 2

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb")
        self._file.write(_csv(without_rows(schema), header=True))

    def encode(self, batch: pa.RecordBatch, lines: Column | None = None) -> pa.Buffer:
        """The rows as CSV."""
        del lines
        return _csv(batch, header=False)

    def write(self, encoded: pa.Buffer) -> None:
        """Appends rows."""
        self._file.write(encoded)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


class JsonLinesWriter:
    """JSON lines; what came as JSON lines keeps its text, and gets further fields at the end."""

    growth = 3

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        del schema
        self._file = path.open("wb")

    def encode(self, batch: pa.RecordBatch, lines: Column | None = None) -> pa.Buffer:
        """The rows as JSON lines."""
        if lines is None:
            text = _objects(batch, first="{")
        else:
            opened = pc.binary_slice(lines.view(pa.large_binary()), 0, -1).view(pa.large_string())
            text = _objects(batch, first=opened, separator=",")
        _, offsets, characters = text.buffers()
        end = pa.Array.from_buffers(pa.int64(), len(text) + 1, [None, offsets])[-1].as_py()
        return characters.slice(0, end) if end else pa.py_buffer(b"")

    def write(self, encoded: pa.Buffer) -> None:
        """Appends rows."""
        self._file.write(encoded)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


class ParquetWriter:
    """Parquet in row groups that fit into memory."""

    growth = 1

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._groups = RowGroups(path, schema)

    def encode(self, batch: pa.RecordBatch, lines: Column | None = None) -> pa.RecordBatch:
        """The rows as a batch."""
        del lines
        return conformed(batch, self._schema)

    def write(self, encoded: pa.RecordBatch) -> None:
        """Appends rows."""
        self._groups.write(encoded)
        if self._groups.is_group:
            self._groups.flush()

    def close(self) -> None:
        """Completes the file."""
        self._groups.close()


class ArrowWriter:
    """Arrow IPC; dictionaries are written as their values, as a file may hold one dictionary only for each column."""

    growth = 1

    def __init__(self, path: Path, schema: pa.Schema, *, stream: bool = False) -> None:
        self._schema = without_dictionaries(schema)
        self._file = pa.OSFile(str(path), "wb")
        self._writer = (pa.ipc.new_stream if stream else pa.ipc.new_file)(self._file, self._schema)

    def encode(self, batch: pa.RecordBatch, lines: Column | None = None) -> pa.RecordBatch:
        """The rows as a batch."""
        del lines
        return conformed(batch, self._schema)

    def write(self, encoded: pa.RecordBatch) -> None:
        """Appends rows."""
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


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """The same columns with plain values.

    Examples:
        >>> without_dictionaries(pa.schema([("reason", pa.dictionary(pa.int8(), pa.string()))])).types
        [DataType(string)]
    """
    return pa.schema(
        [field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema]
    )


def _csv(batch: pa.RecordBatch, *, header: bool) -> pa.Buffer:
    cells = {name: csv_cells(column, name=name) for name, column in _named(batch)}
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.record_batch(cells), sink, pyarrow.csv.WriteOptions(include_header=header))
    return sink.getvalue()


def _objects(batch: pa.RecordBatch, *, first: Any, separator: str = "") -> Column:
    parts: list[Any] = [first]
    for name, column in _named(batch):
        parts += [f"{separator}{json.dumps(name)}:", json_values(column, name=name)]
        separator = ","
    return joined_text([*parts, "}\n"])


def _named(batch: pa.RecordBatch) -> list[tuple[str, Column]]:
    return list(zip(batch.schema.names, batch.columns, strict=True))
