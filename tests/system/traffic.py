"""The messages of a storm: each contains its name, which determines its bytes, so that a receiver can check it alone."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

_HEAD: Final = struct.Struct(">QQQ")
REPLY: Final = 1 << 32
"""The lane of a reply is that of what it answers, and this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The messages to send.

    Attributes:
        lanes: How many conversations.
        messages: How many messages the initiator sends in all of them, in turns.
        small_bytes: How long they are.
        large: How many more are large.
        large_bytes: How long these are.
        reply_every: Every so many messages of a conversation, the target answers one.
        batch: How many are sent in one transaction.
    """

    lanes: int
    messages: int
    small_bytes: int = 1024
    large: int = 0
    large_bytes: int = 0
    reply_every: int = 10
    batch: int = 50

    @property
    def total(self) -> int:
        """The number of the initiator's messages, large ones included."""
        return self.messages + self.large

    @property
    def replies(self) -> int:
        """The number of the target's messages."""
        return sum(-(-self.count(lane) // self.reply_every) for lane in range(self.lanes))

    def count(self, lane: int) -> int:
        """The number of messages of a lane."""
        return self.total // self.lanes + (lane < self.total % self.lanes)

    def size(self, lane: int, number: int) -> int:
        """The size of a message; large ones are spread evenly."""
        place = number * self.lanes + lane
        is_large = self.large and (place + 1) * self.large // self.total > place * self.large // self.total
        return self.large_bytes if is_large else self.small_bytes

    def write(self, path: Path) -> None:
        """Writes the plan for the processes."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a written plan."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def body(lane: int, number: int, size: int) -> bytes:
    """The message of this lane and number; it is irregular, and another size is another message."""
    head = _HEAD.pack(lane, number, size)
    return head + random.Random(head).randbytes(size - len(head))


def read(found: bytes) -> tuple[int, int, bool]:
    """Lane and number that a body names, and whether it is, to the last bit, what was sent under them.

    Of one too short to name any both are -1.
    """
    if len(found) < _HEAD.size:
        return -1, -1, False
    lane, number, size = _HEAD.unpack_from(found)
    return lane, number, size == len(found) and body(lane, number, size) == found


def runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Numbers in a row as their first and their last.

    >>> list(runs([1, 2, 3, 7, 9, 10]))
    [(1, 3), (7, 7), (9, 10)]
    """
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[start], numbers[place - 1]
            start = place
