"""The file formats that are read and written."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

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
_MAGIC: Final = {b"PAR1": Format.PARQUET, b"ARRO": Format.ARROW, b"\xff\xff\xff\xff": Format.ARROWS}
KNOWN_SUFFIXES: Final = ", ".join(_SUFFIXES)


def by_suffix(path: Path) -> Format | None:
    """The format that the name of a file tells, None where it tells none.

    Examples:
        >>> by_suffix(Path("conversations.ndjson"))
        <Format.JSONL: 'jsonl'>
    """
    return _SUFFIXES.get(path.suffix.lower())


def of_output(path: Path, chosen: Format | None) -> Format:
    """The format to write: the one chosen, else the one that the suffix tells.

    Raises:
        OptionError: Neither tells.

    Examples:
        >>> of_output(Path("decisions.csv"), None)
        <Format.CSV: 'csv'>
    """
    found = chosen or by_suffix(path)
    if found is None:
        raise OptionError(
            f"{path}: the suffix tells no format; expected one of {KNOWN_SUFFIXES}, or the option --format"
        )
    return found


def of_input(path: Path) -> Format:
    """The format of an existing file: told by its suffix, and for Arrow IPC and where there is none by its first bytes.

    Raises:
        InputError: Neither tells.
        OSError: The file cannot be read.
    """
    suffix = by_suffix(path)
    if suffix in (Format.PARQUET, Format.CSV, Format.JSONL):
        return suffix
    with path.open("rb") as file:
        content = _MAGIC.get(file.read(4))
    found = content if suffix is None or content is Format.ARROWS else suffix
    if found is None:
        raise InputError(f"{path}: neither suffix nor first bytes tell the format; expected one of {KNOWN_SUFFIXES}")
    return found
