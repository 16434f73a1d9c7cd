"""What one dialog may send at a time, and what was cut for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.transmission import Flight


@dataclass(slots=True)
class Turn:
    """What one dialog may send now.

    Attributes:
        dialog: The dialog.
        lost: What goes again, as it was sent before.
        room: How many fragments may go that were never sent.
        room_bytes: And how many bytes of them.
        last: The last message that may go.
        is_asking: Whether nothing may go but an error of the application, if there is one.
        fresh: What goes for the first time, as bits for each message.
        found: The messages that its transmission queue still has.
        is_full: Whether more could go at once, in its next turn.
        is_held: Whether a large message waits until others are through.
        dues: When what goes now goes again.
    """

    dialog: Dialog
    lost: list[Flight]
    room: int
    room_bytes: int
    last: int
    is_asking: bool = False
    fresh: dict[int, int] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)
    is_full: bool = False
    is_held: bool = False
    dues: list[int] = field(default_factory=list)

    def goes_again(self) -> dict[int, int]:
        """What goes again, as bits for each message."""
        found: dict[int, int] = {}
        for flight in self.lost:
            for number, mask in flight.fragments.items():
                found[number] = found.get(number, 0) | mask
        return found

    @property
    def is_drained(self) -> bool:
        """Whether the transmission queue held no more than what goes: there was room left, and nothing else in the way."""
        transmission = self.dialog.transmission
        has_room = self.room > 0 and self.room_bytes > 0 and transmission.head <= self.last
        return has_room and not (self.is_full or self.is_held) and transmission.cursor == 0


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
