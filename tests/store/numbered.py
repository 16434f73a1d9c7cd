"""A file into which numbers are written, a transaction each; each takes away the one that was written three before."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

from ssbroker.store.file import DatabaseFile

MIGRATIONS: Final = ("CREATE TABLE numbers (number INTEGER PRIMARY KEY, body BLOB)",)
_BODY_BYTES: Final = 9000  # more than a page


def body(number: int) -> bytes:
    """What is written with a number; no page of it is like that of another."""
    return random.Random(number).randbytes(_BODY_BYTES)


def write(file: DatabaseFile, number: int) -> None:
    """A transaction; the log is moved into the file often."""
    with file.write() as connection:
        connection.pragma("wal_autocheckpoint", 3)
        connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, body(number)))
        connection.execute("DELETE FROM numbers WHERE number = ?", (number - 3,))


def expected(written: list[int]) -> list[int]:
    """What is there after these."""
    return [number for number in written if number + 3 not in written]


def numbers(file: DatabaseFile) -> list[int]:
    """What is there."""
    with file.read() as connection:
        assert connection.pragma("integrity_check") == "ok"
        found = list(connection.execute("SELECT number, body FROM numbers ORDER BY number"))
    assert all(written == body(number) for number, written in found)
    return [number for number, _ in found]


def numbers_at(path: Path) -> list[int]:
    """What is there for who opens it now."""
    file = DatabaseFile.open(path, MIGRATIONS)
    try:
        return numbers(file)
    finally:
        file.close()


def numbers_after_a_kill(path: Path, folder: Path) -> list[int]:
    """What would be found if the process were killed now: the file and its log as they are, without the log's index."""
    folder.mkdir()
    for file in (path, path.with_name(path.name + "-wal")):
        if file.exists():
            shutil.copy(file, folder)
    return numbers_at(folder / path.name)
