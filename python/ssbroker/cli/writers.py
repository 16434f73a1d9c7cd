"""Writes result files, which appear complete or not at all."""

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
from ssbroker.cli.chunks import without_rows
from ssbroker.cli.errors import writing
from ssbroker.cli.formats import Format
from ssbroker.cli.readers import conformed
from ssbroker.cli.text import ArrowColumn, csv_cells, joined_text, json_values
from ssbroker.exceptions import OutputError


@contextmanager
def replacing_files(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Gives the names of new, empty files beside `paths`; moves them there at the end, removes them after an error.

    Whether the places can be written is seen at once. What stands at each stays until all new files are complete and on disk; then
    they are moved, in the order given.

    Args:
        paths: Where the results are to be.

    Yields:
        The files to write.

    Raises:
        OutputError: A place cannot be written, or is no regular file.
    """
    targets = [Path(os.path.realpath(path)) for path in paths]
    parts = [_sibling(target) for target in targets]
    try:
        for path, target, part in zip(paths, targets, parts, strict=True):
            with writing(path):
                _begin(path, target, part)
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
            with suppress(OSError):  # of a place that cannot be written, something was told already
                part.unlink()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Gives the name of a folder beside `path` that is yet to be made; moves it there at the end, removes it after an error.

    Args:
        path: Where the result is to be.

    Yields:
        The folder to make.

    Raises:
        OutputError: The place cannot be written, or is a file.
    """
    target = Path(os.path.realpath(path))
    part = _sibling(target)
    with writing(path):
        if target.exists() and not target.is_dir():
            raise OutputError(f"{path}: cannot be written: Spark writes a folder, and this is a file")
        if target.exists() and (other := next((entry for entry in target.iterdir() if not _of_spark(entry)), None)):
            raise OutputError(f"{path}: cannot be replaced: the folder holds what Spark did not write ({other.name})")
        part.mkdir()
        part.rmdir()
    try:
        yield part
        with writing(path):
            _swap(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def refuse_overwriting(paths: Sequence[Path], *, inputs: Sequence[Path], catalogs: Sequence[Path] = ()) -> None:
    """Refuses an output that is one of the files that are read, or another output.

    Args:
        paths: Where the results are to be.
        inputs: The files that are read.
        catalogs: The file or folder of each catalog that is read.

    Raises:
        OutputError: An output is an input, one of a catalog's files, or written twice.
    """
    targets: list[Path] = []
    for path in paths:
        target = Path(os.path.realpath(path))
        with writing(path):
            for file in inputs:
                real = Path(os.path.realpath(file))
                if _same(target, real) or real.is_relative_to(target):
                    raise OutputError(f"{path}: cannot be written: it is also an input ({file})")
            if any(_same(target, other) for other in targets):
                raise OutputError(f"{path}: cannot be written: it is given for two outputs")
            for catalog in catalogs:
                _refuse_catalog(path, target, catalog)
        targets.append(target)


def _refuse_catalog(path: Path, target: Path, catalog: Path) -> None:
    where = Path(os.path.realpath(catalog))
    is_within = target.parent == where and _may_be_loaded(target)
    if _same(target, where) or where.is_relative_to(target) or is_within:
        raise OutputError(f"{path}: cannot be written: it belongs to the catalog ({catalog})")


def _may_be_loaded(target: Path) -> bool:
    """Whether a file of this name in the folder of a catalog is part of it: a table, a script, a database of an instance."""
    tables = {"routes", "databases", "services", "instance"}
    return target.stem.lower() in tables or target.suffix.lower().startswith((".sql", ".sqlite"))


def _same(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))


def _begin(path: Path, target: Path, part: Path) -> None:
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: cannot be written: it is {'a folder' if path.is_dir() else 'no regular file'}")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: the file there is read-only")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _sibling(target: Path) -> Path:
    return target.with_name(f".ssbroker-{secrets.token_hex(8)}.part")


def _of_spark(entry: Path) -> bool:
    return entry.is_file() and entry.name.lstrip(".").startswith(("part-", "_SUCCESS"))


def _swap(part: Path, target: Path) -> None:
    """Puts a folder in the place of another; two renames, as no file system does it in one."""
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
    """Writes one file."""

    growth: int
    """How many times the memory of its rows an encoded piece takes, about."""

    def encode(self, batch: pa.RecordBatch, lines: ArrowColumn | None = None) -> Any:
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

    def encode(self, batch: pa.RecordBatch, lines: ArrowColumn | None = None) -> pa.Buffer:
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

    def encode(self, batch: pa.RecordBatch, lines: ArrowColumn | None = None) -> pa.Buffer:
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
        self._groups = RowGroupWriter(path, schema)

    def encode(self, batch: pa.RecordBatch, lines: ArrowColumn | None = None) -> pa.RecordBatch:
        """The rows as a batch."""
        del lines
        return conformed(batch, self._schema)

    def write(self, encoded: pa.RecordBatch) -> None:
        """Appends rows."""
        self._groups.write(encoded)
        if self._groups.is_full:
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

    def encode(self, batch: pa.RecordBatch, lines: ArrowColumn | None = None) -> pa.RecordBatch:
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


def _objects(batch: pa.RecordBatch, *, first: Any, separator: str = "") -> ArrowColumn:
    parts: list[Any] = [first]
    for name, column in _named(batch):
        parts += [f"{separator}{json.dumps(name)}:", json_values(column, name=name)]
        separator = ","
    return joined_text([*parts, "}\n"])


def _named(batch: pa.RecordBatch) -> list[tuple[str, ArrowColumn]]:
    return list(zip(batch.schema.names, batch.columns, strict=True))


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

    def encode(self, batch: pa.RecordBatch, lines: ArrowColumn | None = None) -> Any:
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
