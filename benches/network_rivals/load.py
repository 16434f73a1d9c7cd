"""The messages of the network benchmarks: each contains its conversation, number and time of sending, which the receiver checks."""

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
"""Conversation, number in the conversation, time of sending in nanoseconds, CRC-32 of the rest."""
HEAD_BYTES: Final = _HEAD.size


def messages(count: int, conversations: int, size: int, *, first: int = 0) -> Iterator[Message]:
    """Returns messages of all conversations, round robin, numbered from `first`; all have the same random content."""
    rest, digest = _content(size - HEAD_BYTES)
    for place in range(first, first + count):
        number, conversation = divmod(place, conversations)
        yield conversation, _HEAD.pack(conversation, number, time.monotonic_ns(), digest) + rest


@functools.cache
def _content(size: int) -> tuple[bytes, int]:
    """Returns the bytes after the header and their CRC-32; cached, because generating 16 MiB takes longer than sending them."""
    rest = random.Random(1).randbytes(size)
    return rest, zlib.crc32(rest)


@dataclass(slots=True)
class MessageChecker:
    """Checks the messages of a receiver, and measures their latency."""

    count: int = 0
    wrong: int = 0
    seconds: list[float] = field(default_factory=list)
    _next: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, bodies: list[bytes]) -> None:
        """Checks the messages of a committed transaction."""
        now = time.monotonic_ns()
        for body in bodies:
            conversation, number, sent_at, digest = _HEAD.unpack_from(body)
            is_intact = number == self._next[conversation] and zlib.crc32(memoryview(body)[HEAD_BYTES:]) == digest
            self.wrong += not is_intact
            self._next[conversation] = number + 1
            self.seconds.append((now - sent_at) / 1e9)
        self.count += len(bodies)
