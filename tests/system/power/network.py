"""Dialogs with another instance: the files of one are recorded; the other keeps its data, as on another machine."""

from __future__ import annotations

import copy
import hashlib
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import Instance
from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.settings import ProtocolSettings
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey
from ssbroker.store import conversation_endpoints
from ssbroker.testing import MemoryDialogStorage
from tests.broker.network.engine_pair import senders_with_messages
from tests.system.power.cutting import Cut
from tests.system.power.recording import NAME, Mark, recording

if TYPE_CHECKING:
    from tests.system.power.run import Weakness

_BEGINNING: Final = datetime(2026, 11, 21, tzinfo=UTC)
_REMOTE: Final = b"-- far broker --"
_REMOTE_SERVICE: Final = b"begun over there"
_SETTINGS: Final = ProtocolSettings(max_fragment_bytes=300)
_ROUNDS_MAX: Final = 60


class _UnsyncedStorage(SqliteDialogStorage):
    """Lets the engine acknowledge what a power cut can undo."""

    def sync(self) -> None:
        """Does nothing."""


class _Pair:
    """An instance on the recorded disk and a remote one, with an engine each, and the messages between them."""

    def __init__(
        self, instance: Instance, remote: MemoryDialogStorage, *, now: datetime, sends_unsynced: bool = False
    ) -> None:
        remote.restart()
        self.instance = instance
        self.remote = remote
        self.now = now
        self.database: Database = instance.database("Sales")
        self.storage = (_UnsyncedStorage if sends_unsynced else SqliteDialogStorage)(database_context(self.database))
        self.local_engine = DialogEngine(self.storage, random=random.Random(1).random, settings=_SETTINGS)
        self.remote_engine = DialogEngine(remote, random=random.Random(2).random, settings=_SETTINGS)
        self.local_engine.notify_queued(senders_with_messages(self.database))
        self.remote_engine.notify_queued(remote.waiting())

    def send_to_remote(self, share: float, rng: random.Random) -> None:
        """Sends messages to the remote instance; some of them are lost."""
        self.local_engine.notify_queued(senders_with_messages(self.database))
        rows = _drop_some(self.local_engine.data_to_send(now=self._now_us), share, rng)
        if rows is not None:
            effects = self.remote_engine.receive(rows, now=self._now_us)
            self.remote.commit(effects)
            self.remote_engine.confirm(effects, now=self._now_us)

    def send_to_local(self, share: float, rng: random.Random) -> None:
        """Sends messages of the remote instance; some of them are lost."""
        self.remote_engine.notify_queued(self.remote.waiting())
        rows = _drop_some(self.remote_engine.data_to_send(now=self._now_us), share, rng)
        if rows is not None:
            effects = self.local_engine.receive(rows, now=self._now_us)
            self.storage.commit(effects)
            self.local_engine.confirm(effects, now=self._now_us)

    def flush(self) -> None:
        """Flushes idle transmission objects on both sides."""
        self.now += timedelta(minutes=1)
        self.local_engine.flush(now=self._now_us)
        self.remote_engine.flush(now=self._now_us)

    def is_idle(self) -> bool:
        return not self.remote.waiting() and not senders_with_messages(self.database)

    @property
    def _now_us(self) -> int:
        return epoch_microseconds(self.now)


class Network:
    """Sends and receives, each with a row of the application in the same transaction; marks record what was acknowledged."""

    def __init__(self, folder: Path, *, transactions: int, seed: int, weakness: Weakness) -> None:
        rng = random.Random(seed)
        self._snapshots: list[MemoryDialogStorage] = []
        with recording(ignored_syncs=weakness.ignored_syncs) as recorder:
            trace = self.operations = recorder.trace
            instance = _open(folder, is_new=True, vfs=NAME)
            instance.create_database("Sales")
            is_unsynced = weakness.sends_unsynced
            pair = _Pair(instance, MemoryDialogStorage(_REMOTE), now=_BEGINNING, sends_unsynced=is_unsynced)
            keys = _prepare(pair)
            self._snapshots.append(copy.deepcopy(pair.remote))
            trace.append(Mark("far", 0))
            for _ in range(transactions):
                _weaken(pair.database, weakness.synchronous)
                step = rng.choice(("send", "send there", "receive", "carry", "carry", "carry back", "carry back"))
                if step == "send":
                    trace += [Mark("sent", number) for number in _send(pair.database, rng)]
                elif step == "receive":
                    trace += [Mark("received", number) for number in _receive(pair.database)]
                elif step == "send there":
                    for key in keys:
                        if key in pair.remote.accounts:
                            pair.remote.send(key, _body(pair.remote.accounts[key].next, rng))
                elif step == "carry":
                    pair.send_to_remote(0.8, rng)
                else:
                    pair.send_to_local(0.8, rng)
                pair.now += timedelta(seconds=rng.choice((0.1, 1, 5)))
                if rng.random() < 0.05:
                    pair.flush()
                if rng.random() < 0.03:
                    instance.close()
                    instance = _open(folder, vfs=NAME)
                    pair = _Pair(instance, pair.remote, now=pair.now, sends_unsynced=is_unsynced)
                self._snapshots.append(copy.deepcopy(pair.remote))
                trace.append(Mark("far", len(self._snapshots) - 1))
            instance.close()
        self._keys = keys
        self._now = pair.now

    def faults(self, folder: Path, cut: Cut, *, write_after: bool) -> Iterator[str]:
        """Checks that everything acknowledged is present, and that everything sent is received once and in order, on both sides."""
        known = [mark.number for mark in cut.marks if mark.word == "far"]
        if not known:
            return
        remote = copy.deepcopy(self._snapshots[known[-1]])
        with _open(folder) as instance:
            pair = _Pair(instance, remote, now=self._now + timedelta(minutes=2))
            with database_context(pair.database).file.read() as connection:
                if connection.pragma("integrity_check") != "ok":
                    yield "the file is damaged"
            for word in ("sent", "received"):
                if not {mark.number for mark in cut.marks if mark.word == word} <= _recorded(pair.database, word):
                    yield f"something acknowledged is not {word} any more"
            if write_after:
                _send(pair.database, random.Random(0))
            yield from self._drained(pair)

    def _drained(self, pair: _Pair) -> Iterator[str]:
        rng = random.Random(0)
        for _ in range(_ROUNDS_MAX):
            if pair.is_idle():
                break
            pair.send_to_remote(1, rng)
            pair.send_to_local(1, rng)
            pair.now += timedelta(seconds=70)
        else:
            yield "it does not drain"
        while _receive(pair.database):
            pass
        for key in self._keys:
            sent, received = (_bodies(pair.database, word, key) for word in ("sent", "received"))
            account = pair.remote.accounts.get(key)
            if [message.body for message in (account.queue if account else [])] != sent:
                yield f"{key}: {len(sent)} were sent here, others came there"
            wanted = 0 if account is None else account.next
            if [_number(body) for body in received] != list(range(wanted)):
                yield f"{key}: {wanted} were sent there, {[_number(body) for body in received]} came here"


def _open(folder: Path, *, is_new: bool = False, vfs: str | None = None) -> Instance:
    if is_new:
        return Instance.create(
            folder, name="shop", clock=lambda: _BEGINNING, random=random.Random(7), background=False, vfs=vfs
        )
    return Instance.open(folder, clock=lambda: _BEGINNING, random=random.Random(8), background=False, vfs=vfs)


def _prepare(pair: _Pair) -> list[EndpointKey]:
    """Starts a dialog in each instance, and creates the endpoints in the remote one."""
    database = pair.database
    for name in ("Orders", "Replies"):
        database.create_queue(name)
    database.create_service("//Stock", queue="Orders")
    database.create_service("//Shop", queue="Replies")
    with database.transaction() as t:
        t.connection.execute("CREATE TABLE sent (id INTEGER PRIMARY KEY, conversation BLOB, body BLOB)")
        t.connection.execute("CREATE TABLE received (id INTEGER PRIMARY KEY, conversation BLOB, body BLOB)")
        handle = t.begin_dialog("//Shop", "//Far")
        started_here = conversation_endpoints.by_handle(t.connection, handle.bytes)
        assert started_here is not None
    remote_engine = DialogEndpoint(
        conversation_id=_REMOTE_SERVICE,
        is_initiator=True,
        service_name="//Far",
        broker_instance=_REMOTE,
        far_service_name="//Stock",
    )
    return [pair.remote.begin(remote_engine), (started_here.conversation_id, False)]


def _weaken(database: Database, synchronous: str) -> None:
    with database_context(database).file.read() as connection:
        pass
    connection.pragma("synchronous", synchronous)


def _send(database: Database, rng: random.Random) -> list[int]:
    """Sends one message in one of the dialogs, and returns its position among all sent messages."""
    with database.transaction() as t:
        found = t.connection.execute(
            "SELECT conversation_id, conversation_handle FROM ssb_conversation_endpoints WHERE state IN ('SO', 'CO')"
        ).fetchall()
        pairs: list[Any] = sorted(found)
        conversation, handle = rng.choice(pairs)
        before: int = t.connection.execute("SELECT count(*) FROM sent WHERE conversation = ?", (conversation,)).get
        body = _body(before, rng)
        t.send(uuid.UUID(bytes=handle), body)
        t.connection.execute("INSERT INTO sent (conversation, body) VALUES (?, ?)", (conversation, body))
        number: int = t.connection.last_insert_rowid()
    return [number]


def _receive(database: Database) -> list[int]:
    """Receives once from each queue, and returns the positions of the messages among all received ones."""
    numbers: list[int] = []
    with database.transaction() as t:
        for queue in ("Orders", "Replies"):
            for row in t.receive(queue).to_pylist():
                found = conversation_endpoints.by_handle(t.connection, row["conversation_handle"])
                assert found is not None
                t.connection.execute(
                    "INSERT INTO received (conversation, body) VALUES (?, ?)",
                    (found.conversation_id, row["message_body"]),
                )
                numbers.append(t.connection.last_insert_rowid())
    return numbers


def _recorded(database: Database, word: str) -> set[int]:
    with database_context(database).file.read() as connection:
        return {number for (number,) in connection.execute(f"SELECT id FROM {word}")}


def _bodies(database: Database, word: str, key: EndpointKey) -> list[bytes]:
    with database_context(database).file.read() as connection:
        return [
            body
            for (body,) in connection.execute(f"SELECT body FROM {word} WHERE conversation = ? ORDER BY id", key[:1])
        ]


def _body(number: int, rng: random.Random) -> bytes:
    """Returns a random body of one or several fragments."""
    content = b"%d:" % number + rng.randbytes(rng.choice((10, 200, 200, 1500)))
    return content + hashlib.md5(content).digest()


def _number(body: bytes) -> int:
    """Returns the number of a body among those of its sender; -1 if it was altered."""
    content, digest = body[:-16], body[-16:]
    return int(content.split(b":", maxsplit=1)[0]) if hashlib.md5(content).digest() == digest else -1


def _drop_some(rows: pa.Table | None, share: float, rng: random.Random) -> pa.Table | None:
    """Drops some of the rows."""
    if rows is None or share == 1:
        return rows
    kept = [number for number in range(rows.num_rows) if rng.random() < share]
    return rows.take(pa.array(kept, pa.int64())) if kept else None
