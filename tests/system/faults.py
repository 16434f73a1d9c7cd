"""Faults of a bad network in a byte stream: bit flips, disconnects and delays, from a seed.

Places are drawn in bytes of the stream, not in reads of a socket, so that the same seed hits the same bytes however they are cut.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

Way = Literal["there", "back"]
"""From who dialled, or to them."""
WAYS: Final[tuple[Way, Way]] = ("there", "back")


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """How many bytes lie between two faults of a kind, on average; 0 is never.

    Attributes:
        flip_bytes: One bit is flipped.
        cut_bytes: The connection breaks, in the middle of whatever is sent.
        delay_bytes: The stream is held up, while other connections go on.
        delay_seconds: For how long, at most.
    """

    flip_bytes: int = 0
    cut_bytes: int = 0
    delay_bytes: int = 0
    delay_seconds: float = 0.0


HONEST: Final = Menu()


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of a piece of the stream.

    Attributes:
        data: The bytes to send on.
        delay: The seconds to hold them up before.
        flips: How many of their bits were flipped.
        is_cut: Whether the connection breaks after them.
    """

    data: bytes
    delay: float = 0.0
    flips: int = 0
    is_cut: bool = False


@dataclass(slots=True)
class Stream:
    """One direction of one connection: where its faults are."""

    menu: Menu
    rng: random.Random
    _next: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ("flip", "cut", "delay"):
            self._next[kind] = self._gap(kind)

    def steps(self, data: bytes) -> Iterator[Step]:
        """The outcome of the next bytes; nothing follows a disconnect."""
        while data:
            kind = min(self._next, key=lambda each: self._next[each])
            length = int(min(self._next[kind], len(data)))
            is_hit = self._next[kind] < len(data)
            if not is_hit:
                self._pass(len(data))
                yield Step(data)
                return
            self._pass(length)
            self._next[kind] = self._gap(kind)
            if kind == "cut":
                yield Step(data[:length], is_cut=True)
                return
            if kind == "flip":
                flipped = data[length] ^ (1 << self.rng.randrange(8))
                self._pass(1)
                yield Step(data[:length] + bytes([flipped]), flips=1)
                data = data[length + 1 :]
            else:
                if length:
                    yield Step(data[:length])
                # The delayed byte is sent alone, so that a stream with many delays still makes progress.
                self._pass(1)
                yield Step(data[length : length + 1], delay=self.rng.uniform(0, self.menu.delay_seconds))
                data = data[length + 1 :]

    def _pass(self, length: int) -> None:
        for kind in self._next:
            self._next[kind] = max(0.0, self._next[kind] - length)

    def _gap(self, kind: str) -> float:
        mean: int = getattr(self.menu, f"{kind}_bytes")
        return self.rng.expovariate(1 / mean) if mean else math.inf


def stream(menu: Menu, *, seed: int, connection: int, way: Way) -> Stream:
    """The faults of one direction of one connection, always the same for the same arguments."""
    return Stream(menu, random.Random(f"{seed}/{connection}/{way}"))
