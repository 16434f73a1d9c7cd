"""Queues of servers, if the servers and their client libraries are installed.

`SSBROKER_BENCH_POSTGRES` is a connection string of libpq and `SSBROKER_BENCH_RABBITMQ` an AMQP URL; the default is a server on this machine.
Their CPU time is not measured.
"""

from __future__ import annotations

import importlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from benches.queue_rivals import Message, Missing, batches


class Postgres:
    """A table; receivers skip rows that others have locked."""

    name: str = "PostgreSQL"

    def __init__(self, folder: pathlib.Path, *, conversations: int) -> None:  # noqa: ARG002  # a separate server without conversations
        psycopg = library("psycopg")
        where = os.environ.get("SSBROKER_BENCH_POSTGRES", "dbname=postgres")
        try:
            self._server: Any = psycopg.connect(where, autocommit=True, connect_timeout=2)
        except psycopg.OperationalError as error:
            raise Missing("no server answers") from error
        durable = [self._server.execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "synchronous_commit")]
        if durable != ["on", "on"]:
            raise Missing(f"the server is not durable: fsync and synchronous_commit are {durable}")
        self._server.execute("DROP TABLE IF EXISTS ssbroker_bench_queue")
        self._server.execute("CREATE TABLE ssbroker_bench_queue (id bigserial PRIMARY KEY, body bytea NOT NULL)")

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        insert = "INSERT INTO ssbroker_bench_queue (body) VALUES (%s)"
        for chunk in batches(messages, batch):
            with self._server.transaction(), self._server.cursor() as cursor:
                cursor.executemany(insert, [(body,) for _, body in chunk])

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        take = taking("ssbroker_bench_queue")
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [bytes(body) for _, body in sorted(self._server.execute(take, (batch,), binary=True).fetchall())]
        return bodies

    def close(self) -> None:
        self._server.execute("DROP TABLE ssbroker_bench_queue")
        self._server.close()


class RabbitMq:
    """A durable queue with persistent messages; each batch is confirmed before the next is published, and acknowledged as a whole."""

    name: str = "RabbitMQ"

    def __init__(self, folder: pathlib.Path, *, conversations: int) -> None:  # noqa: ARG002  # a separate server without conversations
        self._pika = library("pika")
        where = os.environ.get("SSBROKER_BENCH_RABBITMQ", "amqp://guest:guest@localhost/?connection_attempts=1")
        try:
            self._server: Any = self._pika.BlockingConnection(self._pika.URLParameters(where))
        except self._pika.exceptions.AMQPConnectionError as error:
            raise Missing("no server answers") from error
        self._queue = "ssbroker_bench_queue"
        self._properties = self._pika.BasicProperties(delivery_mode=2)
        channel = self._server.channel()
        channel.queue_delete(self._queue)
        channel.queue_declare(self._queue, durable=True)
        self._confirmed, self._transacted, self._receiving = self._server.channel(), self._server.channel(), channel
        self._confirmed.confirm_delivery()
        self._transacted.tx_select()

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        # The library waits for a confirmation per message, so several are published in a transaction.
        channel = self._confirmed if batch == 1 else self._transacted
        for chunk in batches(messages, batch):
            for _, body in chunk:
                channel.basic_publish("", self._queue, body, self._properties)
            if batch > 1:
                channel.tx_commit()

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        bodies: list[bytes] = []
        self._receiving.basic_qos(prefetch_count=batch)
        for method, _, body in self._receiving.consume(self._queue):
            bodies.append(body)
            if len(bodies) % batch == 0:
                self._receiving.basic_ack(method.delivery_tag, multiple=True)
            if len(bodies) == count:
                break
        self._receiving.cancel()
        return bodies

    def close(self) -> None:
        self._receiving.queue_delete(self._queue)
        self._server.close()


def taking(table: str) -> str:
    """Returns the PostgreSQL statement that removes messages from a table. With `IN` instead of an array, the time varies from 1.2 to 64 s.

    Example:
        >>> taking("messages").split()[:3]
        ['DELETE', 'FROM', 'messages']
    """
    return f"""DELETE FROM {table} WHERE id = ANY (ARRAY
        (SELECT id FROM {table} ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id, body"""


def library(name: str) -> Any:
    """Imports the client library of a server.

    Raises:
        Missing: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not installed") from error
