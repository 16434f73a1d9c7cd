"""The messages of the benches of the network: each says its conversation, number and moment, and the receiver judges it by these."""

from __future__ import annotations

import functools
import random
import struct
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from benches.queue_rivals import Message

_HEAD: Final = struct.Struct(">QQQI")
"""Conversation, number in it, moment of sending in nanoseconds, CRC-32 of what follows."""
HEAD_BYTES: Final = _HEAD.size


def messages(count: int, conversations: int, size: int, *, first: int = 0) -> Iterator[Message]:
    """Messages of all conversations in turns, numbered on from `first`; what they hold is random, the same for all."""
    rest, digest = _rest(size - HEAD_BYTES)
    for place in range(first, first + count):
        number, conversation = divmod(place, conversations)
        yield conversation, _HEAD.pack(conversation, number, time.monotonic_ns(), digest) + rest


@functools.cache
def _rest(size: int) -> tuple[bytes, int]:
    """What follows the head, and its CRC-32; made once, since to make 16 MiB takes longer than some rivals need to send them."""
    rest = random.Random(1).randbytes(size)
    return rest, zlib.crc32(rest)


@dataclass(slots=True)
class Judge:
    """Whether what one receiver took is right, and how long each was on its way."""

    count: int = 0
    wrong: int = 0
    seconds: list[float] = field(default_factory=list)
    _next: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, bodies: list[bytes]) -> None:
        """Judges what was taken in one transaction, which is over."""
        now = time.monotonic_ns()
        for body in bodies:
            conversation, number, moment, digest = _HEAD.unpack_from(body)
            is_right = number == self._next[conversation] and zlib.crc32(memoryview(body)[HEAD_BYTES:]) == digest
            self.wrong += not is_right
            self._next[conversation] = number + 1
            self.seconds.append((now - moment) / 1e9)
        self.count += len(bodies)
