"""Writes the changes that a batch of inbound fragments causes, unless the endpoints have changed since the changes were planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker.dialogs.acceptance import find_target, message_header
from ssbroker.broker.dialogs.arrival import (
    EndpointArrival,
    PlacedRun,
    create_target_endpoint,
    enqueue_runs,
)
from ssbroker.broker.dialogs.dialog_lifecycle import end_after_data_loss
from ssbroker.broker.dialogs.endpoint_end import extend_retention
from ssbroker.broker.dialogs.enqueue import delete_acknowledged, queue_of
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage
from ssbroker.broker.dialogs.send import apply_outcome, end_with_broker_error
from ssbroker.broker.dialogs.transmission_status import NO_PROBLEM
from ssbroker.broker.unit_of_work import Work
from ssbroker.protocol.arrow_columns import column_values
from ssbroker.protocol.storage import BatchChanges, DialogEndpoint, EndpointKey
from ssbroker.store import conversation_endpoints, fragments
from ssbroker.store.codes import ENDED_STATES
from ssbroker.store.conversation_endpoints import ConversationEndpoint

_HEADER: Final = ("conversation_id", "is_initiator", "message_sequence_number", "message_type_name")
_FLAGS: Final = ("is_end_of_dialog", "is_conversation_error")


class StalePlanError(Exception):
    """The state on which the plan of a batch was based has changed. Nothing was written; route and receive the batch again.

    Attributes:
        keys: The endpoints that have changed.
        is_database_changed: Whether the database itself has changed (disabled, a mirror, a new broker id), so that
            its dialogs must be created again.
    """

    def __init__(self, keys: tuple[EndpointKey, ...] = (), *, is_database_changed: bool = False) -> None:
        super().__init__(keys, is_database_changed)
        self.keys: Final = keys
        self.is_database_changed: Final = is_database_changed


class InboundWriter:
    """Writes the changes that one batch causes; raises `StalePlanError` if the endpoints have changed since it was planned."""

    def __init__(self, work: Work, changes: BatchChanges) -> None:
        self._work: Final = work
        self._changes: Final = changes
        self._created: Final = {endpoint.key: endpoint for endpoint in changes.created}
        self._arrivals: Final = _arrivals(changes)
        self._stored: Final = list(_stored(changes))
        keys = self._keys()
        self._rows: Final = conversation_endpoints.by_sides(work.connection, keys)
        self._check(keys)

    def write(self) -> None:
        """Writes all changes; after an error the transaction must be rolled back."""
        changes = self._changes
        for planned in changes.created:
            self._create(planned)
        for planned in changes.bound:
            self._bind(planned)
        received = self._enqueue()
        remaining = {key: each for key, each in self._arrivals.items() if self._rows[key].endpoint_id not in received}
        for key, messages in _messages(changes.messages, remaining).items():
            self._deliver(key, messages)
        self._store_fragments(received)
        self._acknowledge()
        self._end_failed()
        extend_retention(self._work, changes.with_duplicates)

    def _keys(self) -> set[EndpointKey]:
        changes = self._changes
        keys = {key for key, _, _ in self._stored}
        keys.update(endpoint.key for endpoint in (*changes.created, *changes.bound))
        keys.update(key for key, _ in changes.dropped)
        keys.update(self._arrivals, changes.received, changes.acknowledged, changes.errors, changes.refusals)
        keys.update(changes.lost_by_peer)
        return keys

    def _check(self, keys: set[EndpointKey]) -> None:
        wrong = tuple(key for key in keys if not self._is_as_planned(key))
        if wrong:
            raise StalePlanError(wrong)

    def _is_as_planned(self, key: EndpointKey) -> bool:
        """Returns whether the properties of an endpoint on which the planned changes depend are unchanged."""
        row = self._rows.get(key)
        if (row is None) != (key in self._created):
            return False
        expected = 0 if row is None else row.receive_sequence
        arrival = self._arrivals.get(key)
        if arrival is not None and arrival.runs[0].first != expected and not arrival.begins_with_error:
            return False
        return self._changes.received.get(key, expected) >= expected

    def _create(self, planned: DialogEndpoint) -> None:
        arrival = self._arrivals.get(planned.key)
        if arrival is not None and arrival.begins_with_error:
            # The end of an unknown conversation: there is nothing to write, however often it arrives.
            del self._arrivals[planned.key]
            return
        header = message_header(planned)
        target = find_target(self._work.objects, header)
        if isinstance(target, DeliveryOutcome):
            raise StalePlanError((planned.key,))
        row = create_target_endpoint(self._work, header, *target, has_first_message=arrival is not None)
        self._set_peer(row, planned)

    def _bind(self, planned: DialogEndpoint) -> None:
        row = self._rows[planned.key]
        far_broker_instance = planned.far_broker_instance
        if far_broker_instance is None or (row.is_bound and row.far_broker_instance != far_broker_instance):
            raise StalePlanError((planned.key,))
        conversation_endpoints.bind(self._work.connection, row.endpoint_id, far_broker_instance=far_broker_instance)
        self._set_peer(
            row._replace(is_bound=1, far_broker_instance=far_broker_instance, transmission_status=NO_PROBLEM), planned
        )

    def _set_peer(self, row: ConversationEndpoint, planned: DialogEndpoint) -> None:
        row = row._replace(
            is_remote=1,
            far_peer=planned.far_peer,
            session_key=planned.session_key,
            far_session_key=planned.far_session_key,
            far_certificate=planned.far_certificate,
        )
        conversation_endpoints.set_peer(self._work.connection, row)
        self._rows[planned.key] = row

    def _enqueue(self) -> dict[int, int]:
        """Enqueues messages that need no decision; returns the next sequence numbers of endpoints whose messages were all enqueued."""
        simple = {key: arrival.runs for key, arrival in self._arrivals.items() if not arrival.has_system_messages}
        ids = [self._rows[key].endpoint_id for key in simple]
        without_early = conversation_endpoints.without_early_messages(self._work.connection, ids)
        arrivals = [(self._rows[key], runs) for key, runs in simple.items()]
        return enqueue_runs(
            self._work, self._changes.messages, [each for each in arrivals if each[0].endpoint_id in without_early]
        )

    def _deliver(self, key: EndpointKey, messages: list[DialogMessage]) -> None:
        row = self._rows[key]
        if EndpointArrival(self._work, row, queue_of(self._work, row)).deliver(messages).error is not None:
            raise StalePlanError((key,))

    def _store_fragments(self, enqueued: dict[int, int]) -> None:
        """Stores and removes fragments; messages that an ended endpoint dropped count as received."""
        connection, now = self._work.connection, self._work.now()
        ids = {key: row.endpoint_id for key, row in self._rows.items()}
        rows = [
            (ids[key], number, *columns, now, body)
            for key, (number, *columns), body in self._stored
            if key in ids and self._rows[key].state not in ENDED_STATES
        ]
        fragments.add(connection, rows)
        self._work.effects.fragments += len(rows)
        for key, number in self._changes.dropped:
            fragments.remove(connection, ids[key], number)
        received = {ids[key]: number for key, number in self._changes.received.items() if key in ids}
        reached = enqueued | received
        conversation_endpoints.raise_receive_sequences(
            connection, [(number, endpoint_id) for endpoint_id, number in reached.items()]
        )
        if received and fragments.has_any(connection):
            fragments.remove_below(connection, received.items())

    def _acknowledge(self) -> None:
        """Removes acknowledged messages; endpoints that an acknowledgement binds or closes are handled one by one."""
        simple: list[tuple[int, int]] = []
        for key, acked in self._changes.acknowledged.items():
            row = self._rows[key]
            far_broker_instance = row.far_broker_instance
            if far_broker_instance is None:
                raise StalePlanError((key,))
            arrival = self._arrivals.get(key)
            is_changed = arrival is not None and (arrival.has_system_messages or arrival.begins_with_error)
            if row.is_bound and row.end_dialog_sequence is None and not is_changed:
                simple.append((row.endpoint_id, acked + 1))
            else:
                apply_outcome(
                    self._work, row.endpoint_id, DeliveryOutcome(acked + 1), broker_instance=far_broker_instance
                )
            if row.transmission_status != NO_PROBLEM:
                conversation_endpoints.set_transmission_status(self._work.connection, row.endpoint_id, NO_PROBLEM)
        delete_acknowledged(self._work, simple)

    def _end_failed(self) -> None:
        """Ends, with an error, the conversations that cannot continue."""
        changes = self._changes
        for key, body in changes.errors.items():
            row = self._reread(key)
            if row is not None:
                end_with_broker_error(self._work, row, body)
        for key in changes.lost_by_peer:
            row = self._reread(key)
            if row is not None:
                end_after_data_loss(self._work, row)
        for key, why in changes.refusals.items():
            row = self._reread(key)
            # An application that has received the EndDialog message needs no error.
            if row is not None and row.state not in ENDED_STATES:
                EndpointArrival(self._work, row, queue_of(self._work, row)).refuse(why)

    def _reread(self, key: EndpointKey) -> ConversationEndpoint | None:
        """Returns an endpoint with the changes so far; None if it was removed."""
        return conversation_endpoints.by_id(self._work.connection, self._rows[key].endpoint_id)


@dataclass(slots=True)
class _Arrival:
    """The messages of a batch for one endpoint."""

    runs: list[PlacedRun]
    begins_with_error: bool = False
    has_system_messages: bool = False
    """Whether one of the messages is an Error or EndDialog message."""


def _arrivals(changes: BatchChanges) -> dict[EndpointKey, _Arrival]:
    """Returns the messages of a batch by endpoint: first the runs that the batch lists, then the remaining rows, joined into runs."""
    found: dict[EndpointKey, _Arrival] = {}
    start = 0
    for key, first, rows, name in changes.runs:
        found[key] = _Arrival([PlacedRun(start, rows, first, name)])
        start += rows
    if start == changes.messages.num_rows:
        return found
    headers = changes.messages.slice(start).select((*_HEADER, *_FLAGS))
    columns: list[list[Any]] = [column_values(column) for column in headers.columns]
    for row, (conversation_id, side, number, name, is_end, is_error) in enumerate(zip(*columns, strict=True), start):
        arrival = found.setdefault((conversation_id, not side), _Arrival([], begins_with_error=is_error))
        arrival.has_system_messages |= is_end or is_error
        last = arrival.runs[-1] if arrival.runs else None
        if last is not None and (row, number, name) == (
            last.start + last.rows,
            last.first + last.rows,
            last.message_type_name,
        ):
            arrival.runs[-1] = last._replace(rows=last.rows + 1)
        else:
            arrival.runs.append(PlacedRun(row, 1, number, name))
    return found


def _messages(table: pa.Table, arrivals: Mapping[EndpointKey, _Arrival]) -> dict[EndpointKey, list[DialogMessage]]:
    """Returns the messages of each endpoint, in order."""
    found: dict[EndpointKey, list[DialogMessage]] = {key: [] for key in arrivals}
    if not arrivals:
        return found
    rows = [row for each in arrivals.values() for run in each.runs for row in range(run.start, run.start + run.rows)]
    chosen = table.take(pa.array(rows, pa.int64()))
    columns: list[list[Any]] = [column_values(chosen[name]) for name in (*_HEADER, "message_body")]
    for conversation_id, side, number, name, body in zip(*columns, strict=True):
        # The names agree with the flags: other messages have been refused, unless this endpoint has ended and drops
        # messages.
        found[conversation_id, not side].append(DialogMessage(number, name, body or None))
    return found


def _stored(changes: BatchChanges) -> Iterator[tuple[EndpointKey, tuple[Any, ...], bytes]]:
    """Yields the key, columns and body of each fragment to store."""
    if not changes.stored.num_rows:
        return
    columns: list[list[Any]] = [column_values(column) for column in changes.stored.columns]
    for conversation_id, side, number, fragment, count, body, *digests, name, message_id, is_end, is_error in zip(
        *columns, strict=True
    ):
        columns_before_body = (number, fragment, count, *digests, name, message_id, is_end, is_error)
        yield (conversation_id, not side), columns_before_body, body
