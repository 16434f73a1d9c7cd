"""Forwards messages for other instances, in memory and within a size limit."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.broker.network.interfaces import NetworkEndpoint, Peer, PeerKey
from ssbroker.protocol.arrow_columns import column_values
from ssbroker.protocol.events import Event, EventLog, ForwardedMessageDropped, ForwardedMessageSent
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import HOPS_MAX, WIRE, DropReason

ROW_BYTES: Final = 512
"""The fixed size that is counted for each row, in addition to its values of variable length."""

RowKey: TypeAlias = tuple[bytes, bool, int, int, bytes]
"""Identifies a row: conversation, direction, numbers, and the signature of the header."""

_KEY_COLUMNS: Final = (
    "conversation_id",
    "is_initiator",
    "message_sequence_number",
    "fragment_number",
    "header_signature",
)
_VARIABLE_COLUMNS: Final = tuple(field.name for field in WIRE if field.type in (pa.binary(), pa.string()))
_EVENT_COLUMNS: Final = (
    "conversation_id",
    "is_initiator",
    "to_service_name",
    "to_broker_instance",
    "from_service_name",
    "from_broker_instance",
    "message_sequence_number",
    "fragment_number",
    "hops_remaining",
    "time_to_live",
    "message_id",
)
_GUID_COLUMNS: Final = ("conversation_id", "to_broker_instance", "from_broker_instance", "message_id")
_NEXT_HOP_INDEX: Final = _EVENT_COLUMNS.index("message_sequence_number")
_SECONDS_MAX: Final = 2**31 - 1


class ForwardRoute(NamedTuple):
    """The destination to which routing forwards rows."""

    address: str
    mirror_address: str | None = None
    broker_instance: bytes | None = None


NO_HOP: Final = ForwardRoute("")
"""The route of rows that are not forwarded."""


def values(rows: pa.Table, column: str) -> list[Any]:
    """Returns the values of a column."""
    return column_values(rows[column])


def rows_by_route(decisions: pa.Table) -> dict[ForwardRoute, Sequence[int]]:
    """Returns the row numbers of decisions (`schemas.DECISIONS`) by route; `NO_HOP` stands for rows that are not forwarded.

    The broker id matters for mirrored routes only; without a mirror, all rows to an address share a route.
    """
    addresses = decisions["next_hop_address"].unique().to_pylist()
    if len(addresses) == 1 and decisions["mirror_address"].null_count == decisions.num_rows:
        return {ForwardRoute(addresses[0] or ""): range(decisions.num_rows)}
    routes: defaultdict[ForwardRoute, list[int]] = defaultdict(list)
    names = ("next_hop_address", "mirror_address", "broker_instance")
    for row, (address, mirror, broker) in enumerate(zip(*(values(decisions, name) for name in names), strict=True)):
        if address is None:
            routes[NO_HOP].append(row)
        else:
            routes[ForwardRoute(address) if mirror is None else ForwardRoute(address, mirror, broker)].append(row)
    return {**routes}


def keys_of(rows: pa.Table) -> list[RowKey]:
    """Returns the keys of rows of `WIRE`."""
    return [*zip(*(values(rows, name) for name in _KEY_COLUMNS), strict=True)]


def sizes_of(rows: pa.Table) -> list[int]:
    """Returns the number of bytes that each row of `WIRE` counts towards `message_forward_size`."""
    lengths = (pc.fill_null(pc.binary_length(rows[name]), 0).to_pylist() for name in _VARIABLE_COLUMNS)
    return [ROW_BYTES + sum(each) for each in zip(*lengths, strict=True)]


def remaining_hops(rows: pa.Table) -> list[int]:
    """Returns the number of hops left after this instance, at most `HOPS_MAX` whatever the peer states; a row with 0 is not forwarded."""
    return [max(min(hops, HOPS_MAX) - 1, 0) for hops in values(rows, "hops_remaining")]


@dataclass(slots=True)
class ForwardedRows:
    """Rows that are forwarded together.

    Attributes:
        rows: Rows of `WIRE` to send.
        keys: The key of each row.
        sizes: The size of each row.
        since: When the rows arrived.
        source: The peer that sent the rows.
        route: Where the rows are forwarded.
        end: The number of rows that the outbox had accepted, including these rows.
    """

    rows: pa.Table
    keys: list[RowKey]
    sizes: list[int]
    since: int
    source: PeerKey
    route: ForwardRoute = NO_HOP
    end: int = 0

    def with_route(self, route: ForwardRoute) -> ForwardedRows:
        """Returns the rows with another route."""
        return replace(self, route=route)

    def select(self, indices: Sequence[int]) -> ForwardedRows:
        """Returns copies of some of the rows, in the given order, which do not keep the remaining rows in memory."""
        if len(indices) == len(self.keys):
            return self
        return ForwardedRows(
            self.rows.take(pa.array(indices, pa.int64())),
            [self.keys[each] for each in indices],
            [self.sizes[each] for each in indices],
            self.since,
            self.source,
            self.route,
        )

    def without(self, indices: Collection[int]) -> ForwardedRows:
        """Returns the rows except those with the given indices."""
        return self.select([each for each in range(len(self.keys)) if each not in indices])

    def seconds_in_transit(self, *, now: int) -> list[int]:
        """Returns the seconds that each row has been in transit, including the time here."""
        held = max(now - self.since, 0) // SECOND
        return [min(max(each, 0) + held, _SECONDS_MAX) for each in values(self.rows, "time_consumed")]

    def expired(self, *, now: int) -> list[int]:
        """Returns the indices of the rows whose time to live has ended."""
        lives = values(self.rows, "time_to_live")
        return [
            row
            for row, (used, life) in enumerate(zip(self.seconds_in_transit(now=now), lives, strict=True))
            if used >= life
        ]

    def deadline(self) -> int:
        """Returns the earliest time at which the time to live of one of the rows ends."""
        lives: Any = self.rows["time_to_live"].cast(pa.int64())
        left = pc.min(pc.subtract(lives, pa.array(self.seconds_in_transit(now=self.since), pa.int64()))).as_py()
        return self.since + SECOND * (left or 0)

    def with_time_consumed(self, *, now: int) -> pa.Table:
        """Returns the rows with the time that they have been in transit until now."""
        at = WIRE.get_field_index("time_consumed")
        return self.rows.set_column(at, WIRE.field(at), pa.array(self.seconds_in_transit(now=now), pa.int32()))

    def view_rows(self, *, now: int) -> Iterator[tuple[Any, ...]]:
        """Returns the rows of `sys.dm_broker_forwarded_messages` for these messages."""
        columns = [values(self.rows, name) for name in _EVENT_COLUMNS]
        for *fields, message_id, used in zip(*columns, self.seconds_in_transit(now=now), strict=True):
            yield (*fields[:_NEXT_HOP_INDEX], self.route.address, *fields[_NEXT_HOP_INDEX:], used, message_id)

    def sent(self, *, at: int, next_hop: str) -> Iterator[ForwardedMessageSent]:
        """Returns events about sent rows."""
        for fields in self._event_fields(range(len(self.keys)), at=at):
            yield ForwardedMessageSent(next_hop_address=next_hop, **fields)

    def dropped(self, indices: Collection[int], *, at: int, error: int, text: str) -> Iterator[ForwardedMessageDropped]:
        """Returns events about dropped rows."""
        for fields in self._event_fields(indices, at=at):
            yield ForwardedMessageDropped(next_hop_address=self.route.address, error=error, text=text, **fields)

    def _event_fields(self, indices: Collection[int], *, at: int) -> Iterator[dict[str, Any]]:
        rows = self.rows if len(indices) == len(self.keys) else self.rows.take(pa.array(indices, pa.int64()))
        columns = {name: values(rows, name) for name in _EVENT_COLUMNS if name != "is_initiator"}
        consumed = self.seconds_in_transit(now=at)
        for index, row in zip(indices, zip(*columns.values(), strict=True), strict=True):
            fields: dict[str, Any] = dict(zip(columns, row, strict=True))
            fields |= {name: _guid(fields[name]) for name in _GUID_COLUMNS}
            yield {"at": at, "time_consumed": consumed[index], **fields}


def _guid(value: bytes | None) -> uuid.UUID | None:
    return None if value is None else uuid.UUID(bytes=value)


HOPS_EXHAUSTED: Final = 11285
DUPLICATE: Final = 11288
SIZE_EXCEEDED: Final = 11289
EXPIRED: Final = 11291
UNREACHABLE: Final = 11292
NO_ROUTE: Final = 11294
RETURNING: Final = 28071

REASONS: Final = {
    HOPS_EXHAUSTED: "the hop limit of the message is reached",
    DUPLICATE: "the same message is already being forwarded",
    SIZE_EXCEEDED: "the message would exceed message_forward_size",
    EXPIRED: "the time to live of the message has ended",
    UNREACHABLE: "the next hop cannot be reached",
    NO_ROUTE: "the message no longer has a route",
    RETURNING: "the message would be sent back to the instance that it came from",
}
"""Why a row is dropped, by Service Broker's error number. The sender still has the row, and sends it again."""


@dataclass(slots=True)
class ForwardingCounters:
    """Counts forwarded messages for the performance counters.

    Attributes:
        messages: Rows forwarded.
        bytes: The size of the forwarded rows.
        discarded: Rows dropped.
    """

    messages: int = 0
    bytes: int = 0
    discarded: int = 0


class ForwardingBuffer:
    """Counts the held rows against the size limit, and collects the events to emit.

    Attributes:
        counters: The rows forwarded and dropped so far.
    """

    def __init__(
        self,
        *,
        max_bytes: Callable[[], int],
        report_drops: Callable[[PeerKey, Mapping[EndpointKey, DropReason]], None],
        events: EventLog,
    ) -> None:
        self._report_drops: Final = report_drops
        self.counters: Final = ForwardingCounters()
        self._max_bytes: Final = max_bytes
        self._log: Final = events
        self._keys: Final[set[RowKey]] = set()
        self._bytes = 0
        self._events: list[Event] = []

    @property
    def pending(self) -> tuple[int, int]:
        """The number of held rows and their size."""
        return len(self._keys), self._bytes

    def admit(self, batch: ForwardedRows, *, now: int, free_space: Callable[[], None]) -> ForwardedRows:
        """Holds received rows, and returns the rows that are held. The remaining rows are dropped, each for the first reason that applies.

        `free_space` is called, at most once, to drop other rows if these would exceed the limit.
        """
        dropped_rows: dict[int, int] = dict.fromkeys(batch.expired(now=now), EXPIRED)
        dropped_rows |= {
            row: HOPS_EXHAUSTED for row, hops in enumerate(values(batch.rows, "hops_remaining")) if not hops
        }
        max_bytes, may_free_space = self._max_bytes(), True
        for index, (key, size) in enumerate(zip(batch.keys, batch.sizes, strict=True)):
            if index in dropped_rows:
                continue
            if key in self._keys:
                dropped_rows[index] = DUPLICATE
                continue
            if may_free_space and self._bytes + size > max_bytes >= size:
                free_space()
                may_free_space = False
            if self._bytes + size > max_bytes:
                dropped_rows[index] = SIZE_EXCEEDED
            else:
                self._keys.add(key)
                self._bytes += size
        self._discard(batch, dropped_rows, now=now)
        return batch.without(dropped_rows)

    def drop(self, batch: ForwardedRows, *, error: int, now: int, why: str = "") -> None:
        """Drops held rows for a reason in `REASONS`, to which `why` is appended."""
        self._release(batch)
        self._discard(batch, dict.fromkeys(range(len(batch.keys)), error), now=now, why=why)

    def allow_duplicates(self, batch: ForwardedRows) -> None:
        """Accepts the same rows again, because the held rows are sent over a route that is no longer valid."""
        self._keys.difference_update(batch.keys)

    def drop_expired(self, batches: Iterable[ForwardedRows], *, now: int) -> Iterator[ForwardedRows]:
        """Drops rows whose time to live has ended; yields the remaining rows."""
        for batch in batches:
            expired = batch.expired(now=now)
            if expired:
                self.drop(batch.select(expired), error=EXPIRED, now=now)
            if len(expired) < len(batch.keys):
                yield batch.without(expired)

    def sent(self, batch: ForwardedRows, *, next_hop: str, now: int) -> None:
        """Records that rows were written to their connection, and stops holding them."""
        self._release(batch)
        self.counters.messages += len(batch.keys)
        self.counters.bytes += sum(batch.sizes)
        if self._log.wants(ForwardedMessageSent):
            self._events += batch.sent(at=now, next_hop=next_hop)

    def take_events(self) -> list[Event]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events

    def _release(self, batch: ForwardedRows) -> None:
        self._keys.difference_update(batch.keys)
        self._bytes -= sum(batch.sizes)

    def _discard(self, batch: ForwardedRows, dropped_rows: Mapping[int, int], *, now: int, why: str = "") -> None:
        self.counters.discarded += len(dropped_rows)
        senders = {batch.keys[row][:2] for row, error in dropped_rows.items() if error != DUPLICATE}
        if senders:
            self._report_drops(batch.source, dict.fromkeys(senders, DropReason.NOT_FORWARDED))
        if not dropped_rows or not self._log.wants(ForwardedMessageDropped):
            return
        for error in sorted({*dropped_rows.values()}):
            rows: Collection[int] = [row for row, number in dropped_rows.items() if number == error]
            self._events += batch.dropped(rows, at=now, error=error, text=f"{error}: {REASONS[error]}{why}")


@dataclass(slots=True)
class ForwardingHop:
    """The state of an address to which rows are forwarded.

    Attributes:
        waiting: Rows that the outbox of the address has not accepted.
        in_transit: Rows that the outbox has accepted but not written.
        is_full: Whether the outbox currently accepts no rows.
        is_failing: Whether the address cannot be reached.
        peer_key: The peer that answered at the address. Until a peer has answered, no rows are sent: they may have come
            from that peer.
    """

    waiting: deque[ForwardedRows] = field(default_factory=deque)
    in_transit: deque[ForwardedRows] = field(default_factory=deque)
    is_full: bool = False
    is_failing: bool = False
    peer_key: PeerKey | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no rows wait for or are in transit to the address."""
        return not self.waiting and not self.in_transit


PROGRESS_INTERVAL: Final = SECOND
"""The interval at which written rows are released if nothing else releases them."""
KNOWN_HOPS_MAX: Final = 1024
"""The number of known addresses above which idle addresses are forgotten."""


class MessageForwarder:
    """The rows that an instance holds for other instances (R43); its views may be read from any thread.

    Args:
        endpoint: Sends the rows.
        resolve_mirror: Returns the principal address of a mirrored route, as `MirroredRoutes.resolve` does; None to wait.
        max_bytes: Returns the maximum number of bytes to hold.
        events: Where forwarded and dropped messages are reported.
        clock: Returns the time in microseconds since 1970.
    """

    def __init__(
        self,
        endpoint: NetworkEndpoint,
        *,
        resolve_mirror: Callable[[str, str, bytes | None], str | None],
        max_bytes: Callable[[], int],
        events: EventLog,
        clock: Callable[[], int],
    ) -> None:
        self._endpoint: Final = endpoint
        self._resolve_mirror: Final = resolve_mirror
        self._log: Final = events
        self._clock: Final = clock
        self._lock: Final = threading.RLock()
        self._hops: Final[defaultdict[str, ForwardingHop]] = defaultdict(ForwardingHop)
        self._awaiting_mirror: list[ForwardedRows] = []
        self._next_expiry: int | None = None
        self._buffer: Final = ForwardingBuffer(max_bytes=max_bytes, report_drops=endpoint.report_drops, events=events)

    @property
    def counters(self) -> ForwardingCounters:
        """The rows forwarded and dropped so far."""
        with self._lock:
            self._release()
            return replace(self._buffer.counters)

    @property
    def pending(self) -> tuple[int, int]:
        """The number of held rows and their size."""
        with self._lock:
            self._release()
            return self._buffer.pending

    def view_rows(self) -> list[tuple[Any, ...]]:
        """Returns the rows of `sys.dm_broker_forwarded_messages`: messages that are not yet written to their connection."""
        now = self._clock()
        with self._lock:
            self._release()
            held = [
                *self._awaiting_mirror,
                *(each for hop in self._hops.values() for each in (*hop.in_transit, *hop.waiting)),
            ]
        return [row for batch in held for row in batch.view_rows(now=now)]

    def forward(self, peer: Peer, rows: pa.Table, decisions: pa.Table) -> None:
        """Accepts received rows that routing forwards; `decisions` has a row of `schemas.DECISIONS` for each."""
        now = self._clock()
        at = WIRE.get_field_index("hops_remaining")
        counted = rows.set_column(at, WIRE.field(at), pa.array(remaining_hops(rows), pa.int8()))
        received = ForwardedRows(counted, keys_of(rows), sizes_of(rows), now, peer.key)
        with self._emitting():
            self._release()
            for route, indices in rows_by_route(decisions).items():
                batch = received.select(indices).with_route(route)
                admitted = self._buffer.admit(batch, now=now, free_space=lambda: self._free_space(now=now))
                if admitted.keys:
                    self._next_expiry = min(admitted.deadline(), self._next_expiry or admitted.deadline())
                    self._enqueue(admitted, now=now)
                elif route.mirror_address is not None:  # repeated rows still request the role
                    self._resolve_mirror(route.address, route.mirror_address, route.broker_instance)

    def outbox_full(self, address: str) -> None:
        """Reports that this instance's own rows fill the outbox of an address; a call of `outbox_drained` follows."""
        with self._lock:
            if address in self._hops:
                self._hops[address].is_full = True

    def outbox_drained(self, address: str) -> None:
        """Reports that an address accepts rows again: its full outbox is half empty, or the wait after a failed dial has ended."""
        with self._emitting():
            self._hops[address].is_full = False
            self._drain(address, now=self._clock())

    def connected(self, address: str, peer: Peer) -> None:
        """Reports a connection to an address; rows from the connected instance are not sent back to it. A call of `outbox_drained` follows."""
        now = self._clock()
        with self._emitting():
            hop = self._hops[address]
            hop.peer_key, hop.is_failing = peer.key, False
            waiting, hop.waiting = hop.waiting, deque()
            for batch in waiting:
                if batch.source == peer.key:
                    self._buffer.drop(batch, error=RETURNING, now=now)
                else:
                    hop.waiting.append(batch)
            self._drain(address, now=now)

    def connection_failed(self, address: str, why: str) -> None:
        """Drops the rows in the outbox of an address, or the rows that wait for its first connection; their senders still have them.

        Rows that the outbox had not accepted wait until the address is dialled again.
        """
        now = self._clock()
        with self._emitting():
            hop = self._hops[address]
            lost = hop.in_transit if hop.peer_key is not None else hop.waiting
            while lost:
                self._buffer.drop(lost.popleft(), error=UNREACHABLE, now=now, why=f": {why}")
            hop.is_failing, hop.is_full = True, False
            self._drain(address, now=now)  # so that the outbox reports when it accepts rows again

    def mirrors_changed(self) -> None:
        """Chooses the addresses of mirrored routes again, for rows that no outbox has accepted (R53)."""
        with self._emitting():
            held: list[ForwardedRows] = []
            for hop in self._hops.values():
                held += (each for each in hop.waiting if each.route.mirror_address is not None)
                hop.waiting = deque(each for each in hop.waiting if each.route.mirror_address is None)
            held += self._awaiting_mirror
            self._awaiting_mirror = []
            for batch in held:
                self._enqueue(batch, now=self._clock())

    def reroute(self, route: Callable[[pa.Table], pa.Table]) -> None:
        """Routes rows again after the catalog has changed; rows without a route are dropped.

        Rows that an outbox has accepted are not moved. If their route has changed, the same rows are accepted when they
        arrive again: they are not duplicates on the new route.
        """
        now = self._clock()
        with self._emitting():
            self._release()
            waiting = [*self._awaiting_mirror, *(each for hop in self._hops.values() for each in hop.waiting)]
            accepted = [each for hop in self._hops.values() for each in hop.in_transit]
            if not waiting and not accepted:
                return
            decisions, offset = route(pa.concat_tables([each.rows for each in (*waiting, *accepted)])), 0
            self._awaiting_mirror = []
            for hop in self._hops.values():
                hop.waiting.clear()
            for number, batch in enumerate((*waiting, *accepted)):
                routes = rows_by_route(decisions.slice(offset, len(batch.keys)))
                offset += len(batch.keys)
                if number < len(waiting):
                    self._enqueue_rerouted(batch, routes, now=now)
                elif {*routes} != {batch.route}:
                    self._buffer.allow_duplicates(batch)

    def run_due(self, *, now: int) -> int | None:
        """Drops expired rows, and releases written rows; returns when to call it again, or None if no rows are held."""
        with self._emitting():
            self._release()
            if self._next_expiry is not None and self._next_expiry <= now:
                self._drop_expired(now=now)
            self._forget_idle()
            times = [now + PROGRESS_INTERVAL] if any(hop.in_transit for hop in self._hops.values()) else []
            is_held = self._awaiting_mirror or any(hop.waiting for hop in self._hops.values())
            return min(
                (*times, *([self._next_expiry] if is_held and self._next_expiry is not None else [])), default=None
            )

    def _enqueue(self, batch: ForwardedRows, *, now: int) -> None:
        """Queues rows for their next hop."""
        address, mirror, broker_instance = batch.route
        chosen = address if mirror is None else self._resolve_mirror(address, mirror, broker_instance)
        if chosen is None:
            self._awaiting_mirror.append(batch)
        elif chosen not in self._hops and (why := self._endpoint.refusal_reason(chosen)) is not None:
            self._buffer.drop(batch, error=UNREACHABLE, now=now, why=f": {why}")
        elif self._hops[chosen].peer_key == batch.source:
            self._buffer.drop(batch, error=RETURNING, now=now)
        else:
            hop = self._hops[chosen]
            hop.waiting.append(batch)
            if hop.peer_key is None:
                self._endpoint.dial(chosen)
            else:
                self._drain(chosen, now=now)

    def _enqueue_rerouted(
        self, batch: ForwardedRows, routes: Mapping[ForwardRoute, Sequence[int]], *, now: int
    ) -> None:
        for route, indices in routes.items():
            moved = batch.select(indices)
            if route == NO_HOP:
                self._buffer.drop(moved, error=NO_ROUTE, now=now)
            else:
                self._enqueue(moved.with_route(route), now=now)

    def _drain(self, address: str, *, now: int) -> None:
        hop = self._hops[address]
        while hop.waiting and not hop.is_full and hop.peer_key is not None:
            for batch in self._buffer.drop_expired([hop.waiting.popleft()], now=now):
                result = self._endpoint.send(address, batch.with_time_consumed(now=now))
                hop.is_full = result.is_full
                if result.is_accepted:
                    batch.end = result.accepted_rows
                    hop.in_transit.append(batch)
                else:  # the outbox was full, or the wait after a failed dial has not ended
                    hop.waiting.appendleft(batch)

    def _drop_expired(self, *, now: int) -> None:
        """Drops expired rows, and computes when the next rows expire."""
        self._awaiting_mirror = [*self._buffer.drop_expired(self._awaiting_mirror, now=now)]
        for hop in self._hops.values():
            hop.waiting = deque(self._buffer.drop_expired(hop.waiting, now=now))
        held = [*self._awaiting_mirror, *(each for hop in self._hops.values() for each in hop.waiting)]
        self._next_expiry = min((batch.deadline() for batch in held), default=None)

    def _free_space(self, *, now: int) -> None:
        """Drops the rows that wait for unreachable addresses, so that they do not block other rows."""
        stuck, self._awaiting_mirror = self._awaiting_mirror, []
        for hop in self._hops.values():
            if hop.is_failing:
                stuck += hop.waiting
                hop.waiting.clear()
        for batch in stuck:
            self._buffer.drop(batch, error=SIZE_EXCEEDED, now=now)

    def _release(self) -> None:
        """Releases the rows that have been written."""
        for address, hop in self._hops.items():
            if hop.in_transit:
                _, done = self._endpoint.progress(address)
                while hop.in_transit and hop.in_transit[0].end <= done:
                    self._buffer.sent(hop.in_transit.popleft(), next_hop=address, now=self._clock())

    def _forget_idle(self) -> None:
        """Forgets idle addresses: they may come from service names (R23), and so from any peer."""
        if len(self._hops) > KNOWN_HOPS_MAX:
            for address in [address for address, hop in self._hops.items() if hop.is_idle]:
                del self._hops[address]

    @contextmanager
    def _emitting(self) -> Iterator[None]:
        """Changes the held rows under the lock, and emits the events after releasing it, because subscribers may read the view."""
        with self._lock:
            yield
            events = self._buffer.take_events()
        for event in events:
            self._log.emit(event)
