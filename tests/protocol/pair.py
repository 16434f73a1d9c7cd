"""Two instances, between which the test can inspect, hold, change and repeat each fragment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from ssbroker import _well_known
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.events import CorruptedMessage, Event, EventLog, MessageUndeliverable
from ssbroker.protocol.inbound_fast_path import FastInbound, FastInboundFinder
from ssbroker.protocol.settings import ProtocolSettings
from ssbroker.protocol.storage import BatchChanges, DialogEndpoint, EndpointKey, ExchangedKeys, Refusal
from ssbroker.testing.memory_storage import MemoryDialogStorage
from ssbroker.testing.simulation import EngineFactory

SECOND = 1_000_000
A, B, C = (letter * 16 for letter in (b"A", b"B", b"C"))
CONVERSATION = b"one conversation"
KEY = bytes(range(32))
CERTIFICATE_A, CERTIFICATE_B = b"certificate of A", b"certificate of B"

Row = dict[str, Any]


@dataclass
class Side:
    """One instance: its engine, its durable storage and its events."""

    name: bytes
    storage: MemoryDialogStorage
    dialogs: DialogEngine
    peer: bytes
    session_keys: dict[bytes, bytes | ExchangedKeys]
    events: list[Event] = field(default_factory=list)

    def send(self, key: EndpointKey, *bodies: bytes, message_type: str = "Order") -> None:
        """Commits messages, and notifies the engine."""
        for body in bodies:
            self.storage.send(key, body, message_type=message_type)
        self.dialogs.notify_queued([key])

    def rows(self, now: int = 0, *, max_rows: int = 4096) -> list[Row]:
        """Returns all rows to send now."""
        rows: list[Row] = []
        while (table := self.dialogs.data_to_send(now=now, max_rows=max_rows)) is not None:
            rows += table.to_pylist()
        return rows

    def receive(self, rows: Iterable[Row], now: int = 0, *, peer: bytes | None = None) -> BatchChanges:
        """Receives a batch without committing it."""
        table = pa.Table.from_pylist(list(rows), schema=ENVELOPE)
        return self.dialogs.receive(table, now=now, peer=peer or self.peer, session_keys=self.session_keys)

    def receive_and_commit(self, rows: Iterable[Row], now: int = 0, *, peer: bytes | None = None) -> BatchChanges:
        """Receives a batch and commits the result."""
        effects = self.receive(rows, now, peer=peer)
        self.storage.commit(effects)
        self.dialogs.confirm(effects, now=now)
        return effects

    def queue(self, key: EndpointKey) -> list[bytes]:
        """Returns the bodies in the application's queue."""
        state = self.storage.accounts.get(key)
        return [] if state is None else [message.body for message in state.queue]

    def waiting(self, key: EndpointKey) -> list[int]:
        """Returns the sequence numbers in its transmission queue."""
        return list(self.storage.accounts[key].outgoing)

    def emitted(self, kind: type[Event]) -> list[Any]:
        """Returns its events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def rejection_events(self) -> list[Any]:
        """Its events about damaged and undeliverable fragments."""
        return self.emitted(CorruptedMessage) + self.emitted(MessageUndeliverable)


@dataclass
class Pair:
    """The instances of an initiator and a target, and a new dialog between them."""

    a: Side
    b: Side
    engine: EngineFactory
    settings: ProtocolSettings
    outgoing: EndpointKey = (CONVERSATION, True)
    incoming: EndpointKey = (CONVERSATION, False)

    def begin(self, *, conversation: bytes = CONVERSATION, **options: Any) -> EndpointKey:
        """Starts a dialog at the initiator."""
        fixed = {"service_name": "Shop", "far_service_name": "Bank", "broker_instance": A}
        endpoint = DialogEndpoint(conversation_id=conversation, is_initiator=True, **{**fixed, **options})
        if endpoint.session_key is not None:
            self.b.session_keys[conversation] = endpoint.session_key
        return self.a.storage.begin(endpoint)

    def exchange(self, now: int = 0, *, times: int = 6) -> list[Row]:
        """Delivers everything in both directions; returns the rows of the initiator."""
        sent: list[Row] = []
        for step in range(times):
            rows = self.a.rows(now + step * SECOND)
            sent += rows
            if rows:
                self.b.receive_and_commit(rows, now + step * SECOND)
            if rows := self.b.rows(now + step * SECOND):
                self.a.receive_and_commit(rows, now + step * SECOND)
        return sent

    def restart(self, side: Side) -> None:
        """Drops uncommitted state, and starts a new engine."""
        side.storage.restart()
        side.dialogs = create_engine(side.storage, self.engine, self.settings, side.events)
        side.dialogs.notify_queued(side.storage.waiting())


def create_engine(
    storage: MemoryDialogStorage, engine: EngineFactory, settings: ProtocolSettings, events: list[Event]
) -> DialogEngine:
    """Creates an engine that records its events."""
    log = EventLog()
    log.subscribe(events.append)
    return engine(storage, random=Random(1).random, settings=settings, log=log)


def fixed_window(**settings: Any) -> ProtocolSettings:
    """Returns settings with a fixed window, unless `max_window_bytes` is given."""
    return ProtocolSettings(**{"max_window_bytes": ProtocolSettings(**settings).window_bytes, **settings})


def pair(
    engine: EngineFactory,
    *,
    refuses: Callable[[str, bytes], Refusal | None] | None = None,
    dialog: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Pair:
    """Creates two instances and a dialog whose endpoint has the columns `dialog`."""
    chosen = fixed_window(**settings)
    sides: list[Side] = []
    for name, peer in ((A, CERTIFICATE_B), (B, CERTIFICATE_A)):
        storage = MemoryDialogStorage(name, refuses=refuses)
        events: list[Event] = []
        sides.append(Side(name, storage, create_engine(storage, engine, chosen, events), peer, {}, events))
    a, b = sides
    created = Pair(a, b, engine, chosen)
    created.begin(**(dialog or {}))
    return created


def established_pair(engine: EngineFactory, **options: Any) -> Pair:
    """Creates two instances with an established dialog, after one message in each direction."""
    created = pair(engine, **options)
    created.a.send(created.outgoing, b"first")
    created.exchange()
    created.b.send(created.incoming, b"first back")
    created.exchange(10 * SECOND)
    for side in (created.a, created.b):
        assert side.storage.waiting() == []
        side.events.clear()
    return created


def numbers(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """Returns sequence and fragment number of each numbered row."""
    return [(row["message_sequence_number"], row["fragment_number"]) for row in rows if row["is_sequenced"]]


def is_error(row: Row) -> bool:
    """Returns whether a row is an error of the broker."""
    return not row["is_sequenced"] and row["message_type_name"] == _well_known.ERROR


def disable_fast_path(dialogs: DialogEngine) -> None:
    """Makes an engine process each row by itself, without the fast path."""
    dialogs._fast_inbound = cast("FastInboundFinder", SimpleNamespace(find=lambda table, *_, **__: FastInbound(table)))
