"""The machine: dialogs that go over the network, of one instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from ssbroker.exceptions import OptionError, ProtocolError
from ssbroker.protocol.acknowledgement import Run, packed
from ssbroker.protocol.assembly import Assembly
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.ledger import Effects, Key, Ledger, SessionKeys
from ssbroker.protocol.loading import Loading
from ssbroker.protocol.opening import Notice, Opener
from ssbroker.protocol.outbound import Outbound
from ssbroker.protocol.pace import Pace
from ssbroker.protocol.plain_arrivals import PlainTaking
from ssbroker.protocol.planning import Plan, Planning
from ssbroker.protocol.receiving import Received, Receiving
from ssbroker.protocol.residents import Residents
from ssbroker.protocol.retry import Backoff
from ssbroker.protocol.rows import rows_of
from ssbroker.protocol.sending import Sending
from ssbroker.protocol.settings import SEQUENCE_DISTANCE_MAX, Settings
from ssbroker.protocol.steady import SteadyClock
from ssbroker.protocol.steering import Steering
from ssbroker.protocol.telling import tell_acknowledgements
from ssbroker.protocol.turn import Turn

_NO_KEYS: Final[SessionKeys] = MappingProxyType({})


class Dialogs(Steering):
    """The dialogs of an instance with others: what they send, and what arrives for them.

    Nothing in it waits, writes or draws a number. It is used by one thread at a time.

    Args:
        ledger: The durable state.
        roll: Numbers from 0 to below 1 for the jitter of waits (P17), such as `random.Random(seed).random`.
        settings: Windows, limits and what is demanded of secured dialogs.
        log: Where events are told.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        roll: Callable[[], float],
        settings: Settings | None = None,
        log: EventLog | None = None,
    ) -> None:
        self._ledger = ledger
        self._settings = settings = settings or Settings()
        self._log = log or EventLog()
        self._backoff = Backoff(roll)
        self._loading = Loading(ledger, most=settings.max_pending_bytes // 8)
        assembly = Assembly(
            ledger,
            max_pending_bytes=settings.max_pending_bytes,
            max_message_bytes=settings.max_message_bytes,
            max_sequence_distance=SEQUENCE_DISTANCE_MAX,
        )
        self._plain = PlainTaking(ledger, max_message_bytes=settings.max_message_bytes)
        self._sending = Sending(ledger, settings, self._backoff)
        self._planning = Planning(ledger, Receiving(ledger, self._loading, assembly, self._log), self._log)
        self._outbound = Outbound(settings.integrity)
        self._residents = Residents(ledger, honor_priority=settings.honor_priority)
        self._notices: list[Notice] = []
        self._plan: Plan | None = None
        self._clock = SteadyClock()
        self._pace = Pace()

    @property
    def log(self) -> EventLog:
        """Where events are told."""
        return self._log

    def data_to_send(self, *, now: int, most: int = 4096, most_bytes: int = 64 << 20) -> pa.Table | None:
        """What is due: fragments, acknowledgements, errors of the broker.

        Args:
            now: The moment, in microseconds since 1970.
            most: About how many fragments; what is left comes at the next call.
            most_bytes: About how many bytes of them, and of the messages that are read for them.

        Returns:
            Rows of `envelope.ENVELOPE`; None where nothing is due.
        """
        moment = self._clock.moment(now)
        self._residents.are_ready(self._sending.large.let_go(moment))
        owing = [dialog for dialog in self._residents.due(moment) if self._is_due(dialog, moment)]
        tables: list[pa.Table] = []
        turns: list[Turn] = []
        count, pace = 0, self._pace
        pace.begin()
        try:
            while count < most and pace.bytes < most_bytes and self._turns(turns, moment, now, pace.number):
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

    def _turns(self, turns: list[Turn], moment: int, now: int, most: int) -> bool:
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

    def arrived(
        self,
        table: pa.Table,
        *,
        now: int,
        peer: bytes | None = None,
        session_keys: SessionKeys = _NO_KEYS,
    ) -> Effects:
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
        rows = rows_of(plain.rest)
        known = self._residents.load({(row.conversation_id, not row.is_initiator): None for row in rows})
        opened = Opener(
            known, session_keys=session_keys, integrity=self._settings.integrity, peer=peer, now=now, log=self._log
        ).open(rows)
        try:
            self._plan = self._planning.plan(opened, plain, self._residents.known, now)
        except BaseException:
            self._loading.unload([*plain.dialogs, *opened.dialogs])  # some may count as received by now
            raise
        return self._plan.effects

    def confirm(self, effects: Effects, *, now: int) -> None:
        """Tells that the effects of the last batch have been committed: acknowledgements may go.

        Args:
            effects: What `arrived` gave.
            now: The moment.

        Raises:
            ProtocolError: They are not those of the last batch, or were settled already.
        """
        plan = self._settled(effects)
        moment = self._clock.moment(now)
        known = self._residents.known
        for endpoint in effects.created:
            dialog = plan.opened.created[endpoint.key]
            dialog.is_known = True
            self._residents.take_in(dialog)
        for endpoint in effects.bound:
            known[endpoint.key].bind(endpoint)
            self._residents.is_ready(known[endpoint.key])
        for key, acknowledgements in plan.acknowledged.items():
            self._acknowledge(known[key], acknowledgements, moment)
        for key in (*effects.errors, *effects.forgotten):
            self._sending.abandon(known[key])
        self._notices += [*plan.opened.notices, *plan.received.notices]
        self._loading.unload(plan.received.unloaded)
        self._owe(plan.received, moment)

    def undo(self, effects: Effects) -> None:
        """Tells that the effects of the last batch were rolled back: nothing has arrived.

        Args:
            effects: What `arrived` gave.

        Raises:
            ProtocolError: They are not those of the last batch, or were settled already.
        """
        self._loading.unload(self._settled(effects).dialogs)

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

    def _settled(self, effects: Effects) -> Plan:
        plan = self._plan
        if plan is None or plan.effects is not effects:
            raise ProtocolError("these are not the effects of the last batch, or they were settled already")
        self._plan = None
        return plan

    def _acknowledge(self, dialog: Dialog, acknowledgements: Sequence[tuple[int, list[Run]]], moment: int) -> None:
        for acked, runs in acknowledgements:
            dialog.transmission.acknowledge(acked, runs)
        dialog.transmission.used = moment
        if not dialog.is_drained or dialog.transmission.is_mended:
            self._residents.is_ready(dialog)

    def _owe(self, received: Received, moment: int) -> None:
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
                else (incoming.next, packed(incoming.runs.told()))
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
