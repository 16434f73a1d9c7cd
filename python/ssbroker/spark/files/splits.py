"""Parquet files cut into splits: row groups that one task reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ssbroker.exceptions import InputError, MalformedDataError, SchemaError

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A Parquet file, a folder of them, or several of both."""

_HIDDEN = ("_", ".")


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
    """The Parquet files of a source, those of a folder in the order of their names.

    Args:
        source: A file, a folder, which is searched with those below it, or several of both. What begins with `_` or `.` is left out.

    Returns:
        The files.

    Raises:
        InputError: Something is not there, holds no Parquet file, or is partitioned by the names of its folders.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.parquet", "a.parquet", "_SUCCESS"):
        ...         Path(folder, name).touch()
        ...     [file.name for file in files_of(folder)]
        ['a.parquet', 'b.parquet']
    """
    paths = [source] if isinstance(source, str | os.PathLike) else list(source)
    found = [file for path in paths for file in _below(Path(path))]
    if not found:
        raise InputError("source: expected at least one file; got none")
    return found


def splits_of(files: Sequence[Path], *, split_bytes: int) -> tuple[pa.Schema, list[Split]]:
    """The columns of files, and what each task reads of them.

    Args:
        files: Parquet files with the same columns.
        split_bytes: How many bytes of row groups, as they stand in the file, a task reads, about.

    Returns:
        The schema, and splits that hold every row group once; a file without rows has none.

    Raises:
        SchemaError: A file has other columns than the first.
        MalformedDataError: A file is no Parquet file.
    """
    schema: pa.Schema | None = None
    splits: list[Split] = []
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                columns, metadata = opened.schema_arrow.remove_metadata(), opened.metadata
        except (pa.ArrowException, OSError) as error:
            raise MalformedDataError(f"{file}: cannot be read as Parquet: {error}") from error
        if schema is None:
            schema = columns
        elif not columns.equals(schema):
            raise SchemaError(f"{file}: {_difference(schema, columns, first=files[0])}")
        splits += _cut(file, metadata, split_bytes)
    if schema is None:
        raise InputError("source: expected at least one file; got none")
    return schema, splits


def _below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: there is no such file or folder", value=str(path), expected="Parquet files")
    found = sorted(
        file
        for file in path.rglob("*.parquet")
        if file.is_file() and not any(part.startswith(_HIDDEN) for part in file.relative_to(path).parts)
    )
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
        if not found.field(field.name).equals(field):
            return f"column {field.name!r} is {found.field(field.name).type}, and {field.type} in {first}"
    return f"has its columns in another order than {first}"
