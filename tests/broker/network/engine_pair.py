"""Two instances whose engines exchange rows through the test, which can inspect, delay, change and repeat each row."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.broker.network.inbound_writer import StalePlanError
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.events import Event
from ssbroker.protocol.settings import ProtocolSettings
from ssbroker.protocol.storage import BatchChanges, EndpointKey
from ssbroker.store import conversation_endpoints
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from tests.broker.conftest import Clock
from tests.broker.dialog_calls import REPLIES

SHOP, STOCK = "//Shop", "//Stock"
TRADE, ORDER, DEFAULT = "Trade", "Order", "DEFAULT"
ORDERS = "Orders"
SECOND = 1_000_000
MINUTE = 60

Row = dict[str, Any]


def senders_with_messages(database: Database) -> list[EndpointKey]:
    """Returns the endpoints with messages in the transmission queue."""
    with database_context(database).file.read() as connection:
        endpoint_ids = conversation_endpoints.deliverable_endpoints(connection)
        senders = conversation_endpoints.by_ids(connection, endpoint_ids)
    return [(sender.conversation_id, bool(sender.is_initiator)) for sender in senders]


@dataclass
class Side:
    """One instance with one database, its dialog storage and its dialog engine."""

    folder: Path
    clock: Clock
    settings: ProtocolSettings
    peer: bytes | None = None
    session_keys: dict[bytes, bytes] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    has_subscriber: bool = True
    """Whether events have a subscriber; without one, the engine takes the fast path."""
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def create(self, name: str) -> Self:
        self.rng.seed(name)
        with self._create_instance(name) as instance:
            instance.create_database("Sales")
        return self.open()

    def _create_instance(self, name: str) -> Instance:
        return Instance.create(self.folder, name=name, clock=self.clock, random=self.rng, background=False)

    def open(self) -> Self:
        self.instance = Instance.open(self.folder, clock=self.clock, random=self.rng, background=False)
        if self.has_subscriber:
            self.instance.subscribe(self.events.append)
        self.database: Database = self.instance.database("Sales")
        self.start()
        return self

    def start(self) -> None:
        """Creates an engine from the durable state."""
        self.storage = SqliteDialogStorage(database_context(self.database))
        self.dialogs = DialogEngine(
            self.storage,
            random=random.Random(1).random,
            settings=self.settings,
            log=instance_context(self.instance).events,
        )
        self.dialogs.notify_queued(senders_with_messages(self.database))

    def restart(self) -> None:
        """Restarts after a crash: only committed state remains."""
        self.instance.close()
        self.open()

    @property
    def now(self) -> int:
        return epoch_microseconds(self.clock())

    def rows(self) -> list[Row]:
        """Returns the rows that it sends now."""
        self.dialogs.notify_queued(senders_with_messages(self.database))
        rows: list[Row] = []
        while (table := self.dialogs.data_to_send(now=self.now)) is not None:
            rows += table.to_pylist()
        return rows

    def process(self, rows: Iterable[Row]) -> BatchChanges:
        """Processes a batch in the engine; commits nothing."""
        table = pa.Table.from_pylist(list(rows), schema=ENVELOPE)
        return self.dialogs.receive(table, now=self.now, peer=self.peer, session_keys=self.session_keys)

    def commit_or_undo(self, effects: BatchChanges) -> StalePlanError | None:
        """Commits the changes of a batch; if the plan is stale, undoes them, forgets the stale endpoints, and returns the error."""
        try:
            self.storage.commit(effects)
        except StalePlanError as error:
            self.dialogs.undo(effects)
            self.dialogs.forget(error.keys)
            return error
        self.dialogs.confirm(effects, now=self.now)
        return None

    def receive_rows(self, rows: Iterable[Row]) -> StalePlanError | None:
        """Processes a batch and commits its changes."""
        return self.commit_or_undo(self.process(rows))

    def key(self, handle: uuid.UUID) -> EndpointKey:
        """Returns the key of a handle's endpoint."""
        row = self.row(handle)
        assert row is not None
        return (row.conversation_id, bool(row.is_initiator))

    def row(self, handle: uuid.UUID) -> ConversationEndpoint | None:
        with database_context(self.database).file.read() as connection:
            found = connection.execute(
                "SELECT * FROM ssb_conversation_endpoints WHERE conversation_handle = ?", (handle.bytes,)
            ).fetchone()
        return None if found is None else ConversationEndpoint._make(found)

    def endpoint_row(self, key: EndpointKey) -> ConversationEndpoint | None:
        """Returns the row of an endpoint."""
        with database_context(self.database).file.read() as connection:
            return conversation_endpoints.by_sides(connection, [key]).get(key)

    def count(self, table: str) -> int:
        with database_context(self.database).file.read() as connection:
            found: int = connection.execute(f"SELECT count(*) FROM ssb_{table}").get
        return found

    def emitted(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class Pair:
    """The shop, the stock, and their clock."""

    shop: Side
    stock: Side
    clock: Clock

    def exchange(self, *, seconds: int = 1, times: int = 6) -> list[Row]:
        """Delivers all rows in both directions, advancing the clock after each round; returns the rows of the shop."""
        sent: list[Row] = []
        for _ in range(times):
            rows = self.shop.rows()
            sent += rows
            assert not rows or self.stock.receive_rows(rows) is None
            rows = self.stock.rows()
            assert not rows or self.shop.receive_rows(rows) is None
            self.clock.advance(seconds=seconds)
        return sent

    def begin(self, *bodies: bytes, **options: Any) -> uuid.UUID:
        """Begins a dialog from the shop to the stock and sends messages; delivers nothing."""
        with self.shop.database.transaction() as t:
            handle = t.begin_dialog(SHOP, STOCK, contract=TRADE, **options)
            for body in bodies:
                t.send(handle, body)
        return handle

    def establish(self, *bodies: bytes) -> tuple[uuid.UUID, uuid.UUID]:
        """Establishes a dialog and empties its queues; returns both handles."""
        shop = self.begin(*(bodies or (b"hello",)))
        self.exchange()
        key = (self.shop.key(shop)[0], False)
        row = self.stock.endpoint_row(key)
        assert row is not None
        with self.stock.database.transaction() as t:
            while t.receive(ORDERS, conversation_handle=uuid.UUID(bytes=row.conversation_handle)).num_rows:
                pass
        for side in (self.shop, self.stock):
            side.events.clear()
        return shop, uuid.UUID(bytes=row.conversation_handle)

    def close(self) -> None:
        self.shop.instance.close()
        self.stock.instance.close()


def pair(folder: Path, *, has_subscriber: bool = True, **settings: Any) -> Pair:
    """Two instances: `//Shop` on the queue Replies, and `//Stock` on the queue Orders."""
    clock, protocol_settings = Clock(), ProtocolSettings(**settings)
    shop, stock = (
        Side(folder / name, clock, protocol_settings, has_subscriber=has_subscriber).create(name)
        for name in ("shop", "stock")
    )
    shop.peer, stock.peer = b"certificate of the stock", b"certificate of the shop"
    for side in (shop, stock):
        side.database.create_message_type(ORDER)
        side.database.create_contract(TRADE, {ORDER: "ANY", DEFAULT: "ANY"})
    shop.database.create_queue(REPLIES)
    shop.database.create_service(SHOP, queue=REPLIES)
    stock.database.create_queue(ORDERS)
    stock.database.create_service(STOCK, queue=ORDERS, contracts=[TRADE])
    return Pair(shop, stock, clock)
