"""A dialog's turn to send, the output of turns, and the number of turns that are taken at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.transmission import Flight


@dataclass(slots=True)
class SendTurn:
    """What one dialog may send now.

    Attributes:
        dialog: The dialog.
        retransmissions: The flights that are sent again.
        fragment_budget: The number of unsent fragments that may be sent.
        byte_budget: The number of bytes of unsent fragments that may be sent.
        last_sendable: The last message that may be sent.
        fragment_bytes: The maximum size of a fragment.
        checks_ending_error: Whether to look for an error with which the application ended the dialog, which would take precedence.
        new_fragments: A bit mask of the fragments sent for the first time, for each message.
        found_messages: The messages that are still in the transmission queue.
        has_more: Whether the dialog can send more in its next turn.
        is_waiting: Whether a large message waits until other messages are sent.
        singles_only: Whether the message in progress uses the whole budget, so that only single-fragment messages may be interleaved.
        due_times: When the fragments sent now are sent again.
    """

    dialog: Dialog
    retransmissions: list[Flight]
    fragment_budget: int
    byte_budget: int
    last_sendable: int
    fragment_bytes: int
    checks_ending_error: bool = False
    new_fragments: dict[int, int] = field(default_factory=dict)
    found_messages: set[int] = field(default_factory=set)
    has_more: bool = False
    is_waiting: bool = False
    singles_only: bool = False
    due_times: list[int] = field(default_factory=list)

    def next_unsent(self) -> int:
        """Returns a bit mask of the fragments of the message in progress that are sent for the first time now."""
        return self.dialog.transmission.next_unsent(self.fragment_limit)

    @property
    def fragment_limit(self) -> int:
        """The number of full fragments that may be sent for the first time; at least one if there is any budget."""
        return min(self.fragment_budget, max(self.byte_budget // self.fragment_bytes, 1))

    @property
    def read_limit(self) -> int:
        """The number of bytes of messages to read to use the whole budget."""
        return min(self.byte_budget, self.fragment_budget * self.fragment_bytes)

    def fragments_to_resend(self) -> dict[int, int]:
        """Returns a bit mask of the fragments to send again, for each message."""
        found: dict[int, int] = {}
        for flight in self.retransmissions:
            for number, mask in flight.fragments.items():
                found[number] = found.get(number, 0) | mask
        return found

    @property
    def is_fast(self) -> bool:
        """Whether only unsent messages are sent, on a conversation without keys and with no message in progress."""
        dialog, transmission = self.dialog, self.dialog.transmission
        is_between = transmission.cursor == 0 and transmission.last_interleaved == transmission.head
        return dialog.knows_queue_start and dialog.outbound_cipher is None and not self.retransmissions and is_between

    def take_whole_messages(self, lengths: Sequence[int]) -> int:
        """Marks whole messages as sent, starting at `transmission.head`, as many as fit into the budgets; returns their number.

        The first message may exceed the byte budget if nothing is in flight.
        """
        transmission = self.dialog.transmission
        count, size = len(lengths), sum(lengths)
        if count > self.fragment_budget or size > self.byte_budget:
            count = size = 0
            for length in lengths[: self.fragment_budget]:
                if size + length > self.byte_budget and (count or transmission.fragments_in_flight):
                    break
                count += 1
                size += length
        self.new_fragments = dict.fromkeys(range(transmission.head, transmission.head + count), 1)
        self.fragment_budget -= count
        self.byte_budget -= size
        self.has_more |= count < len(lengths) or (count > 0 and self.fragment_budget == 0)
        transmission.mark_messages_sent(lengths[:count])
        return count

    @property
    def is_drained(self) -> bool:
        """Whether the transmission queue contained nothing else to send: there was budget left, and no other limit applied."""
        transmission = self.dialog.transmission
        has_room = self.fragment_budget > 0 and self.byte_budget > 0 and transmission.head <= self.last_sendable
        return has_room and not (self.has_more or self.is_waiting or self.singles_only) and transmission.cursor == 0


@dataclass(frozen=True, slots=True)
class FragmentBatch:
    """The fragments that are sent now, in order.

    Attributes:
        rows: The columns of `schemas.FRAGMENTS`, the kind of message, and the index of the turn.
        turns: The turn of each row.
        read_bytes: The number of bytes of messages that were read for these fragments.
    """

    rows: pa.Table
    turns: list[SendTurn]
    read_bytes: int


class FastOutboundRun(NamedTuple):
    """Consecutive messages of one conversation."""

    turn: SendTurn
    available: int
    """The number of messages read."""
    sent: int
    """The number of these messages that are sent, starting with the first."""


@dataclass(frozen=True, slots=True)
class FastOutbound:
    """Whole messages that are sent now, in order.

    Attributes:
        messages: The messages (`storage.MESSAGES`), one run after another.
        runs: The runs of consecutive messages of one conversation that take the fast path.
        read_bytes: The number of bytes of messages that were read.
    """

    messages: pa.Table
    runs: Sequence[FastOutboundRun]
    read_bytes: int


_BATCH_MIN: Final = 1


_BATCH_MAX: Final = 64


_BATCH_BYTES: Final = 128 << 10


class TurnPacing:
    """Adapts the number of turns taken at a time to the size of the turns, which is unknown beforehand.

    Attributes:
        batch_size: The number of dialogs that get their turn next.
        bytes: The recorded size of all turns since `start`.

    Examples:
        >>> pacing = TurnPacing()
        >>> pacing.start()
        >>> pacing.record(1, 1024)
        >>> pacing.batch_size, pacing.bytes
        (2, 1024)
        >>> pacing.start()
        >>> pacing.batch_size
        64
    """

    __slots__ = ("_turns", "batch_size", "bytes")

    def __init__(self) -> None:
        self.batch_size = _BATCH_MIN
        self.bytes = 0
        self._turns = 0

    def start(self) -> None:
        """Resets the counts, and estimates the batch size from the previous counts."""
        if self._turns:
            self.batch_size = min(max(_BATCH_MIN, self._turns * _BATCH_BYTES // (self.bytes + 1)), _BATCH_MAX)
        self.bytes = self._turns = 0

    def record(self, turns: int, size: int) -> None:
        """Records the size of turns in bytes, including messages that were read but not sent."""
        self._turns += turns
        self.bytes += size
        self.batch_size *= 2
