"""Transactions on ordinary tables of a database file: recorded, and checked after a power cut."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import StorageError
from ssbroker.store.database_file import DatabaseFile
from tests.system.power.cutting import Cut
from tests.system.power.recording import NAME, Mark, Recording, recording

if TYPE_CHECKING:
    import apsw

    from tests.system.power.run import Weakness

MIGRATIONS: Final = (
    "CREATE TABLE orders (number INTEGER PRIMARY KEY, body BLOB); CREATE TABLE totals (only_row, orders, bytes)",
)
FILE: Final = "file.sqlite"
COMMIT: Final = "commit"
"""From this mark on the transaction may be found."""
COMMITTED: Final = "committed"
"""From this mark on it must be found."""
_ROWS: Final = 40


class Tables:
    """Transaction 0 creates the file; then rows are inserted and deleted, some transactions are rolled back, and the file is closed and reopened.

    Some commits defer their sync to a later one, or to `DatabaseFile.sync`.
    """

    def __init__(self, folder: Path, *, transactions: int, seed: int, weakness: Weakness) -> None:
        rng = random.Random(seed)
        path = folder / FILE
        with recording(ignored_syncs=weakness.ignored_syncs) as recorder:
            recorder.trace.append(Mark(COMMIT, 0))
            file = DatabaseFile.create(path, MIGRATIONS, vfs=NAME)
            recorder.trace.append(Mark(COMMITTED, 0))
            self._contents = {0: _content_of(file)}
            for number in range(1, transactions + 1):
                is_durable = rng.random() < 0.7
                _transact(file, recorder, number, rng, weakness.synchronous, is_durable=is_durable)
                self._contents[number] = _content_of(file)
                if not is_durable and rng.random() < 0.3:
                    file.sync()
                    recorder.trace.append(Mark(COMMITTED, number))
                if rng.random() < 0.1:
                    _roll_back(file, rng)
                if rng.random() < 0.05:
                    file.close()
                    file = DatabaseFile.open(path, MIGRATIONS, vfs=NAME)
            file.close()
            self.operations = recorder.trace

    def faults(self, folder: Path, cut: Cut, *, write_after: bool) -> Iterator[str]:
        """Checks that the file opens, that nothing acknowledged is lost, that nothing uncommitted is present, and that it can be written."""
        started = cut.marks[-1].number
        committed = max((mark.number for mark in cut.marks if mark.word == COMMITTED), default=-1)
        try:
            file = DatabaseFile.open(folder / FILE, MIGRATIONS)
        except StorageError:
            if committed >= 0:
                raise
            file = DatabaseFile.create(folder / FILE, MIGRATIONS)
            committed = 0
        with closing(file):
            with file.read() as connection:
                found = _content(connection)
                integrity = connection.pragma("integrity_check")
            if write_after:
                with file.write() as connection:
                    connection.execute("INSERT OR REPLACE INTO orders VALUES (1000, 'after the cut')")
        if integrity != "ok":
            yield str(integrity)
        if found not in {self._contents.get(number) for number in range(committed, started + 1)}:
            yield f"holds none of the transactions {committed} to {started}"


def _content(connection: apsw.Connection) -> str:
    """Returns a digest of all tables and rows."""
    digest = hashlib.blake2b(digest_size=16)
    for name, sql in connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
        digest.update(f"{sql}\n".encode())
        for row in connection.execute(f'SELECT * FROM "{name}"'):
            digest.update(f"{row!r}\n".encode())
    return digest.hexdigest()


def _content_of(file: DatabaseFile) -> str:
    with file.read() as connection:
        return _content(connection)


def _transact(
    file: DatabaseFile, recorder: Recording, number: int, rng: random.Random, synchronous: str, *, is_durable: bool
) -> None:
    if (kept := file.write_lock.take_idle_connection()) is not None:
        file.connections.give_back(kept)  # the next reader gets it, and then the next writer
    with file.read() as connection:
        pass
    connection.pragma("synchronous", synchronous)
    with file.write(is_durable=is_durable) as writing:
        assert writing is connection
        _change(writing, rng)
        recorder.trace.append(Mark(COMMIT, number))
    if is_durable:
        recorder.trace.append(Mark(COMMITTED, number))


def _roll_back(file: DatabaseFile, rng: random.Random) -> None:
    session = file.session()
    _change(session.begin(), rng)
    session.close()


def _change(connection: apsw.Connection, rng: random.Random) -> None:
    """Inserts, updates and deletes rows, so that pages are split, freed and reused; the totals must match."""
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        number = rng.randrange(_ROWS)
        if rng.random() < 0.3:
            connection.execute("DELETE FROM orders WHERE number = ?", (number,))
        else:
            body = rng.randbytes(rng.choice((10, 200, 1000, 1000, 12_000)))
            connection.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (number, body))
    connection.execute("DELETE FROM totals")
    connection.execute("INSERT INTO totals SELECT 1, count(*), coalesce(sum(length(body)), 0) FROM orders")
