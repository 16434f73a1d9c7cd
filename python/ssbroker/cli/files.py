"""Which files are meant, and what reads each."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ssbroker.cli import formats
from ssbroker.cli.errors import reading
from ssbroker.cli.formats import Format
from ssbroker.cli.intake import Intake
from ssbroker.cli.json_columns import infer_schema
from ssbroker.cli.json_lines import JsonLinesSource
from ssbroker.cli.pieces import Source
from ssbroker.cli.readers import ArrowSource, CsvSource, ParquetSource
from ssbroker.exceptions import InputError

_HIDDEN: Final = (".", "_")


def expand(patterns: Sequence[str]) -> list[Path]:
    """The files that are meant, in order: each a file, a folder (the files in it that are of a known format), or a pattern.

    Args:
        patterns: What was given.

    Returns:
        The files; those of a folder or pattern sorted by name.

    Raises:
        InputError: Nothing is there, or one file is meant twice.
    """
    files: list[Path] = []
    for pattern in patterns:
        with reading(Path(pattern)):
            files += _meant_by(pattern)
    seen: set[Path] = set()
    for file in files:
        with reading(file):
            if not file.exists():
                raise InputError(f"{file}: no such file or folder")
            if not file.is_file():
                raise InputError(f"{file}: is no regular file; expected one, since it is read more than once")
        if file.resolve() in seen:
            raise InputError(f"{file}: is given twice; its rows would count twice")
        seen.add(file.resolve())
    return files


def open_sources(
    files: Sequence[Path], intake: Intake, *, lines: bool, threads: int, progress: bool | None
) -> list[Source]:
    """Opens files.

    Args:
        files: The files.
        intake: What is read of them.
        lines: Whether lines of JSON are passed on as they stand, and not read into columns.
        threads: How many threads may read ahead what the columns are.
        progress: Whether to show a bar where that takes long; None shows it where standard error is a terminal.

    Returns:
        What reads each.

    Raises:
        InputError: A file cannot be read, or is not of its format.
    """
    kinds = []
    for file in files:
        with reading(file):
            kinds.append(formats.of_input(file))
    json_files = [file for file, kind in zip(files, kinds, strict=True) if kind is Format.JSONL]
    schema = None if lines or not json_files else infer_schema(json_files, intake, threads=threads, progress=progress)
    sources: list[Source] = []
    for file, kind in zip(files, kinds, strict=True):
        if kind is Format.PARQUET:
            sources.append(ParquetSource(file))
        elif kind is Format.CSV:
            sources.append(CsvSource(file, intake=intake))
        elif kind is Format.JSONL:
            sources.append(JsonLinesSource(file, intake=intake, schema=schema))
        else:
            sources.append(ArrowSource(file, stream=kind is Format.ARROWS))
    return sources


def _meant_by(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return _folder(path)
    if path.exists() or not glob.has_magic(pattern):
        return [path]
    found = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not found:
        raise InputError(f"{pattern}: no file matches the pattern")
    return [file for entry in found for file in (_folder(entry) if entry.is_dir() else [entry])]


def _folder(folder: Path) -> list[Path]:
    with reading(folder):
        entries = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith(_HIDDEN))
    files = [entry for entry in entries if formats.by_suffix(entry) is not None]
    if not files:
        raise InputError(
            f"{folder}: holds no file of a known format ({formats.KNOWN_SUFFIXES}); folders within are not looked into, "
            "a pattern such as 'folder/**/*.parquet' finds them"
        )
    return files
