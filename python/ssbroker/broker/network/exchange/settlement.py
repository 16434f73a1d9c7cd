"""Writes what a batch from the network has come to, the way in which it would be written for local delivery (N3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker.dialogs.arriving import Arrival, Message
from ssbroker.broker.dialogs.breaking import break_off_forgotten
from ssbroker.broker.dialogs.conversation import Conversation
from ssbroker.broker.dialogs.error_body import Failure
from ssbroker.broker.dialogs.inbound import begin_here, target_of
from ssbroker.broker.dialogs.outbound import broken_by_broker, settle
from ssbroker.broker.dialogs.plain import Placed, put_plain, put_runs
from ssbroker.broker.dialogs.queueing import queue_of
from ssbroker.broker.dialogs.status import DELIVERED
from ssbroker.broker.dialogs.taking_off import take_off
from ssbroker.broker.network.exchange.admission import envelope_of
from ssbroker.broker.work.work import Work
from ssbroker.protocol.columns import listed
from ssbroker.protocol.ledger import Effects, Key
from ssbroker.protocol.ledger import Endpoint as Planned
from ssbroker.protocol.message_run import MessageRun
from ssbroker.store import endpoints, fragments, remote
from ssbroker.store.endpoints import Endpoint


class OvertakenError(Exception):
    """What the plan was made with has changed meanwhile: nothing may be written.

    Attributes:
        keys: The endpoints that are others now.
    """

    def __init__(self, keys: tuple[Key, ...]) -> None:
        super().__init__(keys)
        self.keys = keys


@dataclass(frozen=True, slots=True)
class _Stored:
    """A fragment that is to be kept, for which endpoint."""

    key: Key
    number: int
    columns: tuple[Any, ...]


class Settlement:
    """Effects on their way into the file; used once.

    Args:
        work: A transaction of the database.
        effects: What a batch has come to.

    Raises:
        OvertakenError: They do not fit the endpoints as these are now.
    """

    def __init__(self, work: Work, effects: Effects) -> None:
        self._work: Final = work
        self._effects: Final = effects
        self._created: Final = {endpoint.key: endpoint for endpoint in effects.created}
        self._runs: Final = _placed(effects.runs)
        self._messages: Final = _messages(effects.messages.slice(sum(run.rows for run in effects.runs)))
        self._stored: Final = list(_stored(effects))
        keys = self._keys()
        self._rows: Final = remote.find(work.connection, keys)
        self._check(keys)

    def write(self) -> None:
        """Writes all of it.

        Raises:
            OvertakenError: A message cannot be taken any more; the transaction is to be rolled back.
        """
        effects = self._effects
        for planned in effects.created:
            self._create(planned)
        for planned in effects.bound:
            self._bind(planned)
        taken = self._take_plain()
        for key, messages in self._messages.items():
            if self._rows[key].endpoint_id not in taken:
                self._take(key, messages)
        self._keep(taken)
        self._acknowledge()
        self._break_off()

    def _keys(self) -> set[Key]:
        effects = self._effects
        keys = {stored.key for stored in self._stored}
        keys.update(endpoint.key for endpoint in (*effects.created, *effects.bound))
        keys.update(key for key, _ in effects.dropped)
        keys.update(self._messages, self._runs, effects.received, effects.acknowledged, effects.errors, effects.refused)
        keys.update(effects.forgotten)
        return keys

    def _check(self, keys: set[Key]) -> None:
        wrong = tuple(key for key in keys if not self._fits(key))
        if wrong:
            raise OvertakenError(wrong)

    def _fits(self, key: Key) -> bool:
        """Whether an endpoint is as the plan has it, as far as that goes into what is written."""
        row = self._rows.get(key)
        if (row is None) != (key in self._created):
            return False
        expected = 0 if row is None else row.receive_sequence
        if key in self._runs and self._runs[key].run.first != expected:
            return False
        messages = self._messages.get(key)
        if messages is not None:
            first = messages[0]
            if first.message_sequence_number != expected and not first.is_conversation_error:
                return False
        return self._effects.received.get(key, expected) >= expected

    def _create(self, planned: Planned) -> None:
        messages = self._messages.get(planned.key, ())
        if messages and messages[0].is_conversation_error:
            # The end of a conversation that nobody here has heard of: there is nothing to write, whenever it comes again.
            del self._messages[planned.key]
            return
        envelope = envelope_of(planned)
        found = target_of(self._work.objects, envelope)
        if isinstance(found, Arrival):
            raise OvertakenError((planned.key,))
        row = begin_here(self._work, envelope, *found, is_whole=bool(messages))
        self._note(row, planned)

    def _bind(self, planned: Planned) -> None:
        row = self._rows[planned.key]
        far = planned.far_broker_instance
        if far is None or (row.is_bound and row.far_broker_instance != far):
            raise OvertakenError((planned.key,))
        endpoints.bind(self._work.connection, row.endpoint_id, far_broker_instance=far)
        self._note(row._replace(is_bound=1, far_broker_instance=far, transmission_status=DELIVERED), planned)

    def _note(self, row: Endpoint, planned: Planned) -> None:
        row = row._replace(
            is_remote=1,
            far_peer=planned.far_peer,
            session_key=planned.session_key,
            far_session_key=planned.far_session_key,
            far_certificate=planned.far_certificate,
        )
        remote.note(self._work.connection, row)
        self._rows[planned.key] = row

    def _take_plain(self) -> dict[int, int]:
        """Takes what nothing has to be decided about; the number of the next message of each endpoint that it took all of."""
        keys = [*self._runs, *self._messages]
        undisturbed = remote.undisturbed(self._work.connection, [self._rows[key].endpoint_id for key in keys])
        runs = [(self._rows[key], placed) for key, placed in self._runs.items()]
        taken = put_runs(
            self._work, self._effects.messages, [each for each in runs if each[0].endpoint_id in undisturbed]
        )
        for row, placed in runs:
            if row.endpoint_id not in taken:
                self._messages.update(_messages(self._effects.messages.slice(placed.start, placed.run.rows)))
        rows = [(self._rows[key], messages) for key, messages in self._messages.items()]
        return taken | put_plain(self._work, [each for each in rows if each[0].endpoint_id in undisturbed])

    def _take(self, key: Key, messages: list[Message]) -> None:
        row = self._rows[key]
        arrival = Conversation(self._work, row, queue_of(self._work, row)).take(messages)
        if arrival.error is not None:
            raise OvertakenError((key,))

    def _keep(self, taken: dict[int, int]) -> None:
        """Fragments come and go; what the state of an endpoint did not take counts as taken, since it never will be."""
        connection, now = self._work.connection, self._work.now()
        ids = {key: row.endpoint_id for key, row in self._rows.items()}
        rows = [
            (ids[stored.key], stored.number, *stored.columns[:-1], now, stored.columns[-1])
            for stored in self._stored
            if stored.key in ids and self._rows[stored.key].state not in fragments.OVER
        ]
        fragments.add(connection, rows)
        self._work.effects.fragments += len(rows)
        for key, number in self._effects.dropped:
            fragments.remove(connection, ids[key], number)
        received = {ids[key]: number for key, number in self._effects.received.items() if key in ids}
        reached = taken | received
        remote.raise_taken(connection, [(number, endpoint_id) for endpoint_id, number in reached.items()])
        if received and fragments.are_kept(connection):
            fragments.remove_below(connection, received.items())

    def _acknowledge(self) -> None:
        """What the far sides have leaves the transmission queue; whoever has waited for that, to be bound or to close, is looked at by itself."""
        plain: list[tuple[int, int]] = []
        for key, acked in self._effects.acknowledged.items():
            row = self._rows[key]
            far = row.far_broker_instance
            if far is None:
                raise OvertakenError((key,))
            if row.is_bound and row.end_dialog_sequence is None and not self._comes(key):
                plain.append((row.endpoint_id, acked + 1))
            else:
                settle(self._work, row.endpoint_id, Arrival(acked + 1), broker_instance=far)
            if row.transmission_status != DELIVERED:
                endpoints.set_status(self._work.connection, row.endpoint_id, DELIVERED)
        take_off(self._work, plain)

    def _comes(self, key: Key) -> bool:
        """Whether a message comes for an endpoint."""
        return key in self._messages or key in self._runs

    def _break_off(self) -> None:
        """Conversations that cannot go on end with an error."""
        effects = self._effects
        for key, body in effects.errors.items():
            row = self._row_now(key)
            if row is not None:
                broken_by_broker(self._work, row, body)
        for key in effects.forgotten:
            row = self._row_now(key)
            if row is not None:
                break_off_forgotten(self._work, row)
        for key, why in effects.refused.items():
            row = self._row_now(key)
            if row is not None and row.state not in fragments.OVER:  # else its application has been told
                Conversation(self._work, row, queue_of(self._work, row)).refuse(Failure(why.code, why.description))

    def _row_now(self, key: Key) -> Endpoint | None:
        """An endpoint after what was written of it so far; None where that was its end."""
        return endpoints.by_id(self._work.connection, self._rows[key].endpoint_id)


def _placed(runs: Iterable[MessageRun]) -> dict[Key, Placed]:
    """Runs, with the rows that are theirs."""
    found: dict[Key, Placed] = {}
    start = 0
    for run in runs:
        found[run.key] = Placed(run, start)
        start += run.rows
    return found


def _messages(table: pa.Table) -> dict[Key, list[Message]]:
    """The messages of each endpoint, in order."""
    found: dict[Key, list[Message]] = {}
    columns: list[list[Any]] = [listed(column) for column in table.columns]
    for conversation_id, side, number, name, _, is_end, is_error, body in zip(*columns, strict=True):
        message = Message(number, name, body or None, is_conversation_error=is_error, is_end_of_dialog=is_end)
        found.setdefault((conversation_id, not side), []).append(message)
    return found


def _stored(effects: Effects) -> Iterator[_Stored]:
    columns: list[list[Any]] = [listed(column) for column in effects.stored.columns]
    for conversation_id, side, number, fragment, count, body, *digests, name, message_id, is_end, is_error in zip(
        *columns, strict=True
    ):
        kept = (fragment, count, *digests, name, message_id, is_end, is_error, body)
        yield _Stored((conversation_id, not side), number, kept)
