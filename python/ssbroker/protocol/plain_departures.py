"""Whole messages of plain conversations that go for the first time, in their turn: sent a run at a time, no message by itself (B48)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ssbroker import _core
from ssbroker.protocol.ledger import Key
from ssbroker.protocol.turn import Turn


class PlainRun(NamedTuple):
    """Messages of one conversation, one number behind the other."""

    turn: Turn
    waiting: int
    """How many there are."""
    going: int
    """How many of them go, the first ones."""


@dataclass(frozen=True, slots=True)
class PlainCut:
    """Whole messages that go now, in order.

    Attributes:
        messages: The messages (`ledger.MESSAGES`), run behind run.
        runs: The runs.
        read_bytes: How many bytes of messages were read.
    """

    messages: pa.Table
    runs: Sequence[PlainRun]
    read_bytes: int


def cut_plain(messages: pa.Table, turns: Sequence[Turn], by_key: Mapping[Key, int]) -> PlainCut | None:
    """Takes what goes, and notes that in the dialogs.

    Args:
        messages: What was read for the turns (`ledger.MESSAGES`).
        turns: The turns.
        by_key: The place of each, by its endpoint.

    Returns:
        What goes; None where one of the turns, or of the messages, is no plain one: then nothing is noted.
    """
    if not all(turn.is_plain for turn in turns) or (found := _core.waiting_runs(messages)) is None:
        return None
    runs = [(turns[by_key[conversation_id, side]], first, lengths) for conversation_id, side, first, lengths in found]
    for turn, first, lengths in runs:
        if first != turn.dialog.transmission.head or max(lengths) > turn.fragment_bytes:
            return None
    taken = [PlainRun(turn, len(lengths), turn.take_plain(lengths)) for turn, _, lengths in runs]
    return PlainCut(messages, taken, sum(sum(lengths) for _, _, lengths in runs))


def departing(cut: PlainCut) -> pa.Table:
    """The rows in which messages go; the first one of each conversation carries the acknowledgement that is due (P15).

    Args:
        cut: The messages.

    Returns:
        The rows (`envelope.ENVELOPE`), in their order.
    """
    senders = []
    for turn, waiting, going in cut.runs:
        dialog, endpoint, acknowledgement = turn.dialog, turn.dialog.endpoint, None
        if going and dialog.ack_due is not None:
            acknowledgement = dialog.ack
            dialog.paid()
        names = (endpoint.service_name, endpoint.far_service_name, endpoint.service_contract_name)
        brokers = (endpoint.broker_instance, endpoint.far_broker_instance)
        senders.append((waiting, going, names, *brokers, endpoint.priority, endpoint.lifetime, acknowledgement))
    return pa.Table.from_batches(_core.departures(cut.messages, senders))
