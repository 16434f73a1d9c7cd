"""The messages of a storm:

each contains its lane and number, which determine its bytes, so that a receiver can check it alone.
"""

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
"""Added to the lane of a message to get the lane of its reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The messages to send.

    Attributes:
        lanes: Number of conversations.
        messages: Number of small messages of the initiator in all conversations, sent in turn.
        small_bytes: Size of a small message.
        large: Number of additional large messages.
        large_bytes: Size of a large message.
        reply_every: The target answers one message in this many of a conversation.
        batch: Number of messages in a transaction.
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
        """The number of the initiator's messages, including large ones."""
        return self.messages + self.large

    @property
    def replies(self) -> int:
        """The number of the target's messages."""
        return sum(-(-self.count(lane) // self.reply_every) for lane in range(self.lanes))

    def count(self, lane: int) -> int:
        """Returns the number of messages of a lane."""
        return self.total // self.lanes + (lane < self.total % self.lanes)

    def size(self, lane: int, number: int) -> int:
        """Returns the size of a message; large ones are spread evenly."""
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
    """Returns the body of a message: irregular bytes that depend on lane, number and size."""
    head = _HEAD.pack(lane, number, size)
    return head + random.Random(head).randbytes(size - len(head))


def read(found: bytes) -> tuple[int, int, bool]:
    """Returns lane and number of a body (-1 if it is too short), and whether every bit of it is correct."""
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
