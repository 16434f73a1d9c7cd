"""Work queues: one process puts messages, others take them, process them and acknowledge them.

With `is_durable`, a message counts as put or acknowledged once the commit is on disk. Without, contenders that have an option for it do not
wait for the disk. A rival without a way to wait for messages of other processes polls every millisecond, whatever its own default.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from benches.queue_rivals import Missing
from benches.queue_rivals.servers import library
from ssbroker import Instance

POLL_SECONDS: Final = 0.001
Handle = Callable[[bytes], bool]
"""Processes a body; returns whether to take another message."""


class WorkQueue(Protocol):
    """A contender, opened in a process.

    Attributes:
        name: The name in the report.
        put_program: What a user writes to put `one` into a queue in the current folder.
        take_program: What a user writes to take the message in another process, print it, and acknowledge it.
        is_shared_by_processes: Whether workers may be processes; if not, they are threads that share the queue.
        may_be_lossy: Whether the library has an option with which a power cut loses messages that were put.
        durability: How the opened queue syncs, as its database or server reports.
    """

    name: ClassVar[str]
    put_program: ClassVar[str]
    take_program: ClassVar[str]
    is_shared_by_processes: ClassVar[bool]
    may_be_lossy: ClassVar[bool]
    durability: str

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None: ...

    def put(self, bodies: Sequence[bytes]) -> None:
        """Puts messages, in one transaction if the library can."""
        ...

    def work(self, handle: Handle) -> None:
        """Takes messages one by one until `handle` returns False."""
        ...

    def close(self) -> None: ...


_SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def sqlite_durability(connection: Any) -> str:
    """Returns how a connection to SQLite syncs; with a write-ahead log, only FULL and EXTRA sync each commit."""
    (mode,), (level,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous"))
    return f"journal_mode = {mode}, synchronous = {_SYNCHRONOUS[level]}"


class Ours:
    name: ClassVar[str] = "ssbroker"
    put_program: ClassVar[str] = """
from ssbroker import Instance
with Instance.open("broker", create=True) as instance:
    instance.queue("Jobs").put(b"one")
"""
    take_program: ClassVar[str] = """
from ssbroker import Instance
with Instance.open("broker", create=True) as instance, instance.queue("Jobs").take() as job:
    print(job.value)
"""
    is_shared_by_processes: ClassVar[bool] = True
    may_be_lossy: ClassVar[bool] = False

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:  # noqa: ARG002  # always durable
        self._instance = Instance.open(folder / "ssbroker", create=True)
        self._database = self._instance.create_database("Queues", exist_ok=True)
        self._queue = self._database.queue("Jobs")
        with self._database.transaction() as t:
            self.durability = sqlite_durability(t.connection)

    def put(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._queue.put(bodies[0])
            return
        with self._database.transaction() as t:
            for body in bodies:
                self._queue.put(body, transaction=t)

    def work(self, handle: Handle) -> None:
        goes_on = True
        while goes_on:
            with self._queue.take() as job:
                goes_on = handle(job.value)

    def close(self) -> None:
        self._instance.close()


class PersistQueue:
    """persist-queue. `get` does not lock a message against other processes, so the workers are threads."""

    name: ClassVar[str] = "persist-queue"
    put_program: ClassVar[str] = """
from persistqueue import SQLiteAckQueue
SQLiteAckQueue("persist").put(b"one")
"""
    take_program: ClassVar[str] = """
from persistqueue import SQLiteAckQueue
queue = SQLiteAckQueue("persist")
item = queue.get()
print(item)
queue.ack(item)
"""
    is_shared_by_processes: ClassVar[bool] = False
    may_be_lossy: ClassVar[bool] = False

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:  # noqa: ARG002  # always durable
        self._library = library("persistqueue")
        self._queue: Any = self._library.SQLiteAckQueue(str(folder / "persist"), multithreading=True)
        self._queue._conn.execute("PRAGMA synchronous = FULL")
        self._queue._putter.execute("PRAGMA synchronous = FULL")
        self.durability = sqlite_durability(self._queue._putter)

    def put(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._queue.put(body)

    def work(self, handle: Handle) -> None:
        goes_on = True
        while goes_on:
            try:
                found = self._queue.get(block=False, raw=True)
            except self._library.exceptions.Empty:
                time.sleep(POLL_SECONDS)
                continue
            goes_on = handle(found["data"])
            self._queue.ack(id=found["pqid"])

    def close(self) -> None:
        self._queue.close()


class LiteQueue:
    name: ClassVar[str] = "litequeue"
    put_program: ClassVar[str] = """
from litequeue import LiteQueue
LiteQueue("lite.sqlite").put("one")
"""
    take_program: ClassVar[str] = """
from litequeue import LiteQueue
queue = LiteQueue("lite.sqlite")
message = queue.pop()
print(message.data)
queue.done(message.message_id)
"""
    is_shared_by_processes: ClassVar[bool] = True
    may_be_lossy: ClassVar[bool] = True

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:
        self._queue: Any = library("litequeue").LiteQueue(folder / "lite.sqlite", timeout=60)
        if is_durable:
            self._queue.conn.execute("PRAGMA synchronous = FULL")
        self.durability = sqlite_durability(self._queue.conn)

    def put(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._queue.put(bodies[0])
            return
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body)

    def work(self, handle: Handle) -> None:
        goes_on = True
        while goes_on:
            message = self._queue.pop()
            if message is None:
                time.sleep(POLL_SECONDS)
                continue
            goes_on = handle(message.data)
            self._queue.done(message.message_id)

    def close(self) -> None:
        self._queue.conn.close()


class DiskCache:
    """diskcache. `pull` removes a message when it is taken: there is no acknowledgement, and a killed worker loses its message."""

    name: ClassVar[str] = "diskcache"
    put_program: ClassVar[str] = """
from diskcache import Cache
Cache("cache").push(b"one")
"""
    take_program: ClassVar[str] = """
from diskcache import Cache
_, body = Cache("cache").pull()
print(body)
"""
    is_shared_by_processes: ClassVar[bool] = True
    may_be_lossy: ClassVar[bool] = True

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:
        self._cache: Any = library("diskcache").Cache(
            str(folder / "cache"), sqlite_synchronous=2 if is_durable else 1, eviction_policy="none", timeout=60
        )
        self.durability = sqlite_durability(self._cache._con)

    def put(self, bodies: Sequence[bytes]) -> None:
        with self._cache.transact():
            for body in bodies:
                self._cache.push(body)

    def work(self, handle: Handle) -> None:
        goes_on = True
        while goes_on:
            key, body = self._cache.pull()
            if key is None:
                time.sleep(POLL_SECONDS)
            else:
                goes_on = handle(body)

    def close(self) -> None:
        self._cache.close()


class Huey:
    """huey with its storage in SQLite. A message is a call of a task; it is removed when it is taken, as in diskcache."""

    name: ClassVar[str] = "huey (SQLite)"
    put_program: ClassVar[str] = """
from huey import SqliteHuey
huey = SqliteHuey("jobs", filename="huey.sqlite")
@huey.task()
def job(body):
    print(body)
job(b"one")
"""
    take_program: ClassVar[str] = """
from huey import SqliteHuey
huey = SqliteHuey("jobs", filename="huey.sqlite")
@huey.task()
def job(body):
    print(body)
huey.execute(huey.dequeue())
"""
    is_shared_by_processes: ClassVar[bool] = True
    may_be_lossy: ClassVar[bool] = True

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:
        self._huey: Any = library("huey").SqliteHuey(
            "jobs", filename=str(folder / "huey.sqlite"), fsync=is_durable, results=False, timeout=60
        )
        self.durability = sqlite_durability(self._huey.storage.conn)
        self._job = self._huey.task(name="job")(self._run)
        self._handle: Handle | None = None
        self._goes_on = True

    def _run(self, body: bytes) -> None:
        assert self._handle is not None
        self._goes_on = self._handle(body)

    def put(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._job(body)

    def work(self, handle: Handle) -> None:
        self._handle = handle
        self._goes_on = True
        while self._goes_on:
            task = self._huey.dequeue()
            if task is None:
                time.sleep(POLL_SECONDS)
            else:
                self._huey.execute(task)

    def close(self) -> None:
        self._huey.storage.close()


_POSTGRES: Final = os.environ.get("SSBROKER_BENCH_POSTGRES", "dbname=postgres")


class Procrastinate:
    """procrastinate on PostgreSQL, whose notifications wake its workers. Arguments are JSON, so bodies are text."""

    name: ClassVar[str] = "procrastinate"
    put_program: ClassVar[str] = f"""
from procrastinate import App, SyncPsycopgConnector
app = App(connector=SyncPsycopgConnector(conninfo={_POSTGRES!r}))
@app.task(name="job")
def job(body):
    print(body)
with app.open():
    job.defer(body="one")
"""
    take_program: ClassVar[str] = f"""
from procrastinate import App, PsycopgConnector
app = App(connector=PsycopgConnector(conninfo={_POSTGRES!r}))
@app.task(name="job")
def job(body):
    print(body)
app.run_worker(wait=False)
"""
    is_shared_by_processes: ClassVar[bool] = True
    may_be_lossy: ClassVar[bool] = True

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:
        self._library = library("procrastinate")
        psycopg = library("psycopg")
        self._connects_to = f"{_POSTGRES} options='-c synchronous_commit={'on' if is_durable else 'off'}'"
        try:
            with psycopg.connect(self._connects_to, autocommit=True, connect_timeout=2) as server:
                if not (folder / "procrastinate").exists():
                    server.execute("DROP SCHEMA public CASCADE")
                    server.execute("CREATE SCHEMA public")
                settings = [
                    (name, server.execute(f"SHOW {name}").fetchone()[0]) for name in ("fsync", "synchronous_commit")
                ]
        except psycopg.OperationalError as error:
            raise Missing("no server answers") from error
        self.durability = ", ".join(f"{name} = {value}" for name, value in settings)
        self._sync: Any = self._library.App(connector=self._library.SyncPsycopgConnector(conninfo=self._connects_to))
        self._defer = self._sync.task(name="job")(print)
        self._sync.open()
        if not (folder / "procrastinate").exists():
            self._sync.schema_manager.apply_schema()
            (folder / "procrastinate").touch()

    def put(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._defer.defer(body=bodies[0].decode())
        else:
            self._defer.batch_defer(*({"body": body.decode()} for body in bodies))

    def work(self, handle: Handle) -> None:
        asyncio.run(self._work(handle))

    async def _work(self, handle: Handle) -> None:
        app: Any = self._library.App(connector=self._library.PsycopgConnector(conninfo=self._connects_to))
        ended = asyncio.Event()

        async def job(body: str) -> None:
            if not await asyncio.to_thread(handle, body.encode()):
                ended.set()

        app.task(name="job")(job)
        async with app.open_async():
            worker = asyncio.create_task(app.run_worker_async(concurrency=1, install_signal_handlers=False))
            await ended.wait()
            worker.cancel()
            await asyncio.wait([worker])

    def close(self) -> None:
        self._sync.close()


_RABBITMQ: Final = os.environ.get("SSBROKER_BENCH_RABBITMQ", "amqp://guest:guest@localhost/?connection_attempts=1")


class RabbitMq:
    name: ClassVar[str] = "RabbitMQ"
    put_program: ClassVar[str] = f"""
import pika
with pika.BlockingConnection(pika.URLParameters({_RABBITMQ!r})) as connection:
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "jobs", b"one", pika.BasicProperties(delivery_mode=2))
"""
    take_program: ClassVar[str] = f"""
import pika
with pika.BlockingConnection(pika.URLParameters({_RABBITMQ!r})) as connection:
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True)
    for method, _, body in channel.consume("jobs"):
        print(body)
        channel.basic_ack(method.delivery_tag)
        break
"""
    is_shared_by_processes: ClassVar[bool] = True
    may_be_lossy: ClassVar[bool] = True

    def __init__(self, folder: pathlib.Path, *, is_durable: bool = True) -> None:
        self._pika = library("pika")
        try:
            self._server: Any = self._pika.BlockingConnection(self._pika.URLParameters(_RABBITMQ))
        except self._pika.exceptions.AMQPConnectionError as error:
            raise Missing("no server answers") from error
        self._properties = self._pika.BasicProperties(delivery_mode=2 if is_durable else 1)
        self.durability = "persistent, confirmed" if is_durable else "transient, not confirmed"
        self._taking = self._server.channel()
        self._confirmed, self._transacted = self._server.channel(), self._server.channel()
        if not (folder / "rabbitmq").exists():
            self._taking.queue_delete("jobs")
            (folder / "rabbitmq").touch()
        self._taking.queue_declare("jobs", durable=True)
        if is_durable:
            self._confirmed.confirm_delivery()
        self._transacted.tx_select()

    def put(self, bodies: Sequence[bytes]) -> None:
        channel = self._confirmed if len(bodies) == 1 else self._transacted
        for body in bodies:
            channel.basic_publish("", "jobs", body, self._properties)
        if len(bodies) > 1:
            channel.tx_commit()

    def work(self, handle: Handle) -> None:
        self._taking.basic_qos(prefetch_count=1)
        for method, _, body in self._taking.consume("jobs"):
            goes_on = handle(body)
            self._taking.basic_ack(method.delivery_tag)
            if not goes_on:
                break
        self._taking.cancel()

    def close(self) -> None:
        self._server.close()


RIVALS: Final[dict[str, type[WorkQueue]]] = {
    each.name: each for each in (Ours, PersistQueue, LiteQueue, DiskCache, Huey, Procrastinate, RabbitMq)
}
