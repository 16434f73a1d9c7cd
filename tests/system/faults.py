"""Faults of a bad network in a byte stream: bit flips, disconnects and delays, from a seed.

Faults are placed by byte offset in the stream, not by socket read, so that a seed always hits the same bytes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

Direction = Literal["there", "back"]
"""From the client to the server, or back."""
DIRECTIONS: Final[tuple[Direction, Direction]] = ("there", "back")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Mean number of bytes between two faults of a kind; 0 for none.

    Attributes:
        flip_bytes: For flipped bits.
        cut_bytes: For disconnects, in the middle of a transmission.
        delay_bytes: For delays of this connection only.
        delay_seconds: Maximum delay.
    """

    flip_bytes: int = 0
    cut_bytes: int = 0
    delay_bytes: int = 0
    delay_seconds: float = 0.0


NO_FAULTS: Final = FaultRates()


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the stream and the fault after it.

    Attributes:
        data: The bytes to forward.
        delay: Seconds to wait before forwarding them.
        flips: Number of flipped bits.
        is_cut: Whether to disconnect afterwards.
    """

    data: bytes
    delay: float = 0.0
    flips: int = 0
    is_cut: bool = False


@dataclass(slots=True)
class Stream:
    """The faults of one direction of one connection."""

    rates: FaultRates
    rng: random.Random
    _next: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ("flip", "cut", "delay"):
            self._next[kind] = self._gap(kind)

    def segments(self, data: bytes) -> Iterator[Segment]:
        """Yields the next bytes with their faults; nothing follows a disconnect."""
        while data:
            kind = min(self._next, key=lambda each: self._next[each])
            length = int(min(self._next[kind], len(data)))
            is_hit = self._next[kind] < len(data)
            if not is_hit:
                self._pass(len(data))
                yield Segment(data)
                return
            self._pass(length)
            self._next[kind] = self._gap(kind)
            if kind == "cut":
                yield Segment(data[:length], is_cut=True)
                return
            if kind == "flip":
                flipped = data[length] ^ (1 << self.rng.randrange(8))
                self._pass(1)
                yield Segment(data[:length] + bytes([flipped]), flips=1)
                data = data[length + 1 :]
            else:
                if length:
                    yield Segment(data[:length])
                # The delayed byte is sent alone, so that a stream with many delays still makes progress.
                self._pass(1)
                yield Segment(data[length : length + 1], delay=self.rng.uniform(0, self.rates.delay_seconds))
                data = data[length + 1 :]

    def _pass(self, length: int) -> None:
        for kind in self._next:
            self._next[kind] = max(0.0, self._next[kind] - length)

    def _gap(self, kind: str) -> float:
        mean: int = getattr(self.rates, f"{kind}_bytes")
        return self.rng.expovariate(1 / mean) if mean else math.inf


def stream(rates: FaultRates, *, seed: int, connection: int, direction: Direction) -> Stream:
    """Returns the faults of one direction of one connection, always the same for the same arguments."""
    return Stream(rates, random.Random(f"{seed}/{connection}/{direction}"))
