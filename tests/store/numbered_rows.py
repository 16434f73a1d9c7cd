"""Writes numbers to a file, one transaction each; each transaction deletes the number written three before."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

from ssbroker.store.database_file import DatabaseFile

MIGRATIONS: Final = ("CREATE TABLE numbers (number INTEGER PRIMARY KEY, body BLOB)",)
_BODY_BYTES: Final = 9000  # more than a page


def body(number: int) -> bytes:
    """Returns the body of a number; all its pages are different."""
    return random.Random(number).randbytes(_BODY_BYTES)


def write(file: DatabaseFile, number: int) -> None:
    """Runs a transaction; checkpoints are frequent."""
    with file.write() as connection:
        connection.pragma("wal_autocheckpoint", 3)
        connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, body(number)))
        connection.execute("DELETE FROM numbers WHERE number = ?", (number - 3,))


def expected(written: list[int]) -> list[int]:
    """Returns the expected content after some numbers."""
    return [number for number in written if number + 3 not in written]


def numbers(file: DatabaseFile) -> list[int]:
    """Returns the content."""
    with file.read() as connection:
        assert connection.pragma("integrity_check") == "ok"
        found = list(connection.execute("SELECT number, body FROM numbers ORDER BY number"))
    assert all(written == body(number) for number, written in found)
    return [number for number, _ in found]


def numbers_at(path: Path) -> list[int]:
    """Returns the content as a new connection reads it."""
    file = DatabaseFile.open(path, MIGRATIONS)
    try:
        return numbers(file)
    finally:
        file.close()


def numbers_after_a_kill(path: Path, folder: Path) -> list[int]:
    """Returns the content if the process were killed now: from the file and its log, without the log's index."""
    folder.mkdir()
    for file in (path, path.with_name(path.name + "-wal")):
        if file.exists():
            shutil.copy(file, folder)
    return numbers_at(folder / path.name)
