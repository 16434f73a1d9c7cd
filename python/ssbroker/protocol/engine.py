"""The dialog protocol engine: all networked dialogs of one database, without I/O."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from ssbroker.exceptions import OptionError, ProtocolError
from ssbroker.protocol.config import SEQUENCE_DISTANCE_MAX, Backoff, ProtocolSettings
from ssbroker.protocol.dialog import Dialog, Flight, dialog_of, pack_transmission, unpack_transmission
from ssbroker.protocol.encoder import Encoder
from ssbroker.protocol.envelope import ENVELOPE, AckRange, pack_ack_ranges, table_to_rows
from ssbroker.protocol.events import EventLog
from ssbroker.protocol.reassembly import Assembler, DirectionLoader
from ssbroker.protocol.receiver import (
    BatchReceiver,
    ErrorNotice,
    FastInboundFinder,
    ReceivedBatch,
    ReceivePlan,
    ReceivePlanner,
    RowOpener,
    tell_acknowledgements,
)
from ssbroker.protocol.sender import Sender, SendTurn, TurnPacing
from ssbroker.protocol.storage import BatchChanges, DialogStorage, Key, SessionKeys

IDLE: Final = 10_000_000
"""After how many microseconds without a change an endpoint is put aside."""
_USUAL_PRIORITY: Final = 5


class DialogCache:
    """The endpoints that are in memory, whose turn it is, and when something is due.

    Args:
        ledger: Where their rows and the work table are.
        honor_priority: Whether those with a higher priority come first (B19).
    """

    __slots__ = (
        "_held",
        "_honor_priority",
        "_ledger",
        "_marked",
        "_outdated",
        "_ready",
        "_timers",
        "_unmarked",
        "_unread",
        "known",
    )

    def __init__(self, ledger: DialogStorage, *, honor_priority: bool) -> None:
        self._ledger = ledger
        self._honor_priority = honor_priority
        self._ready: dict[int, dict[Key, None]] = {}
        self._timers: list[tuple[int, bytes, bool]] = []
        # Those that were told of and are to be read in.
        self._unread: dict[Key, None] = {}
        # Whether they became ready since they are held.
        self._held: dict[Key, bool] = {}
        # Those that were forgotten: what the work table has of them is of a time before.
        self._outdated: set[Key] = set()
        # Those whose transmission objects nobody has seen dirty since they came into memory, and how many were seen that nobody has taken.
        self._unmarked: set[Key] = set()
        self._marked = 0
        self.known: dict[Key, Dialog] = {}

    def load(self, keys: Iterable[Key]) -> dict[Key, Dialog]:
        """Endpoints by key, read in where they are not in memory; what the ledger does not have is left out."""
        keys = list(keys)
        missing = [key for key in keys if key not in self.known]
        if missing:
            aside = self._ledger.load_transmissions(missing)
            for key, endpoint in zip(missing, self._ledger.endpoints(missing), strict=True):
                if endpoint is None:
                    self._outdated.discard(key)
                else:
                    data = None if key in self._outdated else aside.get(key)
                    self.take_in(dialog_of(endpoint, None if data is None else unpack_transmission(data)))
        known = self.known
        return {key: known[key] for key in keys if key in known}

    def take_in(self, dialog: Dialog) -> None:
        """Has an endpoint in memory from now on."""
        self.known[dialog.key] = dialog
        self._unmarked.add(dialog.key)

    def take_marked(self) -> int:
        """How many transmission objects became dirty since the last call (fact 170): changed for the first time since they came into memory."""
        self._count([self.known[key] for key in self._unmarked])
        marked, self._marked = self._marked, 0
        return marked

    def is_ready(self, dialog: Dialog) -> None:
        """Notes that a dialog may have something to send."""
        if dialog.key in self._held:
            self._held[dialog.key] = True
            return
        priority = dialog.endpoint.priority if self._honor_priority else _USUAL_PRIORITY
        self._ready.setdefault(priority, {})[dialog.key] = None

    def are_ready(self, dialogs: Iterable[Dialog]) -> None:
        """Notes that dialogs may have something to send."""
        for dialog in dialogs:
            self.is_ready(dialog)

    def are_told(self, keys: Iterable[Key]) -> None:
        """Notes that endpoints may have something to send, in memory or not: those that are not are read in when turns are given."""
        for key in keys:
            if key in self.known:
                self.is_ready(self.known[key])
            else:
                self._unread[key] = None

    def take_ready(self) -> Iterator[Dialog]:
        """Dialogs in turn, the highest priority first; each is taken off."""
        if self._unread:
            self.are_ready(self.load(self._unread).values())  # where that fails, they are read in the next time
            self._unread.clear()
        for priority in sorted(self._ready, reverse=True):
            waiting = self._ready[priority]
            while waiting:
                key = next(iter(waiting))
                dialog = self.known.get(key) or self.load([key]).get(key)  # where that fails, it is still its turn
                del waiting[key]
                if dialog is not None:
                    yield dialog

    def put_back(self, turns: Iterable[tuple[Dialog, list[Flight]]], owing: Iterable[Dialog], moment: int) -> None:
        """Has those whose turn failed, since something could not be read, have it again.

        Args:
            turns: The dialogs, and what each was to send again.
            owing: Those that were to acknowledge.
            moment: When that was.
        """
        for dialog, lost in turns:
            dialog.transmission.flights += lost
            self.is_ready(dialog)
        for dialog in owing:
            self.wake(dialog.key, moment)

    def hold(self, keys: Iterable[Key]) -> None:
        """Has endpoints send nothing."""
        for key in keys:
            if key not in self._held:
                found = [waiting for waiting in self._ready.values() if key in waiting]
                for waiting in found:
                    del waiting[key]
                self._held[key] = bool(found)

    def is_held(self, dialog: Dialog) -> bool:
        """Whether a dialog sends nothing."""
        return dialog.key in self._held

    def release(self, keys: Iterable[Key]) -> list[Dialog]:
        """Has endpoints send again; those of them that are in memory."""
        was_ready = {key: self._held.pop(key) for key in keys if key in self._held}
        self.are_told([key for key, ready in was_ready.items() if ready])
        return [self.known[key] for key in was_ready if key in self.known]

    @property
    def has_ready(self) -> bool:
        """Whether a dialog may have something to send."""
        return bool(self._unread) or any(self._ready.values())

    def wake(self, key: Key, due: int) -> None:
        """Has an endpoint looked at when the moment has come."""
        heapq.heappush(self._timers, (due, *key))

    @property
    def next_due(self) -> int | None:
        """When the next one is looked at; what has been settled since is forgotten."""
        while self._timers:
            due, conversation_id, is_initiator = self._timers[0]
            dialog = self.known.get((conversation_id, is_initiator))
            if dialog is None or dialog.is_due(due):
                return due
            heapq.heappop(self._timers)
        return None

    def due(self, moment: int) -> list[Dialog]:
        """The dialogs whose moment has come."""
        keys: dict[Key, None] = {}
        while self._timers and self._timers[0][0] <= moment:
            _, conversation_id, is_initiator = heapq.heappop(self._timers)
            keys[conversation_id, is_initiator] = None
        try:
            return list(self.load(keys).values())
        except BaseException:
            for key in keys:
                self.wake(key, moment)
            raise

    def idle(self, moment: int) -> list[Dialog]:
        """The dialogs that nothing has happened to lately, and that owe nothing."""
        ready = {key for waiting in self._ready.values() for key in waiting}
        return [
            dialog
            for key, dialog in self.known.items()
            if dialog.transmission.used + IDLE <= moment
            and dialog.ack_due is None
            and key not in ready
            and not self._held.get(key)
        ]

    def put_aside(self, dialogs: Sequence[Dialog]) -> None:
        """Writes what has changed of dialogs to the work table, all at once, and frees their memory."""
        changed = {
            dialog.key: pack_transmission(dialog.transmission)
            for dialog in dialogs
            if dialog.transmission.is_dirty and dialog.is_known
        }
        if changed:
            self._ledger.save_transmissions(changed)
            self._outdated.difference_update(changed)
        self._count(dialogs)
        for dialog in dialogs:
            del self.known[dialog.key]
            self._unmarked.discard(dialog.key)

    def forget(self, keys: Iterable[Key]) -> list[Dialog]:
        """Drops endpoints that are no more."""
        gone = [self.known.pop(key) for key in keys if key in self.known]
        self._count(gone)
        for dialog in gone:
            self._unmarked.discard(dialog.key)
            for waiting in self._ready.values():
                waiting.pop(dialog.key, None)
            if dialog.key in self._held:
                self._held[dialog.key] = False
            self._outdated.add(dialog.key)
        return gone

    def _count(self, dialogs: Iterable[Dialog]) -> None:
        for dialog in dialogs:
            if dialog.transmission.is_dirty and dialog.key in self._unmarked:
                self._unmarked.remove(dialog.key)
                self._marked += 1


class Steering:
    """The methods of the machine by which its owner says whose turn may come, and looks at what is in memory."""

    _residents: DialogCache

    def notify_queued(self, keys: Iterable[Key]) -> None:
        """Tells that endpoints have messages in their transmission queues, committed.

        Args:
            keys: The endpoints; after a restart, all that have any.
        """
        keys = list(keys)
        for dialog in [self._residents.known[key] for key in keys if key in self._residents.known]:
            dialog.is_drained, dialog.is_told = False, True
        self._residents.are_told(keys)

    def hold(self, keys: Iterable[Key]) -> None:
        """Has endpoints send nothing until `release`: where they send to takes no more for now (N12).

        Args:
            keys: The endpoints, in memory or not.
        """
        self._residents.hold(keys)

    def release(self, keys: Iterable[Key]) -> None:
        """Has endpoints send again.

        Args:
            keys: The endpoints; those that were not held stay as they are.
        """
        for dialog in self._residents.release(keys):
            due = [dialog.ack_due, dialog.transmission.next_due()]
            for moment in due:
                if moment is not None:
                    self._residents.wake(dialog.key, moment)

    def retransmit(self, keys: Iterable[Key]) -> None:
        """Tells that what endpoints have under way did not arrive: it goes again at once, not after its wait (P17).

        Args:
            keys: The endpoints.
        """
        for key in keys:
            dialog = self._residents.known.get(key)
            if dialog is not None and dialog.transmission.flights:
                dialog.transmission.hasten()
                self._residents.is_ready(dialog)

    def is_loaded(self, key: Key) -> bool:
        """Whether an endpoint is in memory.

        Args:
            key: The endpoint.

        Returns:
            Whether it is.
        """
        return key in self._residents.known

    def take_newly_dirty(self) -> int:
        """How many transmission objects became dirty since the last call: changed for the first time since they were made or read back (P32).

        Returns:
            The number.
        """
        return self._residents.take_marked()


class MonotonicClock:
    """Counts on where the wall clock is set back, so that nobody waits an hour longer for a retry.

    Examples:
        >>> clock = MonotonicClock()
        >>> clock.moment(1000), clock.moment(400), clock.moment(500), clock.wall(1100)
        (1000, 1000, 1100, 500)
    """

    __slots__ = ("_last", "_set_back")

    def __init__(self) -> None:
        self._last: int | None = None
        self._set_back = 0

    def moment(self, now: int) -> int:
        """The steady moment of a reading of the wall clock."""
        if self._last is not None and now < self._last:
            self._set_back += self._last - now
        self._last = now
        return now + self._set_back

    def wall(self, moment: int) -> int:
        """What the wall clock shows at a steady moment, unless it is set again."""
        return moment - self._set_back


_NO_KEYS: Final[SessionKeys] = MappingProxyType({})


class DialogEngine(Steering):
    """The dialogs of an instance with others: what they send, and what arrives for them.

    Nothing in it waits, writes or draws a number. It is used by one thread at a time.

    Args:
        ledger: The durable state.
        random: Numbers from 0 to below 1 for the jitter of waits (P17), such as `random.Random(seed).random`.
        settings: Windows, limits and what is demanded of secured dialogs.
        log: Where events are told.
    """

    def __init__(
        self,
        storage: DialogStorage,
        *,
        random: Callable[[], float],
        settings: ProtocolSettings | None = None,
        log: EventLog | None = None,
    ) -> None:
        self._ledger = storage
        self._settings = settings = settings or ProtocolSettings()
        self._log = log or EventLog()
        self._backoff = Backoff(random)
        self._loading = DirectionLoader(storage, most=settings.max_pending_bytes // 8)
        assembly = Assembler(
            storage,
            max_pending_bytes=settings.max_pending_bytes,
            max_message_bytes=settings.max_message_bytes,
            max_sequence_distance=SEQUENCE_DISTANCE_MAX,
        )
        self._plain = FastInboundFinder(storage, max_message_bytes=settings.max_message_bytes)
        self._sending = Sender(storage, settings, self._backoff)
        self._planning = ReceivePlanner(storage, BatchReceiver(storage, self._loading, assembly, self._log), self._log)
        self._outbound = Encoder(settings.integrity)
        self._residents = DialogCache(storage, honor_priority=settings.honor_priority)
        self._notices: list[ErrorNotice] = []
        self._plan: ReceivePlan | None = None
        self._clock = MonotonicClock()
        self._pace = TurnPacing()

    @property
    def log(self) -> EventLog:
        """Where events are told."""
        return self._log

    def data_to_send(self, *, now: int, max_rows: int = 4096, max_bytes: int = 64 << 20) -> pa.Table | None:
        """What is due: fragments, acknowledgements, errors of the broker.

        Args:
            now: The moment, in microseconds since 1970.
            max_rows: About how many fragments; what is left comes at the next call.
            max_bytes: About how many bytes of them, and of the messages that are read for them.

        Returns:
            Rows of `envelope.ENVELOPE`; None where nothing is due.
        """
        moment = self._clock.moment(now)
        self._residents.are_ready(self._sending.large.let_go(moment))
        owing = [dialog for dialog in self._residents.due(moment) if self._is_due(dialog, moment)]
        tables: list[pa.Table] = []
        turns: list[SendTurn] = []
        count, pace = 0, self._pace
        pace.begin()
        try:
            while count < max_rows and pace.bytes < max_bytes and self._turns(turns, moment, now, pace.number):
                tables.append(self._outbound.fragments(cut := self._sending.cut(turns, moment)))
                count += tables[-1].num_rows
                pace.took(len(turns), max(cut.read_bytes, tables[-1]["message_body"].nbytes))
                self._residents.are_ready(turn.dialog for turn in turns if turn.is_full)
                for turn in turns:
                    for due in turn.dues:
                        self._residents.wake(turn.dialog.key, due)
                turns.clear()
        except BaseException:
            self._residents.put_back([(turn.dialog, turn.lost) for turn in turns], owing, moment)
            raise
        if owing or self._notices:
            tables.append(self._outbound.answers(owing, self._notices))
            self._notices.clear()
        tables = [table for table in tables if table.num_rows]
        if not tables:
            return None
        rows = pa.concat_tables(tables)
        tell_acknowledgements(self._log, rows, is_sent=True, now=now)
        return rows

    def _is_due(self, dialog: Dialog, moment: int) -> bool:
        """Whether a dialog has to acknowledge now; where something is to be sent again, it gets its turn."""
        if any(flight.due <= moment for flight in dialog.transmission.flights):
            self._residents.is_ready(dialog)
        return dialog.ack_due is not None and dialog.ack_due <= moment and not self._residents.is_held(dialog)

    def _turns(self, turns: list[SendTurn], moment: int, now: int, most: int) -> bool:
        for dialog in self._residents.take_ready():
            if (lifetime := dialog.endpoint.lifetime) is not None and lifetime <= now:
                self._sending.abandon(dialog)
                continue
            turn = self._sending.turn(dialog, moment)
            if turn.lost or turn.room or turn.is_asking:
                turns.append(turn)
            if len(turns) == most:
                break
        return bool(turns)

    def next_timeout(self) -> int | None:
        """The moment at which there is something to send again, if nothing happens before.

        Returns:
            The moment, in microseconds since 1970, or 0 for at once, if anything; None for never.
        """
        if self._notices or self._residents.has_ready:
            return 0
        dues = [due for due in (self._residents.next_due, self._sending.large.due) if due is not None]
        return self._clock.wall(min(dues)) if dues else None

    def receive(
        self,
        table: pa.Table,
        *,
        now: int,
        peer: bytes | None = None,
        session_keys: SessionKeys = _NO_KEYS,
    ) -> BatchChanges:
        """Takes a batch from the network.

        Args:
            table: Rows of `envelope.ENVELOPE`.
            now: The moment.
            peer: Who the far side is, as its certificate says (P25).
            session_keys: Keys of conversations that begin with this batch, or are answered for the first time, by conversation id.

        Returns:
            What has to be written, in one transaction. `confirm` or `undo` has to follow before the next batch.

        Raises:
            ProtocolError: The effects of the last batch were neither confirmed nor undone.
            OptionError: The table has other columns.
        """
        if self._plan is not None:
            raise ProtocolError("the effects of the batch before have to be confirmed or undone first")
        if not table.schema.equals(ENVELOPE):
            raise OptionError("table: expected the columns of ssbroker.protocol.envelope.ENVELOPE")
        tell_acknowledgements(self._log, table, is_sent=False, now=now)
        plain = self._plain.take(table, self._residents.known, peer=peer, session_keys=session_keys, now=now)
        rows = table_to_rows(plain.rest)
        known = self._residents.load({(row.conversation_id, not row.is_initiator): None for row in rows})
        opened = RowOpener(
            known, session_keys=session_keys, integrity=self._settings.integrity, peer=peer, now=now, log=self._log
        ).open(rows)
        try:
            self._plan = self._planning.plan(opened, plain, self._residents.known, now)
        except BaseException:
            self._loading.unload([*plain.dialogs, *opened.dialogs])  # some may count as received by now
            raise
        return self._plan.changes

    def confirm(self, changes: BatchChanges, *, now: int) -> None:
        """Tells that the effects of the last batch have been committed: acknowledgements may go.

        Args:
            changes: What `receive` gave.
            now: The moment.

        Raises:
            ProtocolError: They are not those of the last batch, or were settled already.
        """
        plan = self._settled(changes)
        moment = self._clock.moment(now)
        known = self._residents.known
        for endpoint in changes.created:
            dialog = plan.opened.created[endpoint.key]
            dialog.is_known = True
            self._residents.take_in(dialog)
        for endpoint in changes.bound:
            known[endpoint.key].bind(endpoint)
            self._residents.is_ready(known[endpoint.key])
        for key, acknowledgements in plan.acknowledged.items():
            self._acknowledge(known[key], acknowledgements, moment)
        for key in (*changes.errors, *changes.lost_by_peer):
            self._sending.abandon(known[key])
        self._notices += [*plan.opened.notices, *plan.received.notices]
        self._loading.unload(plan.received.unloaded)
        self._owe(plan.received, moment)

    def undo(self, changes: BatchChanges) -> None:
        """Tells that the effects of the last batch were rolled back: nothing has arrived.

        Args:
            changes: What `receive` gave.

        Raises:
            ProtocolError: They are not those of the last batch, or were settled already.
        """
        self._loading.unload(self._settled(changes).dialogs)

    def flush(self, *, now: int) -> int:
        """Puts aside what has been idle: changed objects go to the work table in one batch, and all leave memory (P32).

        Args:
            now: The moment.

        Returns:
            How many left.
        """
        if self._plan is not None:
            return 0
        idle = self._residents.idle(self._clock.moment(now))
        self._loading.unload(idle)
        self._residents.put_aside(idle)
        return len(idle)

    def forget(self, keys: Iterable[Key]) -> None:
        """Tells that endpoints are no more, such as after END CONVERSATION WITH CLEANUP.

        Args:
            keys: The endpoints.
        """
        gone = self._residents.forget(keys)
        self._loading.unload(gone)
        for dialog in gone:
            self._sending.abandon(dialog)

    def _settled(self, changes: BatchChanges) -> ReceivePlan:
        plan = self._plan
        if plan is None or plan.changes is not changes:
            raise ProtocolError("these are not the effects of the last batch, or they were settled already")
        self._plan = None
        return plan

    def _acknowledge(self, dialog: Dialog, acknowledgements: Sequence[tuple[int, list[AckRange]]], moment: int) -> None:
        for acked, runs in acknowledgements:
            dialog.transmission.acknowledge(acked, runs)
        dialog.transmission.used = moment
        if not dialog.is_drained or dialog.transmission.is_mended:
            self._residents.is_ready(dialog)

    def _owe(self, received: ReceivedBatch, moment: int) -> None:
        """Notes the acknowledgements that are due, of what is durable now (P15, P16, P18)."""
        settings = self._settings
        for key, owed in received.owed.items():
            dialog = self._residents.known.get(key)
            if dialog is None:
                continue
            incoming = dialog.incoming
            reached, early = (
                (received.received.get(key, 0), b"")
                if incoming is None
                else (incoming.next, pack_ack_ranges(incoming.runs.told()))
            )
            dialog.ack = (reached - 1 if reached else None, early)
            dialog.ack_owed += owed.fragments
            dialog.ack_owed_bytes += owed.bytes
            at_once = owed.at_once or dialog.is_pressed(settings)
            due = moment if at_once else moment + settings.acknowledgement_wait
            if dialog.ack_due is None or due < dialog.ack_due:
                dialog.ack_due = due
                self._residents.wake(key, due)
            dialog.transmission.used = moment
