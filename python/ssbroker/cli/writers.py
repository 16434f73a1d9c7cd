"""Writes output files and folders, which replace the old ones only when they are complete."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ssbroker import _files
from ssbroker._parquet import RowGroupWriter
from ssbroker.cli.chunks import empty_batch
from ssbroker.cli.errors import writing
from ssbroker.cli.file_formats import Format
from ssbroker.cli.readers import conform
from ssbroker.cli.text_conversion import ArrowColumn, concat_text, csv_cells, json_values
from ssbroker.exceptions import OutputError


@contextmanager
def replacing_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yields new, empty files beside `paths`; moves them there at the end, or removes them after an error.

    Whether the paths can be written is checked first. The old files stay until all new ones are complete and on disk; then the new ones are
    moved in the order given.

    Raises:
        OutputError: A path cannot be written, or is not a regular file.
    """
    targets = [Path(os.path.realpath(path)) for path in paths]
    parts = [_part_path(target) for target in targets]
    try:
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                _create_part(path, target, part)
        yield parts
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                if target.exists():
                    shutil.copymode(target, part)
                _files.sync_to_disk(part)
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                part.replace(target)
                _files.sync_to_disk(target.parent)
    finally:
        for part in parts:
            with suppress(OSError):  # an error about the path was raised already
                part.unlink()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields the path of a folder to create beside `path`; moves it there at the end, or removes it after an error.

    Raises:
        OutputError: The path cannot be written, is a file, or is a folder with files that Spark did not write.
    """
    target = Path(os.path.realpath(path))
    part = _part_path(target)
    with writing(path):
        if target.exists() and not target.is_dir():
            raise OutputError(f"{path}: cannot be written: Spark writes a folder, but this is a file")
        if target.exists() and (
            other := next((entry for entry in target.iterdir() if not _is_spark_output(entry)), None)
        ):
            raise OutputError(
                f"{path}: cannot be replaced: the folder has a file that Spark did not write ({other.name})"
            )
        part.mkdir()
        part.rmdir()
    try:
        yield part
        with writing(path):
            _replace_folder(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def refuse_overwriting(paths: Sequence[Path], *, inputs: Sequence[Path], catalogs: Sequence[Path] = ()) -> None:
    """Checks that no output is an input, a file of a catalog, or another output.

    Raises:
        OutputError: An output would overwrite one of these.
    """
    targets: list[Path] = []
    for path in paths:
        target = Path(os.path.realpath(path))
        with writing(path):
            for file in inputs:
                source = Path(os.path.realpath(file))
                if _is_same_file(target, source):
                    raise OutputError(f"{path}: cannot be written: it is also an input ({file})")
                if source.is_relative_to(target):
                    raise OutputError(f"{path}: cannot be written: it contains the input {file}; choose another path")
            if any(_is_same_file(target, other) for other in targets):
                raise OutputError(f"{path}: cannot be written: it is specified for two outputs")
            for catalog in catalogs:
                _refuse_catalog(path, target, catalog)
        targets.append(target)


def _refuse_catalog(path: Path, target: Path, catalog: Path) -> None:
    source = Path(os.path.realpath(catalog))
    is_part = target.parent == source and _is_catalog_file(target)
    if source != target and source.is_relative_to(target):
        raise OutputError(f"{path}: cannot be written: it contains the catalog {catalog}; choose another path")
    if _is_same_file(target, source) or is_part:
        raise OutputError(f"{path}: cannot be written: it is part of the catalog ({catalog})")


def _is_catalog_file(target: Path) -> bool:
    """Whether a catalog loads a file of this name in its folder: a table, a script, or a database of an instance."""
    tables = {"routes", "databases", "services", "instance"}
    return target.stem.lower() in tables or target.suffix.lower().startswith((".sql", ".sqlite"))


def _is_same_file(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))


def _create_part(path: Path, target: Path, part: Path) -> None:
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: cannot be written: it is {'a folder' if path.is_dir() else 'not a regular file'}")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: the existing file is read-only")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _part_path(target: Path) -> Path:
    return target.with_name(f".ssbroker-{secrets.token_hex(8)}.part")


def _is_spark_output(entry: Path) -> bool:
    return entry.is_file() and entry.name.lstrip(".").startswith(("part-", "_SUCCESS"))


def _replace_folder(part: Path, target: Path) -> None:
    """Replaces a folder by another with two renames, because no file system does it in one."""
    old = part.with_suffix(".old")
    if target.exists():
        target.rename(old)
    try:
        part.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


class Writer(Protocol):
    """Encodes batches in one format and writes them to one file."""

    size_factor: int
    """The approximate size of encoded rows in memory, as a multiple of the size of the rows."""

    def encode(self, batch: pa.RecordBatch, json_lines: ArrowColumn | None = None) -> Any:
        """Encodes rows for `write`; called from several threads.

        With `json_lines`, which only the writer of JSON lines supports, each row is a JSON object to which the columns of the batch are added.
        """
        ...

    def write(self, encoded: Any) -> None:
        """Appends encoded rows."""
        ...

    def close(self) -> None:
        """Completes the file."""
        ...


def open_writer(path: Path, file_format: Format, schema: pa.Schema) -> Writer:
    """Opens a file to write; `schema` is that of the batches."""
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
    """JSON lines; rows that were read from JSON lines keep their text and get more fields at the end."""

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
    """Arrow IPC; dictionaries are written as their values, because a file may hold only one dictionary per column."""

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


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with the value types of its dictionaries."""
    return pa.schema(
        [field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema]
    )


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
        file_format: Its format.
        schema: Its columns.
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
