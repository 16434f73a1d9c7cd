"""Real instances in one process that communicate over real sockets."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.network.instance_server import Server
from ssbroker.protocol.events import Event
from ssbroker.protocol.settings import ProtocolSettings
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK
from tests.internals import instance_of

TIMEOUT = 60.0
"""How long, in seconds, a test waits for something that takes milliseconds."""


@dataclass
class SocketInstance:
    """An instance and its server."""

    instance: Instance
    server: Server

    @property
    def address(self) -> str:
        return self.server.address

    def enable_forwarding(self, *, megabytes: int = 10) -> None:
        """Enables message forwarding."""
        self.instance.execute(
            f"CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = {self.server.port}) "
            f"FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED, MESSAGE_FORWARD_SIZE = {megabytes})"
        )

    def add_route(
        self, database: str, service: str, address: str, *, mirror: str | None = None, broker: uuid.UUID | None = None
    ) -> None:
        broker_clause = "" if broker is None else f", BROKER_INSTANCE = '{broker}'"
        mirror_clause = "" if mirror is None else f", MIRROR_ADDRESS = '{mirror}'"
        self.instance.execute(
            f"USE [{database}]\nCREATE ROUTE [to {service}] WITH SERVICE_NAME = '{service}'{broker_clause}, ADDRESS = '{address}'{mirror_clause}"
        )


class EventRecorder:
    """Records events of instances; tests can wait for them."""

    def __init__(self, *instances: SocketInstance, kinds: tuple[type[Event], ...]) -> None:
        self._changed = threading.Condition()
        self._events: list[Event] = []
        for served in instances:
            served.instance.subscribe(self._record, *kinds)

    def _record(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    @property
    def events(self) -> list[Event]:
        """The events received so far."""
        with self._changed:
            return [*self._events]

    def wait_for(self, wanted: Callable[[list[Event]], bool]) -> None:
        """Waits until the events satisfy a condition."""
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self._events), TIMEOUT), self._events


@dataclass
class InstanceGroup:
    """Creates served instances and closes them."""

    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def create_instance(self, name: str, *, settings: ProtocolSettings | None = None) -> SocketInstance:
        """Creates and serves an instance."""
        instance = self.stack.enter_context(Instance.create(self.folder / name, name=name))
        server = self.stack.enter_context(instance.serve(port=0, allow_unencrypted=True, settings=settings))
        return SocketInstance(instance, server)

    def copy(self, database: Database, name: str) -> Path:
        """Copies a database's file as a backup does; nothing may write to it during the copy."""
        database_context(database).file.checkpoint()
        copy = self.folder / name
        shutil.copyfile(database.path, copy)
        return copy


@contextmanager
def instance_group(folder: Path) -> Iterator[InstanceGroup]:
    """A group whose instances are closed at the end of the block, the last one first."""
    group = InstanceGroup(folder)
    with group.stack:
        yield group


def shop(served: SocketInstance) -> Database:
    """Returns the database Sales with the service `//Shop`."""
    database = served.instance.create_database("Sales")
    database.create_queue(REPLIES)
    database.create_service(SHOP, queue=REPLIES)
    return database


def stock(served: SocketInstance) -> Database:
    """Returns the database Stock with the service `//Stock`."""
    database = served.instance.create_database("Stock")
    database.create_queue(ORDERS)
    database.create_service(STOCK, queue=ORDERS)
    return database


def order(sales: Database, *bodies: bytes, dialog: uuid.UUID | None = None) -> uuid.UUID:
    """Sends from the shop to the stock, in a new dialog unless one is given; returns the handle."""
    with sales.transaction() as t:
        handle = dialog or t.begin_dialog(SHOP, STOCK, encryption=False)
        for body in bodies:
            t.send(handle, body)
    return handle


def receive_count(database: Database, count: int, *, queue: str = ORDERS) -> list[bytes]:
    """Receives `count` messages; returns their bodies in order."""
    found: list[bytes] = []
    while len(found) < count:
        with database.transaction() as t:
            table = t.receive(queue, timeout=TIMEOUT)
            assert table.num_rows, f"received only {found}"
            found += [body or b"" for body in table["message_body"].to_pylist()]
    return found


def wait_until_sent(database: Database) -> None:
    """Waits until all sent messages are acknowledged."""
    due = time.monotonic() + TIMEOUT
    while instance_of(database).view("sys.transmission_queue", database.name).num_rows:
        assert time.monotonic() < due, "messages were not acknowledged in time"
        time.sleep(0.01)


def wait_for_status(database: Database, start: str) -> None:
    """Waits until the `transmission_status` of the first waiting message begins with a text."""
    due, status = time.monotonic() + TIMEOUT, None
    while not (status or "").startswith(start):
        status = instance_of(database).view("sys.transmission_queue")["transmission_status"][0].as_py()
        assert time.monotonic() < due, f"no such status was written in time: {status}"
        time.sleep(0.01)


def receive_and_reply(database: Database, count: int, reply: bytes) -> list[bytes]:
    """Receives `count` orders and replies to the last one; returns their bodies."""
    found: list[bytes] = []
    while len(found) < count:
        with database.transaction() as t:
            table = t.receive(ORDERS, timeout=TIMEOUT)
            assert table.num_rows, f"received only {found}"
            found += [body or b"" for body in table["message_body"].to_pylist()]
            if len(found) >= count:
                handle = table["conversation_handle"][0].as_py()
                t.send(uuid.UUID(bytes=handle), reply)
    return found
