"""Queues of servers over a connection, if the servers and their client libraries are installed.

`SSBROKER_BENCH_POSTGRES` is a connection string of libpq and `SSBROKER_BENCH_RABBITMQ` an AMQP URL; the default is a server on this machine.
A message counts as sent once it is on the server's disk; the sender does not store it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from benches.network_rivals import Setting
from benches.queue_rivals import Message, Missing
from benches.queue_rivals.servers import library, taking

_TABLE: Final = "ssbroker_bench_network"
_WAIT_SECONDS: Final = 0.001


class Postgres:
    """A table; the receiver deletes messages that it reads, and polls an empty table every millisecond."""

    name: str = "PostgreSQL"

    def prepare(self, setting: Setting) -> None:  # noqa: ARG002  # it has no conversations
        server = _postgres()
        durable = [server.execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "synchronous_commit")]
        if durable != ["on", "on"]:
            raise Missing(f"the server is not durable: fsync and synchronous_commit are {durable}")
        server.execute(f"DROP TABLE IF EXISTS {_TABLE}")
        server.execute(f"CREATE TABLE {_TABLE} (id bigserial PRIMARY KEY, body bytea NOT NULL)")
        server.close()

    def receiver(self, setting: Setting, number: int) -> tuple[_PostgresSide, str]:  # noqa: ARG002  # one connection for all
        return _PostgresSide(), ""

    def sender(self, setting: Setting, addresses: Sequence[str]) -> _PostgresSide:  # noqa: ARG002  # the server is fixed
        return _PostgresSide()


class _PostgresSide:
    def __init__(self) -> None:
        self._server: Final = _postgres()

    def send(self, messages: Sequence[Message]) -> None:
        insert = f"INSERT INTO {_TABLE} (body) VALUES (%s)"
        with self._server.transaction(), self._server.cursor() as cursor:
            cursor.executemany(insert, [(body,) for _, body in messages])

    def receive(self, max_messages: int) -> list[bytes]:
        take = taking(_TABLE)
        while not (rows := self._server.execute(take, (max_messages,), binary=True).fetchall()):
            time.sleep(_WAIT_SECONDS)
        return [bytes(body) for _, body in sorted(rows)]

    def close(self) -> None:
        self._server.close()


class RabbitMq:
    """A durable queue with persistent messages; each batch is confirmed before the next is published, and acknowledged as a whole."""

    name: str = "RabbitMQ"

    def prepare(self, setting: Setting) -> None:  # noqa: ARG002  # it has no conversations
        connection = _rabbit()
        channel = connection.channel()
        channel.queue_delete(_TABLE)
        channel.queue_declare(_TABLE, durable=True)
        connection.close()

    def receiver(self, setting: Setting, number: int) -> tuple[_RabbitReceiver, str]:  # noqa: ARG002  # one connection for all
        return _RabbitReceiver(setting.batch), ""

    def sender(self, setting: Setting, addresses: Sequence[str]) -> _RabbitSender:  # noqa: ARG002  # the server is fixed
        return _RabbitSender(is_confirmed=setting.batch == 1)


class _RabbitSender:
    """Publishes a batch: the library waits for a confirmation per message, so several are published in a transaction."""

    def __init__(self, *, is_confirmed: bool) -> None:
        self._connection: Final = _rabbit()
        self._channel: Final = self._connection.channel()
        self._is_confirmed: Final = is_confirmed
        if is_confirmed:
            self._channel.confirm_delivery()
        else:
            self._channel.tx_select()
        self._properties: Final = library("pika").BasicProperties(delivery_mode=2)

    def send(self, messages: Sequence[Message]) -> None:
        for _, body in messages:
            self._channel.basic_publish("", _TABLE, body, self._properties)
        if not self._is_confirmed:
            self._channel.tx_commit()

    def close(self) -> None:
        self._connection.close()


class _RabbitReceiver:
    def __init__(self, max_messages: int) -> None:
        self._connection: Final = _rabbit()
        self._channel: Final = self._connection.channel()
        self._channel.basic_qos(prefetch_count=max_messages)
        self._coming: Final = self._channel.consume(_TABLE, inactivity_timeout=_WAIT_SECONDS)

    def receive(self, max_messages: int) -> list[bytes]:
        bodies: list[bytes] = []
        last = None
        while len(bodies) < max_messages:
            method, _, body = next(self._coming)
            if method is not None:
                bodies.append(body)
                last = method.delivery_tag
            elif bodies:
                break
        self._channel.basic_ack(last, multiple=True)
        return bodies

    def close(self) -> None:
        self._channel.cancel()
        self._channel.queue_delete(_TABLE)
        self._connection.close()


def _postgres() -> Any:
    psycopg = library("psycopg")
    where = os.environ.get("SSBROKER_BENCH_POSTGRES", "host=127.0.0.1 dbname=postgres")
    try:
        return psycopg.connect(where, autocommit=True, connect_timeout=2)
    except psycopg.OperationalError as error:
        raise Missing("no server answers") from error


def _rabbit() -> Any:
    pika = library("pika")
    where = os.environ.get("SSBROKER_BENCH_RABBITMQ", "amqp://guest:guest@localhost/?connection_attempts=1")
    try:
        return pika.BlockingConnection(pika.URLParameters(where))
    except pika.exceptions.AMQPConnectionError as error:
        raise Missing("no server answers") from error
