"""Parquet files cut into splits: row groups that one task reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ssbroker.exceptions import InputError, MalformedDataError, SchemaError
from ssbroker.spark.files.intervals import kind, told
from ssbroker.spark.files.moments import Kinds
from ssbroker.spark.paths import local_path

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A Parquet file, a folder of them, or several of both."""

BATCH_BYTES: Final = 4 << 20
"""Of wide rows, of which much at once costs a large piece of new memory each time."""
_SAMPLE_ROWS: Final = 64
_HIDDEN: Final = ("_", ".")


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads.

    Attributes:
        file: The file.
        groups: The numbers of its row groups, in order.
        first_row: The row of the file with which they begin.
        rows: How many they are.
    """

    file: str
    groups: tuple[int, ...]
    first_row: int
    rows: int


def files_of(source: Source) -> list[Path]:
    """The Parquet files of a source, absolute, those of a folder in the order of their names.

    Args:
        source: A file, a folder, which is searched with those below it, or several of both. What begins with `_` or `.` is left out.

    Returns:
        The files.

    Raises:
        InputError: Something is not there, is a URI, holds no Parquet file, or is partitioned by the names of its folders.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.parquet", "a.parquet", "_SUCCESS"):
        ...         Path(folder, name).touch()
        ...     [file.name for file in files_of(folder)]
        ['a.parquet', 'b.parquet']
    """
    paths = [source] if isinstance(source, str | os.PathLike) else list(source)
    found = [file for path in paths for file in _below(local_path(path, name="source"))]
    if not found:
        raise InputError("source: expected at least one file; got none")
    return found


def splits_of(files: Sequence[Path], *, split_bytes: int) -> tuple[pa.Schema, list[Split]]:
    """The columns of files, and what each task reads of them.

    Args:
        files: Parquet files with the same columns.
        split_bytes: How many bytes of row groups, as they stand in the file, a task reads, about.

    Returns:
        The schema, in which intervals of Spark are told from numbers, and splits that hold every row group once; a file without rows has none.

    Raises:
        SchemaError: A file has other columns than the first, or a column of Parquet's own intervals.
        MalformedDataError: A file is no Parquet file.
    """
    schema: pa.Schema | None = None
    splits: list[Split] = []
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                columns, metadata = Kinds.of(opened).schema.remove_metadata(), opened.metadata
                _check_intervals(file, opened)
        except (pa.ArrowException, OSError) as error:
            raise MalformedDataError(f"{file}: cannot be read as Parquet: {error}") from error
        columns = told(columns, metadata.metadata)
        if schema is None:
            schema = columns
        elif not columns.equals(schema) or [*map(kind, columns)] != [*map(kind, schema)]:
            raise SchemaError(f"{file}: {_difference(schema, columns, first=files[0])}")
        splits += _cut(file, metadata, split_bytes)
    if schema is None:
        raise InputError("source: expected at least one file; got none")
    return schema, splits


def read(split: Split, *, rows_most: int, in_dictionaries: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The rows of a split, in a worker.

    Args:
        split: What is read.
        rows_most: The most rows of a batch; of wide rows it has fewer.
        in_dictionaries: Columns to be read as dictionaries, where they are there.

    Yields:
        The batches, with the types of `splits_of`, or dictionaries of them.

    Raises:
        MalformedDataError: What stands in the file cannot be read.
    """
    try:
        yield from _batches(split, rows_most=rows_most, in_dictionaries=in_dictionaries)
    except (pa.ArrowException, OSError) as error:
        raise MalformedDataError(f"{split.file}: cannot be read as Parquet: {error}") from error


def _batches(split: Split, *, rows_most: int, in_dictionaries: Sequence[str]) -> Iterator[pa.RecordBatch]:
    settings: Any = {"pre_buffer": False, "buffer_size": 1 << 20, "coerce_int96_timestamp_unit": "us"}
    with pq.ParquetFile(split.file, **settings) as looked:
        kinds, rows = Kinds.of(looked), _batch_rows(looked, split.groups, rows_most)
        names: list[str] = [name for name in in_dictionaries if name in looked.schema_arrow.names]
        settings["metadata"] = looked.metadata
    with pq.ParquetFile(split.file, read_dictionary=names, **settings) as parquet:
        for batch in parquet.iter_batches(rows, row_groups=list(split.groups), use_threads=False):
            yield kinds.given(batch)


def _below(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        is_folder = path.is_dir()
    except OSError as error:  # no name can be so long
        raise InputError(f"{path}: cannot be read: {error.strerror}", value=str(path)) from error
    if not is_folder:
        raise InputError(f"{path}: there is no such file or folder", value=str(path), expected="Parquet files")
    found = sorted(_searched(path, frozenset()))
    if not found:
        raise InputError(f"{path}: holds no Parquet file", value=str(path), expected="files that end in .parquet")
    for file in found:
        named = [part for part in file.relative_to(path).parts[:-1] if "=" in part]
        if named:
            raise InputError(
                f"{path}: is partitioned by the names of its folders ({named[0]}), and columns that stand in no file are not read; "
                "name the folders below it one by one",
                value=named[0],
            )
    return found


def _searched(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """The Parquet files of a folder and those below it; a link to a folder is one, unless it leads back to one above it."""
    real = folder.resolve()
    if real in above:
        return
    for entry in folder.iterdir():
        if entry.name.startswith(_HIDDEN):
            continue
        if entry.is_dir():
            yield from _searched(entry, above | {real})
        elif entry.suffix == ".parquet" and entry.is_file():
            yield entry


def _batch_rows(parquet: pq.ParquetFile, groups: Sequence[int], most: int) -> int:
    """How many rows to read at once: wide ones are few. What is written once for many rows, only some of the rows can tell."""
    found = [parquet.metadata.row_group(number) for number in groups]
    widest = max((group.total_byte_size // group.num_rows for group in found if group.num_rows), default=0)
    for some in parquet.iter_batches(_SAMPLE_ROWS, row_groups=list(groups), use_threads=False):
        widest = max(widest, some.nbytes // max(1, some.num_rows))
        break
    return max(1, min(most, BATCH_BYTES // max(1, widest)))


def _cut(file: Path, metadata: pq.FileMetaData, split_bytes: int) -> Iterator[Split]:
    groups: list[int] = []
    rows = first_row = held = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if groups and held + size > split_bytes:
            yield Split(str(file), tuple(groups), first_row, rows)
            first_row += rows
            groups, rows, held = [], 0, 0
        groups.append(number)
        rows += group.num_rows
        held += size
    if rows:
        yield Split(str(file), tuple(groups), first_row, rows)


def _difference(expected: pa.Schema, found: pa.Schema, *, first: Path) -> str:
    """What tells two schemas apart."""
    for name in expected.names:
        if name not in found.names:
            return f"has no column {name!r}, which {first} has"
    for name in found.names:
        if name not in expected.names:
            return f"has a column {name!r}, which {first} has not"
    for field in expected:
        for other in (found.field(place) for place in found.get_all_field_indices(field.name)):
            if not other.equals(field) or kind(other) != kind(field):
                return f"column {field.name!r} is {_told(other)}, and {_told(field)} in {first}"
    return f"has its columns in another order than {first}"


def _told(field: Any) -> str:
    return f"{kind(field) or field.type}{'' if field.nullable else ' not null'}"


def _check_intervals(file: Path, parquet: pq.ParquetFile) -> None:
    """Arrow reads Parquet's own intervals as bytes, and neither it nor Spark has a type for them."""
    for number in range(len(parquet.schema)):
        column = parquet.schema.column(number)
        if column.converted_type == "INTERVAL":
            raise SchemaError(
                f"{file}: column {column.path!r} holds intervals of Parquet's own, which neither Arrow nor Spark reads; cast it, or leave it out",
                column=column.path,
            )
