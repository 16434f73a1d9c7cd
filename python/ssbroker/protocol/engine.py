"""The dialog protocol engine: all networked dialogs of one database, without I/O."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError, OptionError, ProtocolError
from ssbroker.protocol.ack_ranges import AckRange, pack_ack_ranges
from ssbroker.protocol.arrow_columns import concatenated
from ssbroker.protocol.batch_reassembly import Assembler, DirectionLoader
from ssbroker.protocol.dialog import Dialog, ErrorNotice, make_dialog
from ssbroker.protocol.encoder import Encoder
from ssbroker.protocol.envelope import ENVELOPE, sender_keys, table_to_rows
from ssbroker.protocol.events import EventLog
from ssbroker.protocol.inbound_fast_path import FastInboundFinder
from ssbroker.protocol.ready_dialogs import ReadyDialogs
from ssbroker.protocol.receiver import BatchReceiver, ReceivedBatch, ReceivePlan, ReceivePlanner
from ssbroker.protocol.retry_waits import Backoff, MonotonicClock
from ssbroker.protocol.row_events import emit_acknowledgements
from ssbroker.protocol.row_opener import OpenedBatch, RowOpener
from ssbroker.protocol.send_turn import SendTurn, TurnPacing
from ssbroker.protocol.sender import Sender
from ssbroker.protocol.settings import SECOND, SEQUENCE_DISTANCE_MAX, ProtocolSettings
from ssbroker.protocol.storage import BatchChanges, DialogStorage, EndpointKey, SessionKeys
from ssbroker.protocol.transmission import Flight, Transmission, pack_transmission, unpack_transmission

IDLE_AFTER: Final = 10 * SECOND
"""An endpoint that has nothing to send is removed from memory after this time without a change."""
EVICT_HELD_AFTER: Final = 300 * SECOND
"""An endpoint whose next hop is closed is removed from memory after this time without a change or a notification of messages."""
_DEFAULT_PRIORITY: Final = 5


class DialogCache:
    """The endpoints in memory: which of them are ready to send, and when each is due.

    Args:
        storage: Contains the rows of the endpoints, and the work table.
        honor_priority: Whether endpoints with a higher priority send first.
        closed_hops: The next hops that accept nothing for now.
    """

    __slots__ = (
        "_clean",
        "_honor_priority",
        "_newly_dirty",
        "_stale_saved",
        "_storage",
        "_timers",
        "_unloaded",
        "loaded",
        "ready",
    )

    def __init__(self, storage: DialogStorage, *, honor_priority: bool, closed_hops: Collection[Hashable]) -> None:
        self._storage = storage
        self._honor_priority = honor_priority
        self.ready: Final = ReadyDialogs(closed_hops)
        self._timers: list[tuple[int, bytes, bool]] = []
        # Endpoints that may have something to send but are not loaded yet, and when they were notified of it.
        self._unloaded: dict[EndpointKey, int] = {}
        # Removed endpoints: their rows in the work table are outdated.
        self._stale_saved: set[EndpointKey] = set()
        # Endpoints whose transmission objects have been clean since they were loaded; and the number of objects that
        # became dirty but have not been reported yet.
        self._clean: set[EndpointKey] = set()
        self._newly_dirty = 0
        self.loaded: dict[EndpointKey, Dialog] = {}

    def load(self, keys: Iterable[EndpointKey]) -> dict[EndpointKey, Dialog]:
        """Returns the existing endpoints of the given keys, loading those that are not in memory."""
        keys = list(keys)
        missing = [key for key in keys if key not in self.loaded]
        if missing:
            saved = self._storage.load_transmissions(missing)
            for key, endpoint in zip(missing, self._storage.endpoints(missing), strict=True):
                if endpoint is None:
                    self._stale_saved.discard(key)
                else:
                    data = None if key in self._stale_saved else saved.get(key)
                    self.add(make_dialog(endpoint, None if data is None else _unpack_saved(key, data)))
        known = self.loaded
        return {key: known[key] for key in keys if key in known}

    def reload(self, keys: Iterable[EndpointKey]) -> list[EndpointKey]:
        """Rereads the rows of endpoints in memory; returns the endpoints that no longer exist."""
        loaded = [key for key in keys if key in self.loaded]
        missing: list[EndpointKey] = []
        if not loaded:
            return missing
        for key, endpoint in zip(loaded, self._storage.endpoints(loaded), strict=True):
            if endpoint is None:
                missing.append(key)
            else:
                self.loaded[key].replace_endpoint(endpoint)
        return missing

    def add(self, dialog: Dialog) -> None:
        """Adds an endpoint."""
        self.loaded[dialog.key] = dialog
        self._clean.add(dialog.key)

    def take_newly_dirty(self) -> int:
        """Returns how many transmission objects have become dirty since the last call, for the first time since they were loaded."""
        self._count_newly_dirty([self.loaded[key] for key in self._clean])
        count, self._newly_dirty = self._newly_dirty, 0
        return count

    def mark_ready(self, dialog: Dialog) -> None:
        """Records that a dialog may have something to send."""
        self.ready.add(dialog.key, priority=dialog.endpoint.priority if self._honor_priority else _DEFAULT_PRIORITY)

    def mark_all_ready(self, dialogs: Iterable[Dialog]) -> None:
        """Records that dialogs may have something to send."""
        for dialog in dialogs:
            self.mark_ready(dialog)

    def mark_keys_ready(self, keys: Iterable[EndpointKey], now: int) -> None:
        """Records that endpoints may have something to send; endpoints that are not in memory are loaded when they get a turn."""
        for key in keys:
            if key in self.loaded:
                self._use(self.loaded[key], now)
            else:
                self._unloaded[key] = now

    def take_ready(self) -> Iterator[Dialog]:
        """Removes and yields the ready dialogs whose next hop is open, the highest priority first."""
        if self._unloaded:
            for key, dialog in self.load(self._unloaded).items():  # kept until loading succeeds
                self._use(dialog, self._unloaded[key])
            self._unloaded.clear()
        return self.ready.take(lambda key: self.loaded.get(key) or self.load([key]).get(key))

    def _use(self, dialog: Dialog, now: int) -> None:
        """Records that messages of a dialog were queued."""
        dialog.transmission.last_used = max(dialog.transmission.last_used, now)
        self.mark_ready(dialog)

    def restore(self, turns: Iterable[tuple[Dialog, list[Flight]]], owing: Iterable[Dialog], now: int) -> None:
        """Makes dialogs ready again after a read error ended their turns.

        Args:
            turns: The dialogs, and the retransmissions of each.
            owing: The dialogs that owe an acknowledgement.
            now: The time of the failed turns.
        """
        for dialog, lost in turns:
            dialog.transmission.flights += lost
            self.mark_ready(dialog)
        for dialog in owing:
            self.schedule(dialog.key, now)

    @property
    def has_ready(self) -> bool:
        """Whether a dialog may have something to send."""
        return bool(self._unloaded) or self.ready.has_open

    def schedule(self, key: EndpointKey, due: int) -> None:
        """Schedules a check whether an endpoint has something due."""
        heapq.heappush(self._timers, (due, *key))

    @property
    def next_due(self) -> int | None:
        """The time of the next check; None if no check is scheduled. Reading it discards outdated checks."""
        while self._timers:
            due, conversation_id, is_initiator = self._timers[0]
            dialog = self.loaded.get((conversation_id, is_initiator))
            if dialog is None or dialog.is_due(due):
                return due
            heapq.heappop(self._timers)
        return None

    def has_due(self, now: int) -> bool:
        """Returns whether a check may be due."""
        return bool(self._timers) and self._timers[0][0] <= now

    def take_due(self, now: int) -> list[Dialog]:
        """Removes and returns the dialogs whose check is due."""
        keys: dict[EndpointKey, None] = {}
        while self._timers and self._timers[0][0] <= now:
            _, conversation_id, is_initiator = heapq.heappop(self._timers)
            keys[conversation_id, is_initiator] = None
        try:
            return list(self.load(keys).values())
        except BaseException:
            for key in keys:
                self.schedule(key, now)
            raise

    def find_idle(self, now: int) -> list[Dialog]:
        """Returns the dialogs without recent activity that have nothing to send or acknowledge, or whose next hop is closed.

        The acknowledgement of the latter is lost; the next duplicate causes it again.
        """
        ready = self.ready.keys()
        return [
            dialog
            for key, dialog in self.loaded.items()
            if (dialog.transmission.last_used + IDLE_AFTER <= now and dialog.ack_due is None and key not in ready)
            or (dialog.transmission.last_used + EVICT_HELD_AFTER <= now and self.ready.is_held(key))
        ]

    def evict(self, dialogs: Sequence[Dialog]) -> None:
        """Writes changed transmission objects to the work table in one batch, and frees the memory of the dialogs."""
        changed = {
            dialog.key: pack_transmission(dialog.transmission)
            for dialog in dialogs
            if dialog.transmission.is_dirty and dialog.knows_queue_start
        }
        if changed:
            self._storage.save_transmissions(changed)
            self._stale_saved.difference_update(changed)
        self._count_newly_dirty(dialogs)
        for dialog in dialogs:
            del self.loaded[dialog.key]
            self._clean.discard(dialog.key)
            self.ready.discard(dialog.key)

    def remove(self, keys: Iterable[EndpointKey]) -> list[Dialog]:
        """Removes deleted endpoints; returns those that were in memory."""
        gone = [self.loaded.pop(key) for key in keys if key in self.loaded]
        self._count_newly_dirty(gone)
        for dialog in gone:
            self._clean.discard(dialog.key)
            self.ready.discard(dialog.key)
            self._stale_saved.add(dialog.key)
        return gone

    def _count_newly_dirty(self, dialogs: Iterable[Dialog]) -> None:
        for dialog in dialogs:
            if dialog.transmission.is_dirty and dialog.key in self._clean:
                self._clean.remove(dialog.key)
                self._newly_dirty += 1


def _unpack_saved(key: EndpointKey, data: bytes) -> Transmission:
    """Unpacks an endpoint's transmission object from the work table; an error names the conversation."""
    try:
        return unpack_transmission(data)
    except MalformedDataError as error:
        raise MalformedDataError(f"conversation {uuid.UUID(bytes=key[0])}: {error}") from error


_NO_KEYS: Final[SessionKeys] = MappingProxyType({})


class DialogEngine:
    """Runs the protocol for the networked dialogs of a database: produces rows to send, and processes received rows.

    The engine does no I/O itself, but its storage may wait for the disk. It generates no random numbers. Only one
    thread at a time may use the engine.

    Args:
        storage: The durable state.
        random: Returns numbers in [0, 1) for the jitter of waits (P17), such as `random.Random(seed).random`.
        settings: Windows, limits and the protection required of secured dialogs.
        log: Receives the events.
        closed_hops: The next hops that accept nothing for now: endpoints assigned to them send nothing. The caller changes the set.
    """

    def __init__(
        self,
        storage: DialogStorage,
        *,
        random: Callable[[], float],
        settings: ProtocolSettings | None = None,
        log: EventLog | None = None,
        closed_hops: Collection[Hashable] = frozenset(),
    ) -> None:
        self._storage = storage
        self._settings = settings = settings or ProtocolSettings()
        self._log = log or EventLog()
        self._backoff = Backoff(random)
        self._loader = DirectionLoader(storage, max_bytes=settings.max_pending_bytes // 8)
        assembler = Assembler(
            storage,
            max_pending_bytes=settings.max_pending_bytes,
            max_message_bytes=settings.max_message_bytes,
            max_sequence_distance=SEQUENCE_DISTANCE_MAX,
        )
        self._fast_inbound = FastInboundFinder(storage, max_message_bytes=settings.max_message_bytes)
        self._sender = Sender(storage, settings, self._backoff)
        self._planner = ReceivePlanner(storage, BatchReceiver(storage, self._loader, assembler, self._log), self._log)
        self._encoder = Encoder(settings.integrity)
        self._cache = DialogCache(storage, honor_priority=settings.honor_priority, closed_hops=closed_hops)
        self._notices: list[ErrorNotice] = []
        self._sent_notices: list[ErrorNotice] = []  # by the last call of `data_to_send`
        self._plan: ReceivePlan | None = None
        self._clock = MonotonicClock()
        self._pacing = TurnPacing()

    @property
    def log(self) -> EventLog:
        """Receives the events."""
        return self._log

    def data_to_send(self, *, now: int, max_rows: int = 4096, max_bytes: int = 64 << 20) -> pa.Table | None:
        """Returns the rows that are due: fragments, acknowledgements and broker errors.

        Args:
            now: The current time, in microseconds since 1970.
            max_rows: The approximate maximum number of fragments; the next call returns the rest.
            max_bytes: The approximate maximum size of these fragments, and of the messages that are read for them.

        Returns:
            Rows of `envelope.ENVELOPE`; None if nothing is due.
        """
        monotonic_now = self._clock.monotonic(now)
        self._sent_notices = []
        if not self._is_due(monotonic_now):
            return None
        self._cache.mark_all_ready(self._sender.large.take_waiting(monotonic_now))
        acknowledging = [
            dialog for dialog in self._cache.take_due(monotonic_now) if self._must_acknowledge(dialog, monotonic_now)
        ]
        tables: list[pa.Table] = []
        turns: list[SendTurn] = []
        count, pacing = 0, self._pacing
        pacing.start()
        try:
            if acknowledging or self._notices or self._cache.has_ready:
                self._storage.sync()  # the rows acknowledge received messages, or depend on them
            while (
                count < max_rows
                and pacing.bytes < max_bytes
                and self._collect_turns(turns, acknowledging, monotonic_now, now, pacing.batch_size)
            ):
                tables.append(self._encoder.fragments(batch := self._sender.take_fragments(turns, monotonic_now)))
                count += tables[-1].num_rows
                pacing.record(len(turns), max(batch.read_bytes, tables[-1]["message_body"].nbytes))
                self._cache.mark_all_ready(turn.dialog for turn in turns if turn.has_more)
                for turn in turns:
                    for due in turn.due_times:
                        self._cache.schedule(turn.dialog.key, due)
                turns.clear()
        except BaseException:
            self._cache.restore([(turn.dialog, turn.retransmissions) for turn in turns], acknowledging, monotonic_now)
            if tables:  # earlier batches of this call
                self.return_unsent(concatenated(tables), now=now)
            raise
        if acknowledging or self._notices:
            tables.append(self._encoder.replies(acknowledging, self._notices))
            self._sent_notices, self._notices = self._notices, []
        tables = [table for table in tables if table.num_rows]
        if not tables:
            return None
        rows = concatenated(tables)
        emit_acknowledgements(self._log, rows, is_sent=True, now=now)
        return rows

    def return_unsent(self, rows: pa.Table, *, now: int) -> None:
        """Makes the rows that the last call of `data_to_send` returned due again, because they could not be sent.

        This does not lengthen the waits of P17. Fragments that earlier calls returned may be sent again, too.
        """
        monotonic_now = self._clock.monotonic(now)
        self.retransmit(dict.fromkeys(sender_keys(rows)))
        for key in sender_keys(rows.filter(rows["acked_ahead"].is_valid())):
            if (dialog := self._cache.loaded.get(key)) is not None:
                dialog.ack_due = monotonic_now
                self._cache.schedule(key, monotonic_now)
        self._notices = [*self._sent_notices, *self._notices]
        self._sent_notices = []

    def _is_due(self, monotonic_now: int) -> bool:
        """Returns whether anything may be sent now."""
        next_check = self._sender.large.next_check
        is_waiting = next_check is not None and next_check <= monotonic_now
        return bool(self._notices) or is_waiting or self._cache.has_ready or self._cache.has_due(monotonic_now)

    def _must_acknowledge(self, dialog: Dialog, monotonic_now: int) -> bool:
        """Returns whether a dialog must acknowledge now; the dialog becomes ready if a retransmission is due, or its next hop is closed."""
        owes = dialog.owes_acknowledgement(monotonic_now)
        is_held = owes and self._cache.ready.is_held(dialog.key)
        if is_held or any(flight.due <= monotonic_now for flight in dialog.transmission.flights):
            self._cache.mark_ready(dialog)
        return owes and not is_held

    def _collect_turns(
        self, turns: list[SendTurn], acknowledging: list[Dialog], monotonic_now: int, now: int, most: int
    ) -> bool:
        """Adds turns of ready dialogs to `turns`, and dialogs that must acknowledge to `acknowledging`; returns whether there are turns."""
        for dialog in self._cache.take_ready():
            if dialog.owes_acknowledgement(monotonic_now):  # delayed, because the next hop was closed
                acknowledging.append(dialog)
            if (lifetime := dialog.endpoint.lifetime) is not None and lifetime <= now:
                self._sender.abandon(dialog)
                continue
            turn = self._sender.plan_turn(dialog, monotonic_now)
            if turn.retransmissions or turn.fragment_budget or turn.checks_ending_error:
                turns.append(turn)
            if len(turns) == most:
                break
        return bool(turns)

    def next_timeout(self) -> int | None:
        """Returns the next time at which there is something to send, in microseconds since 1970: 0 for immediately, None for never."""
        if self._notices or self._cache.has_ready:
            return 0
        due_times = [due for due in (self._cache.next_due, self._sender.large.next_check) if due is not None]
        return self._clock.wall_time(min(due_times)) if due_times else None

    def receive(
        self,
        table: pa.Table,
        *,
        now: int,
        peer: bytes | None = None,
        session_keys: SessionKeys = _NO_KEYS,
    ) -> BatchChanges:
        """Receives a batch from the network.

        Args:
            table: Rows of `envelope.ENVELOPE`.
            now: The current time, in microseconds since 1970.
            peer: The identity of the peer, from its certificate (P25).
            session_keys: Keys of conversations that this batch creates or answers for the first time, by conversation id.

        Returns:
            The changes to write in one transaction. The transaction may become durable later: `data_to_send` makes it durable before it
            returns rows. Call `confirm` or `undo` before the next batch.

        Raises:
            ProtocolError: The changes of the last batch were neither confirmed nor undone.
            OptionError: The table has the wrong columns.
        """
        if self._plan is not None:
            raise ProtocolError("confirm or undo the changes of the previous batch first")
        if not table.schema.equals(ENVELOPE):
            raise OptionError(
                f"table: expected the columns of ssbroker.protocol.envelope.ENVELOPE, got {', '.join(table.column_names):.200}"
            )
        emit_acknowledgements(self._log, table, is_sent=False, now=now)
        fast = self._fast_inbound.find(table, self._cache.loaded, peer=peer, session_keys=session_keys, now=now)
        opened = self._open(fast.rest, peer, session_keys, now) if fast.rest.num_rows else OpenedBatch(peer)
        try:
            self._plan = self._planner.plan(opened, fast, self._cache.loaded, now)
        except BaseException:
            self._loader.unload([*fast.dialogs, *opened.dialogs])  # some messages may already count as received
            raise
        return self._plan.changes

    def confirm(self, changes: BatchChanges, *, now: int) -> None:
        """Records that the changes of the last batch are committed, so that they may be acknowledged once they are durable.

        Raises:
            ProtocolError: `changes` do not belong to the last batch, or were already confirmed or undone.
        """
        plan = self._take_plan(changes)
        monotonic_now = self._clock.monotonic(now)
        known = self._cache.loaded
        for endpoint in changes.created:
            dialog = plan.opened.created[endpoint.key]
            dialog.knows_queue_start = True
            self._cache.add(dialog)
        for endpoint in changes.bound:
            known[endpoint.key].bind(endpoint)
            self._cache.mark_ready(known[endpoint.key])
        for key, acknowledgements in plan.acknowledged.items():
            self._acknowledge(known[key], acknowledgements, monotonic_now)
        for key in (*changes.errors, *changes.lost_by_peer):
            self._sender.abandon(known[key])
        self._notices += [*plan.opened.notices, *plan.received.notices]
        self._loader.unload(plan.received.dialogs_to_reload)
        self._schedule_acknowledgements(plan.received, monotonic_now)

    def undo(self, changes: BatchChanges) -> None:
        """Records that the changes of the last batch were rolled back, so that the batch counts as not received.

        Raises:
            ProtocolError: `changes` do not belong to the last batch, or were already confirmed or undone.
        """
        self._loader.unload(self._take_plan(changes).dialogs)

    def flush(self, *, now: int) -> int:
        """Writes changed transmission objects of idle dialogs to the work table (P32), and frees these dialogs; returns their number."""
        if self._plan is not None:
            return 0
        idle = self._cache.find_idle(self._clock.monotonic(now))
        self._loader.unload(idle)
        self._cache.evict(idle)
        return len(idle)

    def notify_queued(self, keys: Iterable[EndpointKey]) -> None:
        """Records that endpoints have committed messages to send.

        Call this for all such endpoints after a restart, and again within `EVICT_HELD_AFTER` while their next hop is closed.
        """
        keys = list(keys)
        for dialog in [self._cache.loaded[key] for key in keys if key in self._cache.loaded]:
            dialog.is_drained, dialog.has_new_messages = False, True
        self._cache.mark_keys_ready(keys, self._clock.latest)

    def assign(self, key: EndpointKey, next_hop: Hashable) -> None:
        """Assigns an endpoint to a next hop (None: unknown), so that the endpoint sends nothing while the next hop is closed."""
        self._cache.ready.assign(key, next_hop)

    def next_hop_of(self, key: EndpointKey) -> Hashable:
        """Returns the next hop of an endpoint; None if the next hop is unknown."""
        return self._cache.ready.next_hop_of(key)

    def retransmit(self, keys: Iterable[EndpointKey]) -> None:
        """Records that the endpoints' fragments in flight were lost, so that they are sent again immediately (P17)."""
        for key in keys:
            dialog = self._cache.loaded.get(key)
            if dialog is not None and dialog.transmission.flights:
                dialog.transmission.expire_all()
                self._cache.mark_ready(dialog)

    def reload(self, keys: Iterable[EndpointKey]) -> None:
        """Rereads the rows of endpoints, and resends their fragments in flight immediately, because the next hop may have changed.

        Acknowledgements of the earlier transmissions still count.
        """
        keys = list(keys)
        self.forget(self._cache.reload(keys))
        self.retransmit(keys)

    def is_loaded(self, key: EndpointKey) -> bool:
        """Returns whether an endpoint is in memory."""
        return key in self._cache.loaded

    def take_newly_dirty(self) -> int:
        """Returns how many transmission objects have become dirty since the last call, for the first time since they were loaded (P32)."""
        return self._cache.take_newly_dirty()

    def forget(self, keys: Iterable[EndpointKey]) -> None:
        """Removes deleted endpoints, such as after END CONVERSATION WITH CLEANUP."""
        gone = self._cache.remove(keys)
        self._loader.unload(gone)
        for dialog in gone:
            self._sender.abandon(dialog)

    def _open(self, table: pa.Table, peer: bytes | None, session_keys: SessionKeys, now: int) -> OpenedBatch:
        """Verifies and decrypts the rows that cannot take the fast path."""
        rows = table_to_rows(table)
        known = self._cache.load({(row.conversation_id, not row.is_initiator): None for row in rows})
        return RowOpener(
            known, session_keys=session_keys, integrity=self._settings.integrity, peer=peer, now=now, log=self._log
        ).open(rows)

    def _take_plan(self, changes: BatchChanges) -> ReceivePlan:
        plan = self._plan
        if plan is None or plan.changes is not changes:
            raise ProtocolError(
                "expected the changes of the last batch; these are older, or were already confirmed or undone"
            )
        self._plan = None
        return plan

    def _acknowledge(
        self, dialog: Dialog, acknowledgements: Sequence[tuple[int, list[AckRange]]], monotonic_now: int
    ) -> None:
        for acked, runs in acknowledgements:
            self._sender.acknowledge(dialog, acked, runs, monotonic_now)
        dialog.transmission.last_used = monotonic_now
        if not dialog.is_drained or dialog.transmission.has_immediate_retransmission:
            self._cache.mark_ready(dialog)

    def _schedule_acknowledgements(self, received: ReceivedBatch, monotonic_now: int) -> None:
        """Schedules the acknowledgements of committed messages (P15, P18).

        `data_to_send` makes these messages durable before it returns the acknowledgements (P16).
        """
        settings = self._settings
        for key, owed in received.due_acknowledgements.items():
            dialog = self._cache.loaded.get(key)
            if dialog is None:
                continue
            incoming = dialog.incoming
            reached, early = (
                (received.receive_sequences.get(key, 0), b"")
                if incoming is None
                else (incoming.next, pack_ack_ranges(incoming.ranges.to_ack_ranges()))
            )
            dialog.ack = (reached - 1 if reached else None, early)
            dialog.unacked_fragments += owed.fragments
            dialog.unacked_bytes += owed.bytes
            is_immediate = owed.is_immediate or dialog.must_ack_now(settings)
            due = monotonic_now if is_immediate else monotonic_now + settings.acknowledgement_wait
            if dialog.ack_due is None or due < dialog.ack_due:
                dialog.ack_due = due
                self._cache.schedule(key, due)
            dialog.transmission.last_used = monotonic_now
