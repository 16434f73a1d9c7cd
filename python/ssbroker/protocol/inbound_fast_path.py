"""The fast path for receiving: whole messages that are next in order, in dialogs without keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import NO_ROWS, SEQUENCE_MAX
from ssbroker.protocol.inbound_direction import InboundDirection
from ssbroker.protocol.storage import (
    MESSAGES,
    NO_MESSAGES,
    DialogStorage,
    EndpointKey,
    MessageKind,
    MessageRun,
    SessionKeys,
)


class FastInboundRun(NamedTuple):
    """Consecutive messages of one conversation."""

    dialog: Dialog
    incoming: InboundDirection
    run: MessageRun
    body_bytes: int
    is_bound: bool
    """Whether the messages name the receiver's broker id."""
    acked: list[int]
    """The sequence numbers that the messages acknowledge; -1 for none yet."""


@dataclass(frozen=True, slots=True)
class FastInbound:
    """The part of a batch that takes the fast path.

    Attributes:
        rest: The remaining rows (`envelope.ENVELOPE`).
        runs: The runs of consecutive messages of one conversation that take the fast path.
        messages: The messages of the runs (`storage.MESSAGES`), one run after another.
    """

    rest: pa.Table
    runs: list[FastInboundRun] = field(default_factory=list)
    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)

    @property
    def dialogs(self) -> list[Dialog]:
        """The receiving dialogs."""
        return [each.dialog for each in self.runs]


class _FoundRun(NamedTuple):
    """A run as the native code returns it."""

    conversation_id: bytes
    is_initiator: bool
    from_broker: bytes | None
    to_broker: bytes | None
    names: list[str]
    first: int
    rows: int
    body_bytes: int
    max_body_bytes: int
    acked: list[int]

    @property
    def key(self) -> EndpointKey:
        """The receiving endpoint."""
        return (self.conversation_id, not self.is_initiator)


class FastInboundFinder:
    """Finds the messages of a batch that can take the fast path."""

    __slots__ = ("_max_message_bytes", "_storage")

    def __init__(self, storage: DialogStorage, *, max_message_bytes: int) -> None:
        self._storage: Final = storage
        self._max_message_bytes: Final = max_message_bytes

    def find(
        self,
        table: pa.Table,
        known: Mapping[EndpointKey, Dialog],
        *,
        peer: bytes | None,
        session_keys: SessionKeys,
        now: int,
    ) -> FastInbound:
        """Splits a batch into runs for the fast path and remaining rows, without changing state.

        A run takes the fast path if its dialog is in memory, has no keys, is bound to the peer, has no pending messages
        and expects these messages next. If any message in such a run is invalid, no run takes the fast path.
        """
        found, run_of_row = _core.incoming_runs(table)
        taken: list[FastInboundRun | None] = []
        for candidate in map(_FoundRun._make, found):
            dialog = None if candidate.conversation_id in session_keys else known.get(candidate.key)
            taken.append(None if dialog is None else self._match(candidate, dialog, peer, now))
        runs = [run for run in taken if run is not None]
        if not runs:
            return FastInbound(table)
        if len(runs) == 1 and runs[0].run.rows == table.num_rows:
            rest, messages = NO_ROWS, _messages(table)
        else:
            rest, messages = _split_taken_runs(table, run_of_row, [run is not None for run in taken])
        contracts = [each.dialog.endpoint.service_contract_name for each in runs]
        kinds = {
            MessageKind(contract, not each.run.key[1], each.run.message_type_name)
            for contract, each in zip(contracts, runs, strict=True)
        }
        if not self._storage.accept_any_body(kinds):
            of_rows = [contract for contract, each in zip(contracts, runs, strict=True) for _ in range(each.run.rows)]
            if self._storage.validate(messages, of_rows):
                return FastInbound(table)
        return FastInbound(rest, runs, messages)

    def _match(self, found: _FoundRun, dialog: Dialog, peer: bytes | None, now: int) -> FastInboundRun | None:
        endpoint, incoming = dialog.endpoint, dialog.incoming
        to_service, from_service = endpoint.service_name, endpoint.far_service_name
        is_expected = (
            dialog.inbound_cipher is None
            and endpoint.is_bound
            and endpoint.far_broker_instance == found.from_broker
            and found.to_broker in (None, endpoint.broker_instance)
            and found.names[:-1] == [from_service, to_service, endpoint.service_contract_name]
            and endpoint.far_peer in (None, peer)
            and (endpoint.lifetime is None or endpoint.lifetime > now)
            and found.max_body_bytes <= self._max_message_bytes
            and found.first + found.rows - 1 <= SEQUENCE_MAX
        )
        if not is_expected or incoming is None or incoming.pending or incoming.next != found.first:
            return None
        run = MessageRun(found.key, found.first, found.rows, found.names[-1])
        return FastInboundRun(dialog, incoming, run, found.body_bytes, found.to_broker is not None, found.acked)


def _split_taken_runs(
    table: pa.Table, run_of_row: pa.Int32Array, is_taken_run: list[bool]
) -> tuple[pa.Table, pa.Table]:
    """Returns the rows outside the taken runs, in order, and the messages of the taken runs, one run after another."""
    number = -1
    numbers = [number]  # -1 marks rows that belong to no taken run
    for is_taken in is_taken_run:
        number += is_taken
        numbers.append(number if is_taken else -1)
    places: Any = pc.add(run_of_row, 1)
    ranks: Any = pa.array(numbers, pa.int32()).take(places)
    order: Any = pc.array_sort_indices(ranks)  # a stable sort
    left: int = pc.sum(pc.equal(ranks, pa.scalar(-1, pa.int32()))).as_py()
    rest = table.take(order[:left]) if left else table.schema.empty_table()
    return rest, _messages(table).take(order[left:])


def _messages(table: pa.Table) -> pa.Table:
    """Returns whole messages among rows of `ENVELOPE` as `MESSAGES`."""
    return pa.Table.from_arrays([table[name] for name in MESSAGES.names], schema=MESSAGES)
