"""The fast path of sending: whole messages of conversations without keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ssbroker import _core
from ssbroker.protocol.send_turn import SendTurn
from ssbroker.protocol.storage import EndpointKey


class FastOutboundRun(NamedTuple):
    """Consecutive messages of one conversation."""

    turn: SendTurn
    available: int
    """The number of messages read."""
    sent: int
    """How many of them are sent, starting with the first."""


@dataclass(frozen=True, slots=True)
class FastOutbound:
    """Whole messages that are sent now, in order.

    Attributes:
        messages: The messages (`storage.MESSAGES`), one run after another.
        runs: The runs of consecutive messages of one conversation that take the fast path.
        read_bytes: How many bytes of messages were read.
    """

    messages: pa.Table
    runs: Sequence[FastOutboundRun]
    read_bytes: int


def take_fast(messages: pa.Table, turns: Sequence[SendTurn], by_key: Mapping[EndpointKey, int]) -> FastOutbound | None:
    """Takes whole messages for the turns and marks them as sent; None, without changes, if the fast path does not apply to all."""
    if not all(turn.is_fast for turn in turns) or (found := _core.outgoing_runs(messages)) is None:
        return None
    runs = [(turns[by_key[conversation_id, side]], first, lengths) for conversation_id, side, first, lengths in found]
    for turn, first, lengths in runs:
        if first != turn.dialog.transmission.head or max(lengths) > turn.fragment_bytes:
            return None
    taken = [FastOutboundRun(turn, len(lengths), turn.take_whole_messages(lengths)) for turn, _, lengths in runs]
    return FastOutbound(messages, taken, sum(sum(lengths) for _, _, lengths in runs))


def encode_fast(batch: FastOutbound) -> pa.Table:
    """Encodes whole messages as envelope rows; the first row of each conversation carries the acknowledgement that is due (P15)."""
    senders = []
    for turn, waiting, going in batch.runs:
        dialog, endpoint, acknowledgement = turn.dialog, turn.dialog.endpoint, None
        if going and dialog.ack_due is not None:
            acknowledgement = dialog.ack
            dialog.mark_ack_sent()
        names = (endpoint.service_name, endpoint.far_service_name, endpoint.service_contract_name)
        brokers = (endpoint.broker_instance, endpoint.to_broker_instance)
        senders.append((waiting, going, names, *brokers, endpoint.priority, endpoint.lifetime, acknowledgement))
    return pa.Table.from_batches(_core.outgoing_rows(batch.messages, senders))
