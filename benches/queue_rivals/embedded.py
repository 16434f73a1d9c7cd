"""Queues in SQLite files, all with a write-ahead log and `synchronous = FULL`."""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Sequence
from typing import Any

import diskcache
import litequeue
import persistqueue

from benches.queue_rivals import Message, batches


class LiteQueue:
    """`pop` marks a message as taken; `done`, a second transaction, is omitted. Several cannot be popped in one transaction."""

    name: str = "litequeue"

    def __init__(self, folder: pathlib.Path, *, conversations: int) -> None:  # noqa: ARG002  # it has no conversations
        self._queue: Any = litequeue.LiteQueue(folder / "litequeue.sqlite")
        self._queue.conn.execute("PRAGMA synchronous = FULL")

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        for chunk in batches(messages, batch):
            with self._queue.transaction():
                for _, body in chunk:
                    self._queue.put(body)

    def receive(self, count: int, *, batch: int) -> list[bytes]:  # noqa: ARG002  # one message per transaction
        return [self._queue.pop().data for _ in range(count)]

    def close(self) -> None:
        self._queue.conn.close()


class PersistQueue:
    """Commits each `put`; several `get` may share a transaction, which `task_done` ends."""

    name: str = "persist-queue"

    def __init__(self, folder: pathlib.Path, *, conversations: int) -> None:  # noqa: ARG002  # it has no conversations
        self._queue: Any = persistqueue.SQLiteQueue(str(folder / "persistqueue"), auto_commit=False)
        self._queue._conn.execute("PRAGMA synchronous = FULL")

    def send(self, messages: Sequence[Message], *, batch: int) -> None:  # noqa: ARG002  # one message per transaction
        for _, body in messages:
            self._queue.put(body)

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [self._queue.get(block=False) for _ in range(batch)]
            self._queue.task_done()
        return bodies

    def close(self) -> None:
        self._queue.close()


class DiskCache:
    """The queue of a cache; pushes and pulls may share a transaction."""

    name: str = "diskcache"

    def __init__(self, folder: pathlib.Path, *, conversations: int) -> None:  # noqa: ARG002  # it has no conversations
        self._cache: Any = diskcache.Cache(
            str(folder / "diskcache"), sqlite_synchronous=2, eviction_policy="none", size_limit=1 << 40
        )

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        for chunk in batches(messages, batch):
            with self._cache.transact():
                for _, body in chunk:
                    self._cache.push(body)

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < count:
            with self._cache.transact():
                bodies += [self._cache.pull()[1] for _ in range(batch)]
        return bodies

    def close(self) -> None:
        self._cache.close()


class PlainTable:
    """A simple table with a rowid: no conversations, states or checks."""

    name: str = "SQLite table"

    def __init__(self, folder: pathlib.Path, *, conversations: int) -> None:  # noqa: ARG002  # it has no conversations
        self._file = sqlite3.connect(folder / "plain.sqlite", isolation_level=None)
        self._file.executescript(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = FULL; CREATE TABLE queue (id INTEGER PRIMARY KEY, body BLOB)"
        )

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        for chunk in batches(messages, batch):
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany("INSERT INTO queue (body) VALUES (?)", [(body,) for _, body in chunk])
            self._file.execute("COMMIT")

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < count:
            self._file.execute("BEGIN IMMEDIATE")
            found = self._file.execute("SELECT id, body FROM queue ORDER BY id LIMIT ?", (batch,)).fetchall()
            self._file.execute("DELETE FROM queue WHERE id <= ?", (found[-1][0],))
            self._file.execute("COMMIT")
            bodies += [body for _, body in found]
        return bodies

    def close(self) -> None:
        self._file.close()
