"""What one dialog may send at a time, and what was cut for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.flight import Flight


@dataclass(slots=True)
class Turn:
    """What one dialog may send now.

    Attributes:
        dialog: The dialog.
        lost: What goes again, as it was sent before.
        room: How many fragments may go that were never sent.
        room_bytes: And how many bytes of them.
        last: The last message that may go.
        fragment_bytes: How long a fragment is.
        is_asking: Whether it is to be asked whether there is an error of the application, which would go before all that may go now.
        fresh: What goes for the first time, as bits for each message.
        found: The messages that its transmission queue still has.
        is_full: Whether more could go at once, in its next turn.
        is_held: Whether a large message waits until others are through.
        is_passing: Whether the message that is under way takes all the room for itself, so that only single ones may pass it.
        dues: When what goes now goes again.
    """

    dialog: Dialog
    lost: list[Flight]
    room: int
    room_bytes: int
    last: int
    fragment_bytes: int
    is_asking: bool = False
    fresh: dict[int, int] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)
    is_full: bool = False
    is_held: bool = False
    is_passing: bool = False
    dues: list[int] = field(default_factory=list)

    def coming(self) -> int:
        """Which fragments of the message that is under way go now for the first time, as bits."""
        return self.dialog.transmission.coming(self.most)

    @property
    def most(self) -> int:
        """How many whole fragments may go that were never sent; one goes in any case, where there is room at all."""
        return min(self.room, max(self.room_bytes // self.fragment_bytes, 1))

    @property
    def most_bytes(self) -> int:
        """How many bytes of messages have to be read, so that all can go that may."""
        return min(self.room_bytes, self.room * self.fragment_bytes)

    def goes_again(self) -> dict[int, int]:
        """What goes again, as bits for each message."""
        found: dict[int, int] = {}
        for flight in self.lost:
            for number, mask in flight.fragments.items():
                found[number] = found.get(number, 0) | mask
        return found

    @property
    def is_plain(self) -> bool:
        """Whether all that goes are messages that were never sent, of a conversation without keys, with nothing of another one under way."""
        dialog, transmission = self.dialog, self.dialog.transmission
        is_between = transmission.cursor == 0 and transmission.passed == transmission.head
        return dialog.is_known and dialog.outbound is None and not self.lost and is_between

    def take_plain(self, lengths: Sequence[int]) -> int:
        """Notes that the first of some whole messages go, as many as fit.

        Args:
            lengths: How long they are; the first one is `head`.

        Returns:
            How many these are.
        """
        transmission = self.dialog.transmission
        going, size = len(lengths), sum(lengths)
        if going > self.room or size > self.room_bytes:
            going = size = 0
            for length in lengths[: self.room]:
                if size + length > self.room_bytes and (going or transmission.fragments):
                    break
                going += 1
                size += length
        self.fresh = dict.fromkeys(range(transmission.head, transmission.head + going), 1)
        self.room -= going
        self.room_bytes -= size
        self.is_full |= going < len(lengths) or (going > 0 and self.room == 0)
        transmission.send_whole(lengths[:going])
        return going

    @property
    def is_drained(self) -> bool:
        """Whether the transmission queue held no more than what goes: there was room left, and nothing else in the way."""
        transmission = self.dialog.transmission
        has_room = self.room > 0 and self.room_bytes > 0 and transmission.head <= self.last
        return has_room and not (self.is_full or self.is_held or self.is_passing) and transmission.cursor == 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Fragments that go now, in order.

    Attributes:
        rows: Their columns: those of `schemas.FRAGMENTS`, what kind of message they are of, and the place of their turn.
        turns: The turn of each.
        read_bytes: How many bytes of messages were read for them.
    """

    rows: pa.Table
    turns: list[Turn]
    read_bytes: int
