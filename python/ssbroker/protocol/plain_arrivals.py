"""Whole messages of plain conversations that go on, in their turn: taken a run at a time, no row by itself (B47)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import SEQUENCE_MAX
from ssbroker.protocol.incoming import Incoming
from ssbroker.protocol.ledger import MESSAGES, NO_MESSAGES, Key, Ledger, SessionKeys
from ssbroker.protocol.message_run import MessageRun


class PlainRun(NamedTuple):
    """Messages of one conversation, one number behind the other."""

    dialog: Dialog
    incoming: Incoming
    run: MessageRun
    body_bytes: int
    is_bound: bool
    """Whether they name the broker that they are for."""


@dataclass(frozen=True, slots=True)
class PlainArrivals:
    """What of a batch is plain.

    Attributes:
        runs: The runs.
        messages: Their messages (`ledger.MESSAGES`), run behind run.
        rest: The rows that are left (`envelope.ENVELOPE`).
    """

    rest: pa.Table
    runs: list[PlainRun] = field(default_factory=list)
    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs that they are for."""
        return [each.dialog for each in self.runs]


class _Found(NamedTuple):
    """A run as it was found."""

    conversation_id: bytes
    is_initiator: bool
    from_broker: bytes | None
    to_broker: bytes | None
    names: list[str]
    first: int
    rows: int
    body_bytes: int
    longest: int

    @property
    def key(self) -> Key:
        """The endpoint that it is for."""
        return (self.conversation_id, not self.is_initiator)


class PlainTaking:
    """Finds what is plain in batches.

    Args:
        ledger: What judges messages.
        max_message_bytes: The largest message.
    """

    __slots__ = ("_ledger", "_max_message_bytes")

    def __init__(self, ledger: Ledger, *, max_message_bytes: int) -> None:
        self._ledger: Final = ledger
        self._max_message_bytes: Final = max_message_bytes

    def take(
        self, table: pa.Table, known: Mapping[Key, Dialog], *, peer: bytes | None, session_keys: SessionKeys, now: int
    ) -> PlainArrivals:
        """Takes what is plain. Nothing is changed by it.

        Args:
            table: The rows (`envelope.ENVELOPE`).
            known: The dialogs in memory.
            peer: Who handed them over.
            session_keys: Keys that came with them, by conversation id.
            now: The moment.

        Returns:
            The runs whose dialogs are in memory, have no keys, are bound to where they come from, have nothing that waits, and expect just them;
            all of it is left where one of their messages cannot be taken.
        """
        found, of_rows = _core.plain_runs(table)
        taken: list[PlainRun | None] = []
        for each in map(_Found._make, found):
            dialog = None if each.conversation_id in session_keys else known.get(each.key)
            taken.append(None if dialog is None else self._run(each, dialog, peer, now))
        runs = [run for run in taken if run is not None]
        if not runs:
            return PlainArrivals(table)
        rest, messages = _parted(table, of_rows, [run is not None for run in taken])
        contracts: list[str] = []
        for run in runs:
            contracts += [run.dialog.endpoint.service_contract_name] * run.run.rows
        if self._ledger.judge(messages, contracts):
            return PlainArrivals(table)
        return PlainArrivals(rest, runs, messages)

    def _run(self, found: _Found, dialog: Dialog, peer: bytes | None, now: int) -> PlainRun | None:
        endpoint, incoming = dialog.endpoint, dialog.incoming
        to_service, from_service = endpoint.service_name, endpoint.far_service_name
        is_expected = (
            dialog.inbound is None
            and endpoint.is_bound
            and endpoint.far_broker_instance == found.from_broker
            and found.to_broker in (None, endpoint.broker_instance)
            and found.names[:-1] == [from_service, to_service, endpoint.service_contract_name]
            and endpoint.far_peer in (None, peer)
            and (endpoint.lifetime is None or endpoint.lifetime > now)
            and found.longest <= self._max_message_bytes
            and found.first + found.rows - 1 <= SEQUENCE_MAX
        )
        if not is_expected or incoming is None or incoming.early or incoming.next != found.first:
            return None
        run = MessageRun(found.key, found.first, found.rows, found.names[-1])
        return PlainRun(dialog, incoming, run, found.body_bytes, found.to_broker is not None)


def _parted(table: pa.Table, of_rows: pa.Int32Array, are_taken: list[bool]) -> tuple[pa.Table, pa.Table]:
    """The rows that are in no run that is taken, in their order; and the messages of the others, run behind run."""
    number = -1
    numbers = [number]  # of rows in no run, which have -1
    for is_taken in are_taken:
        number += is_taken
        numbers.append(number if is_taken else -1)
    places: Any = pc.add(of_rows, 1)
    ranks: Any = pa.array(numbers, pa.int32()).take(places)
    order: Any = pc.array_sort_indices(ranks)  # a stable one
    left: int = pc.sum(pc.equal(ranks, pa.scalar(-1, pa.int32()))).as_py()
    rest = table.take(order[:left]) if left else table.schema.empty_table()
    columns = pa.Table.from_arrays([table[name] for name in MESSAGES.names], schema=MESSAGES)
    return rest, columns.take(order[left:])
