"""File formats, chosen by suffix, by option or by the first bytes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from ssbroker import _csv
from ssbroker.exceptions import InputError, OptionError


class Format(StrEnum):
    """A file format."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"
    ARROW = "arrow"
    ARROWS = "arrows"


_SUFFIXES: Final = {
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
    ".arrows": Format.ARROWS,
}
_FIRST_BYTES: Final = {b"PAR1": Format.PARQUET, b"ARRO": Format.ARROW, b"\xff\xff\xff\xff": Format.ARROWS}
_COMPRESSED: Final = (".bz2", ".gz", ".xz", ".zip", ".zst")
_INPUT_SUFFIXES: Final = {**_SUFFIXES, **dict.fromkeys(_csv.SUFFIXES, Format.CSV)}
INPUT_SUFFIXES: Final = ", ".join(_INPUT_SUFFIXES)
OUTPUT_SUFFIXES: Final = ", ".join(_SUFFIXES)
STANDARD_STREAM: Final = "-"
"""The name by which other commands refer to standard input and output."""


def output_format_by_suffix(path: Path) -> Format | None:
    """Returns the format to write for the suffix of a file name; None if the suffix is unknown."""
    return _SUFFIXES.get(path.suffix.lower())


def input_format_by_suffix(path: Path) -> Format | None:
    """Returns the format to read for the suffix of a file name; None if the suffix is unknown."""
    return _INPUT_SUFFIXES.get(path.suffix.lower())


def output_format(path: Path, requested: Format | None) -> Format:
    """Returns the format to write: the requested format, or the format for the suffix."""
    if str(path) == STANDARD_STREAM:
        raise OptionError(
            f"{path}: standard output is not supported, because an output appears only when it is complete; "
            f"specify a file with one of the suffixes {OUTPUT_SUFFIXES}"
        )
    found = requested or output_format_by_suffix(path)
    if found is None:
        raise OptionError(f"{path}: unknown format; use one of the suffixes {OUTPUT_SUFFIXES}, or specify --format")
    return found


def input_format(path: Path) -> Format:
    """Returns the format of an existing file: by its suffix, or for Arrow IPC and unknown suffixes by its first bytes."""
    expected = input_format_by_suffix(path)
    if expected in (Format.PARQUET, Format.CSV, Format.JSONL):
        return expected
    with path.open("rb") as file:
        content = _FIRST_BYTES.get(file.read(4))
    found = content if expected is None or content is Format.ARROWS else expected
    if found is None and path.suffix.lower() in _COMPRESSED:
        raise InputError(
            f"{path}: compressed files are not supported, except Parquet and Arrow IPC; decompress the file, or convert it to Parquet"
        )
    if found is None:
        raise InputError(
            f"{path}: unknown format; expected one of the suffixes {INPUT_SUFFIXES}, or the first bytes of Parquet or Arrow IPC"
        )
    return found
