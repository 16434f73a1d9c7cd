"""Tables in folders: reads the columns of Hive partitions; refuses Delta and Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ssbroker.exceptions import InputError

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value in the name of a folder `column=value` that represents null."""
_MARKS: Final = {"Delta": "_delta_log", "Iceberg": "metadata/*.metadata.json"}


def partition_columns(file: Path) -> dict[str, str | None]:
    """Returns the columns, with their values, that the folder names of a path contain. The path is used as given, not resolved.

    Examples:
        >>> partition_columns(Path("in/day=2026-01-01/database=A%2FB/region=__HIVE_DEFAULT_PARTITION__/x=1.parquet"))
        {'day': '2026-01-01', 'database': 'A/B', 'region': None}
    """
    pairs = (folder.partition("=") for folder in file.parts[:-1])
    return {
        unquote(name): None if value == NULL_PARTITION else unquote(value)
        for name, equals, value in pairs
        if name and equals
    }


def refuse_delta_and_iceberg(files: Iterable[Path]) -> None:
    """Rejects files in the folder of a Delta or Iceberg table, because only the metadata of the table lists the files that are still valid.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "_delta_log").mkdir()
        ...     try:
        ...         refuse_delta_and_iceberg([Path(folder, "day=1", "part-0.parquet")])
        ...     except InputError as error:
        ...         print(str(error).removeprefix(folder))
        : this folder is a Delta table, and may contain files that no longer belong to the table; read it with a reader for Delta, and pass the DataFrame to ssbroker, or write the rows to a Parquet file outside this folder
    """
    for folder in dict.fromkeys(parent for file in files for parent in file.absolute().parents):
        for name, mark in _MARKS.items():
            if next(folder.glob(mark), None) is not None:
                raise InputError(
                    f"{folder}: this folder is a {name} table, and may contain files that no longer belong to the table; read it with a "
                    f"reader for {name}, and pass the DataFrame to ssbroker, or write the rows to a Parquet file outside this folder",
                    value=str(folder),
                )
